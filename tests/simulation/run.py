"""Runs seeds and tells what they found: ``torture`` many, ``replay`` one with its story."""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter

from simulation.scenario import Scenario


def story_of(scenario: Scenario, error: BaseException) -> str:
    told = scenario.world.story
    return "\n".join([*told[-120:], f"seed {scenario.seed}: {error}", f"terms: {scenario.world.terms}"])


def torture(seeds: int, first: int) -> int:
    began, steps, failed, covered = time.perf_counter(), 0, {}, Counter()
    for seed in range(first, first + seeds):
        scenario = Scenario(seed)
        try:
            scenario.run()
        except Exception as error:
            failed[seed] = f"{type(error).__name__} {error}"
            print(f"seed {seed}: {failed[seed][:300]}", flush=True)
            if not isinstance(error, AssertionError):
                traceback.print_exc()
            if len(failed) >= 10:
                break
        steps += scenario.world.steps
        covered.update(scenario.world.coverage)
    seconds, busy = time.perf_counter() - began, time.process_time()
    print(", ".join(f"{name} {count}" for name, count in sorted(covered.items())))
    speed = f"{seconds:.1f} s ({busy:.1f} s of CPU), {seeds / seconds:.0f} seeds/s ({seeds / busy:.0f} a CPU second)"
    print(f"{seeds} seeds from {first}, {steps} steps, {len(failed)} failed, {speed}")
    return 1 if failed else 0


def replay(seed: int) -> int:
    scenario = Scenario(seed)
    try:
        scenario.run()
    except BaseException as error:
        print("\n".join(scenario.world.story))
        print(scenario.world.terms)
        print(f"seed {seed}: {type(error).__name__}: {error}")
        if not isinstance(error, AssertionError):
            traceback.print_exc()
        return 1
    print("\n".join(scenario.world.story))
    print(f"seed {seed}: nothing found in {scenario.world.steps} steps")
    return 0


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    sys.exit(replay(int(rest[0])) if command == "replay" else torture(int(rest[0]), int(rest[1]) if rest[1:] else 1))
