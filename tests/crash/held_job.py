"""A job whose step leaves each batch's job to its sink: killed where that has run, the step still holds the rows."""

from __future__ import annotations

import penstock as ps


@ps.pipeline("torture")
def job(p: ps.Pipeline) -> None:
    schema = "user STRING, x LONG, at TIMESTAMP"
    source = ps.files.Source("in", schema=schema, poll_interval_ms=50, max_files_per_batch=1)
    rows = p.read("rows", source).with_watermark("at", delay="1 hour")
    changes = rows.group_by("user", ps.tumbling("1 minute")).agg("sums", ps.agg.sum("x").alias("x"), emit="updates")
    changes.write("out", ps.files.Sink("out", format="json"))
