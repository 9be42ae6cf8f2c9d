"""The pipeline of the golden checkpoints, as it was when they were written and as it may be later; and its input.

``tools/golden_checkpoints.py`` writes a checkpoint with today's code; ``tests/spark/test_golden_checkpoints.py``
restores those of all formats. What is here may change only so that checkpoints written long ago are still meant.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import penstock as ps
from penstock.api.pipeline import PipelineDefinition

CHECKPOINTS: Final = Path(__file__).parent / "checkpoints"
"""A folder for each format of the log, with the state directory of the job ``shop``."""

WRITTEN: Final = 1_767_225_600_000_000_000
"""When the input was written, in nanoseconds: a files source knows its files by that."""

SCHEMA: Final = "user STRING, n INT, amount DOUBLE, at TIMESTAMP"
BEFORE: Final = [
    ("ann", 3, 1.5, "00:00:10"),
    ("ann", 4, 2.5, "00:00:50"),
    ("bob", 9, 8.0, "00:00:55"),
    ("ann", 5, 0.5, "00:02:05"),
    ("bob", 7, 4.0, "00:02:10"),
    ("bob", 8, 1.0, "00:02:20"),
]
SINCE: Final = [
    ("ann", 1, 9.0, "00:02:22"),
    ("eve", 2, 3.0, "00:02:59"),
    ("bob", 6, 6.5, "00:03:01"),
]
OPEN_FROM: Final = "00:02:00"
"""Windows that begin before it were sent before the checkpoint."""

END: Final = [("end", 0, 0.0, "01:00:00")]
"""Brings the time to which all other windows are closed."""


def drop(folder: Path, name: str, rows: list[tuple[str, int, float, str]]) -> None:
    """A file of the input, the same in every byte and date."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"user": u, "n": n, "amount": amount, "at": f"2026-01-01T{at}Z"} for u, n, amount, at in rows]
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    os.utime(folder / name, ns=(WRITTEN, WRITTEN))


def pipeline(folder: Path) -> PipelineDefinition:
    """As it was."""

    @ps.pipeline("shop")
    def shop(p: ps.Pipeline) -> None:
        timed = p.read("orders", ps.files.Source(folder / "in", schema=SCHEMA)).with_watermark("at", delay="0 seconds")
        totals = timed.group_by("user", ps.tumbling("1 minute")).agg(
            "totals",
            ps.agg.sum("amount").alias("amount"),
            ps.agg.count().alias("orders"),
            ps.agg.min("n").alias("low"),
            ps.agg.avg("amount").alias("mean"),
            ps.agg.last("n").alias("newest"),
        )
        totals.write("totals-out", ps.files.Sink(folder / "totals", format="json"))
        visits = timed.group_by("user", ps.session("20 seconds")).agg("visits", ps.agg.collect("n").alias("numbers"))
        visits.write("visits-out", ps.files.Sink(folder / "visits", format="json"))

    return shop


RENAMED: Final = {"orders": "sales", "visits": "stays", "visits-out": "stays-out"}


def changed(folder: Path) -> PipelineDefinition:
    """Other code: one aggregate more and one less, a wider type, three new uids, and a source more before the other."""

    @ps.pipeline("shop")
    def shop(p: ps.Pipeline) -> None:
        more, sales = (
            p.read(uid, ps.files.Source(folder / name, schema=SCHEMA)).with_watermark("at", delay="0 seconds")
            for uid, name in (("more", "more"), ("sales", "in"))
        )
        timed = sales.union(more).with_column("n", "CAST(n AS LONG)")
        totals = timed.group_by("user", ps.tumbling("1 minute")).agg(
            "totals",
            ps.agg.max("amount").alias("top"),
            ps.agg.last("n").alias("newest"),
            ps.agg.sum("amount").alias("amount"),
            ps.agg.count().alias("orders"),
            ps.agg.min("n").alias("low"),
        )
        totals.write("totals-out", ps.files.Sink(folder / "totals", format="json"))
        stays = timed.group_by("user", ps.session("20 seconds")).agg("stays", ps.agg.collect("n").alias("numbers"))
        stays.write("stays-out", ps.files.Sink(folder / "visits", format="json"))

    return shop
