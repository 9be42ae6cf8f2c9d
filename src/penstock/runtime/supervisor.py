"""Feeds the coordinator, carries out its effects, reports outcomes."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.checkpoint.entries import Manifest, Stopped
from penstock.checkpoint.events import (
    AbortCheckpoint,
    AbortReason,
    AllSourcesDone,
    AnswerRequest,
    AttemptId,
    CheckpointRequested,
    Commit,
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
    ProgressMade,
    RequestOutcome,
    RunFailed,
    StoppedWritten,
    StopRequested,
    TaskAcknowledged,
    TaskDeclined,
    TaskFailed,
    Timer,
    TimerFired,
    WakeAt,
    WriteManifest,
    WriteStopped,
)
from penstock.clock import MAX_WAIT, Clock, MonotonicTime
from penstock.elements import Barrier, CancelBarrier
from penstock.errors import (
    CheckpointAborted,
    CheckpointError,
    CommitFailed,
    GenerationFenced,
    PenstockError,
    StorageFailed,
    assert_never,
)
from penstock.facts import (
    BatchDone,
    BatchRead,
    CheckpointCompleted,
    CheckpointFailed,
    Fact,
    Listener,
    Published,
    WatermarkAdvanced,
)
from penstock.failpoints import failpoint
from penstock.handles import CheckpointId, CommitOutcome, Committable, TaskSnapshot
from penstock.runtime.executors import AttemptParts
from penstock.runtime.source_task import Drain, Finish, SourceMail, SourceTask
from penstock.runtime.task import Completed

# ----------------------------------------------------------------------------------------------------
# What waits for the deciding thread: events in the order they came, and alarms by time. Decides nothing.

CAPACITY = 10_000
"""Events that may wait for the deciding thread; who would put in more waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed:
    """A task or worker failed; ends the attempt."""

    owner: str
    error: BaseException


RequestEvent: TypeAlias = CheckpointRequested | StopRequested
"""Somebody waits for its answer."""
MailItem: TypeAlias = "Event | WorkerFailed | Callable[[], None]"


@dataclass(order=True, slots=True)
class _Alarm:
    at: MonotonicTime
    order: int
    timer: Timer = field(compare=False)


