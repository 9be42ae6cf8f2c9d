"""The job that bench/checkpoint.py runs: fills a state, changes some of its keys, tells what happens. Judges nothing.

As a process of its own it tells facts as lines of JSON on its standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

import penstock as ps
from penstock.facts import BarrierPassed, BatchDone, CheckpointCompleted, CheckpointFailed, Fact
from penstock.spark.scheduling import BackgroundSlots
from penstock.spark.session import make_session, state_session

PHASES = ("fill", "change", "rest")
Phase: TypeAlias = Literal["fill", "change", "rest"]
"""All keys once, as fast as it goes; some of them again and again; nothing but one row a second."""

BATCHES_A_SECOND = 5


class Told:
    """A listener that says in dictionaries what bench/checkpoint.py asks about.

    ``loaded`` when each key has come once; ``batch``; ``stall`` with the rows since the barrier before; ``checkpoint``.
    Facts that take time have when they ``began`` and ``ended``, in seconds of the machine's clock.
    """

    def __init__(self, keys: int, tell: Callable[[dict[str, Any]], None]) -> None:
        self._keys = keys
        self._tell = tell
        self._through = 0
        self._since = 0

    def __call__(self, fact: Fact) -> None:
        match fact:
            case BatchDone(task="totals"):
                self._batch(int(str(fact.figures["rows"]["rows"])), fact.duration_ms)
            case BarrierPassed(task="totals"):
                rows, self._since = self._since, 0
                self._tell({"fact": "stall", "checkpoint": fact.checkpoint, "stall_ms": fact.stall_ms, "rows": rows})
            case CheckpointCompleted():
                told = {"fact": "checkpoint", "checkpoint": fact.checkpoint}
                self._tell({**told, "duration_ms": fact.duration_ms, "bytes": fact.bytes, **_span(fact.duration_ms)})
            case CheckpointFailed():
                self._tell({"fact": "failed", "checkpoint": fact.checkpoint, "message": fact.message})

    def _batch(self, rows: int, duration_ms: float) -> None:
        self._since += rows
        self._tell({"fact": "batch", "rows": rows, **_span(duration_ms)})
        before, self._through = self._through, self._through + rows
        if before < self._keys <= self._through:
            self._tell({"fact": "loaded"})


def _span(duration_ms: float) -> dict[str, float]:
    """When something began that has ended just now."""
    ended = time.monotonic()  # of the machine, not of the process
    return {"began": ended - duration_ms / 1e3, "ended": ended}


def tell_background(tell: Callable[[dict[str, Any]], None]) -> None:
    """Tell from now on of each background job when it had its slot: checkpoints, pieces, merges."""
    real = BackgroundSlots.background

    @contextmanager
    def background(self: BackgroundSlots) -> Iterator[None]:
        with real(self):
            began = time.monotonic()
            try:
                yield
            finally:
                tell({"fact": "background", **_span((time.monotonic() - began) * 1e3)})

    setattr(BackgroundSlots, "background", background)  # noqa: B010 - a method is replaced


def pipeline(keys: int, phase: Phase, changes: int) -> Any:
    """One window that stays open, with all keys.

    One row a second comes in any phase: a job without any takes no checkpoints. What changes keys is not there while
    they are filled: it goes by the clock, and would have much to make up for.

    Args:
        changes: how many rows a second change a key each, drawn by chance.
    """

    @ps.pipeline("checkpoint")
    def job(p: ps.Pipeline) -> None:
        all_keys = ps.generator.Source(lambda n: n.selectExpr(*_columns("n")), rows=keys, per_batch=250_000)
        rows = p.read("keys", all_keys)
        if phase != "fill":
            some = ps.generator.Source(
                lambda n: n.selectExpr(*_columns(f"pmod(xxhash64(n, 'changed'), {keys})")),
                rows_per_second=changes if phase == "change" else 1e-6,  # so slow that none is due
                per_batch=max(1, changes // BATCHES_A_SECOND),
            )
            rows = rows.union(p.read("changes", some))
        pulse = ps.generator.Source(lambda n: n.selectExpr(*_columns("0")), rows_per_second=1)
        timed = rows.union(p.read("pulse", pulse)).with_watermark("at", delay="1 second")
        totals = timed.group_by("key", ps.tumbling("365 days")).agg(
            "totals",
            ps.agg.sum("amount").alias("amount"),
            ps.agg.max("price").alias("most"),
            ps.agg.min("price").alias("least"),
            ps.agg.count().alias("n"),
        )
        totals.write("out", ps.console.Sink())

    return job


def _columns(key: str) -> tuple[str, ...]:
    return (
        f"sha2(CAST({key} AS STRING), 256) AS key",
        "timestamp_micros(1700000000000000L + n) AS at",
        "xxhash64(n) % 1000000007 AS amount",
        "xxhash64(n, 1) / 1e3 AS price",
    )


def sizes(folder: Path) -> Iterator[tuple[str, int]]:
    """The files of layers below a folder, and their bytes."""
    for place, folders, names in os.walk(folder):  # which passes over what goes away meanwhile
        folders[:] = [name for name in folders if not name.startswith("_")]  # what a job has not committed or settled
        for path in (Path(place, name) for name in names if name.endswith(".parquet")):
            with suppress(FileNotFoundError):
                yield str(path), path.stat().st_size


def listed(entry: Path) -> Iterator[tuple[int, str, int]]:
    """The files of layers that an entry of the log names: the layer's level, the path, and the bytes."""
    try:
        found = [json.loads(entry.read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        return
    while found:
        match found.pop():
            case {"level": int(level), "files": list(files), "rows": _}:
                yield from ((level, file["path"], file["length"]) for file in files)
            case dict(fields):
                found += fields.values()
            case list(items):
                found += items


def rewritten(spark: Any, state: Path, target: Path) -> int:
    """Bytes that the state takes as one layer: the newest checkpoint's layers, a row for each key, written as they are.

    Only what a checkpoint lists is state: a merge that was given up may leave anything beside it.
    """
    session = state_session(spark, tasks=2)
    entries = sorted(state.glob("*/log/*.json"), reverse=True)
    files = next(files for files in map(list, map(listed, entries)) if files)
    frame = session.read.parquet(*(str(state / "checkpoint" / path) for _, path, _ in files))
    merged = frame.groupBy(*frame.columns[:3]).agg(dict.fromkeys(frame.columns[3:], "max"))
    merged.toDF(*frame.columns).write.parquet(str(target))
    return sum(size for _, size in sizes(target))


def main() -> int:
    arguments = _arguments()
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--driver-memory 10g pyspark-shell")
    spark, writing = make_session("checkpoint"), threading.Lock()

    def tell(told: dict[str, Any]) -> None:
        with writing:  # facts come from several threads
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()

    if arguments.phase == "live":
        tell({"fact": "live", "bytes": rewritten(spark, arguments.home / "state", arguments.home / "live")})
    else:
        tell_background(tell)
        job = ps.Job(
            pipeline(arguments.keys, arguments.phase, arguments.changes),
            state=arguments.home / "state",
            spark=spark,
            listener=Told(arguments.keys, tell),
            checkpoint_every=f"{round(arguments.every * 1000)} ms",
        )
        job.run()
    spark.stop()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phase", choices=(*PHASES, "live"))
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--changes", type=int, required=True)
    parser.add_argument("--every", type=float, required=True)
    parser.add_argument("--home", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
