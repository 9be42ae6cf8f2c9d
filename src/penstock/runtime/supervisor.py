"""The shell of one attempt: feeds the coordinator, carries out its effects, reports every outcome as an event.

One thread decides: the one that calls :meth:`Supervisor.run`, or whoever calls :meth:`Supervisor.turn` instead. Tasks
and workers only put events into its inbox. It reads the clock and holds the threads, so that the coordinator needs
neither; whether there are threads at all, it does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from penstock.checkpoint.messages import (
    AbortCheckpoint,
    AbortReason,
    AllSourcesDone,
    AnswerRequest,
    AttemptId,
    Commit,
    DiscardSnapshot,
    Effect,
    EndJob,
    Event,
    FailJob,
    InjectBarrier,
    NotifyCompleted,
    ProgressMade,
    RunFailed,
    TaskFailed,
    TimerFired,
    WakeAt,
    WriteManifest,
    WriteStopped,
)
from penstock.elements import CancelBarrier
from penstock.errors import PenstockError, assert_never
from penstock.facts import BatchDone, BatchRead, CheckpointFailed, Fact, Listener, WatermarkAdvanced
from penstock.handles import TaskSnapshot
from penstock.ids import CheckpointId, Instant
from penstock.runtime.answers import Answers
from penstock.runtime.clock import LONGEST_WAIT, Clock
from penstock.runtime.errands import Errands
from penstock.runtime.inbox import Broke, Inbox, Item, Request
from penstock.runtime.mail import Mail
from penstock.runtime.roles import Wiring
from penstock.runtime.source_mail import Finish
from penstock.runtime.task_protocols import Completed

log = logging.getLogger("penstock")

ORDERLY_END = 5.0
"""Seconds that tasks get to pass the end of the stream on, once everything is published."""


class Supervisor:
    """Runs one attempt of a job, from its first barrier to its end. Also the shell that tasks talk to."""

    def __init__(self, clock: Clock, listener: Listener) -> None:
        self._clock = clock
        self._listener = listener
        self._inbox = Inbox()
        self._waiting_sources: set[str] = set()
        self._unfinished: set[str] = set()
        self._is_over = False
        self._attempts: Mapping[str, AttemptId] = {}
        self._wiring: Wiring
        self._errands: Errands
        self._mail: Mail
        self._answers: Answers
        self.ended: EndJob | None = None
        """How the job ended, once it has."""

    # ------------------------------------------------------------------------------------------- what tasks may ask

    def capture(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
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

    def request(self, event: Request) -> None:
        """Hand in a request (a stop, a savepoint) from any thread; it is answered, however the attempt ends."""
        self._inbox.put(event)
        if self._is_over:  # of two that drain the inbox, one gets each
            self._answers.refuse(self._inbox.drain())

    def broke(self, owner: str, error: BaseException) -> None:
        """A task or worker failed."""
        self._inbox.put(Broke(owner=owner, error=error))

    def finished(self, task: str) -> None:
        """A task's thread came to the end of its stream."""
        self._inbox.put(lambda: self._unfinished.discard(task))

    # ------------------------------------------------------------------------------------------------------- the run

    def run(self, wiring: Wiring) -> EndJob:
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
            deadline = Instant(self._clock.now() + int(ORDERLY_END * 1_000_000))
            while not self.is_finished and (left := deadline - self._clock.now()) > 0:
                self._turn(left / 1_000_000)
            return self.ended
        finally:
            self.tear_down(wiring)

    def begin(self, wiring: Wiring) -> None:
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
    def next_turn(self) -> Instant | None:
        """When a turn has something to do: now, at an alarm's time, or ``None``, when somebody puts something in."""
        if not self._inbox.is_empty:
            return self._clock.now()
        return self._inbox.next_alarm if self.ended is None else None

    def _wait(self) -> float | None:
        alarm = self._inbox.next_alarm
        return None if alarm is None else min(max(0.0, (alarm - self._clock.now()) / 1_000_000), LONGEST_WAIT)

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

    def _take(self, item: Item) -> None:
        if self.ended is not None and not callable(item) and not isinstance(item, Request):
            return  # whatever breaks now, everything is published
        if isinstance(item, Broke):
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

    def tear_down(self, wiring: Wiring) -> None:
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
