"""What a task asks of its work and of what runs it, and what it tells; knows neither threads nor Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.elements import Batch
from penstock.facts import Fact
from penstock.handles import TaskSnapshot
from penstock.ids import CheckpointId, EventTime, Instant
from penstock.runtime.captures import Capture
from penstock.runtime.output import Output


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a step did: whether it worked, and when it wants to be called again without being woken."""

    worked: bool = False
    wake_at: Instant | None = None
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Mail: this checkpoint is in the log."""

    checkpoint: CheckpointId


class Work(Protocol):
    """What a step does with what arrives: a union, an operator or a sink."""

    runs_batches: bool
    """Whether it runs jobs over batches; a union only passes them on."""

    def process(self, batch: Batch, *, source: int, watermark: EventTime, output: Output) -> int | None:
        """Take in a batch (and release it, or pass it on); returns the rows it made or wrote, if known."""
        ...

    def settle(self, wake: Callable[[], None]) -> bool:
        """Be done with the batch that was taken in last; ``False`` if a job downstream has to run before.

        Then ``wake`` is called after it. Until it is done nothing else is asked for but background work, and nothing
        told but that a checkpoint is in the log.
        """
        ...

    def advance(self, watermark: EventTime, *, output: Output) -> EventTime | None:
        """The watermark rose; it is forwarded afterwards, or what is returned, if that is lower."""
        ...

    def tick(self, *, output: Output) -> int | None:
        """Act in processing time; after how many microseconds to ask again, if it matters."""
        ...

    def snapshot(self, checkpoint: CheckpointId) -> Capture:
        """Name the state as of now."""
        ...

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is in the log."""
        ...

    def maintain(self) -> Callable[[], None] | None:
        """Background work that is due."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


class Shell(Protocol):
    """What a task may ask of what runs it. Calls return at once."""

    def capture(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
        """Carry out the durable part of a snapshot on a worker, in order for each task, then acknowledge it."""
        ...

    def abandoned(self, task: str, checkpoint: CheckpointId) -> None:
        """The task will not take part in this checkpoint any more."""
        ...

    def source_done(self, task: str, *, ended: bool) -> None:
        """A source has nothing more to read in this run: it ended, or caught up."""
        ...

    def maintain(self, task: str, work: Callable[[], None]) -> None:
        """Run background work of a task on a worker."""
        ...

    def report(self, fact: Fact) -> None:
        """Tell observers."""
        ...
