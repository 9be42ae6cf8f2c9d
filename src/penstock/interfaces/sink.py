"""What a sink must implement: a SinkWriter that stages output, and a Committer that publishes it.

Output that is published twice is visible once. A committer works from the committable alone, since output of sinks
that the pipeline no longer has is published too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from penstock.clock import MonotonicTime, SystemClock
from penstock.elements import Batch
from penstock.filesystem.base import FileSystem
from penstock.handles import CheckpointId, CommitOutcome, Committable, Generation, Guarantee

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

CHANGE_COLUMN: Final = "_change"
"""The column of a change stream: ``insert``, ``update_before``, ``update_after`` or ``delete``."""


# ---- what a writer may use -------------------------------------------------------------------------------------------

MAX_KEPT_BYTES_OF_ALL: Final = 256 * 1024 * 1024
"""Bytes that all sinks of an attempt together keep in blocks."""


class BlockBudget:
    """Counts the bytes of output that is kept in blocks. Any thread may use it.

    Args:
        limit: bytes from which on there is no room.
        shared: the budget of all sinks, in which the bytes count too.
    """

    def __init__(self, limit: int = MAX_KEPT_BYTES_OF_ALL, shared: BlockBudget | None = None) -> None:
        self._limit = limit
        self._shared = shared
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes that are kept now."""
        return self._used

    def has_room(self, size: int) -> bool:
        """Whether so many more bytes may be kept."""
        return self._used + size <= self._limit and (self._shared is None or self._shared.has_room(size))

    def take(self, size: int) -> None:
        """Count bytes that are kept from now on, also if there was no room: a batch's size shows only afterwards."""
        with self._lock:
            self._used += size
        if self._shared is not None:
            self._shared.take(size)

    def give_back(self, size: int) -> None:
        """Count bytes as freed."""
        self.take(-size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a writer may use.

    Attributes:
        uid: of the sink.
        spark: the session for its jobs.
        schema: of the batches.
        log_id: is part of every identity outside of the state directory.
        job: name of the job.
        generation: of the process that runs the job.
        filesystem: of the state directory.
        staging: the folder of this generation (``staged/<uid>/<generation>``), for sinks that stage in the state
            directory.
        cores: that Spark may use.
        replays: whether all sources of the rows can be read again from the last checkpoint. Output that could not be
            read again is never kept in blocks.
        kept: the budget of all sinks of the attempt that keep output in blocks.
        next_checkpoint: the first that the run can take; all output of earlier ones is published or void. ``None``:
            unknown.
        check_owner: see ``CommitContext``.
        background: is entered around every background Spark job; it waits for a slot, and puts the thread's jobs into
            the background pool.
        failpoint: names a durable step, so that tests can crash there.
        now: the time of the job's clock.
    """

    uid: str
    spark: SparkSession
    schema: StructType
    log_id: str
    job: str
    generation: Generation
    filesystem: FileSystem
    staging: str
    cores: int
    replays: bool = True
    kept: BlockBudget = field(default_factory=BlockBudget)
    next_checkpoint: CheckpointId | None = None
    check_owner: Callable[[], None] = field(default=lambda: None)
    background: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)
    failpoint: Callable[[str], None] = field(default=lambda _name: None)
    now: Callable[[], MonotonicTime] = field(default=SystemClock().now)


# ---- the writer ------------------------------------------------------------------------------------------------------


class PreparedOutput(Protocol):
    """Output of one epoch, closed to new rows but not yet durable."""

    def materialise(self) -> Sequence[Committable]:
        """Make the output durable (fsynced, checksummed); no committables without rows. Called once, in the background.

        The committables stay valid if the checkpoint is aborted: they go into the next manifest.
        """
        ...


class SinkWriter(Protocol):
    """Stages the output of one sink; called by one thread at a time (except ``materialise``)."""

    def write(self, batch: Batch) -> int | None:
        """Stage a batch in exactly one Spark job; returns the number of rows written, if known.

        Raises:
            ConnectorError: nothing of this batch will ever be visible.
        """
        ...

    def prepare(self, checkpoint: CheckpointId) -> PreparedOutput:
        """Close the epoch: all rows since the last call. Cheap: no job, no input or output."""
        ...

    def close(self) -> None:
        """Release what is held; never publishes. May never be called."""
        ...


@runtime_checkable
class CheckpointListener(Protocol):
    """A writer that holds something until a checkpoint is in the log."""

    def completed(self, checkpoint: CheckpointId) -> None:
        """Note that this checkpoint is in the log, with all that was handed over for it and for those before it.

        May be called late or never. Called by the thread that calls ``write``.
        """
        ...


# ---- the committer ---------------------------------------------------------------------------------------------------


@runtime_checkable
class SupportsOutputLookup(Protocol):
    """A committer whose staged files become the published ones, so that published output can be found and compared."""

    def final(self, item: Committable, path: str) -> str | None:
        """The path of a staged file once it is published; ``None`` if unknown."""
        ...

    def has_evidence(self, item: Committable) -> bool:
        """Whether a missing staged file counts as published, because its folder shows that the target is there."""
        ...


@runtime_checkable
class SupportsPublishedLookup(Protocol):
    """A committer whose target says by itself which output it has."""

    def is_published(self, item: Committable) -> bool:
        """Whether the target surely has the output, or it is void; changes nothing."""
        ...


@runtime_checkable
class ChecksLog(Protocol):
    """A sink whose target remembers the log that has written there (rule S4)."""

    def check_log(self, log_id: str | None, uid: str) -> None:
        """Check, before anything is claimed or published, that a job of this log may write under this uid.

        Args:
            log_id: of the job's log; ``None`` if it is yet to begin.
            uid: of the sink.

        Raises:
            SinkIdentityConflict: the target remembers other logs only.
        """
        ...


@runtime_checkable
class HasIdentity(Protocol):
    """A sink that is known to its target by a name, which no two sinks may have."""

    @property
    def identity(self) -> str | None:
        """The name, with the argument that says it: ``transactional_id_prefix='shop'``; ``None`` without one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitContext:
    """What a committer may use. Commands have neither a Spark session nor a pipeline.

    Attributes:
        filesystem: of the job's directory; it reads the staged files of a committable.
        failpoint: names a durable step, so that tests can crash there.
        job: name of the job.
        spark: the session of the job; ``None`` in a command.
        sinks: the sinks of the pipeline that runs, by uid; empty in a command.
        jobs: is entered around Spark jobs; puts the thread's jobs into the background pool.
        check_owner: raises ``GenerationFenced`` if another process owns the job's log by now. To be called before
            something is taken from another process for the second time, or two take it from each other for ever.
    """

    filesystem: FileSystem
    failpoint: Callable[[str], None] = field(default=lambda _name: None)
    job: str = "JOB"
    spark: SparkSession | None = None
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    jobs: Callable[[str], AbstractContextManager[None]] = field(default=lambda _name: nullcontext())
    check_owner: Callable[[], None] = field(default=lambda: None)


class Committer(Protocol):
    """Publishes committables of one kind, from the committable alone. Idempotent. Called in order of checkpoints.

    It is made with a ``CommitContext``, in any process that finds its output open in the log: the job, its next
    start, ``penstock settle``, ``penstock rewind``.
    """

    def commit(self, item: Committable) -> CommitOutcome:
        """Publish: fence if possible, check, then publish together with the identity in one atomic act."""
        ...

    def void(self, item: Committable) -> CommitOutcome:
        """Make sure that the committable can never be published. ``ALREADY_DONE``: it was published before."""
        ...


@runtime_checkable
class ChecksCommittable(Protocol):
    """A committer that knows what would refuse a commit, so that a start is refused before it changes anything."""

    def check_committable(self, item: Committable) -> None:
        """Refuse a committable that could not be published here, and change nothing.

        Raises:
            CommitterMissing: what it needs is not there; with the remedy.
            PenstockError: a commit would raise it, and no retry would help.
        """
        ...


class Sink(Protocol):
    """A frozen description of where rows go.

    A sink that understands change streams, or keeps their rows as they come, has ``accepts_changes``.

    A sink whose writers hand over committables has ``committers``: the kind of each, and ``module:class`` of the
    ``Committer`` that publishes it, as in ``{"sqlite/1": "mylib:SqliteCommitter"}``. The log records it with each
    committable. A sink that promises exactly-once and names none is refused.
    """

    @property
    def guarantee(self) -> Guarantee:
        """The best guarantee that it can give."""
        ...

    def check(self, schema: StructType) -> None:
        """Refuse a schema that this sink cannot write, before anything runs.

        Raises:
            GraphError: with the column and the remedy.
        """
        ...

    def writer(self, context: SinkContext) -> SinkWriter:
        """A writer for one run. It resumes nothing of an earlier run: only output in the log counts."""
        ...

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:
        """Folders outside the state directory in which its writers stage, including those of its former uids.

        Files that a dead generation left there are condemned by name in the log, as in the state directory (rule G2).
        """
        ...

    def describe(self) -> str:
        """A short description for people: ``files out/ (parquet)``. No secrets."""
        ...
