"""Pipelines with their sinks and sources replaced for a shadow run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from penstock.api.pipeline import PipelineDefinition
from penstock.clock import MonotonicTime, WallTime
from penstock.connectors.files.sink import Sink as FilesSink
from penstock.errors import GraphError, InternalError
from penstock.graph.nodes import Graph, Node, Read, Write
from penstock.handles import CheckpointId, Guarantee, Position, split_replays
from penstock.interfaces.source import (
    CaughtUp,
    NoData,
    PollResult,
    ReadLimit,
    Source,
    SourceContext,
    SupportsFixedColumns,
    SupportsReplay,
    Until,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# ---- a source without rows -------------------------------------------------------------------------------------------

KIND: Final = "silent/1"
WAIT: Final = 1_000_000
"""Microseconds between two polls, in a run that has no end."""


@dataclass(frozen=True, slots=True)
class EmptySource:
    """A source with the columns of another one and no rows; the other one is not opened.

    It is idle, so it holds no watermark back; it does not end, so no window closes for it.
    """

    of: Source

    @property
    def guarantee(self) -> Guarantee:
        """Nothing is read, so nothing is lost."""
        return Guarantee.EXACTLY_ONCE

    def schema(self, spark: SparkSession) -> StructType:
        """The columns of the replaced source."""
        return self.of.schema(spark)

    @property
    def takes_columns(self) -> bool:
        """Whether the replaced source takes its columns from its data."""
        return isinstance(self.of, SupportsFixedColumns) and self.of.takes_columns

    def with_fixed_columns(self, spark: SparkSession, resume: Position | None) -> Source:
        """Return a copy with the columns that the replaced source would continue with."""
        return EmptySource(cast("SupportsFixedColumns", self.of).with_fixed_columns(spark, resume))

    def open(self, context: SourceContext, resume: Position | None) -> EmptyReader:
        """Return a reader whose position never changes."""
        return EmptyReader(context.until, resume)

    def describe(self) -> str:
        """Describe the source that is left out."""
        return f"left out: {self.of.describe()}"


class EmptyReader:
    """Reports that it is idle, and then that it has caught up."""

    def __init__(self, until: Until, resume: Position | None) -> None:
        self._position = resume or Position(kind=KIND, detail={})
        self._ends = until is Until.CAUGHT_UP
        self._has_polled = False

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:  # noqa: ARG002 - never anything to read
        """Return that there are no rows."""
        if self._has_polled and self._ends:
            return CaughtUp()
        wait = 0 if self._ends else WAIT
        self._has_polled = True
        return NoData(wake_at=MonotonicTime(now + wait), idle=True)

    def frame(self, plan: object) -> DataFrame:
        """Raise: there is never a plan.

        Raises:
            InternalError: always.
        """
        msg = f"A source that was left out was asked for the rows of {plan!r}."
        raise InternalError(msg)

    def position(self) -> Position:
        """The position that the source had."""
        return self._position

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Do nothing: the source is not opened."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


# ---- muted pipelines -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineMuter:
    """Replaces the sinks and sources of graphs.

    Attributes:
        folder: sinks write Parquet into folders below it, which have their uids as names.
        ends: the positions at which sources end, by uid; the others end at what is there when they are opened.
        without: sources that are left out: they are not opened, and no rows of them are read.
    """

    folder: Path
    ends: Mapping[str, Position]
    without: frozenset[str] = frozenset()

    def graph(self, graph: Graph) -> Graph:
        """Return the graph with its sinks and sources replaced.

        Raises:
            GraphError: a source cannot be muted, and is not left out.
        """
        return replace(graph, nodes=tuple(self._node(node) for node in graph.nodes))

    def _node(self, node: Node) -> Node:
        match node:
            case Write(uid=uid):
                return replace(node, sink=FilesSink(self.folder / uid, format="parquet"), guarantee=None)
            case Read(uid=uid, source=source) if uid in self.without:
                return replace(node, source=EmptySource(source))
            case Read(uid=uid, source=source) if isinstance(source, SupportsReplay):
                end = self.ends.get(uid)
                return replace(node, source=source.replayed(None if end is None else split_replays(end)[0]))
            case Read():
                raise _not_mutable(node)
            case _:
                return node

    def unbounded(self, graph: Graph) -> tuple[str, ...]:
        """Return the sources without an end position: those that the other run did not have."""
        return tuple(
            node.uid
            for node in graph.nodes
            if isinstance(node, Read) and node.uid not in self.ends and node.uid not in self.without
        )


def _not_mutable(node: Read) -> GraphError:
    """The refusal of a source whose reading others might notice: a committed offset, an acknowledged message."""
    return GraphError(
        (
            f"{node.source.describe()} cannot be read by a shadow run, because it has no replayed(). It is not known "
            "whether others would notice that it is read (offsets committed, messages acknowledged), or whether two "
            f"runs see the same rows. Leave it out with --without {node.uid} (without=[{node.uid!r}]), which reads no "
            "row of it, or give the source replayed(), see penstock.interfaces.source.SupportsReplay."
        ),
        uid=node.uid,
        where=str(node.origin),
    )


class MutedPipeline(PipelineDefinition):
    """A pipeline whose graph is muted."""

    def __init__(self, of: PipelineDefinition, muter: PipelineMuter) -> None:
        super().__init__(of.name, of.function, of.origin)
        self._muter = muter

    def graph(self) -> Graph:
        """Return the pipeline's graph, muted.

        Raises:
            GraphError: the pipeline is refused, or a source of it cannot be muted.
        """
        return self._muter.graph(super().graph())
