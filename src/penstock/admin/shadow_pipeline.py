"""A pipeline with its sinks and sources replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
    SupportsReplay,
    Until,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# ----------------------------------------------------------------------------------------------------
# A source that has no rows: it stands for one that a shadow run is not to read. Asks nobody, tells nobody.

KIND: Final = "silent/1"
WAIT: Final = 1_000_000
"""Microseconds from one question for rows to the next, in a run that has no end."""


@dataclass(frozen=True, slots=True)
class EmptySource:
    """The same columns as a source, and never a row of it: the source itself is not opened.

    It is idle, so it holds no watermark back; it does not end, so no window closes for it.
    """

    of: Source

    @property
    def guarantee(self) -> Guarantee:
        """Nothing is read, so nothing is lost."""
        return Guarantee.EXACTLY_ONCE

    def schema(self, spark: SparkSession) -> StructType:
        """The columns of the source that it stands for."""
        return self.of.schema(spark)

    def open(self, context: SourceContext, resume: Position | None) -> EmptyReader:
        """A reader that stays where it is, whatever kind of position that is."""
        return EmptyReader(context.until, resume)

    def describe(self) -> str:
        """For people."""
        return f"left out: {self.of.describe()}"


class EmptyReader:
    """Says that it is idle, and then that it has caught up."""

    def __init__(self, until: Until, resume: Position | None) -> None:
        self._position = resume or Position(kind=KIND, detail={})
        self._is_over = until is Until.CAUGHT_UP
        self._is_told = False

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:  # noqa: ARG002 - never anything to read
        """No rows."""
        if self._is_told and self._is_over:
            return CaughtUp()
        wait = 0 if self._is_over else WAIT
        self._is_told = True
        return NoData(wake_at=MonotonicTime(now + wait), idle=True)

    def frame(self, plan: object) -> DataFrame:
        """Never asked for."""
        msg = f"a source that was left out was asked for the rows of {plan!r}"
        raise InternalError(msg)

    def position(self) -> Position:
        """Where the source was."""
        return self._position

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Nobody is told."""

    def close(self) -> None:
        """Nothing is held."""


# ----------------------------------------------------------------------------------------------------
# A user's pipeline whose sinks write into a folder and whose sources tell nobody; all other steps stay as they are.
#
# Pure: a graph in, a graph out. Knows nothing of runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineMuter:
    """What becomes of a graph.

    Attributes:
        folder: sinks write Parquet into folders below it that are called after their uids.
        ends: where sources end, by uid; one that is not here ends at what is there when it is opened.
        without: sources that are left out: nothing is read of them, and they are not opened.
    """

    folder: Path
    ends: Mapping[str, Position]
    without: frozenset[str] = frozenset()

    def graph(self, graph: Graph) -> Graph:
        """The same graph, muted.

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
        """Sources of the graph that nobody says the end of: the other run did not have them."""
        return tuple(
            node.uid
            for node in graph.nodes
            if isinstance(node, Read) and node.uid not in self.ends and node.uid not in self.without
        )


def _not_mutable(node: Read) -> GraphError:
    """Reading it might be seen outside: an offset that is committed, a message that is acknowledged and gone."""
    return GraphError(
        f"{node.source.describe()} cannot be read by a shadow run: it has no replayed(), so nobody knows whether "
        "others would notice that it is read (offsets committed, messages acknowledged), or whether two runs see the "
        f"same rows. Leave it out with --without {node.uid} (without=[{node.uid!r}]), which reads no row of it, or "
        "give the source replayed(), see penstock.sources.base.Replayable",
        uid=node.uid,
        where=str(node.origin),
    )


class MutedPipeline(PipelineDefinition):
    """A pipeline that is muted whenever its graph is asked for."""

    def __init__(self, of: PipelineDefinition, muting: PipelineMuter) -> None:
        super().__init__(of.name, of.function, of.origin)
        self._muting = muting

    def graph(self) -> Graph:
        """The pipeline's graph, muted.

        Raises:
            GraphError: the pipeline is refused, or a source of it cannot be muted.
        """
        return self._muting.graph(super().graph())
