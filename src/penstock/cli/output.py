"""Stdout and stderr, exit codes, progress lines, questions."""

from __future__ import annotations

import json
import os
import sys
import traceback as tracebacks
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from penstock.errors import (
    CheckpointUnreadable,
    Domain,
    EngineDied,
    GenerationFenced,
    GraphError,
    InternalError,
    JobIsRunning,
    LogGap,
    PenstockError,
    PlanOutdated,
    SettingsError,
    SinkIdentityConflict,
    StateDirectoryRefused,
    StateIncompatible,
    UnknownName,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from rich.console import RenderableType
    from typing_extensions import Self


# ----------------------------------------------------------------------------------------------------
# The exit codes: one frozen table, and which error ends in which. Knows nothing of commands nor of how to print.


class UsageError(PenstockError):
    """The command line cannot be understood; the message has the nearest name."""

    domain = Domain.USER


class ExitCode(IntEnum):
    """How a command ended. Frozen: scripts and process managers depend on the numbers."""

    ENDED = 0
    FAILED = 1
    CHANGES = 2
    BEHIND = 4
    USAGE = 64
    REFUSED = 65
    FENCED = 69
    BUG = 70
    ENGINE_DIED = 75
    INTERRUPTED = 130


MEANINGS: Final[Mapping[ExitCode, str]] = MappingProxyType(
    {
        ExitCode.ENDED: "It ended in order: for run, everything read is in a checkpoint and published.",
        ExitCode.FAILED: (
            "It failed, or what was looked at is not sound, or the answer was no; a job goes on from its last complete "
            "checkpoint."
        ),
        ExitCode.CHANGES: (
            "Of plan: a start would change something, and nothing refuses it. Of shadow: what the codes write differs."
        ),
        ExitCode.BEHIND: "Of lag alone: a source is further behind than --max-lag, or that cannot be known.",
        ExitCode.USAGE: "The command line or a setting is wrong; nothing was touched.",
        ExitCode.REFUSED: "The pipeline, or the state it should continue, was refused before anything was read.",
        ExitCode.FENCED: "Another process has this job, or has taken it over; this one published nothing more.",
        ExitCode.BUG: "A bug of penstock: please report it.",
        ExitCode.ENGINE_DIED: "The engine (the JVM) or its process died; the parent of run starts it again by itself.",
        ExitCode.INTERRUPTED: "Ended before its last checkpoint (a second signal, or --stop-timeout); nothing is lost.",
    }
)
"""Every code with one sentence."""
_REFUSED: Final = (
    GraphError,
    StateDirectoryRefused,
    StateIncompatible,
    SinkIdentityConflict,
    CheckpointUnreadable,
    LogGap,
    PlanOutdated,
)
_CODES: Final[tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], ExitCode], ...]] = (
    ((UsageError, SettingsError, UnknownName), ExitCode.USAGE),
    (_REFUSED, ExitCode.REFUSED),
    ((GenerationFenced, JobIsRunning), ExitCode.FENCED),
    (EngineDied, ExitCode.ENGINE_DIED),
    (InternalError, ExitCode.BUG),
    (PenstockError, ExitCode.FAILED),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
)
"""The first that fits counts."""


def exit_code_of(error: BaseException) -> ExitCode:
    """The code of what ended a command.

    >>> exit_code_of(GenerationFenced("taken over"))
    <ExitCode.FENCED: 69>
    """
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), ExitCode.BUG)


def table() -> str:
    """The table as text, for ``--help``."""
    return "\n".join(f"  {code.value:>3}  {sentence}" for code, sentence in MEANINGS.items())


# ----------------------------------------------------------------------------------------------------
# Asks before something is done that cannot be taken back; refuses where nobody can answer. Does nothing itself.


def confirm(
    output: Output,
    question: str,
    *,
    yes: bool,
    answer: Callable[[], str] | None = None,
    is_terminal: bool | None = None,
) -> bool:
    """Whether to go on: ``--yes`` was given, or a person at the terminal says so.

    Args:
        output: where the question goes: to stderr, for stdout holds results only.
        question: what is about to be done.
        yes: ``--yes`` was given.
        answer: reads a line; from the terminal unless given.
        is_terminal: whether somebody can answer; found out unless given.

    Raises:
        UsageError: nobody can answer, and ``--yes`` was not given.
    """
    if yes:
        return True
    if not (sys.stdin.isatty() if is_terminal is None else is_terminal):
        msg = f"{question}? Nobody is here to say so: give --yes to do it without asking"
        raise UsageError(msg)
    output.err.print(f"{question}? [y/N] ", end="", soft_wrap=True)
    output.err.file.flush()
    said = (answer or input)().strip().lower()
    if said in {"y", "yes"}:
        return True
    output.note("penstock: nothing was done")
    return False


# ----------------------------------------------------------------------------------------------------
# Where commands write: results to stdout, everything else to stderr, errors without a trace. Decides nothing.
#
# Off a terminal there are no control codes; with ``NO_COLOR`` there are no colours anywhere.

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


# ----------------------------------------------------------------------------------------------------
# What is being waited for: on a terminal a line that counts the seconds and goes away, elsewhere a plain line.
#
# How far it is is told on a terminal only: elsewhere nobody sits and watches.

ByteCallback: TypeAlias = Callable[[int, int], None]
"""Gets the bytes that are done and those there are, again and again."""


class ProgressLine:
    """At most one thing is waited for at a time; the next one takes its place. Use it in a ``with`` block."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._shown = ExitStack()
        self._line: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.off()

    def on(self, text: str) -> None:
        """Say what is waited for from now on."""
        self.off()
        if not _is_watched(self._output):
            self._output.note(f"{text} …")
            return
        line = Progress(
            SpinnerColumn(),
            TextColumn("{task.description} …", markup=False),
            TimeElapsedColumn(),
            console=self._output.err,
            transient=True,
        )
        line.add_task(text, total=None)
        self._shown.enter_context(line)
        self._line = line

    def now(self, text: str) -> None:
        """Say on the same line how far it is, while its seconds are counted on; nothing where nobody watches."""
        if self._line is not None:
            self._line.update(self._line.task_ids[0], description=text)
        elif _is_watched(self._output):
            self.on(text)

    def off(self) -> None:
        """It is over; harmless if nothing is waited for."""
        self._line = None
        self._shown.close()


@contextmanager
def counting_bytes(output: Output, what: str) -> Iterator[ByteCallback]:
    """A bar on a terminal, for gigabytes take their time; elsewhere nothing.

    Args:
        output: of the command.
        what: is done, in front of the bar.
    """
    if not _is_watched(output):
        yield lambda _done, _total: None
        return
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.err, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _is_watched(output: Output) -> bool:
    return output.err.is_terminal and not output.err.is_dumb_terminal
