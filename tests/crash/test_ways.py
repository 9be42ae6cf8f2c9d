"""`make ways` enters no module that docs/architecture.md does not name on that way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]


def test_a_row_a_barrier_a_restart_and_a_savepoint_go_the_ways_that_the_page_describes():
    ran = subprocess.run([sys.executable, "tools/ways.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
