"""Plants each bug and lets the simulation look for it, then the core tests; prints who found what.

python -m planted.run [--seeds 1500] [--seconds 200] [names…]
python -m planted.run --core-only [names…]      do the core tests that bugs name find them?
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from bench.result import save, show, tell  # noqa: E402

from planted import (  # noqa: E402, F401
    of_another_kind,
    of_files,
    of_functions,
    of_kinesis,
    of_letters,
    of_mistakes,
    of_received,
    of_rewinds,
    of_state,
    of_the_breadth,
    of_the_log,
    of_the_operator,
    of_the_run,
)
from planted.bug import BUGS, planted  # noqa: E402
from pytest_output import first_failure  # noqa: E402
from simulation.scenario import Scenario  # noqa: E402

WORKERS = 2
SHORT = 20.0
"""Seconds of CPU for a bug of which core tests are known to tell: one that the simulation has no eyes for."""


def by_simulation(name: str, seeds: int, seconds: float) -> tuple[str, int]:
    """What finds it, and how many seeds were tried within so many seconds of CPU, however busy the machine is."""
    began = time.process_time()
    with planted(name):
        for seed in range(1, seeds + 1):
            try:
                Scenario(seed, receives=BUGS[name].receives).run()
            except Exception as error:
                what = str(error).split(":")[0] if isinstance(error, AssertionError) else type(error).__name__
                return f"seed {seed}: {what}", seed
            if time.process_time() - began > seconds:
                return "", seed
    return "", seeds


def by_core_tests(name: str) -> str:
    """The first core test that fails, in a process of its own."""
    files = BUGS[name].core.split()
    if not files:
        return ""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "planted.plugin", *files]
    ran = subprocess.run(
        command, cwd=TESTS, env={**os.environ, "PLANTED": name}, capture_output=True, text=True, check=False
    )
    return first_failure(ran.stdout)


def look(name: str, seeds: int, seconds: float, *, core_only: bool) -> list[object]:
    """In a worker: one line of the table."""
    began = time.perf_counter()
    found, tried = "", 0
    if not core_only and not BUGS[name].blind:
        found, tried = by_simulation(name, seeds, SHORT if BUGS[name].core else seconds)
    found = found or by_core_tests(name) or "NOT FOUND"
    note = f" ({BUGS[name].note})" if found == "NOT FOUND" and BUGS[name].note else ""
    return [name, BUGS[name].what, found + note, tried, round(time.perf_counter() - began, 1)]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1500)
    parser.add_argument("--seconds", type=float, default=200, help="of CPU, for each bug")
    parser.add_argument("--core-only", action="store_true", help="ask the core tests alone, of bugs that name some")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    rows: list[list[object]] = []
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as workers:
        names = [name for name in asked.names or BUGS if BUGS[name].core or not asked.core_only]
        one = partial(look, seeds=asked.seeds, seconds=asked.seconds, core_only=asked.core_only)
        for row in workers.map(one, names):
            rows.append(row)
            print(f"{row[0]:20} {row[2]}  [{row[3]} seeds, {row[4]} s]", flush=True)
    show("Planted bugs", ["bug", "what is planted", "found by", "seeds", "s"], rows)
    missed = [str(row[0]) for row in rows if str(row[2]).startswith("NOT FOUND")]
    surprises = [name for name in missed if not BUGS[name].note]
    figures = {
        "planted": len(rows),
        "found_by_simulation": sum(str(row[2]).startswith("seed") for row in rows),
        "found_by_core_tests": sum(".py" in str(row[2]) for row in rows),
        "not_found": len(missed),
        "not_found_unexplained": len(surprises),
    }
    if not asked.names and not asked.core_only:
        save("planted", figures, settings={"seeds": asked.seeds, "seconds": asked.seconds}, details=rows)
    tell(figures)
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
