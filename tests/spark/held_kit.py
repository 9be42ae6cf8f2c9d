"""What tests of rows that are held have in common: a job whose sink stands still, and what changes must add up to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import penstock as ps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.api.pipeline import PipelineDefinition
    from penstock.testing.pipeline_run import PipelineRun

NOWHERE = "/nowhere/at/all"
SCHEMA = "user STRING, x LONG, at TIMESTAMP"
HELD = "waiting for a job over its results"


def row(user: str | None, minute: int, x: int = 1) -> dict[str, object]:
    return {"user": user, "x": x, "at": f"2026-01-01T00:{minute:02}:01Z"}


def sums(*, sinks: int = 1, name: str = "sums", **more: Any) -> PipelineDefinition:
    """Sums by user and minute, whose changes are sent with each batch: the step leaves its job to its sink."""

    @ps.pipeline(name)
    def pipeline(p: ps.Pipeline) -> None:
        rows = p.read("in", ps.files.Source(NOWHERE, schema=SCHEMA)).with_watermark("at", delay="1 hour")
        grouped = rows.group_by("user", ps.tumbling("1 minute"))
        changes = grouped.agg("sums", ps.agg.sum("x").alias("x"), emit="updates", **more)
        for number in range(sinks):
            changes.write(f"out{number or ''}", ps.memory.Sink())

    return pipeline


def hold(t: PipelineRun, task: str, *, is_held: bool = True) -> None:
    """A step or sink is not stepped, or is again: what stands before it waits."""
    t._job.move(lambda running: running.hold(task, is_held=is_held))


def doing(t: PipelineRun, task: str) -> str:
    return t._job.running.doing[task]


def expected(given: Iterable[Mapping[str, object]]) -> dict[tuple[object, object], int]:
    """Of rows, the sum by user and minute."""
    found: Counter[tuple[object, object]] = Counter()
    for each in given:
        found[each["user"], int(str(each["at"])[14:16])] += each["x"]  # type: ignore[operator]
    return dict(found)


def told(changes: Iterable[Mapping[str, Any]]) -> dict[tuple[object, object], int]:
    """What changes leave behind. Each must fit what was told before it: so none is lost, and none is told twice.

    Within a checkpoint rows come sorted, so a window's changes are followed from one to the next, in any order.
    """
    befores: Counter[tuple[object, object, int]] = Counter()
    afters: Counter[tuple[object, object, int]] = Counter()
    inserts: Counter[tuple[object, object]] = Counter()
    for each in changes:
        place = each["user"], each["window_start"].minute
        if each["_change"] == "update_before":
            befores[(*place, each["x"])] += 1
        else:
            afters[(*place, each["x"])] += 1
            inserts[place] += each["_change"] == "insert"
    assert max(inserts.values(), default=1) == 1, "a window was told as new twice"
    left = afters - befores
    assert not befores - afters, "something was taken back that had not been told"
    assert all(count == 1 for count in left.values())
    return {(user, minute): x for user, minute, x in left}
