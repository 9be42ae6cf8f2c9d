"""What the coordinator waits for: each timer says which wait it ends, so that a late one can be told. Only data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.ids import CheckpointId, Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicDue:
    """Time for the next periodic checkpoint."""

    due: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDeadline:
    """This checkpoint has had its time."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDue:
    """Time to try a checkpoint again that must be: the first of a log, or the final one."""

    due: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRetryDue:
    """Time to commit this sink's oldest open committable again."""

    uid: str
    checkpoint: CheckpointId
    due: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDeadline:
    """Whoever asked to stop does not wait longer for output to be published."""

    request: str


Timer: TypeAlias = PeriodicDue | CheckpointDeadline | RetryDue | CommitRetryDue | StopDeadline
