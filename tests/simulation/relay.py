"""Between the tasks and the coordinator of a simulated driver: what is told may be told twice, or by the dead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import AttemptId, DiscardSnapshot, Effect, Event, TaskAcknowledged, TimerFired

if TYPE_CHECKING:
    from simulation.world import World


class Relay:
    """Hands everything on, and some of it again: which must change nothing."""

    def __init__(self, coordinator: Coordinator, world: World) -> None:
        self.coordinator = coordinator
        self._world = world

    def handle(self, event: Event) -> list[Effect]:
        if not self._world.terms.relayed or self._world.is_plain:
            return self.coordinator.handle(event)
        chance = self._world.chance.random()
        if isinstance(event, TaskAcknowledged) and chance < 0.1:
            gone = replace(event, attempt=AttemptId("gone"))
            self._is_nothing(gone, self.coordinator.handle(gone))
        effects = self.coordinator.handle(event)
        if isinstance(event, TaskAcknowledged | TimerFired) and chance > 0.85:
            self._is_nothing(event, self.coordinator.handle(event))
        return effects

    def _is_nothing(self, event: Event, effects: list[Effect]) -> None:
        self._world.count(f"again {type(event).__name__}")
        if any(not isinstance(effect, DiscardSnapshot) for effect in effects):
            self._world.ledger.violated("relay", f"{event} is told again, and brings about {effects}")
