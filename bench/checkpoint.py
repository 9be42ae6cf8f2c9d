"""Checkpoints of a large state of which a part changes: what they cost, how long they take, how soon it is back.

make bench-checkpoint                                   1 GB of state, 5 % of its keys changed in 10 seconds; 15 minutes
make bench-checkpoint ARGS="--gigabytes 0.05"           a small one

A job fills its state and is stopped; the next one changes keys at an even pace, is killed and started again; the last
one leaves the state alone until it has settled. Bytes are those of layers' files. *Changed* are the keys changed
between two checkpoints, each once, at what a key takes in a layer that has them all. *Written* is all that was, by
checkpoints and by the merges that come round meanwhile: at 5 % of the keys about one of all layers in 45 checkpoints.
``batch_p99_ratio`` is the p99 of data batches beside a checkpoint or a background job, over the p99 of the others.
``recovery_s`` is from the start of a new process to its first batch, after a kill. It has the archive of Spark's
classes, which ``penstock run`` makes at its first orderly end; here it is made before, in a folder of the bench.
``recovery_without_archive_s`` is that of a process that may not use it.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import result  # noqa: E402 - found through the path above
from checkpoint_job import listed, sizes  # noqa: E402
from start import archive, warm  # noqa: E402

BYTES_A_KEY = 80
"""About what a key takes in a layer: 64 characters of a hash, and four random numbers."""

PATIENCE = 900
"""Seconds without a fact of a kind that is waited for, after which it is given up."""
CALM = 2
"""Seconds after which nothing more comes into a layer's folder that has not changed."""
AS_BEFORE, SETTLED, LONGEST = 6, 0.0005, 200
"""The state has settled when its bytes were so many checkpoints long within so much of each other; or is given up."""

Told: TypeAlias = dict[str, Any]


@dataclass
class Story:
    """What a job has told so far, each thing with when it was heard.

    Attributes:
        is_over: whether no more will come.
    """

    facts: list[Told] = field(default_factory=list)
    is_over: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, told: Told) -> None:
        with self._changed:
            self.facts.append({"seen": time.monotonic(), **told})
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self.is_over = True
            self._changed.notify_all()

    def of(self, kind: str) -> list[Told]:
        return [fact for fact in list(self.facts) if fact["fact"] == kind]

    def wait(self, kind: str, count: int) -> Told:
        """The ``count``-th fact of a kind."""
        with self._changed:
            while len(found := self.of(kind)) < count and not self.is_over and self._hears_more(kind, len(found)):
                pass
        if len(found) < count:
            msg = f"the job told {len(found)} of {count} {kind}, and {'ended' if self.is_over else 'then no more'}"
            raise AssertionError(msg)
        return found[count - 1]

    def _hears_more(self, kind: str, than: int) -> bool:
        return self._changed.wait_for(lambda: len(self.of(kind)) > than or self.is_over, PATIENCE)


class Child:
    """A process that runs the job."""

    def __init__(self, home: Path, phase: str, options: list[str], doing: str, *, use: str = "use") -> None:
        print(f"{doing} …", file=sys.stderr, flush=True)
        self.story, self.began = Story(), time.monotonic()
        self._errors = home / f"errors-{phase}"
        command = [sys.executable, str(HERE / "checkpoint_job.py"), phase, "--home", str(home), *options]
        variables = os.environ | archive(home, use)
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables)
        atexit.register(self._process.kill)  # if the bench fails; it would write on into a folder that is deleted
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def wait(self, kind: str, count: int) -> Told:
        try:
            return self.story.wait(kind, count)
        except AssertionError as error:
            told = self._errors.read_text(encoding="utf-8")[-3000:]
            msg = f"{error}; exit code {self._process.poll()}; failed checkpoints {self.story.of('failed')}:\n{told}"
            raise AssertionError(msg) from None

    def end(self, how: signal.Signals) -> None:
        self._process.send_signal(how)
        self._process.wait()
        self._listener.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                told = json.loads(line)
                self.story.add(told)
                if told["fact"] == "checkpoint":
                    words = f"checkpoint {told['checkpoint']}: {told['duration_ms']:,.0f} ms, {told['bytes']:,} bytes"
                    print(f"  {time.monotonic() - self.began:6.1f} s  {words}", file=sys.stderr, flush=True)
        self.story.end()


