"""Asks before something is done that cannot be taken back; refuses where nobody can answer. Does nothing itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from penstock.cli.exits import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.cli.output import Output


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
