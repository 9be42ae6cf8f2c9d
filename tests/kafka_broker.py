"""A broker in memory, as transactional producers see one: who owns an id, what is committed, what a marker says.

A test says which call fails, and whether it had its effect all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.connectors.kafka.identity import Identity, Marker
from penstock.connectors.kafka.transactions import ClientFailure, Publishers, Step


@dataclass(slots=True)
class Failure:
    """What a call is answered, at its next so many times; ``applied``: its effect took place before."""

    step: Step
    failure: ClientFailure
    applied: bool = False
    times: int = 1


@dataclass(eq=False)
class MemoryBroker:
    """Everything that a broker remembers."""

    committed: list[Any] = field(default_factory=list)
    """What readers of committed records see, in its order."""
    markers: dict[str, Marker] = field(default_factory=dict)
    """By transactional id."""
    owners: dict[str, int] = field(default_factory=dict)
    """By transactional id, the number of its newest producer."""
    calls: list[Step] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    closed: int = 0
    made: Counter[str] = field(default_factory=Counter)

    def fails(self, step: Step, code: str, *, retriable: bool = False, applied: bool = False, times: int = 1) -> None:
        self.failures.append(Failure(step, ClientFailure(code, "said so", retriable=retriable), applied, times))

    def connect(self, identity: Identity) -> MemoryTransactions:
        self.made[identity.transactional_id] += 1
        return MemoryTransactions(self, identity.transactional_id)

    def look(self, identity: Identity) -> Marker | None:
        return self.markers.get(identity.transactional_id)

    def publishers(self) -> Publishers:
        """Those of one process."""
        return Publishers(connect=self.connect, look=self.look)


class MemoryTransactions:
    """One producer."""

    def __init__(self, broker: MemoryBroker, id: str) -> None:
        self._broker = broker
        self._id = id
        self._number = -1
        self._open: list[Any] | None = None
        self._marker: Marker | None = None

    def fence(self) -> None:
        with _Call(self._broker, Step.FENCE):
            self._number = self._broker.owners[self._id] = self._broker.owners.get(self._id, 0) + 1

    def marker(self) -> Marker | None:
        with _Call(self._broker, Step.READ):
            return self._broker.markers.get(self._id)

    def begin(self) -> None:
        with _Call(self._broker, Step.BEGIN):
            assert self._open is None, "one transaction after another"
            self._open, self._marker = [], None

    def produce(self, records: Iterable[Any]) -> None:
        assert self._open is not None
        for record in records:
            self._open.append(record)
        with _Call(self._broker, Step.PRODUCE):
            pass

    def mark(self, marker: Marker) -> None:
        with _Call(self._broker, Step.MARK):
            self._require_owner()
            self._marker = marker

    def commit(self) -> None:
        with _Call(self._broker, Step.COMMIT):
            self._require_owner()
            if self._open is not None:
                self._broker.committed += self._open
                if self._marker is not None:
                    self._broker.markers[self._id] = self._marker
            self._open = None

    def _require_owner(self) -> None:
        if self._broker.owners[self._id] != self._number:
            code = "_FENCED"
            raise ClientFailure(code, "another producer has the id")

    def close(self) -> None:
        self._broker.closed += 1
        self._open = None


class _Call:
    """A call that may fail before it has an effect, or after."""

    def __init__(self, broker: MemoryBroker, step: Step) -> None:
        broker.calls.append(step)
        self._failure = next((each for each in broker.failures if each.step is step and each.times > 0), None)
        if self._failure is not None:
            self._failure.times -= 1

    def __enter__(self) -> None:
        if self._failure is not None and not self._failure.applied:
            raise self._failure.failure

    def __exit__(self, *error: object) -> None:
        if self._failure is not None and error[0] is None:
            raise self._failure.failure
