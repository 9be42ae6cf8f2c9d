"""What the three kinds of step do with what arrives: a union passes on, an operator keeps state, a sink stages."""

from __future__ import annotations

from collections.abc import Callable

from penstock.clock import MAX_WATERMARK, EventTime
from penstock.elements import Batch, is_empty
from penstock.errors import EngineFailed, StateIncompatible
from penstock.failpoints import failpoint
from penstock.handles import CheckpointId, TaskSnapshot
from penstock.interfaces.operator import DeferredBatch, Operator, ProcessingTimeOperator
from penstock.interfaces.sink import SinkWriter
from penstock.runtime.channels import TaskOutput
from penstock.runtime.task import SnapshotWork


class UnionLogic:
    """Passes batches on as they come; keeps nothing but its inputs' watermarks."""

    runs_batches = False

    def __init__(self, task: str) -> None:
        self._task = task

    def process(self, batch: Batch, *, source: int, watermark: EventTime, output: TaskOutput) -> int | None:
        """Pass it on, lazily."""
        del source, watermark
        output.emit(batch)
        return batch.rows

    def settle(self, wake: Callable[[], None]) -> bool:
        """Whoever receives a batch is done with it by itself."""
        del wake
        return True

    def advance(self, watermark: EventTime, *, output: TaskOutput) -> None:
        """Nothing waits for event time here."""

    def tick(self, *, output: TaskOutput) -> None:
        """Nothing waits for processing time either."""

    def snapshot(self, checkpoint: CheckpointId) -> SnapshotWork:
        """Only the watermarks."""
        del checkpoint
        return lambda watermarks: TaskSnapshot(task=self._task, watermarks=watermarks)

    def completed(self, checkpoint: CheckpointId) -> None:
        """Nothing to do."""

    def maintain(self) -> None:
        """Nothing to do."""
        return

    def close(self) -> None:
        """Nothing to do."""


class OperatorLogic:
    """Lets an operator keep state; a side batch without rows is dropped before it costs a job.

    An operator may leave a batch's job to whoever runs its results: until then the batch is kept.

    ``repeats``: after a restart rows may come again that the state has counted (at-least-once): then those of sources
    that had ended by that state's event time are late, and nothing is wrong.
    """

    runs_batches = True

    def __init__(self, task: str, operator: Operator, *, repeats: bool = False) -> None:
        self._task = task
        self._operator = operator
        self._repeats = repeats
        self._ticking = operator if isinstance(operator, ProcessingTimeOperator) else None
        self._owed: tuple[Batch, DeferredBatch] | None = None
        self._asked = False

    def process(self, batch: Batch, *, source: int, watermark: EventTime, output: TaskOutput) -> int | None:
        """One job at most."""
        try:
            if is_empty(batch):
                batch.skip()
                return None
            self._refuse_after_end(watermark)
            deferred = self._operator.process(batch, source=source, watermark=watermark, emit=output.emit)
            if deferred is None:
                batch.settle()
            else:
                self._owed, self._asked = (batch, deferred), False
        finally:
            if self._owed is None:
                batch.release()
        return None

    def settle(self, wake: Callable[[], None]) -> bool:
        """Whether a batch whose job was left to others is done; what its job told is taken in then."""
        if self._owed is None:
            return True
        batch, deferred = self._owed
        if not deferred.ran.settled:
            if not self._asked:
                self._asked = True
                deferred.ran.when_settled(wake)
            return False
        deferred.finish()
        batch.settle()
        self._owed = None
        batch.release()
        return True

    def advance(self, watermark: EventTime, *, output: TaskOutput) -> EventTime | None:
        """Emit what is due."""
        return self._operator.advance(watermark, emit=output.emit)

    def tick(self, *, output: TaskOutput) -> int | None:
        """Let an operator that keeps time act."""
        return self._ticking.tick(emit=output.emit) if self._ticking is not None else None

    def _refuse_after_end(self, watermark: EventTime) -> None:
        """Its windows were closed for ever when all its sources ended: rows of a new one would be late, every one."""
        if watermark == MAX_WATERMARK and not self._repeats:
            msg = (
                f"the event time of step '{self._task}' came to its end when its sources ended, and now a source that "
                "was added has rows for it, all of which would be late: give the step another uid, or begin again "
                "with --fresh"
            )
            raise StateIncompatible(msg, uid=self._task)

    def snapshot(self, checkpoint: CheckpointId) -> SnapshotWork:
        """Name the layers; they are made durable later."""
        pending = self._operator.snapshot(checkpoint)
        return lambda watermarks: TaskSnapshot(task=self._task, state=pending.materialise(), watermarks=watermarks)

    def completed(self, checkpoint: CheckpointId) -> None:
        """Tell the operator."""
        self._operator.completed(checkpoint)

    def maintain(self) -> Callable[[], None] | None:
        """Compaction, if due."""
        work = self._operator.maintain()
        return None if work is None else lambda: _then_failpoint(work)

    def close(self) -> None:
        """Free the operator's blocks, and those of a batch that is not done."""
        owed, self._owed = self._owed, None
        self._operator.close()
        if owed is not None:
            owed[0].release()


