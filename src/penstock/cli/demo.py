"""The command ``penstock demo``: a pipeline is killed and started again, and every row of its output is counted."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from penstock.cli import demo_pipeline
from penstock.cli.options import Flag
from penstock.cli.output import CommandOutput, ExitCode, Output, UsageError
from penstock.cli.process import LIFELINE, kill_process_tree, process_tree
from penstock.control.client import JobDirectory
from penstock.spark.class_archive import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.checkpoint.entries import Manifest

# ---- penstock demo ---------------------------------------------------------------------------------------------------

FEWEST: Final = 1_000
"""Fewer rows are read before the first run can be killed."""
FILES: Final = 24
HALF_WAY: Final = FILES * 2 // 3
"""The first run is killed when at most this many files are left."""


def demo(
    *,
    rows: Annotated[int, Parameter(help="Number of orders to make.")] = 200_000,
    dir: Annotated[str | None, Parameter(help="Folder to work in; a temporary one by default.")] = None,
    keep: Annotated[bool, Flag, Parameter(help="Keep the folder to look at.")] = False,
    output: CommandOutput,
) -> int:
    """Make orders, run a pipeline, kill it, run it again, and compare its output with the orders.

    Raises:
        UsageError: there are too few rows, or the folder is not empty.
    """
    if rows < FEWEST:
        msg = f"--rows {rows} is too few, because the demo kills the job half-way. Give at least {FEWEST:,}."
        raise UsageError(msg)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.INTERRUPTED))  # unwinds: child and folder go too
    # Paths of Unix sockets must be short, so Spark's temporary files do not lie below a folder that the user named.
    with _folder(dir, keep=keep) as home, tempfile.TemporaryDirectory(prefix="penstock-demo-") as temporary:
        return _Demo(output, home, rows, temporary, keep=keep).run()


class _Demo:
    def __init__(self, output: Output, home: Path, rows: int, temporary: str, *, keep: bool) -> None:
        self._output = output
        self._home = home
        self._rows = rows
        self._temporary = temporary
        self._keep = keep

    def run(self) -> int:
        self._output.note(f"1  make {self._rows:,} orders in {FILES} files below {self._home}")
        expected = make_orders(self._home / "in", self._rows)
        shutil.copy(demo_pipeline.__file__, self._home / "orders.py")
        self._output.note("2  run the pipeline: sum by user and minute, exactly once, into out/")
        if not self._run_and_kill():
            return ExitCode.FAILED
        self._output.note("3  start it again: it goes on from that checkpoint, and reads the rest")
        code = self._run_pipeline(lambda _line, _pid: False)
        if code != ExitCode.ENDED:
            self._output.note(f"the second run ended with {code}", style="red")
            return ExitCode.FAILED
        self._output.note("4  read what was published, with plain Python, and compare")
        return self._compare(expected, read_published(self._home / "out", self._home / "bad"))

    def _run_and_kill(self) -> bool:
        killed = False

        def kill_half_way(line: str, pid: int) -> bool:
            nonlocal killed
            if " checkpoint " not in line:
                return False
            point = JobDirectory(self._home / "state", "orders").read().restore_point
            if point is None or not 0 < (left := _files_left(point)) <= HALF_WAY:
                return False
            members = len(process_tree(pid))
            self._output.note(
                f"   kill -9 to all {members} processes, the JVM too: checkpoint {point.checkpoint} is complete, "
                f"{left} of {FILES} files are not in it",
                style="bold red",
            )
            kill_process_tree(pid)
            killed = True
            return True

        code = self._run_pipeline(kill_half_way)
        if not killed:
            self._output.note(
                f"the first run ended with {code} before it could be killed; try more --rows", style="red"
            )
        return killed

    def _run_pipeline(self, stop: Callable[[str, int], bool]) -> int:
        return run_in_process(self._output, "orders:orders", self._home, self._temporary, stop=stop)

    def _compare(self, expected: Totals, found: Totals) -> int:
        is_same = print_verdict(self._output, expected, found)
        if self._keep:
            self._output.note(
                f"kept: {self._home} (orders.py is the pipeline; penstock checkpoints orders --state state)"
            )
        return ExitCode.ENDED if is_same else ExitCode.FAILED


def _files_left(point: Manifest) -> int:
    """The number of files that the source had not read at a checkpoint."""
    for snapshot in point.tasks:
        detail = snapshot.position.detail if snapshot.position else None
        if isinstance(detail, dict) and isinstance(left := detail.get("remaining"), dict):
            return len(left)
    return 0


@contextmanager
def _folder(name: str | None, *, keep: bool) -> Iterator[Path]:
    if name is None:
        home = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    else:
        home = Path(name).resolve()
        if home.exists() and any(home.iterdir()):
            msg = f"Folder {name} of --dir is not empty. Name a new folder."
            raise UsageError(msg)
        home.mkdir(parents=True, exist_ok=True)
    try:
        yield home
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)


# ---- the orders ------------------------------------------------------------------------------------------------------

USERS: Final = ("ada", "alan", "barbara", "dennis", "edsger", "grace", "ken", "margaret")
BEGIN: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
MINUTES: Final = 20
BAD_EVERY: Final = 9_973
"""Every line whose number is a multiple of this is cut short: it goes to the second output of the pipeline."""
WindowKey: TypeAlias = tuple[str, str]
"""A user, and the minute at which the window begins."""


@dataclass(slots=True)
class Totals:
    """The number and amount of orders by window, and the number of lines that cannot be read."""

    orders: Counter[WindowKey] = field(default_factory=Counter)
    amount: dict[WindowKey, float] = field(default_factory=lambda: defaultdict(float))
    bad: int = 0

    @property
    def total(self) -> int:
        """The number of orders in all windows."""
        return sum(self.orders.values())

    def differs(self, other: Totals) -> list[WindowKey]:
        """The windows that differ between the two."""
        every = {*self.orders, *other.orders}
        return sorted(w for w in every if self._of(w) != other._of(w))

    def _of(self, window: WindowKey) -> tuple[int, float]:
        return self.orders[window], self.amount[window]


def make_orders(folder: Path, rows: int) -> Totals:
    """Write the files in order of time, and return what a pipeline must make of them."""
    folder.mkdir(parents=True)
    chance, totals = random.Random(42), Totals()  # the same orders each time
    for number in range(FILES):
        begin, end = number * rows // FILES, (number + 1) * rows // FILES
        lines = [order_line(each, rows, chance, totals) for each in range(begin, end)]
        (folder / f"orders-{number:03d}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return totals


def order_line(number: int, rows: int, chance: random.Random, totals: Totals) -> str:
    """Order ``number`` of ``rows`` as a line of JSON; it is added to ``totals``."""
    at = BEGIN + timedelta(seconds=int(number / rows * MINUTES * 60))
    user, amount = chance.choice(USERS), chance.randint(1, 400) / 4
    line = json.dumps({"id": number, "user": user, "amount": amount, "at": at.strftime("%Y-%m-%dT%H:%M:%SZ")})
    if number % BAD_EVERY == BAD_EVERY - 1:
        totals.bad += 1
        return line[:-12]
    window = (user, at.strftime("%H:%M"))
    totals.orders[window] += 1
    totals.amount[window] += amount
    return line


def read_published(out: Path, bad: Path) -> Totals:
    """What a reader finds in the output, without penstock and Spark. A window that is there twice counts twice."""
    totals = Totals()
    for row in _rows(out):
        window = (str(row["user"]), str(row["window_start"])[11:16])
        totals.orders[window] += int(str(row["n"]))
        totals.amount[window] += float(str(row["amount"]))
    totals.bad = sum(1 for _ in _rows(bad))
    return totals


def _rows(folder: Path) -> Iterable[dict[str, object]]:
    for path in sorted(folder.glob("part-*")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


# ---- a pipeline in a process of its own ------------------------------------------------------------------------------

JVM_NOISE: Final = "WARNING: Using incubator modules"
"""The beginning of a line that the JVM always writes."""


def run_in_process(
    output: Output,
    pipeline: str,
    home: Path,
    temporary: str,
    *,
    stop: Callable[[str, int], bool],
    environment: Mapping[str, str] | None = None,
) -> int:
    """The exit code of ``penstock run`` in a folder; ``stop`` may kill it before it ends by itself.

    Args:
        output: where its lines are shown.
        pipeline: ``module:function``; the module is in ``home``.
        home: the current folder of the process; the state goes into ``state`` there.
        temporary: a folder with a short name, for Spark's temporary files.
        stop: called with each line and the process id; returns whether it has killed the process.
        environment: variables that are added to the environment of the process.
    """
    command = [sys.executable, "-m", "penstock", "run", pipeline, "--no-parent", "--state", "state"]
    ours, theirs = socket.socketpair()  # should this process be killed, the child notices and stops
    child = subprocess.Popen(
        [*command, "--checkpoint-every", "1s"],
        cwd=home,
        env=_environment(temporary) | {LIFELINE: str(theirs.fileno())} | dict(environment or {}),
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    theirs.close()
    assert child.stderr is not None  # it is a pipe
    try:
        for line in child.stderr:
            if not line.startswith(JVM_NOISE):
                output.note(f"   │ {line.rstrip()}", style="dim")
            if stop(line, child.pid):
                break
        return child.wait()
    finally:
        kill_process_tree(child.pid)
        child.wait()
        child.stderr.close()
        ours.close()


def _environment(temporary: str) -> dict[str, str]:
    """The environment of a process that writes nothing outside the demo's folder, even if its JVM is killed."""
    options = f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    present = os.environ.get("SPARK_SUBMIT_OPTS")
    return os.environ | {
        VARIABLE: "use",  # a process that makes one would outlive the demo
        "TMPDIR": temporary,
        "SPARK_LOCAL_DIRS": temporary,
        "SPARK_SUBMIT_OPTS": f"{present} {options}" if present else options,
    }


