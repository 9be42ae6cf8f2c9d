"""The shell of one attempt: feeds the coordinator, carries out its effects, reports every outcome as an event.

One thread decides: the one that calls :meth:`Supervisor.run`. Tasks and workers only put events into its queue.
It reads the clock and holds the threads, so that the coordinator needs neither.
"""

from __future__ import annotations

import heapq
import itertools
import queue
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.entries import Manifest, Stopped
from penstock.checkpoint.messages import (
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
    JobStarted,
    ManifestFailed,
    ManifestWritten,
    NotifyCompleted,
    ProgressMade,
    StoppedWritten,
    StopRequested,
    TaskAcknowledged,
    TaskDeclined,
    Timer,
    TimerFired,
    WakeAt,
    WriteManifest,
    WriteStopped,
)
from penstock.elements import Barrier, CancelBarrier
from penstock.errors import CheckpointAborted, CheckpointError, GenerationFenced, PenstockError, assert_never
from penstock.facts import BatchRead, CheckpointCompleted, CheckpointFailed, Fact, Listener, Published
from penstock.failpoints import failpoint
from penstock.handles import CommitOutcome, Committable, TaskSnapshot
from penstock.ids import CheckpointId, EntryNumber, Instant
from penstock.runtime.clock import Clock
from penstock.runtime.source_task import Finish, SourceTask
from penstock.runtime.task import Completed, StepTask
from penstock.runtime.threads import TaskThread, Workers

ORDERLY_END = 5.0
"""Seconds that tasks get to pass the end of the stream on, once everything is published."""

QUEUE = 10_000
"""Events that may wait for the deciding thread; who would put in more waits."""

AnyTask: TypeAlias = "SourceTask | StepTask"


