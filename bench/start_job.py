"""The job of ``bench/start.py``: rows counted by user and minute."""

from __future__ import annotations

import penstock as ps


@ps.pipeline("start")
def job(p: ps.Pipeline) -> None:
    rows = p.read("rows", ps.files.Source("in", schema="id LONG, user STRING, at TIMESTAMP"))
    counted = (
        rows.with_watermark("at", delay="5 seconds")
        .group_by("user", ps.tumbling("1 minute"))
        .agg("counts", ps.agg.count().alias("n"))
    )
    counted.select("user", "date_format(window_start, 'yyyy-MM-dd HH:mm') AS minute", "n").write(
        "out", ps.files.Sink("out", format="json")
    )
