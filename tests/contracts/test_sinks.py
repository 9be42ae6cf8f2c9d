"""Every exactly-once sink of ours keeps the contract."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.sinks import files, memory
from penstock.testing import CollectSink, SinkContract
from penstock.testing.values import Row, rows_of

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


class TestFilesOfJson(SinkContract):
    format = "json"

    @pytest.fixture
    def sink(self, tmp_path: Path) -> files.Sink:
        return files.Sink(tmp_path / "out", format=self.format)

    def visible(self, sink: files.Sink, spark: SparkSession) -> Sequence[Row]:  # type: ignore[override]
        out = Path(sink.target)
        if not any(out.glob("part-*")):
            return []
        return rows_of(spark.read.schema(self.columns).format(self.format).load(str(out)))


class TestFilesOfParquet(TestFilesOfJson):
    """Staged files are published as they are."""

    format = "parquet"
