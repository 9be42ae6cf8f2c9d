"""A fake sink that keeps the real contract: a batch is a file or in blocks, and committers publish files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from penstock.connectors.epochs import EpochPart, KeptBatch, OutputEpochs, StagedBatch
from penstock.elements import Batch
from penstock.errors import EngineFailed, KeptOutputLost
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
    """Every second batch is kept in blocks, as the product keeps it, until the barrier makes a file of it."""

    def __init__(self, sink: FakeSink, context: Any) -> None:
        self._sink = sink
        self._of = context
        beside = f"/out/{first_called(context.uid)}/.penstock/{context.log_id}/{context.uid}/{context.generation}"
        self._root = beside if sink.kind == "files/1" else context.staging
        self._epochs = OutputEpochs(context.kept)
        self._files: dict[str, str] = {}
        self._batches = 0
        self._is_closed = False

    def write(self, batch: Batch) -> int:
        self._sink.world.may_break(EngineFailed, "an executor is lost")
        rows: Any = batch.frame
        if rows:
            self._batches += 1
            path = f"{self._root}/{self._batches}/part-0.json"
            if self._batches % 2:
                self._sink.world.disk.write_unsynced(path, self._bytes(rows))
                self._epochs.add(StagedBatch(path, len(rows)))
            else:
                self._epochs.add(self._kept(path, rows))
        return len(rows)

    def _kept(self, name: str, rows: Any) -> KeptBatch:
        return KeptBatch(
            content=(name, rows), rows=len(rows), bytes=1, since=self._of.now(), free=partial(self._freed, name)
        )

    def _freed(self, name: str) -> None:
        """Blocks are gone: what was in them must be in a file that the log names, while the writer is in use."""
        ledger = self._sink.world.ledger
        if self._is_closed or ledger.facts.generation != self._of.generation:
            return
        if self._files.get(name) not in ledger.facts.staged:
            ledger.violated("S9", f"blocks of '{self._of.uid}' are freed, and the log names no file with their rows")

    def _bytes(self, rows: Any) -> bytes:
        return json.dumps(rows).encode()

    def prepare(self, checkpoint: CheckpointId) -> PreparedRows:
        return PreparedRows(self, checkpoint, self._epochs.close_epoch())

    def materialise(self, checkpoint: CheckpointId, epoch: list[EpochPart]) -> Sequence[Committable]:
        if not epoch:
            return ()
        try:
            paths = [self._written(part) if isinstance(part, KeptBatch) else part.folder for part in epoch]
            refs = tuple(self._sink.world.disk.settle(path) for path in paths)
        except BaseException:
            self._epochs.reopen(epoch)  # as the product's sinks do: it goes into the next epoch
            raise
        self._epochs.durable(checkpoint, epoch)
        return (self._committable(checkpoint, refs),)

    def _written(self, kept: KeptBatch) -> str:
        """The file that a kept batch is written to, under a name of its own each time."""
        world = self._sink.world
        world.may_break(KeptOutputLost, "a block is lost")
        self._batches += 2  # what is odd stays odd
        name, rows = cast("Any", kept.content)
        path = self._files[name] = f"{self._root}/{self._batches}-kept/part-0.json"
        world.disk.write_unsynced(path, self._bytes(rows))
        return path

    def completed(self, checkpoint: CheckpointId) -> None:
        self._epochs.completed(checkpoint)

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
        self._is_closed = True
        self._epochs.close()


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
        super().close()
        if self._held is not None:
            publishers, publisher = self._held
            self._held = None
            publishers.release(publisher)


@dataclass(frozen=True, slots=True)
class PreparedRows:
    writer: FakeWriter
    checkpoint: CheckpointId
    epoch: list[EpochPart]

    def materialise(self) -> Sequence[Committable]:
        return self.writer.materialise(self.checkpoint, self.epoch)
