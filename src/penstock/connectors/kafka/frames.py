"""Records to Arrow, Arrow to frames; read in executors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.accumulators import AccumulatorParam

from penstock.connectors.kafka.client import FetchFailed
from penstock.connectors.kafka.fetch import gc_paused, read
from penstock.connectors.kafka.planning import cut
from penstock.elements import ObservedMetrics
from penstock.errors import ConnectorError
from penstock.interfaces.source import DECODED_RECORD, UNDECODED_METRIC
from penstock.spark.arrow import ArrowSender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession

    from penstock.connectors.kafka.client import Connection, Message
    from penstock.connectors.kafka.config import KafkaConfig
    from penstock.connectors.kafka.fetch import PartitionRecords
    from penstock.connectors.kafka.offsets import OffsetRange
    from penstock.connectors.secrets import Option
    from penstock.formats.json_arrow import JsonDecoder


# ----------------------------------------------------------------------------------------------------
# Records of Kafka as Arrow record batches with the columns of a source; knows neither consumers nor offsets to come.
#
# Used in the driver and in Python workers, so rows are the same wherever they are read.


_NO_TIME: Final = 0
"""The kind of timestamp of a record that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """What record batches are made of. Can be pickled.

    Attributes:
        schema: their columns (Arrow), some or all of those of a source.
        decoded: the column of bytes that is decoded from JSON, if one is.
        decoder: which does it.
        unused: columns that nobody looks at: nothing but nulls.
    """

    schema: Any
    decoded: str | None = None
    decoder: JsonDecoder | None = None
    unused: frozenset[str] = frozenset()

    def batch(self, runs: Sequence[PartitionRecords]) -> pa.RecordBatch:
        """The records of some runs as one record batch."""
        import pyarrow as pa

        messages = runs[0].messages if len(runs) == 1 else list(chain.from_iterable(run.messages for run in runs))
        columns = self._decoded(messages)
        for column in self.schema:
            if column.name in self.unused:
                columns[column.name] = pa.nulls(len(messages), column.type)
            elif column.name in _OF_RUN:
                columns[column.name] = _repeated(runs, _OF_RUN[column.name], column.type)
            elif column.name not in columns:
                columns[column.name] = _OF_RECORDS[column.name](messages, column.type)
        return pa.RecordBatch.from_arrays([columns[column.name] for column in self.schema], schema=self.schema)

    def _decoded(self, messages: Sequence[Message]) -> dict[str, Any]:
        if self.decoded is None or self.decoder is None:
            return {}
        decoded = self.decoder.decode(_BYTES[self.decoded](messages))
        return {DECODED_RECORD: decoded.records, self.decoded: decoded.rest}


def _keys(messages: Sequence[Message]) -> list[bytes | None]:
    return [message.key() for message in messages]


def _values(messages: Sequence[Message]) -> list[bytes | None]:
    return [message.value() for message in messages]


def _key(messages: Sequence[Message], type: Any) -> Any:
    import pyarrow as pa

    return pa.array(_keys(messages), type)


def _value(messages: Sequence[Message], type: Any) -> Any:
    import pyarrow as pa

    return pa.array(_values(messages), type)


def _headers(messages: Sequence[Message], type: Any) -> Any:
    """``NULL`` for a record without any, as in Spark; names may come again, and values be absent."""
    import pyarrow as pa

    headers = [message.headers() for message in messages]
    if not any(headers):
        return pa.nulls(len(headers), type)
    names: list[str] = []
    values: list[bytes | None] = []
    offsets: list[int | None] = []
    for each in headers:
        offsets.append(len(names) if each else None)
        for name, value in each or ():
            names.append(name)
            values.append(value)
    struct = type.value_type
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, struct[0].type), pa.array(values, struct[1].type)], fields=[struct[0], struct[1]]
    )
    return pa.ListArray.from_arrays(pa.array([*offsets, len(names)], pa.int32()), pairs, type=type)


def _offset(messages: Sequence[Message], type: Any) -> Any:
    import pyarrow as pa

    return pa.array([message.offset() for message in messages], type)


def _timestamp(messages: Sequence[Message], type: Any) -> Any:
    """``NULL`` where a record has none (the broker's way of saying so is a time before 1970)."""
    import pyarrow as pa

    kinds, millis = zip(*[message.timestamp() for message in messages], strict=True)
    if _NO_TIME in kinds or min(millis) < 0:
        millis = tuple(None if kind == _NO_TIME or at < 0 else at for kind, at in zip(kinds, millis, strict=True))
    return pa.array(millis, pa.int64()).cast(pa.timestamp("ms", type.tz)).cast(type)


def _repeated(runs: Sequence[PartitionRecords], value: Callable[[PartitionRecords], object], type: Any) -> Any:
    """A column that has one value for each run: made without looking at the records."""
    import pyarrow as pa

    return pa.concat_arrays([pa.repeat(pa.scalar(value(run), type), len(run.messages)) for run in runs])


_OF_RUN: Final[Mapping[str, Callable[[PartitionRecords], object]]] = {
    "topic": lambda run: run.at.topic,
    "partition": lambda run: run.at.partition,
    "topic_partition": lambda run: str(run.at),
}
_OF_RECORDS: Final[Mapping[str, Callable[[Sequence[Message], Any], Any]]] = {
    "key": _key,
    "value": _value,
    "headers": _headers,
    "offset": _offset,
    "timestamp": _timestamp,
}
_BYTES: Final = {"key": _keys, "value": _values}


# ----------------------------------------------------------------------------------------------------
# Spark frames of Kafka's records: from the driver's hands, or read by the executors. Knows no position.
#
# Both ways make the same columns with the same code. A frame's plan has one of two shapes, whatever the batch; numbers
# of tasks are its data and offsets travel with the function, so nothing is compiled again.

