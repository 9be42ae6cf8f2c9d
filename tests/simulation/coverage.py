"""Which branches of ``runtime/`` and ``checkpoint/`` the simulation takes, on its own: a table and the gaps."""

from __future__ import annotations

import sys

import coverage

PARTS = ("*/penstock/runtime/*", "*/penstock/checkpoint/*")


def main(seeds: int) -> int:
    watch = coverage.Coverage(branch=True, include=PARTS, config_file="../pyproject.toml", data_file=None)
    watch.start()
    from simulation.scenario import Scenario

    for seed in range(1, seeds + 1):
        Scenario(seed).run()
    watch.stop()
    total = watch.report(show_missing=True, skip_covered=False)
    print(f"{seeds} seeds: {total:.1f} % of lines and branches")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
