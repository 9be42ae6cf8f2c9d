"""Which streams wait for each other where ``max_drift`` is set: those whose event times meet; pure.

Streams meet at a step with several inputs, because there the watermark is the least of theirs: what the one ahead has
read waits in state for the one behind. Streams that never meet do not wait for each other, so groups need no names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.graph.nodes import Graph, Ref, WithWatermark
from penstock.graph.upstream import straight


@dataclass(frozen=True, slots=True)
class AlignedStream:
    """A ``with_watermark`` in a group, and the uids of the sources that its rows come from."""

    mark: WithWatermark
    sources: frozenset[str]


DriftGroup = tuple[AlignedStream, ...]
"""Streams that meet, directly or through others. Those without ``max_drift`` are waited for, and wait for nobody."""


def drift_groups(graph: Graph) -> tuple[DriftGroup, ...]:
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


def _marks(graph: Graph, ref: Ref) -> set[int]:
    """The last ``with_watermark`` on each way to a stream. One behind a keyed step tells nothing of sources."""
    node = graph.node(ref.node)
    if isinstance(node, WithWatermark) and straight(graph, node.inputs[0]) is not None:
        return {node.id}
    return {mark for read in node.inputs for mark in _marks(graph, read)}


def _streams(graph: Graph, group: set[int]) -> Iterator[AlignedStream]:
    for number in sorted(group):
        node = graph.node(number)
        assert isinstance(node, WithWatermark)
        yield AlignedStream(node, straight(graph, node.inputs[0]) or frozenset())
