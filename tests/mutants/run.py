"""Plants each mutant in a copy of the package and runs the tests that pass its line; prints which test found it.

python -m mutants.run [--seconds 120] [--trace FOLDER] [--inner] [ids…]

A trace tells which tests pass which lines, and how long each takes: it is a run of `make test` and `make test-long`
under coverage. Without `--trace` it is made first, in half an hour. The tests of `make test` are asked first, then
those of `make test-long`, cheapest first, and of each tier as many as take `--seconds` together.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from xml.etree import ElementTree

import coverage

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from bench.result import save, show, tell  # noqa: E402

import tiers  # noqa: E402
from mutants.mutant import PACKAGE, Mutant, read_list  # noqa: E402
from pytest_output import first_failure  # noqa: E402

WORKERS = 2
BOTH_CORES = ["-n", str(WORKERS), "--dist", "loadfile", "--no-loadscope-reorder"]
TIERS = ("test", "test-long")


@dataclass
class Trace:
    """Which tests pass which lines, and how many seconds each test takes."""

    coverage: coverage.CoverageData
    seconds: dict[str, float]
    table: list[tiers.Outward] = field(default_factory=tiers.read_table)

    def tests_by_tier(self, mutant: Mutant) -> dict[str, list[str]]:
        """Return the tests that pass the line of a mutant, cheapest first."""
        contexts = self.coverage.contexts_by_lineno(str(PACKAGE / mutant.file)).get(mutant.line(), [])
        tests = {context.split("|")[0] for context in contexts} & self.seconds.keys()
        by_tier: dict[str, list[str]] = {tier: [] for tier in TIERS}
        for test in sorted(tests, key=lambda test: (self.seconds[test], test)):
            by_tier[TIERS[tiers.tier_of(test.removeprefix("tests/"), self.table) is not None]].append(test)
        return by_tier

    def affordable(self, tests: list[str], seconds: float) -> Iterator[str]:
        """Yield the first tests that take no more than these seconds together; always the cheapest."""
        for count, test in enumerate(tests):
            seconds -= self.seconds[test]
            if count and seconds < 0:
                return
            yield test


def record(folder: Path, *, inner: bool) -> None:
    """Run both tiers under coverage, or the inner one, and leave their trace in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    watch = [f"--cov={PACKAGE}", "--cov-context=test", "--cov-report=", f"--junitxml={folder / 'tests.xml'}"]
    which = [*BOTH_CORES, "-m", "not long and not nightly" if inner else "not nightly", "tests"]
    ran = _pytest([*watch, "-o", "junit_family=xunit1", *which], COVERAGE_FILE=str(folder / "coverage"))
    if ran.returncode:
        msg = "Mutants say nothing while tests fail without them:\n" + ran.stdout[-4000:]
        raise SystemExit(msg)


def read_trace(folder: Path) -> Trace:
    """Return what `record` left in the folder."""
    data = coverage.CoverageData(str(folder / "coverage"))
    data.read()
    seconds = {
        f"{case.attrib['file']}::{case.attrib['name']}": float(case.attrib["time"])
        for case in ElementTree.parse(folder / "tests.xml").iter("testcase")
        if "file" in case.attrib
    }
    return Trace(data, seconds)


def hunt(mutant: Mutant, trace: Trace, seconds: float, home: Path) -> list[object]:
    """Return one line of the table: the mutant, the tier and the test that found it, how many tests were asked."""
    began = time.perf_counter()
    mutant.plant(home / "penstock")
    tier, test, asked, passing = "", "NOT FOUND", 0, 0
    try:
        for tier, tests in trace.tests_by_tier(mutant).items():  # noqa: B007 - the last one is told
            passing += len(tests)
            chosen = list(trace.affordable(tests, seconds))
            asked += len(chosen)
            test = _first_failure(chosen, seconds, home) if chosen else ""
            if test:
                break
    finally:
        mutant.remove(home / "penstock")
    found = test or ("NOT FOUND" if passing else "NO TEST PASSES")
    return [mutant.id, tier if test else "", found, f"{asked} of {passing}", round(time.perf_counter() - began)]


def _first_failure(tests: list[str], seconds: float, home: Path) -> str:
    try:
        ran = _pytest(["-x", "-q", "-p", "no:cacheprovider", *tests], timeout=60 + 5 * seconds, PYTHONPATH=str(home))
    except subprocess.TimeoutExpired:
        return "the time that these tests may take"
    return first_failure(ran.stdout) or ("an end of pytest" if ran.returncode else "")


def _pytest(arguments: list[str], timeout: float | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["tools/test.sh", *arguments]
    return subprocess.run(
        command,
        cwd=TESTS.parent,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120, help="of tests of each tier, for one mutant")
    parser.add_argument("--trace", type=Path, help="a folder with a trace; it is made there if it is not")
    parser.add_argument("--inner", action="store_true", help="ask the tests of make test only")
    parser.add_argument("ids", nargs="*")
    asked = parser.parse_args()
    mutants = read_list()
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as scratch:
        folder = asked.trace or Path(scratch)
        if not (folder / "tests.xml").exists():
            print("tracing which tests pass which lines: as long as these tests take", flush=True)
            record(folder, inner=asked.inner)
        trace = read_trace(folder)
        homes: Queue[Path] = Queue()
        for number in range(WORKERS):
            homes.put(Path(scratch) / str(number))
            shutil.copytree(PACKAGE, Path(scratch) / str(number) / "penstock")

        def in_a_free_home(mutant: Mutant) -> list[object]:
            home = homes.get()
            try:
                return hunt(mutant, trace, asked.seconds, home)
            finally:
                homes.put(home)

        rows = []
        with ThreadPoolExecutor(WORKERS) as workers:
            for row in workers.map(in_a_free_home, [mutants[id_] for id_ in asked.ids or mutants]):
                rows.append(row)
                print(f"{row[0]:16} {row[1]:10} {row[2]}  [{row[3]} tests, {row[4]} s]", flush=True)
    show("Mutants", ["mutant", "tier", "found by", "tests", "s"], rows)
    figures = {"mutants": len(rows), **{f"found_by_{tier}": sum(row[1] == tier for row in rows) for tier in TIERS}}
    figures["not_found"] = sum(not row[1] for row in rows)
    if not asked.ids:
        save("mutants", figures, settings={"seconds": asked.seconds}, details=rows)
    tell(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
