"""What is told of batches while routes rewrite them: rows, pace, event time. Decides nothing and runs no job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.elements import Batch, Measure
from penstock.facts import Listener, RowsRead
from penstock.graph.nodes import WithWatermark
from penstock.runtime.clock import Clock
from penstock.runtime.drift_gates import DriftGates
from penstock.runtime.output import Rewrite
from penstock.runtime.rate_control import RateControl


def counting(rewrite: Rewrite, task: str, listener: Listener) -> Rewrite:
    """Tell how many rows a source read, once the first job over the batch has told it."""

    def counted(batch: Batch) -> Batch:
        rewritten = rewrite(batch)
        measure = rewritten.measures.get("rows")
        if measure is not None:
            measure.when_settled(lambda: _tell_rows(task, measure.value, listener))
        return rewritten

    return counted


def controlled(rewrite: Rewrite, task: str, control: RateControl, clock: Clock) -> Rewrite:
    """Tell the rate control when a batch leaves, and when a first job over it has succeeded."""

    def rewriting(batch: Batch) -> Batch:
        control.sent(batch.sequence, clock.now())
        rewritten = rewrite(batch)
        ran = Measure(dict)  # tells nothing but that a job has succeeded; it settles after those that are here already
        ran.when_settled(lambda: _through(rewritten, batch.sequence, control, clock))
        return replace(rewritten, measures={**rewritten.measures, f"ran:{task}": ran})

    return rewriting


def followed(rewrite: Rewrite, mark: WithWatermark, gates: DriftGates) -> Rewrite:
    """Tell whoever aligns event times how far a batch has come, once the first job over it has told it."""

    def rewriting(batch: Batch) -> Batch:
        rewritten = rewrite(batch)
        gates.follow(rewritten, mark)
        return rewritten

    return rewriting


def _through(batch: Batch, sequence: int, control: RateControl, clock: Clock) -> None:
    measure = batch.measures.get("rows")
    rows = measure.value.get("rows") if measure is not None and measure.value else batch.rows
    control.through(sequence, rows if isinstance(rows, int) else 0, clock.now())


def _tell_rows(task: str, figures: Mapping[str, object] | None, listener: Listener) -> None:
    rows = figures.get("rows") if figures else None
    if isinstance(rows, int):
        listener(RowsRead(task=task, rows=rows))
