"""A fake keyed step that keeps the real contract: counts rows, keeps layers and timers, judges what reaches it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from penstock.clock import MAX_WATERMARK, EventTime
from penstock.elements import Batch, ObservedMetrics
from penstock.errors import CheckpointAborted, CheckpointUnreadable, EngineFailed, LayerMissing
from penstock.handles import CheckpointId, Json, LayerRef, StateHandle
from penstock.interfaces.operator import LATE_PORT, MAIN_PORT, DeferredBatch
from penstock.operators.timers import KeyedTimer, TimeKind, TimerQueue
from simulation.fibers import FiberLock
from simulation.letters import AGAIN

if TYPE_CHECKING:
    from simulation.shapes import Shape
    from simulation.world import World

WAIT = 3_000
"""How long a row waits for its timer, in microseconds of event time; in processing time ten times that."""


@dataclass(frozen=True, slots=True)
class CountSpec:
    """Counts the rows of each source: what it emits shows whether its state fits what it reads."""

    world: World
    shape: Shape
    kind: str = "count/1"

    def ports(self, inputs: object) -> Mapping[str, Any]:
        return {MAIN_PORT: None, LATE_PORT: None}

    def open(self, context: Any, restored: StateHandle | None) -> CountOperator:
        return CountOperator(self.world, self.shape, context, restored)

    def describe(self) -> str:
        return "count"


class CountOperator:
    """State is a stack of layers: what batches added. Named at a barrier, written when asked, merged now and then.

    With timers a row is kept until its timer is due: so what waits is state, too.
    """

    def __init__(self, world: World, shape: Shape, context: Any, restored: StateHandle | None) -> None:
        self._world = world
        self._shape = shape
        self._disk = world.disk
        self._context = context
        self._refs: tuple[LayerRef, ...] = restored.layers if restored else ()
        self._counts: dict[int, int] = {}
        for ref in self._refs:
            for number in (number for number, row in self._read(ref) if row < AGAIN):
                self._counts[number] = self._counts.get(number, 0) + 1
        self.timers = TimerQueue.restored(restored.detail if restored else None)
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

    def process(
        self, batch: Batch, *, source: int, watermark: EventTime, emit: Callable[..., None]
    ) -> DeferredBatch | None:
        self._world.may_break(EngineFailed, "an executor is lost")
        rows: Any = batch.frame
        due = [self._count(number, row) for number, row, _ in rows]
        if self._shape.defers and due and not batch.run_gates:
            return self._defer(batch, due, emit)
        self._fresh += [(number, row) for number, row, _ in due]
        batch.settle()
        if self._shape.timed:
            for number, row, _ in due:
                self._wait_for(number, row)
            due = self._due(watermark)
        self._emit(due, emit)
        return None

    def _defer(self, batch: Batch, due: Sequence[tuple[int, int, int]], emit: Callable[..., None]) -> DeferredBatch:
        """Whoever runs what is emitted makes the layer: what it has is known, and in the state, after that."""
        ran = ObservedMetrics(dict)

        def finish() -> None:
            self._fresh += [(number, row) for number, row, _ in due]
            batch.settle()

        emit(Batch(frame=tuple(due), sequence=0, rows=len(due), metrics={"ran": ran}), MAIN_PORT)
        return DeferredBatch(ran=ran, finish=finish)

    def _count(self, number: int, row: int) -> tuple[int, int, int]:
        if row >= AGAIN:  # read from a letter: in no order, and kept as well
            return (number, row, 0)
        count, expected = self._counts.get(number, 0), self._shape.good_below(number, row)
        if count < expected or (count > expected and self._world.is_exact):
            self._world.ledger.violated("state", f"row {row} of source {number} meets a state of {count} rows")
        self._counts[number] = count + 1
        return (number, row, expected + 1)

    def _emit(self, rows: Sequence[tuple[int, int, int]], emit: Callable[..., None]) -> None:
        for row in rows:  # several batches from one piece of work: a channel may overshoot its capacity
            port = LATE_PORT if self._shape.is_late(*row[:2]) else MAIN_PORT
            emit(Batch(frame=(row,), sequence=0, rows=1), port)

    # ------------------------------------------------------------------------------------------------------------ time

    def _wait_for(self, number: int, row: int) -> None:
        """Rows with an odd number wait for the wall clock; others as a session does, which a later timer prolongs."""
        key = f"{number}:{row}"
        if row % 2:
            self.timers.add(TimeKind.PROCESSING, KeyedTimer(self._world.wall() + 10 * WAIT, key))
            return
        first = KeyedTimer(self._world.time_of(row), key)
        self.timers.add(TimeKind.EVENT, first)
        self.timers.remove(TimeKind.EVENT, first)
        self.timers.add(TimeKind.EVENT, KeyedTimer(self._world.time_of(row) + WAIT, key))

    def _due(self, watermark: EventTime) -> list[tuple[int, int, int]]:
        wall = 2**62 if watermark == MAX_WATERMARK else self._world.wall()
        due = [*self.timers.due(TimeKind.EVENT, watermark), *self.timers.due(TimeKind.PROCESSING, wall)]
        later = self.timers.next(TimeKind.EVENT)
        if later is not None and later <= watermark:
            self._world.ledger.violated("timers", f"a timer of {later} waits although the watermark is {watermark}")
        keys = [tuple(int(part) for part in timer.key.split(":")) for timer in due]
        return [(number, row, self._shape.good_below(number, row) + 1) for number, row in keys]

    def advance(self, watermark: EventTime, *, emit: Callable[..., None]) -> None:
        self._context.spark.times.judge_rise(watermark, self._counts)
        if self._shape.timed:
            self._emit(self._due(watermark), emit)

    # ------------------------------------------------------------------------------------------------------ snapshots

    def snapshot(self, checkpoint: CheckpointId) -> PendingCounts:
        self._epoch += 1
        self._layers.append((self._epoch, self._fresh))
        self._fresh = []
        return PendingCounts(self, self._epoch, self.timers.snapshot() if self._shape.timed else None)

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
    timers: Json

    def materialise(self) -> StateHandle:
        handle = self.operator.materialise(self.epoch)
        return StateHandle(kind=handle.kind, schema=handle.schema, layers=handle.layers, detail=self.timers)
