"""The state machine: trigger, acknowledge, complete, commit, stop."""

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
    Request,
    RequestQueue,
    TriggerRequest,
)
from penstock.clock import MonotonicTime, WallTime
from penstock.elements import CheckpointKind
from penstock.errors import CheckpointAborted, InternalError, assert_never
from penstock.handles import CheckpointId, Committable, output_names

STORY: Final = 20
"""How many of the newest events an :class:`InternalError` tells."""

# ----------------------------------------------------------------------------------------------------
# How a job ends in order: the final checkpoint, everything published, a ``stopped`` entry. Pure; see C2.


class StopProgress:
    """Whether the job is to end, who asked for it, and how far it is."""

    def __init__(self) -> None:
        self.is_wanted = False
        """A final checkpoint is to be taken."""
        self.final: CheckpointId | None = None
        """The final checkpoint, once it is in the log."""
        self.is_drained = False
        """The sources have ended for good, or are about to: no checkpoint but the final one may say so."""
        self._is_impatient = False  # somebody does not wait longer for output to be published
        self._stops: list[StopRequested] = []
        self._is_writing = False

    def drain(self) -> bool:
        """The final barriers leave: whether the sources are to end first, for good."""
        self.is_drained = self.is_drained or any(stop.drain for stop in self._stops)
        return self.is_drained

    def is_too_late_for(self, stop: StopRequested, *, is_begun: bool, is_sent: bool) -> bool:
        """Whether it cannot get what it asks for any more: the final barriers have left, or its manifest is sent."""
        is_undrained = stop.drain and is_begun and not self.is_drained
        return self._is_sealed or is_undrained or (stop.name is not None and is_sent)

    @property
    def _is_sealed(self) -> bool:
        """The ``stopped`` entry is on its way: whoever asks from now on is not in it."""
        return self._is_writing

    def ask(self, stop: StopRequested) -> None:
        """Somebody asks the job to stop."""
        self.is_wanted = True
        self._stops.append(stop)

    def lose_patience(self, request: str) -> None:
        """Whoever asked does not wait longer for output to be published."""
        self._is_impatient = self._is_impatient or any(stop.request == request for stop in self._stops)

    def pins(self, checkpoint: CheckpointId, at: WallTime) -> tuple[Pin, ...]:
        """The names that the final checkpoint gets. The requests themselves are fulfilled by the ``stopped`` entry."""
        return tuple(
            Pin(name=stop.name, checkpoint=checkpoint, at=at, owner=stop.owner, request=stop.request)
            for stop in self._stops
            if stop.name is not None
        )

    def proceed(self, still_open: Iterable[Committable], wall: WallTime) -> list[Effect]:
        """What is next once the final checkpoint is in the log: wait, write ``stopped``, or give up waiting."""
        if self.final is None or self._is_writing:
            return []
        waiting = tuple(still_open)
        if not waiting:
            self._is_writing = True
            fulfils = tuple(stop.request for stop in self._stops)
            return [WriteStopped(body=Stopped(checkpoint=self.final, at=wall, fulfils=fulfils))]
        if not self._is_impatient:
            return []
        return [*self._unpublished(waiting), EndJob(published=False)]

    def stopped(self) -> list[Effect]:
        """The entry is in the log.

        Raises:
            InternalError: it was not being written.
        """
        if not self._is_writing:
            msg = "no 'stopped' entry is being written"
            raise InternalError(msg)
        return [*self._answers(RequestOutcome.DONE, "stopped, everything is published"), EndJob(published=True)]

    def cut_short(self, still_open: Iterable[Committable], message: str, *, is_sent: bool) -> list[Effect]:
        """The run has failed: whoever asked it to stop is told how far it came.

        Args:
            still_open: what the log holds and nobody has confirmed.
            message: why it failed.
            is_sent: the final checkpoint's manifest is on its way to the log.
        """
        if is_sent or self._is_writing:
            return self._answers(RequestOutcome.UNKNOWN, message)
        if self.final is None:
            return self._answers(RequestOutcome.FAILED, message)
        return self._unpublished(still_open)

    def _unpublished(self, still_open: Iterable[Committable]) -> list[Effect]:
        waiting = output_names(*still_open)
        message = f"checkpoint {self.final} is taken, not yet published: {waiting}; the next start publishes it"
        return self._answers(RequestOutcome.UNPUBLISHED, message)

    def _answers(self, answer: RequestOutcome, message: str) -> list[Effect]:
        stops, self._stops = self._stops, []
        return [
            AnswerRequest(request=stop.request, answer=answer, checkpoint=self.final, message=message) for stop in stops
        ]


