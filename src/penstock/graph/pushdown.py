"""Which ``parse_json`` steps a source may do while it reads: those that nobody but it would see the text of; pure."""

from __future__ import annotations

from penstock.graph.nodes import Graph, ParseJson, Read, Ref
from penstock.sources.base import DecodesJson


def decoded_beside(graph: Graph, node: Read) -> ParseJson | None:
    """The ``parse_json`` that reads a source that can decode JSON, if it is the only step that does."""
    if not isinstance(node.source, DecodesJson):
        return None
    consumers = list(graph.consumers(Ref(node.id)))
    only = consumers[0] if len(consumers) == 1 else None
    return only if isinstance(only, ParseJson) else None


def is_decoded_beside(graph: Graph, node: ParseJson) -> bool:
    """Whether the source before a ``parse_json`` is asked to do it. It may decline, for its types."""
    before = graph.node(node.inputs[0].node)
    return isinstance(before, Read) and decoded_beside(graph, before) is node
