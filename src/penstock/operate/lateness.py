"""Rows that a job has put aside, by step and cause, and where they went: from its counters and its graph. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.job.report import Report
    from penstock.job.side_outputs import Outlet, SideOutput
    from penstock.operate.standing import Standing

LATE: Final = "late"
BAD: Final = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why rows were put aside, and how many; ``None``: they are not counted."""

    cause: str
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PutAside:
    """What one step has put aside in the run whose numbers these are.

    Attributes:
        step: its uid, or what it does.
        kind: ``late`` or ``bad``.
        rows: in all; ``None`` where nobody has counted them.
        causes: what they add up from.
        partitions: late rows by source partition, as far as rows say which they are of.
        sinks: where they are written; none: nothing takes them, they are counted and gone.
    """

    step: str
    kind: str
    rows: int | None
    causes: tuple[Cause, ...]
    partitions: tuple[tuple[str, int], ...]
    sinks: tuple[Outlet, ...]


def put_aside(now: Standing) -> tuple[PutAside, ...]:
    """Every side output of the job, in the order of its steps; none if no run has left its numbers."""
    if now.hint is None:
        return ()
    return tuple(_all(now.hint.report, now.hint.side_outputs))


def _all(report: Report, outputs: tuple[SideOutput, ...]) -> Iterator[PutAside]:
    known = {each.step for each in outputs if each.kind == LATE}
    for each in outputs:
        yield _late(report, each.step, each.sinks) if each.kind == LATE else _bad(report, each)
    for step, name in sorted(report.counters):
        if name == LATE and step not in known:
            yield _late(report, step, ())


def _late(report: Report, step: str, sinks: tuple[Outlet, ...]) -> PutAside:
    rows = report.counters.get((step, "late"), 0)
    missing = report.counters.get((step, "missing_time"), 0)
    causes = (Cause(cause="below the watermark", rows=rows - missing), Cause(cause="no event time", rows=missing))
    return PutAside(
        step=step,
        kind=LATE,
        rows=rows,
        causes=causes,
        partitions=tuple(sorted((by, n) for (of, by), n in report.late_by.items() if of == step)),
        sinks=sinks,
    )


def _bad(report: Report, output: SideOutput) -> PutAside:
    """Bad rows have no counter of their own: a sink that gets them all, and no others, has counted them."""
    direct = [sink.uid for sink in output.sinks if sink.is_direct]
    rows = report.rows_written.get(direct[0], 0) if direct else None
    return PutAside(
        step=output.step,
        kind=BAD,
        rows=rows,
        causes=(Cause(cause="cannot be decoded", rows=rows),),
        partitions=(),
        sinks=output.sinks,
    )
