"""What event time may be in one attempt, and must be: drawn from what its sources read, not from its watermarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, EventTime, MonotonicTime
from penstock.runtime.task import StepTask
from simulation.entries import marks

if TYPE_CHECKING:
    from simulation.shapes import Shape
    from simulation.world import World


class Times:
    """How far each source was read, and for how long it was quiet.

    ``restored`` is the checkpoint that the attempt began with.
    """

    def __init__(self, world: World, shape: Shape, restored: int | None = None) -> None:
        self._world = world
        self._shape = shape
        self._manifest = None if restored is None else world.ledger.facts.manifests.get(restored)
        self._restored = max(marks(self._manifest, "count"), default=MIN_WATERMARK)
        self._began: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self._last = dict.fromkeys(shape.sources, world.now())
        self._longest = dict.fromkeys(shape.sources, 0)

    def begins(self, source: int, at: int) -> None:
        """A source is opened in front of row ``at``."""
        self._began[source] = self._rows[source] = at

    def read(self, source: int, rows: int, now: MonotonicTime) -> None:
        """A source sends a batch, after which ``rows`` of it were read."""
        self._longest[source] = max(self._longest[source], now - self._last[source])
        self._rows[source], self._last[source] = rows, now

    def judge_rise(self, watermark: EventTime, counts: dict[int, int]) -> None:
        """The keyed step, which has counted so much, is told of a watermark: an input that is not idle allows it."""
        if not self._world.is_exact or self._world.is_draining or watermark <= self._restored:
            return
        for source in self._shape.sources:
            allowed = self._world.time_allowed(source, counts.get(source, 0), good=True)
            if watermark > allowed and not self._was_quiet(source):
                self._world.ledger.violated(
                    "watermark", f"watermark {watermark}, although source {source} allows only {allowed}"
                )

    def _was_quiet(self, source: int) -> bool:
        idle_after = self._shape.idle_after
        if idle_after is None or not self._shape.marked:
            return False
        return max(self._longest[source], self._world.now() - self._last[source]) >= idle_after

    def judge_rest(self, task: StepTask) -> None:
        """A task that finds nothing to do stands where its inputs allow; one that was quiet for long is no let."""
        active: list[int] = []
        quiet: list[int] = []
        restored, begins_anew = self._marks(task)
        for i in range(len(task._inputs)):
            each = task._inputs[i]
            if (
                each.with_watermark is None
                or each.unsettled
                or each.channel.peek() is not None
                or each.last_batch is None
            ):
                return
            if task._inputs.valve.inputs[i] == MAX_WATERMARK:
                continue
            after = self._shape.idle_after
            may_be = after is not None and each.channel.is_drained  # else its source may wait for what is at work
            is_quiet = may_be and self._world.now() - each.last_batch >= after
            (quiet if is_quiet else active).append(
                self._told(self._shape.sources[i], restored[i], begins_anew=begins_anew)
            )
        wanted = min(active) if active else max(quiet, default=MIN_WATERMARK)
        if task._announced < wanted and task._output.has_room:
            self._world.ledger.violated(
                "idle", f"event time of '{task.id}' stands at {task._announced}, its inputs allow {wanted}"
            )

    def _told(self, source: int, restored: int, *, begins_anew: bool) -> int:
        """The largest event time that a step was told by a source.

        That of its rows from the first on; where the step or its inputs begin anew, from the attempt's first on, and
        what the snapshot says of those before it.
        """
        parsed = self._shape.parses and not self._shape.union
        rows = range(self._began[source] if begins_anew else 0, self._rows[source])
        good = [row for row in rows if not (parsed and self._shape.is_bad(source, row))]
        told = self._world.time_of(good[-1]) if good else MIN_WATERMARK
        return max(told, restored) if begins_anew else told

    def _marks(self, task: StepTask) -> tuple[tuple[int, ...], bool]:
        """What is restored for each of its inputs, and whether it or one of them may begin anew.

        An input that is another now, or one of more or fewer, begins anew; and a step that the checkpoint does not
        have, since an attempt ran without it.
        """
        found, inputs = marks(self._manifest, task.id), len(task._inputs)
        begins_anew = self._world.is_recut or (self._manifest is not None and len(found) != inputs)
        return found if len(found) == inputs else (MIN_WATERMARK,) * inputs, begins_anew
