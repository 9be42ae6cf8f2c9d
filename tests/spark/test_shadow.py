"""Multisets of rows compared in Spark, and whole shadow runs: two codes, one checkpoint, one end, nothing disturbed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from core.copies_kit import files_below
from penstock.admin.shadow import Stage
from penstock.admin.shadow_compare import ComparedColumns, Comparison, DiffSample, compare
from penstock.api.pipeline import PipelineDefinition
from penstock.control.client import JobDirectory
from penstock.errors import GraphError, SettingsError, StateIncompatible
from penstock.handles import Guarantee, Position
from penstock.interfaces.source import Source, SourceContext
from penstock.testing.sources import ScriptedSource
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
        DiffSample(old={"k": "a", "n": 1}),
        DiffSample(old={"k": "b", "n": 3}),
        DiffSample(new={"k": "b", "n": 4}),
        DiffSample(new={"k": "c", "n": 5}),
    )


def test_with_a_key_rows_that_changed_are_told_from_those_that_came_or_went(sides: Any) -> None:
    found = sides(
        "SELECT * FROM VALUES ('a', 1), ('b', 3), ('d', 9), (NULL, 1) AS t(k, n)",
        "SELECT * FROM VALUES ('a', 1), ('b', 4), ('c', 5), (NULL, 2) AS t(k, n)",
        key=("k",),
    )
    assert (found.equal, found.only_old, found.only_new, found.changed) == (1, 1, 1, 2)
    assert DiffSample(old={"k": "b", "n": 3}, new={"k": "b", "n": 4}) in found.samples
    assert DiffSample(old={"k": None, "n": 1}, new={"k": None, "n": 2}) in found.samples
    assert found.samples[-2:] == (DiffSample(old={"k": "d", "n": 9}), DiffSample(new={"k": "c", "n": 5}))


def test_fractions_are_compared_by_nine_digits_and_columns_by_what_became_of_them(sides: Any) -> None:
    third = "SELECT 1 AS id, {n} AS n, double({x}) AS x, map('a', 1) AS m, {more}"
    found = sides(
        third.format(n="7", x="1D / 3", more="'gone' AS old_one, 'x' AS t"),
        third.format(n="7L", x="1D / 3 + 1e-12D", more="'here' AS new_one, 5 AS t"),
    )
    assert found.is_same
    assert found.columns == ComparedColumns(
        compared=("id", "n", "x"),
        added=("new_one",),
        removed=("old_one",),
        retyped=("t: string → int",),
        left_out=("m",),
    )


def test_numbers_of_two_types_are_compared_as_exactly_as_the_less_exact_one_is(sides: Any) -> None:
    pairs = [
        ("float(0.1)", "0.1D"),
        ("0.1D", "float(0.1)"),
        ("1234567890123L", "1234567890123D"),
        ("12345678901.25", "12345678901.25D"),
        ("16777217", "float(16777217)"),
        ("0", "-0.0D"),
        ("CAST(NULL AS INT)", "CAST(NULL AS DOUBLE)"),
    ]
    old = "SELECT " + ", ".join(f"{pair[0]} AS x{place}" for place, pair in enumerate(pairs))
    new = "SELECT " + ", ".join(f"{pair[1]} AS x{place}" for place, pair in enumerate(pairs))
    found = sides(old, new)
    assert len(found.columns.compared) == len(pairs)
    assert found.is_same, found.samples
    assert not sides(old, new.replace("0.1D", "0.10001D")).is_same
    assert not sides(old, new.replace("1234567890123D", "1234567900123D")).is_same


def test_a_side_without_any_row_has_none(sides: Any) -> None:
    assert sides(None, None) == Comparison(columns=ComparedColumns())
    found = sides(None, "SELECT 1 AS id")
    assert (found.old, found.new, found.only_new) == (0, 1, 1)
    with pytest.raises(SettingsError, match=r"No column of that name is compared. Columns: id"):
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


def joined(folder: Path, queue: Source, *, rate: int = 1) -> PipelineDefinition:
    """Orders of files and of a queue, counted together."""

    @ps.pipeline("orders")
    def orders(p: ps.Pipeline) -> None:
        schema = "user STRING, amount LONG, at TIMESTAMP"
        files = p.read("in", ps.files.Source(folder / "in", schema=schema)).with_watermark("at", delay="0 seconds")
        queued = p.read("queue", queue).with_watermark("at", delay="0 seconds")
        taxed = files.union(queued).with_column("amount", f"amount * {rate}")
        made = taxed.group_by("user", ps.tumbling("1 minute")).agg("totals", ps.agg.sum("amount").alias("amount"))
        made.write("out", ps.files.Sink(folder / "out", format="json"))

    return orders


class Queue:
    """A source as a queue is: whoever opens it is noticed, for what is read is gone."""

    def __init__(self, *rows: object) -> None:
        self._script = ScriptedSource("user STRING, amount LONG, at TIMESTAMP", rows)
        self.opened = 0

    guarantee = Guarantee.EXACTLY_ONCE

    def schema(self, spark: SparkSession) -> Any:
        return self._script.schema(spark)

    def open(self, context: SourceContext, resume: Position | None) -> Any:
        self.opened += 1
        return self._script.open(context, resume)

    def describe(self) -> str:
        return "a queue"


def test_a_source_that_would_notice_is_refused_and_left_out_it_holds_nobody_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    queue = Queue(order("u9", 4, 0), order("u9", 5, 1))
    drop(tmp_path / "in", "a.json", [order("u1", 1, 0), order("u1", 2, 1)])
    ps.Job(joined(tmp_path, queue), state=tmp_path / "state", spark=spark).run(until="caught-up")
    point = JobDirectory(tmp_path / "state", "orders").read().restore_point
    assert point is not None
    drop(tmp_path / "in", "b.json", [order("u1", 10, 1, 30), order("u2", 20, 2), order("u2", 20, 3)])
    opened = queue.opened
    asked: dict[str, Any] = {
        "against": joined(tmp_path, queue),
        "restore_from": point.checkpoint,
        "state": tmp_path / "state",
        "spark": spark,
        "key": {"out": ["user", "window_start"]},
    }
    with pytest.raises(GraphError, match=r"'queue'.*a queue cannot be read by a shadow run, .*--without queue"):
        ps.shadow(joined(tmp_path, queue, rate=2), out=tmp_path / "shadow", **asked)
    assert not (tmp_path / "shadow").exists()

    stages: list[Stage] = []
    result = ps.shadow(
        joined(tmp_path, queue, rate=2), out=tmp_path / "shadow", without=["queue"], progress=stages.append, **asked
    )

    assert queue.opened == opened, "nobody could notice"
    assert result.notes == ("source 'queue' was left out: no row of it was read, by either code",)
    assert [dict(report.rows_read) for report in result.reports.values()] == [{"in": 3}, {"in": 3}]
    [out] = result.sinks
    assert out.comparison is not None
    assert (out.rows, out.comparison.equal, out.comparison.changed) == ({"old": 3, "new": 3}, 1, 2)
    rows = spark.read.parquet(str(tmp_path / "shadow" / "old" / "out")).select("user", "amount").collect()
    assert sorted(map(tuple, rows)) == [("u1", 12), ("u2", 20), ("u9", 5)], "windows close without the queue"
    copied = [stage for stage in stages if stage.doing == "copying"]
    assert copied[0].done == 0 < copied[-1].done == copied[-1].of
    runs = {side: [each for each in stages if each.doing == side][-1] for side in ("old", "new")}
    assert (runs["old"].done, runs["old"].of, runs["new"]) == (3, None, Stage(doing="new", done=3, of=3))
    assert stages[-1] == Stage(doing="comparing", done=0, of=1)


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
