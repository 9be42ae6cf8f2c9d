"""Small doubles for what surrounds a task: a shell that writes down, a sink that keeps rows, batches of plain lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.clock import EventTime, MonotonicTime, WallTime
from penstock.elements import Batch, Element, ObservedMetrics
from penstock.facts import Fact
from penstock.graph.nodes import CallSite, WithWatermark
from penstock.handles import CheckpointId, TaskSnapshot
from penstock.runtime.channels import Channel, OutputPath, TaskOutput
from penstock.runtime.task import SnapshotWork


@dataclass
class Clock:
    """Time as the test says."""

    at: int = 0

    def now(self) -> MonotonicTime:
        return MonotonicTime(self.at)

    def wall(self) -> WallTime:
        return WallTime(self.at)


@dataclass
class NotingShell:
    """Writes down what a task asks, and makes snapshots durable at once."""

    snapshots: list[tuple[str, CheckpointId, TaskSnapshot]] = field(default_factory=list)
    abandonments: list[tuple[str, CheckpointId]] = field(default_factory=list)
    done: list[tuple[str, bool]] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)

    def snapshot(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
        self.snapshots.append((task, checkpoint, work()))

    def abandoned(self, task: str, checkpoint: CheckpointId) -> None:
        self.abandonments.append((task, checkpoint))

    def source_done(self, task: str, *, ended: bool) -> None:
        self.done.append((task, ended))

    def maintain(self, task: str, work: Callable[[], None]) -> None:
        work()

    def report(self, fact: Fact) -> None:
        self.facts.append(fact)


@dataclass
class KeepingWork:
    """Keeps every row in order; its snapshot is how many there are."""

    task: str
    calls: list[object] = field(default_factory=list)
    passes_on: bool = False
    runs_batches: bool = True
    rest: int | None = None
    on_snapshot: Callable[[], None] = lambda: None

    def process(self, batch: Batch, *, source: int, watermark: EventTime, output: TaskOutput) -> int | None:
        self.calls.append((source, batch.frame))
        batch.settle()
        if self.passes_on:
            output.emit(batch)
        else:
            batch.release()
        return None

    def settle(self, wake: Callable[[], None]) -> bool:
        return True

    def advance(self, watermark: EventTime, *, output: TaskOutput) -> None:
        self.calls.append(("advance", watermark))

    def tick(self, *, output: TaskOutput) -> int | None:
        return self.rest

    def snapshot(self, checkpoint: CheckpointId) -> SnapshotWork:
        self.calls.append(("snapshot", checkpoint))
        self.on_snapshot()
        return lambda watermarks: TaskSnapshot(task=self.task, watermarks=watermarks)

    def completed(self, checkpoint: CheckpointId) -> None:
        self.calls.append(("completed", checkpoint))

    def maintain(self) -> Callable[[], None] | None:
        return None

    def close(self) -> None:
        self.calls.append("closed")


def rows(*values: object, largest: int | None = None, mark: int = 7, **more: object) -> Batch:
    """A batch whose measure tells ``largest`` as its event time once it is settled."""
    measures = {} if largest is None else {f"time:{mark}": ObservedMetrics(lambda: {"max": largest})}
    return Batch(frame=list(values), sequence=0, measures=measures, **more)  # type: ignore[arg-type]


def marked(id: int = 7, *, delay: int = 0, idle_after: int | None = None) -> WithWatermark:
    """A ``with_watermark``."""
    return WithWatermark(
        id=id, origin=CallSite("t.py", 1), inputs=(), column="at", delay=delay, idle_after=idle_after, max_ahead=None
    )


def output_to(channel: Channel) -> TaskOutput:
    """An output with one port that leads straight to a channel."""
    return TaskOutput({"out": OutputPath(rewrite=None, channel=channel)}, keep=lambda batch, readers: batch)


def drained(channel: Channel) -> list[Element]:
    """What a channel holds, taken out; batches as their rows."""
    return [element.frame if isinstance(element, Batch) else element for element in channel.drain()]  # type: ignore[misc]
