"""A job that passes lines on as they come: a batch of it takes little, and each line is to be published once."""

from __future__ import annotations

import penstock as ps
from crash.torture_pipeline import sink


@ps.pipeline("torture")
def job(p: ps.Pipeline) -> None:
    lines = p.read("lines", ps.files.Source("in", format="text", poll_interval_ms=50))
    lines.write("out", sink("out"))
