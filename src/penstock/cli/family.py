"""Finds and kills a process with all that it started, the JVM and its workers too. Knows nothing of jobs."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress


def family(pid: int) -> list[int]:
    """The process and everything below it, parents first."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    below: dict[int, list[int]] = {}
    for line in listed.splitlines():
        child, parent = (int(word) for word in line.split())
        below.setdefault(parent, []).append(child)
    found, ahead = [], [pid]
    while ahead:
        each = ahead.pop(0)
        found.append(each)
        ahead.extend(below.get(each, ()))
    return found


def kill_family(pid: int) -> int:
    """SIGKILL for all of them at once, as far as they still live; how many there were."""
    killed = 0
    for each in family(pid):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
            killed += 1
    return killed
