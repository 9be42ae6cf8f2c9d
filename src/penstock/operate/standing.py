"""How a job stands: what its log says, who runs it, and the numbers that its run has left. Reads; knows no command."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Final

from penstock.checkpoint.entries import Claim, StepRole
from penstock.errors import CheckpointError, PenstockError
from penstock.job.hint import read_hint
from penstock.operate.directory import JobDirectory, is_at_rest, jobs_in

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.checkpoint.control import ControlAnswer
    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.history import History
    from penstock.ids import WallTime
    from penstock.job.hint import Hint
    from penstock.runtime.clock import Clock

AT_ONCE: Final = 8
"""Jobs that are looked at at the same time: an owner that is gone takes 2 s to be sure of."""


class Being(str, Enum):
    """Whether a job runs, as far as can be told from its directory."""

    RUNNING = "running"
    """A process answers."""
    STOPPED = "stopped"
    """It ended in order: everything it read is published, the log says so."""
    DEAD = "dead"
    """Nobody answers, and there was no last word: the next start, or ``settle``, publishes what is open."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One job at one moment.

    Attributes:
        job: its name.
        history: its log.
        owner: what the process that runs it says, if one does.
        hint: the numbers that its last run left, if any; see :attr:`is_hint_of_now`.
        now: when this was looked at.
    """

    job: str
    history: History
    owner: ControlAnswer | None
    hint: Hint | None
    now: WallTime

    @property
    def being(self) -> Being:
        """Whether it runs."""
        if self.owner is not None:
            return Being.RUNNING
        return Being.STOPPED if is_at_rest(self.history) else Being.DEAD

    @property
    def word(self) -> str:
        """For people: what a running one says it is doing."""
        me = self.owner.me if self.owner is not None else None
        return me.state if me is not None else self.being.value

    @property
    def doing(self) -> str | None:
        """The same for documents; ``None`` if nobody runs it."""
        return self.word if self.being is Being.RUNNING else None

    @property
    def claim(self) -> Claim | None:
        """Who has, or had, the job."""
        entry = self.history.claim
        return entry.body if entry is not None and isinstance(entry.body, Claim) else None

    @property
    def is_hint_of_now(self) -> bool:
        """Whether the numbers are those of the newest owner, not of a run before it."""
        return self.hint is not None and self.hint.generation == self.history.generation

    @property
    def hint_age(self) -> float | None:
        """Seconds since the numbers were written."""
        return None if self.hint is None else _seconds(self.hint.written, self.now)

    @property
    def uptime(self) -> float | None:
        """Seconds since the process that runs it began; ``None`` if nobody does."""
        me = self.owner.me if self.owner is not None else None
        return None if me is None else _seconds(me.started, self.now)

    @cached_property
    def newest(self) -> Manifest | None:
        """The newest checkpoint in the log, on any timeline."""
        manifests = list(self.history.manifests.values())
        return manifests[-1][1] if manifests else None

    @property
    def checkpoint_age(self) -> float | None:
        """Seconds since it was complete."""
        return None if self.newest is None else _seconds(self.newest.completed, self.now)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The uids of what it reads, by its log and by its numbers."""
        manifest = self.history.restore_point
        recorded = [step.uid for step in manifest.steps if step.role is StepRole.SOURCE] if manifest else []
        told = [*self.hint.report.lag, *self.hint.report.batches] if self.hint is not None else []
        return tuple(sorted({*recorded, *told}))

    @property
    def state_bytes(self) -> Mapping[str, int]:
        """Bytes of the layers of each step that keeps state, as of the restore point."""
        manifest = self.history.restore_point
        tasks = manifest.tasks if manifest is not None else ()
        return {task.task: task.state.bytes for task in tasks if task.state is not None}


def standing(job: JobDirectory) -> Standing:
    """How it stands now.

    Raises:
        UnknownName: nobody has ever claimed it.
        CheckpointError: its log cannot be read, or whether anybody runs it cannot be found out.
    """
    owner = job.owner()  # first: what it then says is not younger than the log that is read
    history = job.read()
    hint = _hint(job)
    of_this_log = hint is not None and hint.log_id == history.log_id
    return Standing(job=job.job, history=history, owner=owner, hint=hint if of_this_log else None, now=job.clock.wall())


def _hint(job: JobDirectory) -> Hint | None:
    """Numbers are for people: storage that does not give them says only that there are none."""
    try:
        return read_hint(job.filesystem)
    except CheckpointError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclear:
    """A job whose log cannot be read, and why."""

    job: str
    message: str


def all_jobs(state: str | Path, *, clock: Clock | None = None) -> list[Standing | Unclear]:
    """Every job in a folder, sorted by name; one that cannot be read hides no other."""

    def look(name: str) -> Standing | Unclear:
        try:
            return standing(JobDirectory(state, name, clock=clock))
        except PenstockError as error:
            return Unclear(job=name, message=str(error))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(look, jobs_in(state)))


def _seconds(then: WallTime, now: WallTime) -> float:
    """Clocks of two machines may differ: nothing is younger than now."""
    return max(0, now - then) / 1_000_000