# ---- the verdict -----------------------------------------------------------------------------------------------------

WINDOWS_SHOWN: Final = 8
"""Windows in the table; those that differ come first."""


def print_verdict(output: Output, expected: Totals, found: Totals) -> bool:
    """Print expected and found totals; ``True`` if they are the same."""
    different = expected.differs(found)
    output.result(_table(expected, found, [*different, *sorted(expected.orders)][:WINDOWS_SHOWN]))
    missing = sum(max(0, n - found.orders[w]) for w, n in expected.orders.items())
    doubled = sum(max(0, n - expected.orders[w]) for w, n in found.orders.items())
    verdict = (
        f"{expected.total:,} orders expected in {len(expected.orders)} windows, {found.total:,} found: "
        f"{missing:,} lost, {doubled:,} doubled; {found.bad} of {expected.bad} unreadable lines kept in bad/"
    )
    is_same = not different and expected.bad == found.bad
    output.result(Text(verdict, style="bold green" if is_same else "bold red"))
    return is_same


def _table(expected: Totals, found: Totals, windows: list[WindowKey]) -> Table:
    table = Table(title="some of the windows", title_justify="left", header_style="bold", box=None)
    for name in ("user", "minute", "orders", "expected", "amount", "expected"):
        table.add_column(name, justify="left" if name in {"user", "minute"} else "right")
    for window in windows:
        table.add_row(
            *window,
            f"{found.orders[window]:,}",
            f"{expected.orders[window]:,}",
            f"{found.amount[window]:,.2f}",
            f"{expected.amount[window]:,.2f}",
        )
    return table
