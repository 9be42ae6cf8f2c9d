"""What all commands share: the state folder, flags, and where a help text ends. Knows no command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias

from cyclopts import App, Parameter

from penstock.cli.exits import UsageError, table
from penstock.cli.output import Output
from penstock.durations import parse_duration
from penstock.errors import GraphError

STATE: Final = ".penstock"

EPILOGUE: Final = f"""\
Every command takes --traceback: show all frames of an error.

Exit codes:
{table()}"""


def _jobs(context: Any) -> list[str]:
    """What Tab offers for a job's name: those in the folder of ``--state``."""
    from penstock.operate.directory import jobs_in

    given = context.get("--state")
    return jobs_in((given.raw if given is not None else None) or STATE)


_BY_TAB: Final[dict[str, Any]] = {"completer": _jobs} if "completer" in inspect.signature(Parameter).parameters else {}
"""Nothing where the command line library is too old for it (on Python 3.10)."""

Flag: Final = Parameter(negative="", show_default=False)
State: TypeAlias = Annotated[str, Parameter(help="Folder that holds the state of jobs.")]
JobName: TypeAlias = Annotated[str, Parameter(help='Name of the job, as in @ps.pipeline("orders").', **_BY_TAB)]
AsJson: TypeAlias = Annotated[
    bool,
    Parameter(
        name="--json", negative="", show_default=False, help="For scripts: one document with a versioned schema."
    ),
]

Timeout: TypeAlias = Annotated[
    str | None, Parameter(help="How long to wait for the job's answer, such as 30s; for ever by default.")
]
Yes: TypeAlias = Annotated[bool, Parameter(negative="", show_default=False, help="Do not ask; for scripts.")]

Add: TypeAlias = Callable[[App, Output], None]
"""Adds a command, or a family of them, to the application."""


def epilogue(examples: str) -> str:
    """The end of a command's help."""
    return f"{examples}\n\n{EPILOGUE}"


def seconds_of(text: str | None, option: str = "--timeout") -> float | None:
    """A duration that was given on the command line.

    Raises:
        UsageError: it is none; with the option's name.
    """
    if text is None:
        return None
    try:
        return parse_duration(option, text) / 1_000_000
    except GraphError as error:
        raise UsageError(str(error)) from error
