"""Which sources a stream depends on; pure."""

from __future__ import annotations

from penstock.graph.nodes import Graph, Keyed, Read, Ref, WithWatermark


def upstream(graph: Graph, ref: Ref) -> frozenset[str]:
    """Every source that a stream depends on, through whatever steps."""
    node = graph.node(ref.node)
    if isinstance(node, Read):
        return frozenset((node.uid,))
    return frozenset[str]().union(*(upstream(graph, read) for read in node.inputs))


def straight(graph: Graph, ref: Ref) -> frozenset[str] | None:
    """The sources whose very rows a stream has; ``None`` if a step that keeps state made some of them."""
    node = graph.node(ref.node)
    if isinstance(node, Keyed):
        return None
    if isinstance(node, Read):
        return frozenset((node.uid,))
    found = [straight(graph, read) for read in node.inputs]
    known = [sources for sources in found if sources is not None]
    return frozenset[str]().union(*known) if len(known) == len(found) else None


def to_name_partitions(graph: Graph, mark: WithWatermark) -> frozenset[str]:
    """The sources that will name their partitions to this step, where rows of several come to it.

    One source alone names all of its partitions at once, with its first batch.
    """
    sources = straight(graph, mark.inputs[0]) or frozenset()
    readers = [node for node in graph.nodes if isinstance(node, Read) and node.uid in sources]
    named = (node.uid for node in readers if getattr(node.source, "partition_column", None) is not None)
    return frozenset(named) if len(readers) > 1 else frozenset()
