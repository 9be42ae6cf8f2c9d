"""What every bench has: a folder, a table, a JSON file with its surroundings, one RESULT line. Measures nothing."""

from __future__ import annotations

import atexit
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PACKAGES = ("penstock", "pyspark", "pyarrow", "pandas", "duckdb")
_TURNS = 20_000_000

Figure = int | float | str | bool | None


def bench_folder() -> Path:
    """A new folder for what a bench writes, deleted when its process ends."""
    made = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def surroundings() -> dict[str, object]:
    """What a figure depends on besides the code: versions, machine, revision."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "java": _first_line(["java", "-version"]),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "python_turns_per_s": _turns_per_second(),
        "load_at_end": round(os.getloadavg()[0], 2),
        "revision": _first_line(["git", "-C", str(ROOT), "rev-parse", "HEAD"], failed="none"),
        # what another bench has written is no change of the code
        "dirty": bool(_first_line(["git", "-C", str(ROOT), "status", "--porcelain", "--", ".", ":!bench/results"])),
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def save(name: str, figures: dict[str, Figure], *, settings: dict[str, object], details: object = None) -> Path:
    """Write ``bench/results/<name>.json``; its path."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {
        "name": name,
        "result": figures,
        "settings": settings,
        "details": details,
        "surroundings": surroundings(),
    }
    path.write_text(json.dumps(content, indent=2, sort_keys=False) + "\n", encoding="utf-8")
    return path


def show(title: str, columns: list[str], rows: list[list[object]]) -> None:
    """Print a table; numbers to the right."""
    table = Table(title=title, title_justify="left", header_style="bold", box=None)
    for index, name in enumerate(columns):
        numbers = all(isinstance(row[index], (int, float)) for row in rows)
        table.add_column(name, justify="right" if numbers and rows else "left")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


def tell(figures: dict[str, Figure]) -> None:
    """The last line of a bench: ``RESULT`` and flat JSON."""
    nested = [name for name, value in figures.items() if isinstance(value, (dict, list, tuple))]
    if nested:
        msg = f"RESULT must be flat, but {', '.join(nested)} is not"
        raise ValueError(msg)
    print(f"RESULT {json.dumps(figures)}", flush=True)


def _turns_per_second() -> int:
    """How often an empty loop turned in a second: machines of one kind differ by a factor of two."""
    began = time.perf_counter()
    for _ in range(_TURNS):
        pass
    return round(_TURNS / (time.perf_counter() - began))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _first_line(command: list[str], *, failed: str = "") -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return failed
    lines = (done.stdout + done.stderr).strip().splitlines() if done.returncode == 0 else []
    return lines[0] if lines else failed
