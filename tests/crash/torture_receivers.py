"""Kills a job that receives rows at every place it has, and compares what it published with what was acknowledged.

make torture-receivers                  30 kills
make torture-receivers ARGS="--kills 8"
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from bench import result  # noqa: E402 - found through the path above

from crash.receiving import Client, Strike, judge, run  # noqa: E402
from crash.waiting import clock  # noqa: E402

PLACES = (
    Strike("received.block.before", 3),
    Strike("received.block.durable", 4, "python"),
    Strike("received.sealed", 1),
    Strike("local.create.temp_written", 9, "python"),
    Strike("local.create.linked", 12),
    Strike("received.seal.before", 1, "python"),
    Strike("received.clean.before", 2),
    Strike("checkpoint.manifest.before", 3, "jvm"),
    Strike("checkpoint.manifest.written", 2, "python"),
    Strike("source.polled", 5),
    Strike("sink.staged", 3, "python"),
    Strike("sink.commit.before", 2),
    Strike("sink.files.moved", 1, "python"),
    Strike("log.claim.written", 1, "python"),
    Strike("recovery.restored", 1),
)
"""Where the job is struck, one place after the other and again; never a place at which it has not yet claimed."""


def torture(home: Path, kills: int) -> tuple[dict[str, result.Figure], list[str]]:
    """The figures, and what went wrong."""
    client = Client()
    struck = run(home, client, list(itertools.islice(itertools.cycle(PLACES), kills)))
    found = judge(home, client)
    problems = [f"lost: {found.lost[:20]}"] if found.lost else []
    problems += [f"repeated: {found.repeated[:20]}"] if found.repeated else []
    problems += ["nothing was acknowledged"] if not found.acknowledged else []
    figures: dict[str, result.Figure] = {
        "kills": struck,
        "acknowledged": found.acknowledged,
        "lost": len(found.lost),
        "repeated": len(found.repeated),
    }
    return figures, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=2 * len(PLACES))
    arguments = parser.parse_args()
    home, began = Path(tempfile.mkdtemp(prefix="penstock-torture-")), clock()
    try:
        figures, problems = torture(home, arguments.kills)
        control = home / "control"
        control.mkdir()
        client = Client()
        run(control, client, PLACES[:1], RECEIVED_EARLY="1")
        lost = len(judge(control, client).lost)
        problems += [] if lost else ["the negative control lost nothing"]
    finally:
        shutil.rmtree(home, ignore_errors=True)
    for problem in problems:
        print(f"PROBLEM {problem}")
    result.tell({**figures, "control_lost": lost, "seconds": round(clock() - began, 1)})
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
