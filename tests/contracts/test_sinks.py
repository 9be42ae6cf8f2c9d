"""Every exactly-once sink of ours keeps the contract."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.connectors import memory
from penstock.connectors.files import sink
from penstock.connectors.files.sink import Sink
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
