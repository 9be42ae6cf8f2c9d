"""Writes a golden checkpoint with today's code: tests/golden/checkpoints/<format>/, kept in git once it is released.

`make setup`, then `.venv/bin/python tools/golden_checkpoints.py`. It refuses to write over one that is there: what a
release has written must stay readable, so a change of the log's format gets a folder of its own.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))


def main() -> None:
    """Run the pipeline on the older half of its input, and keep its state."""
    import penstock as ps
    from golden.shop import BEFORE, CHECKPOINTS, drop, pipeline
    from penstock.checkpoint.entry_codec import FORMAT

    target = CHECKPOINTS / str(FORMAT)
    if target.exists():
        sys.exit(f"{target.relative_to(ROOT)} is there already: delete it first if it was never released")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        drop(folder / "in", "a.json", BEFORE)
        ps.Job(pipeline(folder), state=folder / "state", retained=1).run(until="caught-up")
        shutil.rmtree(folder / "state" / "shop" / "control", ignore_errors=True)
        shutil.copytree(folder / "state", target)
    for path in sorted(target.rglob("*")):
        if path.is_file():
            print(f"{path.stat().st_size:8,} {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
