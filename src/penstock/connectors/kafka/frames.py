"""Kafka records to Arrow, Arrow to Spark frames, from a table in the driver or read by the executors.

Both ways make the same columns with the same code. A frame's plan has one of two shapes, whatever the batch: task
numbers are data and offsets travel with the function, so Spark compiles nothing again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pyspark.accumulators import AccumulatorParam

from penstock.connectors.kafka.client import FetchFailed
from penstock.connectors.kafka.fetch import gc_paused, read
from penstock.connectors.kafka.planning import cut
from penstock.elements import ObservedMetrics
from penstock.errors import ConnectorError
from penstock.interfaces.source import DECODED_RECORD, UNDECODED_METRIC
from penstock.spark.arrow import ArrowSender, arrow_schema, in_chunks
from penstock.spark.python_tasks import TaskFrames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession

    from penstock.connectors.kafka.client import Message
    from penstock.connectors.kafka.config import KafkaConfig
    from penstock.connectors.kafka.fetch import PartitionRecords
    from penstock.connectors.kafka.offsets import OffsetRange
    from penstock.connectors.secrets import Option
    from penstock.formats.json_arrow import JsonDecoder


# ---- records to Arrow ------------------------------------------------------------------------------------------------

_NO_TIMESTAMP: Final = 0
"""confluent-kafka's type of the timestamp of a record that has none."""
_LAST_MILLIS: Final = (2**63 - 1) // 1_000
"""The last time that Spark's microseconds can hold. A producer that takes nanoseconds for milliseconds is beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Makes the columns of record batches. Can be pickled.

    Attributes:
        schema: the Arrow schema.
        decoded: the column of bytes that is decoded from JSON, if there is one.
        decoder: its decoder.
        unused: columns that no step uses; they are filled with nulls.
    """

    schema: Any
    decoded: str | None = None
    decoder: JsonDecoder | None = None
    unused: frozenset[str] = frozenset()

    def batch(self, records: Sequence[PartitionRecords]) -> pa.RecordBatch:
        """The records of several partitions as one record batch."""
        import pyarrow as pa

        messages = records[0].messages
        if len(records) > 1:
            messages = list(chain.from_iterable(part.messages for part in records))
        columns = self._decoded(messages)
        for column in self.schema:
            if column.name in self.unused:
                columns[column.name] = pa.nulls(len(messages), column.type)
            elif column.name in _OF_PARTITION:
                columns[column.name] = _repeated(records, _OF_PARTITION[column.name], column.type)
            elif column.name not in columns:
                columns[column.name] = _OF_RECORDS[column.name](messages, column.type)
        return pa.RecordBatch.from_arrays([columns[column.name] for column in self.schema], schema=self.schema)

    def _decoded(self, messages: Sequence[Message]) -> dict[str, Any]:
        if self.decoded is None or self.decoder is None:
            return {}
        decoded = self.decoder.decode(_BYTES[self.decoded](messages))
        return {DECODED_RECORD: decoded.records, self.decoded: decoded.rest}


def _key_bytes(messages: Sequence[Message]) -> list[bytes | None]:
    return [message.key() for message in messages]


def _value_bytes(messages: Sequence[Message]) -> list[bytes | None]:
    return [message.value() for message in messages]


def _key(messages: Sequence[Message], type: Any) -> Any:
    import pyarrow as pa

    return pa.array(_key_bytes(messages), type)


def _value(messages: Sequence[Message], type: Any) -> Any:
    import pyarrow as pa

    return pa.array(_value_bytes(messages), type)


def _headers(messages: Sequence[Message], type: Any) -> Any:
    """``NULL`` for a record without headers, as in Spark. Names may repeat, values may be null."""
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
    import numpy as np
    import pyarrow as pa

    offset = messages[0].__class__.offset  # called in C for each record
    return pa.array(np.fromiter(map(offset, messages), np.int64, len(messages)), type)


def _timestamp(messages: Sequence[Message], type: Any) -> Any:
    """``NULL`` for a record without one, which some brokers write as a time before 1970, and for one beyond Spark's."""
    import numpy as np
    import pyarrow as pa

    timestamp = messages[0].__class__.timestamp  # called in C for each record
    found = np.fromiter(chain.from_iterable(map(timestamp, messages)), np.int64, 2 * len(messages))
    kinds, millis = found[::2], found[1::2]
    missing = (kinds == _NO_TIMESTAMP) | (millis < 0) | (millis > _LAST_MILLIS)
    return pa.array(millis, mask=missing).cast(pa.timestamp("ms", type.tz)).cast(type)


def _repeated(records: Sequence[PartitionRecords], value: Callable[[PartitionRecords], object], type: Any) -> Any:
    """A column with one value for all records of a partition."""
    import pyarrow as pa

    return pa.concat_arrays([pa.repeat(pa.scalar(value(part), type), len(part.messages)) for part in records])


