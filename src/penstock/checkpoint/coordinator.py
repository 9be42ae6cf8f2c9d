"""The state machine of checkpoints: trigger, acknowledge, complete, commit, stop.

Events go in, effects come out (``checkpoint/events.py``); it reads no clock, starts no thread and touches no file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from penstock.checkpoint.commits import CommitQueue
from penstock.checkpoint.entries import Pin, Stopped
from penstock.checkpoint.events import (
    AbortReason,
    AckResult,
    AllSourcesDone,
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
    ManifestFailed,
    ManifestWritten,
    NotifyCompleted,
    PeriodicDue,
    ProgressMade,
    RequestOutcome,
    RetryDue,
    RunFailed,
    RunStarted,
    StopDeadline,
    StoppedWritten,
    StopRequested,
    TaskAcknowledged,
    TaskDeclined,
    TaskFailed,
    TimerFired,
    WakeAt,
    WriteManifest,
    WriteStopped,
)
from penstock.checkpoint.pending import AckTracker, PendingCheckpoint
from penstock.checkpoint.policy import (
    SECOND,
    CheckpointConfig,
    FailureCounter,
    PeriodicTrigger,
    RequestQueue,
    TriggerRequest,
)
from penstock.clock import MonotonicTime, WallTime
from penstock.elements import CheckpointKind
from penstock.errors import CheckpointAborted, InternalError, assert_never
from penstock.handles import CheckpointId, Committable, output_names

MAX_EVENTS_SHOWN: Final = 20
"""Number of newest events in the message of an ``InternalError``."""


class Coordinator:
    """The checkpoints of one run. ``handle`` is the only way to change it; an illegal event changes nothing.

    A run begins with ``RunStarted`` and is over after ``EndJob`` or ``FailJob``; later reports are
    ignored. Each run has a coordinator of its own.

    What was sent to the log is never taken back: after ``WriteManifest`` only the log's answer decides.
    """

    _run: RunStarted
    _acks: AckTracker
    _triggers: TriggerPolicy
    _next_id: CheckpointId
    _last_completed: CheckpointId | None

    def __init__(self, settings: CheckpointConfig) -> None:
        self._settings = settings
        self._newest_events: deque[str] = deque(maxlen=MAX_EVENTS_SHOWN)
        self._has_begun = False
        self._has_lost_task = False  # then no further checkpoint begins
        self._is_over = False  # the run has ended or failed
        self._writing: PendingCheckpoint | None = None  # its manifest is on its way to the log
        self._stopping = StopProgress()
        self._failures = FailureCounter(settings.tolerable_failures)
        self._commits = CommitQueue(settings.commit_backoff, settings.commit_backoff_limit)

    def handle(self, event: Event) -> list[Effect]:
        """Take in an event; returns the effects to carry out, in order.

        Raises:
            InternalError: the event cannot happen now; nothing has changed.
        """
        self._newest_events.append(repr(event))
        try:
            effects = self._handle(event)
        except InternalError as error:
            msg = f"{error} The newest events:\n" + "\n".join(self._newest_events)
            raise InternalError(msg) from error
        self._is_over = self._is_over or any(isinstance(effect, EndJob | FailJob) for effect in effects)
        return effects

    def _handle(self, event: Event) -> list[Effect]:  # noqa: PLR0911, PLR0912 - one case an event
        if not self._has_begun and not isinstance(event, RunStarted):
            msg = "The job has not started."
            raise InternalError(msg)
        if self._is_over and not isinstance(event, CheckpointRequested | StopRequested | RunFailed | RunStarted):
            return []
        match event:
            case RunStarted():
                return self._begin(event)
            case CheckpointRequested():
                return self._request(event)
            case AllSourcesDone():
                self._stopping.is_wanted = True
                return self._trigger_next(event)
            case ProgressMade():
                self._triggers.is_changed = True
                return []
            case TimerFired():
                return self._timer_fired(event)
            case TaskAcknowledged():
                return self._acknowledge(event)
            case TaskDeclined():
                return self._decline(event)
            case TaskFailed():
                return self._task_failed(event)
            case ManifestWritten():
                return self._manifest_written(event)
            case ManifestFailed():
                return self._manifest_failed(event)
            case CommitReturned():
                return self._commit_returned(event)
            case StopRequested():
                return self._stop(event)
            case StoppedWritten():
                return self._stopping.stopped()
            case RunFailed():
                return self._run_failed(event)
            case _:
                assert_never(event)

    def _begin(self, run: RunStarted) -> list[Effect]:
        if self._has_begun:
            msg = "The job was started before."
            raise InternalError(msg)
        self._has_begun = True
        self._run = run
        self._acks = AckTracker(run.attempts)
        self._triggers = TriggerPolicy(self._settings, self._stopping, started=run.at, initial=run.initial)
        self._triggers.is_changed = run.settled
        self._next_id = run.next_checkpoint
        self._last_completed = run.parent
        return [*self._commits.publish(run.open), *self._triggers.arm(run.at), *self._trigger_next(run)]

    # ---- trigger -----------------------------------------------------------------------------------------------------

    def _request(self, event: CheckpointRequested) -> list[Effect]:
        if self._is_over or self._has_final_begun or self._stopping.is_drained:
            return [_refusal(event.request, AbortReason.STOPPING)]
        if not self._triggers.queue.add(event):
            return [_refusal(event.request, AbortReason.TOO_MANY_REQUESTS)]
        return self._trigger_next(event)

    def _timer_fired(self, event: TimerFired) -> list[Effect]:
        match event.timer:
            case PeriodicDue() | RetryDue() as timer:
                return self._trigger_next(event) if self._triggers.fired(timer) else []
            case CheckpointDeadline(checkpoint=checkpoint):
                return self._expire(event, checkpoint)
            case CommitRetryDue() as timer:
                return self._commits.due(timer)
            case StopDeadline(request=request):
                self._stopping.lose_patience(request)
                return self._stopping.proceed(self._commits.open, event.wall)
            case _:
                assert_never(event.timer)

    def _trigger_next(self, event: Event) -> list[Effect]:
        """Begin the most urgent checkpoint unless one is under way: the only place where one begins (C1)."""
        if self._acks.pending or self._writing or self._has_lost_task or self._stopping.final is not None:
            return []
        if self._commits.is_unrecorded:
            self._triggers.is_changed = True
        trigger, effects = self._triggers.next(event.at)
        return effects if trigger is None else [*effects, *self._trigger(event, trigger)]

    def _trigger(self, event: Event, trigger: TriggerRequest) -> list[Effect]:
        checkpoint = self._next_id
        self._next_id = CheckpointId(checkpoint + 1)
        self._triggers.is_changed = False
        self._acks.begin(checkpoint, trigger, event.wall)
        drain = trigger.kind is CheckpointKind.FINAL and self._stopping.drain()
        deadline = MonotonicTime(event.at + self._settings.timeout)
        return [
            InjectBarrier(checkpoint=checkpoint, kind=trigger.kind, sources=self._run.sources, drain=drain),
            WakeAt(at=deadline, timer=CheckpointDeadline(checkpoint=checkpoint)),
        ]

    # ---- acknowledge -------------------------------------------------------------------------------------------------

    def _acknowledge(self, event: TaskAcknowledged) -> list[Effect]:
        snapshot, checkpoint = event.snapshot, event.checkpoint
        if checkpoint >= self._next_id:
            msg = f"'{snapshot.task}' acknowledged checkpoint {checkpoint}, which was never begun."
            raise InternalError(msg)
        result = self._acks.classify(checkpoint, event.attempt, snapshot.task)
        if result is AckResult.DUPLICATE:
            return []
        if result is not AckResult.UNKNOWN:
            self._commits.check_order(snapshot.committables)
            self._acks.acknowledge(checkpoint, event.attempt, snapshot)
            self._commits.hand_over(snapshot.committables)
        if result is AckResult.SUCCESS:
            return self._complete(event)
        return [DiscardSnapshot(checkpoint=checkpoint, task=snapshot.task, attempt=event.attempt, result=result)]

    def _decline(self, event: TaskDeclined) -> list[Effect]:
        if not event.reason.is_for_tasks:
            msg = f"'{event.task}' declined with {event.reason.name}, which is not for tasks to tell."
            raise InternalError(msg)
        if not self._acks.is_pending(event.checkpoint) or not self._acks.knows(event.attempt):
            return []
        return self._abort(event, self._acks.end(), event.reason, f"'{event.task}' declined: {event.message}")

    def _task_failed(self, event: TaskFailed) -> list[Effect]:
        if not self._acks.knows(event.attempt):
            return []
        self._has_lost_task = True
        if self._acks.pending is None or self._acks.pending.has_acknowledged(event.attempt):
            return []
        message = f"'{event.task}' failed: {event.message}"
        return self._abort(event, self._acks.end(), AbortReason.TASK_FAILED, message)

    def _expire(self, event: TimerFired, checkpoint: CheckpointId) -> list[Effect]:
        if self._acks.pending is None or not self._acks.is_pending(checkpoint):
            return []
        missing = "; ".join(f"'{task}' ({event.doing.get(task, 'not known')})" for task in self._acks.pending.missing)
        message = f"timed out after {self._settings.timeout / SECOND:g} s, waiting for {missing}"
        return self._abort(event, self._acks.end(), AbortReason.EXPIRED, message)

    def _abort(self, event: Event, pending: PendingCheckpoint, reason: AbortReason, message: str) -> list[Effect]:
        checkpoint = pending.checkpoint
        effects = pending.abort(reason, message, self._last_completed)
        if self._failures.is_too_many(checkpoint, pending.kind, reason):
            tolerated = self._settings.tolerable_failures
            text = f"checkpoint {checkpoint} failed: {message} ({tolerated} failures in a row are tolerated)"
            return [*effects, FailJob(error=CheckpointAborted, message=text)]
        return [*effects, *self._triggers.failed(event.at), *self._trigger_next(event)]

    # ---- complete ----------------------------------------------------------------------------------------------------

    def _complete(self, event: Event) -> list[Effect]:
        """Send the manifest to the log once all tasks have acknowledged; from here on it cannot be aborted."""
        if self._acks.pending is None or self._acks.pending.missing:
            return []
        pending = self._writing = self._acks.end()
        manifest = pending.manifest(
            parent=self._last_completed,
            completed=event.wall,
            steps=self._run.steps,
            open=self._commits.send(pending.checkpoint),
            pins=self._stopping.pins(pending.checkpoint, event.wall) if _is_final(pending) else (),
            settings=self._run.settings,
        )
        return [WriteManifest(manifest=manifest)]

    def _manifest_written(self, event: ManifestWritten) -> list[Effect]:
        written = self._take_writing(event.checkpoint)
        self._last_completed = event.checkpoint
        self._failures.succeeded(event.checkpoint)
        self._triggers.completed(event.at)
        effects: list[Effect] = [NotifyCompleted(checkpoint=event.checkpoint)]
        effects += [*written.answer(RequestOutcome.DONE, "in the log"), *self._commits.logged()]
        if _is_final(written):
            self._stopping.final = event.checkpoint
            return [*effects, *self._stopping.proceed(self._commits.open, event.wall)]
        return [*effects, *self._trigger_next(event)]

    def _manifest_failed(self, event: ManifestFailed) -> list[Effect]:
        writing = self._take_writing(event.checkpoint)
        if not event.definite:
            self._writing = writing  # it may still arrive
            message = f"Whether checkpoint {event.checkpoint} is in the log is not known: {event.message}"
            return [FailJob(error=CheckpointAborted, message=message)]
        self._commits.not_logged()
        return self._abort(event, writing, AbortReason.MANIFEST_FAILED, event.message)

    def _take_writing(self, checkpoint: CheckpointId) -> PendingCheckpoint:
        writing = self._writing
        if writing is None or writing.checkpoint != checkpoint:
            msg = f"The manifest of checkpoint {checkpoint} is not being written."
            raise InternalError(msg)
        self._writing = None
        return writing

    # ---- commit ------------------------------------------------------------------------------------------------------

    def _commit_returned(self, event: CommitReturned) -> list[Effect]:
        effects = self._commits.record_outcome(event)
        return [*effects, *self._stopping.proceed(self._commits.open, event.wall)]

    # ---- stop --------------------------------------------------------------------------------------------------------

    def _stop(self, event: StopRequested) -> list[Effect]:
        if self._is_over or self._stopping.is_too_late_for(
            event, has_begun=self._has_final_begun, is_sent=self._is_final_sent
        ):
            return [_refusal(event.request, AbortReason.STOPPING)]
        self._stopping.add(event)
        effects = self._trigger_next(event)
        if event.patience is not None:
            deadline = MonotonicTime(event.at + event.patience)
            effects.append(WakeAt(at=deadline, timer=StopDeadline(request=event.request)))
        return effects

    @property
    def _has_final_begun(self) -> bool:
        return _is_final(self._acks.pending) or self._is_final_sent

    @property
    def _is_final_sent(self) -> bool:
        return _is_final(self._writing) or self._stopping.final is not None

    def _run_failed(self, event: RunFailed) -> list[Effect]:
        """Answer every request. No checkpoint begins any more; a manifest on its way to the log may still arrive."""
        self._is_over = True
        effects: list[Effect] = []
        if self._acks.pending is not None:
            effects += self._acks.end().abort(AbortReason.RUN_FAILED, event.message, self._last_completed)
        if self._writing is not None:
            effects += self._writing.answer(RequestOutcome.UNKNOWN, event.message)
        is_sent, self._writing = _is_final(self._writing), None
        effects += self._triggers.refuse_all()
        return [*effects, *self._stopping.run_failed(self._commits.open, event.message, is_sent=is_sent)]


def _is_final(checkpoint: PendingCheckpoint | None) -> bool:
    return checkpoint is not None and checkpoint.kind is CheckpointKind.FINAL


def _refusal(request: str, reason: AbortReason) -> Effect:
    return AnswerRequest(request=request, outcome=RequestOutcome.REFUSED, message=reason.value)


# ---- which checkpoint is due next ------------------------------------------------------------------------------------


class TriggerPolicy:
    """All reasons to take a checkpoint: requests first, then the initial or final one, then the periodic ones.

    Attributes:
        queue: the requests that wait.
        is_changed: something has happened since the last barriers, so that a periodic one is worth while.
    """

    def __init__(
        self, settings: CheckpointConfig, stopping: StopProgress, *, started: MonotonicTime, initial: bool
    ) -> None:
        self.queue = RequestQueue(settings.max_queued)
        self.is_changed = False
        self._settings = settings
        self._stopping = stopping
        self._periodic = PeriodicTrigger(settings.interval, settings.min_pause, started)
        self._is_initial_due = initial
        self._retry: MonotonicTime | None = None  # no mandatory checkpoint is tried again before

    def arm(self, at: MonotonicTime) -> list[Effect]:
        """Wait for the next tick."""
        due = self._periodic.rearm(at)
        return [] if due is None else [WakeAt(at=due, timer=PeriodicDue(due=due))]

    def fired(self, timer: PeriodicDue | RetryDue) -> bool:
        """A timer fired; returns whether it was awaited."""
        if isinstance(timer, PeriodicDue):
            return self._periodic.fired(timer.due)
        if timer.due != self._retry:
            return False
        self._retry = None
        return True

    def next(self, at: MonotonicTime) -> tuple[TriggerRequest | None, list[Effect]]:
        """What to begin if no checkpoint is under way, and the timers to wait for."""
        request = self.queue.pop()
        if request is not None:
            kind = CheckpointKind.PERIODIC if request.name is None else CheckpointKind.SAVEPOINT
            return TriggerRequest(kind=kind, request=request), []
        if self._retry is None and self._is_initial_due:
            return TriggerRequest(kind=CheckpointKind.PERIODIC), []
        if self._retry is None and self._stopping.is_wanted:
            return TriggerRequest(kind=CheckpointKind.FINAL), []
        if self._periodic.is_wanted and not self._is_mandatory_due:
            return self._next_periodic(at)
        return None, []

    @property
    def _is_mandatory_due(self) -> bool:
        return self._is_initial_due or self._stopping.is_wanted

    def _next_periodic(self, at: MonotonicTime) -> tuple[TriggerRequest | None, list[Effect]]:
        if self._settings.skip_idle and not self.is_changed:
            return None, self.arm(at)
        later = self._periodic.wait_for_pause(at)
        if later is not None:
            return None, [WakeAt(at=later, timer=PeriodicDue(due=later))]
        return TriggerRequest(kind=CheckpointKind.PERIODIC), self.arm(at)

    def refuse_all(self) -> list[Effect]:
        """Refuse the queued requests: none of them was begun, so another run may take them."""
        effects: list[Effect] = []
        while (request := self.queue.pop()) is not None:
            effects.append(_refusal(request.request, AbortReason.STOPPING))
        return effects

    def completed(self, at: MonotonicTime) -> None:
        """A checkpoint is in the log; whatever its kind, it serves as the initial one."""
        self._is_initial_due = False
        self._periodic.completed(at)

    def failed(self, at: MonotonicTime) -> list[Effect]:
        """A checkpoint was aborted; a mandatory one is tried again after a pause."""
        self.is_changed = True
        if not self._is_mandatory_due or self._retry is not None:
            return []
        self._retry = MonotonicTime(at + self._settings.retry_pause)
        return [WakeAt(at=self._retry, timer=RetryDue(due=self._retry))]


# ---- how a job stops: final checkpoint, everything published, ``stopped`` entry (C2) ---------------------------------


class StopProgress:
    """The stop requests, and how far the stop is.

    Attributes:
        is_wanted: a final checkpoint is to be taken.
        final: the final checkpoint, once it is in the log.
        is_drained: the sources have ended for good, or are about to; then only the final checkpoint may record it.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self.final: CheckpointId | None = None
        self.is_drained = False
        self._is_impatient = False  # a requester does not wait longer for output to be published
        self._stops: list[StopRequested] = []
        self._is_writing = False

    def drain(self) -> bool:
        """The final barriers leave; returns whether the sources are to end first, for good."""
        self.is_drained = self.is_drained or any(stop.drain for stop in self._stops)
        return self.is_drained

    def is_too_late_for(self, stop: StopRequested, *, has_begun: bool, is_sent: bool) -> bool:
        """Whether the stop cannot get what it asks for any more.

        Args:
            stop: the request.
            has_begun: the final barriers have left, too late to drain.
            is_sent: the final manifest is on its way to the log or in it, too late to get a name.
        """
        is_undrained = stop.drain and has_begun and not self.is_drained
        return self._is_sealed or is_undrained or (stop.name is not None and is_sent)

    @property
    def _is_sealed(self) -> bool:
        """Whether the ``stopped`` entry is on its way: it fulfils no later request."""
        return self._is_writing

    def add(self, stop: StopRequested) -> None:
        """Take a request in."""
        self.is_wanted = True
        self._stops.append(stop)

    def lose_patience(self, request: str) -> None:
        """The requester does not wait longer for output to be published."""
        self._is_impatient = self._is_impatient or any(stop.request == request for stop in self._stops)

    def pins(self, checkpoint: CheckpointId, at: WallTime) -> tuple[Pin, ...]:
        """The names that the final checkpoint gets. The requests themselves are fulfilled by the ``stopped`` entry."""
        return tuple(
            Pin(name=stop.name, checkpoint=checkpoint, at=at, owner=stop.owner, request=stop.request)
            for stop in self._stops
            if stop.name is not None
        )

    def proceed(self, still_open: Iterable[Committable], wall: WallTime) -> list[Effect]:
        """What follows once the final checkpoint is in the log: wait, write ``stopped``, or give up waiting."""
        if self.final is None or self._is_writing:
            return []
        waiting = tuple(still_open)
        if not waiting:
            self._is_writing = True
            fulfils = tuple(stop.request for stop in self._stops)
            return [WriteStopped(body=Stopped(checkpoint=self.final, at=wall, fulfils=fulfils))]
        if not self._is_impatient:
            return []
        return [*self._answer_unpublished(waiting), EndJob(published=False)]

    def stopped(self) -> list[Effect]:
        """The ``stopped`` entry is in the log.

        Raises:
            InternalError: it was not being written.
        """
        if not self._is_writing:
            msg = "No 'stopped' entry is being written."
            raise InternalError(msg)
        return [*self._answer_all(RequestOutcome.DONE, "stopped, everything is published"), EndJob(published=True)]

    def run_failed(self, still_open: Iterable[Committable], message: str, *, is_sent: bool) -> list[Effect]:
        """The run has failed: answer every stop with how far it came.

        Args:
            still_open: output in the log that is not confirmed.
            message: why the run failed.
            is_sent: the final checkpoint's manifest is on its way to the log.
        """
        if is_sent or self._is_writing:
            return self._answer_all(RequestOutcome.UNKNOWN, message)
        if self.final is None:
            return self._answer_all(RequestOutcome.FAILED, message)
        return self._answer_unpublished(still_open)

    def _answer_unpublished(self, still_open: Iterable[Committable]) -> list[Effect]:
        waiting = output_names(*still_open)
        message = f"Checkpoint {self.final} is taken, not yet published: {waiting}. The next start publishes it."
        return self._answer_all(RequestOutcome.UNPUBLISHED, message)

    def _answer_all(self, outcome: RequestOutcome, message: str) -> list[Effect]:
        stops, self._stops = self._stops, []
        return [
            AnswerRequest(request=stop.request, outcome=outcome, checkpoint=self.final, message=message)
            for stop in stops
        ]
