"""Checkpoints of a large state of which a part changes: what they cost, how long they take, how soon it is back.

make bench-checkpoint                                   1 GB of state, 5 % of its keys changed in 5 seconds; 8 minutes
make bench-checkpoint ARGS="--gigabytes 0.1"            a small one

A job fills its state, then changes keys at an even pace, is killed, started again, and left alone until its state has
settled. Bytes are those of layers' files. *Changed* are the keys changed between two checkpoints, each once, at what
a key takes in a layer. Written bytes are counted twice: those of checkpoints, and all, with what compaction rewrites.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import result  # noqa: E402 - found through the path above

BYTES_A_KEY = 80
"""About what a key takes in a layer: 64 characters of a hash, and four random numbers."""

EVERY = 5
CHANGED = 0.05
PATIENCE = 900


@dataclass
class Job:
    """A child process that runs the job, and the facts that it has told."""

    process: subprocess.Popen[str]
    began: float
    errors: Path
    facts: list[dict[str, Any]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                with self.changed:
                    self.facts.append({"seen": time.monotonic(), **json.loads(line)})
                    self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [fact for fact in list(self.facts) if fact["fact"] == kind]

    def wait(self, kind: str, count: int) -> dict[str, Any]:
        """The ``count``-th fact of a kind."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.of(kind)) >= count or self.process.poll() is not None, PATIENCE)
        found = self.of(kind)
        if len(found) < count:
            told = self.errors.read_text(encoding="utf-8")[-3000:]
            msg = f"the job told {len(found)} of {count} {kind}; it has ended with {self.process.poll()}:\n{told}"
            raise AssertionError(msg)
        return found[count - 1]

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait()