_OF_PARTITION: Final[Mapping[str, Callable[[PartitionRecords], object]]] = {
    "topic": lambda records: records.at.topic,
    "partition": lambda records: records.at.partition,
    "topic_partition": lambda records: str(records.at),
}
_OF_RECORDS: Final[Mapping[str, Callable[[Sequence[Message], Any], Any]]] = {
    "key": _key,
    "value": _value,
    "headers": _headers,
    "offset": _offset,
    "timestamp": _timestamp,
}
_BYTES: Final = {"key": _key_bytes, "value": _value_bytes}


# ---- frames ----------------------------------------------------------------------------------------------------------

ONE_TASK: Final = 10_000
"""Offsets up to which one task reads a batch: starting a second task takes longer than it saves."""


class SizeAccumulator(AccumulatorParam[dict[str, tuple[int, int]]]):
    """Adds up rows and bytes by topic, as tasks report them."""

    def zero(self, value: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """The size of nothing."""
        del value
        return {}

    def addInPlace(
        self, value1: dict[str, tuple[int, int]], value2: dict[str, tuple[int, int]]
    ) -> dict[str, tuple[int, int]]:
        """The sum of both, in ``value1``."""
        for topic, (rows, size) in value2.items():
            before = value1.get(topic, (0, 0))
            value1[topic] = before[0] + rows, before[1] + size
        return value1


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeReader:
    """Reads the ranges of a task. Spark calls it in its Python workers.

    Attributes:
        columns: makes the rows.
        options: of the consumers; secrets by reference.
        timeout: seconds without a message after which a read fails.
        skips_lost: whether a restart skips what is lost, so that a loss does not end the job.
        sizes: accumulates what was read.
    """

    columns: RecordColumns
    options: Mapping[str, Option] = field(repr=False)
    timeout: float
    skips_lost: bool
    sizes: Accumulator[dict[str, tuple[int, int]]]

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """The rows of the ranges."""
        with gc_paused():
            yield from self._read(ranges)

    def _read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        try:
            for records in read(ranges, self.options, timeout=self.timeout):
                for part in records:
                    self.sizes.add({part.at.topic: (len(part.messages), part.bytes)})
                yield self.columns.batch(records)
        except FetchFailed as error:
            raise FetchFailed({**error.details, "skips_lost": self.skips_lost}) from error
        except ConnectorError as error:
            raise FetchFailed({"message": str(error)}) from error


class KafkaFrames:
    """Makes the frames of one reader.

    Args:
        spark: the session.
        config: of the source.
    """

    def __init__(self, spark: SparkSession, config: KafkaConfig) -> None:
        self._schema = config.schema(spark)
        self._columns = RecordColumns(schema=arrow_schema(self._schema))
        if config.json is not None:
            decoder = config.json.decoder.in_zone(spark.conf.get("spark.sql.session.timeZone"))
            self._columns = replace(self._columns, decoded=config.json.name, decoder=decoder)
        if config.needed_columns is not None:
            decoded = set() if config.json is None else {DECODED_RECORD, config.json.name}
            unused = frozenset(self._schema.names) - config.needed_columns - decoded
            self._columns = replace(self._columns, unused=unused)
        self._cores = max(1, int(spark.sparkContext.defaultParallelism))
        self._sizes = spark.sparkContext.accumulator({}, SizeAccumulator())
        self._returned_sizes: Mapping[str, tuple[int, int]] = {}
        self._reader = RangeReader(
            columns=self._columns,
            options=config.connection.worker_options(),
            timeout=config.stall_timeouts.fail / 1_000_000,
            skips_lost=config.on_lost_offsets == "continue",
            sizes=self._sizes,
        )
        self._tasks = TaskFrames(spark, self._schema)
        self._sender = ArrowSender(spark, self._schema)

    def new_sizes(self) -> Mapping[str, tuple[int, int]]:
        """Rows and bytes of each topic that workers have read since the last call; some perhaps more than once."""
        before, self._returned_sizes = self._returned_sizes, dict(self._sizes.value)
        return {
            topic: (rows - before.get(topic, (0, 0))[0], size - before.get(topic, (0, 0))[1])
            for topic, (rows, size) in self._returned_sizes.items()
            if topic not in before or before[topic][0] < rows
        }

    def of_ranges(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """A lazy frame of exactly the records of the ranges, which the executors read."""
        tasks = cut(ranges, 1 if sum(part.offsets for part in ranges) <= ONE_TASK else self._cores)
        return self._tasks.frame(tasks, self._reader.read)

    def table(self, records: Sequence[PartitionRecords]) -> pa.Table:
        """Records as a table, one chunk for each partition of its frame."""
        with gc_paused():
            batch = self._columns.batch(records)
        return in_chunks(batch, self._cores)

    def metrics(self, table: pa.Table) -> dict[str, ObservedMetrics]:
        """Number of records of a table that Spark has to decode; none if the source decodes no column."""
        if DECODED_RECORD not in table.column_names:
            return {}
        return {UNDECODED_METRIC: ObservedMetrics.known({"rows": table.column(DECODED_RECORD).null_count})}

    def of_table(self, table: pa.Table) -> DataFrame:
        """A lazy frame of the rows of a table."""
        return self._sender.frame(table.to_batches())
