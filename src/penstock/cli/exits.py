"""The exit codes: one frozen table, and which error ends in which. Knows nothing of commands nor of how to print."""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

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
