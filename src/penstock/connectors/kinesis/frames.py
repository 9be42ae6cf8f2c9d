"""Kinesis records to Arrow, and Arrow to Spark frames. The driver or Python workers fetch the records."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.accumulators import AccumulatorParam

from penstock.clock import SystemClock
from penstock.connectors.kinesis.client import new_client
from penstock.connectors.kinesis.fetch import FetchedRecord
from penstock.connectors.kinesis.ranges import RangeFailed, read_range
from penstock.elements import ObservedMetrics
from penstock.errors import PenstockError
from penstock.interfaces.source import DECODED_RECORD, UNDECODED_METRIC
from penstock.spark.arrow import ArrowSender, arrow_schema, in_chunks
from penstock.spark.python_tasks import TaskFrames

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession

    from penstock.connectors.kinesis.client import KinesisClient, StreamAddress
    from penstock.connectors.kinesis.config import KinesisConfig
    from penstock.connectors.kinesis.ranges import RangeTask
    from penstock.formats.json_arrow import JsonDecoder


class ShardRecords(NamedTuple):
    """Records of one shard, in order."""

    shard: str
    records: Sequence[FetchedRecord]


_VALUES: Final[Mapping[str, Callable[[FetchedRecord], object]]] = {
    "data": lambda record: record.data,
    "partition_key": lambda record: record.partition_key,
    "explicit_hash_key": lambda record: record.explicit_hash_key,
    "sequence_number": lambda record: str(record.seq),
    "sub_sequence_number": lambda record: record.sub,
    "timestamp": lambda record: record.arrived,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardColumns:
    """Makes the columns of record batches. Can be pickled.

    Attributes:
        schema: the Arrow schema.
        stream: the stream's name.
        decoder: of ``data``, if it is decoded from JSON.
        needed: columns that steps use, others are filled with nulls; ``None``: all.
    """

    schema: Any
    stream: str
    decoder: JsonDecoder | None
    needed: frozenset[str] | None

    def batch(self, records: Sequence[tuple[str, Sequence[FetchedRecord]]]) -> pa.RecordBatch:
        """The records of some shards as one record batch."""
        import pyarrow as pa

        all = [record for _, part in records for record in part]
        columns: dict[str, Any] = {}
        if self.decoder is not None:
            decoded = self.decoder.decode([record.data for record in all])
            columns = {DECODED_RECORD: decoded.records, "data": decoded.rest}
        for column in self.schema:
            name, type = column.name, column.type
            if name in columns:
                continue
            if self.needed is not None and name not in self.needed:
                columns[name] = pa.nulls(len(all), type)
            elif name == "shard":
                columns[name] = pa.concat_arrays(
                    [pa.repeat(pa.scalar(shard, type), len(part)) for shard, part in records]
                )
            else:
                columns[name] = self._column(name, type, all)
        return pa.RecordBatch.from_arrays([columns[column.name] for column in self.schema], schema=self.schema)

    def _column(self, name: str, type: Any, records: Sequence[FetchedRecord]) -> Any:
        import pyarrow as pa

        if name == "stream":
            return pa.repeat(pa.scalar(self.stream, type), len(records))
        values = [_VALUES[name](record) for record in records]
        return pa.array(values, pa.int64()).cast(type) if name == "timestamp" else pa.array(values, type)


# ---- in a Python worker ----------------------------------------------------------------------------------------------

_clients: dict[tuple[object, ...], KinesisClient] = {}


def _client(address: StreamAddress) -> KinesisClient:
    """This process's client with these options, made by the first call."""
    key = (
        os.getpid(),
        address.region,
        address.endpoint_url,
        *sorted(address.options.items(), key=lambda each: each[0]),
    )
    if key not in _clients:
        _clients.clear()
        _clients[key] = new_client(address)
    return _clients[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRangeReader:
    """Reads the ranges of a task. Spark calls it in its Python workers.

    Attributes:
        batch: the number of the batch, for counts.
        columns: makes the rows.
        address: the stream; secrets by reference.
        counts: gets the number of rows of each range that was read to its end, and what was throttled.
    """

    batch: int
    columns: ShardColumns
    address: StreamAddress
    counts: Accumulator[dict[str, tuple[int, ...]]] = field(repr=False)

    def read(self, ranges: Sequence[RangeTask]) -> Iterator[pa.RecordBatch]:
        """The rows of the ranges."""
        for task in ranges:
            yield from self._read(task)

    def _read(self, task: RangeTask) -> Iterator[pa.RecordBatch]:
        shard, rows = task.part.shard, 0
        try:
            records = read_range(
                task, _client(self.address), self.address, clock=SystemClock(), throttled=self._throttled
            )
            for portion in records:
                if portion:
                    rows += len(portion)
                    yield self.columns.batch([(shard, portion)])
        except PenstockError as error:
            raise RangeFailed(str(error), retry=error.retry) from error
        self.counts.add({_count_name(self.batch, shard): (rows,)})

    def _throttled(self, requests: int, micros: int) -> None:
        if requests:
            self.counts.add({_THROTTLED: (requests, micros)})


class CountAccumulator(AccumulatorParam[dict[str, tuple[int, ...]]]):
    """Collects the numbers that tasks report, by name."""

    def zero(self, value: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """No numbers."""
        del value
        return {}

    def addInPlace(
        self, value1: dict[str, tuple[int, ...]], value2: dict[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]]:
        """Those of both, in ``value1``."""
        for name, numbers in value2.items():
            value1[name] = value1.get(name, ()) + numbers
        return value1


_THROTTLED: Final = ""
"""The name of pairs of numbers: refused requests, and microseconds that they were waited for."""


def _count_name(batch: int, shard: str) -> str:
    """The name of the number of rows of a shard in a batch."""
    return f"{batch}/{shard}"


def _as_tasks(ranges: tuple[RangeTask, ...], most: int) -> tuple[tuple[RangeTask, ...], ...]:
    """Deal ranges out to at most ``most`` tasks."""
    return tuple(ranges[at::most] for at in range(min(most, len(ranges))))


# ---- frames ----------------------------------------------------------------------------------------------------------


class KinesisFrames:
    """Makes the frames of one reader.

    Args:
        spark: the session.
        config: of the source.
    """

    def __init__(self, spark: SparkSession, config: KinesisConfig) -> None:
        schema = config.schema(spark)
        decoder = None
        if config.json is not None:
            decoder = config.json.decoder.in_zone(spark.conf.get("spark.sql.session.timeZone"))
        self._columns = ShardColumns(
            schema=arrow_schema(schema),
            stream=config.address.stream.rpartition("/")[2],
            decoder=decoder,
            needed=config.needed_columns,
        )
        self._address = config.address
        self._counts = spark.sparkContext.accumulator({}, CountAccumulator())
        self._tasks = TaskFrames(spark, schema)
        self._cores = max(1, int(spark.sparkContext.defaultParallelism))
        self._sender = ArrowSender(spark, schema)

    def table(self, records: Sequence[ShardRecords]) -> pa.Table:
        """Records as a table, one chunk for each partition of its frame."""
        return in_chunks(self._columns.batch(records), self._cores)

    def metrics(self, table: pa.Table) -> dict[str, ObservedMetrics]:
        """Number of records of a table that Spark has to decode; none if the source decodes no JSON."""
        if DECODED_RECORD not in table.column_names:
            return {}
        return {UNDECODED_METRIC: ObservedMetrics.known({"rows": table.column(DECODED_RECORD).null_count})}

    def of_table(self, table: pa.Table) -> DataFrame:
        """A lazy frame of the rows of a table."""
        return self._sender.frame(table.to_batches())

    def of_ranges(self, batch: int, ranges: tuple[RangeTask, ...]) -> DataFrame:
        """A lazy frame of exactly the records of the ranges, which the executors read."""
        reader = ShardRangeReader(batch=batch, columns=self._columns, address=self._address, counts=self._counts)
        return self._tasks.frame(_as_tasks(ranges, self._cores), reader.read)

    def take_counts(self, batch: int, ranges: Sequence[RangeTask]) -> list[tuple[int, ...]]:
        """Remove and return the row counts of each range of a batch: one for each time that the range was read."""
        names = (_count_name(batch, task.part.shard) for task in ranges)
        return [self._counts.value.pop(name, ()) for name in names]

    def take_throttling(self) -> tuple[int, int]:
        """Requests of tasks that were refused since the last call, and microseconds that they were waited for."""
        numbers = self._counts.value.pop(_THROTTLED, ())
        return sum(numbers[::2]), sum(numbers[1::2])
