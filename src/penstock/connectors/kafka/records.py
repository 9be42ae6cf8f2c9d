"""Rows as records of Kafka: the columns that make key, value, headers, topic, partition and timestamp of a record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from penstock.connectors.staging import SHARD, check_names
from penstock.errors import GraphError, no_column
from penstock.interfaces.sink import CHANGE_COLUMN
from penstock.spark.sql import quote_identifier

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

RecordFormat: TypeAlias = Literal["json", "raw"]
Header: TypeAlias = "tuple[str, bytes | None]"

_ROWS_AT_ONCE: Final = 10_000
"""Rows that are made Python objects at a time."""
_TEXT: Final = ("string", "binary")
_HEADERS: Final = "array<struct<key:string,value:binary>>"


class OutputRecord(NamedTuple):
    """One record to produce. Without a value it is a tombstone; without a partition its key chooses one."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None
    timestamp_ms: int | None
    headers: Sequence[Header] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordParts:
    """Which columns of a row make which part of a record.

    Attributes:
        format: ``"json"``: the value is a JSON object of columns; ``"raw"``: it is the bytes of one column.
        topic: of records whose row names none.
        key: columns of the key; one alone is written as its text, several as a JSON object.
        value: columns of the value; empty for JSON: all that say nothing else about the record.
        headers: the column of the headers, if there is one; likewise the others.
    """

    format: RecordFormat
    topic: str
    key: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    headers: str | None = None
    timestamp: str | None = None
    partition: str | None = None
    topic_column: str | None = None

    # ---- checks ------------------------------------------------------------------------------------------------------

    def check(self, schema: StructType) -> None:
        """Refuse rows of which no records can be made.

        Raises:
            GraphError: names the column and the remedy.
        """
        check_names(schema)
        fields = {field.name: field for field in schema.fields}
        for name in self._named():
            if name not in fields:
                raise GraphError(no_column(name, list(fields)))
        if CHANGE_COLUMN in fields and not self.key:
            msg = (
                f"The rows are changes (they have the column {CHANGE_COLUMN}), of which Kafka keeps the newest of each "
                "key. Name the columns that identify a result, as in key=['user', 'window_start']."
            )
            raise GraphError(msg)
        if self.format == "raw":
            self._check_raw(fields)
        elif not self.value_columns(schema):
            msg = "Every column says something else about the record, so nothing is left for its value. Name value=[…]."
            raise GraphError(msg)
        for name in (*self.key, *self.value_columns(schema)):
            kind = fields[name].dataType.typeName()
            if kind in ("void", "null", "interval"):
                msg = f"Column {name!r} is {kind}, which no record can hold. Cast or drop it."
                raise GraphError(msg)
        self._check_types(fields)

    def _named(self) -> tuple[str, ...]:
        others = (self.headers, self.timestamp, self.partition, self.topic_column)
        return (*self.key, *self.value, *(name for name in others if name is not None))

    def _check_raw(self, fields: dict[str, StructField]) -> None:
        (value,) = self.value
        kind = fields[value].dataType.typeName()
        if kind not in _TEXT:
            msg = f"Column {value!r} is {kind}, and a raw value is BINARY or STRING. Cast it, or take format='json'."
            raise GraphError(msg)
        unused = [name for name in fields if name not in (*self._named(), CHANGE_COLUMN)]
        if unused:
            msg = (
                f"Columns {', '.join(unused)} go nowhere, since a raw value is one column. Drop them, name them in "
                "key=, headers=, timestamp=, partition= or topic_column=, or take format='json'."
            )
            raise GraphError(msg)

    def _check_types(self, fields: dict[str, StructField]) -> None:
        wanted = (
            ("timestamp", self.timestamp, ("timestamp",), "TIMESTAMP"),
            ("partition", self.partition, ("integer", "short", "byte"), "INT"),
            ("topic_column", self.topic_column, ("string",), "STRING"),
        )
        for argument, name, kinds, shown in wanted:
            if name is not None and (kind := fields[name].dataType.typeName()) not in kinds:
                msg = f"{argument}={name!r} is a column of {kind}, and must be {shown}. Cast it."
                raise GraphError(msg)
        if self.headers is not None and not _are_headers(fields[self.headers].dataType):
            msg = (
                f"headers={self.headers!r} is a column of {fields[self.headers].dataType.simpleString()}. It must be "
                "MAP<STRING, STRING>, or ARRAY<STRUCT<key STRING, value BINARY>> as ps.kafka.Source has it."
            )
            raise GraphError(msg)

    # ---- in Spark ----------------------------------------------------------------------------------------------------

    def value_columns(self, schema: StructType) -> tuple[str, ...]:
        """The columns of the value."""
        if self.value:
            return self.value
        about = (self.headers, self.partition, self.topic_column, CHANGE_COLUMN)
        return tuple(name for name in schema.fieldNames() if name not in about)

    def records(self, frame: DataFrame) -> DataFrame:
        """Records as rows, lazily, with no more columns than they need. Of a change stream: its upserts.

        What a change replaces is left out, and what it deletes has no value.
        """
        schema = frame.schema
        if CHANGE_COLUMN in schema.fieldNames():
            frame = frame.where(f"{CHANGE_COLUMN} <> 'update_before'")
        return frame.selectExpr(*self._expressions(schema))

    def in_shards(self, records: DataFrame, shards: int) -> DataFrame:
        """Records with the column ``SHARD``: those of a key are in one, or else those of a partition, or else any."""
        by = [name for name in ("key", "partition") if name in records.columns]
        hashes = [f"IF({name} IS NULL, NULL, xxhash64({name}))" for name in by]
        number = f"coalesce({', '.join([*hashes, 'monotonically_increasing_id()'])})"
        return records.selectExpr("*", f"CAST(pmod({number}, {shards}) AS INT) AS {SHARD}")

    def _expressions(self, schema: StructType) -> list[str]:
        kinds = {field.name: field.dataType for field in schema.fields}
        value = self._value(schema)
        if CHANGE_COLUMN in kinds:
            value = f"IF({CHANGE_COLUMN} = 'delete', NULL, {value})"
        found = [f"{value} AS value"]
        if self.key:
            found.append(f"{self._key(kinds)} AS key")
        if self.headers is not None:
            entries = quote_identifier(self.headers)
            entries = f"map_entries({entries})" if kinds[self.headers].typeName() == "map" else entries
            found.append(f"CAST({entries} AS {_HEADERS}) AS headers")
        if self.timestamp is not None:
            found.append(f"unix_millis({quote_identifier(self.timestamp)}) AS timestamp_ms")
        if self.partition is not None:
            found.append(f"CAST({quote_identifier(self.partition)} AS INT) AS partition")
        if self.topic_column is not None:
            found.append(f"{quote_identifier(self.topic_column)} AS topic")
        return found

    def _value(self, schema: StructType) -> str:
        if self.format == "raw":
            return f"CAST({quote_identifier(self.value[0])} AS BINARY)"
        return _json(self.value_columns(schema))

    def _key(self, kinds: dict[str, DataType]) -> str:
        if len(self.key) > 1:
            return _json(self.key)
        name = quote_identifier(self.key[0])
        kind = kinds[self.key[0]].typeName()
        if kind in _TEXT:
            return f"CAST({name} AS BINARY)"
        text = f"to_json({name})" if kind in ("struct", "array", "map", "variant") else f"CAST({name} AS STRING)"
        return f"CAST({text} AS BINARY)"

    # ---- in Python ---------------------------------------------------------------------------------------------------

    def read(self, table: pa.Table) -> Iterator[OutputRecord]:
        """Yield the records of a table that has the columns of ``records``."""
        return read_records(table, self.topic)


