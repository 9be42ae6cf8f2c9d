"""Every exactly-once sink of ours keeps the contract."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.connectors import memory
from penstock.connectors.committers import committer
from penstock.connectors.files import sink
from penstock.connectors.files.sink import Sink
from penstock.connectors.for_each import ForEachSink
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import Committable
from penstock.interfaces.sink import CommitContext, Committer
from penstock.testing.contracts import SinkContract
from penstock.testing.frames import Row, rows_of
from penstock.testing.substitute import CollectSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.mission("D10", "S32")]


class TestMemory(SinkContract):
    @pytest.fixture
    def sink(self) -> memory.Sink:
        return memory.Sink()

    def visible(self, sink: memory.Sink, spark: SparkSession) -> Sequence[Row]:  # type: ignore[override]
        return sink.rows


class TestCollect(TestMemory):
    @pytest.fixture
    def sink(self) -> CollectSink:
        return CollectSink()


class TestForEachBatch(SinkContract):
    @pytest.fixture
    def sink(self, spark: SparkSession) -> ForEachSink:
        self.epochs: dict[int, list[Row]] = {}
        self.sinks = {"out": ForEachSink(lambda frame, epoch: self.epochs.update({epoch: rows_of(frame)}))}
        self.spark = spark
        return self.sinks["out"]

    def committer(self, item: Committable, filesystem: LocalFileSystem) -> Committer:
        return committer(item, CommitContext(filesystem=filesystem, spark=self.spark, sinks=self.sinks))

    def visible(self, sink: ForEachSink, spark: SparkSession) -> Sequence[Row]:  # type: ignore[override]
        return [row for rows in self.epochs.values() for row in rows]


class TestFilesOfJson(SinkContract):
    format = "json"

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return sink.Sink(tmp_path / "out", format=self.format)

    def visible(self, sink: Sink, spark: SparkSession) -> Sequence[Row]:  # type: ignore[override]
        out = Path(sink.target)
        if not any(out.glob("part-*")):
            return []
        return rows_of(spark.read.schema(self.columns).format(self.format).load(str(out)))


class TestFilesOfParquet(TestFilesOfJson):
    """Staged files are published as they are."""

    format = "parquet"
