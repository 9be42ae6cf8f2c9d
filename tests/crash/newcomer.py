"""A new user's first minutes, line by line as the README has them: a wheel, a project, its tests, a kill -9, sums.

They end with a pipeline of the user's own, with Columns, a UDF and ``for_each_batch``. ``make newcomer`` takes the
packages that penstock needs from this environment; with ``ARGS=--download`` pip gets them from its index, as for a user
(pyspark alone is 450 MB). ``ARGS="--python 3.13"``, or the path of a Python, takes another Python, for which it
downloads them. Prints what each step took.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crash.driver import LIGHT
from crash.waiting import clock, until
from page_kit import blocks, sample
from penstock.cli.process import kill_process_tree, process_tree

ROOT = Path(__file__).parents[2]
LIMIT = 300
"""Seconds that all of it may take."""

PATIENCE = 600
"""Seconds for one step, on a machine that others use too: it is the whole that is judged."""

COMPLETE = re.compile(r"checkpoint [1-9]\d* ok")


class Newcomer:
    """One new user's folder, environment and steps.

    Args:
        home: an empty folder with a short name, for Unix sockets have their paths below it.
        download: get dependencies from pip's index.
        python: the user's; that of this environment, unless dependencies are downloaded.
    """

    def __init__(self, home: Path, *, download: bool = False, python: str = sys.executable) -> None:
        self.project = home / "project"
        self.took: dict[str, float] = {}
        self._home = home
        self._download = download
        self._python = python
        self._bin = home / "venv" / "bin"
        temporary = home / "tmp"
        temporary.mkdir()
        self.project.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))}
        path = f"{self._bin}{os.pathsep}{os.environ['PATH']}"
        if not download:
            kept["SPARK_SUBMIT_OPTS"] = LIGHT  # a user has the machine for himself
        self._environment = kept | {"PATH": path, "TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}

    # ------------------------------------------------------------------------------------------------------ to begin

    def wheel(self) -> Path:
        """The wheel of this checkout, built with the pinned tools."""
        with self._timed("build the wheel"):
            out = self._home / "dist"
            command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
            self._succeeds(command, environment=dict(os.environ))
            (built,) = out.glob("penstock-*.whl")
            return built

    def install(self, wheel: Path) -> None:
        """A fresh environment with the wheel in it."""
        with self._timed("venv and pip install"):
            venv = self._bin.parent
            if self._download:
                self._succeeds([self._python, "-m", "venv", str(venv)])
                self._succeeds([str(self._bin / "python"), "-m", "pip", "install", "--quiet", f"{wheel}[test]"])
                return
            self._succeeds([sys.executable, "-m", "venv", "--without-pip", str(venv)])
            pip = [sys.executable, "-m", "pip", "--python", str(self._bin / "python"), "--disable-pip-version-check"]
            self._succeeds([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)])
            (packages,) = venv.glob("lib/python*/site-packages")
            (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    # --------------------------------------------------------------------------------------------------------- steps

    def runs(self, step: str, *command: str, code: int = 0) -> str:
        """A command in the project's folder; what it printed."""
        with self._timed(step):
            return self._succeeds([str(self._bin / command[0]), *command[1:]], code=code)

    def run_and_kill(self, step: str, *command: str) -> int:
        """A command that is killed with all its processes when it has completed a checkpoint; how many they were."""
        with self._timed(step):
            words = self._home / "first-run.txt"
            with words.open("w") as file:
                process = subprocess.Popen(
                    [str(self._bin / command[0]), *command[1:]],
                    cwd=self.project,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            try:
                said = words.read_text
                until(PATIENCE, "a checkpoint", lambda: COMPLETE.search(said()) or process.poll() is not None, said)
                assert process.poll() is None, said()
                members = len(process_tree(process.pid))
            finally:
                kill_process_tree(process.pid)
                process.wait()
            return members

    def _succeeds(self, command: list[str], *, code: int = 0, environment: dict[str, str] | None = None) -> str:
        process = subprocess.Popen(
            command,
            cwd=self.project,
            env=environment or self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            kill_process_tree(process.pid)
            raise
        assert process.returncode == code, f"{' '.join(command)} ended with {process.returncode}:\n{said}"
        return said

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        before = clock()
        yield
        self.took[step] = clock() - before


@contextmanager
def newcomer(*, download: bool = False, python: str = sys.executable) -> Iterator[Newcomer]:
    """A new user, whose folder is gone afterwards."""
    home = Path(tempfile.mkdtemp(prefix="pn-", dir="/tmp"))
    try:
        yield Newcomer(home, download=download, python=python)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def promised() -> list[str]:
    """The lines of the README's first five minutes, without remarks."""
    return [line.partition("#")[0].strip() for line in sample("../README.md", "pip install").splitlines()]


def first_minutes(user: Newcomer) -> None:
    """Every line of the README's, with what must come of it; more checkpoints, and rows as CSV to be counted."""
    install, doctor, init, test, make, run, resume, check, query = promised()
    assert install == "pip install 'penstock[test]'"
    user.install(user.wheel())  # of this checkout, in place of the one that the index has
    where = user.runs("import", "python", "-c", "import penstock; print(penstock.__file__)")
    assert "/venv/" in where, f"this is not the penstock of the wheel: {where}"
    user.runs("doctor", *shlex.split(doctor), "--no-spark")  # `penstock test` makes a session at once
    init, folder = init.split(" && cd ")
    user.runs("init", *shlex.split(init))
    user.project /= folder
    assert len(list(user.project.iterdir())) <= 5
    assert "5 passed" in user.runs("test", *shlex.split(test))
    user.runs("make orders", *shlex.split(make))
    often = ("--checkpoint-every", "1s")
    assert user.run_and_kill("run, and kill -9", *shlex.split(run), *often) >= 3  # the parent, the job, its JVM
    user.runs("more orders meanwhile", "python", "sample.py", "make", "4")
    user.runs("check, which must find orders missing", *shlex.split(check), code=1)
    said = user.runs("run until caught up", *shlex.split(resume), *often)
    assert said.index("orders: starting Spark …") < said.index("orders: restoring from checkpoint"), said
    assert re.search(r"orders: stopped · [1-9][\d,]* rows read", said), said
    checked = user.runs("check", *shlex.split(check))
    assert "0 lost, 0 doubled, 0 sums wrong" in checked, checked
    still_open = int(re.findall(r"(\d+) windows are still open", checked)[0])
    assert still_open > 0
    answer = user.runs("state query", *shlex.split(query), "--format", "csv")
    assert len(re.findall(r"^[^,\n]+(?:,[^,\n]+)+$", answer, re.MULTILINE)) == 1 + still_open, answer
    assert "→" in user.runs("checkpoints", "penstock", "checkpoints", "orders")
    python_of_ones_own(user)


def python_of_ones_own(user: Newcomer) -> None:
    """The README's pipeline with Columns, a UDF and ``for_each_batch``, run twice: each large order is saved once."""
    (code,) = [text for text in blocks("../README.md", "python") if text.startswith("import json")]
    (user.project / "large.py").write_text(code)
    lines = [line.partition("#")[0].split() for line in sample("../README.md", "python sample.py make").splitlines()]
    for number, command in enumerate(lines, start=1):
        user.runs(f"Python of one's own, {number}: {' '.join(command[:3])}", *command)
    files = sorted(user.project.glob("large-*.json"))
    assert len(files) >= 2, files
    saved = [(row["initial"], row["amount"]) for file in files for row in json.loads(file.read_text())]
    assert sorted(saved) == sorted(_large_orders(user.project / "in"))
    assert saved


def _large_orders(folder: Path) -> Iterator[tuple[str, float]]:
    for file in folder.glob("*.json"):
        for line in file.read_text().splitlines():
            with suppress(ValueError):  # one line of each file is cut short
                order = json.loads(line)
                if order["amount"] > 99:
                    yield order["user"][0].upper(), order["amount"]


def tell(user: Newcomer) -> float:
    """Print what each step took; all of it in seconds."""
    for step, seconds in user.took.items():
        print(f"{seconds:7.1f} s  {step}")
    whole = sum(user.took.values())
    print(f"{whole:7.1f} s  in all, of {LIMIT} s")
    return whole


def interpreter(wanted: str) -> str:
    """The path of a Python that runs: that of this version on PATH, or this path itself."""
    version = re.fullmatch(r"3\.\d+", wanted) is not None
    name = f"python{wanted}" if version else wanted
    found = shutil.which(os.path.expanduser(name))
    if found is None:
        sys.exit(f"There is no {name} here. Give the path of one with --python.")
    # A python3.13 on PATH may be a shim of pyenv's, which runs only the versions that this variable names.
    environment = os.environ | ({"PYENV_VERSION": wanted} if version else {})
    asked = [found, "-c", "import sys; print(sys.executable)"]
    answer = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        sys.exit(f"{found} does not run: {answer.stderr.strip()}. Give the path of another with --python.")
    return answer.stdout.strip()


def main(arguments: list[str]) -> int:
    """All of it once."""
    parser = argparse.ArgumentParser(description="A new user's first minutes.", allow_abbrev=False)
    parser.add_argument("--download", action="store_true", help="all packages by pip, from its index")
    parser.add_argument("--python", help="a version, such as 3.13, or the path of a Python; implies --download")
    given = parser.parse_args(arguments)
    python = sys.executable if given.python is None else interpreter(given.python)
    with newcomer(download=given.download or given.python is not None, python=python) as user:
        try:
            first_minutes(user)
        finally:
            whole = tell(user)
    return 0 if whole < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
