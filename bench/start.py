"""From the start of a command to its end on ten rows: ``penstock run`` against ``spark-submit`` of the same job.

make bench-start                         five rounds; three to ten minutes
make bench-start ARGS="--rounds 15"      for medians that may be quoted

Each run is a process of its own that goes on from the one before: it reads a file of ten rows, counts them by user and
minute, publishes the minutes before, and ends. In each round ``penstock run`` comes with the archive of Spark's
classes, without it, and ``spark-submit`` of a query with ``availableNow``; the order turns from round to round. The
archive is made before, as ``penstock doctor --warm`` makes it, in a folder of the bench. What the engines have
published at the end must be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import result  # noqa: E402 - found through the path above

ROWS, USERS = 10, 3
OURS, BARE, THEIRS = "penstock", "penstock, no archive", "spark-submit"


def put(folder: Path, number: int) -> None:
    """Write file ``number``: ten rows, an hour later than those of the file before."""
    folder.mkdir(parents=True, exist_ok=True)
    at = f"2026-01-{number // 24 + 1:02}T{number % 24:02}:00:00Z"
    rows = [json.dumps({"id": number * ROWS + each, "user": f"u{each % USERS}", "at": at}) for each in range(ROWS)]
    hidden = folder / f".{number}"
    hidden.write_text("\n".join(rows) + "\n", encoding="utf-8")
    hidden.rename(folder / f"{number:04}.json")


def published(folder: Path) -> list[tuple[str, str, int]]:
    """User, minute and count of what is there, in order."""
    rows = [
        json.loads(line) for path in folder.glob("part-*") for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return sorted((row["user"], row["minute"], row["n"]) for row in rows)


@dataclass(frozen=True)
class Engine:
    """A command, the variables that it is run with, and the folder that it works in."""

    command: list[str]
    variables: dict[str, str]
    home: Path

    def run(self) -> float:
        """Seconds of one run.

        Raises:
            RuntimeError: it failed; the message has what it said.
        """
        began = time.monotonic()
        done = subprocess.run(
            self.command,
            cwd=self.home,
            env=os.environ | self.variables | {"PYTHONPATH": str(HERE), "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - began
        if done.returncode != 0:
            msg = f"{' '.join(self.command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
            raise RuntimeError(msg)
        return seconds


def engines(home: Path, master: str) -> dict[str, Engine]:
    """Each engine, with its folder."""
    import pyspark

    run = [sys.executable, "-m", "penstock", "run", "start_job:job", "--until", "caught-up", "--state", "state"]
    run += ["--master", master]
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", master]
    for name, value in (
        ("spark.ui.enabled", "false"),
        ("spark.log.level", "ERROR"),
        ("spark.sql.shuffle.partitions", str(os.cpu_count() or 1)),
        ("spark.sql.session.timeZone", "UTC"),
    ):
        submit += ["--conf", f"{name}={value}"]
    return {
        OURS: Engine(run, archive(home, "use"), home / "ours"),
        BARE: Engine(run, archive(home, "off"), home / "bare"),
        THEIRS: Engine([*submit, str(HERE / "start_query.py")], {}, home / "theirs"),
    }


def archive(home: Path, use: str) -> dict[str, str]:
    """Variables of a process that has the archive in the folder of the bench: ``use`` it, or ``off``."""
    return {"XDG_CACHE_HOME": str(home / "cache"), "PENSTOCK_CLASS_ARCHIVE": use}


def warm(home: Path) -> None:
    """Make the archive, in the folder of the bench."""
    command = [sys.executable, "-m", "penstock", "doctor", "--warm", "--no-spark", "--state", str(home / "none")]
    Engine(command, archive(home, "use"), home).run()
    if not list((home / "cache").rglob("*.jsa")):
        msg = "no archive was made: see what penstock doctor --warm says here"
        raise RuntimeError(msg)


def measure(home: Path, rounds: int, master: str, *, tell: Callable[[str], None]) -> dict[str, list[float]]:
    """Seconds of each engine, a run a round, after a first run of each that is not counted.

    Raises:
        AssertionError: the engines have published different rows.
    """
    home.mkdir(parents=True, exist_ok=True)
    warm(home)
    all_of_them = engines(home, master)
    seconds: dict[str, list[float]] = {name: [] for name in all_of_them}
    names = list(all_of_them)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            engine = all_of_them[name]
            put(engine.home / "in", number)
            took = engine.run()
            tell(f"{'first run' if number == 0 else f'round {number}'}: {name} {took:.1f} s")
            if number:
                seconds[name].append(took)
    found = {name: published(engine.home / "out") for name, engine in all_of_them.items()}
    if len(found[OURS]) != rounds * USERS or any(rows != found[OURS] for rows in found.values()):
        msg = f"the engines published different rows: {found}"
        raise AssertionError(msg)
    return seconds


def figures_of(seconds: dict[str, list[float]]) -> dict[str, result.Figure]:
    """Medians; ratios are medians of the ratios of each round, since a machine is busier in one than in another."""

    def ratio(one: str, other: str) -> list[float]:
        return sorted(a / b for a, b in zip(seconds[one], seconds[other], strict=True))

    against, without = ratio(OURS, THEIRS), ratio(OURS, BARE)
    return {
        "start_ratio": round(statistics.median(against), 2),
        "start_ratio_least": round(against[0], 2),
        "start_ratio_most": round(against[-1], 2),
        "archive_ratio": round(statistics.median(without), 2),
        "start_s": round(statistics.median(seconds[OURS]), 1),
        "start_without_archive_s": round(statistics.median(seconds[BARE]), 1),
        "start_theirs_s": round(statistics.median(seconds[THEIRS]), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default="local[*]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ps-") as home:
        seconds = measure(
            Path(home),
            arguments.rounds,
            arguments.master,
            tell=lambda line: print(line, file=sys.stderr, flush=True),
        )
    figures = figures_of(seconds)
    rows = [[name, *(round(each, 1) for each in values)] for name, values in seconds.items()]
    columns = ["seconds", *(f"round {number + 1}" for number in range(arguments.rounds))]
    result.show("From the start of the command to its end", columns, rows)
    print(f"written: {result.save('start', figures, settings=vars(arguments), details=seconds)}")
    result.tell(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
