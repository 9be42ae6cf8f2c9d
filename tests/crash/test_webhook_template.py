"""As a new user: ``penstock init --template webhook``, run, send, kill -9, run: everything is there, and once."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from core.http_kit import free_port
from crash.driver import Driver, all_gone
from crash.waiting import until
from penstock.cli.project import plan_starter, write_starter

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]

START = 240
"""Seconds that a driver and all requests may take on a busy machine."""


def test_what_is_acknowledged_is_there_once_after_kill_9(tmp_path: Path) -> None:
    home = tmp_path / "hook"
    write_starter(plan_starter("orders", "webhook"), home)
    port = str(free_port())
    for name in ("orders.py", "sample.py"):
        text = (home / name).read_text()
        assert "8080" in text
        (home / name).write_text(text.replace("8080", port))
    notes = home / "acknowledged.txt"

    first = Driver(home, 0, pipeline="orders:orders")
    sender = subprocess.Popen([sys.executable, "sample.py", "send", "60"], cwd=home, stdout=subprocess.PIPE, text=True)
    try:
        until(
            START, "some are acknowledged", lambda: notes.exists() and len(notes.read_text().split()) > 20, first.tail
        )
        first.kill("group")
        second = Driver(home, 1, pipeline="orders:orders")
        assert sender.wait(START) == 0
        assert second.stop() == 0, second.tail()
    finally:
        sender.kill()
        sender.communicate()
        assert all_gone(home) == 0

    check = subprocess.run(
        [sys.executable, "sample.py", "check"], cwd=home, capture_output=True, text=True, check=False
    )
    assert (check.returncode, check.stdout) == (0, "600 orders were acknowledged: 0 lost, 0 doubled\n")
