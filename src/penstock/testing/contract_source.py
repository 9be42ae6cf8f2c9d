"""What the runtime relies on in every source, as tests; :mod:`penstock.testing.contracts` tells how to run them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from penstock.errors import StateIncompatible
from penstock.handles import Guarantee, Position
from penstock.ids import CheckpointId, Instant, WallTime
from penstock.sources.base import (
    CaughtUp,
    Ended,
    Limits,
    Nothing,
    Partitioned,
    Reader,
    Rows,
    Source,
    SourceContext,
    Until,
)
from penstock.testing.clock import ManualClock
from penstock.testing.frames import assert_rows
from penstock.testing.values import Row, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_POLLS = 1_000


class SourceContract:
    """What positions, plans and frames must hold. Give it a session and two fixtures.

    ``spark`` is a classic session. ``source`` is a source in which everything is there already, of at least three
    rows; ``expected`` is those rows, as dictionaries. It is read with :attr:`limits`, which should cut it into several
    batches, and until :attr:`until`.

    Example::

        class TestMySource(SourceContract):
            @pytest.fixture
            def source(self, tmp_path):
                return MySource(...)

            @pytest.fixture
            def expected(self):
                return [{"id": n} for n in range(10)]
    """

    limits: ClassVar[Limits] = Limits(rows=2)
    """How much each batch may hold."""

    until: ClassVar[Until] = Until.CAUGHT_UP
    """``STOPPED`` for a source that ends by itself and is never caught up before."""

    @pytest.fixture
    def source(self) -> Source:
        """The source."""
        msg = "override the fixture 'source'"
        raise pytest.UsageError(msg)

    @pytest.fixture
    def expected(self) -> Sequence[Row]:
        """All of its rows."""
        msg = "override the fixture 'expected'"
        raise pytest.UsageError(msg)

    # --------------------------------------------------------------------------------------------------------- reading

    def open(self, source: Source, spark: SparkSession, resume: Position | None = None) -> Reader:
        """A reader, of a position as it comes back from a manifest."""
        again = None if resume is None else Position(kind=resume.kind, detail=json.loads(json.dumps(resume.detail)))
        return source.open(SourceContext(uid="in", spark=spark, until=self.until), again)

    def batches(self, reader: Reader) -> Iterator[Rows]:
        """All batches up to the end; where there is nothing, time passes until the reader wants to be asked again."""
        clock = ManualClock()
        for _ in range(_MOST_POLLS):
            poll = reader.poll(now=clock.now(), wall=clock.wall(), limits=self.limits)
            match poll:
                case Rows():
                    yield poll
                case Nothing():
                    clock.move_to(max(poll.wake_at, clock.now()))
                case CaughtUp() | Ended():
                    return
        msg = f"the reader did not come to an end in {_MOST_POLLS} polls"
        raise AssertionError(msg)

    def read(self, reader: Reader) -> list[Row]:
        """All rows up to the end."""
        return [row for plan in self.plans(reader) for row in rows_of(reader.frame(plan))]

    def plans(self, reader: Reader) -> Iterator[object]:
        """The plans alone."""
        return (batch.plan for batch in self.batches(reader))

    # ------------------------------------------------------------------------------------------------------- the tests

    def test_every_row_comes_once(self, source: Source, spark: SparkSession, expected: Sequence[Row]) -> None:
        """All rows, none twice, and then the end."""
        assert_rows(self.read(self.open(source, spark)), expected)

    def test_the_schema_is_that_of_every_frame(self, source: Source, spark: SparkSession) -> None:
        """Steps are compiled for the declared columns before anything is read."""
        reader = self.open(source, spark)
        declared = [(field.name, field.dataType) for field in source.schema(spark).fields]
        for plan in self.plans(reader):
            assert [(field.name, field.dataType) for field in reader.frame(plan).schema.fields] == declared

    def test_a_reader_goes_on_after_any_position(
        self, source: Source, spark: SparkSession, expected: Sequence[Row]
    ) -> None:
        """Whatever position a checkpoint holds, what was read before it and what comes after it is everything once."""
        _skip_unless_replayable(source)
        reader = self.open(source, spark)
        before: list[Row] = []
        places = [(reader.position(), 0)]
        for plan in self.plans(reader):
            before += rows_of(reader.frame(plan))
            places.append((reader.position(), len(before)))
        assert len(places) > 2, "the limits should cut the rows into several batches"  # noqa: PLR2004
        for position, count in places:
            assert_rows([*before[:count], *self.read(self.open(source, spark, position))], expected)

    def test_a_replay_gives_the_same_rows(self, source: Source, spark: SparkSession) -> None:
        """Rows read again after a restart are the rows that were read before it."""
        _skip_unless_replayable(source)
        reader = self.open(source, spark)
        start = reader.position()
        plan = next(self.plans(reader))
        first = rows_of(reader.frame(plan))
        after = reader.position()
        again = self.read(self.open(source, spark, start))
        rest = self.read(self.open(source, spark, after))
        assert_rows(again, [*first, *rest])

    def test_a_position_is_json_and_stands_until_rows_are_planned(self, source: Source, spark: SparkSession) -> None:
        """A manifest holds it as JSON; before the first batch it is the resolved start."""
        reader = self.open(source, spark)
        start = reader.position()
        assert json.loads(json.dumps(start.detail)) == start.detail
        assert reader.position() == start
        again = self.open(source, spark, start)
        assert again.position() == start

    def test_a_plan_gives_the_same_rows_each_time(self, source: Source, spark: SparkSession) -> None:
        """Each sink runs a batch for itself, and a failed job is run again, also after later batches were planned."""
        reader = self.open(source, spark)
        plans = list(self.plans(reader))
        first = [rows_of(reader.frame(plan)) for plan in plans]
        assert all(first), "a plan is never empty"
        for plan, rows in zip(plans, first, strict=True):
            assert_rows(rows_of(reader.frame(plan)), rows)

    def test_a_frame_runs_twice(self, source: Source, spark: SparkSession) -> None:
        """One frame, run by two jobs."""
        reader = self.open(source, spark)
        frame = reader.frame(next(self.plans(reader)))
        assert_rows(frame, rows_of(frame))

    def test_planning_runs_no_job(self, source: Source, spark: SparkSession) -> None:
        """Polling and building a frame happen between batches, where a job would hold everything up."""
        context: Any = spark.sparkContext
        reader = self.open(source, spark)
        context.setJobGroup("source-contract", "planning")
        try:
            for plan in self.plans(reader):
                reader.frame(plan)
            assert list(context.statusTracker().getJobIdsForGroup("source-contract")) == []
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)

    def test_a_batch_holds_no_more_than_is_allowed(self, source: Source, spark: SparkSession) -> None:
        """Within the limit; where the reader says how many rows a batch has, it is true."""
        reader = self.open(source, spark)
        for batch in self.batches(reader):
            rows = len(rows_of(reader.frame(batch.plan)))
            assert batch.rows is None or batch.rows == rows
            assert batch.rows is None or self.limits.rows is None or rows <= self.limits.rows

    def test_paused_partitions_are_left_out_and_keep_their_place(
        self, source: Source, spark: SparkSession, expected: Sequence[Row]
    ) -> None:
        """Sources wait for each other in event time: a partition that is ahead is read later, from where it was.

        Also after a restart; and as long as it has rows, its source is neither idle nor at its end.
        """
        column = source.partition_column if isinstance(source, Partitioned) else None
        names = [] if column is None else sorted({str(row[column]) for row in expected})
        if column is None or len(names) < 2:  # noqa: PLR2004 - none is ahead of another
            pytest.skip("the source has no partitions to tell apart")
        paused = replace(self.limits, paused=frozenset(names[1:]))
        reader = self.open(source, spark)
        early: list[Row] = []
        polls, more = 0, len(expected) + 1
        while more and polls < _MOST_POLLS:  # the first rows may take their time to come
            polls, more = polls + 1, more - bool(early)
            poll = reader.poll(now=Instant(0), wall=WallTime(0), limits=paused)
            if isinstance(poll, Nothing):
                assert not poll.idle
                continue
            assert isinstance(poll, Rows)
            assert poll.partitions is not None
            assert paused.paused <= {*poll.partitions.names}
            assert paused.paused <= poll.partitions.behind
            early += rows_of(reader.frame(poll.plan))
        assert early
        assert {str(row[column]) for row in early} == {names[0]}
        for again in (self.open(source, spark, reader.position()), reader):
            assert_rows([*early, *self.read(again)], expected)

    def test_a_completed_checkpoint_changes_nothing_that_is_read(
        self, source: Source, spark: SparkSession, expected: Sequence[Row]
    ) -> None:
        """``committed`` is for monitoring: it may come late, and never for some checkpoints."""
        reader = self.open(source, spark)
        start = reader.position()
        reader.committed(CheckpointId(0), start)
        assert reader.position() == start
        rows = self.read(reader)
        reader.committed(CheckpointId(7), reader.position())
        assert_rows(rows, expected)

    def test_a_position_of_another_kind_is_refused(self, source: Source, spark: SparkSession) -> None:
        """A uid that was given to another source: its position would mean something else."""
        with pytest.raises(StateIncompatible):
            self.open(source, spark, Position(kind="none-of-ours/1", detail={"next": 1}))

    def test_closing_twice_is_harmless(self, source: Source, spark: SparkSession) -> None:
        """Also after rows were planned."""
        reader = self.open(source, spark)
        next(self.plans(reader))
        reader.close()
        reader.close()


def _skip_unless_replayable(source: Source) -> None:
    if source.guarantee is Guarantee.AT_MOST_ONCE:
        pytest.skip("an at-most-once source cannot be read again")
