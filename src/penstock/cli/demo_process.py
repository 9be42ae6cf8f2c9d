"""Runs a demo's pipeline in a process of its own, shows its lines, kills it when told to; knows nothing of orders."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from penstock.cli.family import kill_family
from penstock.cli.process import LIFELINE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from penstock.cli.output import Output

NOISE: Final = "WARNING: Using incubator modules"
"""What the JVM always says."""


def drive(
    output: Output,
    pipeline: str,
    home: Path,
    temporary: str,
    *,
    stop: Callable[[str, int], bool],
    environment: Mapping[str, str] | None = None,
) -> int:
    """``penstock run`` in a folder until it ends, or until ``stop`` says that it was killed; the exit code.

    Args:
        output: where its lines are shown.
        pipeline: ``module:function``; the module lies in ``home``.
        home: its folder; the state goes into ``state`` there.
        temporary: a folder with a short name, for what Spark writes meanwhile.
        stop: is asked at each line, with the process id.
        environment: what the process finds there besides.
    """
    command = [sys.executable, "-m", "penstock", "run", pipeline, "--no-parent", "--state", "state"]
    ours, theirs = socket.socketpair()  # should this process be killed, the child notices and stops
    child = subprocess.Popen(
        [*command, "--checkpoint-every", "1s"],
        cwd=home,
        env=_surroundings(temporary) | {LIFELINE: str(theirs.fileno())} | dict(environment or {}),
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    theirs.close()
    assert child.stderr is not None  # it is a pipe
    try:
        for line in child.stderr:
            if not line.startswith(NOISE):
                output.note(f"   │ {line.rstrip()}", style="dim")
            if stop(line, child.pid):
                break
        return child.wait()
    finally:
        kill_family(child.pid)
        child.wait()
        child.stderr.close()
        ours.close()


def _surroundings(temporary: str) -> dict[str, str]:
    """Nothing outside the demo's folder is written, by a JVM that is killed neither."""
    options = f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    given = os.environ.get("SPARK_SUBMIT_OPTS")
    return os.environ | {
        "TMPDIR": temporary,
        "SPARK_LOCAL_DIRS": temporary,
        "SPARK_SUBMIT_OPTS": f"{given} {options}" if given else options,
    }
