"""What a simulated driver is asked: in its own process, and through ``control/``, where it looks now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.checkpoint.entries import Stopped
from penstock.checkpoint.events import AnswerRequest, CheckpointRequested, StopRequested
from penstock.control.client import OwnerCheck
from penstock.control.protocol import Answer, ControlFiles, Request
from penstock.control.server import ControlServer, RequestRegistry, RunningAttempt
from penstock.errors import PenstockError
from penstock.filesystem.base import UnknownOutcome
from penstock.runtime.lifecycle import JobState

if TYPE_CHECKING:
    from penstock.runtime.executors import AttemptParts
    from penstock.runtime.supervisor import Supervisor
    from simulation.process import Driver

LOOK_EVERY = 100_000


class AskingFiles(ControlFiles):
    """What a start has asked of the owner, and what it heard last."""

    asked = False
    heard: str | None = None

    def ask(self, request: Request, *, pause: Callable[[float], object]) -> None:
        self.asked, self.heard = True, None
        super().ask(request, pause=pause)

    def answer_to(self, request: str) -> Answer | None:
        answer = super().answer_to(request)
        self.heard = answer.me.state if answer is not None and answer.me is not None else None
        return answer


class Desk:
    """The product's side of requests, and a list of who still waits."""

    def __init__(self, driver: Driver, state: object) -> None:
        self._driver = driver
        self._world = driver.world
        self.requests = RequestRegistry()
        self.owes: set[str] = set()
        """Requests of this process that are not answered."""
        self._watch = ControlServer(
            ControlFiles(driver.world.disk),
            self.requests,
            stop=self.requests.submit,
            state=lambda: str(state),
            clock=driver.world,
        )
        self._is_looking = False

    def ask(self, event: CheckpointRequested | StopRequested) -> None:
        """Somebody in the driver's own process asks."""
        request = event.request
        self.owes.add(request)

        def tell(answer: AnswerRequest) -> None:
            self.owes.discard(request)
            self._world.answers.told(self._driver.name, request, answer.outcome)

        self.requests.submit(event, tell)

    def check_owner(self) -> None:
        """Before a first claim: refuse while a living owner answers."""
        driver, world = self._driver, self._world
        asking, before = AskingFiles(world.disk), self._owner()
        check = OwnerCheck(
            job="sim",
            log=driver.log(),
            files=asking,
            clock=world,
            new_id=world.new_id,
            pause=driver.pause,
        )
        check()
        if asking.heard is not None and asking.heard != JobState.STOPPING.value:
            world.ledger.violated("L9", f"{driver.name} goes on although the owner answers: {asking.heard}")
        if before is not None and before == self._owner() and not asking.asked:
            world.ledger.violated("L9", f"{driver.name} goes on and has not asked the owner, generation {before}")
        world.count("polite start")

    def _owner(self) -> int | None:
        """Whose log it is, unless that job has stopped in order."""
        facts = self._world.ledger.facts
        is_over = facts.tail < 0 or isinstance(facts.entries[facts.tail].body, Stopped)
        return None if is_over else facts.generation

    def running(self, supervisor: Supervisor, wiring: AttemptParts) -> None:
        """An attempt takes requests in."""
        hands = RunningAttempt(
            put=supervisor.request,
            failed=supervisor.failed,
            on_log=lambda work: wiring.workers.submit("log", work),
            clock=self._world,
        )
        self.requests.attempt_started(hands)
        if self._world.terms.controlled and not self._world.is_plain and not self._is_looking:
            self._is_looking = True
            self._driver.spawn("control", self._look)

    def _look(self) -> None:
        is_last = self._driver.outcome is not None
        try:
            self._watch.look()
        except (PenstockError, UnknownOutcome) as error:
            self._world.tell(f"requests are not seen: {error}")
        if not is_last:
            after = 0 if self._driver.outcome is not None else self._world.now() + LOOK_EVERY
            self._driver.spawn("control", self._look, after=after)

    def close(self, error: PenstockError | None) -> None:
        """The job is over: everybody is told."""
        self.requests.close(error)
        if self.owes:
            self._world.ledger.violated("C3", f"nobody answers {sorted(self.owes)}")
