"""The job that ``torture-files`` kills: text files, decoded, windows, files.

It runs in a process of its own, by ``penstock run files_job:job``, in the folder that holds ``in``.
"""

from __future__ import annotations

import sys

import penstock as ps
from crash.torture_pipeline import SCHEMA, publish, run_without_interruption


@ps.pipeline("torture")
def job(p: ps.Pipeline) -> None:
    source = ps.files.Source("in", format="text", poll_interval_ms=50, max_files_per_batch=8, after_read="archive")
    lines = p.read("lines", source)
    parsed, bad = lines.parse_json("value", SCHEMA, on_error="split")
    publish(parsed, bad)


if __name__ == "__main__":
    run_without_interruption(job, sys.argv[1], sys.argv[2])
