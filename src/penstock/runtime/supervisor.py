"""The shell of one attempt: feeds the coordinator, carries out its effects, reports every outcome as an event."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from penstock.checkpoint.entries import Manifest, Stopped
from penstock.checkpoint.events import (
    AbortCheckpoint,
    AbortReason,
    AllSourcesDone,
    AnswerRequest,
    AttemptId,
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
    RequestEvent,
    RequestOutcome,
    RunFailed,
    StoppedWritten,
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

MAILBOX_CAPACITY: Final = 10_000
"""Events that may wait for the deciding thread; a thread that puts in more waits."""
END_TIMEOUT: Final = 5.0
"""Seconds that tasks get to pass the end of the stream on, once everything is published."""

log = logging.getLogger("penstock")

# ---- mailbox: events in the order they came, and alarms by time ------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed:
    """A task or worker failed; ends the attempt."""

    owner: str
    error: BaseException


MailItem: TypeAlias = "Event | WorkerFailed | Callable[[], None]"


@dataclass(order=True, slots=True)
class _Alarm:
    at: MonotonicTime
    order: int
    timer: Timer = field(compare=False)


class Mailbox:
    """What waits for the deciding thread. Filled from any thread; the alarms belong to the deciding one."""

    def __init__(self) -> None:
        self._items: queue.Queue[MailItem] = queue.Queue(MAILBOX_CAPACITY)
        self._alarms: list[_Alarm] = []
        self._order = itertools.count()

    def put(self, item: MailItem) -> None:
        """Add an item."""
        self._items.put(item)

    def take(self, seconds: float | None = 0.0) -> MailItem | None:
        """The next item; ``None`` if there is none after ``seconds`` (``None``: wait for ever)."""
        try:
            return self._items.get_nowait() if seconds == 0 else self._items.get(timeout=seconds)
        except queue.Empty:
            return None

    def drain(self) -> Iterator[MailItem]:
        """Take out all items, from any thread."""
        while (item := self.take()) is not None:
            yield item

    @property
    def is_empty(self) -> bool:
        """Whether no item waits; alarms do not count."""
        return self._items.empty()

    def set_alarm(self, at: MonotonicTime, timer: Timer) -> None:
        """Have ``due`` return the timer from ``at`` on."""
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


# ---- supervisor ------------------------------------------------------------------------------------------------------


class Supervisor:
    """Runs one attempt of a job, from its first barrier to its end. Tasks use it as their ``TaskEnvironment``.

    One thread decides: the one that calls ``run``, or that calls ``begin`` and ``turn`` instead. Tasks and
    workers, which may run on other threads or on the same one, only put events into the mailbox.

    Attributes:
        ended: how the job ended, once it has.
    """

    _parts: AttemptParts

    def __init__(self, clock: Clock, listener: Listener) -> None:
        self.ended: EndJob | None = None
        self._clock = clock
        self._listener = listener
        self._mailbox = Mailbox()
        self._attempts: Mapping[str, AttemptId] = {}
        self._reading_sources: set[str] = set()
        self._unfinished: set[str] = set()
        self._known_files: set[str] = set()  # of the newest manifest
        self._is_over = False

    # ---- what tasks use ----------------------------------------------------------------------------------------------

    def snapshot(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
        """Make a snapshot durable on the task's worker, then acknowledge.

        A storage failure fails the checkpoint, which may be tolerated; any other failure fails the attempt.
        """
        self._parts.workers.submit(f"{task}-snapshot", lambda: self._snapshot(task, checkpoint, work))

    def _snapshot(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
        try:
            with self._parts.snapshot():
                snapshot = work()
        except Exception as error:
            explained = self._parts.explain(error)
            if not isinstance(explained, CheckpointAborted | StorageFailed):
                raise
            is_storage = isinstance(explained, StorageFailed)
            reason = AbortReason.SNAPSHOT_FAILED if is_storage else AbortReason.TASK_NOT_READY
            self._decline(task, checkpoint, reason, str(explained))
            return
        self._mailbox.put(
            TaskAcknowledged(
                at=self._clock.now(),
                wall=self._clock.wall(),
                checkpoint=checkpoint,
                attempt=self._attempts[task],
                snapshot=snapshot,
            )
        )

    def abandoned(self, task: str, checkpoint: CheckpointId) -> None:
        """A cancel barrier or a newer barrier came; the coordinator has yet to learn of the latter."""
        message = "Its barrier was cancelled or overtaken."
        self._decline(task, checkpoint, AbortReason.TASK_NOT_READY, message)

    def _decline(self, task: str, checkpoint: CheckpointId, reason: AbortReason, message: str) -> None:
        self._mailbox.put(
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

    def source_done(self, task: str, *, ended: bool) -> None:
        """A source has ended or caught up; after the last one the final checkpoint is due."""
        del ended

        def note() -> None:
            self._reading_sources.discard(task)
            if not self._reading_sources and self.ended is None:
                self._handle(AllSourcesDone(at=self._clock.now(), wall=self._clock.wall()))

        self._mailbox.put(note)

    def maintain(self, task: str, work: Callable[[], None]) -> None:
        """Run maintenance, such as compaction; its change is worth a checkpoint, which releases what it replaced."""

        def run() -> None:
            work()
            self._progressed()

        self._parts.workers.submit(f"{task}-maintenance", run)

    def report(self, fact: Fact) -> None:
        """Report a fact to the listener; one that moves state or output is progress for the coordinator."""
        self._listener(fact)
        if isinstance(fact, BatchRead | BatchDone | WatermarkAdvanced):
            self._progressed()

    def _progressed(self) -> None:
        self._mailbox.put(ProgressMade(at=self._clock.now(), wall=self._clock.wall()))

    # ---- what other threads use --------------------------------------------------------------------------------------

    def request(self, event: RequestEvent) -> None:
        """Put a request in; it is answered, however the attempt ends."""
        self._mailbox.put(event)
        if self._is_over:
            self._refuse_requests()

    def failed(self, owner: str, error: BaseException) -> None:
        """A task or worker failed."""
        self._mailbox.put(WorkerFailed(owner=owner, error=error))

    def finished(self, task: str) -> None:
        """A task's thread came to the end of its stream."""
        self._mailbox.put(lambda: self._unfinished.discard(task))

    # ---- the run -----------------------------------------------------------------------------------------------------

    def run(self, parts: AttemptParts) -> EndJob:
        """Run to the end on the calling thread.

        Raises:
            GenerationFenced: another driver owns the job.
            PenstockError: what failed; its class says whether a restart can help.
        """
        try:
            self.begin(parts)
            while self.ended is None:
                self._turn(self._seconds_to_alarm())
            self.finish()
            deadline = MonotonicTime(self._clock.now() + int(END_TIMEOUT * 1_000_000))
            while not self.is_finished and (left := deadline - self._clock.now()) > 0:
                self._turn(left / 1_000_000)
            return self.ended
        finally:
            self.tear_down(parts)

    def begin(self, parts: AttemptParts) -> None:
        """Start the tasks. Then call ``turn`` until ``ended``, and ``finish`` and ``tear_down``."""
        self._parts = parts
        self._reading_sources = set(parts.sources)
        started = parts.started(self._clock.now())
        self._attempts = started.attempts
        self._handle(started)
        for id, task in parts.tasks.items():
            parts.threads[id].start(task)

    def turn(self) -> None:
        """Take in one waiting item, if there is one, and every alarm that is due; never blocks.

        Raises:
            PenstockError: what failed; the attempt is over.
        """
        self._turn(0.0)

    @property
    def next_turn(self) -> MonotonicTime | None:
        """When a turn has something to do: now, at the next alarm, or ``None`` until an item is put in."""
        if not self._mailbox.is_empty:
            return self._clock.now()
        return self._mailbox.next_alarm if self.ended is None else None

    def _seconds_to_alarm(self) -> float | None:
        alarm = self._mailbox.next_alarm
        return None if alarm is None else min(max(0.0, (alarm - self._clock.now()) / 1_000_000), MAX_WAIT)

    def _turn(self, seconds: float | None) -> None:
        try:
            self._take_turn(seconds)
        except Exception as error:  # the attempt is over: open requests are answered
            self._handle(RunFailed(at=self._clock.now(), wall=self._clock.wall(), message=str(error)))
            raise

    def _take_turn(self, seconds: float | None) -> None:
        item = self._mailbox.take(seconds)
        if item is not None:
            self._take(item)
        now = self._clock.now()
        while self.ended is None and (timer := self._mailbox.due(now)) is not None:
            doing = {id: task.doing for id, task in self._parts.tasks.items()}
            self._handle(TimerFired(at=now, wall=self._clock.wall(), timer=timer, doing=doing))

    def _take(self, item: MailItem) -> None:
        if self.ended is not None and not callable(item) and not isinstance(item, RequestEvent):
            return  # everything is published: a failure changes nothing any more
        if isinstance(item, WorkerFailed):
            error = self._parts.explain(item.error)
            self._task_failed(item.owner, error)
            if error is item.error:
                raise error  # with its own cause: it must not become its own cause
            raise error from item.error
        if callable(item):
            item()
        else:
            self._handle(item)

    def _task_failed(self, owner: str, error: PenstockError) -> None:
        """A failed task aborts what it has not acknowledged; the failure of a worker only ends the run."""
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

    def _handle(self, event: Event) -> None:
        for effect in self._parts.coordinator.handle(event):
            self._carry_out(effect)

    # ---- effects; the work itself runs on workers, and each piece reports its end as an event ------------------------

    def _carry_out(self, effect: Effect) -> None:
        workers = self._parts.workers
        match effect:
            case InjectBarrier():
                self._inject(effect)
            case AbortCheckpoint():
                self._abort(effect)
            case WriteManifest(manifest=manifest):
                workers.submit("log", lambda: self._write_manifest(manifest))
            case NotifyCompleted(checkpoint=checkpoint):
                self._notify_tasks(Completed(checkpoint=checkpoint))
            case Commit(item=item):
                shard = f"-{item.shard}" if item.shard else ""
                workers.submit(f"{item.uid}-commit{shard}", lambda: self._commit(item))
            case WakeAt(at=at, timer=timer):
                self._mailbox.set_alarm(at, timer)
            case DiscardSnapshot():
                pass
            case AnswerRequest():
                self._answer(effect)
            case WriteStopped(body=body):
                workers.submit("log", lambda: self._write_stopped(body))
            case EndJob():
                self.ended = effect
            case FailJob():
                raise effect.error(effect.message)
            case _:
                assert_never(effect)

    def _inject(self, effect: InjectBarrier) -> None:
        """Send the barrier, after the end of all reading where the sources are drained."""
        if effect.drain:
            self._notify_sources(Drain(), effect.sources)
        self._notify_sources(Barrier(checkpoint=effect.checkpoint, kind=effect.kind), effect.sources)

    def _abort(self, effect: AbortCheckpoint) -> None:
        self._notify_sources(CancelBarrier(checkpoint=effect.checkpoint), self._parts.sources)
        self._listener(
            CheckpointFailed(checkpoint=effect.checkpoint, reason=effect.reason.name.lower(), message=effect.message)
        )

    def _notify_sources(self, mail: SourceMail, sources: tuple[str, ...]) -> None:
        for id in sources:
            task = self._parts.tasks[id]
            if isinstance(task, SourceTask):
                task.post(mail)
                self._parts.threads[id].wake()

    def _notify_tasks(self, mail: Completed) -> None:
        for id, task in self._parts.tasks.items():
            task.post(mail)
            self._parts.threads[id].wake()

    def _write_manifest(self, manifest: Manifest) -> None:
        try:
            entry = self._parts.manifest_writer.checkpoint(manifest)
        except GenerationFenced:
            raise
        except CheckpointError as error:
            self._mailbox.put(
                ManifestFailed(
                    at=self._clock.now(),
                    wall=self._clock.wall(),
                    checkpoint=manifest.checkpoint,
                    definite=True,
                    message=str(error),
                )
            )
            return
        self._report_completed(manifest)
        self._mailbox.put(
            ManifestWritten(at=self._clock.now(), wall=self._clock.wall(), checkpoint=manifest.checkpoint, entry=entry)
        )
        self._parts.workers.submit("clean-up", self._clean)

    def _report_completed(self, manifest: Manifest) -> None:
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
        with self._parts.background():
            self._parts.manifest_writer.clean()

    def _commit(self, item: Committable) -> None:
        failpoint("sink.commit.before")
        message = ""
        try:
            outcome = self._parts.publish(item)
        except CommitFailed as error:
            outcome, message = CommitOutcome.RETRY, str(error)
        failpoint("sink.published")
        self._listener(Published(task=item.uid, checkpoint=item.checkpoint, outcome=outcome.value, message=message))
        self._mailbox.put(
            CommitReturned(
                at=self._clock.now(),
                wall=self._clock.wall(),
                uid=item.uid,
                checkpoint=item.checkpoint,
                outcome=outcome,
                message=message,
                shard=item.shard,
            )
        )

    def _write_stopped(self, body: Stopped) -> None:
        entry = self._parts.manifest_writer.stopped(body)
        self._mailbox.put(StoppedWritten(at=self._clock.now(), wall=self._clock.wall(), entry=entry))

    def _answer(self, answer: AnswerRequest) -> None:
        """An answer that cannot be delivered fails neither the job nor other answers."""
        try:
            self._parts.answered(answer)
        except Exception:
            log.warning("request %s may not have got its answer", answer.request, exc_info=True)

    def _refuse_requests(self) -> None:
        """Refuse the requests left in the mailbox of an attempt that is over, from any thread."""
        message = AbortReason.STOPPING.value
        for item in self._mailbox.drain():  # of two threads that drain it, one gets each item
            if isinstance(item, RequestEvent):
                self._answer(AnswerRequest(request=item.request, outcome=RequestOutcome.REFUSED, message=message))

    # ---- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The job has ended: have the tasks pass the end of the stream on, until ``is_finished``."""
        self._unfinished = set(self._parts.tasks)
        self._notify_sources(Finish(), self._parts.sources)

    @property
    def is_finished(self) -> bool:
        """Whether every task has come to the end of its stream, once ``finish`` was called."""
        return not self._unfinished

    def tear_down(self, parts: AttemptParts) -> None:
        """Stop tasks and workers and close the tasks. After an orderly end nothing of the job runs on."""
        for thread in parts.threads.values():
            thread.stop()
        parts.workers.close()
        if self.ended is None:
            parts.cancel()
        for thread in parts.threads.values():
            thread.join(END_TIMEOUT)
        if self.ended is not None:
            parts.workers.join(END_TIMEOUT)
        self._is_over = True
        self._refuse_requests()
        for task in parts.tasks.values():
            try:
                task.close()
            except Exception:
                log.warning("task %s could not let go of what it holds", task.id, exc_info=True)
