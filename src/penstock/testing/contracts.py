"""Test suites that any source, sink or file system must pass: subclass one and give it its fixtures."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from penstock.checkpoint.entry_codec import COMMITTABLES
from penstock.clock import MonotonicTime, WallTime
from penstock.connectors.committers import check_committers, committer, open_writer
from penstock.elements import Batch
from penstock.errors import CheckpointError, CheckpointUnreadable, StateIncompatible
from penstock.filesystem.base import Created, FileSystem, Moved
from penstock.filesystem.local import LocalFileSystem
from penstock.formats.text import struct_type
from penstock.handles import CheckpointId, CommitOutcome, Committable, Generation, Guarantee, Position
from penstock.interfaces.sink import CommitContext, Committer, Sink, SinkContext, SinkWriter
from penstock.interfaces.source import (
    CaughtUp,
    Ended,
    NoData,
    PlannedBatch,
    ReadLimit,
    Source,
    SourceContext,
    SourceReader,
    SupportsPartitions,
    Until,
)
from penstock.testing.clock import ManualClock
from penstock.testing.frames import Row, assert_rows, fit_rows, frame_of, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


# ---- sinks -----------------------------------------------------------------------------------------------------------

_GROUPS = itertools.count(1)
DONE = frozenset({CommitOutcome.DONE, CommitOutcome.ALREADY_DONE})


class SinkContract:
    """What a writer and a committer must guarantee so that every row is seen once, whatever happens between them.

    Give it the fixtures ``spark`` (a classic session) and ``sink`` (new and empty), and override ``visible``.

    Example::

        class TestMySink(SinkContract):
            @pytest.fixture
            def sink(self, tmp_path):
                return MySink(tmp_path / "out")

            def visible(self, sink, spark):
                return spark.read.parquet(sink.path) if ... else []
    """

    columns: ClassVar[str] = "id LONG, name STRING"
    """The columns that are written, as DDL; ``row`` makes rows of them."""

    @pytest.fixture
    def sink(self) -> Sink:
        """The sink, empty."""
        msg = "Override the fixture 'sink'."
        raise pytest.UsageError(msg)

    @pytest.fixture
    def filesystem(self, tmp_path: Path) -> LocalFileSystem:
        """The file system of the job's directory."""
        return LocalFileSystem(tmp_path / "state")

    def visible(self, sink: Sink, spark: SparkSession) -> Sequence[Row]:
        """Return what a reader of the sink sees now, as dictionaries."""
        raise NotImplementedError

    def row(self, number: int) -> Row:
        """Return a row of ``columns``."""
        return {"id": number, "name": f"row {number}"}

    # ---- writing -----------------------------------------------------------------------------------------------------

    def schema(self, spark: SparkSession) -> StructType:
        """Return the schema of ``columns``."""
        return struct_type(spark, self.columns)

    def open(self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem, generation: int = 1) -> SinkWriter:
        """Return a writer, as a start of the job makes it."""
        return open_writer(
            sink,
            SinkContext(
                uid="out",
                spark=spark,
                schema=self.schema(spark),
                log_id="0123456789abcdef0123456789abcdef",
                job="contract",
                generation=Generation(generation),
                filesystem=filesystem,
                staging=f"staged/out/{generation}",
                cores=2,
            ),
        )

    def batch(self, spark: SparkSession, *numbers: int) -> Batch:
        """Return a batch of the rows of these numbers."""
        schema = self.schema(spark)
        frame = frame_of(spark, fit_rows([self.row(number) for number in numbers or (0,)], schema, "contract"), schema)
        return Batch(frame=frame if numbers else frame.where("1 = 0"), sequence=1)

    def handed_over(self, writer: SinkWriter, checkpoint: int) -> list[Committable]:
        """Return the committables of a checkpoint, as they come back from a manifest."""
        items = writer.prepare(CheckpointId(checkpoint)).materialise()
        texts = [json.dumps(COMMITTABLES.to_json(item)) for item in items]
        return [COMMITTABLES.from_json(json.loads(text), "contract") for text in texts]

    def committer(self, item: Committable, filesystem: LocalFileSystem) -> Committer:
        """Return a new committer for the committable, as after a restart."""
        return committer(item, CommitContext(filesystem=filesystem))

    def commit(self, items: Sequence[Committable], filesystem: LocalFileSystem) -> list[CommitOutcome]:
        """Publish the committables with new committers."""
        return [self.committer(item, filesystem).commit(item) for item in items]

    def void(self, items: Sequence[Committable], filesystem: LocalFileSystem) -> list[CommitOutcome]:
        """Make sure that the committables are never published."""
        return [self.committer(item, filesystem).void(item) for item in items]

    def expect(self, sink: Sink, spark: SparkSession, *numbers: int) -> None:
        """Assert that a reader sees exactly these rows."""
        assert_rows(self.visible(sink, spark), [self.row(number) for number in numbers])

    # ---- the tests ---------------------------------------------------------------------------------------------------

    def test_any_process_can_find_its_committers(self, sink: Sink) -> None:
        """A start refuses a sink whose output nothing could publish."""
        check_committers(sink)

    def test_rows_are_seen_when_their_checkpoint_is_committed_and_not_before(
        self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem
    ) -> None:
        """Neither written nor prepared rows are visible; committed ones all are."""
        writer = self.open(sink, spark, filesystem)
        writer.write(self.batch(spark, 1, 2))
        writer.write(self.batch(spark, 3))
        self.expect(sink, spark)
        items = self.handed_over(writer, 1)
        self.expect(sink, spark)
        assert self.commit(items, filesystem) == [CommitOutcome.DONE] * len(items)
        self.expect(sink, spark, 1, 2, 3)

    def test_a_commit_that_is_repeated_publishes_nothing_more(
        self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem
    ) -> None:
        """A restart commits what the log holds open, done or not."""
        writer = self.open(sink, spark, filesystem)
        writer.write(self.batch(spark, 1))
        items = self.handed_over(writer, 1)
        self.commit(items, filesystem)
        assert self.commit(items, filesystem) == [CommitOutcome.ALREADY_DONE] * len(items)
        self.expect(sink, spark, 1)

    def test_checkpoints_are_published_one_after_another(
        self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem
    ) -> None:
        """Rows written after the barrier belong to the next one, though the first is not yet durable."""
        writer = self.open(sink, spark, filesystem)
        writer.write(self.batch(spark, 1))
        prepared = writer.prepare(CheckpointId(1))
        writer.write(self.batch(spark, 2))
        self.commit(prepared.materialise(), filesystem)
        self.expect(sink, spark, 1)
        self.commit(self.handed_over(writer, 2), filesystem)
        self.expect(sink, spark, 1, 2)

    def test_output_of_an_aborted_checkpoint_is_published_by_the_next(
        self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem
    ) -> None:
        """Output that was handed over stays valid, however many checkpoints are aborted."""
        writer = self.open(sink, spark, filesystem)
        items: list[Committable] = []
        for number in (1, 2, 3):
            writer.write(self.batch(spark, number))
            items += self.handed_over(writer, number)
        assert set(self.commit(items, filesystem)) <= DONE
        self.expect(sink, spark, 1, 2, 3)

    def test_a_restart_between_prepare_and_commit_loses_and_doubles_nothing(
        self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem
    ) -> None:
        """The committable is enough. What a dead writer wrote after it was in no checkpoint, and is never seen."""
        dead = self.open(sink, spark, filesystem, generation=1)
        dead.write(self.batch(spark, 1))
        items = self.handed_over(dead, 1)
        dead.write(self.batch(spark, 2))
        assert self.commit(items, filesystem) == [CommitOutcome.DONE] * len(items)
        alive = self.open(sink, spark, filesystem, generation=5)
        alive.write(self.batch(spark, 2))
        self.commit(self.handed_over(alive, 2), filesystem)
        self.expect(sink, spark, 1, 2)

    def test_what_is_voided_is_never_published(
        self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem
    ) -> None:
        """A late commit of a zombie publishes nothing; voiding again is harmless; other output stays."""
        writer = self.open(sink, spark, filesystem)
        writer.write(self.batch(spark, 1))
        first = self.handed_over(writer, 1)
        writer.write(self.batch(spark, 2))
        second = self.handed_over(writer, 2)
        assert set(self.void(second, filesystem)) == {CommitOutcome.DONE}
        assert set(self.void(second, filesystem)) <= DONE
        assert set(self.commit(second, filesystem)) == {CommitOutcome.ALREADY_DONE}
        self.commit(first, filesystem)
        self.expect(sink, spark, 1)

    def test_what_is_published_can_no_longer_be_voided(
        self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem
    ) -> None:
        """The committer reports it as done already, and the rows stay."""
        writer = self.open(sink, spark, filesystem)
        writer.write(self.batch(spark, 1))
        items = self.handed_over(writer, 1)
        self.commit(items, filesystem)
        assert set(self.void(items, filesystem)) == {CommitOutcome.ALREADY_DONE}
        self.expect(sink, spark, 1)

    def test_no_rows_hand_nothing_over(self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem) -> None:
        """An epoch without batches hands nothing over, nor does one whose batches have no rows."""
        writer = self.open(sink, spark, filesystem)
        assert self.handed_over(writer, 1) == []
        assert writer.write(self.batch(spark)) in (0, None)
        assert self.handed_over(writer, 2) == []

    def test_a_batch_is_written_in_one_job(self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem) -> None:
        """The count of rows is right, if the writer returns one."""
        context: Any = spark.sparkContext
        writer, batch = self.open(sink, spark, filesystem), self.batch(spark, 1, 2, 3)
        group = f"sink-contract-{next(_GROUPS)}"
        context.setJobGroup(group, "a batch")
        try:
            assert writer.write(batch) in (3, None)
            assert len(context.statusTracker().getJobIdsForGroup(group)) == 1
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)

    def test_closing_publishes_nothing_and_twice_is_harmless(
        self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem
    ) -> None:
        """Output that was handed over before can still be committed."""
        writer = self.open(sink, spark, filesystem)
        writer.write(self.batch(spark, 1))
        items = self.handed_over(writer, 1)
        writer.write(self.batch(spark, 2))
        writer.close()
        writer.close()
        self.expect(sink, spark)
        self.commit(items, filesystem)
        self.expect(sink, spark, 1)


