"""What the runtime relies on in every exactly-once sink; :mod:`penstock.testing.contracts` tells how to run it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from penstock.checkpoint.handle_codec import read_committable, write_committable
from penstock.elements import Batch
from penstock.filesystem.local import LocalFileSystem
from penstock.formats import struct_type
from penstock.handles import CommitOutcome, Committable
from penstock.ids import CheckpointId, Generation
from penstock.sinks.base import Committer, Sink, SinkContext, Writer
from penstock.sinks.committers import committer
from penstock.testing.frames import assert_rows
from penstock.testing.values import Row, fit_rows, frame_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_GROUPS = itertools.count(1)
DONE = frozenset({CommitOutcome.DONE, CommitOutcome.ALREADY_DONE})


class SinkContract:
    """What a writer and a committer must hold so that every row is seen once, whatever happens between them.

    Give it the fixtures ``spark`` (a classic session) and ``sink`` (new and empty), and override :meth:`visible`.

    Example::

        class TestMySink(SinkContract):
            @pytest.fixture
            def sink(self, tmp_path):
                return MySink(tmp_path / "out")

            def visible(self, sink, spark):
                return spark.read.parquet(sink.path) if ... else []
    """

    columns: ClassVar[str] = "id LONG, name STRING"
    """What is written, as DDL; :meth:`row` makes rows of it."""

    @pytest.fixture
    def sink(self) -> Sink:
        """The sink, with nothing in it."""
        msg = "override the fixture 'sink'"
        raise pytest.UsageError(msg)

    @pytest.fixture
    def filesystem(self, tmp_path: Path) -> LocalFileSystem:
        """Of the job's directory."""
        return LocalFileSystem(tmp_path / "state")

    def visible(self, sink: Sink, spark: SparkSession) -> Sequence[Row]:
        """What a reader of the sink sees now: rows as dictionaries."""
        raise NotImplementedError

    def row(self, number: int) -> Row:
        """A row of :attr:`columns`."""
        return {"id": number, "name": f"row {number}"}

    # --------------------------------------------------------------------------------------------------------- writing

    def schema(self, spark: SparkSession) -> StructType:
        """Of :attr:`columns`."""
        return struct_type(spark, self.columns)

    def open(self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem, generation: int = 1) -> Writer:
        """A writer, as a start of the job makes it."""
        return sink.writer(
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
            )
        )

    def batch(self, spark: SparkSession, *numbers: int) -> Batch:
        """Rows of these numbers."""
        schema = self.schema(spark)
        frame = frame_of(spark, fit_rows([self.row(number) for number in numbers or (0,)], schema, "contract"), schema)
        return Batch(frame=frame if numbers else frame.where("1 = 0"), sequence=1)

    def handed_over(self, writer: Writer, checkpoint: int) -> list[Committable]:
        """What a checkpoint gets, as it comes back from a manifest."""
        items = writer.prepare(CheckpointId(checkpoint)).materialise()
        texts = [json.dumps(write_committable(item)) for item in items]
        return [read_committable(json.loads(text), "contract") for text in texts]

    def committer(self, item: Committable, filesystem: LocalFileSystem) -> Committer:
        """Whoever understands the committable, made anew as after a restart."""
        return committer(item.kind, filesystem)

    def commit(self, items: Sequence[Committable], filesystem: LocalFileSystem) -> list[CommitOutcome]:
        """Publish, with a committer that has seen nothing before."""
        return [self.committer(item, filesystem).commit(item) for item in items]

    def void(self, items: Sequence[Committable], filesystem: LocalFileSystem) -> list[CommitOutcome]:
        """See to it that they are never published."""
        return [self.committer(item, filesystem).void(item) for item in items]

    def expect(self, sink: Sink, spark: SparkSession, *numbers: int) -> None:
        """A reader sees exactly these rows."""
        assert_rows(self.visible(sink, spark), [self.row(number) for number in numbers])

    # ------------------------------------------------------------------------------------------------------- the tests

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
        """What was handed over stays valid, however many checkpoints come to nothing."""
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
        """The committable is enough; what a dead writer wrote after it was never in a checkpoint, and is never seen."""
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
        """A late commit of a zombie finds it done; voiding again is harmless; others are not touched."""
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
        """It says so, and the rows stay."""
        writer = self.open(sink, spark, filesystem)
        writer.write(self.batch(spark, 1))
        items = self.handed_over(writer, 1)
        self.commit(items, filesystem)
        assert set(self.void(items, filesystem)) == {CommitOutcome.ALREADY_DONE}
        self.expect(sink, spark, 1)

    def test_no_rows_hand_nothing_over(self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem) -> None:
        """Neither an epoch without batches, nor one whose batches had no rows."""
        writer = self.open(sink, spark, filesystem)
        assert self.handed_over(writer, 1) == []
        assert writer.write(self.batch(spark)) in (0, None)
        assert self.handed_over(writer, 2) == []

    def test_a_batch_is_written_in_one_job(self, sink: Sink, spark: SparkSession, filesystem: LocalFileSystem) -> None:
        """And the count of rows is right where it is told."""
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
        """What was handed over before can still be committed."""
        writer = self.open(sink, spark, filesystem)
        writer.write(self.batch(spark, 1))
        items = self.handed_over(writer, 1)
        writer.write(self.batch(spark, 2))
        writer.close()
        writer.close()
        self.expect(sink, spark)
        self.commit(items, filesystem)
        self.expect(sink, spark, 1)