class Journal(Protocol):
    """Appends to the log on behalf of this attempt, and cleans up what an entry allows."""

    def checkpoint(self, manifest: Manifest) -> EntryNumber:
        """Complete the manifest with what is condemned, and append it."""
        ...

    def stopped(self, body: Stopped) -> EntryNumber:
        """Append the entry of an orderly end."""
        ...

    def clean(self) -> None:
        """Delete what recorded entries allow; repeats are harmless."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """Everything an attempt runs on, put together by the job."""

    coordinator: Coordinator
    started: Callable[[Instant], JobStarted]
    tasks: Mapping[str, AnyTask]
    threads: Mapping[str, TaskThread]
    workers: Workers
    journal: Journal
    publish: Callable[[Committable], CommitOutcome]
    explain: Callable[[BaseException], PenstockError]
    cancel: Callable[[], None]
    background: Callable[[], AbstractContextManager[None]]
    answered: Callable[[AnswerRequest], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broke:
    """A task or worker failed; ends the attempt."""

    owner: str
    error: BaseException


@dataclass(order=True, slots=True)
class _Alarm:
    at: Instant
    order: int
    timer: Timer = field(compare=False)


class Supervisor:
    """Runs one attempt of a job, from its first barrier to its end. Also the shell that tasks talk to."""

    def __init__(self, clock: Clock, listener: Listener) -> None:
        self._clock = clock
        self._listener = listener
        self._events: queue.Queue[Event | _Broke | Callable[[], None]] = queue.Queue(QUEUE)
        self._alarms: list[_Alarm] = []
        self._order = itertools.count()
        self._waiting_sources: set[str] = set()
        self._unfinished: set[str] = set()
        self._known_files: set[str] = set()
        self._ended: EndJob | None = None
        self._attempts: Mapping[str, AttemptId] = {}
        self._wiring: Wiring

    # ------------------------------------------------------------------------------------------- what tasks may ask

    def capture(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
        """Make a snapshot durable on the task's worker, then acknowledge; a failure fails the attempt."""

        def run() -> None:
            try:
                snapshot = work()
            except CheckpointAborted as error:
                self._decline(task, checkpoint, AbortReason.TASK_NOT_READY, str(error))
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

        self._wiring.workers.submit(f"{task}-snapshot", run)

    def abandoned(self, task: str, checkpoint: CheckpointId) -> None:
        """A cancel barrier, or a newer one, came; the coordinator knows already unless it was the latter."""
        self._decline(task, checkpoint, AbortReason.TASK_NOT_READY, "its barrier was cancelled or overtaken")

    def _decline(self, task: str, checkpoint: CheckpointId, reason: AbortReason, message: str) -> None:
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

    def source_done(self, task: str, *, ended: bool) -> None:
        """When the last one is done, the final checkpoint is due."""
        del ended

        def note() -> None:
            self._waiting_sources.discard(task)
            if not self._waiting_sources:
                self._handle(AllSourcesDone(at=self._clock.now(), wall=self._clock.wall()))

        self._events.put(note)

    def maintain(self, task: str, work: Callable[[], None]) -> None:
        """Compaction and the like."""
        self._wiring.workers.submit(f"{task}-maintenance", work)

    def report(self, fact: Fact) -> None:
        """Tell observers; a batch read is progress for the coordinator too."""
        self._listener(fact)
        if isinstance(fact, BatchRead):
            self._put(ProgressMade(at=self._clock.now(), wall=self._clock.wall()))

    # -------------------------------------------------------------------------------------- what the outside may ask

    def request(self, event: Event) -> None:
        """Hand in a request (a stop, a savepoint) from any thread."""
        self._events.put(event)

    def broke(self, owner: str, error: BaseException) -> None:
        """A task or worker failed."""
        self._events.put(_Broke(owner=owner, error=error))

    def finished(self, task: str) -> None:
        """A task's thread came to the end of its stream."""
        self._events.put(lambda: self._unfinished.discard(task))

    def wake(self) -> None:
        """Look at the clock again."""
        self._events.put(lambda: None)

    # ------------------------------------------------------------------------------------------------------- the run

    def run(self, wiring: Wiring) -> EndJob:
        """Run to the end.

        Raises:
            GenerationFenced: another driver owns the job.
            PenstockError: what failed; whether a restart can help is its class's word.
        """
        self._wiring = wiring
        self._waiting_sources = {id for id, task in wiring.tasks.items() if isinstance(task, SourceTask)}
        try:
            started = wiring.started(self._clock.now())
            self._attempts = started.attempts
            self._handle(started)
            for id, task in wiring.tasks.items():
                wiring.threads[id].start(task)
            while self._ended is None:
                self._turn()
            self._end_in_order()
            return self._ended
        finally:
            self._tear_down()

    def _turn(self) -> None:
        wait = None
        if self._alarms:
            wait = max(0.0, (self._alarms[0].at - self._clock.now()) / 1_000_000)
        try:
            event = self._events.get(timeout=wait)
        except queue.Empty:
            self._fire_due()
            return
        self._take(event)
        self._fire_due()

    def _take(self, event: Event | _Broke | Callable[[], None]) -> None:
        if isinstance(event, _Broke):
            error = self._wiring.explain(event.error)
            if error.uid is None and event.owner in self._wiring.tasks:
                error.uid = event.owner
            raise error from event.error
        if callable(event):
            event()
        else:
            self._handle(event)

    def _fire_due(self) -> None:
        now = self._clock.now()
        while self._alarms and self._alarms[0].at <= now:
            timer = heapq.heappop(self._alarms).timer
            doing = {id: task.doing for id, task in self._wiring.tasks.items()}
            self._handle(TimerFired(at=now, wall=self._clock.wall(), timer=timer, doing=doing))

    def _put(self, event: Event) -> None:
        self._events.put(event)

    def _handle(self, event: Event) -> None:
        for effect in self._wiring.coordinator.handle(event):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case InjectBarrier():
                self._inject(Barrier(checkpoint=effect.checkpoint, kind=effect.kind), effect.sources)
            case AbortCheckpoint():
                self._abort(effect)
            case WriteManifest():
                self._wiring.workers.submit("log", lambda: self._write_manifest(effect.manifest))
            case NotifyCompleted():
                self._notify(effect.checkpoint)
            case Commit():
                self._wiring.workers.submit(f"{effect.item.uid}-commit", lambda: self._commit(effect.item))
            case WakeAt():
                heapq.heappush(self._alarms, _Alarm(effect.at, next(self._order), effect.timer))
            case DiscardSnapshot():
                pass
            case AnswerRequest():
                self._wiring.answered(effect)
            case WriteStopped():
                self._wiring.workers.submit("log", lambda: self._write_stopped(effect.body))
            case EndJob():
                self._ended = effect
            case FailJob():
                raise effect.error(effect.message)
            case _:
                assert_never(effect)

    # --------------------------------------------------------------------------------------------- carrying out effects

    def _inject(self, mail: Barrier | CancelBarrier | Finish, sources: tuple[str, ...]) -> None:
        for id in sources:
            task = self._wiring.tasks[id]
            if isinstance(task, SourceTask):
                task.post(mail)
                self._wiring.threads[id].wake()

    @property
    def _sources(self) -> tuple[str, ...]:
        return tuple(id for id, task in self._wiring.tasks.items() if isinstance(task, SourceTask))

    def _abort(self, effect: AbortCheckpoint) -> None:
        self._inject(CancelBarrier(checkpoint=effect.checkpoint), self._sources)
        self._listener(
            CheckpointFailed(checkpoint=effect.checkpoint, reason=effect.reason.name.lower(), message=effect.message)
        )

    def _notify(self, checkpoint: CheckpointId) -> None:
        for id, task in self._wiring.tasks.items():
            task.post(Completed(checkpoint=checkpoint))
            self._wiring.threads[id].wake()

    def _write_manifest(self, manifest: Manifest) -> None:
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
        layers = [layer for task in manifest.tasks if task.state for layer in task.state.layers]
        files = {file.path: file.length for layer in layers for file in layer.files}
        files |= {file.path: file.length for item in manifest.open for file in item.files}
        written = sum(length for path, length in files.items() if path not in self._known_files)
        self._known_files = set(files)
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

    def _write_stopped(self, body: Stopped) -> None:
        entry = self._wiring.journal.stopped(body)
        self._put(StoppedWritten(at=self._clock.now(), wall=self._clock.wall(), entry=entry))

    def _commit(self, item: Committable) -> None:
        failpoint("sink.commit.before")
        outcome = self._wiring.publish(item)
        failpoint("sink.published")
        self._listener(Published(task=item.uid, checkpoint=item.checkpoint, outcome=outcome.value))
        self._put(
            CommitReturned(
                at=self._clock.now(), wall=self._clock.wall(), uid=item.uid, checkpoint=item.checkpoint, outcome=outcome
            )
        )

    # ------------------------------------------------------------------------------------------------------- the end

    def _end_in_order(self) -> None:
        self._unfinished = set(self._wiring.tasks)
        self._inject_finish()
        deadline = Instant(self._clock.now() + int(ORDERLY_END * 1_000_000))
        while self._unfinished and (left := deadline - self._clock.now()) > 0:
            try:
                event = self._events.get(timeout=left / 1_000_000)
            except queue.Empty:
                return
            if callable(event):
                event()

    def _inject_finish(self) -> None:
        self._inject(Finish(), self._sources)

    def _tear_down(self) -> None:
        wiring = self._wiring
        for thread in wiring.threads.values():
            thread.stop()
        wiring.workers.close()
        if self._ended is None:
            wiring.cancel()
        for thread in wiring.threads.values():
            thread.join(ORDERLY_END)
        for task in wiring.tasks.values():
            task.close()


__all__ = ["Journal", "StopRequested", "Supervisor", "Wiring"]
