"""Multisets of rows compared in Spark, and whole shadow runs: two codes, one checkpoint, one end, nothing disturbed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from core.copies_kit import files_below
from penstock.errors import SettingsError, StateIncompatible
from penstock.graph.pipeline import PipelineDefinition
from penstock.operate.directory import JobDirectory
from penstock.operate.shadow.comparing import Columns, Comparison, Sample, compare
from spark.job_kit import drop, published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


# ---------------------------------------------------------------------------------------------------------- comparing


@pytest.fixture
def sides(spark: SparkSession, tmp_path: Path) -> Any:
    """Writes both sides, given as SQL, and compares them."""

    def made(old: str | None, new: str | None, **options: Any) -> Comparison:
        for name, query in (("old", old), ("new", new)):
            if query is not None:
                spark.sql(query).coalesce(1).write.mode("overwrite").parquet(str(tmp_path / name))
        return compare(spark, tmp_path / "old", tmp_path / "new", **options)

    return made


def test_rows_count_as_often_as_they_are_there_and_null_is_like_null(sides: Any) -> None:
    found = sides(
        "SELECT * FROM VALUES ('a', 1), ('a', 1), (NULL, 2), ('b', 3) AS t(k, n)",
        "SELECT * FROM VALUES ('a', 1), (NULL, 2), ('b', 4), ('c', 5) AS t(k, n)",
    )
    assert (found.old, found.new, found.equal, found.only_old, found.only_new, found.changed) == (4, 4, 2, 2, 2, 0)
    assert not found.is_same
    assert found.samples == (
        Sample(old={"k": "a", "n": 1}),
        Sample(old={"k": "b", "n": 3}),
        Sample(new={"k": "b", "n": 4}),
        Sample(new={"k": "c", "n": 5}),
    )


def test_with_a_key_rows_that_changed_are_told_from_those_that_came_or_went(sides: Any) -> None:
    found = sides(
        "SELECT * FROM VALUES ('a', 1), ('b', 3), ('d', 9), (NULL, 1) AS t(k, n)",
        "SELECT * FROM VALUES ('a', 1), ('b', 4), ('c', 5), (NULL, 2) AS t(k, n)",
        key=("k",),
    )
    assert (found.equal, found.only_old, found.only_new, found.changed) == (1, 1, 1, 2)
    assert Sample(old={"k": "b", "n": 3}, new={"k": "b", "n": 4}) in found.samples
    assert Sample(old={"k": None, "n": 1}, new={"k": None, "n": 2}) in found.samples
    assert found.samples[-2:] == (Sample(old={"k": "d", "n": 9}), Sample(new={"k": "c", "n": 5}))


def test_fractions_are_compared_by_nine_digits_and_columns_by_what_became_of_them(sides: Any) -> None:
    third = "SELECT 1 AS id, {n} AS n, double({x}) AS x, map('a', 1) AS m, {more}"
    found = sides(
        third.format(n="7", x="1D / 3", more="'gone' AS old_one, 'x' AS t"),
        third.format(n="7L", x="1D / 3 + 1e-12D", more="'here' AS new_one, 5 AS t"),
    )
    assert found.is_same
    assert found.columns == Columns(
        compared=("id", "n", "x"),
        added=("new_one",),
        removed=("old_one",),
        retyped=("t: string → int",),
        left_out=("m",),
    )


def test_a_side_without_any_row_has_none(sides: Any) -> None:
    assert sides(None, None) == Comparison(columns=Columns())
    found = sides(None, "SELECT 1 AS id")
    assert (found.old, found.new, found.only_new) == (0, 1, 1)
    with pytest.raises(SettingsError, match="no column of that name is compared; there are id"):
        sides("SELECT 1 AS id", "SELECT 1 AS id", key=("user",))


# --------------------------------------------------------------------------------------------------------- whole runs


def totals(folder: Path, *, rate: int = 1, more: bool = False, window: str = "1 minute") -> PipelineDefinition:
    """Amounts by user and minute; ``rate`` is what new code may change, ``more`` what it may add."""

    @ps.pipeline("orders")
    def orders(p: ps.Pipeline) -> None:
        source = ps.files.Source(folder / "in", schema="user STRING, amount LONG, at TIMESTAMP")
        stream = p.read("in", source).with_watermark("at", delay="0 seconds")
        taxed = stream.with_column("amount", f"amount * {rate}")
        made = taxed.group_by("user", ps.tumbling(window)).agg("totals", ps.agg.sum("amount").alias("amount"))
        made.write("out", ps.files.Sink(folder / "out", format="json"))
        if more:
            taxed.where("amount > 50").write("large", ps.console.Sink())

    return orders


def order(user: str, amount: int, minute: int, second: int = 0) -> dict[str, Any]:
    return {"user": user, "amount": amount, "at": f"2026-01-01T00:{minute:02}:{second:02}Z"}


@pytest.mark.mission("D7")
def test_new_code_is_tried_on_a_copy_and_what_it_would_write_is_compared(spark: SparkSession, tmp_path: Path) -> None:
    drop(tmp_path / "in", "a.json", [order("u1", 1, 0), order("u2", 2, 0, 30), order("u1", 10, 1)])
    job = ps.Job(totals(tmp_path), state=tmp_path / "state", spark=spark)
    job.run(until="caught-up")
    state = JobDirectory(tmp_path / "state", "orders")
    point = state.read().restore_point
    assert point is not None
    drop(tmp_path / "in", "b.json", [order("u1", 100, 1, 5), order("u2", 5, 1, 6), order("u2", 5, 2)])
    before = {path: data for path, data in files_below(tmp_path).items() if "/log/" not in path}
    entries, had = state.read().tail, set(files_below(tmp_path))

    asked: dict[str, Any] = {"restore_from": point.checkpoint, "state": tmp_path / "state", "spark": spark}
    same = ps.shadow(totals(tmp_path), against=totals(tmp_path), out=tmp_path / "shadow-1", **asked)
    assert same.is_same
    assert same.reports["new"].rows_read == {"in": 3}
    [out] = same.sinks
    assert (out.rows, out.comparison and out.comparison.equal) == ({"old": 2, "new": 2}, 2)

    changed = ps.shadow(
        totals(tmp_path, rate=2, more=True),
        against=totals(tmp_path),
        out=tmp_path / "shadow-2",
        key={"out": ["user", "window_start"]},
        **asked,
    )
    assert not changed.is_same
    large, out = changed.sinks
    assert (large.uid, large.rows, large.comparison) == ("large", {"new": 1}, None)
    assert out.comparison is not None
    assert (out.comparison.changed, out.comparison.only_old, out.comparison.only_new) == (2, 0, 0)
    first = out.comparison.samples[0]
    assert (first.old, first.new) is not None
    assert [row["amount"] for row in (first.old or {}, first.new or {})] == [110, 210], "10 were counted before"
    found = spark.read.parquet(str(tmp_path / "shadow-2" / "new" / "out")).select("user", "amount").collect()
    assert sorted(map(tuple, found)) == [("u1", 210), ("u2", 10)]
    assert not (tmp_path / "shadow-2" / "copy").exists()

    after = files_below(tmp_path)
    assert {path: after[path] for path in before} == before, "neither state nor output was touched"
    # Twice: a claim, a name for a while, and at rest; a claim, the name's end, and at rest.
    added = sorted(path for path in after if path not in had and not path.startswith("shadow-"))
    assert added == [f"state/orders/log/{entries + number:020}.json" for number in range(1, 13)]
    assert state.read().pins == {}
    assert len(published(tmp_path / "out")) == 2


def test_code_that_cannot_take_the_state_over_is_refused_as_a_start_would_be(
    spark: SparkSession, tmp_path: Path
) -> None:
    drop(tmp_path / "in", "a.json", [order("u1", 1, 0)])
    ps.Job(totals(tmp_path), state=tmp_path / "state", spark=spark).run(until="caught-up")
    with pytest.raises(StateIncompatible, match="step 'totals'"):
        ps.shadow(
            totals(tmp_path, window="2 minutes"),
            restore_from=0,
            state=tmp_path / "state",
            out=tmp_path / "shadow",
            spark=spark,
        )