# ---- sources ---------------------------------------------------------------------------------------------------------

_MAX_POLLS = 1_000


class SourceContract:
    """What positions, plans and frames of a source must guarantee. Give it a session and two fixtures.

    ``spark`` is a classic session. ``source`` is a source that already has all of its rows, at least three;
    ``expected`` is those rows, as dictionaries. The source is read until ``until``, in batches of ``limits``,
    which should be several.

    Example::

        class TestMySource(SourceContract):
            @pytest.fixture
            def source(self, tmp_path):
                return MySource(...)

            @pytest.fixture
            def expected(self):
                return [{"id": n} for n in range(10)]
    """

    limits: ClassVar[ReadLimit] = ReadLimit(rows=2)
    """The limit of each batch."""

    until: ClassVar[Until] = Until.CAUGHT_UP
    """``STOPPED`` for a source that ends by itself and is never caught up before."""

    @pytest.fixture
    def source(self) -> Source:
        """The source."""
        msg = "Override the fixture 'source'."
        raise pytest.UsageError(msg)

    @pytest.fixture
    def expected(self) -> Sequence[Row]:
        """All of its rows."""
        msg = "Override the fixture 'expected'."
        raise pytest.UsageError(msg)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def open(self, source: Source, spark: SparkSession, resume: Position | None = None) -> SourceReader:
        """Return a reader that continues a position as it comes back from a manifest."""
        restored = None if resume is None else Position(kind=resume.kind, detail=json.loads(json.dumps(resume.detail)))
        return source.open(SourceContext(uid="in", spark=spark, until=self.until), restored)

    def batches(self, reader: SourceReader) -> Iterator[PlannedBatch]:
        """Yield all batches up to the end; where there is none, time passes until the next poll."""
        clock = ManualClock()
        for _ in range(_MAX_POLLS):
            poll = reader.poll(now=clock.now(), wall=clock.wall(), limits=self.limits)
            match poll:
                case PlannedBatch():
                    yield poll
                case NoData():
                    clock.move_to(max(poll.wake_at, clock.now()))
                case CaughtUp() | Ended():
                    return
        msg = f"the reader did not come to an end in {_MAX_POLLS} polls"
        raise AssertionError(msg)

    def read(self, reader: SourceReader) -> list[Row]:
        """All rows up to the end."""
        return [row for plan in self.plans(reader) for row in rows_of(reader.frame(plan))]

    def plans(self, reader: SourceReader) -> Iterator[object]:
        """Yield the plans of all batches."""
        return (batch.plan for batch in self.batches(reader))

    # ---- the tests ---------------------------------------------------------------------------------------------------

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
        """The rows before any position in a checkpoint and those after it are all rows once."""
        _skip_unless_replayable(source)
        reader = self.open(source, spark)
        before: list[Row] = []
        positions = [(reader.position(), 0)]
        for plan in self.plans(reader):
            before += rows_of(reader.frame(plan))
            positions.append((reader.position(), len(before)))
        assert len(positions) > 2, "the limits should cut the rows into several batches"  # noqa: PLR2004
        for position, count in positions:
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
        """A manifest holds a position as JSON; before the first batch it is the resolved start."""
        reader = self.open(source, spark)
        start = reader.position()
        assert json.loads(json.dumps(start.detail)) == start.detail
        assert reader.position() == start
        again = self.open(source, spark, start)
        assert again.position() == start

    def test_a_plan_gives_the_same_rows_each_time(self, source: Source, spark: SparkSession) -> None:
        """Each sink runs a batch for itself, and a failed job is run again, even after later batches were planned."""
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
        """Polls and frames are made between batches, where a job would delay everything."""
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
        """A batch keeps the limit; if the reader says how many rows a batch has, that is true."""
        reader = self.open(source, spark)
        for batch in self.batches(reader):
            rows = len(rows_of(reader.frame(batch.plan)))
            assert batch.rows is None or batch.rows == rows
            assert batch.rows is None or self.limits.rows is None or rows <= self.limits.rows

    def test_paused_partitions_are_left_out_and_keep_their_place(
        self, source: Source, spark: SparkSession, expected: Sequence[Row]
    ) -> None:
        """A partition that is ahead in event time is paused, and read later from where it was, also after a restart.

        As long as a paused partition has rows, its source is neither idle nor at its end.
        """
        column = source.partition_column if isinstance(source, SupportsPartitions) else None
        names = [] if column is None else sorted({str(row[column]) for row in expected})
        if column is None or len(names) < 2:  # noqa: PLR2004 - no partition can be ahead of another
            pytest.skip("the source has no partitions to tell apart")
        paused = replace(self.limits, paused=frozenset(names[1:]))
        reader = self.open(source, spark)
        early: list[Row] = []
        polls, more = 0, len(expected) + 1
        while more and polls < _MAX_POLLS:  # the first rows may come late
            polls, more = polls + 1, more - bool(early)
            poll = reader.poll(now=MonotonicTime(0), wall=WallTime(0), limits=paused)
            if isinstance(poll, NoData):
                assert not poll.idle
                continue
            assert isinstance(poll, PlannedBatch)
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
        """``committed`` is for monitoring: it may come late, and is not called for every checkpoint."""
        reader = self.open(source, spark)
        start = reader.position()
        reader.committed(CheckpointId(0), start)
        assert reader.position() == start
        rows = self.read(reader)
        reader.committed(CheckpointId(7), reader.position())
        assert_rows(rows, expected)

    def test_a_position_of_another_kind_is_refused(self, source: Source, spark: SparkSession) -> None:
        """A uid that now belongs to another source has a position that means something else."""
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


