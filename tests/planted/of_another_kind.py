"""Planted bugs of another kind: what somebody might get wrong without having read the protocol."""

from __future__ import annotations

from dataclasses import replace

from penstock.checkpoint import log, recovery
from penstock.checkpoint.commits import CommitQueue
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import AckResult
from penstock.checkpoint.log import OwnedLog
from penstock.checkpoint.pending import AckTracker, PendingCheckpoint
from penstock.clock import MAX_WATERMARK
from penstock.elements import Batch, CheckpointKind
from penstock.handles import TaskSnapshot
from penstock.runtime.barriers import AlignedBarrierHandler
from penstock.runtime.channels import Channel
from penstock.runtime.inputs import FrozenWatermarks
from penstock.runtime.source_task import SourceTask
from penstock.runtime.task import StepTask
from penstock.runtime.task_logic import OperatorLogic, SinkLogic
from planted.bug import bug
from simulation.disk import Disk
from simulation.steps import CountOperator


@bug("acks-counted", "acknowledgements are counted, not kept as a set", core="core/test_coordinator.py")
def _(put):
    real_missing, real_classify = PendingCheckpoint.missing.fget, AckTracker.classify

    def classify(self, checkpoint, attempt, task):
        result = real_classify(self, checkpoint, attempt, task)
        if result is AckResult.DUPLICATE and self.is_pending(checkpoint):
            self.pending.counted = getattr(self.pending, "counted", 0) + 1
            return AckResult.SUCCESS
        return result

    put(AckTracker, "classify", classify)
    put(PendingCheckpoint, "missing", property(lambda self: real_missing(self)[getattr(self, "counted", 0) :]))


@bug("acks-any", "an acknowledgement of an older checkpoint counts for the pending one")
def _(put):
    put(AckTracker, "is_pending", lambda self, checkpoint: self.pending is not None)


@bug("acks-sinks", "the checkpoint does not wait for sinks")
def _(put):
    real = PendingCheckpoint.missing.fget
    put(
        PendingCheckpoint,
        "missing",
        property(lambda self: tuple(task for task in real(self) if not task.startswith("sink"))),
    )


@bug("fsync", "layers and staged files are named in the manifest without being synced")
def _(put):
    from hashlib import sha256

    from penstock.handles import FileRef

    def settle(self, path, synced=None):
        data = self._files[path]
        return FileRef(path=path, length=len(data), sha256=sha256(data).hexdigest())

    put(Disk, "settle", settle)


@bug("position-late", "a source's position is taken when it is written, not at its barrier")
def _(put):
    def barrier(self, mail, checkpoint, kind):
        self._positions[checkpoint] = self._reader.position()
        self._reading = self._reading and kind is not CheckpointKind.FINAL
        self._output.broadcast(mail)
        self._shell.snapshot(self.id, checkpoint, lambda: TaskSnapshot(task=self.id, position=self._reader.position()))

    put(SourceTask, "_barrier", barrier)


@bug("state-late", "a step's state is named when it is written, not at the barrier")
def _(put):
    def snapshot(self, checkpoint):
        return lambda marks: TaskSnapshot(
            task=self._task, state=self._operator.snapshot(checkpoint).materialise(), watermarks=marks
        )

    put(OperatorLogic, "snapshot", snapshot)


@bug("sink-late", "a sink closes its epoch when it is written, not at the barrier")
def _(put):
    def snapshot(self, checkpoint):
        return lambda marks: TaskSnapshot(
            task=self._task, watermarks=marks, committables=tuple(self._writer.prepare(checkpoint).materialise())
        )

    put(SinkLogic, "snapshot", snapshot)


@bug("no-blocking", "inputs whose barrier came are read on")
def _(put):
    put(AlignedBarrierHandler, "blocked", property(lambda self: frozenset()))


@bug("first-barrier", "a task snapshots at the first barrier")
def _(put):
    def complete(self):
        current, self._current = self._current, None
        self._arrived.clear()
        if current is None:
            return []
        self._latest = current.checkpoint
        return [process_alignment.TakeSnapshot(barrier=current)]

    from penstock.runtime import barriers as process_alignment

    put(AlignedBarrierHandler, "_complete", complete)


@bug("watermark-closed", "an input that a stop closes no longer holds event time back")
def _(put):
    real = StepTask._end

    def end(self, source):
        self._inputs.valve.end(source)
        real(self, source)

    put(StepTask, "_end", end)


@bug("watermark-late", "a snapshot holds the watermark of later batches")
def _(put):
    put(FrozenWatermarks, "values", lambda self: tuple(MAX_WATERMARK for _ in self.parts))


@bug("commit-early", "output is published when the manifest is sent, not when it is in the log")
def _(put):
    real = Coordinator._complete

    def complete(self, event):
        effects = real(self, event)
        return [*effects, *self._commits.publish(self._commits._sent)] if effects else effects

    put(Coordinator, "_complete", complete)
    put(CommitQueue, "logged", lambda self: self._sent.clear() or [])


@bug("not-logged", "output of a manifest that was not written is forgotten")
def _(put):
    real = CommitQueue.not_logged

    def not_logged(self):
        self._sent = []
        real(self)

    put(CommitQueue, "not_logged", not_logged)


@bug("channel-full", "a full channel drops a batch")
def _(put):
    real = Channel.put
    put(Channel, "put", lambda self, e: None if isinstance(e, Batch) and not self.has_room else real(self, e))


@bug("no-restore", "a restored source begins at the beginning")
def _(put):
    real = recovery.match_steps

    def match(target, steps, **rest):
        found = real(target, steps, **rest)
        return replace(found, snapshots={k: v for k, v in found.snapshots.items() if v.position is None})

    put(recovery, "match_steps", match)


@bug("layer-dropped", "a step refers only to the layer it wrote last")
def _(put):
    real = CountOperator.materialise

    def materialise(self, epoch):
        handle = real(self, epoch)
        return replace(handle, layers=handle.layers[-1:])

    put(CountOperator, "materialise", materialise)


@bug("deleted-early", "deletions are recorded as done before they are")
def _(put):
    real = log.ManifestWriter.checkpoint

    def checkpoint(self, manifest):
        self._deleted = self._log.history.tail
        return real(self, manifest)

    put(log.ManifestWriter, "checkpoint", checkpoint)


@bug(
    "fenced-cleanup",
    "a fenced process goes on trimming the log",
    note="harmless by design: what is below the floor can never be needed again",
)
def _(put):
    put(OwnedLog, "_refuse_if_fenced", lambda self: None)
