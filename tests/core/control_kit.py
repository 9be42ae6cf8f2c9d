"""A job with one task that acknowledges at once, stepped by hand; all else that decides or stores is the real thing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext

from core.runtime_fakes import Clock
from penstock.checkpoint import paths
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.entries import Claim
from penstock.checkpoint.events import (
    AnswerRequest,
    AttemptId,
    CheckpointRequested,
    Effect,
    Event,
    InjectBarrier,
    RunStarted,
    StopRequested,
    TaskAcknowledged,
)
from penstock.checkpoint.log import Log, ManifestWriter, read_history
from penstock.checkpoint.policy import CheckpointConfig
from penstock.checkpoint.recovery import decide_recovery
from penstock.clock import WallTime
from penstock.control.protocol import Answer, ControlFiles, Request, RequestKind
from penstock.control.server import AnswerCallback, ControlServer, RequestRegistry, RunningAttempt
from penstock.errors import PenstockError
from penstock.filesystem.base import FileSystem
from penstock.handles import CheckpointId, CommitOutcome, Generation, TaskSnapshot
from penstock.job.failures import to_penstock_error
from penstock.runtime.executors import AttemptParts
from penstock.runtime.supervisor import Supervisor

TASK = AttemptId("in@1")
_ids = itertools.count(1)


def new_id() -> str:
    return f"request-{next(_ids):04}"


def request_files(filesystem: FileSystem) -> list[str]:
    """Paths of requests and answers; the copy of a claim is none."""
    return [path for path in filesystem.list(paths.CONTROL) if paths.control_id(path) is not None]


class Held:
    """Workers that do what they are given at once, or hold it back until ``go``."""

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._waiting: list[tuple[str, Callable[[], None]]] = []
        self.is_holding = False

    def submit(self, owner: str, work: Callable[[], None]) -> None:
        if self.is_holding:
            self._waiting.append((owner, work))
            return
        try:
            work()
        except Exception as error:
            self._failed(owner, error)

    def go(self) -> None:
        self.is_holding = False
        waiting, self._waiting = self._waiting, []
        for owner, work in waiting:
            self.submit(owner, work)

    def close(self) -> None:
        pass

    def join(self, seconds: float) -> bool:
        return True


class OneTask(Coordinator):
    """The coordinator, and a task that acknowledges every barrier: its answer waits in the supervisor's inbox."""

    def __init__(self, settings: CheckpointConfig, supervisor: Supervisor) -> None:
        super().__init__(settings)
        self._supervisor = supervisor

    def handle(self, event: Event) -> list[Effect]:
        effects = super().handle(event)
        for effect in effects:
            if isinstance(effect, InjectBarrier):
                snapshot = TaskSnapshot(task="in")
                self._supervisor._mailbox.put(
                    TaskAcknowledged(
                        at=event.at, wall=event.wall, checkpoint=effect.checkpoint, attempt=TASK, snapshot=snapshot
                    )
                )
        return effects


class Driver:
    """One process with a job: ``claim``, ``begin``, ``turn``, and it may simply be dropped, as a crash."""

    def __init__(self, filesystem: FileSystem, name: str = "first", *, pid: int = 1) -> None:
        self.filesystem = filesystem
        self.name = name
        self.clock = Clock(at=1_000_000)
        self.requests = RequestRegistry()
        self.files = ControlFiles(filesystem)
        self.stops: list[str] = []
        self.drains = False
        self.watch = ControlServer(
            self.files, self.requests, stop=self._stop, state=lambda: "running", clock=self.clock
        )
        ids = itertools.count()
        self._log = Log(filesystem, job="orders", new_id=lambda: f"{name}-{next(ids)}", pause=lambda _: None)
        self._claim = Claim(host=name, pid=pid, started=WallTime(0), version="0")
        self.error: PenstockError | None = None

    def _stop(self, event: StopRequested, tell: AnswerCallback) -> None:
        self.drains = event.drain
        self.requests.submit(event, tell, accepted=lambda: self.stops.append(event.request))

    # ------------------------------------------------------------------------------------------------ an attempt

    def claim(self) -> Driver:
        self.owned = self._log.claim(self._claim)
        self.requests.claimed(self.owned)
        return self

    def begin(self) -> Driver:
        self.supervisor = Supervisor(self.clock, lambda fact: None)
        self.workers = Held(self.supervisor.failed)
        recovery = decide_recovery(self.owned.history, (), at=self.clock.wall(), allow_non_restored_state=True)
        settings = CheckpointConfig(interval=None)
        self.wiring = AttemptParts(
            coordinator=OneTask(settings, self.supervisor),
            started=lambda at: RunStarted(
                at=at,
                wall=self.clock.wall(),
                attempts={"in": TASK},
                sources=(),
                steps=(),
                next_checkpoint=recovery.next_checkpoint,
                parent=recovery.restored,
            ),
            tasks={},
            threads={},
            workers=self.workers,
            manifest_writer=ManifestWriter(self.owned, self.filesystem, retained=2),
            publish=lambda item: CommitOutcome.DONE,
            explain=to_penstock_error,
            cancel=lambda: None,
            background=nullcontext,
            snapshot=nullcontext,
            answered=self.requests.answered,
        )
        self.requests.attempt_started(
            RunningAttempt(
                put=self.supervisor.request,
                failed=self.supervisor.failed,
                on_log=lambda work: self.workers.submit("log", work),
                clock=self.clock,
            )
        )
        self.supervisor.begin(self.wiring)
        return self

    def turn(self, times: int = 8) -> None:
        """Let the deciding thread take in what waits; a failure ends the attempt, as in ``Attempt.run``."""
        try:
            for _ in range(times):
                if self.supervisor.ended is None:
                    self.supervisor.turn()
        except PenstockError as error:
            self.breaks(error)

    def breaks(self, error: PenstockError) -> None:
        self.error = error
        self.supervisor.tear_down(self.wiring)
        self.requests.attempt_ended(error)

    # ---------------------------------------------------------------------------------------------------- asking

    @property
    def generation(self) -> Generation:
        return self.owned.generation

    def save(self, name: str | None, replies: list[AnswerRequest], *, request: str | None = None) -> str:
        """From within the process."""
        id = request or new_id()
        event = CheckpointRequested(at=self.clock.now(), wall=self.clock.wall(), request=id, name=name)
        self.requests.submit(event, replies.append)
        return id

    def look(self) -> None:
        """A look into ``control/``, all that follows, and another one that writes the answers."""
        self.watch.look()
        if hasattr(self, "supervisor"):
            self.turn()
        self.watch.look()


def ask(
    filesystem: FileSystem,
    kind: RequestKind,
    generation: int,
    *,
    name: str | None = None,
    checkpoint: int | None = None,
    request: str | None = None,
) -> str:
    """What a tool in another process does: it reads the log, if there is one, and asks."""
    log_id = read_history(filesystem, "orders").log_id
    made = Request(
        request=request or new_id(),
        kind=kind,
        generation=Generation(generation),
        asked=WallTime(5),
        owner="tool",
        name=name,
        checkpoint=None if checkpoint is None else CheckpointId(checkpoint),
        log_id=log_id,
    )
    ControlFiles(filesystem).ask(made, pause=lambda _: None)
    return made.request


def answer(filesystem: FileSystem, request: str) -> Answer | None:
    return ControlFiles(filesystem).answer_to(request)


def said(filesystem: FileSystem, request: str) -> tuple[str, int | None]:
    """How it was answered, and with which checkpoint."""
    found = answer(filesystem, request)
    assert found is not None, "no answer"
    return found.outcome.name.lower(), found.checkpoint
