"""What all commands share: the state folder, flags, and where a help text ends. Knows no command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

from cyclopts import App, Parameter

from penstock.cli.exits import table
from penstock.cli.output import Output

STATE: Final = ".penstock"

EPILOGUE: Final = f"""\
Every command takes --traceback: show all frames of an error.

Exit codes:
{table()}"""

Flag: Final = Parameter(negative="", show_default=False)
State: TypeAlias = Annotated[str, Parameter(help="Folder that holds the state of jobs.")]
JobName: TypeAlias = Annotated[str, Parameter(help='Name of the job, as in @ps.pipeline("orders").')]
AsJson: TypeAlias = Annotated[
    bool,
    Parameter(
        name="--json", negative="", show_default=False, help="For scripts: one document with a versioned schema."
    ),
]

Add: TypeAlias = Callable[[App, Output], None]
"""Adds a command, or a family of them, to the application."""


def epilogue(examples: str) -> str:
    """The end of a command's help."""
    return f"{examples}\n\n{EPILOGUE}"
