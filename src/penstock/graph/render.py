"""A graph as text and as Mermaid, the same every time; knows nothing of where it is shown."""

from __future__ import annotations

from penstock.errors import assert_never
from penstock.graph.nodes import Graph, Keyed, Node, ParseJson, Read, Ref, RowWise, Union, WithWatermark, Write
from penstock.graph.pace import when_ready
from penstock.graph.pushdown import is_decoded_beside
from penstock.graph.steps import title
from penstock.graph.validate import guarantee_of
from penstock.operators.base import MAIN

_WIDTH = 72


def as_text(graph: Graph) -> str:
    """One line a step, with its number, what it reads, what it does, its guarantee and the user's line.

    >>> from penstock.graph.nodes import Origin
    >>> print(as_text(Graph(name="empty", origin=Origin("shop.py", 1), nodes=())))
    pipeline empty (shop.py:1)
    """
    lines = [f"pipeline {graph.name} ({graph.origin})"]
    lines += [f"  table {table.name}: {_clipped(table.query)}  ({table.origin})" for table in graph.tables]
    for node in graph.nodes:
        reads = ", ".join(_ref(ref) for ref in node.inputs)
        arrow = f" <- {reads}" if reads else ""
        lines.append(f"  [{node.id}] {_clipped(_label(graph, node))}{arrow}  ({node.origin})")
    return "\n".join(lines)


def as_mermaid(graph: Graph) -> str:
    """A flowchart in Mermaid's language.

    >>> from penstock.graph.nodes import Origin
    >>> print(as_mermaid(Graph(name="empty", origin=Origin("shop.py", 1), nodes=())))
    flowchart LR
    """
    lines = ["flowchart LR"]
    for node in graph.nodes:
        begin, end = _shape(node)
        text = f"{_clipped(_label(graph, node))}<br/>{node.origin}"
        lines.append(f'  n{node.id}{begin}"{_escaped(text)}"{end}')
    for node in graph.nodes:
        for ref in node.inputs:
            port = f"|{ref.port}|" if ref.port != MAIN else ""
            lines.append(f"  n{ref.node} -->{port} n{node.id}")
    return "\n".join(lines)


def _label(graph: Graph, node: Node) -> str:
    match node:
        case Read():
            pace = "" if node.pace == when_ready else f", {node.pace}"
            return f"{title(node)}: {node.source.describe()}{pace}, {node.source.guarantee.value}"
        case Write():
            return f"{title(node)}: {node.sink.describe()}, {guarantee_of(graph, node).value}"
        case Keyed():
            return f"{title(node)}: {node.spec.describe()}"
        case RowWise(verb="sql"):
            return f"sql {node.text}"
        case ParseJson():
            pushed = ", pushed into the source" if is_decoded_beside(graph, node) else ""
            return f"{title(node)}, on error {node.on_error}{pushed}"
        case RowWise() | WithWatermark() | Union():
            return title(node)
        case _:
            assert_never(node)


def _shape(node: Node) -> tuple[str, str]:
    match node:
        case Read() | Write():
            return "[(", ")]"
        case Keyed():
            return "[[", "]]"
        case _:
            return "[", "]"


def _ref(ref: Ref) -> str:
    return str(ref.node) if ref.port == MAIN else f"{ref.node}.{ref.port}"


def _clipped(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _escaped(text: str) -> str:
    return text.replace('"', "#quot;")
