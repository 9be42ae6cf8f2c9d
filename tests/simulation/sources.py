"""A fake source that keeps the real contract, with integers for rows, and judges when and how it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.clock import MonotonicTime
from penstock.errors import SourceUnavailable
from penstock.graph.nodes import Every
from penstock.handles import CheckpointId, Guarantee, Position
from penstock.interfaces.source import CaughtUp, Ended, NoData, PlannedBatch, ReadLimit, Until

if TYPE_CHECKING:
    from simulation.world import World


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
        at = 0 if resume is None else next_row(resume)
        context.spark.times.begins(self.number, at)
        return IntReader(self, at, context.until, context.spark)

    def describe(self) -> str:
        return f"source {self.number}"


def next_row(position: Position) -> int:
    """The row that a position is in front of."""
    detail: Any = position.detail
    return int(detail["next"] if "next" in detail else detail["tick"])


class IntReader:
    """``process`` is whoever reads; a run until caught up ends at what is there when it begins."""

    def __init__(self, source: IntSource, at: int, until: Until, process: Any) -> None:
        self._source = source
        self._at = at
        self._until = until
        self._process = process
        self._slot = -1
        self._end = source.total
        if until is Until.CAUGHT_UP and at < source.total:
            self._end = source.world.chance.randint(at, source.total)

    def poll(self, *, now: MonotonicTime, wall: int, limits: ReadLimit) -> Any:
        source, world = self._source, self._source.world
        self._judge(wall, limits)
        world.may_break(SourceUnavailable, f"source{source.number} cannot be reached")
        if self._at >= self._end:
            return Ended() if self._until is Until.STOPPED else CaughtUp()
        count, wait = world.pace(source.number, self._at)
        if wait:
            return NoData(wake_at=MonotonicTime(now + wait))
        count = min(count, limits.rows or count)
        before, self._at = self._at, min(self._end, self._at + count)
        world.judge_first_read(self._process, source.number)
        alone = (before + source.number) % 3 == 0  # read on when it is through, not ahead of it
        return PlannedBatch(plan=(before, self._at), rows=self._at - before, takes_all=alone)

    def _judge(self, wall: int, limits: ReadLimit) -> None:
        """A source that has a pace is asked once a tick, and never for more than the limit."""
        world = self._source.world
        most = world.terms.settings.max_rows_per_batch
        if most is not None and (limits.rows is None or limits.rows > most):
            world.ledger.violated("limit", f"{limits.rows} rows are asked for, the limit is {most}")
        interval = self._interval()
        if interval is not None:
            slot, self._slot = self._slot, wall // interval
            if self._slot <= slot:
                world.ledger.violated("pace", f"source{self._source.number} is asked twice between two ticks")

    def _interval(self) -> int | None:
        nodes = self._process.pipeline.graph.nodes
        pace = next(node.pace for node in nodes if getattr(node, "source", None) == self._source)
        return pace.interval if isinstance(pace, Every) and self._until is Until.STOPPED else None

    def frame(self, plan: Any) -> Any:
        # Counted here and not when polled: a source that ended in an earlier run may be polled, and its rows refused.
        self._process.times.read(self._source.number, plan[1], self._source.world.now())
        return tuple((self._source.number, row, 0) for row in range(*plan))

    def position(self) -> Position:
        return Position(kind="ints/1", detail={"next": self._at, "of": [self._source.number], "share": self._at / 8})

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        if next_row(position) > self._at:
            self._source.world.ledger.violated("source", "told of a position it has not reached")

    def close(self) -> None:
        self._source.world.may_break(SourceUnavailable, f"source{self._source.number} does not close")