ONE_TASK: Final = 10_000
"""Offsets up to which one task reads a batch: starting a second one takes longer than it saves."""
_ONE_PARTITION: Final = 2_000
"""Rows up to which a table stays in one partition of its frame."""


class SizeAccumulator(AccumulatorParam[dict[str, tuple[int, int]]]):
    """Adds up rows and bytes by topic, as tasks report them."""

    def zero(self, value: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Nothing was read."""
        del value
        return {}

    def addInPlace(
        self, value1: dict[str, tuple[int, int]], value2: dict[str, tuple[int, int]]
    ) -> dict[str, tuple[int, int]]:
        """Both together."""
        for topic, (rows, size) in value2.items():
            before = value1.get(topic, (0, 0))
            value1[topic] = before[0] + rows, before[1] + size
        return value1


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeReader:
    """Reads the ranges of tasks, named by their number. Called by Spark in its Python workers.

    Attributes:
        tasks: the ranges of each.
        shape: of the rows.
        options: of the consumers, secrets by reference.
        patience: seconds without anything new after which a broker is given up.
        goes_on: a restart leaves out what is lost; so it is no reason to end the job.
        weight: told what was read.
    """

    tasks: tuple[tuple[OffsetRange, ...], ...]
    shape: RecordColumns
    options: Mapping[str, Option] = field(repr=False)
    patience: float
    goes_on: bool
    weight: Accumulator[dict[str, tuple[int, int]]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called with the numbers of the tasks that are this one's."""
        with gc_paused():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self._read(self.tasks[number])

    def _read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        try:
            for runs in read(ranges, self.options, patience=self.patience):
                for run in runs:
                    self.weight.add({run.at.topic: (len(run.messages), sum(map(len, run.messages)))})
                yield self.shape.batch(runs)
        except FetchFailed as error:
            raise FetchFailed({**error.told, "goes_on": self.goes_on}) from error
        except ConnectorError as error:
            raise FetchFailed({"message": str(error)}) from error


class KafkaFrames:
    """Makes the frames of one reader.

    Args:
        spark: the session.
        source: whose columns they have.
        connection: how workers reach the cluster.
    """

    def __init__(self, spark: SparkSession, source: KafkaConfig, connection: Connection) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._spark = spark
        self._schema = source.schema(spark)
        self._shape = RecordColumns(schema=cast("Any", to_arrow_schema)(self._schema, timezone="UTC"))
        if source.json is not None:
            decoder = source.json.decoder.in_zone(spark.conf.get("spark.sql.session.timeZone"))
            self._shape = replace(self._shape, decoded=source.json.name, decoder=decoder)
        if source.wanted is not None:
            decoded = set() if source.json is None else {DECODED_RECORD, source.json.name}
            self._shape = replace(self._shape, unused=frozenset(self._schema.names) - source.wanted - decoded)
        self._options = connection.worker_options()
        self._patience = source.patience.fail / 1_000_000
        self._goes_on = source.on_lost_offsets == "continue"
        self._cores = max(1, int(spark.sparkContext.defaultParallelism))
        self._weight = spark.sparkContext.accumulator({}, SizeAccumulator())
        self._weighed: Mapping[str, tuple[int, int]] = {}
        self._numbers: dict[int, DataFrame] = {}
        self._sender = ArrowSender(spark, self._schema)

    def weighed(self) -> Mapping[str, tuple[int, int]]:
        """Rows and bytes of each topic that workers have read since the last time; some perhaps more than once."""
        before, self._weighed = self._weighed, dict(self._weight.value)
        return {
            topic: (rows - before.get(topic, (0, 0))[0], size - before.get(topic, (0, 0))[1])
            for topic, (rows, size) in self._weighed.items()
            if topic not in before or before[topic][0] < rows
        }

    def of_ranges(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """A lazy frame of exactly the records of the ranges, read by the executors when it is run."""
        tasks = cut(ranges, 1 if sum(part.offsets for part in ranges) <= ONE_TASK else self._cores)
        reader = RangeReader(
            tasks=tasks,
            shape=self._shape,
            options=self._options,
            patience=self._patience,
            goes_on=self._goes_on,
            weight=self._weight,
        )
        return self._counted(len(tasks)).mapInArrow(reader, self._schema)

    def _counted(self, tasks: int) -> DataFrame:
        """The numbers of tasks as rows: data of the plan, not literals of its code."""
        if tasks not in self._numbers:
            rows = ", ".join(f"({number})" for number in range(tasks))
            self._numbers[tasks] = self._spark.sql(f"SELECT n FROM VALUES {rows} AS t(n)")
        return self._numbers[tasks]

    def table(self, runs: Sequence[PartitionRecords]) -> pa.Table:
        """Records that are here as a table, one chunk for each partition of its frame."""
        import pyarrow as pa

        with gc_paused():
            batch = self._shape.batch(runs)
        parts = 1 if batch.num_rows <= _ONE_PARTITION else self._cores
        share = -(-batch.num_rows // parts)
        return pa.Table.from_batches([batch.slice(at, share) for at in range(0, batch.num_rows, share)])

    def told(self, table: pa.Table) -> dict[str, ObservedMetrics]:
        """What is known of a table: how many of its records Spark has to decode, if any were to be decoded here."""
        if DECODED_RECORD not in table.column_names:
            return {}
        return {UNDECODED_METRIC: ObservedMetrics.known({"rows": table.column(DECODED_RECORD).null_count})}

    def of_table(self, table: pa.Table) -> DataFrame:
        """A lazy frame of rows that are here."""
        return self._sender.frame(table.to_batches())
