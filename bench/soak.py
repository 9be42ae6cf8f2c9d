"""Windows that open and close for minutes on end: does anything grow?

make soak MINUTES=10          10 batches a second of 1,000 rows, 5-second windows, checkpoints every 5 seconds
make soak MINUTES=1440        a day

The first 600 batches warm up. What counts: batch times of the last third against those of the first, heap after a full
collection, memory of this process, threads, open files, Spark's blocks, files in the state directory.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import result  # noqa: E402 - found through the path above
from processes import heap_megabytes_after_gc, usage  # noqa: E402

import penstock as ps  # noqa: E402
from penstock.facts import BatchDone, Fact, Restarting  # noqa: E402
from penstock.job.session import make_session  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES_A_SECOND, ROWS, KEYS = 10, 1_000, 1_000
WARM_BATCHES = 600
THIRDS = 3


@ps.pipeline("soak")
def soak(p: ps.Pipeline) -> None:
    rows = p.read("rows", ps.generator.Source(_rows, rows_per_second=BATCHES_A_SECOND * ROWS, per_batch=ROWS))
    timed = rows.with_watermark("at", delay="1 second")
    windows = timed.group_by("key", ps.tumbling("5 seconds"))
    totals = windows.agg("totals", ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n"))
    totals.write("out", ps.files.Sink(_out(), format="parquet"))


def _rows(numbers: DataFrame) -> DataFrame:
    return numbers.selectExpr(
        f"pmod(xxhash64(n), {KEYS}) AS key",
        f"timestamp_micros(1700000000000000L + n * {1_000_000 // (BATCHES_A_SECOND * ROWS)}L) AS at",
        "n % 997 AS amount",
    )


_HOME = Path(tempfile.gettempdir())


def _out() -> str:
    return str(_HOME / "out")


class Batches:
    """When each batch of the windowed step was through, how long it took, and restarts: there must be none."""

    def __init__(self) -> None:
        self.done: list[tuple[float, float]] = []
        self.restarts: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, fact: Fact) -> None:
        match fact:
            case BatchDone(task="totals", duration_ms=took):
                with self._changed:
                    self.done.append((time.monotonic(), took))
                    self._changed.notify_all()
            case Restarting(cause=cause):
                self.restarts.append(cause)

    def wait(self, count: int) -> None:
        """Until so many are through."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.done) >= count or bool(self.restarts), timeout=600)

    def p99(self, since: float, until: float) -> float:
        """Milliseconds, of batches that ended in between; there must be some."""
        took = sorted(took for at, took in self.done if since <= at < until)
        if not took:
            msg = f"no batch was through in {until - since:.0f} s"
            raise AssertionError(msg)
        return took[min(len(took) - 1, int(len(took) * 0.99))]


def main() -> int:
    global _HOME  # noqa: PLW0603 - the pipeline is described before anybody has chosen a folder
    arguments = _arguments()
    _HOME = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    spark, batches, ended = make_session("soak"), Batches(), threading.Event()
    threading.Thread(target=_empty, args=(_HOME / "out", ended), daemon=True).start()
    job = ps.Job(soak, state=_HOME / "state", spark=spark, listener=batches)
    job.start()
    try:
        batches.wait(WARM_BATCHES)
        samples = _watch(spark, arguments.minutes * 60, batches)
        figures = _judge(samples, batches)
    finally:
        job.stop()
        ended.set()
        shutil.rmtree(_HOME, ignore_errors=True)
    result.show("thirds", list(samples[0]), [list(sample.values()) for sample in samples])
    problems = [f"restarted: {cause}" for cause in batches.restarts]
    for problem in problems:
        print(f"PROBLEM {problem}")
    if arguments.minutes >= 10:
        print(f"written: {result.save('soak', figures, settings=vars(arguments), details=samples)}")
    result.tell(figures)
    return 1 if problems else 0


def _watch(spark: SparkSession, seconds: float, batches: Batches) -> list[dict[str, float]]:
    """One sample for each third: the most that was seen of each thing, and the heap at its end."""
    samples = []
    for number in range(THIRDS):
        began, most = time.monotonic(), usage(spark, _HOME / "state")
        while time.monotonic() < began + seconds / THIRDS:
            time.sleep(1)
            most = {name: max(most[name], value) for name, value in usage(spark, _HOME / "state").items()}
        ended = time.monotonic()  # the collection that follows stops the job for a moment, and is in no third
        heap = round(heap_megabytes_after_gc(spark), 1)
        p99 = round(batches.p99(began, ended), 1)
        through = sum(began <= at < ended for at, _ in batches.done)
        samples.append({"third": number + 1, "batches": through, "p99_ms": p99, "heap_mb": heap, **most})
        print(samples[-1], file=sys.stderr, flush=True)
    return samples


def _judge(samples: list[dict[str, float]], batches: Batches) -> dict[str, result.Figure]:
    first, last = samples[0], samples[-1]
    return {
        "p99_growth": round(last["p99_ms"] / first["p99_ms"], 2),
        "heap_growth": round(last["heap_mb"] / first["heap_mb"], 2),
        "rdds_max": int(max(sample["rdds"] for sample in samples)),
        "files_max": int(max(sample["files"] for sample in samples)),
        "files_growth": round(last["files"] / first["files"], 2),
        "python_growth": round(last["python_mb"] / first["python_mb"], 2),
        "threads_growth": int(last["jvm_threads"] + last["python_threads"])
        - int(first["jvm_threads"] + first["python_threads"]),
        "open_files_growth": int(last["open_files"] - first["open_files"]),
        "batches": len(batches.done),
    }


def _empty(folder: Path, ended: threading.Event) -> None:
    """Take what was published away, as a reader would."""
    while not ended.wait(5):
        for path in folder.glob("part-*"):
            path.unlink(missing_ok=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
