"""The three kinds of TaskLogic: a union passes batches on, an operator keeps state, a sink stages output."""

from __future__ import annotations

from collections.abc import Callable

from penstock.clock import MAX_WATERMARK, EventTime
from penstock.elements import Batch, is_empty
from penstock.errors import EngineFailed, KeptOutputLost, StateIncompatible, sentence
from penstock.failpoints import failpoint
from penstock.handles import CheckpointId, TaskSnapshot
from penstock.interfaces.operator import DeferredBatch, Operator, ProcessingTimeOperator
from penstock.interfaces.sink import CheckpointListener, SinkWriter
from penstock.runtime.channels import TaskOutput
from penstock.runtime.task import SnapshotWork


class UnionLogic:
    """Passes batches on; its snapshot has only its inputs' watermarks."""

    runs_batches = False

    def __init__(self, task: str) -> None:
        self._task = task

    def process(self, batch: Batch, *, source: int, watermark: EventTime, output: TaskOutput) -> int | None:
        """Pass the batch on, lazily."""
        del source, watermark
        output.emit(batch)
        return batch.rows

    def settle(self, wake: Callable[[], None]) -> bool:
        """Return ``True``: tasks downstream finish the batch."""
        del wake
        return True

    def advance(self, watermark: EventTime, *, output: TaskOutput) -> None:
        """Do nothing: the task forwards the watermark."""

    def tick(self, *, output: TaskOutput) -> None:
        """Do nothing in processing time."""

    def snapshot(self, checkpoint: CheckpointId) -> SnapshotWork:
        """A snapshot of the watermarks only."""
        del checkpoint
        return lambda watermarks: TaskSnapshot(task=self._task, watermarks=watermarks)

    def completed(self, checkpoint: CheckpointId) -> None:
        """Do nothing."""

    def maintain(self) -> None:
        """Do nothing."""
        return

    def close(self) -> None:
        """Do nothing."""


class OperatorLogic:
    """Runs an operator; a side branch without rows is dropped before it costs a job.

    An operator may defer a batch's job to the consumer of its results: until then the batch is kept.

    ``repeats``: after a restart, rows that the state has counted may come again (at-least-once). Then rows of sources
    that had ended are late, and that is no error.
    """

    runs_batches = True

    def __init__(self, task: str, operator: Operator, *, repeats: bool = False) -> None:
        self._task = task
        self._operator = operator
        self._repeats = repeats
        self._ticking = operator if isinstance(operator, ProcessingTimeOperator) else None
        self._deferred: tuple[Batch, DeferredBatch] | None = None
        self._waits_for_job = False

    def process(self, batch: Batch, *, source: int, watermark: EventTime, output: TaskOutput) -> int | None:
        """Process a batch in at most one job."""
        try:
            if is_empty(batch):
                batch.skip()
                return None
            self._refuse_after_end(watermark)
            deferred = self._operator.process(batch, source=source, watermark=watermark, emit=output.emit)
            if deferred is None:
                batch.settle()
            else:
                self._deferred, self._waits_for_job = (batch, deferred), False
        finally:
            if self._deferred is None:
                batch.release()
        return None

    def settle(self, wake: Callable[[], None]) -> bool:
        """Finish a batch whose job was deferred; ``False`` while no job has run its results."""
        if self._deferred is None:
            return True
        batch, deferred = self._deferred
        if not deferred.ran.settled:
            if not self._waits_for_job:
                self._waits_for_job = True
                deferred.ran.when_settled(wake)
            return False
        deferred.finish()
        batch.settle()
        self._deferred = None
        batch.release()
        return True

    def advance(self, watermark: EventTime, *, output: TaskOutput) -> EventTime | None:
        """Let the operator emit what is due."""
        return self._operator.advance(watermark, emit=output.emit)

    def tick(self, *, output: TaskOutput) -> int | None:
        """Let the operator act in processing time, if it does."""
        return self._ticking.tick(emit=output.emit) if self._ticking is not None else None

    def _refuse_after_end(self, watermark: EventTime) -> None:
        """Refuse rows after all sources ended: that closed all windows, so every row would be late."""
        if watermark == MAX_WATERMARK and not self._repeats:
            msg = (
                f"The event time of step '{self._task}' came to its end when its sources ended, and now a source that "
                "was added has rows for it, all of which would be late. Give the step another uid, or begin again "
                "with penstock run … --fresh."
            )
            raise StateIncompatible(msg, uid=self._task)

    def snapshot(self, checkpoint: CheckpointId) -> SnapshotWork:
        """A snapshot that names the layers now and makes them durable later."""
        pending = self._operator.snapshot(checkpoint)
        return lambda watermarks: TaskSnapshot(task=self._task, state=pending.materialise(), watermarks=watermarks)

    def completed(self, checkpoint: CheckpointId) -> None:
        """Notify the operator."""
        self._operator.completed(checkpoint)

    def maintain(self) -> Callable[[], None] | None:
        """Compaction, if due."""
        work = self._operator.maintain()
        return None if work is None else lambda: _then_failpoint(work)

    def close(self) -> None:
        """Free the operator's blocks, and those of a batch that is not finished."""
        deferred, self._deferred = self._deferred, None
        self._operator.close()
        if deferred is not None:
            deferred[0].release()


