"""Questions about a graph: upstream sources, alignment groups, pushdown, side outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.graph.nodes import (
    BAD_PORT,
    Graph,
    Keyed,
    ParseCsv,
    ParseJson,
    PortRef,
    Read,
    RowWise,
    WithWatermark,
    Write,
    describe_step,
)
from penstock.interfaces.operator import LATE_PORT, MAIN_PORT
from penstock.interfaces.source import SupportsJsonDecoding

# -------------------------------------------------------------------------------- what can be pushed down into a source


def exclusive_steps(graph: Graph, read: Read) -> list[RowWise | ParseJson | WithWatermark]:
    """Return the chain of steps after a source that are each the only consumer of the previous one."""
    steps: list[RowWise | ParseJson | WithWatermark] = []
    ref = PortRef(read.id)
    while True:
        consumers = list(graph.consumers(ref))
        step = consumers[0] if len(consumers) == 1 else None
        if not isinstance(step, (RowWise, ParseJson, WithWatermark)):
            return steps
        if isinstance(step, ParseJson) and step.on_error == "split":  # its bad rows keep all columns
            return steps
        steps.append(step)
        ref = PortRef(step.id)


def pushed_down_parse(graph: Graph, node: Read) -> ParseJson | None:
    """Return the ``parse_json`` that a source can do while it reads: its only consumer."""
    if not isinstance(node.source, SupportsJsonDecoding):
        return None
    consumers = list(graph.consumers(PortRef(node.id)))
    only = consumers[0] if len(consumers) == 1 else None
    return only if isinstance(only, ParseJson) and not isinstance(only, ParseCsv) else None


# --------------------------------------------------------------------------------------------- what a stream depends on


def ancestors(graph: Graph, ref: PortRef) -> set[int]:
    """Return the nodes that an output depends on, including the one that makes it."""
    found = {ref.node}
    for node in reversed(graph.nodes[: ref.node + 1]):
        if node.id in found:
            found.update(read.node for read in node.inputs)
    return found


def upstream_sources(graph: Graph, ref: PortRef) -> frozenset[str]:
    """Return the uids of all sources that a stream depends on."""
    node = graph.node(ref.node)
    if isinstance(node, Read):
        return frozenset((node.uid,))
    return frozenset[str]().union(*(upstream_sources(graph, read) for read in node.inputs))


def direct_sources(graph: Graph, ref: PortRef) -> frozenset[str] | None:
    """Return the sources whose own rows a stream has, or ``None`` if a keyed step made some of its rows."""
    node = graph.node(ref.node)
    if isinstance(node, Keyed):
        return None
    if isinstance(node, Read):
        return frozenset((node.uid,))
    found = [direct_sources(graph, read) for read in node.inputs]
    known = [sources for sources in found if sources is not None]
    return frozenset[str]().union(*known) if len(known) == len(found) else None


def sources_naming_partitions(graph: Graph, mark: WithWatermark) -> frozenset[str]:
    """Return the sources that name their partitions to a ``with_watermark`` that reads several sources.

    A single source names all of its partitions at once, with its first batch, so there is nothing to wait for.
    """
    sources = direct_sources(graph, mark.inputs[0]) or frozenset()
    readers = [node for node in graph.nodes if isinstance(node, Read) and node.uid in sources]
    named = (node.uid for node in readers if getattr(node.source, "partition_column", None) is not None)
    return frozenset(named) if len(readers) > 1 else frozenset()


# -------------------------------------------------------------------------------------------------- watermark alignment
# Streams meet at a step with several inputs: its watermark is their minimum, so rows of the stream ahead wait in state
# for the stream behind. Streams that never meet do not wait for each other, so groups need no names.


@dataclass(frozen=True, slots=True)
class AlignedStream:
    """A ``with_watermark`` of an alignment group, and the uids of the sources that its rows come from."""

    mark: WithWatermark
    sources: frozenset[str]


AlignmentGroup = tuple[AlignedStream, ...]
"""Streams that meet, directly or through others. A stream without ``max_drift`` is waited for and does not wait."""


def alignment_groups(graph: Graph) -> tuple[AlignmentGroup, ...]:
    """Return the groups of a valid graph in which a source may have to wait."""
    groups: list[set[int]] = []
    for marks in _meetings(graph):
        touched = [group for group in groups if group & marks]
        groups = [group for group in groups if group not in touched] + [marks.union(*touched)]
    found = (tuple(_streams(graph, group)) for group in groups)
    return tuple(group for group in found if any(each.mark.max_drift is not None for each in group))


def _meetings(graph: Graph) -> Iterator[set[int]]:
    """Yield, for each step, the ``with_watermark`` steps whose event times reach it."""
    for node in graph.nodes:
        marks = {mark for ref in node.inputs for mark in _marks(graph, ref)}
        if marks:
            yield marks


def _marks(graph: Graph, ref: PortRef) -> set[int]:
    """Return the last ``with_watermark`` on each way to a stream, except those after a keyed step."""
    node = graph.node(ref.node)
    if isinstance(node, WithWatermark) and direct_sources(graph, node.inputs[0]) is not None:
        return {node.id}
    return {mark for read in node.inputs for mark in _marks(graph, read)}


def _streams(graph: Graph, group: set[int]) -> Iterator[AlignedStream]:
    for number in sorted(group):
        node = graph.node(number)
        assert isinstance(node, WithWatermark)
        yield AlignedStream(node, direct_sources(graph, node.inputs[0]) or frozenset())


# --------------------------------------------------------------------------------------------------------- side outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOutputSink:
    """A sink that gets the rows of a side output.

    ``is_direct``: it gets all of them and no others, so the rows it wrote are the rows put aside.
    """

    uid: str
    to: str
    is_direct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOutput:
    """Rows that a step puts aside: ``kind`` is ``late`` or ``bad``, ``step`` a uid or a step in a few words.

    Without sinks the rows are counted and dropped, or go into another keyed step.
    """

    step: str
    kind: str
    sinks: tuple[SideOutputSink, ...] = ()


def side_outputs(graph: Graph) -> tuple[SideOutput, ...]:
    """Return the side outputs of a pipeline, in the order of its steps."""
    found = []
    for node in graph.nodes:
        for port in graph.ports(node):
            if port in {LATE_PORT, BAD_PORT}:
                step = node.uid if isinstance(node, Keyed) else describe_step(node)
                sinks = tuple(_side_output_sinks(graph, PortRef(node.id, port), is_direct=True))
                found.append(SideOutput(step=step, kind=port, sinks=sinks))
    return tuple(found)


def _side_output_sinks(graph: Graph, ref: PortRef, *, is_direct: bool) -> Iterator[SideOutputSink]:
    for node in graph.consumers(ref):
        match node:
            case Write():
                yield SideOutputSink(uid=node.uid, to=node.sink.describe(), is_direct=is_direct)
            case Keyed():
                pass
            case RowWise(verb="dead_letter"):  # makes one letter of each row
                yield from _side_output_sinks(graph, PortRef(node.id, MAIN_PORT), is_direct=is_direct)
            case ParseJson(on_error="split"):
                yield from _side_output_sinks(graph, PortRef(node.id, MAIN_PORT), is_direct=False)
                yield from _side_output_sinks(graph, PortRef(node.id, BAD_PORT), is_direct=False)
            case _:
                yield from _side_output_sinks(graph, PortRef(node.id, MAIN_PORT), is_direct=False)
