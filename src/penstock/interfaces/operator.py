"""Operator and OperatorSpec: what a keyed step must do; its ports."""

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


# ----------------------------------------------------------------------------------------------------
# What a stateful step is to the runtime; knows nothing of threads, barriers' alignment or the log.

MAIN_PORT = "out"
LATE_PORT = "late"


class Collector(Protocol):
    """Sends a batch downstream by a port of the step; may block while channels are full.

    It is the same for the whole life of an operator.
    """

    def __call__(self, batch: Batch, port: str = MAIN_PORT) -> None:
        """Send."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorContext:
    """What an operator may use.

    Attributes:
        folder: its own folder below the job's directory for this generation, ``state/<uid>/<generation>``. Layer
            names below it are used once.
        inputs: schema of each input.
        consumed: the ports that somebody reads; a port nobody reads is not built.
        partitions: ``n`` of the merge way, fixed for the life of the process.
        background: enter it around every background Spark job: it waits for one of the ``cores - 1`` slots and puts
            the thread's jobs into the background pool. ``background()`` is cheap to call.
        count: adds to a named counter of the step (``late``, ``fired``), for observers.
        failpoint: names a durable step, so that tests can crash there.
        wall: the wall clock, in microseconds since the epoch, for what is to happen in processing time.
        report: tells observers more than a counter can.
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
    """A snapshot by name: the layers are immutable, so naming them takes no time."""

    def materialise(self) -> StateHandle:
        """Make what is not yet durable so, in the background, and describe it. Called once, on a worker thread.

        Layers belong to the step's stack, not to the checkpoint: an abort changes nothing, and what was written for
        an aborted checkpoint serves the next.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeferredBatch:
    """A batch whose job is left to whoever runs its results.

    Attributes:
        ran: among the measures of the results: settled by the first job over them, or lost if nobody will run them.
        finish: take in what that job has told; if there was none, run one. Called once, before anything else is asked
            of the operator but background work, and never while somebody may be running the results for the first time.
    """

    ran: ObservedMetrics
    finish: Callable[[], None]


class Operator(Protocol):
    """One keyed step. ``process``, ``advance``, ``snapshot`` and ``completed`` are never called at the same time."""

    def process(self, batch: Batch, *, source: int, watermark: EventTime, emit: Collector) -> DeferredBatch | None:
        """Take in a batch of input ``source``, in one Spark job. Calls ``batch.settle()`` after its success.

        Or in none: what it has emitted then is of this batch alone, and whoever runs that does the batch's job by the
        way. The caller keeps the batch until that is finished.

        There is one more job, before it, only when :meth:`maintain` has fallen so far behind that state in memory is
        at its limit: then the step does that work itself, and its input waits. A lost observation is asked for again,
        which is a job too.

        ``watermark`` is the step's, before this batch. The runtime releases the batch afterwards.
        """
        ...

    def advance(self, watermark: EventTime, *, emit: Collector) -> EventTime | None:
        """The step's watermark rose: emit what is due, lazily. Output that surely has no rows is not emitted.

        Returns the watermark of its output, if that is not as high: rows below ``watermark`` are still to be emitted.
        """
        ...

    def snapshot(self, checkpoint: CheckpointId) -> PendingSnapshot:
        """Name the state as of now."""
        ...

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is in the log."""
        ...

    def maintain(self) -> Callable[[], None] | None:
        """Background work that is due (compaction), or ``None``. The runtime runs it on a worker, one at a time."""
        ...

    def close(self) -> None:
        """Free every block held."""
        ...


@runtime_checkable
class ProcessingTimeOperator(Protocol):
    """An operator that also acts in processing time, whether rows come or not."""

    def tick(self, *, emit: Collector) -> int | None:
        """Do what is due; never called at the same time as ``process`` and the others.

        Returns after how many microseconds there is more to do; ``None``: not before something else happens.
        """
        ...


class OperatorSpec(Protocol):
    """A frozen description of a stateful step.

    One whose rows undo one another has ``is_change_stream``, one that may send a result twice ``may_repeat``: then they
    are not let into another stateful step.
    """

    @property
    def kind(self) -> str:
        """Name and version of the state's format: ``"window/1"``. Restore compares it."""
        ...

    def ports(self, inputs: tuple[StructType, ...]) -> Mapping[str, StructType]:
        """Schema of each output port.

        Raises:
            GraphError: a column is missing or has an impossible type.
        """
        ...

    def keeps(self, inputs: tuple[StructType, ...], session: SparkSession) -> StateSchema:
        """What its state looks like, which a start compares with what a checkpoint holds. Runs no job."""
        ...

    def open(self, context: OperatorContext, restored: StateHandle | None) -> Operator:
        """Begin from restored state or empty.

        Raises:
            StateIncompatible: schema or kind differ beyond what can be migrated.
            LayerMissing: a named file is not there.
        """
        ...

    def describe(self) -> str:
        """In a few words, for people."""
        ...


# ----------------------------------------------------------------------------------------------------
# Decides how recorded state becomes the state that a step declares; pure. Knows neither Spark nor files.
#
# State is described as Spark DDL: key columns, where a stretch of time starts and ends, then partial columns, each
# called ``<alias>__<part>``. Aggregates come and go as a whole, types only get wider, and keys and windows stay as they
# are.


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSchema:
    """What a step keeps, as it is declared now.

    Attributes:
        kind: name and version of its format: ``"window/1"``.
        schema: as Spark DDL.
        window: for what windows its rows are cut, in the words that its state records.
    """

    kind: str
    schema: str
    window: str
