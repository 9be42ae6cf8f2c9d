"""Records of Kinesis to Arrow, and Arrow to Spark frames. The driver has fetched the records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from penstock.connectors.kinesis.fetch import FetchedRecord
from penstock.connectors.kinesis.ranges import (
    THROTTLED,
    CountAccumulator,
    RangeTask,
    ShardRangeReader,
    as_tasks,
    count_name,
)
from penstock.elements import ObservedMetrics
from penstock.interfaces.source import DECODED_RECORD, UNDECODED_METRIC
from penstock.spark.arrow import ArrowSender

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.connectors.kinesis.config import KinesisConfig
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
_ONE_PARTITION: Final = 2_000
"""Rows up to which a frame has one partition."""


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


class KinesisFrames:
    """Makes the frames of one reader.

    Args:
        spark: the session.
        config: of the source.
    """

    def __init__(self, spark: SparkSession, config: KinesisConfig) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = config.schema(spark)
        decoder = None
        if config.json is not None:
            decoder = config.json.decoder.in_zone(spark.conf.get("spark.sql.session.timeZone"))
        self._columns = ShardColumns(
            schema=cast("Any", to_arrow_schema)(schema, timezone="UTC"),
            stream=config.address.stream.rpartition("/")[2],
            decoder=decoder,
            needed=config.needed_columns,
        )
        self._spark, self._schema, self._address = spark, schema, config.address
        self._counts = spark.sparkContext.accumulator({}, CountAccumulator())
        self._task_numbers: dict[int, DataFrame] = {}
        self._cores = max(1, int(spark.sparkContext.defaultParallelism))
        self._sender = ArrowSender(spark, schema)

    def table(self, records: Sequence[ShardRecords]) -> pa.Table:
        """Records as a table, one chunk for each partition of its frame."""
        import pyarrow as pa

        batch = self._columns.batch(records)
        parts = 1 if batch.num_rows <= _ONE_PARTITION else self._cores
        share = -(-batch.num_rows // parts)
        return pa.Table.from_batches([batch.slice(at, share) for at in range(0, batch.num_rows, share)])

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
        tasks = as_tasks(ranges, self._cores)
        if len(tasks) not in self._task_numbers:  # numbers are data of the plan: Spark compiles nothing again
            rows = ", ".join(f"({number})" for number in range(len(tasks)))
            self._task_numbers[len(tasks)] = self._spark.sql(f"SELECT n FROM VALUES {rows} AS t(n)")
        reader = ShardRangeReader(
            batch=batch, tasks=tasks, columns=self._columns, address=self._address, counts=self._counts
        )
        return self._task_numbers[len(tasks)].mapInArrow(reader, self._schema)

    def take_counts(self, batch: int, ranges: Sequence[RangeTask]) -> list[tuple[int, ...]]:
        """The rows of each range of a batch as each of its reads has counted them; they are not kept."""
        names = (count_name(batch, task.part.shard) for task in ranges)
        return [self._counts.value.pop(name, ()) for name in names]

    def take_throttling(self) -> tuple[int, int]:
        """Requests of tasks that were refused since the last call, and microseconds that they were waited for."""
        numbers = self._counts.value.pop(THROTTLED, ())
        return sum(numbers[::2]), sum(numbers[1::2])
