"""Tumbling windows over generated rows: penstock against Structured Streaming, and against one plain Spark job.

make bench-windows                                         all sizes: a quarter of an hour, more with --rounds 3
make bench-windows ARGS="--keys 200000 --rows 100000"      one size

The same rows, windows and Parquet files in one JVM, one engine after the other, ``--rounds`` times; of each engine's
rounds the median counts, and of Structured Streaming's two state stores the better. A round before them only warms the
JVM. Results must be equal.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import result  # noqa: E402 - found through the path above
from engines import Load, Phases, Speed, compare, emptied, penstock, plain_job, structured_streaming  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

KEYS, ROWS = {"few": 100, "many": 200_000}, {"10k": 10_000, "100k": 100_000, "1m": 1_000_000}
COLUMNS = ["key", "window_start", "window_end", "amount", "n"]
HEAP = "6g"


class Bench:
    """Runs engines one after the other and keeps what each gave."""

    def __init__(self, spark: SparkSession, home: Path, phases: Phases, rounds: int) -> None:
        self._spark = spark
        self._home = home
        self._phases = phases
        self._rounds = rounds
        self.speeds: list[dict[str, object]] = []

    def size(self, load: Load) -> dict[str, Speed]:
        """The engines on one size; their results compared in the first round."""
        engines = {
            "penstock": penstock,
            "hdfs": partial(structured_streaming, store="hdfs"),
            "rocksdb": partial(structured_streaming, store="rocksdb"),
        }
        speeds = self._alternate(load, engines, equal=True)
        return {"penstock": speeds["penstock"], "other": max(speeds["hdfs"], speeds["rocksdb"], key=_rate)}

    def intervals(self, load: Load) -> dict[str, Speed]:
        """penstock without checkpoints, with one every five seconds, and with one every second."""
        every = {every: partial(penstock, every=every) for every in ("5s", "1s")}
        return self._alternate(load, {"none": without_checkpoints, **every})

    def bound(self, load: Load, rows: int) -> Speed:
        """What a plain Spark job does with as many rows."""

        def run(spark: SparkSession, load: Load, folder: Path, _phases: Phases) -> Speed:
            return plain_job(spark, load, folder, rows)

        return self._alternate(load, {"plain": run})["plain"]

    def _alternate(self, load: Load, engines: dict[str, Callable[..., Speed]], *, equal: bool = False):
        found: dict[str, list[Speed]] = {name: [] for name in engines}
        for number in range(self._rounds + 1):
            with emptied(self._home / "round") as folder:
                for name, engine in engines.items():
                    (folder / name).mkdir()
                    speed = engine(self._spark, load, folder / name, self._phases)
                    if number:  # the first only warms the JVM: who comes first would pay for all
                        found[name].append(speed)
                    self.speeds.append({**asdict(load), "round": number, **asdict(speed)})
                    print(f"{load}: {speed.engine} {speed.rows_per_second:,.0f} rows/s", file=sys.stderr, flush=True)
                if equal and number == 0:
                    for name in [name for name in engines if name != "penstock"]:
                        compare(self._spark, folder / "penstock", folder / name, COLUMNS)
        return {name: sorted(speeds, key=_rate)[(len(speeds) - 1) // 2] for name, speeds in found.items()}


def _rate(speed: Speed) -> float:
    return speed.rows_per_second


def without_checkpoints(spark: SparkSession, load: Load, folder: Path, phases: Phases) -> Speed:
    """penstock with the first checkpoint in an hour, but with output in files as it comes: the others write it too."""
    with patch("penstock.connectors.staging.LARGE_BATCH", 0):  # a batch as large is not kept in memory
        return penstock(spark, load, folder, phases, every="1h")


def main() -> int:
    arguments = _arguments()
    phases = Phases(arguments.warm, arguments.seconds)
    home = result.bench_folder()
    bench = Bench(_session(), home, phases, arguments.rounds)
    figures: dict[str, result.Figure] = {}
    table = []
    for few, keys in KEYS.items():
        for size, rows in ROWS.items():
            if arguments.keys not in (None, keys) or arguments.rows not in (None, rows):
                continue
            speeds = bench.size(Load(keys, rows))
            ours, theirs = speeds["penstock"], speeds["other"]
            figures[f"ratio_{few}_{size}"] = round(_rate(ours) / _rate(theirs), 2)
            figures[f"cpu_ratio_{few}_{size}"] = round(theirs.processor_micros / ours.processor_micros, 2)
            table.append([keys, rows, *(f"{_rate(speed):,.0f}" for speed in (ours, theirs)), theirs.engine])
            if size == "1m" or arguments.rows:
                bound = bench.bound(Load(keys, rows), arguments.bound_rows)
                figures[f"bound_{few}_{size}"] = round(_rate(ours) / _rate(bound), 2)
                table.append([keys, rows, f"{_rate(ours):,.0f}", f"{_rate(bound):,.0f}", bound.engine])
    if not arguments.no_intervals:
        figures |= _checkpoint_costs(bench)
    figures["cpu_ratio"] = round(statistics.geometric_mean(v for k, v in figures.items() if k.startswith("cpu_")), 2)
    figures["rows_per_batch"] = ", ".join(str(rows) for rows in ROWS.values() if arguments.rows in (None, rows))
    result.show("rows a second", ["keys", "rows a batch", "penstock", "other", "which"], table)
    if arguments.keys is None and arguments.rows is None:
        settings = {**vars(arguments), "heap": HEAP}
        print(f"written: {result.save('windows', figures, settings=settings, details=bench.speeds)}")
    result.tell(figures)
    return 0


def _checkpoint_costs(bench: Bench) -> dict[str, result.Figure]:
    """What share of the rows without checkpoints is lost to those every 5 seconds, and every second."""
    speeds = bench.intervals(Load(KEYS["many"], ROWS["100k"]))
    without = _rate(speeds["none"])
    return {f"checkpoint_cost_{every}": round(1 - _rate(speeds[every]) / without, 3) for every in ("5s", "1s")}


def _session() -> SparkSession:
    """Made by penstock: its settings help both."""
    from penstock.spark.session import make_session

    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"--driver-memory {HEAP} pyspark-shell")
    return make_session("bench")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, choices=KEYS.values())
    parser.add_argument("--rows", type=int, choices=ROWS.values(), help="rows a batch")
    parser.add_argument("--warm", type=float, default=6, help="seconds that do not count, for each engine and round")
    parser.add_argument("--seconds", type=float, default=12, help="seconds that do")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--bound-rows", type=int, default=20_000_000)
    parser.add_argument("--no-intervals", action="store_true", help="leave out what checkpoints cost")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
