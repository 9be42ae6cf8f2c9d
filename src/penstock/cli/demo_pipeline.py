"""Orders, summed by user and minute. Copy this file and change it: it is a whole pipeline.

penstock run orders:orders --state state
penstock checkpoints orders --state state
"""

from __future__ import annotations

import penstock as ps


@ps.pipeline("orders")  # the job's name: renaming this file orphans nothing
def orders(p: ps.Pipeline) -> None:
    """Read JSON lines, decode them, sum each user's orders of a minute, write each sum exactly once."""
    lines = p.read("lines", ps.files.Source("in", format="text", bounded=True, max_files_per_batch=1))
    parsed, bad = lines.parse_json("value", "id LONG, user STRING, amount DOUBLE, at TIMESTAMP", on_error="split")
    totals = (
        parsed.where("amount > 0")
        .with_watermark("at", delay="5 seconds")
        .group_by("user", ps.tumbling("1 minute"))
        .agg("totals", ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n"))  # "totals" addresses the state
    )
    totals.write("totals-out", ps.files.Sink("out", format="json"))
    totals.late.write("late-out", ps.files.Sink("late", format="json"))  # rows after their window has closed
    bad.write("bad-out", ps.files.Sink("bad", format="json"))  # lines that are not what they should be
