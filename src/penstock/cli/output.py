"""Where commands write: results to stdout, everything else to stderr, errors without a trace. Decides nothing.

Off a terminal there are no control codes; with ``NO_COLOR`` there are no colours anywhere.
"""

from __future__ import annotations

import json
import os
import sys
import traceback as tracebacks
from typing import TYPE_CHECKING, Final, TextIO

from rich.console import Console
from rich.text import Text

from penstock.cli.exits import ExitCode, exit_code_of
from penstock.errors import Domain, PenstockError

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDE: Final = 200
"""Columns of a table that goes into a file or a pipe."""

NO_JAVA: Final = "JAVA_GATEWAY_EXITED"
"""In Spark's message when it could not start a JVM."""


class Output:
    """The two streams of a command.

    Args:
        traceback: show all frames of an error, not only the message.
        out: stdout, if not the process's own.
        err: stderr, if not the process's own.
    """

    def __init__(self, *, traceback: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.traceback = traceback
        self.out = _console(out or sys.stdout)
        self.err = _console(err or sys.stderr)

    def result(self, what: RenderableType) -> None:
        """Print what was asked for, to stdout."""
        _print(self.out, what)

    def document(self, schema: str, **fields: object) -> None:
        """Print what was asked for as one JSON document, to stdout; its schema comes first."""
        self.out.file.write(json.dumps({"schema": schema, **fields}, indent=2, ensure_ascii=False) + "\n")
        self.out.file.flush()

    def note(self, text: str, *, style: str = "") -> None:
        """Tell what goes on, one line, to stderr."""
        _print(self.err, Text(text, style=style))

    def error(self, error: BaseException) -> ExitCode:
        """Tell what went wrong and whose fault it is; the exit code that follows from it."""
        code = exit_code_of(error)
        if self.traceback:
            tracebacks.print_exception(error, file=self.err.file)
        for line in explain(error):
            self.note(f"penstock: {line}", style="red")
        if not self.traceback and code in {ExitCode.FAILED, ExitCode.BUG, ExitCode.ENGINE_DIED}:
            self.note("penstock: --traceback shows where it came from", style="dim")
        return code


def explain(error: BaseException) -> list[str]:
    """What a person needs to know, most important first; no frames of ours or of Spark."""
    if isinstance(error, KeyboardInterrupt):
        return ["interrupted"]
    if isinstance(error, PenstockError):
        lines = [str(error)]
        if NO_JAVA in lines[0]:
            lines.append("Spark needs Java 17 or newer: put it on PATH or in JAVA_HOME")
    else:
        name = type(error).__name__
        lines = [f"{name}: {error}" if str(error) else name, "this is a bug of penstock, please report it"]
    if isinstance(error, PenstockError) and error.domain is Domain.INTERNAL and "report" not in lines[0]:
        lines.append("this is a bug of penstock, please report it")
    return lines


class _Console(Console):
    """One that leaves it to us what to do when its reader has gone away."""

    def on_broken_pipe(self) -> None:
        """Go on as without it; by default the process would end here, with 1."""
        raise  # noqa: PLE0704 - called where the error is handled


def _console(stream: TextIO) -> Console:
    if os.environ.get("NO_COLOR"):
        return _Console(file=stream, color_system=None, highlight=False, markup=False, emoji=False)
    is_terminal = stream.isatty()
    console = _Console(file=stream, highlight=False, markup=False, emoji=False, force_terminal=is_terminal)
    if not is_terminal:
        console = _Console(file=stream, highlight=False, markup=False, emoji=False, force_terminal=False, width=WIDE)
    return console


def _print(console: Console, what: RenderableType) -> None:
    """Print and flush; a reader that went away is no reason to fail a job."""
    try:
        console.print(what, soft_wrap=isinstance(what, (str, Text)))
        console.file.flush()
    except (OSError, ValueError):
        pass