# ----------------------------------------------------------------------------------------------------
# Which checkpoint is due next: requests first, then what must be, then the metronome. Pure; takes none itself.


class TriggerPolicy:
    """All reasons to take a checkpoint.

    Attributes:
        ending: whether a final one is wanted, and how far the end is.
        is_changed: something has happened since the last barriers, so that a periodic one is worth while.
    """

    def __init__(self, settings: CheckpointConfig, *, started: MonotonicTime, initial: bool) -> None:
        self.ending = StopProgress()
        self.is_changed = False
        self._settings = settings
        self._queue = RequestQueue(settings.max_queued)
        self._pace = PeriodicTrigger(settings.interval, settings.min_pause, started)
        self._is_initial_due = initial
        self._retry: MonotonicTime | None = None  # until then nothing that must be is tried again

    def add(self, event: CheckpointRequested) -> bool:
        """Somebody asks; ``False`` if too many wait already."""
        return self._queue.add(Request(request=event.request, name=event.name, owner=event.owner))

    def arm(self, at: MonotonicTime) -> list[Effect]:
        """Wait for the next tick."""
        due = self._pace.rearm(at)
        return [] if due is None else [WakeAt(at=due, timer=PeriodicDue(due=due))]

    def fired(self, timer: PeriodicDue | RetryDue) -> bool:
        """A timer fired; whether it was awaited."""
        if isinstance(timer, PeriodicDue):
            return self._pace.fired(timer.due)
        if timer.due != self._retry:
            return False
        self._retry = None
        return True

    def next(self, at: MonotonicTime) -> tuple[TriggerRequest | None, list[Effect]]:
        """What to begin if none is under way, and what to wait for."""
        request = self._queue.pop()
        if request is not None:
            kind = CheckpointKind.PERIODIC if request.name is None else CheckpointKind.SAVEPOINT
            return TriggerRequest(kind=kind, request=request), []
        if self._retry is None and self._is_initial_due:
            return TriggerRequest(kind=CheckpointKind.PERIODIC), []
        if self._retry is None and self.ending.is_wanted:
            return TriggerRequest(kind=CheckpointKind.FINAL), []
        if self._pace.is_wanted and not self._must_be_first:
            return self._periodic(at)
        return None, []

    @property
    def _must_be_first(self) -> bool:
        return self._is_initial_due or self.ending.is_wanted

    def _periodic(self, at: MonotonicTime) -> tuple[TriggerRequest | None, list[Effect]]:
        if self._settings.skip_idle and not self.is_changed:
            return None, self.arm(at)
        later = self._pace.wait_for_pause(at)
        if later is not None:
            return None, [WakeAt(at=later, timer=PeriodicDue(due=later))]
        return TriggerRequest(kind=CheckpointKind.PERIODIC), self.arm(at)

    def drop(self) -> list[Effect]:
        """No checkpoint begins any more: what waits for one of its own was not begun, and another run may take it."""
        effects: list[Effect] = []
        message = AbortReason.STOPPING.value
        while (left := self._queue.pop()) is not None:
            refused = AnswerRequest(
                request=left.request, answer=RequestOutcome.REFUSED, checkpoint=None, message=message
            )
            effects.append(refused)
        return effects

    def completed(self, at: MonotonicTime) -> None:
        """A checkpoint is in the log; whatever its kind, it serves as the first one."""
        self._is_initial_due = False
        self._pace.completed(at)

    def failed(self, at: MonotonicTime) -> list[Effect]:
        """A checkpoint came to nothing; one that must be is tried again after a pause."""
        self.is_changed = True
        if not self._must_be_first or self._retry is not None:
            return []
        self._retry = MonotonicTime(at + self._settings.retry_pause)
        return [WakeAt(at=self._retry, timer=RetryDue(due=self._retry))]


# ----------------------------------------------------------------------------------------------------
# One run's checkpoints: how they begin, complete, fail and are published. One is pending at a time (C1). Pure.
#
# What was sent to the log is never taken back: after :class:`WriteManifest` only the log's answer decides.


