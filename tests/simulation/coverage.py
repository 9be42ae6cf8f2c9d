"""Which branches of ``runtime/`` and ``checkpoint/`` the simulation takes, on its own: figures, gaps, and a limit.

Left out, because no single-threaded run can get there:

- ``runtime/executors.py``: real threads, their locks and their waiting. In the simulation ``threadless`` stands for it.
- ``Supervisor.run``, which blocks the calling thread, and ``Supervisor._seconds_to_alarm``, which it alone calls; the
  simulation calls ``begin``, ``turn``, ``finish`` and ``tear_down``, of which ``run`` is made.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import coverage

PARTS = ["*/penstock/runtime/*", "*/penstock/checkpoint/*"]
LEFT_OUT = ["*/runtime/executors.py"]
BLOCKING = [
    r"def run\(self, parts: AttemptParts\) -> EndJob",
    r"def _seconds_to_alarm\(self\) -> float \| None",
]
LIMIT = 95.0


def main(seeds: int) -> int:
    watch = coverage.Coverage(branch=True, source_pkgs=["penstock"], config_file="../pyproject.toml", data_file=None)
    for pattern in BLOCKING:
        watch.exclude(pattern)
    watch.start()
    from simulation.scenario import Scenario

    seen: defaultdict[str, int] = defaultdict(int)
    for seed in range(1, seeds + 1):
        world = Scenario(seed, receives=seed % 2 == 0).run()
        for name, count in world.coverage.items():
            seen[name] += count
    watch.stop()
    print(", ".join(f"{name} {count}" for name, count in sorted(seen.items())))
    total = watch.report(show_missing=True, skip_covered=False, include=PARTS, omit=LEFT_OUT, ignore_errors=True)
    print(f"{seeds} seeds: {total:.1f} % of lines and branches; at least {LIMIT:g} % are wanted")
    return 0 if total >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
