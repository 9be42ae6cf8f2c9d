"""The job that ``torture-kafka`` kills: a topic, decoded, windows, files.

It runs in a process of its own, by ``penstock run kafka_job:job``; its environment says which topic of which broker.
"""

from __future__ import annotations

import os
import sys

import penstock as ps
from crash.torture_pipeline import SCHEMA, publish, run_without_interruption

SERVERS, TOPIC = "KAFKA_JOB_SERVERS", "KAFKA_JOB_TOPIC"

TOMBSTONE, EMPTY = "(no value)", "(an empty value)"
"""What the job, and the verdict, call records that no text can stand for."""

SHOWN = f"CASE WHEN value IS NULL THEN '{TOMBSTONE}' WHEN value = X'' THEN '{EMPTY}' ELSE CAST(value AS STRING) END"


@ps.pipeline("torture")
def job(p: ps.Pipeline) -> None:
    source = ps.kafka.Source(
        servers=os.environ[SERVERS],
        topics=[os.environ[TOPIC]],
        group="torture",
        discover_every="1 second",
        max_rows_per_batch=2_000,  # what gathers while nobody reads makes several batches
    )
    parsed, bad = p.read("lines", source).parse_json("value", SCHEMA, on_error="split")
    # The partition stays, so that each has a watermark of its own: none makes the rows of another late.
    publish(parsed.select("partition", "id", "user", "amount", "at"), bad.select(f"{SHOWN} AS value"))


if __name__ == "__main__":
    run_without_interruption(job, sys.argv[1], sys.argv[2])