class Files:
    """Sizes of all files of layers that were ever seen in a state directory, and those that checkpoints wrote."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seen: dict[str, int] = {}
        self.by_checkpoints: dict[str, int] = {}
        """Of the layers that a checkpoint added, from manifests: not those that merges made of others."""
        self._looked: dict[Path, float] = {}  # folders of layers, and when they were read last
        self._listed: set[Path] = set()
        self._ended = threading.Event()
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def there(self) -> int:
        """Bytes that lie there now."""
        return sum(dict(sizes(self._folder)).values())

    def end(self) -> None:
        self._ended.set()
        self._follower.join()

    def look(self) -> None:
        """Take in what is there now, but for layers that look complete: to read thousands of folders took half a core.

        A layer whose last job takes longer than ``CALM`` looks complete too early. Then a manifest tells its files.
        """
        for layer in self._folder.glob("*/state/*/*/*"):
            now = time.time()
            with suppress(FileNotFoundError):
                if layer.stat().st_mtime + CALM > self._looked.get(layer, 0):
                    self.seen |= dict(sizes(layer))
                    self._looked[layer] = now
        for entry in sorted(self._folder.glob("*/log/*"))[-2:]:
            if entry not in self._listed:
                for level, path, length in listed(entry):
                    self.seen[str(entry.parents[1] / path)] = length
                    if level == 0:
                        self.by_checkpoints[path] = length
                self._listed.add(entry)

    def _follow(self) -> None:
        while not self._ended.wait(0.2):
            self.look()


@dataclass(frozen=True)
class Interval:
    """Some checkpoints in a row, while keys change.

    Attributes:
        durations: of each, in milliseconds, from its trigger to its manifest.
        stalls: of each, how long nothing went through.
        rows: that came between each and the one before it.
        written: bytes of layers, by checkpoints and merges.
        by_checkpoints: bytes of those that are not merges'.
        beside: milliseconds of each data batch while a checkpoint or a background job was under way.
        alone: of each other one.
    """

    durations: tuple[float, ...]
    stalls: tuple[float, ...]
    rows: tuple[int, ...]
    written: int
    by_checkpoints: int
    beside: tuple[float, ...]
    alone: tuple[float, ...]

    def changed(self, keys: int) -> float:
        """Keys changed between two checkpoints, each once: added up over the checkpoints."""
        return sum(_distinct(keys, rows) for rows in self.rows)


def interval(wait: Callable[[str, int], Told], story: Story, files: Files, count: int) -> Interval:
    """Wait for ``count`` checkpoints from now on."""
    before = len(story.of("checkpoint"))
    files.look()
    seen, added = dict(files.seen), dict(files.by_checkpoints)
    wait("checkpoint", before + count)
    files.look()
    taken = story.of("checkpoint")[before : before + count]
    ids = {fact["checkpoint"] for fact in taken}
    stalls = [fact for fact in story.of("stall") if fact["checkpoint"] in ids]
    since = taken[0]["began"]
    batches = [fact for fact in story.of("batch") if fact["rows"] > 1 and fact["began"] >= since]
    beside, alone = by_company(batches, [*story.of("background"), *taken])
    return Interval(
        durations=tuple(fact["duration_ms"] for fact in taken),
        stalls=tuple(fact["stall_ms"] for fact in stalls),
        rows=tuple(fact["rows"] for fact in stalls),
        written=sum(size for name, size in dict(files.seen).items() if name not in seen),
        by_checkpoints=sum(size for name, size in dict(files.by_checkpoints).items() if name not in added),
        beside=beside,
        alone=alone,
    )


def by_company(batches: list[Told], others: list[Told]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Milliseconds of the batches that overlap any of the others in time, and of those that do not.

    >>> by_company([{"began": 1, "ended": 2}, {"began": 3, "ended": 5}], [{"began": 4, "ended": 6}])
    ((2000.0,), (1000.0,))
    """
    found: tuple[list[float], list[float]] = ([], [])
    for batch in batches:
        overlaps = any(each["began"] < batch["ended"] and batch["began"] < each["ended"] for each in others)
        found[not overlaps].append((batch["ended"] - batch["began"]) * 1e3)
    return tuple(found[0]), tuple(found[1])


