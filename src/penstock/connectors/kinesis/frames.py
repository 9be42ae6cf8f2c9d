"""Records of Kinesis to Arrow, and Arrow to Spark frames. The driver has fetched the records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from penstock.connectors.kinesis.fetch import FetchedRecord
from penstock.elements import ObservedMetrics
from penstock.interfaces.source import DECODED_RECORD, UNDECODED_METRIC
from penstock.spark.arrow import ArrowSender

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.connectors.kinesis.config import KinesisConfig


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


class KinesisFrames:
    """Makes the frames of one reader.

    Args:
        spark: the session.
        config: of the source.
    """

    def __init__(self, spark: SparkSession, config: KinesisConfig) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = config.schema(spark)
        self._schema = cast("Any", to_arrow_schema)(schema, timezone="UTC")
        self._stream = config.address.stream.rpartition("/")[2]
        self._decoder = None
        if config.json is not None:
            self._decoder = config.json.decoder.in_zone(spark.conf.get("spark.sql.session.timeZone"))
        self._needed = config.needed_columns
        self._cores = max(1, int(spark.sparkContext.defaultParallelism))
        self._sender = ArrowSender(spark, schema)

    def table(self, records: Sequence[ShardRecords]) -> pa.Table:
        """Records as a table, one chunk for each partition of its frame."""
        import pyarrow as pa

        batch = self._batch(records)
        parts = 1 if batch.num_rows <= _ONE_PARTITION else self._cores
        share = -(-batch.num_rows // parts)
        return pa.Table.from_batches([batch.slice(at, share) for at in range(0, batch.num_rows, share)])

    def _batch(self, records: Sequence[ShardRecords]) -> pa.RecordBatch:
        import pyarrow as pa

        all = [record for part in records for record in part.records]
        columns: dict[str, Any] = {}
        if self._decoder is not None:
            decoded = self._decoder.decode([record.data for record in all])
            columns = {DECODED_RECORD: decoded.records, "data": decoded.rest}
        for column in self._schema:
            name, type = column.name, column.type
            if name in columns:
                continue
            if self._needed is not None and name not in self._needed:
                columns[name] = pa.nulls(len(all), type)
            elif name == "shard":
                columns[name] = pa.concat_arrays(
                    [pa.repeat(pa.scalar(part.shard, type), len(part.records)) for part in records]
                )
            else:
                columns[name] = self._column(name, type, all)
        return pa.RecordBatch.from_arrays([columns[column.name] for column in self._schema], schema=self._schema)

    def _column(self, name: str, type: Any, records: Sequence[FetchedRecord]) -> Any:
        import pyarrow as pa

        if name == "stream":
            return pa.repeat(pa.scalar(self._stream, type), len(records))
        values = [_VALUES[name](record) for record in records]
        return pa.array(values, pa.int64()).cast(type) if name == "timestamp" else pa.array(values, type)

    def metrics(self, table: pa.Table) -> dict[str, ObservedMetrics]:
        """Number of records of a table that Spark has to decode; none if the source decodes no JSON."""
        if DECODED_RECORD not in table.column_names:
            return {}
        return {UNDECODED_METRIC: ObservedMetrics.known({"rows": table.column(DECODED_RECORD).null_count})}

    def of_table(self, table: pa.Table) -> DataFrame:
        """A lazy frame of the rows of a table."""
        return self._sender.frame(table.to_batches())
