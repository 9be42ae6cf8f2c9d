"""The job whose exported checkpoints others begin with: that of ``torture-files``, and a step that keeps whole days."""

from __future__ import annotations

import penstock as ps
from crash.torture_pipeline import SCHEMA, publish, sink


@ps.pipeline("torture")
def job(p: ps.Pipeline) -> None:
    lines = p.read("lines", ps.files.Source("in", format="text", poll_interval_ms=50, max_files_per_batch=8))
    parsed, bad = lines.parse_json("value", SCHEMA, on_error="split")
    publish(parsed, bad)
    days = (
        parsed.with_watermark("at", delay="5 seconds")
        .group_by("user", ps.tumbling("1 day"))
        .agg("days", ps.agg.count().alias("n"))
    )
    days.select("user", "cast(window_start AS STRING) AS day", "n").write("days-out", sink("days"))
