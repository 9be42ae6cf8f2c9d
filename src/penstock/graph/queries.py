"""Questions about a graph: upstream sources, alignment groups, pushdown, side outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.graph.nodes import (
    BAD_PORT,
    Graph,
    Keyed,
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

# ----------------------------------------------------------------------------------------------------
# Which columns of a source anybody looks at: what Spark's optimiser leaves of the steps behind it. Runs no job.
#
# Knows nothing of batches and of what a source does with the answer.


def exclusive_steps(graph: Graph, read: Read) -> list[RowWise | ParseJson | WithWatermark]:
    """The steps that a source's rows go through before anybody else sees them: those that follow each other alone."""
    steps: list[RowWise | ParseJson | WithWatermark] = []
    ref = PortRef(read.id)
    while True:
        consumers = list(graph.consumers(ref))
        step = consumers[0] if len(consumers) == 1 else None
        if not isinstance(step, (RowWise, ParseJson, WithWatermark)):
            return steps
        if isinstance(step, ParseJson) and step.on_error == "split":  # bad rows keep all columns
            return steps
        steps.append(step)
        ref = PortRef(step.id)


# ----------------------------------------------------------------------------------------------------
# Which ``parse_json`` steps a source may do while it reads: those that nobody but it would see the text of; pure.


def pushed_down_parse(graph: Graph, node: Read) -> ParseJson | None:
    """The ``parse_json`` that reads a source that can decode JSON, if it is the only step that does."""
    if not isinstance(node.source, SupportsJsonDecoding):
        return None
    consumers = list(graph.consumers(PortRef(node.id)))
    only = consumers[0] if len(consumers) == 1 else None
    return only if isinstance(only, ParseJson) else None


def is_pushed_down(graph: Graph, node: ParseJson) -> bool:
    """Whether the source before a ``parse_json`` is asked to do it. It may decline, for its types."""
    before = graph.node(node.inputs[0].node)
    return isinstance(before, Read) and pushed_down_parse(graph, before) is node


# ----------------------------------------------------------------------------------------------------
# Schemas along a graph, and everything that can be refused only with Spark's analyser at hand; runs nothing.
#
# Each stateless step is built once, on an empty frame; the segments compiled from the analysis reuse those plans.


def ancestors(graph: Graph, ref: PortRef) -> set[int]:
    """The nodes that an output depends on, its own included."""
    found = {ref.node}
    for node in reversed(graph.nodes[: ref.node + 1]):
        if node.id in found:
            found.update(read.node for read in node.inputs)
    return found


# ----------------------------------------------------------------------------------------------------
# Which sources a stream depends on; pure.


def upstream_sources(graph: Graph, ref: PortRef) -> frozenset[str]:
    """Every source that a stream depends on, through whatever steps."""
    node = graph.node(ref.node)
    if isinstance(node, Read):
        return frozenset((node.uid,))
    return frozenset[str]().union(*(upstream_sources(graph, read) for read in node.inputs))


def direct_sources(graph: Graph, ref: PortRef) -> frozenset[str] | None:
    """The sources whose very rows a stream has; ``None`` if a step that keeps state made some of them."""
    node = graph.node(ref.node)
    if isinstance(node, Keyed):
        return None
    if isinstance(node, Read):
        return frozenset((node.uid,))
    found = [direct_sources(graph, read) for read in node.inputs]
    known = [sources for sources in found if sources is not None]
    return frozenset[str]().union(*known) if len(known) == len(found) else None


def sources_naming_partitions(graph: Graph, mark: WithWatermark) -> frozenset[str]:
    """The sources that will name their partitions to this step, where rows of several come to it.

    One source alone names all of its partitions at once, with its first batch.
    """
    sources = direct_sources(graph, mark.inputs[0]) or frozenset()
    readers = [node for node in graph.nodes if isinstance(node, Read) and node.uid in sources]
    named = (node.uid for node in readers if getattr(node.source, "partition_column", None) is not None)
    return frozenset(named) if len(readers) > 1 else frozenset()


