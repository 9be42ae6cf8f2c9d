"""A coordinator under test, moved by hand, and builders of the effects that its tests compare with."""

from core.checkpoint_values import STEPS, read_to, wrote
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.entries import Manifest, Stopped
from penstock.checkpoint.events import (
    AbortCheckpoint,
    AbortReason,
    AckResult,
    AnswerRequest,
    CheckpointDeadline,
    CheckpointRequested,
    Commit,
    CommitReturned,
    DiscardSnapshot,
    InjectBarrier,
    ManifestFailed,
    ManifestWritten,
    PeriodicDue,
    RunFailed,
    RunStarted,
    StopRequested,
    TaskAcknowledged,
    TaskDeclined,
    TaskFailed,
    TimerFired,
    WakeAt,
    WriteManifest,
    WriteStopped,
)
from penstock.checkpoint.policy import CheckpointConfig
from penstock.elements import CheckpointKind
from penstock.handles import CommitOutcome

SECOND = 1_000_000
PERIODIC, SAVEPOINT, FINAL = CheckpointKind.PERIODIC, CheckpointKind.SAVEPOINT, CheckpointKind.FINAL
DONE, RETRY, UNKNOWN = CommitOutcome.DONE, CommitOutcome.RETRY, CommitOutcome.UNKNOWN


class Job:
    """A coordinator under test: one source, one sink; time in seconds, moved by hand."""

    def __init__(self, *, start=True, open=(), parent=None, next_checkpoint=0, initial=False, **settings):
        settings = {"interval": None, "timeout": 60 * SECOND, "skip_idle": False, **settings}
        self.coordinator = Coordinator(CheckpointConfig(**settings))
        self.at = 0
        self.started = ()
        if start:
            self.started = self.start(open=open, parent=parent, next_checkpoint=next_checkpoint, initial=initial)

    def tell(self, event, **fields):
        return self.coordinator.handle(event(at=round(self.at * SECOND), wall=self.wall, **fields))

    @property
    def wall(self):
        return round(1_000 * SECOND + self.at * SECOND)

    def start(self, **fields):
        return self.tell(RunStarted, attempts={"in": "in-1", "out": "out-1"}, sources=("in",), steps=STEPS, **fields)

    def ack_source(self, checkpoint, offset=None):
        snapshot = read_to(checkpoint if offset is None else offset)
        return self.tell(TaskAcknowledged, checkpoint=checkpoint, attempt="in-1", snapshot=snapshot)

    def ack_sink(self, checkpoint, *items):
        return self.tell(TaskAcknowledged, checkpoint=checkpoint, attempt="out-1", snapshot=wrote(*items))

    def ack(self, checkpoint, *items):
        assert self.ack_source(checkpoint) == []
        return self.ack_sink(checkpoint, *items)

    def written(self, checkpoint):
        return self.tell(ManifestWritten, checkpoint=checkpoint, entry=checkpoint + 1)

    def complete(self, checkpoint, *items):
        [write] = self.ack(checkpoint, *items)
        assert write.manifest.checkpoint == checkpoint
        return self.written(checkpoint)

    def request(self, request="r", name=None, **rest):
        return self.tell(CheckpointRequested, request=request, name=name, **rest)

    def stop(self, request="s", **rest):
        return self.tell(StopRequested, request=request, **rest)

    def fire(self, timer, **doing):
        return self.tell(TimerFired, timer=timer, doing=doing)

    def expire(self, checkpoint, **doing):
        return self.fire(CheckpointDeadline(checkpoint=checkpoint), **doing)

    def decline(self, checkpoint, reason=AbortReason.DECLINED, *, task="out", attempt="out-1"):
        return self.tell(TaskDeclined, checkpoint=checkpoint, task=task, attempt=attempt, reason=reason, message="no")

    def not_written(self, checkpoint, message="disk full", *, definite=True):
        return self.tell(ManifestFailed, checkpoint=checkpoint, definite=definite, message=message)

    def lose(self, task, message="boom"):
        return self.tell(TaskFailed, task=task, attempt=f"{task}-1", message=message)

    def fails(self, message="boom"):
        return self.tell(RunFailed, message=message)

    def returned(self, checkpoint, outcome=DONE, uid="out"):
        return self.tell(CommitReturned, uid=uid, checkpoint=checkpoint, outcome=outcome)

    def manifest(self, checkpoint, *open, parent=None, kind=PERIODIC, triggered=None, **rest):
        return WriteManifest(
            manifest=Manifest(
                checkpoint=checkpoint,
                kind=kind,
                parent=parent,
                triggered=self.wall if triggered is None else triggered,
                completed=self.wall,
                steps=STEPS,
                tasks=(read_to(checkpoint), wrote()),
                open=open,
                **rest,
            )
        )


def barrier(checkpoint, kind=PERIODIC, *, at=0, timeout=60):
    return [
        InjectBarrier(checkpoint=checkpoint, kind=kind, sources=("in",)),
        WakeAt(at=round((at + timeout) * SECOND), timer=CheckpointDeadline(checkpoint=checkpoint)),
    ]


def tick(at):
    return PeriodicDue(due=round(at * SECOND))


def wake_tick(at):
    return WakeAt(at=round(at * SECOND), timer=tick(at))


def aborted(checkpoint, reason, message, last=None):
    return AbortCheckpoint(checkpoint=checkpoint, reason=reason, message=message, last_completed=last)


def answer(request, kind, checkpoint, message):
    return AnswerRequest(request=request, outcome=kind, checkpoint=checkpoint, message=message)


def discarded(checkpoint, task, attempt, result=AckResult.DISCARDED):
    return DiscardSnapshot(checkpoint=checkpoint, task=task, attempt=attempt, result=result)


def commit(item, attempt=1):
    return Commit(item=item, attempt=attempt)


def stopped(job, checkpoint, *requests):
    return WriteStopped(body=Stopped(checkpoint=checkpoint, at=job.wall, fulfils=requests))
