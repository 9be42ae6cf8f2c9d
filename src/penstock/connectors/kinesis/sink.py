"""``ps.kinesis.Sink``: rows as records of a Kinesis stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from penstock.connectors.kinesis.client import StreamAddress, new_client
from penstock.connectors.kinesis.config import check_word, parse_address
from penstock.connectors.kinesis.producer import OutgoingRecord, RecordPutter
from penstock.connectors.staging import NoOutput
from penstock.errors import ConnectorError, GraphError, no_column
from penstock.handles import Guarantee
from penstock.spark.sql import quote_identifier

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.elements import Batch
    from penstock.handles import CheckpointId
    from penstock.interfaces.sink import SinkContext

DataFormat: TypeAlias = Literal["json", "raw"]
_TEXT = ("string", "binary")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataColumns:
    """Which columns of a row make its data and its partition key.

    Attributes:
        format: ``"json"``: data is a JSON object of columns; ``"raw"``: it is the bytes of one column.
        key: columns of the partition key; one alone is written as its text, several as a JSON object.
        value: columns of the data; empty for JSON: all.
    """

    format: DataFormat
    key: tuple[str, ...] = ()
    value: tuple[str, ...] = ()

    def check(self, schema: StructType) -> None:
        """Refuse rows of which no records can be made.

        Raises:
            GraphError: names the column and the remedy.
        """
        fields = {field.name: field for field in schema.fields}
        for name in (*self.key, *self.value):
            if name not in fields:
                raise GraphError(no_column(name, list(fields)))
        for name in (*self.key, *(self.value or fields)):
            kind = fields[name].dataType.typeName()
            if kind in ("void", "null", "interval"):
                msg = f"Column {name!r} is {kind}, which no record can hold. Cast or drop it."
                raise GraphError(msg)
        for name in self.key if len(self.key) == 1 else ():
            if (kind := fields[name].dataType.typeName()) == "binary":
                msg = f"Column {name!r} is binary, and a partition key is text. Cast it, or name another in key=."
                raise GraphError(msg)
        if self.format == "raw":
            (value,) = self.value
            kind = fields[value].dataType.typeName()
            if kind not in _TEXT:
                msg = f"Column {value!r} is {kind}, and raw data is BINARY or STRING. Cast it, or take format='json'."
                raise GraphError(msg)
            unused = [name for name in fields if name not in (value, *self.key)]
            if unused:
                msg = (
                    f"Columns {', '.join(unused)} go nowhere, since raw data is one column. Drop them, name one in "
                    "key=, or take format='json'."
                )
                raise GraphError(msg)

    def records(self, frame: DataFrame) -> DataFrame:
        """The columns ``data`` and, with a key, ``key``; lazily."""
        kinds = {field.name: field.dataType.typeName() for field in frame.schema.fields}
        if self.format == "raw":
            data = f"CAST({quote_identifier(self.value[0])} AS BINARY)"
        else:
            data = f"CAST({_json(self.value or tuple(kinds))} AS BINARY)"
        found = [f"{data} AS data"]
        if len(self.key) > 1:
            found.append(f"{_json(self.key)} AS key")
        elif self.key:
            name = quote_identifier(self.key[0])
            is_nested = kinds[self.key[0]] in ("struct", "array", "map", "variant")
            found.append(f"{f'to_json({name})' if is_nested else f'CAST({name} AS STRING)'} AS key")
        return frame.selectExpr(*found)


def _json(names: Sequence[str]) -> str:
    return f"to_json(struct({', '.join(map(quote_identifier, names))}))"


def read_outgoing(table: pa.Table) -> Iterator[OutgoingRecord]:
    """Yield the records of a table with the columns of ``DataColumns.records``. An empty key is none."""
    for batch in table.to_batches(max_chunksize=10_000):
        datas = batch.column("data").to_pylist()
        keys = batch.column("key").to_pylist() if "key" in batch.schema.names else [None] * len(datas)
        for key, data in zip(keys, datas, strict=True):
            yield OutgoingRecord(key or None, data or b"")


class StreamWriter:
    """Puts each batch as it comes, in the driver. It has been acknowledged when ``write`` returns."""

    def __init__(self, columns: DataColumns, putter: RecordPutter, *, uid: str) -> None:
        self._columns = columns
        self._putter = putter
        self._uid = uid

    def write(self, batch: Batch) -> int:
        """Bring the records into the driver in one job, and put them.

        Raises:
            ConnectorError: they were refused.
        """
        table = self._columns.records(cast("DataFrame", batch.frame)).toArrow()
        batch.settle()
        try:
            self._putter.put(read_outgoing(table))
        except ConnectorError as error:
            error.uid = self._uid
            raise
        return int(table.num_rows)

    def prepare(self, checkpoint: CheckpointId) -> NoOutput:  # noqa: ARG002 - as for any writer
        """Return ``NoOutput``: all was put."""
        return NoOutput()

    def close(self) -> None:
        """Do nothing: boto3 closes its connections itself."""


@dataclass(frozen=True, init=False)
class Sink:
    """Rows as records of a Kinesis stream, at-least-once.

    A checkpoint is complete when all records before it are in the stream. After a crash the records behind it are put
    again, with the same data and new sequence numbers: Kinesis has no transactions. A reader who needs each once finds
    repeats by a column of the data that identifies the row.

    Records of a key are put in order, one after another: an entry that Kinesis refuses holds back those behind it. So
    a request takes one entry of a key. With few keys, ``aggregate=True`` makes that fast.

    Args:
        stream: its name, or its ARN. It must exist.
        key: the column of the partition key, or several, which make a JSON object. Rows without a key, or with
            ``NULL``, go to any shard.
        value: columns of the data; by default all, with the key's.
        format: ``"json"``: data is a JSON object; ``"raw"``: the bytes of the one column in ``value`` (``"data"``).
        keep_order: whether the order of each key is kept.
        aggregate: pack records of a key into one, as the Kinesis Producer Library does. Its readers unpack them, and
            ``ps.kinesis.Source`` does.
        region: as for ``ps.kinesis.Source``; likewise the others.
        endpoint_url: of another service than AWS.
        options: arguments of boto3's client.

    Raises:
        GraphError: an argument is impossible, or holds a secret.

    >>> Sink("counts", key="user", region="eu-central-1").describe()
    'kinesis counts at eu-central-1'
    """

    address: StreamAddress
    columns: DataColumns
    keeps_order: bool
    aggregates: bool

    def __init__(  # noqa: PLR0913 - the arguments of a Kinesis sink
        self,
        stream: str,
        *,
        key: str | Sequence[str] = (),
        value: str | Sequence[str] = (),
        format: DataFormat = "json",
        keep_order: bool = True,
        aggregate: bool = False,
        region: str | None = None,
        endpoint_url: str | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        check_word("format", format, ("json", "raw"))
        values = _columns("value", value) or (("data",) if format == "raw" else ())
        if format == "raw" and len(values) > 1:
            msg = f"Raw data is one column, and value has {len(values)}. Name one, or take format='json'."
            raise GraphError(msg)
        object.__setattr__(self, "address", parse_address(stream, region, endpoint_url, options or {}))
        object.__setattr__(self, "columns", DataColumns(format=format, key=_columns("key", key), value=values))
        object.__setattr__(self, "keeps_order", keep_order)
        object.__setattr__(self, "aggregates", aggregate)

    @property
    def guarantee(self) -> Guarantee:
        """At-least-once: a restart puts records again."""
        return Guarantee.AT_LEAST_ONCE

    def check(self, schema: StructType) -> None:
        """Refuse rows of which no records can be made.

        Raises:
            GraphError: names the column and the remedy.
        """
        self.columns.check(schema)

    def writer(self, context: SinkContext) -> StreamWriter:
        """A writer for one run.

        Raises:
            SettingsError: boto3 is missing.
            ConnectorError: a secret is not there, or boto3 finds no region.
        """
        client = new_client(self.address)
        putter = RecordPutter(client, self.address, keeps_order=self.keeps_order, aggregates=self.aggregates)
        return StreamWriter(self.columns, putter, uid=context.uid)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:  # noqa: ARG002
        """Nothing is staged outside of the state directory."""
        return ()

    def describe(self) -> str:
        """The stream and where it is, for people; none of the options."""
        return f"kinesis {self.address.stream} at {self.address.place}"


def _columns(argument: str, given: object) -> tuple[str, ...]:
    """Names of columns: one as text, or several, each once."""
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else (None,)
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        msg = f"{argument}={given!r} does not name columns, each once. Write a name, or a list of names."
        raise GraphError(msg)
    return names
