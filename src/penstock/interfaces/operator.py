"""What a keyed step must implement: OperatorSpec and Operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from penstock.clock import EventTime
from penstock.elements import Batch, ObservedMetrics
from penstock.facts import Fact
from penstock.filesystem.base import FileSystem
from penstock.handles import CheckpointId, Generation, StateHandle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


MAIN_PORT = "out"
LATE_PORT = "late"


class Collector(Protocol):
    """Sends a batch downstream through a port of the step. An operator gets the same one in every call."""

    def __call__(self, batch: Batch, port: str = MAIN_PORT) -> None:
        """Send a batch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorContext:
    """What an operator may use.

    Attributes:
        uid: of the step.
        spark: the session for its jobs.
        filesystem: of the state directory.
        folder: the step's folder of this generation, ``state/<uid>/<generation>``. Layer names in it are used once.
        generation: of the process that runs the job.
        inputs: schema of each input.
        consumed: the ports that another step reads; output of other ports is not built.
        partitions: number of partitions of state in memory, fixed for the life of the process.
        cores: that Spark may use.
        background: is entered around every background Spark job; it waits for one of the ``cores - 1`` slots, and puts
            the thread's jobs into the background pool. ``background()`` is cheap to call.
        count: adds to a named counter of the step (``late``, ``fired``), for listeners.
        failpoint: names a durable step, so that tests can crash there.
        wall: the wall clock, in microseconds since the epoch, for actions in processing time.
        report: passes a fact to the job's listeners.
    """

    uid: str
    spark: SparkSession
    filesystem: FileSystem
    folder: str
    generation: Generation
    inputs: tuple[StructType, ...]
    consumed: frozenset[str]
    partitions: int
    cores: int
    background: Callable[[], AbstractContextManager[None]]
    count: Callable[[str, int], None]
    failpoint: Callable[[str], None] = field(default=lambda _name: None)
    wall: Callable[[], int] = field(default=lambda: 0)
    report: Callable[[Fact], None] = field(default=lambda _fact: None)


class PendingSnapshot(Protocol):
    """A snapshot that names its layers, which takes no time since layers are immutable."""

    def materialise(self) -> StateHandle:
        """Make the layers durable that are not yet, and return the handle. Called once, on a worker thread.

        Layers belong to the step's stack, not to the checkpoint. An abort changes nothing, and files written for an
        aborted checkpoint are used by the next.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeferredBatch:
    """A batch whose job is deferred to the job of the consumer of its results.

    Attributes:
        ran: one of the metrics of the results: settled by the first job over them, or lost if no job will run them.
        finish: takes in what that job has observed, or runs a job if there was none. Called once, never during the
            first job over the results, and before any other call of the operator except for background work.
    """

    ran: ObservedMetrics
    finish: Callable[[], None]


class Operator(Protocol):
    """One keyed step. ``process``, ``advance``, ``snapshot`` and ``completed`` are never called at the same time."""

    def process(self, batch: Batch, *, source: int, watermark: EventTime, emit: Collector) -> DeferredBatch | None:
        """Process a batch of input ``source`` in one Spark job, then call ``batch.settle()``.

        An operator may defer that job instead. Then the results that it has emitted are of this batch alone, and the
        job that runs them also does the batch's work. The caller keeps the batch until ``DeferredBatch`` is
        finished; otherwise it releases the batch after this call.

        One more job runs first if ``maintain`` has fallen so far behind that state in memory is at its limit. A
        lost observation takes one more job, too.

        ``watermark`` is the step's watermark before this batch.
        """
        ...

    def advance(self, watermark: EventTime, *, emit: Collector) -> EventTime | None:
        """Emit what is due at a higher watermark, lazily; output that is known to have no rows is not emitted.

        Returns:
            The watermark of the output if it is lower, because rows below ``watermark`` are still to be emitted. Then
            ``watermark`` comes again once ``ProcessingTimeOperator.tick`` has nothing left to wait for.
        """
        ...

    def snapshot(self, checkpoint: CheckpointId) -> PendingSnapshot:
        """A snapshot of the state as of now."""
        ...

    def completed(self, checkpoint: CheckpointId) -> None:
        """Note that the checkpoint is in the log."""
        ...

    def maintain(self) -> Callable[[], None] | None:
        """Background work that is due (compaction), if any. The runtime runs it on a worker, one at a time."""
        ...

    def close(self) -> None:
        """Free every block held."""
        ...


@runtime_checkable
class ProcessingTimeOperator(Protocol):
    """An operator that also acts in processing time, with or without rows."""

    def tick(self, *, emit: Collector) -> int | None:
        """Do what is due; never called at the same time as ``process`` and the others.

        Returns:
            After how many microseconds there is more to do; ``None`` if not before another call.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSchema:
    """The state of a step, as it is declared now.

    Attributes:
        kind: name and version of its format: ``"window/1"``.
        schema: Spark DDL: key columns, start and end of a stretch of time, then partial columns ``<alias>__<part>``.
        window: the windows that its rows are for, as the state records them.
    """

    kind: str
    schema: str
    window: str


class OperatorSpec(Protocol):
    """A frozen description of a stateful step.

    It has ``is_change_stream`` if its output rows undo one another, and ``may_repeat`` if it may send a result twice.
    Such output is not accepted by another stateful step.
    """

    @property
    def kind(self) -> str:
        """Name and version of the state's format, as in ``"window/1"``; a restore compares it."""
        ...

    def ports(self, inputs: tuple[StructType, ...]) -> Mapping[str, StructType]:
        """Schema of each output port.

        Raises:
            GraphError: a column is missing or has an impossible type.
        """
        ...

    def keeps(self, inputs: tuple[StructType, ...], session: SparkSession) -> StateSchema:
        """The schema of its state, which a start compares with that of the checkpoint. Runs no job."""
        ...

    def open(self, context: OperatorContext, restored: StateHandle | None) -> Operator:
        """An operator with restored or empty state.

        Raises:
            StateIncompatible: the schema or kind of the state cannot be migrated.
            LayerMissing: a file of the state is missing.
        """
        ...

    def describe(self) -> str:
        """A short description for people."""
        ...
