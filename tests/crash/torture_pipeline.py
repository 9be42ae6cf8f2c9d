"""What the jobs that a torture kills have in common: windows, and files for results, late rows and bad ones.

With ``TORTURE_BROKEN=1`` the sinks publish before the manifest: the negative control, which must lose or repeat rows.
``TORTURE_OUT`` is the folder in which they publish, for two jobs that read the same.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import penstock as ps
from penstock.connectors.committers import committer
from penstock.interfaces.sink import CommitContext

SCHEMA = "id LONG, user STRING, amount DOUBLE, at TIMESTAMP"


@dataclass(frozen=True)
class Hasty:
    """A sink that publishes as soon as its output is durable, in the log or not: a mistake on purpose."""

    inner: object

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def writer(self, context):
        return HastyWriter(self.inner.writer(context), context)


@dataclass(frozen=True)
class HastyWriter:
    inner: object
    context: object

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def prepare(self, checkpoint):
        return HastyPrepared(self.inner.prepare(checkpoint), self.context)


@dataclass(frozen=True)
class HastyPrepared:
    inner: object
    context: object

    def materialise(self):
        items = self.inner.materialise()
        for item in items:
            committer(item, CommitContext(filesystem=self.context.filesystem)).commit(item)
        return items


def sink(path):
    made = ps.files.Sink(os.path.join(os.environ.get("TORTURE_OUT", ""), path), format="json")
    return Hasty(made) if os.environ.get("TORTURE_BROKEN") else made


def publish(parsed, bad):
    """Windows of the readable rows, and the three outputs that a verdict compares."""
    totals = (
        parsed.with_watermark("at", delay="5 seconds")
        .group_by("user", ps.tumbling("1 minute"))
        .agg("totals", ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n"))
    )
    totals.write("totals-out", sink("out"))
    totals.late.write("late-out", sink("late"))
    bad.write("bad-out", sink("bad"))


def run_without_interruption(job, state, report):
    """The same input, nothing killed; what the counters say goes into a file."""
    done = ps.Job(job, state=state, checkpoint_every="1s").run(until="caught-up")
    content = {
        "state": done.state,
        "rows_read": dict(done.rows_read),
        "rows_written": dict(done.rows_written),
        "counters": {f"{step}.{name}": amount for (step, name), amount in done.counters.items()},
        "checkpoints": done.checkpoints,
        "restarts": done.restarts,
        "last_failure": done.last_failure,
    }
    Path(report).write_text(json.dumps(content), encoding="utf-8")
