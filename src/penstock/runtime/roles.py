"""What an attempt consists of, as the supervisor sees it: small protocols, so that it runs with threads or without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.entries import Manifest, Stopped
from penstock.checkpoint.messages import AnswerRequest, JobStarted
from penstock.errors import PenstockError
from penstock.handles import CommitOutcome, Committable
from penstock.ids import EntryNumber, Instant
from penstock.runtime.source_task import SourceTask
from penstock.runtime.task import StepTask

AnyTask: TypeAlias = "SourceTask | StepTask"


class Journal(Protocol):
    """Appends to the log on behalf of this attempt, and cleans up what an entry allows."""

    def checkpoint(self, manifest: Manifest) -> EntryNumber:
        """Complete the manifest with what is condemned, and append it."""
        ...

    def stopped(self, body: Stopped) -> EntryNumber:
        """Append the entry of an orderly end."""
        ...

    def clean(self) -> None:
        """Delete what recorded entries allow; repeats are harmless."""
        ...


class Stepper(Protocol):
    """Steps one task whenever there may be something to do, never twice at a time."""

    def start(self, task: AnyTask) -> None:
        """Begin."""
        ...

    def wake(self) -> None:
        """Something may have changed for the task."""
        ...

    def stop(self) -> None:
        """End after the step it is in."""
        ...

    def join(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        ...


class WorkerPool(Protocol):
    """Runs pieces of work beside the tasks: in order for each owner; a failure is reported by whoever runs them."""

    def submit(self, owner: str, work: Callable[[], None]) -> None:
        """Run ``work`` after all that ``owner`` submitted before."""
        ...

    def close(self) -> None:
        """Drop what has not begun."""
        ...

    def join(self, seconds: float) -> bool:
        """Once closed: wait for the end of what has begun; whether it came."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """Everything an attempt runs on, put together by the job."""

    coordinator: Coordinator
    started: Callable[[Instant], JobStarted]
    tasks: Mapping[str, AnyTask]
    threads: Mapping[str, Stepper]
    workers: WorkerPool
    journal: Journal
    publish: Callable[[Committable], CommitOutcome]
    explain: Callable[[BaseException], PenstockError]
    cancel: Callable[[], None]
    background: Callable[[], AbstractContextManager[None]]
    snapshot: Callable[[], AbstractContextManager[None]]
    answered: Callable[[AnswerRequest], None]

    @property
    def sources(self) -> tuple[str, ...]:
        """The tasks that read from outside."""
        return tuple(id for id, task in self.tasks.items() if isinstance(task, SourceTask))
