"""``for_each_batch`` in whole jobs: what the function gets, and what it gets again after a crash (rule S8)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from penstock.api.pipeline import PipelineDefinition
from penstock.connectors.for_each import BatchWriter
from penstock.elements import Batch, ObservedMetrics
from penstock.errors import CommitterMissing, SinkBackpressure, UserFunctionError
from penstock.facts import Published, Restarting
from penstock.failpoints import armed
from spark.job_kit import Watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@dataclass
class Table:
    """A table of a user's, written idempotently: an epoch that it has is skipped."""

    calls: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    epochs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    fails: Callable[[int], None] = lambda _call: None

    def save(self, frame: DataFrame, epoch: int) -> None:
        rows = tuple(sorted(row["n"] for row in frame.collect()))
        assert frame.count() == len(rows), "a frame runs any number of times"
        self.calls.append((epoch, rows))
        self.fails(len(self.calls))
        self.epochs.setdefault(epoch, rows)

    @property
    def rows(self) -> list[int]:
        return sorted(row for rows in self.epochs.values() for row in rows)

    @property
    def again(self) -> list[int]:
        """Epochs of which the function got something more than once."""
        return [epoch for epoch, count in Counter(epoch for epoch, _ in self.calls).items() if count > 1]


def counting(
    table: Table, *, rows: int = 200, uid: str = "out", when: Any = "commit", other: bool = False
) -> PipelineDefinition:
    @ps.pipeline("numbers")
    def pipeline(p: ps.Pipeline) -> None:
        stream = p.read("in", ps.generator.Source(lambda frame: frame, rows=rows, per_batch=20))
        if other:
            stream.write("other", ps.console.Sink(1))
        else:
            stream.for_each_batch(uid, table.save, when=when)

    return pipeline


@pytest.mark.parametrize(
    ("place", "repeats"),
    [
        ("sink.prepared", False),
        ("sink.commit.before", False),
        ("sink.for_each.called", True),
        ("sink.published", False),
    ],
)
def test_a_crash_anywhere_repeats_at_most_an_epoch_with_the_same_rows(
    spark: SparkSession, tmp_path: Path, place: str, *, repeats: bool
) -> None:
    table, watch = Table(), Watch()
    job = ps.Job(counting(table), state=tmp_path, spark=spark, listener=watch, checkpoint_every="100 ms")

    with armed(place, "error:EIO", hit=2):
        report = job.run()

    assert report.restarts == 1, watch.of(Restarting)
    assert table.rows == list(range(200))
    assert bool(table.again) == repeats
    assert len(set(table.calls)) == len(table.epochs), "an epoch that comes again has the same rows"
    assert [epoch for epoch, _ in table.calls] == sorted(epoch for epoch, _ in table.calls)
    assert {fact.task for fact in watch.of(Published)} == {"out"}


def broken(error: Exception, *calls: int) -> Callable[[int], None]:
    """Raises in these calls."""

    def fails(call: int) -> None:
        if call in calls:
            raise error

    return fails


def test_a_connection_that_breaks_is_tried_again_without_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    for number, error in enumerate([ConnectionResetError("gone"), SinkBackpressure("busy")]):
        table = Table(fails=broken(error, 1))
        report = ps.Job(counting(table, rows=20), state=tmp_path / str(number), spark=spark).run()
        assert report.restarts == 0
        assert table.rows == list(range(20))
        assert [rows for _, rows in table.calls] == [tuple(range(20))] * 2


def test_what_a_function_raises_ends_the_job_and_the_next_start_calls_it_with_the_same_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Table(fails=broken(ValueError("no such table"), 1))

    with pytest.raises(
        UserFunctionError, match=r"Table\.save of for_each_batch, in epoch \d+, raised ValueError: no suc"
    ) as e:
        ps.Job(counting(table), state=tmp_path, spark=spark, checkpoint_every="50 ms").run()
    assert "step 'out' at " in str(e.value)
    assert "test_for_each.py:" in str(e.value)
    with pytest.raises(CommitterMissing, match=r"has no for_each_batch\('out', …\) any more.*--discard-unpublished"):
        ps.Job(counting(table, other=True), state=tmp_path, spark=spark).run()
    ps.Job(counting(table), state=tmp_path, spark=spark).run()

    assert table.calls[0] == table.calls[1]
    assert table.rows == list(range(200))


def test_with_when_batch_each_batch_comes_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    table = Table()

    report = ps.Job(counting(table, rows=60, when="batch"), state=tmp_path, spark=spark).run()

    assert [rows for _, rows in table.calls] == [tuple(range(at, at + 20)) for at in (0, 20, 40)]
    assert report.rows_written == {"out": 60}


def test_a_batch_that_the_function_hardly_reads_counts_in_full_and_an_empty_one_calls_nothing(
    spark: SparkSession,
) -> None:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen: list[int] = []
    persistent = spark.sparkContext._jsc.getPersistentRDDs  # type: ignore[union-attr]
    before = persistent().size()  # those of other tests
    writer = BatchWriter(lambda frame, epoch: seen.append(frame.limit(1).count()), _Context("out"))  # type: ignore[arg-type]
    observation = Observation("all")
    observed = spark.range(0, 100, 1, 4).observe(observation, F.count(F.lit(1)).alias("n"))
    measure = ObservedMetrics(lambda: observation.get)

    assert writer.write(Batch(frame=observed, sequence=1, metrics={"rows": measure})) == 100
    assert measure.value == {"n": 100}
    assert writer.write(Batch(frame=spark.range(0), sequence=2)) == 0
    assert seen == [1]
    assert persistent().size() <= before


@dataclass
class _Context:
    uid: str


def test_a_function_runs_its_jobs_in_the_background_pool(spark: SparkSession, tmp_path: Path) -> None:
    pools: list[tuple[str | None, str]] = []
    table = Table()

    def save(frame: DataFrame, epoch: int) -> None:
        pools.append((spark.sparkContext.getLocalProperty("spark.scheduler.pool"), threading.current_thread().name))
        table.save(frame, epoch)

    @ps.pipeline("numbers")
    def pipeline(p: ps.Pipeline) -> None:
        p.read("in", ps.generator.Source(lambda frame: frame, rows=20)).for_each_batch("out", save)

    ps.Job(pipeline, state=tmp_path, spark=spark).run()

    assert {pool for pool, _ in pools} == {"penstock-background"}
    assert table.rows == list(range(20))
