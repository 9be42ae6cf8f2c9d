"""``penstock demo``: a pipeline is killed and started again, and every row of its output is counted."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli import demo_pipeline
from penstock.cli.demo_orders import FILES, Totals, make_orders, read_published
from penstock.cli.demo_process import drive
from penstock.cli.demo_verdict import tell_verdict
from penstock.cli.exits import ExitCode, UsageError
from penstock.cli.family import family, kill_family
from penstock.operate.directory import JobDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.checkpoint.entries import Manifest
    from penstock.cli.output import Output

FEWEST: Final = 1_000
HALF_WAY: Final = FILES * 2 // 3
"""Files that may be left when the kill comes."""


def run_demo(output: Output, *, rows: int, folder: str | None = None, keep: bool = False) -> int:
    """Make orders, run, kill, run again, compare.

    Raises:
        UsageError: too few rows, or a folder that is not empty.
    """
    if rows < FEWEST:
        msg = f"--rows {rows} is too few to be killed half-way: at least {FEWEST:,}"
        raise UsageError(msg)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.INTERRUPTED))  # unwinds: child and folder go too
    # Paths of Unix sockets must be short, so Spark's temporary files do not lie below a folder that the user named.
    with _folder(folder, keep=keep) as home, tempfile.TemporaryDirectory(prefix="penstock-demo-") as temporary:
        return _Demo(output, home, rows, temporary, keep=keep).run()


class _Demo:
    def __init__(self, output: Output, home: Path, rows: int, temporary: str, *, keep: bool) -> None:
        self._output = output
        self._home = home
        self._rows = rows
        self._temporary = temporary
        self._keep = keep

    def run(self) -> int:
        self._say(f"1  make {self._rows:,} orders in {FILES} files below {self._home}")
        expected = make_orders(self._home / "in", self._rows)
        shutil.copy(demo_pipeline.__file__, self._home / "orders.py")
        self._say("2  run the pipeline: sum by user and minute, exactly once, into out/")
        if not self._run_and_kill():
            return ExitCode.FAILED
        self._say("3  start it again: it goes on from that checkpoint, and reads the rest")
        code = self._drive(lambda _line, _pid: False)
        if code != ExitCode.ENDED:
            self._say(f"the second run ended with {code}", style="red")
            return ExitCode.FAILED
        self._say("4  read what was published, with plain Python, and compare")
        return self._compare(expected, read_published(self._home / "out", self._home / "bad"))

    # --------------------------------------------------------------------------------------------------- processes

    def _run_and_kill(self) -> bool:
        killed = False

        def kill_half_way(line: str, pid: int) -> bool:
            nonlocal killed
            point = self._restore_point() if " checkpoint " in line else None
            if point is None or not 0 < (left := _files_left(point)) <= HALF_WAY:
                return False
            members = len(family(pid))
            self._say(
                f"   kill -9 to all {members} processes, the JVM too: checkpoint {point.checkpoint} is complete, "
                f"{left} of {FILES} files are not in it",
                style="bold red",
            )
            kill_family(pid)
            killed = True
            return True

        code = self._drive(kill_half_way)
        if not killed:
            self._say(f"the first run ended with {code} before it could be killed; try more --rows", style="red")
        return killed

    def _drive(self, stop: Callable[[str, int], bool]) -> int:
        return drive(self._output, "orders:orders", self._home, self._temporary, stop=stop)

    def _restore_point(self) -> Manifest | None:
        return JobDirectory(self._home / "state", "orders").read().restore_point

    # --------------------------------------------------------------------------------------------------- the result

    def _compare(self, expected: Totals, found: Totals) -> int:
        is_same = tell_verdict(self._output, expected, found)
        if self._keep:
            self._say(f"kept: {self._home} (orders.py is the pipeline; penstock checkpoints orders --state state)")
        return ExitCode.ENDED if is_same else ExitCode.FAILED

    def _say(self, text: str, *, style: str = "") -> None:
        self._output.note(text, style=style)


def _files_left(point: Manifest) -> int:
    """Files that a checkpoint of the demo's one source has not read."""
    for snapshot in point.tasks:
        detail = snapshot.position.detail if snapshot.position else None
        if isinstance(detail, dict) and isinstance(left := detail.get("remaining"), dict):
            return len(left)
    return 0


@contextmanager
def _folder(given: str | None, *, keep: bool) -> Iterator[Path]:
    if given is None:
        home = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    else:
        home = Path(given).resolve()
        if home.exists() and any(home.iterdir()):
            msg = f"--dir {given} is not empty: name a new folder"
            raise UsageError(msg)
        home.mkdir(parents=True, exist_ok=True)
    try:
        yield home
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)
