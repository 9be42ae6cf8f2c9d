"""A fake sink that keeps the real contract: stages each batch as a file, and lets committers publish it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.elements import Batch
from penstock.errors import EngineFailed
from penstock.handles import CheckpointId, Committable, FileRef, Guarantee
from simulation.broker import identity_of, take
from simulation.names import first_called

if TYPE_CHECKING:
    from simulation.world import World


@dataclass(frozen=True, slots=True)
class FakeSink:
    """Stages each batch as a file; ``kind`` says who commits it, ``prefix`` under which identity."""

    world: World
    kind: str
    prefix: str = ""
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE

    @property
    def committers(self) -> Mapping[str, str]:
        """Committers of the world, as a user would name them; files have the product's own."""
        return {} if self.kind == "files/1" else {self.kind: "simulation.outside:EpochCommitter"}

    def check(self, schema: object) -> None:
        pass

    def writer(self, context: Any) -> FakeWriter:
        if self.kind == "broker/1":
            return BrokerWriter(self, context)
        return FakeWriter(self, context)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:
        return (f"/out/{first_called(uid)}/.penstock/{log_id}",) if self.kind == "files/1" else ()

    def describe(self) -> str:
        return self.kind


class FakeWriter:
    def __init__(self, sink: FakeSink, context: Any) -> None:
        self._sink = sink
        self._of = context
        beside = f"/out/{first_called(context.uid)}/.penstock/{context.log_id}/{context.uid}/{context.generation}"
        self._root = beside if sink.kind == "files/1" else context.staging
        self._epoch: list[str] = []
        self._batches = 0

    def write(self, batch: Batch) -> int:
        self._sink.world.may_break(EngineFailed, "an executor is lost")
        rows: Any = batch.frame
        if rows:
            self._batches += 1
            path = f"{self._root}/{self._batches}/part-0.json"
            self._sink.world.disk.write_unsynced(path, self._bytes(rows))
            self._epoch.append(path)
        return len(rows)

    def _bytes(self, rows: Any) -> bytes:
        return json.dumps(rows).encode()

    def prepare(self, checkpoint: CheckpointId) -> PreparedRows:
        epoch, self._epoch = self._epoch, []
        return PreparedRows(self, checkpoint, epoch)

    def materialise(self, checkpoint: CheckpointId, epoch: list[str]) -> Sequence[Committable]:
        if not epoch:
            return ()
        try:
            refs = tuple(self._sink.world.disk.settle(path) for path in epoch)
        except BaseException:
            self._epoch[:0] = epoch  # as the product's files sink does: it goes into the next epoch
            raise
        return (self._committable(checkpoint, refs),)

    def _committable(self, checkpoint: CheckpointId, refs: tuple[FileRef, ...]) -> Committable:
        of = self._of
        if self._sink.kind == "files/1":
            name = f"/out/{first_called(of.uid)}/part-{of.log_id}-{checkpoint}-{of.generation}"
            detail: Any = {"moves": {ref.path: f"{name}-{i}.json" for i, ref in enumerate(refs)}}
            target = f"/out/{first_called(of.uid)}"
        else:
            detail, target = {"log": of.log_id}, f"penstock{self._sink.prefix}-{of.log_id}-{of.uid}"
        return Committable(
            uid=of.uid, kind=self._sink.kind, checkpoint=checkpoint, target=target, files=refs, detail=detail
        )

    def close(self) -> None:
        pass


class BrokerWriter(FakeWriter):
    """Has its identity at the broker while it lives."""

    def __init__(self, sink: FakeSink, context: Any) -> None:
        super().__init__(sink, context)
        self._identity = identity_of(context.uid, context.log_id, sink.prefix)
        self._held = take(sink.world, self._identity, context)

    def _committable(self, checkpoint: CheckpointId, refs: tuple[FileRef, ...]) -> Committable:
        identity = self._identity
        return Committable(
            uid=self._of.uid,
            kind=self._sink.kind,
            checkpoint=checkpoint,
            target=identity.transactional_id,
            files=refs,
            detail=identity.to_json(),
        )

    def close(self) -> None:
        if self._held is not None:
            publishers, publisher = self._held
            self._held = None
            publishers.release(publisher)


@dataclass(frozen=True, slots=True)
class PreparedRows:
    writer: FakeWriter
    checkpoint: CheckpointId
    epoch: list[str]

    def materialise(self) -> Sequence[Committable]:
        return self.writer.materialise(self.checkpoint, self.epoch)