class SinkLogic:
    """Stages batches; at a barrier it closes the epoch, whose output is made durable on a worker.

    Each committable is handed over once: the coordinator puts those of an aborted checkpoint into the next manifest
    (rule S2 of the protocol).
    """

    runs_batches = True

    def __init__(self, task: str, writer: SinkWriter) -> None:
        self._task = task
        self._writer = writer
        self._closed = CheckpointId(-1)  # the newest epoch that was closed

    def process(self, batch: Batch, *, source: int, watermark: EventTime, output: TaskOutput) -> int | None:
        """Stage a batch in at most one job."""
        del source, watermark, output
        try:
            if is_empty(batch):
                batch.skip()
                return 0
            return self._write(batch)
        finally:
            batch.release()

    def settle(self, wake: Callable[[], None]) -> bool:
        """Return ``True``: a batch is finished when it is written."""
        del wake
        return True

    def _write(self, batch: Batch) -> int | None:
        rows = self._writer.write(batch)
        failpoint("sink.staged")
        batch.settle()
        return rows

    def advance(self, watermark: EventTime, *, output: TaskOutput) -> None:
        """Do nothing with event time."""

    def tick(self, *, output: TaskOutput) -> None:
        """Do nothing in processing time."""

    def snapshot(self, checkpoint: CheckpointId) -> SnapshotWork:
        """Close the epoch; its output is made durable later.

        If that fails, the writer adds the rows to the epoch that is open by then. If another epoch was closed in the
        meantime, that one's manifest would lack those rows, so the attempt fails.
        """
        self._closed = checkpoint
        prepared = self._writer.prepare(checkpoint)

        def make_durable(watermarks: tuple[EventTime, ...]) -> TaskSnapshot:
            try:
                items = tuple(prepared.materialise())
            except Exception as error:
                if self._closed == checkpoint or isinstance(error, KeptOutputLost):
                    raise  # a lost block ends the attempt anyway, and does not count as a failure
                raise _overtaken(checkpoint, self._closed, error) from error
            failpoint("sink.prepared")
            return TaskSnapshot(task=self._task, watermarks=watermarks, committables=items)

        return make_durable

    def completed(self, checkpoint: CheckpointId) -> None:
        """Notify a writer that holds something until then; the coordinator commits."""
        if isinstance(self._writer, CheckpointListener):
            self._writer.completed(checkpoint)

    def maintain(self) -> None:
        """Do nothing."""
        return

    def close(self) -> None:
        """Release the writer."""
        self._writer.close()


def _then_failpoint(work: Callable[[], None]) -> None:
    work()
    failpoint("state.compacted")


def _overtaken(checkpoint: CheckpointId, by: CheckpointId, error: Exception) -> EngineFailed:
    return EngineFailed(
        f"The output of checkpoint {checkpoint} could not be made durable, and the epoch of checkpoint {by} is "
        f"closed without it: {sentence(error)} The job begins again from its checkpoint."
    )
