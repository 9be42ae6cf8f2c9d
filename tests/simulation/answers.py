"""What operators asked running jobs for, and every answer that came: each is judged by the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint.events import RequestOutcome
from penstock.checkpoint.paths import control_id
from penstock.control.protocol import decode_answer

if TYPE_CHECKING:
    from simulation.world import World


class Answers:
    """Who asks is answered once, and as the log says (C3)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._given: dict[tuple[str, str], RequestOutcome] = {}

    def landed(self, path: str, data: bytes) -> None:
        """A file below ``control/``."""
        found = control_id(path)
        if found is not None and found[1]:
            answer = decode_answer(data, found[0])
            if answer.me is None:
                self.told("control", answer.request, answer.outcome)

    def forgotten(self, path: str) -> None:
        """Whoever asked does not want the answer any more, and takes it away."""
        found = control_id(path)
        if found is not None:
            self._given.pop(("control", found[0]), None)

    def told(self, by: str, request: str, answer: RequestOutcome) -> None:
        """Somebody gets an answer."""
        world = self._world
        world.tell(f"{by} answers {request}: {answer.value}")
        world.count(f"answer {answer.name.lower()}")
        before = self._given.get((by, request))
        self._given[by, request] = answer
        if before is not None:
            world.ledger.violated("C3", f"{by} answers {request} twice: {before.name}, {answer.name}")
        is_logged = request in world.ledger.facts.fulfilled
        if answer is RequestOutcome.DONE and not is_logged:
            world.ledger.violated("C3", f"{request} is said to be done, and no entry holds it")
        self.judge(request, answer)

    def judge(self, request: str, answer: RequestOutcome) -> None:
        if answer in (RequestOutcome.REFUSED, RequestOutcome.FAILED) and request in self._world.ledger.facts.fulfilled:
            self._world.ledger.violated("C3", f"{request} is said to have failed, and an entry holds it")

    def judge_all(self) -> None:
        """In the end: nothing was done that somebody was told would not be."""
        for (_, request), answer in self._given.items():
            self.judge(request, answer)
