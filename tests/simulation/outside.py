"""The outside world of the simulation: a table and a broker that remember, and who publishes to what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.connectors.files.committer import FilesCommitter
from penstock.errors import CheckpointUnreadable, SinkIdentityConflict
from penstock.handles import CommitOutcome, Committable
from simulation.broker import SimulatedCommitter

if TYPE_CHECKING:
    from simulation.machine import Process
    from simulation.world import World

Row = tuple[int, int, int]
"""Source, number of the row in it, and what a step counted (0 where there is no step)."""


def rows_of(data: bytes) -> list[Row]:
    return [tuple(row) for row in json.loads(data)] if data else []


@dataclass
class Outside:
    """What sinks remember, apart from files: newest epoch by identity, and who owns a transactional identity.

    ``acknowledged``: how many rows of a source its client need not send again.
    """

    versions: dict[str, tuple[str, int]] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)

    def copy(self) -> Outside:
        return Outside(dict(self.versions), dict(self.owners), dict(self.acknowledged))


class EpochCommitter:
    """A table, whose commit itself checks the identity."""

    def __init__(self, world: World) -> None:
        self._world = world

    def commit(self, item: Committable) -> CommitOutcome:
        return self._act(item, self._rows(item) if not self._is_done(item) else None)

    def void(self, item: Committable) -> CommitOutcome:
        return self._act(item, [] if not self._is_done(item) else None, void=True)

    def _rows(self, item: Committable) -> list[Row] | None:
        found: list[Row] = []
        for ref in item.files:
            data = self._world.disk.read(ref.path)
            if data is None:
                if self._is_done(item):
                    return None
                msg = f"{ref.path}, staged for checkpoint {item.checkpoint}, is gone and nothing shows its publication"
                raise CheckpointUnreadable(msg, uid=item.uid)
            found += rows_of(data)
        return found

    def _is_done(self, item: Committable) -> bool:
        self._world.touches("read", item.uid)
        log_id, version = self._world.outside.versions.get(item.target, ("", -1))
        detail: Any = item.detail
        if log_id and log_id != detail["log"]:
            msg = f"{item.target} remembers log {log_id}"
            raise SinkIdentityConflict(msg, uid=item.uid)
        self._world.observe((log_id, version))
        return version >= item.checkpoint

    def _act(self, item: Committable, rows: Sequence[Row] | None, *, void: bool = False) -> CommitOutcome:
        world, key = self._world, item.target
        if rows is None:
            return CommitOutcome.ALREADY_DONE
        fault = world.sink_call("void" if void else "commit", item.uid)
        if fault == "fails":
            return CommitOutcome.RETRY
        if fault == "late":
            world.disk.in_flight.append(("commit", key, lambda: self._apply(item, rows, void=void)))
            return CommitOutcome.UNKNOWN
        outcome = self._apply(item, rows, void=void)
        world.after("commit", key)
        return CommitOutcome.UNKNOWN if fault else outcome

    def _apply(self, item: Committable, rows: Sequence[Row], *, void: bool) -> CommitOutcome:
        """The atomic act: rows and identity together."""
        world = self._world
        world.touches("void" if void else "commit", item.uid)
        if self._is_done(item):
            return CommitOutcome.ALREADY_DONE
        detail: Any = item.detail
        world.outside.versions[item.target] = (detail["log"], item.checkpoint)
        if void:
            world.ledger.voided(item)
        else:
            world.ledger.published(item.uid, [ref.path for ref in item.files], rows)
        return CommitOutcome.DONE


def committer_for(process: Process, kind: str) -> EpochCommitter | FilesCommitter | SimulatedCommitter:
    """Who publishes in a process."""
    if kind == "files/1":
        return FilesCommitter(process.world.disk)
    return SimulatedCommitter(process.world, process) if kind == "broker/1" else EpochCommitter(process.world)
