"""Runs a command for as long as somebody holds this process's standard input open, then kills it. Knows no Kafka.

A process that is killed outright closes its files all the same: so what it started through here does not outlive it.
Started as ``python guard.py <command…>``; it prints the command's process id,
and what the command prints goes to standard error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def main() -> int:
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr)
    print(child.pid, flush=True)  # noqa: T201 - this is what it tells its starter
    threading.Thread(target=_kill_when_abandoned, args=(child,), daemon=True).start()
    return child.wait()


def _kill_when_abandoned(child: subprocess.Popen[bytes]) -> None:
    os.read(0, 1)  # nothing is ever written to it
    child.kill()


if __name__ == "__main__":
    sys.exit(main())
