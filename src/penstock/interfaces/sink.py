"""What a sink is to the runtime: a writer that stages, a committer that publishes. All a new connector must satisfy.

What is published twice is seen once. A committer works from the committable alone, for sinks that the pipeline no
longer has are committed too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from penstock.elements import Batch
from penstock.filesystem.base import FileSystem
from penstock.handles import CheckpointId, CommitOutcome, Committable, Generation, Guarantee

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a writer may use.

    ``log_id`` is a part of every identity in the outside. ``staging`` is the folder that is this generation's alone
    (``staged/<uid>/<generation>``), for sinks that stage in the state directory. ``background`` is entered around
    every background Spark job: it waits for a slot and puts the thread's jobs into the background pool. ``failpoint``
    names a durable step, so that tests can crash there.
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
    background: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)
    failpoint: Callable[[str], None] = field(default=lambda _name: None)


class PreparedOutput(Protocol):
    """Output of one epoch, closed to new rows but not yet durable."""

    def materialise(self) -> Sequence[Committable]:
        """Make it durable (fsynced, checksummed). Runs in the background; called once. No rows: no committables.

        What it returns stays valid however often checkpoints are aborted: it goes into the next manifest.
        """
        ...


class SinkWriter(Protocol):
    """Stages the output of one sink step; called by one thread at a time (but for ``materialise``)."""

    def write(self, batch: Batch) -> int | None:
        """Stage a batch, in exactly one Spark job. Returns the rows written, if known.

        Raises:
            ConnectorError: nothing of this batch will ever be visible.
        """
        ...

    def prepare(self, checkpoint: CheckpointId) -> PreparedOutput:
        """Close the epoch: all that was written since the last one. Cheap: no job, no input or output."""
        ...

    def close(self) -> None:
        """Release what is held; never publishes. May never be called."""
        ...


@runtime_checkable
class SupportsOutputLookup(Protocol):
    """A committer whose staged files become the published ones: so what is published can be found and compared."""

    def final(self, item: Committable, path: str) -> str | None:
        """Where a staged file lies once it is published; ``None`` if that cannot be told."""
        ...

    def has_evidence(self, item: Committable) -> bool:
        """Whether a staged file that is gone counts as published (its folder says that the target is there)."""
        ...


class Committer(Protocol):
    """Publishes committables of one kind, from nothing but themselves. Idempotent. Called in order of checkpoints."""

    def commit(self, item: Committable) -> CommitOutcome:
        """Fence where it can be, look, publish with the identity in the same atomic act."""
        ...

    def void(self, item: Committable) -> CommitOutcome:
        """Make sure that this identity can never publish. ``ALREADY_DONE``: it was published before."""
        ...


class Sink(Protocol):
    """A frozen description of where rows go.

    One that understands change streams, or keeps their rows as they come, has ``accepts_changes``.
    """

    @property
    def guarantee(self) -> Guarantee:
        """The best it can do."""
        ...

    def check(self, schema: StructType) -> None:
        """Refuse, before anything runs, what this sink cannot write.

        Raises:
            GraphError: with the column and the remedy.
        """
        ...

    def writer(self, context: SinkContext) -> SinkWriter:
        """A writer for one run. Nothing of an earlier run is resumed: what is not in the log never was."""
        ...

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:
        """Folders outside the state directory below which its writers stage, also those of the uids that it had before.

        What a dead generation left there is condemned by name in the log, as in the state directory (rule G2).
        """
        ...

    def describe(self) -> str:
        """In a few words, for people: ``files out/ (parquet)``. No secrets."""
        ...
