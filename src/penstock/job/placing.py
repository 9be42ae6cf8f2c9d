"""Dead letters of a job: where they are kept, and which sources may read them again. Decides, and opens nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.graph.dead_letters import replayed_by
from penstock.graph.nodes import Graph, Node, Read, Write
from penstock.sinks.dead_letters import DeadLetters
from penstock.sources.dead_letters import FOLDER
from penstock.sources.replaying import Letterbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.filesystem.base import FileSystem
    from penstock.sources.replaying import LettersFrame


def placed(graph: Graph, filesystem: FileSystem) -> Graph:
    """The graph with its dead letters in the job's directory.

    Raises:
        GraphError: files cannot be published there.
    """

    def place(node: Node) -> Node:
        if isinstance(node, Write) and isinstance(node.sink, DeadLetters):
            return replace(node, sink=node.sink.placed(filesystem.url(f"{FOLDER}/{node.uid}")))
        return node

    return replace(graph, nodes=tuple(map(place, graph.nodes)))


def letterbox(
    graph: Graph,
    source: str,
    filesystem: FileSystem,
    counts: Callable[[int], bool],
    frame: LettersFrame,
    *,
    has_ended: bool,
) -> Letterbox:
    """The dead letters that a source may read again; none once it has ended, for it reads no more."""
    uids = () if has_ended else replayed_by(graph, source)
    others = frozenset(node.uid for node in graph.nodes if isinstance(node, Read) and node.uid != source)
    return Letterbox(uids=uids, filesystem=filesystem, counts=counts, frame=frame, others=others)
