"""Sources of bytes for tests: a plain one, and one that decodes JSON while it reads, in the driver or in workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.elements import ObservedMetrics, SourcePartitions
from penstock.formats.json_arrow import JsonDecoder, decoder_of
from penstock.handles import Guarantee, Position
from penstock.interfaces.source import DECODED_RECORD, UNDECODED_METRIC, CaughtUp, PlannedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from penstock.clock import MonotonicTime, WallTime
    from penstock.interfaces.source import PollResult, ReadLimit, SourceContext

SCHEMA = "part STRING, value BINARY, n LONG"


@dataclass(frozen=True)
class Bytes:
    """Batches of values, one after the other; row ``n`` is of partition ``n % 2``."""

    batches: tuple[tuple[bytes | None, ...], ...]
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    partition_column: str = "part"

    def schema(self, spark: SparkSession) -> StructType:
        return StructType.fromDDL(SCHEMA)

    def open(self, context: SourceContext, resume: Position | None) -> Reader:
        return Reader(self, context.spark, 0 if resume is None else int(resume.detail["next"]))

    def describe(self) -> str:
        return f"{len(self.batches)} batches"


@dataclass(frozen=True)
class DecodedBytes(Bytes):
    """``where`` it decodes: ``driver`` (and tells how much was left), ``silent`` (the same, untold) or ``workers``."""

    where: str = "driver"
    column: str | None = None
    record: StructType | None = None

    def decoding(self, column: str, record: StructType) -> DecodedBytes | None:
        return None if decoder_of(record) is None else replace(self, column=column, record=record)

    def schema(self, spark: SparkSession) -> StructType:
        return super().schema(spark) if self.record is None else super().schema(spark).add(DECODED_RECORD, self.record)


class Reader:
    """Polls whole batches."""

    def __init__(self, source: Bytes, spark: SparkSession, at: int) -> None:
        self.source, self.spark, self.at = source, spark, at

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
        if self.at == len(self.source.batches):
            return CaughtUp()
        table, missing = self._table(self.source.batches[self.at])
        self.at += 1
        told = getattr(self.source, "where", "") == "driver" and missing is not None
        return PlannedBatch(
            plan=table,
            rows=len(table),
            metrics={UNDECODED_METRIC: ObservedMetrics.known({"rows": missing})} if told else {},
            partitions=SourcePartitions(names=("0", "1"), column="part"),
        )

    def _table(self, values: tuple[bytes | None, ...]) -> tuple[pa.Table, int | None]:
        first = sum(map(len, self.source.batches[: self.at]))
        numbers = range(first, first + len(values))
        columns = {"part": pa.array([str(n % 2) for n in numbers]), "value": pa.array(values, pa.binary())}
        table = pa.table({**columns, "n": pa.array(numbers, pa.int64())})
        decoder = self._decoder()
        if decoder is None or getattr(self.source, "where", "") == "workers":
            return table, None
        batch = _decoding(decoder)(table.to_batches()[0])
        return pa.Table.from_batches([batch]), batch.column(DECODED_RECORD).null_count

    def _decoder(self) -> JsonDecoder | None:
        record = getattr(self.source, "record", None)
        return None if record is None else decoder_of(record)

    def frame(self, plan: Any) -> DataFrame:
        frame = self.spark.createDataFrame(plan)
        decoder = self._decoder()
        if decoder is None or DECODED_RECORD in frame.columns:
            return frame
        decode = _decoding(decoder)

        def decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return map(decode, batches)

        return frame.mapInArrow(decoded, self.source.schema(self.spark))

    def position(self) -> Position:
        return Position(kind="bytes/1", detail={"next": self.at})

    def committed(self, checkpoint: object, position: Position) -> None:
        pass

    def close(self) -> None:
        pass


def _decoding(decoder: JsonDecoder) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that workers get by value: they cannot import tests."""

    def decode(batch: pa.RecordBatch) -> pa.RecordBatch:
        part, value, n = batch.columns
        found = decoder.decode(value.to_pylist())
        return pa.RecordBatch.from_arrays([part, found.rest, n, found.records], ["part", "value", "n", "_record"])

    return decode