def read_records(table: pa.Table, topic: str) -> Iterator[OutputRecord]:
    """Yield the records of a table; those that name no topic go to ``topic``."""
    names = set(table.schema.names)
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        nothing: list[Any] = [None] * batch.num_rows

        def column(name: str, batch: pa.RecordBatch = batch, nothing: list[Any] = nothing) -> list[Any]:
            return batch.column(name).to_pylist() if name in names else nothing

        topics = [each or topic for each in column("topic")] if "topic" in names else [topic] * batch.num_rows
        headers = [_pairs(each) for each in column("headers")]
        parts = (topics, column("key"), column("value"), column("partition"), column("timestamp_ms"), headers)
        yield from map(OutputRecord._make, zip(*parts, strict=True))


def _pairs(headers: Sequence[dict[str, Any]] | None) -> list[Header] | None:
    return None if headers is None else [(each["key"], each["value"]) for each in headers]


def _json(names: Sequence[str]) -> str:
    return f"CAST(to_json(struct({', '.join(map(quote_identifier, names))})) AS BINARY)"


def _are_headers(kind: DataType) -> bool:
    text = kind.simpleString()
    return text in {
        *(f"map<string,{value}>" for value in _TEXT),
        *(f"array<struct<key:string,value:{value}>>" for value in _TEXT),
    }
