"""The demo kills a job for real, and says what it found; nothing of it stays behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crash.waiting import holds_within

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]


def demo(tmp_path, *arguments):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, str(DEMO), "--rows", "6000", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_demo_finds_every_order_once_and_leaves_nothing_behind(tmp_path_factory):
    short = Path("/tmp") / f"pd-{os.getpid()}"  # paths of Unix sockets are short
    short.mkdir()

    done = demo(short)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9 to all" in done.stderr
    assert "orders: restoring from checkpoint" in done.stderr
    assert "6,000 orders expected" in done.stdout
    assert "0 lost, 0 doubled" in done.stdout
    assert holds_within(10, lambda: not list(short.iterdir())), list(short.iterdir())
    short.rmdir()


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "mine").touch()

    done = demo(tmp_path, "--dir", str(tmp_path))

    assert done.returncode == 64
    assert "is not empty" in done.stderr
    assert (tmp_path / "mine").exists()
