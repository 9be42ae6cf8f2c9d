"""Without ``schema=`` a Parquet source keeps the columns that it took at its first start, in its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.admin.plan import plan
from penstock.admin.start_plan import StepVerdict
from penstock.connectors.files.source import Source
from penstock.interfaces.source import SourceContext
from penstock.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def arrive(folder: Path, name: str, **columns: list[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    at = pa.array([0], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({**columns, "at": at}), folder / name)
    return folder / name


def test_a_restart_keeps_the_columns_of_the_first_start_though_its_file_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    out, state = ps.memory.Sink(), tmp_path / "state"

    @ps.pipeline("taken")
    def pipeline(p: ps.Pipeline) -> None:
        rows = p.read("in", ps.files.Source(tmp_path / "in", format="parquet")).with_watermark("at", delay="0 seconds")
        rows.write("out", out)
        counts = rows.group_by("id", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        counts.write("counts-out", ps.memory.Sink())

    def run() -> list[list[str]]:
        ps.Job(pipeline, state=state, spark=spark).run(until="caught-up")
        return [sorted(row) for row in out.rows]

    first = arrive(tmp_path / "in", "first.parquet", id=[1])
    assert run() == [["at", "id"]]

    first.unlink()
    assert [step.verdict for step in plan(pipeline.graph(), state=state, settings=Settings(), spark=spark).steps] == [
        StepVerdict.KEPT
    ] * 4
    assert ps.read_state(spark, state / "taken", "counts", pipeline=pipeline).count() == 1
    assert run() == [["at", "id"]], "there is no file to take columns from"

    arrive(tmp_path / "in", "second.parquet", more=["x"], id=[2])
    assert run() == [["at", "id"]] * 2


def test_a_position_of_older_code_takes_the_columns_of_the_first_file_and_records_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    arrive(tmp_path / "in", "a.parquet", id=[1])
    source = Source(tmp_path / "in", format="parquet")
    context = SourceContext(uid="in", spark=spark)
    before: Any = source.open(context, None).position()
    del before.detail["columns"]

    reader = source.open(context, before)

    detail: Any = reader.position().detail
    assert [field["name"] for field in detail["columns"]["fields"]] == ["id", "at"]


def test_declared_columns_are_not_recorded_and_win(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path / "in", "a.parquet", id=[1])
    context = SourceContext(uid="in", spark=spark)
    taken = Source(tmp_path / "in", format="parquet").open(context, None).position()

    declared = Source(tmp_path / "in", format="parquet", schema="id LONG")
    detail: Any = declared.open(context, taken).position().detail

    assert "columns" in str(taken.detail)
    assert "columns" not in detail
