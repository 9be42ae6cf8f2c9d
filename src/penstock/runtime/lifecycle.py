"""What a job may become from what it is: a table, and a machine that refuses everything else. Pure.

A stopped job does not come back to life: a new one is made (mission rows S1, S2, S6).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.errors import InternalError


class JobState(str, Enum):
    """Each state says what is true while it lasts."""

    CREATED = "created"
    """Nothing was touched: no claim, no Spark job."""
    RESTORING = "restoring"
    """The log is claimed, what was open is being published, state is being read."""
    RUNNING = "running"
    """Sources are read."""
    STOPPING = "stopping"
    """The last checkpoint is being taken and published; nothing new is read."""
    RESTARTING = "restarting"
    """The last attempt failed; the next begins after a pause."""
    STOPPED = "stopped"
    """Ended in order: everything read is published, the log says so."""
    FAILED = "failed"
    """Ended by an error that a restart does not help. What is in the log is kept for the next start."""
    FENCED = "fenced"
    """Another driver owns the job. Nothing more was committed or deleted here."""


MOVES: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.CREATED: frozenset({JobState.RESTORING, JobState.STOPPED, JobState.FAILED}),
    JobState.RESTORING: frozenset(
        {
            JobState.RUNNING,
            JobState.STOPPING,
            JobState.STOPPED,
            JobState.RESTARTING,
            JobState.FAILED,
            JobState.FENCED,
        }
    ),
    JobState.RUNNING: frozenset(
        {JobState.STOPPING, JobState.STOPPED, JobState.RESTARTING, JobState.FAILED, JobState.FENCED}
    ),
    JobState.STOPPING: frozenset({JobState.STOPPED, JobState.RESTARTING, JobState.FAILED, JobState.FENCED}),
    JobState.RESTARTING: frozenset({JobState.RESTORING, JobState.STOPPING, JobState.STOPPED, JobState.FAILED}),
    JobState.STOPPED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.FENCED: frozenset(),
}

OVER: Final = frozenset({JobState.STOPPED, JobState.FAILED, JobState.FENCED})


class Lifecycle:
    """The state of one job, moved only along :data:`MOVES`."""

    def __init__(self) -> None:
        self._story: list[JobState] = [JobState.CREATED]

    @property
    def state(self) -> JobState:
        """What the job is now."""
        return self._story[-1]

    @property
    def is_over(self) -> bool:
        """Whether nothing follows."""
        return self.state in OVER

    def to(self, state: JobState) -> None:
        """Move on.

        Raises:
            InternalError: the table has no such move; the state stays as it was.
        """
        if state not in MOVES[self.state]:
            story = " → ".join(each.value for each in self._story[-8:])
            msg = f"a job cannot go from {self.state.value} to {state.value} (it went {story})"
            raise InternalError(msg)
        self._story.append(state)
