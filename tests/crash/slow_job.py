"""A job whose first batch takes far longer than a stop waits, unless ``SLOW_JOB_STEPS`` is small."""

import os

import penstock as ps

STEPS = int(os.environ.get("SLOW_JOB_STEPS", "30000000"))


@ps.pipeline("torture")
def job(p: ps.Pipeline) -> None:
    lines = p.read("lines", ps.files.Source("in", format="text", poll_interval_ms=50))
    slow = lines.with_column("spent", f"aggregate(sequence(1, {STEPS}), 0D, (sum, n) -> sum + sqrt(n + length(value)))")
    slow.write("out", ps.files.Sink("out", format="json"))
