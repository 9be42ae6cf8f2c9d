"""Windows that open and close for minutes on end: does anything grow?

make soak MINUTES=10          10 batches a second of 1,000 rows, 5-second windows, checkpoints every 5 seconds
make soak MINUTES=1440        a day
make soak ARGS=--fails        with keys so many that pieces are written, and half of the time none can be

The first 600 batches warm up. What counts: batch times of the last third against those of the first; heap, classes,
accumulators and objects after a full collection; memory of this process, threads, open files, Spark's blocks, files in
the state directory.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import result  # noqa: E402 - found through the path above
from processes import objects_after_gc, usage  # noqa: E402

import penstock as ps  # noqa: E402
from penstock import failpoints  # noqa: E402
from penstock.clock import parse_duration  # noqa: E402
from penstock.facts import BatchDone, CheckpointFailed, Fact, Restarting  # noqa: E402
from penstock.spark.session import make_session  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

THIRDS = 3
PATIENCE = 600
"""Seconds in which the batches that warm up must be through."""


@dataclass(frozen=True)
class Pace:
    """How much happens a second.

    Attributes:
        batches: a second.
        rows: in each of them.
        window: how long a window is.
        checkpoint_every: from one checkpoint to the next.
        warm: batches that do not count yet.
        keys: how many there are.
        fails: whether layers cannot be written every other interval, so that checkpoints and pieces fail.
    """

    batches: int = 10
    rows: int = 1_000
    window: str = "5 seconds"
    checkpoint_every: str = "5 seconds"
    warm: int = 600
    keys: int = 1_000
    fails: bool = False


def soak(out: Path, pace: Pace) -> Any:
    """The pipeline: as much event time passes as there is time."""

    def rows_of(numbers: DataFrame) -> DataFrame:
        return numbers.selectExpr(
            f"pmod(xxhash64(n), {pace.keys}) AS key",
            f"timestamp_micros(1700000000000000L + n * {1_000_000 // (pace.batches * pace.rows)}L) AS at",
            "n % 997 AS amount",
        )

    @ps.pipeline("soak")
    def job(p: ps.Pipeline) -> None:
        source = ps.generator.Source(rows_of, rows_per_second=pace.batches * pace.rows, per_batch=pace.rows)
        timed = p.read("rows", source).with_watermark("at", delay="1 second")
        windows = timed.group_by("key", ps.tumbling(pace.window))
        totals = windows.agg("totals", ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n"))
        totals.write("out", ps.files.Sink(str(out), format="parquet"))

    return job


class Batches:
    """When each batch of the windowed step was through, how long it took, and restarts: there must be none."""

    def __init__(self) -> None:
        self.done: list[tuple[float, float]] = []
        self.restarts: list[str] = []
        self.failed = 0
        self._changed = threading.Condition()

    def __call__(self, fact: Fact) -> None:
        match fact:
            case BatchDone(task="totals", duration_ms=took):
                with self._changed:
                    self.done.append((time.monotonic(), took))
                    self._changed.notify_all()
            case CheckpointFailed():
                self.failed += 1
            case Restarting(cause=cause):
                with self._changed:
                    self.restarts.append(cause)
                    self._changed.notify_all()

    def wait(self, count: int) -> None:
        """Until so many are through, or one never was.

        Raises:
            AssertionError: they are not, in ten minutes.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self.done) >= count or bool(self.restarts), timeout=PATIENCE)
            if len(self.done) < count and not self.restarts:
                msg = f"only {len(self.done)} of {count} batches were through in {PATIENCE} s"
                raise AssertionError(msg)

    def p99(self, since: float, until: float) -> float:
        """Milliseconds, of batches that ended in between; there must be some."""
        took = sorted(took for at, took in self.done if since <= at < until)
        if not took:
            msg = f"no batch was through in {until - since:.0f} s; restarts: {self.restarts}"
            raise AssertionError(msg)
        return took[min(len(took) - 1, int(len(took) * 0.99))]


Sample = dict[str, float]