class SinkLogic:
    """Stages batches; at a barrier it closes the epoch and hands its output over, made durable on a worker.

    Each committable is handed over once: the coordinator carries what was prepared for an aborted checkpoint into the
    next manifest (rule S2 of the protocol).
    """

    runs_batches = True

    def __init__(self, task: str, writer: SinkWriter) -> None:
        self._task = task
        self._writer = writer
        self._closed = CheckpointId(-1)  # the newest epoch that was closed

    def process(self, batch: Batch, *, source: int, watermark: EventTime, output: TaskOutput) -> int | None:
        """One job at most."""
        del source, watermark, output
        try:
            if is_empty(batch):
                batch.skip()
                return 0
            return self._write(batch)
        finally:
            batch.release()

    def settle(self, wake: Callable[[], None]) -> bool:
        """A batch is done when it is written."""
        del wake
        return True

    def _write(self, batch: Batch) -> int | None:
        rows = self._writer.write(batch)
        failpoint("sink.staged")
        batch.settle()
        return rows

    def advance(self, watermark: EventTime, *, output: TaskOutput) -> None:
        """Nothing waits for event time here."""

    def tick(self, *, output: TaskOutput) -> None:
        """Nothing waits for processing time either."""

    def snapshot(self, checkpoint: CheckpointId) -> SnapshotWork:
        """Close the epoch; it is made durable later.

        If that fails, the writer takes its rows into the epoch that is open then. Where another was closed meanwhile,
        the manifest of that one would pass rows that it lacks: then the attempt ends.
        """
        self._closed = checkpoint
        prepared = self._writer.prepare(checkpoint)

        def capture(watermarks: tuple[EventTime, ...]) -> TaskSnapshot:
            try:
                items = tuple(prepared.materialise())
            except Exception as error:
                if self._closed == checkpoint:
                    raise
                raise _overtaken(checkpoint, self._closed, error) from error
            failpoint("sink.prepared")
            return TaskSnapshot(task=self._task, watermarks=watermarks, committables=items)

        return capture

    def completed(self, checkpoint: CheckpointId) -> None:
        """Nothing to do: the coordinator carries what is open."""

    def maintain(self) -> None:
        """Nothing to do."""
        return

    def close(self) -> None:
        """Release the writer."""
        self._writer.close()


def _then_failpoint(work: Callable[[], None]) -> None:
    work()
    failpoint("state.compacted")


def _overtaken(checkpoint: CheckpointId, by: CheckpointId, error: Exception) -> EngineFailed:
    return EngineFailed(
        f"the output of checkpoint {checkpoint} could not be made durable ({error}), and the epoch of checkpoint {by} "
        "is closed without it; the job begins again from its checkpoint"
    )
