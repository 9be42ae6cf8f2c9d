"""One run's checkpoints: how they begin, complete, fail and are published. One is pending at a time (C1). Pure.

What was sent to the log is never taken back: after :class:`WriteManifest` only the log's answer decides.
"""

from __future__ import annotations

from penstock.checkpoint.agenda import Agenda
from penstock.checkpoint.messages import (
    AbortReason,
    AckResult,
    AllSourcesDone,
    Answer,
    AnswerRequest,
    CheckpointDeadline,
    CheckpointRequested,
    CommitRetryDue,
    CommitReturned,
    DiscardSnapshot,
    Effect,
    EndJob,
    Event,
    FailJob,
    InjectBarrier,
    JobStarted,
    ManifestFailed,
    ManifestWritten,
    NotifyCompleted,
    PeriodicDue,
    ProgressMade,
    RetryDue,
    RunFailed,
    StopDeadline,
    StoppedWritten,
    StopRequested,
    TaskAcknowledged,
    TaskDeclined,
    TaskFailed,
    TimerFired,
    WakeAt,
    WriteManifest,
)
from penstock.checkpoint.pending import Pending, RollCall
from penstock.checkpoint.policy import SECOND, CoordinatorSettings, Due, Failures
from penstock.checkpoint.publication import Publication
from penstock.elements.control import CheckpointKind
from penstock.errors import CheckpointAborted, InternalError, assert_never
from penstock.ids import CheckpointId, Instant


