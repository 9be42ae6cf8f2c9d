"""Traces one row, one barrier, one restart and one savepoint through a running job, and holds them against the docs.

`make ways` starts a Kafka broker and a windowed job that writes files, lets each thing happen once, and prints the
modules that were entered, in order. It fails if a module was entered that docs/architecture.md does not name.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples")]

PAGE = ROOT / "docs" / "architecture.md"
WAYS = {"A row": 38, "A barrier": 31, "A restart": 33, "A savepoint": 14}
"""The ways, by their headings on the page, and how many modules each should have at most."""

EVERYWHERE = "On every way"
_NAMED = re.compile(r"`([a-z_]+(?:/[a-z_]+)*)\.py`")
TIMEOUT = 120.0  # seconds for anything to happen


@dataclass(frozen=True)
class Entered:
    """A module that was entered."""

    module: str
    function: str
    thread: str


def named(page: str) -> dict[str, list[str]]:
    r"""Return the modules that each section of the page names, in order.

    >>> named("## A row\\n1. `runtime/task.py` takes it\\n## Else\\n")
    {'A row': ['runtime/task'], 'Else': []}
    """
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    return {text.partition("\n")[0].strip(): list(dict.fromkeys(_NAMED.findall(text))) for text in sections}


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not become true.
    """
    end = time.monotonic() + TIMEOUT  # noqa: TID251 - a tool, and no job depends on it
    while not condition():
        if time.monotonic() > end:  # noqa: TID251
            msg = f"waited {TIMEOUT:.0f} s for {what}"
            raise TimeoutError(msg)
        time.sleep(0.1)  # noqa: TID251


class TracedJob:
    """The job of `examples/kafka_orders.py` under the probe."""

    def __init__(self, home: Path, servers: str, topic: str) -> None:
        self.home = home
        self._environment = {
            **os.environ,
            "ORDERS_SERVERS": servers,
            "ORDERS_TOPIC": topic,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'examples'}",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._probes = 0
        self._folder = home

    def start(self) -> None:
        """Start it and wait until it runs."""
        self._folder = self._new_folder()
        self._report.unlink(missing_ok=True)  # the job writes it when its tasks run
        command = ["run", "kafka_orders:orders", "--state", "state", "--checkpoint-every", "1h", "--no-parent"]
        with (self.home / "run.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._probed(self._folder, command), cwd=self.home, env=self._environment, stdout=log, stderr=log
            )
        until(lambda: self._has_ended() or self._report.exists(), "the job to run")
        if self._has_ended():
            raise RuntimeError((self.home / "run.log").read_text(errors="replace"))

    def rows_written(self) -> int:
        """Rows that its sink of results has taken, as its report says."""
        # The report, since a sink may keep what it took in memory until the barrier.
        sinks = json.loads(self._report.read_text())["run"]["sinks"]
        return sum(each["rows_written"] or 0 for each in sinks if each["uid"] == "totals-out")

    @property
    def _report(self) -> Path:
        return self.home / "state" / "orders" / "control" / "report.json"

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """Kill it outright."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def mark(self, name: str) -> list[Entered]:
        """What the job entered since the last mark."""
        (self._folder / f"mark-{name}").touch()
        answer = self._folder / f"{name}.json"
        until(answer.exists, "the probe's answer")
        return [Entered(*row) for row in json.loads(answer.read_text())]

    def command(self, *arguments: str, traced: bool = True) -> list[Entered]:
        """Run another command on the job; what it entered."""
        folder = self._new_folder()
        whole = self._probed(folder, arguments) if traced else [sys.executable, "-m", "penstock", *arguments]
        done = subprocess.run(
            whole, cwd=self.home, env=self._environment, capture_output=True, text=True, check=False, timeout=TIMEOUT
        )
        if done.returncode:
            msg = f"penstock {' '.join(arguments)} ended with {done.returncode}: {done.stderr}"
            raise RuntimeError(msg)
        return [Entered(*row) for row in json.loads((folder / "end.json").read_text())] if traced else []

    def _new_folder(self) -> Path:
        self._probes += 1
        folder = self.home / f"probe-{self._probes}"
        folder.mkdir()
        return folder

    def _probed(self, folder: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, str(ROOT / "tools" / "ways_probe.py"), str(folder), *arguments]


def trace(home: Path) -> dict[str, list[Entered]]:
    """Let each thing happen once; the modules entered on each way."""
    from integration.broker import Broker
    from integration.topics import Record, Topics

    def order(number: int, at: str) -> Record:
        row = {"id": number, "user": "ann", "amount": 1.5, "at": f"2026-01-01T{at}Z"}
        return Record(json.dumps(row).encode(), key=b"ann", partition=0)

    with Broker(home / "broker") as broker:
        topics = Topics(broker.servers)
        topic = topics.create("orders", partitions=1)
        job = TracedJob(home, broker.servers, topic)
        out = home / "out"

        def results() -> int:
            return sum(1 for path in out.glob("*.json*") if path.stat().st_size)

        try:
            topics.produce(topic, [order(1, "00:00:10")])
            job.start()
            topics.produce(topic, [order(2, "00:01:30")])
            until(job.rows_written, "the sink to take the first window")
            job.command("savepoint", "create", "orders", "first", "--state", "state", traced=False)
            until(results, "the first window to be published")
            job.mark("settled")

            taken = job.rows_written()
            topics.produce(topic, [order(3, "00:03:00")])
            until(lambda: job.rows_written() > taken, "the sink to take a window")
            row = job.mark("row")

            published = results()
            job.command("savepoint", "create", "orders", "second", "--state", "state", traced=False)
            until(lambda: results() > published, "its output to be published")
            barrier = job.mark("barrier")

            asked = job.command("savepoint", "create", "orders", "third", "--state", "state")
            passed = {each.module for each in barrier}
            answered = [each for each in job.mark("savepoint") if each.module not in passed]

            job.kill()
            job.start()
            restart = job.mark("restart")
        finally:
            job.kill()
    return {"A row": row, "A barrier": barrier, "A restart": restart, "A savepoint": [*asked, *answered]}


def report(ways: dict[str, list[Entered]], page: str) -> list[str]:
    """Print each way; the modules that were entered and are not named on it."""
    sections, wrong = named(page), []
    everywhere = set(sections[EVERYWHERE])
    for way, goal in WAYS.items():
        entered = list({each.module: each for each in reversed(ways[way])}.values())[::-1]
        own = [each for each in entered if each.module not in everywhere]
        print(f"\n{way}: {len(own)} modules (goal: {goal}), {len(entered) - len(own)} that are on every way")
        for each in own:
            is_known = each.module in sections[way]
            print(f"  {' ' if is_known else '!'} {each.module + '.py':42} {each.function:48} {each.thread}")
            if not is_known:
                wrong.append(f"{way}: {each.module}.py was entered, in {each.function}")
        if not own:
            wrong.append(f"{way}: nothing was traced")
        missing = [module for module in sections[way] if module not in {each.module for each in entered}]
        if missing:
            print(f"    named and not entered this time: {', '.join(missing)}")
    return wrong


def main() -> None:
    """Trace, print, and fail for what the page does not name."""
    with tempfile.TemporaryDirectory() as home:
        wrong = report(trace(Path(home)), PAGE.read_text(encoding="utf-8"))
    if wrong:
        sys.exit("\n".join([f"\n{PAGE.relative_to(ROOT)} does not name:", *wrong]))
    print(f"\n{PAGE.relative_to(ROOT)} names all of them")


if __name__ == "__main__":
    main()
