"""Two sources into one step, of which one answers its barrier seconds late: where alignment shows whether it has teeth.

With ``ALIGNED_JOB_HASTE=1`` nothing is slow: to read the rest after the kill.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

import penstock as ps

HELD = 2.0
"""Seconds that the slow source keeps a barrier waiting, for it answers no mail while it polls."""

FAST, SLOW = 60_000, 24
HASTE = bool(os.environ.get("ALIGNED_JOB_HASTE"))


@dataclass(frozen=True)
class Dozing:
    """A source whose every poll takes seconds."""

    inner: ps.generator.Source

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def open(self, context, resume):
        return DozingReader(self.inner.open(context, resume))


@dataclass(frozen=True)
class DozingReader:
    inner: object

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def poll(self, **asked):
        threading.Event().wait(0.0 if HASTE else HELD)
        return self.inner.poll(**asked)


def named(source):
    """Rows of a source, all in one minute of event time, so that no window fires before the end."""
    return lambda numbers: numbers.selectExpr(f"'{source}' AS source", "timestamp_seconds(n % 60) AS at")


@ps.pipeline("aligned")
def job(p: ps.Pipeline) -> None:
    rate = None if HASTE else 2_000
    fast = p.read("fast", ps.generator.Source(named("fast"), rows=FAST, per_batch=5_000, rows_per_second=rate))
    slow = p.read("slow", Dozing(ps.generator.Source(named("slow"), rows=SLOW, per_batch=1)))
    counts = (
        fast.union(slow)
        .with_watermark("at", delay="1 minute")
        .group_by("source", ps.tumbling("1 minute"))
        .agg("counts", ps.agg.count().alias("n"))
    )
    counts.write("counts-out", ps.files.Sink("out", format="json"))
