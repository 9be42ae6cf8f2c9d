"""A driver in a process of its own, as tests see it: its words, its JVM, where it stands, and ways to kill it."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from crash.waiting import holds_within, until
from penstock.checkpoint import paths
from penstock.handles import EntryNumber

HERE = Path(__file__).parent
LIGHT = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1".strip()
"""A JVM that lives for seconds compiles little, and shares two cores with others; besides what the run gives all."""

SHAPES = ("python", "jvm", "group")


class Driver:
    """``penstock run`` in a folder; stderr goes into a file.

    Args:
        home: the folder with ``in``.
        state: where in it the state lies.
        pause_at: a failpoint at whose ``hit``-th hit it stops until it is killed or released.
        parent: whether a parent watches it.
    """

    def __init__(
        self,
        home: Path,
        number: int,
        *arguments: str,
        pipeline: str = "files_job:job",
        state: str = "state",
        pause_at: str | None = None,
        hit: int = 1,
        parent: bool = False,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.home = home
        self.place = pause_at
        self.hit = hit
        logs = home / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.record = logs / f"{number:03d}.hits"
        self.gate = logs / f"{number:03d}.gate"
        self.words = logs / f"{number:03d}.err"
        self.record.touch()
        extra = {"PENSTOCK_FAILPOINTS_RECORD": str(self.record)}
        if pause_at is not None:
            self.gate.touch()
            extra["PENSTOCK_FAILPOINTS"] = f"{pause_at}=pause:{self.gate}@{hit}"
        self._jvm: psutil.Process | None = None
        with self.words.open("w", encoding="utf-8") as stderr:
            self.process = subprocess.Popen(
                command(pipeline, *arguments, *([] if parent else ["--no-parent"]), state=state),
                cwd=home,
                env=surroundings(home) | extra | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,
            )

    # ------------------------------------------------------------------------------------------------ what it does

    @property
    def said(self) -> str:
        return self.words.read_text(encoding="utf-8")

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    @property
    def is_running(self) -> bool:
        """Its sources are read."""
        return "· generation " in self.said

    def hits(self, name: str) -> int:
        return self.record.read_text(encoding="utf-8").splitlines().count(name)

    def reaches(self, seconds: float) -> bool:
        """Wait until it stands at its place; false if it ended before, or did not come there in time."""
        assert self.place is not None
        place = self.place
        holds_within(seconds, lambda: self.hits(place) >= self.hit or self.is_over)
        return self.hits(place) >= self.hit and not self.is_over

    def release(self) -> None:
        self.gate.unlink(missing_ok=True)

    def tail(self) -> str:
        return "\n".join(self.said.splitlines()[-15:])

    # --------------------------------------------------------------------------------------------------- processes

    def jvm(self) -> psutil.Process:
        """The JVM below it; waits until there is one."""
        if self._jvm is None:
            until(60, "the driver has a JVM", lambda: self._find_jvm() or self.is_over, self.tail)
            assert self._jvm is not None, self.tail()
        return self._jvm

    def _find_jvm(self) -> bool:
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
            found = [each for each in below if each.name() == "java"]
        except psutil.Error:
            return False
        self._jvm = found[0] if found else None
        return self._jvm is not None

    @property
    def has_jvm(self) -> bool:
        """Whether its JVM was started."""
        return self._jvm is not None or self._find_jvm()

    def kill(self, shape: str) -> int:
        """SIGKILL for Python, the JVM, or both at once; the exit code that follows."""
        jvm = self.jvm() if shape in {"jvm", "group"} else None
        if shape in {"python", "group"}:
            self.process.kill()
        if jvm is not None:
            _kill(jvm)
        self.release()
        return self.wait(60)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            msg = f"after {seconds:g} s the driver still runs: {self.tail()}"
            raise AssertionError(msg) from None

    def stop(self, seconds: float = 60) -> int:
        """SIGTERM, and its exit code."""
        self.release()
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def end(self) -> None:
        """Whatever happened, nothing of it is left."""
        self.release()
        if not self.is_over:
            self.process.kill()
            self.process.wait()


def command(pipeline: str, *arguments: str, state: str = "state") -> list[str]:
    return [sys.executable, "-m", "penstock", "run", pipeline, "--state", state, *arguments]


def surroundings(home: Path) -> dict[str, str]:
    """Modules of the tests can be imported, and nothing is written outside of the folder."""
    temporary = _temporary(home)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return clean | {
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
        "TMPDIR": str(temporary),
        "SPARK_LOCAL_DIRS": str(temporary),
        "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={temporary} {LIGHT}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PENSTOCK_CLASS_ARCHIVE": "off",  # it would be written into the user's cache folder
    }


@functools.cache
def _temporary(home: Path) -> Path:
    """A folder with a short name, for Unix sockets have short paths; removed when this process ends."""
    made = tempfile.mkdtemp(prefix=f"pt-{os.getpid()}-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def entries(home: Path, job: str = "torture") -> int:
    """The number of the newest entry of the log, -1 before the first."""
    folder = home / "state" / job / "log"
    names = [each.name for each in folder.glob("*.json")] if folder.is_dir() else []
    return max((int(name.partition(".")[0]) for name in names), default=-1)


def owner(home: Path, job: str = "torture") -> int:
    """The generation that owns the log."""
    newest = home / "state" / job / paths.entry(EntryNumber(entries(home, job)))
    return int(json.loads(newest.read_text(encoding="utf-8"))["generation"])


def executors(driver: Driver) -> list[psutil.Process]:
    """The executors of a driver in a local cluster."""
    below = [each for each in driver.jvm().children(recursive=True) if each.name() == "java"]
    return [each for each in below if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline())]


def stragglers(home: Path) -> list[psutil.Process]:
    """Processes that belong to drivers of this folder and still live."""
    return [each for each in psutil.process_iter() if _is_of(each, home)]


def _is_of(process: psutil.Process, home: Path) -> bool:
    """A driver works in the folder; its JVM names the folder, where it writes its log."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        words = process.cmdline()
        if process.name() == "java":
            return str(home) in " ".join(words)
        return words[1:3] == ["-m", "penstock"] and process.cwd() == str(home)
    except psutil.Error:
        return False


def all_gone(home: Path, seconds: float = 15) -> int:
    """Wait until no process of the folder is left; how many had to be killed."""
    if holds_within(seconds, lambda: not stragglers(home)):
        return 0
    left = stragglers(home)
    for each in left:
        _kill(each)
    return len(left)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
