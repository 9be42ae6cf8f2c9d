"""Which sinks the late and bad rows of a pipeline go to; pure, from the graph alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.graph.nodes import BAD, Graph, Keyed, ParseJson, Ref, RowWise, Write
from penstock.graph.steps import title
from penstock.operators.base import LATE, MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """A sink that gets the rows of a side output.

    ``is_direct``: it gets all of them and no others, so that what it wrote is how many there were.
    """

    uid: str
    to: str
    is_direct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOutput:
    """Rows that a step puts aside: ``kind`` is ``late`` or ``bad``, ``step`` a uid, or what a step without one does.

    No sinks: nobody takes them, so they are counted and dropped, or go into another step that keeps state.
    """

    step: str
    kind: str
    sinks: tuple[Outlet, ...] = ()


def side_outputs(graph: Graph) -> tuple[SideOutput, ...]:
    """All of a pipeline, in the order of its steps."""
    found = []
    for node in graph.nodes:
        for port in graph.ports(node):
            if port in {LATE, BAD}:
                step = node.uid if isinstance(node, Keyed) else title(node)
                sinks = tuple(_outlets(graph, Ref(node.id, port), is_direct=True))
                found.append(SideOutput(step=step, kind=port, sinks=sinks))
    return tuple(found)


def _outlets(graph: Graph, ref: Ref, *, is_direct: bool) -> Iterator[Outlet]:
    for node in graph.consumers(ref):
        match node:
            case Write():
                yield Outlet(uid=node.uid, to=node.sink.describe(), is_direct=is_direct)
            case Keyed():
                pass
            case RowWise(verb="dead_letter"):  # makes one letter of each row
                yield from _outlets(graph, Ref(node.id, MAIN), is_direct=is_direct)
            case ParseJson(on_error="split"):
                yield from _outlets(graph, Ref(node.id, MAIN), is_direct=False)
                yield from _outlets(graph, Ref(node.id, BAD), is_direct=False)
            case _:
                yield from _outlets(graph, Ref(node.id, MAIN), is_direct=False)