# ---- file systems ----------------------------------------------------------------------------------------------------


class FileSystemContract:
    """What a log, layers and staged output rely on. Override ``filesystem``, empty for each test.

    Example::

        class TestMyFileSystem(FileSystemContract):
            @pytest.fixture
            def filesystem(self, tmp_path):
                return MyFileSystem(tmp_path)
    """

    @pytest.fixture
    def filesystem(self) -> FileSystem:
        """An empty file system."""
        msg = "Override the fixture 'filesystem'."
        raise pytest.UsageError(msg)

    def write(self, filesystem: FileSystem, path: str, data: bytes) -> None:
        """Write a file as a Spark task would; override it if ``replace`` does not do so."""
        filesystem.replace(path, data)

    def test_what_was_created_is_read_back_whole(self, filesystem: FileSystem) -> None:
        """Content comes back byte for byte, whatever the bytes."""
        for path, data in {"a": b"", "folder/b": bytes(range(256)), "deep/er/c": b"x" * 300_000}.items():
            assert filesystem.create(path, data) is Created.CREATED
            assert filesystem.read(path) == data

    def test_what_is_absent_reads_as_none(self, filesystem: FileSystem) -> None:
        """Absent files, absent folders, and a path below a file."""
        filesystem.create("file", b"x")
        assert filesystem.read("nothing") is None
        assert filesystem.read("no/thing") is None
        assert filesystem.read("file/below") is None

    def test_a_second_create_changes_nothing(self, filesystem: FileSystem) -> None:
        """Create-if-absent: the first content stays, even if the second is the same."""
        assert filesystem.create("log/0", b"first") is Created.CREATED
        assert filesystem.create("log/0", b"second") is Created.EXISTS
        assert filesystem.create("log/0", b"first") is Created.EXISTS
        assert filesystem.read("log/0") == b"first"

    def test_of_many_creators_one_wins_and_its_content_stays(self, filesystem: FileSystem) -> None:
        """Mutual exclusion and atomic visibility, under threads."""
        for turn in range(20):
            path = f"race/{turn}"
            contents = [bytes([number]) * 1000 for number in range(8)]
            with ThreadPoolExecutor(len(contents)) as pool:
                answers = list(pool.map(lambda data, path=path: filesystem.create(path, data), contents))
            winners = [data for data, answer in zip(contents, answers, strict=True) if answer is Created.CREATED]
            assert winners == [filesystem.read(path)]

    def test_a_deleted_name_is_absent_and_deleting_again_is_fine(self, filesystem: FileSystem) -> None:
        """Deletion is idempotent."""
        filesystem.create("state/a", b"1")
        filesystem.delete("state/a")
        filesystem.delete("state/a")
        filesystem.delete("never/there")
        assert filesystem.read("state/a") is None
        assert list(filesystem.list("state")) == []

    def test_replace_writes_over_what_is_there(self, filesystem: FileSystem) -> None:
        """A file is replaced as a whole."""
        filesystem.replace("hint", b"a longer text")
        filesystem.replace("hint", b"short")
        assert filesystem.read("hint") == b"short"

    def test_a_listing_is_deep_sorted_and_of_that_folder_only(self, filesystem: FileSystem) -> None:
        """Names that merely begin like the folder are not below it."""
        for path in ("log/2", "log/10", "log/sub/1", "logs/3", "state/x"):
            filesystem.create(path, b"")
        assert list(filesystem.list("log")) == ["log/10", "log/2", "log/sub/1"]
        assert list(filesystem.list("log/sub")) == ["log/sub/1"]
        assert list(filesystem.list("absent")) == []
        assert list(filesystem.list("")) == ["log/10", "log/2", "log/sub/1", "logs/3", "state/x"]

    def test_a_listing_sees_a_creation_at_once(self, filesystem: FileSystem) -> None:
        """Strong consistency (L4): what was created is listed, what was deleted is not."""
        for number in range(50):
            filesystem.create(f"log/{number:03d}", b"")
            assert list(filesystem.list("log"))[-1] == f"log/{number:03d}"
        filesystem.delete("log/049")
        assert list(filesystem.list("log"))[-1] == "log/048"

    def test_settling_describes_the_file(self, filesystem: FileSystem) -> None:
        """Length and checksum are those of the content, and the path is the one that was given."""
        data = b"row" * 1_000_000
        self.write(filesystem, "state/totals/3/part-0", data)
        found = filesystem.settle("state/totals/3/part-0")
        assert (found.path, found.length) == ("state/totals/3/part-0", len(data))
        assert found.sha256 == sha256(data).hexdigest()

    def test_files_that_are_settled_together_are_described_each(self, filesystem: FileSystem) -> None:
        """Their folders need one sync, which the second call may leave out; nothing else."""
        synced: set[str] = set()
        for length, name in enumerate(("a/part-0", "a/part-1", "b/part-0")):
            self.write(filesystem, f"state/{name}", b"x" * length)
        for length, name in enumerate(("a/part-0", "a/part-1", "b/part-0")):
            assert filesystem.settle(f"state/{name}", synced).length == length

    def test_settling_what_is_not_there_names_it(self, filesystem: FileSystem) -> None:
        """A missing file of a task is never taken for an empty one."""
        with pytest.raises(CheckpointUnreadable, match=r"state/gone"):
            filesystem.settle("state/gone")

    def test_a_move_takes_the_content_along(self, filesystem: FileSystem) -> None:
        """The folders of the target are created."""
        filesystem.create("staged/a", b"rows")
        assert filesystem.move("staged/a", "out/new/a") == Moved(found=True)
        assert filesystem.read("out/new/a") == b"rows"
        assert filesystem.read("staged/a") is None

    def test_a_second_move_finds_nothing(self, filesystem: FileSystem) -> None:
        """The staged file gone is the evidence that it was published (S7)."""
        filesystem.create("staged/a", b"rows")
        filesystem.move("staged/a", "out/a")
        assert filesystem.move("staged/a", "out/a") == Moved(found=False)
        assert filesystem.read("out/a") == b"rows"

    def test_of_many_movers_one_finds_the_file(self, filesystem: FileSystem) -> None:
        """Of two publishers of one file, one publishes it."""
        for turn in range(20):
            filesystem.create(f"staged/{turn}", b"rows")
            with ThreadPoolExecutor(4) as pool:
                movers = [pool.submit(filesystem.move, f"staged/{turn}", f"out/{turn}/{name}") for name in range(4)]
            assert sum(mover.result().found for mover in movers) == 1
            assert len(filesystem.list(f"out/{turn}")) == 1

    def test_a_move_never_overwrites(self, filesystem: FileSystem) -> None:
        """A name that another file has is refused, and both files stay."""
        filesystem.create("staged/a", b"new")
        filesystem.create("out/a", b"old")
        with pytest.raises(CheckpointError, match=r"out/a"):
            filesystem.move("staged/a", "out/a")
        assert filesystem.read("out/a") == b"old"
        assert filesystem.read("staged/a") == b"new"

    def test_an_address_ends_with_the_path(self, filesystem: FileSystem) -> None:
        """Spark gets an address with a scheme."""
        address = filesystem.url("state/totals/3")
        assert ":" in address
        assert address.endswith("state/totals/3")
