"""A user's pipeline whose sinks write into a folder and whose sources tell nobody; all other steps stay as they are.

Pure: a graph in, a graph out. Knows nothing of runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.errors import GraphError
from penstock.graph.nodes import Graph, Node, Read, Write
from penstock.graph.pipeline import PipelineDefinition
from penstock.handles import Position, apart
from penstock.operate.shadow.silent import Silent
from penstock.sinks.files import Sink as FilesSink
from penstock.sources.base import Replayable


@dataclass(frozen=True, slots=True, kw_only=True)
class Muting:
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
                return replace(node, source=Silent(source))
            case Read(uid=uid, source=source) if isinstance(source, Replayable):
                end = self.ends.get(uid)
                return replace(node, source=source.replayed(None if end is None else apart(end)[0]))
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


class Muted(PipelineDefinition):
    """A pipeline that is muted whenever its graph is asked for."""

    def __init__(self, of: PipelineDefinition, muting: Muting) -> None:
        super().__init__(of.name, of.function, of.origin)
        self._muting = muting

    def graph(self) -> Graph:
        """The pipeline's graph, muted.

        Raises:
            GraphError: the pipeline is refused, or a source of it cannot be muted.
        """
        return self._muting.graph(super().graph())
