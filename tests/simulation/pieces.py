"""Fake connectors and a fake step that keep the real contracts, with integers for rows and tuples for frames."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from penstock.elements import Batch
from penstock.errors import CheckpointAborted, CheckpointUnreadable, LayerMissing
from penstock.handles import Committable, FileRef, Guarantee, LayerRef, Position, StateHandle
from penstock.ids import CheckpointId, EventTime, Instant
from penstock.operators.base import LATE, MAIN
from penstock.sources.base import CaughtUp, Ended, Nothing, Rows, Until
from simulation.fibers import FiberLock

if TYPE_CHECKING:
    from simulation.world import World

SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class IntSource:
    """``total`` rows, numbered from 0."""

    world: World
    number: int
    total: int
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE

    def schema(self, spark: object) -> Any:
        return None

    def open(self, context: Any, resume: Position | None) -> IntReader:
        at = 0 if resume is None else int(resume.detail)  # type: ignore[arg-type]
        return IntReader(self, at, context.until)

    def describe(self) -> str:
        return f"source {self.number}"


class IntReader:
    def __init__(self, source: IntSource, at: int, until: Until) -> None:
        self._source = source
        self._at = at
        self._until = until

    def poll(self, *, now: Instant, wall: int, limits: object) -> Any:
        if self._at == self._source.total:
            return Ended() if self._until is Until.STOPPED else CaughtUp()
        count, wait = self._source.world.pace(self._source.number)
        if wait:
            return Nothing(wake_at=Instant(now + wait))
        before, self._at = self._at, min(self._source.total, self._at + count)
        return Rows(plan=(before, self._at), rows=self._at - before)

    def frame(self, plan: Any) -> Any:
        return tuple((self._source.number, row, 0) for row in range(*plan))

    def position(self) -> Position:
        return Position(kind="ints/1", detail=self._at)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        if int(position.detail) > self._at:  # type: ignore[arg-type]
            self._source.world.ledger.violated("source", "told of a position it has not reached")

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class CountSpec:
    """Counts the rows of each source: what it emits shows whether its state fits what it reads."""

    world: World
    kind: str = "count/1"

    def ports(self, inputs: object) -> Mapping[str, Any]:
        return {MAIN: None, LATE: None}

    def open(self, context: Any, restored: StateHandle | None) -> CountOperator:
        return CountOperator(self.world, context, restored)

    def describe(self) -> str:
        return "count"


class CountOperator:
    """State is a stack of layers: what batches added. Named at a barrier, written when asked, merged now and then."""

    def __init__(self, world: World, context: Any, restored: StateHandle | None) -> None:
        self._world = world
        self._disk = world.disk
        self._context = context
        self._refs: tuple[LayerRef, ...] = restored.layers if restored else ()
        self._counts: dict[int, int] = {}
        for ref in self._refs:
            for number, _ in self._read(ref):
                self._counts[number] = self._counts.get(number, 0) + 1
        self._fresh: list[tuple[int, int]] = []
        self._layers: list[tuple[int, list[tuple[int, int]]]] = []
        self._epoch = self._durable = self._names = 0
        self._writing = FiberLock()

    def _read(self, ref: LayerRef) -> list[tuple[int, int]]:
        rows: list[tuple[int, int]] = []
        for file in ref.files:
            data = self._disk.read(file.path)
            if data is None:
                msg = f"{file.path} is gone"
                raise LayerMissing(msg)
            if sha256(data).hexdigest() != file.sha256:
                msg = f"{file.path} is not what was written"
                raise CheckpointUnreadable(msg)
            rows += [tuple(row) for row in json.loads(data)]
        return rows

    def process(self, batch: Batch, *, source: int, watermark: EventTime, emit: Callable[..., None]) -> None:
        out = []
        rows: Any = batch.frame
        for number, row, _ in rows:
            count = self._counts.get(number, 0)
            if count != row:
                self._world.ledger.violated("state", f"row {row} of source {number} meets a state of {count} rows")
            self._counts[number] = count + 1
            self._fresh.append((number, row))
            out.append((number, row, count + 1))
        batch.settle()
        for row in out:  # several batches from one piece of work: a channel may overshoot its capacity
            emit(Batch(frame=(row,), sequence=0, rows=1))

    def advance(self, watermark: EventTime, *, emit: Callable[..., None]) -> None:
        least = self._world.event_time_of(self._counts)
        if watermark > least:
            self._world.ledger.violated("watermark", f"watermark {watermark} although only {least} was seen everywhere")

    def snapshot(self, checkpoint: CheckpointId) -> PendingCounts:
        self._epoch += 1
        self._layers.append((self._epoch, self._fresh))
        self._fresh = []
        return PendingCounts(self, self._epoch)

    def materialise(self, epoch: int) -> StateHandle:
        with self._writing:
            if epoch <= self._durable:
                msg = f"snapshot {epoch} is overtaken"
                raise CheckpointAborted(msg)
            rows = [row for e, layer in self._layers if self._durable < e <= epoch for row in layer]
            if rows:
                self._refs = (*self._refs, self._write(rows, 0))
            self._durable = epoch
            self._layers = [(e, layer) for e, layer in self._layers if e > epoch]
            return StateHandle(kind="count/1", schema="", layers=self._refs)

    def _write(self, rows: Sequence[tuple[int, int]], level: int) -> LayerRef:
        self._names += 1
        path = f"{self._context.folder}/{self._names}/part-0"
        self._disk.write_unsynced(path, json.dumps(rows).encode())
        file = self._disk.settle(path)
        return LayerRef(name=f"{self._context.generation}-{self._names}", level=level, rows=len(rows), files=(file,))

    def completed(self, checkpoint: CheckpointId) -> None:
        pass

    def maintain(self) -> Callable[[], None] | None:
        return self._compact if len(self._refs) > 2 else None

    def _compact(self) -> None:
        with self._writing:
            merged = [row for ref in self._refs for row in self._read(ref)]
            self._refs = (self._write(merged, 1),)

    def close(self) -> None:
        self._counts = {}


@dataclass(frozen=True, slots=True)
class PendingCounts:
    operator: CountOperator
    epoch: int

    def materialise(self) -> StateHandle:
        return self.operator.materialise(self.epoch)


@dataclass(frozen=True, slots=True)
class FakeSink:
    """Stages each batch as a file; ``kind`` says who commits it."""

    world: World
    kind: str
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE

    def check(self, schema: object) -> None:
        pass

    def writer(self, context: Any) -> FakeWriter:
        return FakeWriter(self, context)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:
        return (f"/out/{uid}/.penstock/{log_id}/{uid}",) if self.kind == "files/1" else ()

    def describe(self) -> str:
        return self.kind


class FakeWriter:
    def __init__(self, sink: FakeSink, context: Any) -> None:
        self._sink = sink
        self._of = context
        beside = [*sink.stages_in(context.log_id, context.uid)]
        self._root = f"{beside[0]}/{context.generation}" if beside else context.staging
        self._epoch: list[str] = []
        self._batches = 0

    def write(self, batch: Batch) -> int:
        self._batches += 1
        path = f"{self._root}/{self._batches}/part-0.json"
        rows: Any = batch.frame
        self._sink.world.disk.write_unsynced(path, json.dumps(rows).encode())
        self._epoch.append(path)
        return len(rows)

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
            name = f"/out/{of.uid}/part-{of.log_id}-{checkpoint}-{of.generation}"
            detail: Any = {"moves": {ref.path: f"{name}-{i}.json" for i, ref in enumerate(refs)}}
            target = f"/out/{of.uid}"
        else:
            detail, target = {"log": of.log_id}, f"penstock-{of.log_id}-{of.uid}"
        return Committable(
            uid=of.uid, kind=self._sink.kind, checkpoint=checkpoint, target=target, files=refs, detail=detail
        )

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class PreparedRows:
    writer: FakeWriter
    checkpoint: CheckpointId
    epoch: list[str]

    def materialise(self) -> Sequence[Committable]:
        return self.writer.materialise(self.checkpoint, self.epoch)


def kept(batch: Batch, readers: int) -> Batch:
    """What the Spark edge does at a branch, without anything to free."""
    return replace(batch, leases=())
