"""The job that the torture kills: text files, decoded, windows, files; late and bad rows into sinks of their own.

It runs in a process of its own, by ``penstock run files_job:job``, in the folder that holds ``in``. With
``FILES_JOB_BROKEN=1`` its sinks publish before the manifest: the negative control, which must lose or repeat rows.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import penstock as ps
from penstock.sinks.committers import committer

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
            committer(item.kind, self.context.filesystem).commit(item)
        return items


def sink(path):
    made = ps.files.Sink(path, format="json")
    return Hasty(made) if os.environ.get("FILES_JOB_BROKEN") else made


@ps.pipeline("torture")
def job(p: ps.Pipeline) -> None:
    lines = p.read("lines", ps.files.Source("in", format="text", poll_interval_ms=50, max_files_per_batch=8))
    parsed, bad = lines.parse_json("value", SCHEMA, on_error="split")
    totals = (
        parsed.with_watermark("at", delay="5 seconds")
        .group_by("user", ps.tumbling("1 minute"))
        .agg("totals", ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n"))
    )
    totals.write("totals-out", sink("out"))
    totals.late.write("late-out", sink("late"))
    bad.write("bad-out", sink("bad"))


def run_without_interruption(state, report):
    """The same input, nothing killed; what the counters say goes into a file."""
    done = ps.Job(job, state=state, checkpoint_every="1s").run(until="caught-up")
    content = {
        "state": done.state,
        "rows_read": dict(done.rows_read),
        "rows_written": dict(done.rows_written),
        "counters": {f"{step}.{name}": amount for (step, name), amount in done.counters.items()},
        "checkpoints": done.checkpoints,
    }
    Path(report).write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    run_without_interruption(sys.argv[1], sys.argv[2])