def measure(spark: SparkSession, home: Path, pace: Pace, seconds: float) -> tuple[list[Sample], Batches]:
    """Run the pipeline below ``home`` until it is warm, and for so many seconds more; a sample for each third."""
    batches, ended = Batches(), threading.Event()
    emptying = threading.Thread(target=_empty, args=(home / "out", ended), daemon=True)
    emptying.start()
    failing = threading.Thread(target=_fail, args=(pace, ended), daemon=True)
    failing.start()
    job = ps.Job(
        soak(home / "out", pace),
        state=home / "state",
        spark=spark,
        listener=batches,
        checkpoint_every=pace.checkpoint_every,
        tolerated_failures=1_000_000 if pace.fails else 0,
    )
    job.start()
    try:
        batches.wait(pace.warm)
        samples = [_watch(spark, home / "state", seconds / THIRDS, batches) for _ in range(THIRDS)]
    finally:
        job.stop()
        ended.set()
        emptying.join()
        failing.join()
    return samples, batches


def _watch(spark: SparkSession, state: Path, seconds: float, batches: Batches) -> Sample:
    """The most that was seen of each thing, and what a full collection leaves at the end."""
    began, most = time.monotonic(), usage(spark, state)
    while time.monotonic() < began + seconds:
        time.sleep(min(1, seconds / 10))
        most = {name: max(most[name], value) for name, value in usage(spark, state).items()}
    ended = time.monotonic()  # the collection that follows stops the job for a moment, and is in no third
    left = objects_after_gc(spark)
    p99 = round(batches.p99(began, ended), 1)
    through = sum(began <= at < ended for at, _ in batches.done)
    sample = {"batches": through, "p99_ms": p99, **left, **most}
    print(sample, file=sys.stderr, flush=True)
    return sample


def judge(samples: list[Sample]) -> dict[str, result.Figure]:
    """The last third against the first, and the most of all."""
    first, last = samples[0], samples[-1]

    def growth(name: str) -> float:
        return round(last[name] / first[name], 2)

    def more(*names: str) -> int:
        return int(sum(last[name] - first[name] for name in names))

    return {
        "p99_growth": growth("p99_ms"),
        "heap_growth": growth("heap_mb"),
        "classes_growth": growth("classes"),
        "accumulators_growth": growth("accumulators"),
        "java_objects_growth": growth("java_objects"),
        "python_objects_growth": growth("python_objects"),
        "rdds_max": int(max(sample["rdds"] for sample in samples)),
        "files_max": int(max(sample["files"] for sample in samples)),
        "rdds_growth": growth("rdds"),
        "files_growth": growth("files"),
        "python_growth": growth("python_mb"),
        "threads_growth": more("jvm_threads", "python_threads"),
        "open_files_growth": more("open_files"),
        "p99_ms": last["p99_ms"],
        "batches": int(sum(sample["batches"] for sample in samples)),
    }


def main() -> int:
    arguments = _arguments()
    pace = Pace(keys=1_000_000, window="30 seconds", fails=True) if arguments.fails else Pace()
    samples, batches = measure(make_session("soak"), result.bench_folder(), pace, arguments.minutes * 60)
    figures = judge(samples) | {"failed_checkpoints": batches.failed}
    rows = [[number, *sample.values()] for number, sample in enumerate(samples, start=1)]
    result.show("thirds", ["third", *samples[0]], rows)
    problems = [f"restarted: {cause}" for cause in batches.restarts]
    for problem in problems:
        print(f"PROBLEM {problem}")
    if arguments.minutes >= 10 and not arguments.fails:
        print(f"written: {result.save('soak', figures, settings=vars(arguments), details=samples)}")
    result.tell(figures)
    return 1 if problems else 0


def _empty(folder: Path, ended: threading.Event) -> None:
    """Take what was published away, as a reader would."""
    while not ended.wait(5):
        for path in folder.glob("part-*"):
            path.unlink(missing_ok=True)


def _fail(pace: Pace, ended: threading.Event) -> None:
    """Have no layer written every other interval of checkpoints, if the pace says so."""
    seconds = parse_duration("checkpoint_every", pace.checkpoint_every) / 1e6
    while pace.fails and not ended.wait(seconds):
        with failpoints.armed("state.layer.durable", "error:EIO"):
            ended.wait(seconds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--fails", action="store_true", help="layers cannot be written half of the time")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
