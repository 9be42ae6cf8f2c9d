"""Runs seeds and tells what they found: ``torture`` many, ``replay`` one with its story."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from simulation.fibers import Killed
from simulation.scenario import Scenario

BLOCK = 100
"""Seeds that a worker runs before it looks for more."""


def tell(scenario: Scenario) -> str:
    """Run it; what went wrong with the end of its story, or nothing."""
    try:
        scenario.run()
    except (Exception, Killed) as error:
        told = [*scenario.world.story[-120:], f"seed {scenario.seed}: {error}", f"terms: {scenario.world.terms}"]
        if not isinstance(error, AssertionError):
            told += traceback.format_exception(error)
        return "\n".join(told)
    return ""


def run_block(first: int) -> tuple[Counter[str], str]:
    """In a worker: what one block of seeds came across, and the story of the first that failed."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        scenario = Scenario(seed)
        failure = tell(scenario)
        if failure:
            return seen, failure
        mode = "exact" if scenario.world.is_exact else "at least once"
        seen.update({f"{mode}: {name}": count for name, count in scenario.world.coverage.items()})
    return seen, ""


def torture(seeds: int, first: int, *, watched: bool | None = None, receives: bool = False) -> int:
    """``watched``: ask the liveness oracle after every step of each seed. ``receives``: a source is given its rows."""
    began, steps, failed, covered = time.perf_counter(), 0, 0, Counter()
    for seed in range(first, first + seeds):
        scenario = Scenario(seed, watched=watched, receives=receives)
        failure = tell(scenario)
        if failure:
            failed += 1
            print("\n".join(line for line in failure.splitlines() if line.startswith("seed ")), flush=True)
            if failed >= 10:
                break
        steps += scenario.world.steps
        covered.update(scenario.world.coverage)
    seconds, busy = time.perf_counter() - began, time.process_time()
    print(", ".join(f"{name} {count}" for name, count in sorted(covered.items())))
    speed = f"{seconds:.1f} s ({busy:.1f} s of CPU), {seeds / seconds:.0f} seeds/s ({seeds / busy:.0f} a CPU second)"
    print(f"{seeds} seeds from {first}, {steps} steps, {failed} failed, {speed}")
    return 1 if failed else 0


def replay(seed: int, *, watched: bool | None = None, receives: bool = False) -> int:
    scenario = Scenario(seed, watched=watched, receives=receives)
    failure = tell(scenario)
    print("\n".join(scenario.world.story))
    print(
        failure.rpartition("\nseed ")[2] if failure else f"seed {seed}: nothing found in {scenario.world.steps} steps"
    )
    return 1 if failure else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("torture", "replay"))
    parser.add_argument("number", type=int, help="how many seeds to run; or which one to replay")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--watched", action="store_true", default=None, help="ask the liveness oracle after every step")
    parser.add_argument("--received", action="store_true", help="the first source is given its rows")
    given = parser.parse_args()
    if given.command == "replay":
        return replay(given.number, watched=given.watched, receives=given.received)
    return torture(given.number, given.first, watched=given.watched, receives=given.received)


if __name__ == "__main__":
    sys.exit(main())
