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

PipelineName: TypeAlias = Annotated[str, Parameter(help="module:pipeline, also from the current folder.")]
Begin: Final = Parameter(
    name="--from", help="Savepoint or checkpoint to begin at, or an exported folder (with a slash)."
)
Claim: TypeAlias = Annotated[bool, Flag, Parameter(help="Take the exported folder's files over.")]
Fresh: TypeAlias = Annotated[bool, Flag, Parameter(help="Begin empty, beside the state that is there.")]
LeaveState: TypeAlias = Annotated[
    bool, Flag, Parameter(help="Leave state unused whose step the pipeline no longer has.")
]
MaxRows: TypeAlias = Annotated[int | None, Parameter(help="Most rows of a batch.")]
Master: TypeAlias = Annotated[str | None, Parameter(help="Spark master; all cores of this machine by default.")]
Rename: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(negative="", show_default=False, help="OLD=NEW: a step goes on with the state of its old uid."),
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


def settings_of(
    checkpoint_every: str | None, stop_timeout: str | None, max_rows_per_batch: int | None, retained: int | None
) -> dict[str, object]:
    """The settings that ``run`` and ``plan`` take as options; ``None`` leaves one as it is set elsewhere."""
    return {
        "checkpoint_every": checkpoint_every,
        "stop_timeout": stop_timeout,
        "max_rows_per_batch": max_rows_per_batch,
        "retained": retained,
    }
