"""Planted bugs: sinks (S), checkpoints (C), and a dozen of another kind."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from penstock.checkpoint import agenda, ending, journal, pending, publication, recovery
from penstock.checkpoint.ending import Ending
from penstock.checkpoint.log import OwnedLog
from penstock.checkpoint.messages import AckResult, WriteStopped
from penstock.checkpoint.pending import Pending, RollCall
from penstock.checkpoint.publication import Publication
from penstock.checkpoint.run import Run
from penstock.elements import Batch, CheckpointKind
from penstock.handles import CommitOutcome, TaskSnapshot
from penstock.ids import END_OF_TIME
from penstock.runtime.alignment import Alignment
from penstock.runtime.channel import Channel
from penstock.runtime.inputs import FrozenWatermarks
from penstock.runtime.source_task import SourceTask
from penstock.runtime.task import StepTask
from penstock.runtime.works import OperatorWork, SinkWork
from penstock.sinks.files_commit import FilesCommitter
from planted.bug import bug
from simulation import process
from simulation.disk import Disk
from simulation.outside import EpochCommitter
from simulation.pieces import CountOperator


@bug("S1", "a commit that must be retried is overtaken by the next")
def _(put):
    real = Publication.returned

    def returned(self, uid, checkpoint, outcome, at):
        line = self._lines.get(uid)
        if outcome in {CommitOutcome.RETRY, CommitOutcome.UNKNOWN} and line is not None and len(line.items) > 1:
            line.items.rotate(-1)
            return [self._commit(line)]
        return real(self, uid, checkpoint, outcome, at)

    put(Publication, "returned", returned)


@bug("S1-unknown", "a commit of unknown outcome is taken for done")
def _(put):
    real = Publication.returned

    def returned(self, uid, checkpoint, outcome, at):
        done = CommitOutcome.DONE if outcome is CommitOutcome.UNKNOWN else outcome
        return real(self, uid, checkpoint, done, at)

    put(Publication, "returned", returned)


@bug("S2", "output prepared for an aborted checkpoint is dropped")
def _(put):
    real = Run._failed

    def failed(self, *arguments):
        self._publication._carried = []
        return real(self, *arguments)

    put(Run, "_failed", failed)


@bug("S2-late", "output of an acknowledgement that comes too late is dropped")
def _(put):
    real = Run._acknowledged

    def acknowledged(self, event):
        if not self._calls.is_pending(event.checkpoint):
            event = replace(event, snapshot=replace(event.snapshot, committables=()))
        return real(self, event)

    put(Run, "_acknowledged", acknowledged)


@bug("S3-broker", "the marker is read before fencing, and not again")
def _(put):
    def act(self, item, rows, *, void=False):
        world, key = self._world, self._key(item)
        world.sink_call("init", item.uid)
        mine = world.outside.owners[key] = world.outside.owners.get(key, 0) + 1
        if rows is None:
            return CommitOutcome.ALREADY_DONE
        world.sink_call("commit", item.uid)
        return self._apply(item, rows, mine if self._fenced else -1, void=void)

    put(EpochCommitter, "_act", act)


@bug("S3-table", "the table's epoch is checked before the commit, not by it")
def _(put):
    real = EpochCommitter._apply

    def apply(self, item, rows, mine, *, void):
        if not self._fenced:
            self._is_done, before = (lambda _: False), self._is_done
            try:
                return real(self, item, rows, mine, void=void)
            finally:
                self._is_done = before
        return real(self, item, rows, mine, void=void)

    put(EpochCommitter, "_apply", apply)


@bug("S6", "output of a sink that the pipeline no longer has is left", core="core/test_recovery.py")
def _(put):
    real = recovery.decide_recovery

    def decide(history, steps, **rest):
        found = real(history, steps, **rest)
        uids = {step.uid for step in steps}
        return replace(found, commit=tuple(item for item in found.commit if item.uid in uids))

    put(recovery, "decide_recovery", decide)
    put(process, "decide_recovery", decide)


@bug("S7", "a staged file that is gone, with no final one, is an error")
def _(put):
    real = FilesCommitter._publish

    def publish(self, item, ref, final):
        if not self._is_there(ref.path) and self._filesystem.read(final) is None:
            msg = "neither staged nor final"
            raise process.InternalError(msg)
        return real(self, item, ref, final)

    def commit(self, item, moves):
        for ref, final in moves:
            publish(self, item, ref, final)
        return CommitOutcome.DONE

    put(FilesCommitter, "_publish", publish)
    put(
        FilesCommitter,
        "commit",
        lambda self, item: commit(self, item, [(r, item.detail["moves"][r.path]) for r in item.files]),
    )


@bug(
    "C1",
    "a checkpoint begins while another is pending",
    core="core/test_coordinator.py",
    note="the roll call has one slot: the older one is given up, its output carried on",
)
def _(put):
    def following(self, event):
        if self._writing or self._is_broken or self._agenda.ending.final is not None:
            return []
        due, effects = self._agenda.next(event.at)
        return effects if due is None else [*effects, *self._trigger(event, due)]

    put(Run, "_next", following)


@bug("C1-writing", "a checkpoint begins while the manifest of another is on its way")
def _(put):
    def following(self, event):
        if self._calls.pending or self._is_broken or self._agenda.ending.final is not None:
            return []
        due, effects = self._agenda.next(event.at)
        return effects if due is None else [*effects, *self._trigger(event, due)]

    put(Run, "_next", following)


@bug("C2", "'stopped' is written while something is open")
def _(put):
    real = Ending.proceed
    put(Ending, "proceed", lambda self, still_open, wall: real(self, (), wall))


@bug("C3", "an entry does not hold the request that it fulfils", core="core/test_coordinator.py")
def _(put):
    real = Run._complete_if_all

    def complete(self, event):
        return [
            replace(e, manifest=replace(e.manifest, fulfils=())) if hasattr(e, "manifest") else e
            for e in real(self, event)
        ]

    put(Run, "_complete_if_all", complete)


@bug("C4", "sources do not wait for the first checkpoint", core="core/test_source_task.py")
def _(put):
    real = SourceTask.__init__
    put(SourceTask, "__init__", lambda self, *a, **k: real(self, *a, **{**k, "held": False}))


# ------------------------------------------------------------------------------------------------------- another kind


@bug("acks-counted", "acknowledgements are counted, not kept as a set", core="core/test_coordinator.py")
def _(put):
    real_late, real_expect = Pending.late.fget, RollCall.expect

    def expect(self, checkpoint, attempt, task):
        result = real_expect(self, checkpoint, attempt, task)
        if result is AckResult.DUPLICATE and self.is_pending(checkpoint):
            self.pending.counted = getattr(self.pending, "counted", 0) + 1
            return AckResult.SUCCESS
        return result

    put(RollCall, "expect", expect)
    put(Pending, "late", property(lambda self: real_late(self)[getattr(self, "counted", 0) :]))


@bug("acks-any", "an acknowledgement of an older checkpoint counts for the pending one")
def _(put):
    put(RollCall, "is_pending", lambda self, checkpoint: self.pending is not None)


@bug("acks-sinks", "the checkpoint does not wait for sinks")
def _(put):
    real = Pending.late.fget
    put(Pending, "late", property(lambda self: tuple(task for task in real(self) if not task.startswith("sink"))))


@bug("fsync", "layers and staged files are named in the manifest without being synced")
def _(put):
    from hashlib import sha256

    from penstock.handles import FileRef

    def settle(self, path):
        data = self._files[path]
        return FileRef(path=path, length=len(data), sha256=sha256(data).hexdigest())

    put(Disk, "settle", settle)


@bug("position-late", "a source's position is taken when it is written, not at its barrier")
def _(put):
    def barrier(self, mail, checkpoint, kind):
        self._positions[checkpoint] = self._reader.position()
        self._reading = self._reading and kind is not CheckpointKind.FINAL
        self._output.broadcast(mail)
        self._shell.capture(self.id, checkpoint, lambda: TaskSnapshot(task=self.id, position=self._reader.position()))

    put(SourceTask, "_barrier", barrier)


@bug("state-late", "a step's state is named when it is written, not at the barrier")
def _(put):
    def snapshot(self, checkpoint):
        return lambda marks: TaskSnapshot(
            task=self._task, state=self._operator.snapshot(checkpoint).materialise(), watermarks=marks
        )

    put(OperatorWork, "snapshot", snapshot)


@bug("sink-late", "a sink closes its epoch when it is written, not at the barrier")
def _(put):
    def snapshot(self, checkpoint):
        return lambda marks: TaskSnapshot(
            task=self._task, watermarks=marks, committables=tuple(self._writer.prepare(checkpoint).materialise())
        )

    put(SinkWork, "snapshot", snapshot)


@bug("no-blocking", "inputs whose barrier came are read on")
def _(put):
    put(Alignment, "blocked", property(lambda self: frozenset()))


@bug("first-barrier", "a task snapshots at the first barrier")
def _(put):
    def complete(self):
        current, self._current = self._current, None
        self._arrived.clear()
        if current is None:
            return []
        self._latest = current.checkpoint
        return [process_alignment.TakeSnapshot(barrier=current)]

    from penstock.runtime import alignment as process_alignment

    put(Alignment, "_complete", complete)


@bug("watermark-closed", "an input that a stop closes no longer holds event time back")
def _(put):
    real = StepTask._end

    def end(self, source):
        self._inputs.valve.end(source)
        real(self, source)

    put(StepTask, "_end", end)


@bug("watermark-late", "a snapshot holds the watermark of later batches")
def _(put):
    put(FrozenWatermarks, "values", lambda self: tuple(END_OF_TIME for _ in self.parts))


@bug("commit-early", "output is published when the manifest is sent, not when it is in the log")
def _(put):
    real = Run._complete_if_all

    def complete(self, event):
        effects = real(self, event)
        return [*effects, *self._publication.publish(self._publication._sent)] if effects else effects

    put(Run, "_complete_if_all", complete)
    put(Publication, "logged", lambda self: self._sent.clear() or [])


@bug("not-logged", "output of a manifest that was not written is forgotten")
def _(put):
    real = Publication.not_logged

    def not_logged(self):
        self._sent = []
        real(self)

    put(Publication, "not_logged", not_logged)


@bug("channel-full", "a full channel drops a batch")
def _(put):
    real = Channel.put
    put(Channel, "put", lambda self, e: None if isinstance(e, Batch) and not self.has_room else real(self, e))


@bug("no-restore", "a restored source begins at the beginning")
def _(put):
    real = recovery._match

    def match(target, steps, **rest):
        found = real(target, steps, **rest)
        return replace(found, snapshots={k: v for k, v in found.snapshots.items() if v.position is None})

    put(recovery, "_match", match)


@bug("layer-dropped", "a step refers only to the layer it wrote last")
def _(put):
    real = CountOperator._write

    def write(self, rows, level):
        ref = real(self, rows, level)
        self._refs = ()
        return ref

    put(CountOperator, "_write", write)


@bug("deleted-early", "deletions are recorded as done before they are", core="core/test_gc.py")
def _(put):
    real = journal.Journal.checkpoint

    def checkpoint(self, manifest):
        self._deleted = self._log.history.tail
        return real(self, manifest)

    put(journal.Journal, "checkpoint", checkpoint)


@bug(
    "fenced-cleanup",
    "a fenced process goes on cleaning up",
    note="harmless by design: what is condemned can never be needed again",
)
def _(put):
    put(OwnedLog, "_refuse_if_fenced", lambda self: None)


__all__ = ["WriteStopped", "agenda", "deque", "ending", "pending", "publication"]
