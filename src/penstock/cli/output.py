"""What all commands use to talk: stdout and stderr, exit codes, questions, progress lines."""

from __future__ import annotations

import json
import os
import sys
import traceback as tracebacks
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, TextIO, TypeAlias

from cyclopts import Parameter
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


# ---- exit codes ------------------------------------------------------------------------------------------------------


class UsageError(PenstockError):
    """The command line cannot be understood; the message says what to write instead."""

    domain = Domain.USER


class ExitCode(IntEnum):
    """How a command ended. The numbers never change: scripts and process managers depend on them."""

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
            "Of plan: a start would change something, and nothing refuses it. Of shadow: old and new code write "
            "different rows."
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
"""One sentence about each code, for people."""
_OF_SOME: Final[Mapping[ExitCode, tuple[str, ...]]] = MappingProxyType(
    {ExitCode.CHANGES: ("plan", "shadow"), ExitCode.BEHIND: ("lag",)}
)
"""Codes that only some commands end with."""
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
"""The exit code of each kind of error; the first that matches counts."""


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code of a command that ended with ``error``.

    >>> exit_code_of(GenerationFenced("taken over"))
    <ExitCode.FENCED: 69>
    """
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), ExitCode.BUG)


def exit_code_table(command: str | None = None) -> str:
    """The exit codes of a command as text, for ``--help``; without a command, all."""
    codes = [code for code in MEANINGS if command is None or command in _OF_SOME.get(code, (command,))]
    return "\n".join(f"  {code.value:>3}  {MEANINGS[code]}" for code in codes)


# ---- the two streams -------------------------------------------------------------------------------------------------
#
# Results go to stdout, everything else to stderr. Off a terminal there are no control codes; with ``NO_COLOR`` set
# there are no colours anywhere.

WIDE: Final = 200
"""Columns of a table that is written into a file or a pipe."""
NO_JAVA: Final = "JAVA_GATEWAY_EXITED"
"""Part of Spark's message if it cannot start a JVM."""


class Output:
    """The two streams of a command.

    Args:
        traceback: print all frames of an error, not only its message.
        out: the stream of results; stdout by default.
        err: the stream of everything else; stderr by default.

    Attributes:
        unwritten: why a result was not written, or not wholly. A reader that has gone away, as ``| head`` does, is no
            failure: the command goes on, and keeps its exit code.
    """

    def __init__(self, *, traceback: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.traceback = traceback
        self.unwritten: OSError | None = None
        self.out = _console(out or sys.stdout)
        self.err = _console(err or sys.stderr)

    def result(self, what: RenderableType) -> None:
        """Print a result to stdout."""
        with self._noting_what_is_lost():
            _print(self.out, what)

    def text(self, text: str) -> None:
        """Write a result to stdout as it is."""
        with self._noting_what_is_lost():
            self.out.file.write(text)
            self.out.file.flush()

    @contextmanager
    def _noting_what_is_lost(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            pass
        except OSError as error:
            self.unwritten = error

    def document(self, schema: str, **fields: object) -> None:
        """Print a result to stdout as one JSON document whose first field is its schema."""
        self.text(json.dumps({"schema": schema, **fields}, indent=2, ensure_ascii=False) + "\n")

    def note(self, text: str, *, style: str = "") -> None:
        """Print one line about the progress of the command to stderr, if that can be written."""
        with suppress(OSError):
            _print(self.err, Text(text, style=style))

    def error(self, error: BaseException) -> ExitCode:
        """Print an error to stderr and return the exit code that follows from it."""
        code = exit_code_of(error)
        if self.traceback:
            if isinstance(error, PenstockError):
                self.err.file.write(error.full_traceback())
            else:
                tracebacks.print_exception(error, file=self.err.file)
        for line in explain(error):
            self.note(f"penstock: {line}", style="red")
        if not self.traceback and code in {ExitCode.FAILED, ExitCode.BUG, ExitCode.ENGINE_DIED}:
            self.note("penstock: --traceback shows where it came from", style="dim")
        return code


CommandOutput: TypeAlias = Annotated[Output, Parameter(parse=False)]
"""The parameter ``output`` of a command: ``dispatch`` fills it in, the command line has no such option."""


def explain(error: BaseException) -> list[str]:
    """What a person needs to know about an error, most important first, without frames of penstock or Spark."""
    if isinstance(error, KeyboardInterrupt):
        return ["Interrupted."]
    if isinstance(error, PenstockError):
        lines = [str(error)]
        if NO_JAVA in lines[0]:
            lines.append("Spark needs Java 17 or newer. Put it on PATH or in JAVA_HOME.")
    else:
        name = type(error).__name__
        lines = [f"{name}: {error}" if str(error) else name, "This is a bug of penstock. Please report it."]
    if isinstance(error, PenstockError) and error.domain is Domain.INTERNAL and "report" not in lines[0]:
        lines.append("This is a bug of penstock. Please report it.")
    return lines


class _Console(Console):
    """A console that raises if its reader has gone away."""

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled; rich would end the process with 1."""
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
    """Print and flush. A stream that is closed takes nothing, which fails no job."""
    with suppress(ValueError):
        console.print(what, soft_wrap=isinstance(what, (str, Text)))
        console.file.flush()


# ---- questions -------------------------------------------------------------------------------------------------------


def confirm(
    output: Output,
    question: str,
    *,
    yes: bool,
    answer: Callable[[], str] | None = None,
    is_terminal: bool | None = None,
) -> bool:
    """Ask for permission; ``True`` if ``--yes`` was given or the person at the terminal agrees.

    Args:
        output: the question goes to its stderr: stdout is for results.
        question: what is about to be done, without a question mark.
        yes: ``--yes`` was given.
        answer: reads one line; by default from the terminal.
        is_terminal: a person can answer; by default whether stdin is a terminal.

    Raises:
        UsageError: there is no terminal, and ``--yes`` was not given.
    """
    if yes:
        return True
    if not (sys.stdin.isatty() if is_terminal is None else is_terminal):
        msg = f"{question}? There is no terminal to answer on. Give --yes to do it without asking."
        raise UsageError(msg)
    output.err.print(f"{question}? [y/N] ", end="", soft_wrap=True)
    output.err.file.flush()
    reply = (answer or input)().strip().lower()
    if reply in {"y", "yes"}:
        return True
    output.note("penstock: nothing was done")
    return False


# ---- progress lines --------------------------------------------------------------------------------------------------

ByteCallback: TypeAlias = Callable[[int, int], None]
"""Called repeatedly with the bytes done and the bytes in total."""


class ProgressLine:
    """What the command waits for: a line that counts seconds and then goes away; off a terminal a plain line.

    There is one line at a time. Use it in a ``with`` block.
    """

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
        """Show ``text`` in place of the line before it."""
        self.off()
        if not _is_terminal(self._output):
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
        """Change the text of the line and go on counting its seconds; nothing off a terminal."""
        if self._line is not None:
            self._line.update(self._line.task_ids[0], description=text)
        elif _is_terminal(self._output):
            self.on(text)

    def off(self) -> None:
        """Take the line away, if there is one."""
        self._line = None
        self._shown.close()


@contextmanager
def counting_bytes(output: Output, what: str) -> Iterator[ByteCallback]:
    """A callback that moves a progress bar on a terminal, and does nothing elsewhere.

    Args:
        output: the bar goes to its stderr.
        what: the text in front of the bar.
    """
    if not _is_terminal(output):
        yield lambda _done, _total: None
        return
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.err, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _is_terminal(output: Output) -> bool:
    return output.err.is_terminal and not output.err.is_dumb_terminal