# ----------------------------------------------------------------------------------------------------
# Which streams wait for each other where ``max_drift`` is set: those whose event times meet; pure.
#
# Streams meet at a step with several inputs, because there the watermark is the least of theirs: what the one ahead has
# read waits in state for the one behind. Streams that never meet do not wait for each other, so groups need no names.


@dataclass(frozen=True, slots=True)
class AlignedStream:
    """A ``with_watermark`` in a group, and the uids of the sources that its rows come from."""

    mark: WithWatermark
    sources: frozenset[str]


AlignmentGroup = tuple[AlignedStream, ...]
"""Streams that meet, directly or through others. Those without ``max_drift`` are waited for, and wait for nobody."""


def alignment_groups(graph: Graph) -> tuple[AlignmentGroup, ...]:
    """The groups of a valid graph in which anybody may have to wait."""
    groups: list[set[int]] = []
    for marks in _meetings(graph):
        touched = [group for group in groups if group & marks]
        groups = [group for group in groups if group not in touched] + [marks.union(*touched)]
    found = (tuple(_streams(graph, group)) for group in groups)
    return tuple(group for group in found if any(each.mark.max_drift is not None for each in group))


def _meetings(graph: Graph) -> Iterator[set[int]]:
    """For each step the ``with_watermark`` steps whose event times reach it; one by itself meets its own partitions."""
    for node in graph.nodes:
        marks = {mark for ref in node.inputs for mark in _marks(graph, ref)}
        if marks:
            yield marks


def _marks(graph: Graph, ref: PortRef) -> set[int]:
    """The last ``with_watermark`` on each way to a stream. One behind a keyed step tells nothing of sources."""
    node = graph.node(ref.node)
    if isinstance(node, WithWatermark) and direct_sources(graph, node.inputs[0]) is not None:
        return {node.id}
    return {mark for read in node.inputs for mark in _marks(graph, read)}


def _streams(graph: Graph, group: set[int]) -> Iterator[AlignedStream]:
    for number in sorted(group):
        node = graph.node(number)
        assert isinstance(node, WithWatermark)
        yield AlignedStream(node, direct_sources(graph, node.inputs[0]) or frozenset())


# ----------------------------------------------------------------------------------------------------
# Which sinks the late and bad rows of a pipeline go to; pure, from the graph alone.


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOutputSink:
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
    sinks: tuple[SideOutputSink, ...] = ()


def side_outputs(graph: Graph) -> tuple[SideOutput, ...]:
    """All of a pipeline, in the order of its steps."""
    found = []
    for node in graph.nodes:
        for port in graph.ports(node):
            if port in {LATE_PORT, BAD_PORT}:
                step = node.uid if isinstance(node, Keyed) else describe_step(node)
                sinks = tuple(_outlets(graph, PortRef(node.id, port), is_direct=True))
                found.append(SideOutput(step=step, kind=port, sinks=sinks))
    return tuple(found)


def _outlets(graph: Graph, ref: PortRef, *, is_direct: bool) -> Iterator[SideOutputSink]:
    for node in graph.consumers(ref):
        match node:
            case Write():
                yield SideOutputSink(uid=node.uid, to=node.sink.describe(), is_direct=is_direct)
            case Keyed():
                pass
            case RowWise(verb="dead_letter"):  # makes one letter of each row
                yield from _outlets(graph, PortRef(node.id, MAIN_PORT), is_direct=is_direct)
            case ParseJson(on_error="split"):
                yield from _outlets(graph, PortRef(node.id, MAIN_PORT), is_direct=False)
                yield from _outlets(graph, PortRef(node.id, BAD_PORT), is_direct=False)
            case _:
                yield from _outlets(graph, PortRef(node.id, MAIN_PORT), is_direct=False)