class Files:
    """Sizes of all files of layers that were ever seen in a state directory, and those that checkpoints wrote."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seen: dict[str, int] = {}
        self.written: dict[str, int] = {}
        """Of the layers that a checkpoint added, from manifests: not those that compaction made of others."""
        self._ended = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def there(self) -> dict[str, int]:
        return dict(_sizes(self._folder))

    def end(self) -> None:
        self._ended.set()

    def _follow(self) -> None:
        while not self._ended.wait(0.2):
            self.seen.update(_sizes(self._folder))
            for entry in sorted(self._folder.glob("*/log/*"))[-2:]:
                self.written.update(_added(entry))


def _added(entry: Path) -> Iterator[tuple[str, int]]:
    """Files of layers in an entry of the log that no compaction made."""
    try:
        found = [json.loads(entry.read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        return
    while found:
        match found.pop():
            case {"level": 0, "files": list(files), "rows": _}:
                yield from ((file["path"], file["length"]) for file in files)
            case dict(fields):
                found += fields.values()
            case list(items):
                found += items


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    for path in folder.rglob("*.parquet"):
        try:
            if "_temporary" not in path.parts:
                yield str(path), path.stat().st_size
        except FileNotFoundError:
            continue


def main() -> int:
    arguments = _arguments()
    if arguments.child:
        return _child(arguments)
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        figures, details = _measure(home, arguments)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    result.show("checkpoints", ["figure", "value"], [[name, value] for name, value in figures.items()])
    if arguments.gigabytes >= 1:
        print(f"written: {result.save('checkpoint', figures, settings=vars(arguments), details=details)}")
    result.tell(figures)
    return 0


def _measure(home: Path, arguments: argparse.Namespace) -> tuple[dict[str, result.Figure], object]:
    keys = int(arguments.gigabytes * 1e9 / BYTES_A_KEY)
    files = Files(home / "state")
    job = _start(home, keys, "filling the state")
    job.wait("loaded", 1)
    _progress("waiting for the first checkpoints")
    job.wait("checkpoint", len(job.of("checkpoint")) + 3)
    settled, first, before = len(job.of("checkpoint")), dict(files.seen), dict(files.written)
    _progress(f"changing keys for {arguments.checkpoints} checkpoints")
    job.wait("checkpoint", settled + arguments.checkpoints)
    taken = job.of("checkpoint")[settled:]
    written = sum(size for name, size in files.seen.items() if name not in first)
    deltas = sum(size for name, size in files.written.items() if name not in before)
    began = job.of("checkpoint")[settled - 1]["seen"]
    rows = sum(fact["rows"] for fact in job.of("batch") if began <= fact["seen"] <= taken[-1]["seen"])
    stalls = [fact["stall_ms"] for fact in job.of("stall") if fact["seen"] >= taken[0]["seen"]]
    job.end(signal.SIGKILL)
    again = _start(home, keys, "killed; starting again")
    first_batch = again.wait("batch", 1)
    again.wait("checkpoint", 2)
    recovered = again.of("checkpoint")[0]
    again.end(signal.SIGTERM)
    last = _start(home, keys, "letting it settle", changes=False)
    last.wait("checkpoint", arguments.settle)
    last.end(signal.SIGTERM)
    files.end()
    live = _live_bytes(home, keys)
    a_key = live / keys
    distinct = _distinct(keys, rows / len(taken))
    changed = a_key * distinct * len(taken)
    durations = sorted(fact["duration_ms"] for fact in taken)
    figures: dict[str, result.Figure] = {
        "stall_p99_ms": round(_quantile(sorted(stalls), 0.99), 2),
        "checkpoint_p50_ms": round(statistics.median(durations)),
        "checkpoint_p99_ms": round(_quantile(durations, 0.99)),
        "bytes_ratio": round(deltas / changed, 2),
        "bytes_ratio_compaction": round(written / changed, 2),
        "space_ratio": round(sum(files.there().values()) / live, 2),
        "recovery_s": round(first_batch["seen"] - again.began, 1),
        "recovery_published_s": round(recovered["seen"] - again.began, 1),
        "live_mb": round(live / 1e6),
        "keys": keys,
        "changed_keys_a_checkpoint": round(distinct),
        "checkpoints": len(taken),
    }
    return figures, {"durations_ms": durations, "stalls_ms": stalls, "bytes": [fact["bytes"] for fact in taken]}


def _distinct(keys: int, rows: float) -> float:
    """How many different keys so many rows hit that take any key with the same chance."""
    return keys * (1 - (1 - 1 / keys) ** rows)


def _quantile(values: list[float], q: float) -> float:
    return values[min(len(values) - 1, int(len(values) * q))]


def _live_bytes(home: Path, keys: int) -> int:
    """What the state takes if all of it is written as one layer."""
    command = [sys.executable, __file__, "--child", "--live", "--keys", str(keys), "--home", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.strip().splitlines()[-1])


def _progress(doing: str) -> None:
    print(f"{doing} …", file=sys.stderr, flush=True)


def _start(home: Path, keys: int, doing: str, *, changes: bool = True) -> Job:
    _progress(doing)
    began = time.monotonic()
    command = [sys.executable, __file__, "--child", "--keys", str(keys), "--home", str(home)]
    with (home / "errors").open("w") as errors:
        process = subprocess.Popen(
            command if changes else [*command, "--still"], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    job = Job(process, began, home / "errors")
    threading.Thread(target=job.listen, daemon=True).start()
    return job


# ----------------------------------------------------------------------------------------------------- in the child


def _child(arguments: argparse.Namespace) -> int:
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--driver-memory 10g pyspark-shell")
    from penstock.job.session import make_session

    spark = make_session("checkpoint")
    if arguments.live:
        print(_rewritten(spark, arguments.home))
        return 0
    import penstock as ps
    from penstock.facts import BarrierPassed, BatchDone, CheckpointCompleted, Fact

    through = 0

    def tell(**told: object) -> None:
        print(json.dumps(told), flush=True)

    def listen(fact: Fact) -> None:
        nonlocal through
        match fact:
            case BatchDone(task="totals"):
                rows = fact.figures.get("rows", {}).get("rows", 0)
                tell(fact="batch", rows=rows)
                before, through = through, through + int(rows)  # type: ignore[call-overload]
                if before < arguments.keys <= through:
                    tell(fact="loaded", rows=through)
            case CheckpointCompleted():
                tell(fact="checkpoint", duration_ms=fact.duration_ms, bytes=fact.bytes)
            case BarrierPassed(task="totals"):
                tell(fact="stall", stall_ms=fact.stall_ms)

    pipeline = _pipeline(ps, arguments.keys, arguments.still)
    job = ps.Job(pipeline, state=arguments.home / "state", spark=spark, listener=listen, checkpoint_every=f"{EVERY}s")
    job.run()
    spark.stop()
    return 0


def _pipeline(ps: Any, keys: int, still: bool) -> Any:
    """State of one window that stays open: every key once, as fast as it goes; then some of them again and again.

    One row a second comes in any case: a job without any takes no checkpoints.
    """
    changes = int(keys * CHANGED / EVERY)

    def columns(key: str) -> tuple[str, ...]:
        return (
            f"sha2(CAST({key} AS STRING), 256) AS key",
            "timestamp_micros(1700000000000000L + n) AS at",
            "xxhash64(n) % 1000000007 AS amount",
            "xxhash64(n, 1) / 1e3 AS price",
        )

    @ps.pipeline("checkpoint")
    def job(p: Any) -> None:
        all_keys = ps.generator.Source(lambda n: n.selectExpr(*columns("n")), rows=keys, per_batch=250_000)
        some = ps.generator.Source(
            lambda n: n.selectExpr(*columns(f"pmod(xxhash64(n, 'changed'), {keys})")),
            rows_per_second=1 if still else changes,  # so slow that none is due
            per_batch=max(1, changes // 5),
        )
        pulse = ps.generator.Source(lambda n: n.selectExpr(*columns("0")), rows_per_second=1)
        rows = p.read("keys", all_keys).union(p.read("changes", some), p.read("pulse", pulse))
        totals = (
            rows.with_watermark("at", delay="1 second")
            .group_by("key", ps.tumbling("365 days"))
            .agg(
                "totals",
                ps.agg.sum("amount").alias("amount"),
                ps.agg.max("price").alias("most"),
                ps.agg.min("price").alias("least"),
                ps.agg.count().alias("n"),
            )
        )
        totals.write("out", ps.console.Sink())

    return job


def _rewritten(spark: Any, home: Path) -> int:
    """Bytes of the live state as one layer: what is in the newest layers' files, merged, and written as layers are."""
    from penstock.state.blocks import state_session

    session = state_session(spark, tasks=2)
    names = [path for path, _ in _sizes(home / "state")]
    frame = session.read.parquet(*names)
    merged = frame.groupBy(*frame.columns[:3]).agg(dict.fromkeys(frame.columns[3:], "max"))
    renamed = merged.toDF(*frame.columns)
    renamed.write.parquet(str(home / "live"))
    return sum(size for _, size in _sizes(home / "live"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--checkpoints", type=int, default=40, help="so many are measured")
    parser.add_argument("--settle", type=int, default=8, help="checkpoints until the state has settled")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--live", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--still", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--keys", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