class Run:
    """The state of one run; :class:`Coordinator` is its door."""

    def __init__(self, settings: CoordinatorSettings, start: JobStarted) -> None:
        self._settings = settings
        self._start = start
        self._calls = RollCall(start.attempts)
        self._agenda = Agenda(settings, started=start.at, initial=start.initial)
        self._agenda.is_changed = start.settled
        self._failures = Failures(settings.tolerable_failures)
        self._publication = Publication(settings.commit_backoff, settings.commit_backoff_limit)
        self._next_id = start.next_checkpoint
        self._last = start.parent
        self._writing: Pending | None = None  # its manifest is on its way to the log
        self._is_broken = False  # a task is gone: no checkpoint can complete
        self._is_over = False  # the run has ended or failed

    def begin(self) -> list[Effect]:
        """What the start of the job brings about."""
        start = self._start
        return [*self._publication.publish(start.open), *self._agenda.arm(start.at), *self._next(start)]

    def handle(self, event: Event) -> list[Effect]:
        """Take in an event."""
        if self._is_over and not isinstance(event, CheckpointRequested | StopRequested | RunFailed | JobStarted):
            return []
        effects = self._dispatch(event)
        self._is_over = self._is_over or any(isinstance(effect, EndJob | FailJob) for effect in effects)
        return effects

    def _dispatch(self, event: Event) -> list[Effect]:  # noqa: PLR0911, PLR0912 - one case an event
        match event:
            case CheckpointRequested():
                return self._requested(event)
            case StopRequested():
                return self._stop(event)
            case AllSourcesDone():
                self._agenda.ending.is_wanted = True
                return self._next(event)
            case ProgressMade():
                self._agenda.is_changed = True
                return []
            case TimerFired():
                return self._fired(event)
            case TaskAcknowledged():
                return self._acknowledged(event)
            case TaskDeclined():
                return self._declined(event)
            case TaskFailed():
                return self._task_failed(event)
            case RunFailed():
                return self._run_failed(event)
            case ManifestWritten():
                return self._written(event)
            case ManifestFailed():
                return self._not_written(event)
            case CommitReturned():
                return self._committed(event)
            case StoppedWritten():
                return self._agenda.ending.stopped()
            case JobStarted():
                msg = "the job was started before"
                raise InternalError(msg)
            case _:
                assert_never(event)

    # ------------------------------------------------------------------------------------------------------- beginning

    def _next(self, event: Event) -> list[Effect]:
        """Begin what is most urgent, if nothing is under way: the only place where a checkpoint begins (C1)."""
        if self._calls.pending or self._writing or self._is_broken or self._agenda.ending.final is not None:
            return []
        if self._publication.is_unrecorded:
            self._agenda.is_changed = True
        due, effects = self._agenda.next(event.at)
        return effects if due is None else [*effects, *self._trigger(event, due)]

    def _trigger(self, event: Event, due: Due) -> list[Effect]:
        checkpoint = self._next_id
        self._next_id = CheckpointId(checkpoint + 1)
        self._agenda.is_changed = False
        self._calls.begin(checkpoint, due, event.wall)
        drain = due.kind is CheckpointKind.FINAL and self._agenda.ending.drain()
        return [
            InjectBarrier(checkpoint=checkpoint, kind=due.kind, sources=self._start.sources, drain=drain),
            WakeAt(at=Instant(event.at + self._settings.timeout), timer=CheckpointDeadline(checkpoint=checkpoint)),
        ]

    def _requested(self, event: CheckpointRequested) -> list[Effect]:
        if self._is_over or self._is_ending or self._agenda.ending.is_drained:
            return [_refused(event.request, AbortReason.STOPPING)]
        if not self._agenda.add(event):
            return [_refused(event.request, AbortReason.TOO_MANY_REQUESTS)]
        return self._next(event)

    def _stop(self, event: StopRequested) -> list[Effect]:
        ending = self._agenda.ending
        if self._is_over or ending.is_too_late_for(event, is_begun=self._is_ending, is_sent=self._is_final_sent):
            return [_refused(event.request, AbortReason.STOPPING)]
        ending.ask(event)
        effects = self._next(event)
        if event.patience is not None:
            effects.append(WakeAt(at=Instant(event.at + event.patience), timer=StopDeadline(request=event.request)))
        return effects

    @staticmethod
    def _is_final(pending: Pending | None) -> bool:
        return pending is not None and pending.kind is CheckpointKind.FINAL

    @property
    def _is_ending(self) -> bool:
        return self._is_final(self._calls.pending) or self._is_final_sent

    @property
    def _is_final_sent(self) -> bool:
        return self._is_final(self._writing) or self._agenda.ending.final is not None

    def _fired(self, event: TimerFired) -> list[Effect]:
        match event.timer:
            case PeriodicDue() | RetryDue() as timer:
                return self._next(event) if self._agenda.fired(timer) else []
            case CheckpointDeadline(checkpoint=checkpoint):
                return self._expired(event, checkpoint)
            case CommitRetryDue() as timer:
                return self._publication.due(timer)
            case StopDeadline(request=request):
                self._agenda.ending.lose_patience(request)
                return self._agenda.ending.proceed(self._publication.open, event.wall)
            case _:
                assert_never(event.timer)

    # -------------------------------------------------------------------------------------------------- acknowledging

    def _acknowledged(self, event: TaskAcknowledged) -> list[Effect]:
        snapshot, checkpoint = event.snapshot, event.checkpoint
        if checkpoint >= self._next_id:
            msg = f"'{snapshot.task}' acknowledged checkpoint {checkpoint}, which was never begun"
            raise InternalError(msg)
        result = self._calls.expect(checkpoint, event.attempt, snapshot.task)
        if result is AckResult.DUPLICATE:
            return []
        if result is not AckResult.UNKNOWN:
            self._publication.check_order(snapshot.committables)
            self._calls.acknowledge(checkpoint, event.attempt, snapshot)
            self._publication.hand_over(snapshot.committables)
        if result is AckResult.SUCCESS:
            return self._complete_if_all(event)
        return [DiscardSnapshot(checkpoint=checkpoint, task=snapshot.task, attempt=event.attempt, result=result)]

    def _complete_if_all(self, event: Event) -> list[Effect]:
        """All have acknowledged: the manifest goes to the log, and from here on it cannot be aborted."""
        if self._calls.pending is None or self._calls.pending.late:
            return []
        pending = self._writing = self._calls.end()
        manifest = pending.manifest(
            parent=self._last,
            completed=event.wall,
            steps=self._start.steps,
            open=self._publication.send(pending.checkpoint),
            pins=self._agenda.ending.pins(pending.checkpoint, event.wall) if self._is_final(pending) else (),
            settings=self._start.settings,
        )
        return [WriteManifest(manifest=manifest)]

    # ------------------------------------------------------------------------------------------ completing, publishing

    def _written(self, event: ManifestWritten) -> list[Effect]:
        pending = self._take_writing(event.checkpoint)
        self._last = event.checkpoint
        self._failures.succeeded(event.checkpoint)
        self._agenda.completed(event.at)
        effects: list[Effect] = [NotifyCompleted(checkpoint=event.checkpoint)]
        effects += [*pending.answer(Answer.DONE, "in the log"), *self._publication.logged()]
        if pending.kind is CheckpointKind.FINAL:
            self._agenda.ending.final = event.checkpoint
            return [*effects, *self._agenda.ending.proceed(self._publication.open, event.wall)]
        return [*effects, *self._next(event)]

    def _committed(self, event: CommitReturned) -> list[Effect]:
        effects = self._publication.returned(event.uid, event.checkpoint, event.outcome, event.at)
        return [*effects, *self._agenda.ending.proceed(self._publication.open, event.wall)]

    def _take_writing(self, checkpoint: CheckpointId) -> Pending:
        writing = self._writing
        if writing is None or writing.checkpoint != checkpoint:
            msg = f"the manifest of checkpoint {checkpoint} is not being written"
            raise InternalError(msg)
        self._writing = None
        return writing

    # --------------------------------------------------------------------------------------------------------- failing

    def _expired(self, event: TimerFired, checkpoint: CheckpointId) -> list[Effect]:
        if self._calls.pending is None or not self._calls.is_pending(checkpoint):
            return []
        late = "; ".join(f"'{task}' ({event.doing.get(task, 'not known')})" for task in self._calls.pending.late)
        message = f"timed out after {self._settings.timeout / SECOND:g} s, waiting for {late}"
        return self._failed(event, self._calls.end(), AbortReason.EXPIRED, message)

    def _declined(self, event: TaskDeclined) -> list[Effect]:
        if not event.reason.is_told_by_task:
            msg = f"'{event.task}' declined with {event.reason.name}, which is not for tasks to tell"
            raise InternalError(msg)
        if not self._calls.is_pending(event.checkpoint) or not self._calls.knows(event.attempt):
            return []
        return self._failed(event, self._calls.end(), event.reason, f"'{event.task}' declined: {event.message}")

    def _task_failed(self, event: TaskFailed) -> list[Effect]:
        if not self._calls.knows(event.attempt):
            return []
        self._is_broken = True
        if self._calls.pending is None or self._calls.pending.has(event.attempt):
            return []
        message = f"'{event.task}' failed: {event.message}"
        return self._failed(event, self._calls.end(), AbortReason.TASK_FAILED, message)

    def _not_written(self, event: ManifestFailed) -> list[Effect]:
        writing = self._take_writing(event.checkpoint)
        if not event.definite:
            self._writing = writing  # it may still arrive
            message = f"whether checkpoint {event.checkpoint} is in the log is not known: {event.message}"
            return [FailJob(error=CheckpointAborted, message=message)]
        self._publication.not_logged()
        return self._failed(event, writing, AbortReason.MANIFEST_FAILED, event.message)

    def _run_failed(self, event: RunFailed) -> list[Effect]:
        """Nothing begins any more, and nobody is left without an answer; what is on its way to the log stays so."""
        self._is_over = True
        effects: list[Effect] = []
        if self._calls.pending is not None:
            effects += self._calls.end().abort(AbortReason.RUN_FAILED, event.message, self._last)
        if self._writing is not None:
            effects += self._writing.answer(Answer.UNKNOWN, event.message)
        ending, is_sent = self._agenda.ending, self._is_final(self._writing)
        self._writing = None
        effects += self._agenda.drop()
        return [*effects, *ending.cut_short(self._publication.open, event.message, is_sent=is_sent)]

    def _failed(self, event: Event, pending: Pending, reason: AbortReason, message: str) -> list[Effect]:
        checkpoint = pending.checkpoint
        effects = pending.abort(reason, message, self._last)
        if self._failures.is_too_many(checkpoint, pending.kind, reason):
            tolerated = self._settings.tolerable_failures
            text = f"checkpoint {checkpoint} failed: {message} ({tolerated} failures in a row are tolerated)"
            return [*effects, FailJob(error=CheckpointAborted, message=text)]
        return [*effects, *self._agenda.failed(event.at), *self._next(event)]


def _refused(request: str, reason: AbortReason) -> Effect:
    return AnswerRequest(request=request, answer=Answer.REFUSED, checkpoint=None, message=reason.value)