class Mailbox:
    """Filled from any thread; the alarms belong to the deciding one."""

    def __init__(self) -> None:
        self._items: queue.Queue[MailItem] = queue.Queue(CAPACITY)
        self._alarms: list[_Alarm] = []
        self._order = itertools.count()

    def put(self, item: MailItem) -> None:
        """Hand in."""
        self._items.put(item)

    def take(self, seconds: float | None = 0.0) -> MailItem | None:
        """The next item, waited for at most so long (``None``: for ever); ``None`` if there is none."""
        try:
            return self._items.get_nowait() if seconds == 0 else self._items.get(timeout=seconds)
        except queue.Empty:
            return None

    def drain(self) -> Iterator[MailItem]:
        """Take out all that waits, from any thread."""
        while (item := self.take()) is not None:
            yield item

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, alarms apart."""
        return self._items.empty()

    def set_alarm(self, at: MonotonicTime, timer: Timer) -> None:
        """Ask for the timer at this instant."""
        heapq.heappush(self._alarms, _Alarm(at, next(self._order), timer))

    @property
    def next_alarm(self) -> MonotonicTime | None:
        """When the first alarm is due."""
        return self._alarms[0].at if self._alarms else None

    def due(self, now: MonotonicTime) -> Timer | None:
        """Take out the first alarm that is due, if one is."""
        if self._alarms and self._alarms[0].at <= now:
            return heapq.heappop(self._alarms).timer
        return None


# ----------------------------------------------------------------------------------------------------
# Tells whoever asked something of an attempt how it ended. Decides nothing but what is too late.

log = logging.getLogger("penstock")


class Answers:
    """The way back to those who asked; may be used from any thread."""

    def __init__(self, answered: Callable[[AnswerRequest], None]) -> None:
        self._answered = answered

    def tell(self, answer: AnswerRequest) -> None:
        """Who cannot be told fails nothing: neither the job nor what others are told."""
        try:
            self._answered(answer)
        except Exception:
            log.warning("request %s may not have got its answer", answer.request, exc_info=True)

    def refuse(self, items: Iterable[MailItem]) -> None:
        """Nobody will take these in any more."""
        message = AbortReason.STOPPING.value
        for item in items:
            if isinstance(item, RequestEvent):
                self.tell(
                    AnswerRequest(request=item.request, answer=RequestOutcome.REFUSED, checkpoint=None, message=message)
                )


# ----------------------------------------------------------------------------------------------------
# What workers do for an attempt: snapshots, entries, commits, clean-up. Each reports its end as an event.


class Errands:
    """The errands of one attempt. Methods return at once; the work itself runs on the attempt's workers."""

    def __init__(
        self,
        wiring: AttemptParts,
        attempts: Mapping[str, AttemptId],
        *,
        clock: Clock,
        listener: Listener,
        put: Callable[[Event], None],
    ) -> None:
        self._wiring = wiring
        self._attempts = attempts
        self._clock = clock
        self._listener = listener
        self._put = put
        self._known_files: set[str] = set()

    def capture(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
        """Make a snapshot durable on the task's worker, then acknowledge.

        Storage that refuses fails the checkpoint, which may be tolerated; any other failure fails the attempt.
        """
        self._wiring.workers.submit(f"{task}-snapshot", lambda: self._capture(task, checkpoint, work))

    def _capture(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
        try:
            with self._wiring.snapshot():
                snapshot = work()
        except Exception as error:
            told = self._wiring.explain(error)
            if not isinstance(told, CheckpointAborted | StorageFailed):
                raise
            is_storage = isinstance(told, StorageFailed)
            reason = AbortReason.SNAPSHOT_FAILED if is_storage else AbortReason.TASK_NOT_READY
            self.decline(task, checkpoint, reason, str(told))
            return
        self._put(
            TaskAcknowledged(
                at=self._clock.now(),
                wall=self._clock.wall(),
                checkpoint=checkpoint,
                attempt=self._attempts[task],
                snapshot=snapshot,
            )
        )

    def decline(self, task: str, checkpoint: CheckpointId, reason: AbortReason, message: str) -> None:
        """A task will not take part in this checkpoint."""
        self._put(
            TaskDeclined(
                at=self._clock.now(),
                wall=self._clock.wall(),
                checkpoint=checkpoint,
                task=task,
                attempt=self._attempts[task],
                reason=reason,
                message=message,
            )
        )

    def manifest(self, manifest: Manifest) -> None:
        """Write a manifest: the commit point."""
        self._wiring.workers.submit("log", lambda: self._manifest(manifest))

    def stopped(self, body: Stopped) -> None:
        """Write the entry of an orderly end."""
        self._wiring.workers.submit("log", lambda: self._stopped(body))

    def commit(self, item: Committable) -> None:
        """Publish."""
        self._wiring.workers.submit(f"{item.uid}-commit", lambda: self._commit(item))

    def _manifest(self, manifest: Manifest) -> None:
        try:
            entry = self._wiring.journal.checkpoint(manifest)
        except GenerationFenced:
            raise
        except CheckpointError as error:
            self._put(
                ManifestFailed(
                    at=self._clock.now(),
                    wall=self._clock.wall(),
                    checkpoint=manifest.checkpoint,
                    definite=True,
                    message=str(error),
                )
            )
            return
        self._tell_completed(manifest)
        self._put(
            ManifestWritten(at=self._clock.now(), wall=self._clock.wall(), checkpoint=manifest.checkpoint, entry=entry)
        )
        self._wiring.workers.submit("clean-up", self._clean)

    def _tell_completed(self, manifest: Manifest) -> None:
        files = manifest.files
        written = sum(file.length for file in files if file.path not in self._known_files)
        self._known_files = {file.path for file in files}
        self._listener(
            CheckpointCompleted(
                checkpoint=manifest.checkpoint,
                kind=manifest.kind.value,
                duration_ms=(manifest.completed - manifest.triggered) / 1_000,
                bytes=written,
                committables=sum(item.checkpoint == manifest.checkpoint for item in manifest.open),
            )
        )

    def _clean(self) -> None:
        with self._wiring.background():
            self._wiring.journal.clean()

    def _stopped(self, body: Stopped) -> None:
        entry = self._wiring.journal.stopped(body)
        self._put(StoppedWritten(at=self._clock.now(), wall=self._clock.wall(), entry=entry))

    def _commit(self, item: Committable) -> None:
        failpoint("sink.commit.before")
        message = ""
        try:
            outcome = self._wiring.publish(item)
        except CommitFailed as error:
            outcome, message = CommitOutcome.RETRY, str(error)
        failpoint("sink.published")
        self._listener(Published(task=item.uid, checkpoint=item.checkpoint, outcome=outcome.value, message=message))
        self._put(
            CommitReturned(
                at=self._clock.now(),
                wall=self._clock.wall(),
                uid=item.uid,
                checkpoint=item.checkpoint,
                outcome=outcome,
                message=message,
            )
        )


# ----------------------------------------------------------------------------------------------------
# Hands mail to tasks and wakes them. Decides nothing.


class Mail:
    """The letter boxes of one attempt's tasks. What is posted is read between two elements."""

    def __init__(self, wiring: AttemptParts) -> None:
        self._wiring = wiring

    def to_sources(self, mail: SourceMail, sources: tuple[str, ...]) -> None:
        """For these sources, which pass it on."""
        for id in sources:
            task = self._wiring.tasks[id]
            if isinstance(task, SourceTask):
                task.post(mail)
                self._wiring.threads[id].wake()

    def inject(self, effect: InjectBarrier) -> None:
        """The barrier, behind the end of all reading where the sources are drained."""
        if effect.drain:
            self.to_sources(Drain(), effect.sources)
        self.to_sources(Barrier(checkpoint=effect.checkpoint, kind=effect.kind), effect.sources)

    def to_all(self, mail: Completed) -> None:
        """For every task."""
        for id, task in self._wiring.tasks.items():
            task.post(mail)
            self._wiring.threads[id].wake()


# ----------------------------------------------------------------------------------------------------
# The shell of one attempt: feeds the coordinator, carries out its effects, reports every outcome as an event.
#
# One thread decides: the one that calls :meth:`Supervisor.run`, or whoever calls :meth:`Supervisor.turn` instead. Tasks
# and workers only put events into its inbox. It reads the clock and holds the threads, so that the coordinator needs
# neither; whether there are threads at all, it does not know.

ORDERLY_END = 5.0
"""Seconds that tasks get to pass the end of the stream on, once everything is published."""


class Supervisor:
    """Runs one attempt of a job, from its first barrier to its end. Also the shell that tasks talk to."""

    def __init__(self, clock: Clock, listener: Listener) -> None:
        self._clock = clock
        self._listener = listener
        self._inbox = Mailbox()
        self._waiting_sources: set[str] = set()
        self._unfinished: set[str] = set()
        self._is_over = False
        self._attempts: Mapping[str, AttemptId] = {}
        self._wiring: AttemptParts
        self._errands: Errands
        self._mail: Mail
        self._answers: Answers
        self.ended: EndJob | None = None
        """How the job ended, once it has."""

    # ------------------------------------------------------------------------------------------- what tasks may ask

    def snapshot(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
        """Make a snapshot durable on the task's worker, then acknowledge."""
        self._errands.capture(task, checkpoint, work)

    def abandoned(self, task: str, checkpoint: CheckpointId) -> None:
        """A cancel barrier, or a newer one, came; the coordinator knows already unless it was the latter."""
        message = "its barrier was cancelled or overtaken"
        self._errands.decline(task, checkpoint, AbortReason.TASK_NOT_READY, message)

    def source_done(self, task: str, *, ended: bool) -> None:
        """When the last one is done, the final checkpoint is due."""
        del ended

        def note() -> None:
            self._waiting_sources.discard(task)
            if not self._waiting_sources and self.ended is None:
                self._handle(AllSourcesDone(at=self._clock.now(), wall=self._clock.wall()))

        self._inbox.put(note)

    def maintain(self, task: str, work: Callable[[], None]) -> None:
        """Compaction and the like; what it has changed is worth a checkpoint, which lets go of what it replaced."""

        def run() -> None:
            work()
            self._progressed()

        self._wiring.workers.submit(f"{task}-maintenance", run)

    def report(self, fact: Fact) -> None:
        """Tell observers; for the coordinator whatever moves state or output is progress."""
        self._listener(fact)
        if isinstance(fact, BatchRead | BatchDone | WatermarkAdvanced):
            self._progressed()

    def _progressed(self) -> None:
        self._inbox.put(ProgressMade(at=self._clock.now(), wall=self._clock.wall()))

    # -------------------------------------------------------------------------------------- what the outside may ask

    def request(self, event: RequestEvent) -> None:
        """Hand in a request (a stop, a savepoint) from any thread; it is answered, however the attempt ends."""
        self._inbox.put(event)
        if self._is_over:  # of two that drain the inbox, one gets each
            self._answers.refuse(self._inbox.drain())

    def broke(self, owner: str, error: BaseException) -> None:
        """A task or worker failed."""
        self._inbox.put(WorkerFailed(owner=owner, error=error))

    def finished(self, task: str) -> None:
        """A task's thread came to the end of its stream."""
        self._inbox.put(lambda: self._unfinished.discard(task))

    # ------------------------------------------------------------------------------------------------------- the run

    def run(self, wiring: AttemptParts) -> EndJob:
        """Run to the end on the calling thread.

        Raises:
            GenerationFenced: another driver owns the job.
            PenstockError: what failed; whether a restart can help is its class's word.
        """
        try:
            self.begin(wiring)
            while self.ended is None:
                self._turn(self._wait())
            self.finish()
            deadline = MonotonicTime(self._clock.now() + int(ORDERLY_END * 1_000_000))
            while not self.is_finished and (left := deadline - self._clock.now()) > 0:
                self._turn(left / 1_000_000)
            return self.ended
        finally:
            self.tear_down(wiring)

    def begin(self, wiring: AttemptParts) -> None:
        """Start the tasks. :meth:`turn` moves the attempt on until :attr:`ended`; then ``finish`` and ``tear_down``."""
        self._wiring = wiring
        self._mail, self._answers = Mail(wiring), Answers(wiring.answered)
        self._waiting_sources = set(wiring.sources)
        started = wiring.started(self._clock.now())
        self._attempts = started.attempts
        self._errands = Errands(
            wiring, started.attempts, clock=self._clock, listener=self._listener, put=self._inbox.put
        )
        self._handle(started)
        for id, task in wiring.tasks.items():
            wiring.threads[id].start(task)

    def turn(self) -> None:
        """Take in one waiting event, if there is one, and every alarm that is due; never blocks.

        Raises:
            PenstockError: what failed; the attempt is over.
        """
        self._turn(0.0)

    @property
    def next_turn(self) -> MonotonicTime | None:
        """When a turn has something to do: now, at an alarm's time, or ``None``, when somebody puts something in."""
        if not self._inbox.is_empty:
            return self._clock.now()
        return self._inbox.next_alarm if self.ended is None else None

    def _wait(self) -> float | None:
        alarm = self._inbox.next_alarm
        return None if alarm is None else min(max(0.0, (alarm - self._clock.now()) / 1_000_000), MAX_WAIT)

    def _turn(self, seconds: float | None) -> None:
        try:
            self._move_on(seconds)
        except Exception as error:
            self._fail(error)
            raise

    def _move_on(self, seconds: float | None) -> None:
        item = self._inbox.take(seconds)
        if item is not None:
            self._take(item)
        now = self._clock.now()
        while self.ended is None and (timer := self._inbox.due(now)) is not None:
            doing = {id: task.doing for id, task in self._wiring.tasks.items()}
            self._handle(TimerFired(at=now, wall=self._clock.wall(), timer=timer, doing=doing))

    def _take(self, item: MailItem) -> None:
        if self.ended is not None and not callable(item) and not isinstance(item, RequestEvent):
            return  # whatever breaks now, everything is published
        if isinstance(item, WorkerFailed):
            error = self._wiring.explain(item.error)
            self._lost(item.owner, error)
            if error is item.error:
                raise error  # with the cause that it has: its own it must not become
            raise error from item.error
        if callable(item):
            item()
        else:
            self._handle(item)

    def _lost(self, owner: str, error: PenstockError) -> None:
        """A task that is gone aborts what it has not acknowledged; what else breaks ends the run only."""
        if owner not in self._attempts:
            return
        error.uid = error.uid or owner
        self._handle(
            TaskFailed(
                at=self._clock.now(),
                wall=self._clock.wall(),
                task=owner,
                attempt=self._attempts[owner],
                message=str(error.args[0]),
            )
        )

    def _fail(self, error: Exception) -> None:
        """The attempt is over: whoever waits for an answer gets it."""
        self._handle(RunFailed(at=self._clock.now(), wall=self._clock.wall(), message=str(error)))

    def _abort(self, effect: AbortCheckpoint) -> None:
        self._mail.to_sources(CancelBarrier(checkpoint=effect.checkpoint), self._wiring.sources)
        self._listener(
            CheckpointFailed(checkpoint=effect.checkpoint, reason=effect.reason.name.lower(), message=effect.message)
        )

    def _handle(self, event: Event) -> None:
        for effect in self._wiring.coordinator.handle(event):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case InjectBarrier():
                self._mail.inject(effect)
            case AbortCheckpoint():
                self._abort(effect)
            case WriteManifest():
                self._errands.manifest(effect.manifest)
            case NotifyCompleted():
                self._mail.to_all(Completed(checkpoint=effect.checkpoint))
            case Commit():
                self._errands.commit(effect.item)
            case WakeAt():
                self._inbox.set_alarm(effect.at, effect.timer)
            case DiscardSnapshot():
                pass
            case AnswerRequest():
                self._answers.tell(effect)
            case WriteStopped():
                self._errands.stopped(effect.body)
            case EndJob():
                self.ended = effect
            case FailJob():
                raise effect.error(effect.message)
            case _:
                assert_never(effect)

    # ------------------------------------------------------------------------------------------------------- the end

    def finish(self) -> None:
        """The job has ended: have the tasks pass the end of the stream on, until :attr:`is_finished`."""
        self._unfinished = set(self._wiring.tasks)
        self._mail.to_sources(Finish(), self._wiring.sources)

    @property
    def is_finished(self) -> bool:
        """Whether every task has come to the end of its stream, once :meth:`finish` was called."""
        return not self._unfinished

    def tear_down(self, wiring: AttemptParts) -> None:
        """Stop tasks and workers, let go of what tasks hold. After an orderly end nothing goes on behind the job."""
        for thread in wiring.threads.values():
            thread.stop()
        wiring.workers.close()
        if self.ended is None:
            wiring.cancel()
        for thread in wiring.threads.values():
            thread.join(ORDERLY_END)
        if self.ended is not None:
            wiring.workers.join(ORDERLY_END)
        self._is_over = True
        self._answers.refuse(self._inbox.drain())
        for task in wiring.tasks.values():
            try:
                task.close()
            except Exception:
                log.warning("task %s could not let go of what it holds", task.id, exc_info=True)
