"""Kafka in the simulation: the product's committer and publishers over a client of this world's broker."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.connectors.kafka.client import Connection
from penstock.connectors.kafka.identity import Identity, Marker
from penstock.connectors.kafka.transactions import (
    ClientFailure,
    KafkaCommitter,
    Publisher,
    Publishers,
    take_identity,
)
from penstock.errors import CheckpointUnreadable, SinkIdentityConflict
from penstock.handles import CommitOutcome, Committable
from penstock.interfaces.sink import CommitContext
from simulation.fibers import FiberLock

if TYPE_CHECKING:
    from simulation.machine import Process
    from simulation.world import World

Row = tuple[int, int, int]
Acting: TypeAlias = "dict[tuple[int, str], tuple[Committable, bool]]"
"""By thread and identity: the output that it publishes or voids."""


def identity_of(uid: str, log_id: str, prefix: str) -> Identity:
    """What a sink is to the broker; its name has the log, so that a new directory is a new name."""
    connection = Connection(servers="k:9092", options={})
    id = f"penstock{prefix}-{log_id}-{uid}"
    return Identity(connection=connection, transactional_id=id, topic=uid, log_id=log_id)


class SimulatedProducer:
    """A producer of this world: what it commits is there at once, later, or never, and its answer may be lost."""

    def __init__(self, world: World, identity: Identity, acting: Acting) -> None:
        self._world = world
        self._id = identity.transactional_id
        self._uid = identity.topic
        self._acting = acting
        self._mine = -1
        self._rows: list[Row] = []
        self._mark: Marker | None = None

    def fence(self) -> None:
        world, owners = self._world, self._world.outside.owners
        fault = world.sink_call("init", self._uid)
        self._mine = owners[self._id] = owners.get(self._id, 0) + 1
        world.last_init[self._id] = world.current.name if world.current else ""
        if fault:
            raise _unanswered()

    def marker(self) -> Marker | None:
        world = self._world
        world.sink_call("marker", self._uid)
        world.touches("read", self._uid)
        metadata, version = world.outside.versions.get(self._id, ("", -1))
        world.observe((metadata, version))
        return Marker.parse(version + 1, metadata) if metadata else None

    def begin(self) -> None:
        self._rows, self._mark = [], None

    def produce(self, records: Iterable[Any]) -> None:
        self._rows = list(records)

    def mark(self, marker: Marker) -> None:
        self._mark = marker

    def commit(self) -> None:
        world, rows, mark = self._world, self._rows, self._mark
        item, is_void = self._acting.get((threading.get_ident(), self._id), (None, False))
        call = "take" if item is None else "void" if is_void else "commit"
        fault = world.sink_call(call, self._uid)
        if fault == "fails":
            raise _unanswered()
        if fault == "late":
            world.disk.in_flight.append((call, self._id, lambda: self._apply(item, rows, mark, is_void=is_void)))
            raise _unanswered()
        if not self._apply(item, rows, mark, is_void=is_void):
            code = "_FENCED"
            raise ClientFailure(code, "another producer has the id")
        world.after("commit", self._id)
        if fault:
            raise _unanswered()

    def _apply(self, item: Committable | None, rows: list[Row], mark: Marker | None, *, is_void: bool) -> bool:
        """The atomic act: rows and marker together, unless another producer has the id."""
        world = self._world
        world.touches("void" if is_void else "commit", self._uid)
        if world.outside.owners[self._id] != self._mine:
            world.observe("fenced")
            return False
        if mark is not None:
            world.outside.versions[self._id] = (mark.metadata, mark.next - 1)
        if item is not None and is_void:
            world.ledger.voided(item)
        elif item is not None and rows:
            world.ledger.published(item.uid, [ref.path for ref in item.files], rows)
        return True

    def close(self) -> None:
        pass


def _unanswered() -> ClientFailure:
    code = "_TIMED_OUT"
    return ClientFailure(code, "no answer")


class SimulatedPublishers(Publishers):
    """Those of one process."""

    def __init__(self, world: World) -> None:
        self.acting: Acting = {}
        super().__init__(connect=lambda identity: SimulatedProducer(world, identity, self.acting), clock=world)

    def acquire(self, identity: Identity) -> Publisher:
        publisher = super().acquire(identity)
        if not isinstance(publisher._lock, FiberLock):
            publisher._lock = FiberLock()  # type: ignore[assignment]  # a thread's lock would stop the whole simulation
        return publisher

    def state(self) -> object:
        """What the process knows of its producers."""
        return tuple(
            (key, publisher._client is not None, publisher.marker, publisher._was_fenced)
            for key, (publisher, _) in sorted(self._used.items())
        )


class SimulatedCommitter(KafkaCommitter):
    """The product's, over rows of this world."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        owned = process.owned
        context = CommitContext(
            filesystem=world.disk, check_owner=owned.require_owner if owned is not None else lambda: None
        )
        super().__init__(context, process.publishers)

    def commit(self, item: Committable) -> CommitOutcome:
        return self._act(item, is_void=False)

    def void(self, item: Committable) -> CommitOutcome:
        return self._act(item, is_void=True)

    def _act(self, item: Committable, *, is_void: bool) -> CommitOutcome:
        # Two attempts of one process may try the same at a time; each is a thread.
        id, acting = (threading.get_ident(), Identity.of(item).transactional_id), self._process.publishers.acting
        acting[id] = item, is_void
        try:
            return super().void(item) if is_void else super().commit(item)
        except SinkIdentityConflict:
            self._world.asked_about_markers = True
            raise
        finally:
            acting.pop(id, None)

    def state(self) -> object:
        return self._process.publishers.state()

    def _identity(self, item: Committable) -> Identity:
        """Once the job has stopped for a lost marker, the operator has looked whether the records are there."""
        identity = Identity.of(item)
        if not self._world.asked_about_markers:
            return identity
        is_there = all(ref.path in self._world.ledger.facts.done for ref in item.files)
        return replace(identity, on_lost_marker="discard" if is_there else "publish")

    def _records(self, item: Committable, topic: str) -> Iterator[Any]:
        from simulation.outside import rows_of

        del topic
        for ref in item.files:
            data = self._world.disk.read(ref.path)
            if data is None:
                msg = f"{ref.path}, staged for checkpoint {item.checkpoint}, is gone"
                raise CheckpointUnreadable(msg, uid=item.uid)
            yield from rows_of(data)


def take(world: World, identity: Identity, context: Any) -> tuple[Publishers, Publisher]:
    """Begin a run as the sink's writer does."""
    process = world.current
    assert process is not None
    publisher = process.publishers.acquire(identity)
    try:
        take_identity(
            publisher,
            uid=context.uid,
            next_checkpoint=context.next_checkpoint,
            check_owner=context.check_owner,
        )
    except BaseException:
        process.publishers.release(publisher)
        raise
    return process.publishers, publisher