class Coordinator:
    """One run's checkpoints. :meth:`handle` is the only way to change it; an illegal event changes nothing.

    A run begins with :class:`RunStarted` and is over after :class:`EndJob` or :class:`FailJob`; what is reported later
    is ignored. The next run has a coordinator of its own.
    """

    _start: RunStarted

    def __init__(self, settings: CheckpointConfig) -> None:
        self._settings = settings
        self._story: deque[str] = deque(maxlen=STORY)
        self._has_begun = False
        self._is_broken = False  # a task is gone: no checkpoint can complete
        self._is_over = False  # the run has ended or failed
        self._writing: PendingCheckpoint | None = None  # its manifest is on its way to the log
        self._failures = FailureCounter(settings.tolerable_failures)
        self._publication = CommitQueue(settings.commit_backoff, settings.commit_backoff_limit)

    def handle(self, event: Event) -> list[Effect]:
        """Take in what happened; returns what is to be done about it, in order.

        Raises:
            InternalError: this cannot happen now; nothing has changed.
        """
        self._story.append(repr(event))
        try:
            return self._take(event)
        except InternalError as error:
            msg = f"{error}; the newest events:\n" + "\n".join(self._story)
            raise InternalError(msg) from error

    def _take(self, event: Event) -> list[Effect]:
        if not self._has_begun:
            if not isinstance(event, RunStarted):
                msg = "the job has not started"
                raise InternalError(msg)
            return self._begin(event)
        if self._is_over and not isinstance(event, CheckpointRequested | StopRequested | RunFailed | RunStarted):
            return []
        effects = self._dispatch(event)
        self._is_over = self._is_over or any(isinstance(effect, EndJob | FailJob) for effect in effects)
        return effects

    def _begin(self, start: RunStarted) -> list[Effect]:
        self._has_begun = True
        self._start = start
        self._calls = AckTracker(start.attempts)
        self._agenda = TriggerPolicy(self._settings, started=start.at, initial=start.initial)
        self._agenda.is_changed = start.settled
        self._next_id = start.next_checkpoint
        self._last = start.parent
        return [*self._publication.publish(start.open), *self._agenda.arm(start.at), *self._next(start)]

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
            case RunStarted():
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

    def _trigger(self, event: Event, due: TriggerRequest) -> list[Effect]:
        checkpoint = self._next_id
        self._next_id = CheckpointId(checkpoint + 1)
        self._agenda.is_changed = False
        self._calls.begin(checkpoint, due, event.wall)
        drain = due.kind is CheckpointKind.FINAL and self._agenda.ending.drain()
        return [
            InjectBarrier(checkpoint=checkpoint, kind=due.kind, sources=self._start.sources, drain=drain),
            WakeAt(
                at=MonotonicTime(event.at + self._settings.timeout), timer=CheckpointDeadline(checkpoint=checkpoint)
            ),
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
            effects.append(
                WakeAt(at=MonotonicTime(event.at + event.patience), timer=StopDeadline(request=event.request))
            )
        return effects

    @staticmethod
    def _is_final(pending: PendingCheckpoint | None) -> bool:
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
        effects += [*pending.answer(RequestOutcome.DONE, "in the log"), *self._publication.logged()]
        if pending.kind is CheckpointKind.FINAL:
            self._agenda.ending.final = event.checkpoint
            return [*effects, *self._agenda.ending.proceed(self._publication.open, event.wall)]
        return [*effects, *self._next(event)]

    def _committed(self, event: CommitReturned) -> list[Effect]:
        effects = self._publication.returned(event.uid, event.checkpoint, event.outcome, event.at)
        return [*effects, *self._agenda.ending.proceed(self._publication.open, event.wall)]

    def _take_writing(self, checkpoint: CheckpointId) -> PendingCheckpoint:
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
            effects += self._writing.answer(RequestOutcome.UNKNOWN, event.message)
        ending, is_sent = self._agenda.ending, self._is_final(self._writing)
        self._writing = None
        effects += self._agenda.drop()
        return [*effects, *ending.cut_short(self._publication.open, event.message, is_sent=is_sent)]

    def _failed(self, event: Event, pending: PendingCheckpoint, reason: AbortReason, message: str) -> list[Effect]:
        checkpoint = pending.checkpoint
        effects = pending.abort(reason, message, self._last)
        if self._failures.is_too_many(checkpoint, pending.kind, reason):
            tolerated = self._settings.tolerable_failures
            text = f"checkpoint {checkpoint} failed: {message} ({tolerated} failures in a row are tolerated)"
            return [*effects, FailJob(error=CheckpointAborted, message=text)]
        return [*effects, *self._agenda.failed(event.at), *self._next(event)]


def _refused(request: str, reason: AbortReason) -> Effect:
    return AnswerRequest(request=request, answer=RequestOutcome.REFUSED, checkpoint=None, message=reason.value)