def main() -> int:
    arguments = _arguments()
    figures, details = _measure(result.bench_folder(), arguments)
    result.show("checkpoints", ["figure", "value"], [[name, value] for name, value in figures.items()])
    if arguments.gigabytes >= 1:
        print(f"written: {result.save('checkpoint', figures, settings=vars(arguments), details=details)}")
    result.tell(figures)
    return 0


def _measure(home: Path, arguments: argparse.Namespace) -> tuple[dict[str, result.Figure], object]:
    keys = int(arguments.gigabytes * 1e9 / BYTES_A_KEY)
    changes = int(keys * arguments.changed / arguments.every)
    options = ["--keys", str(keys), "--changes", str(changes), "--every", str(arguments.every)]
    warm(home)
    files = Files(home / "state")
    _fill(home, options)
    job = Child(home, "change", options, "changing keys")
    job.wait("checkpoint", 2)
    taken = interval(job.wait, job.story, files, arguments.checkpoints)
    job.end(signal.SIGKILL)
    bare = Child(home, "change", options, "killed; starting again without the archive", use="off")
    without = bare.wait("batch", 1)["seen"] - bare.began
    bare.end(signal.SIGKILL)
    again = Child(home, "change", options, "killed; starting again")
    first = again.wait("batch", 1)["seen"] - again.began
    published = again.wait("checkpoint", 1)["seen"] - again.began
    again.end(signal.SIGTERM)
    space = _settled(Child(home, "rest", options, "letting it settle"), files)
    files.end()
    live = Child(home, "live", options, "writing it as one layer").wait("live", 1)["bytes"]
    changed = live / keys * taken.changed(keys)
    figures: dict[str, result.Figure] = {
        "stall_p99_ms": round(_quantile(taken.stalls, 0.99), 2),
        "checkpoint_p50_ms": round(statistics.median(taken.durations)),
        "checkpoint_p99_ms": round(_quantile(taken.durations, 0.99)),
        "batches_beside": len(taken.beside),
        "batches_alone": len(taken.alone),
        "bytes_ratio": round(taken.written / changed, 2),
        "bytes_ratio_checkpoints": round(taken.by_checkpoints / changed, 2),
        "space_ratio": round(space / live, 2),
        "recovery_s": round(first, 1),
        "recovery_without_archive_s": round(without, 1),
        "recovery_published_s": round(published, 1),
        "live_mb": round(live / 1e6),
        "keys": keys,
        "changed_part": round(taken.changed(keys) / len(taken.rows) / keys, 3),
        "checkpoints": len(taken.durations),
    }
    if taken.beside and taken.alone:
        beside, alone = _quantile(taken.beside, 0.99), _quantile(taken.alone, 0.99)
        figures |= {"batch_p99_beside_ms": round(beside), "batch_p99_alone_ms": round(alone)}
        figures["batch_p99_ratio"] = round(beside / alone, 2)
    return figures, {"durations_ms": taken.durations, "stalls_ms": taken.stalls, "rows": taken.rows}


def _fill(home: Path, options: list[str]) -> None:
    job = Child(home, "fill", options, "filling the state")
    job.wait("loaded", 1)
    job.wait("checkpoint", len(job.story.of("checkpoint")) + 2)
    job.end(signal.SIGTERM)


def _settled(job: Child, files: Files) -> int:
    """Bytes that lie there once they stay what they are, checkpoint after checkpoint."""
    sizes_then: list[int] = []
    while len(sizes_then) < LONGEST:
        job.wait("checkpoint", len(sizes_then) + 1)
        sizes_then.append(files.there())
        latest = sizes_then[-AS_BEFORE:]
        if len(sizes_then) > 2 * AS_BEFORE and max(latest) <= min(latest) * (1 + SETTLED):
            break
    job.end(signal.SIGTERM)
    return sizes_then[-1]


def _distinct(keys: int, rows: float) -> float:
    """How many different keys so many rows hit that take any key with the same chance."""
    return keys * (1 - (1 - 1 / keys) ** rows)


def _quantile(values: tuple[float, ...], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * q))]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--checkpoints", type=int, default=50, help="so many are measured")
    parser.add_argument("--every", type=float, default=10, help="seconds from one checkpoint to the next")
    parser.add_argument("--changed", type=float, default=0.05, help="the part of the keys that changes meanwhile")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
