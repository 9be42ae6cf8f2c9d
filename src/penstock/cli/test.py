"""``penstock test``: pytest on the project's tests, in this Python. Adds nothing to what pytest says."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.cli.exits import ExitCode, UsageError

if TYPE_CHECKING:
    from penstock.cli.output import Output

INTERRUPTED: Final = 2
MISUSED: Final = 4
NOTHING_FOUND: Final = 5
"""Exit codes of pytest that mean something else than "some failed"."""


def run_tests(output: Output, arguments: Sequence[str]) -> int:
    """Run them with these arguments of pytest's, all if there are none.

    Raises:
        UsageError: pytest is not installed.
    """
    if importlib.util.find_spec("pytest") is None:
        msg = "penstock test needs pytest: pip install 'penstock[test]'"
        raise UsageError(msg)
    here = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    child = subprocess.Popen([sys.executable, "-m", "pytest", *arguments], env=here | os.environ)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which then tells what it knows
    try:
        code = exit_code(child.wait())
    finally:
        signal.signal(signal.SIGINT, before)
    if child.returncode == NOTHING_FOUND:
        which = f" that fit {' '.join(arguments)}" if arguments else ""
        output.note(
            f"penstock: no tests here{which}: they are functions test_… in files test_*.py; penstock init makes some"
        )
    return code


def exit_code(code: int) -> ExitCode:
    """Ours for pytest's.

    >>> exit_code(4)
    <ExitCode.USAGE: 64>
    """
    return {0: ExitCode.ENDED, INTERRUPTED: ExitCode.INTERRUPTED, MISUSED: ExitCode.USAGE}.get(code, ExitCode.FAILED)
