"""Which streams hold changes or repeated results, and who must not be given them; pure.

Rows of a change stream undo one another, and a window that may be sent twice would be counted twice: both are fine
where rows are only passed on, and wrong where they are added up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import GraphError
from penstock.graph.nodes import Graph, Keyed, Read, Ref, Union, WithWatermark, Write
from penstock.operators.base import MAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.graph.nodes import Node

WINDOW_TIME: Final = -1
"""Microseconds from a window's end to the event time of its result: the last moment within it."""


def check_changes(graph: Graph) -> None:
    """Refuse changes, and results that may come twice, where they would be taken for rows of their own.

    Raises:
        GraphError: with the step that makes them and the remedy.
    """
    for node in graph.nodes:
        for ref in node.inputs:
            for maker in _makers(graph, ref):
                _check(node, maker)


def window_shift(graph: Graph, ref: Ref) -> int:
    """What to add to the event times of a stream: results of windows belong to the last moment before their end.

    Raises:
        GraphError: some rows of a union are such results, and others are not.
    """
    node = graph.node(ref.node)
    if isinstance(node, (Read, WithWatermark, Write)):
        return 0
    if isinstance(node, Keyed):
        return WINDOW_TIME if ref.port == MAIN else 0
    inputs = node.inputs if isinstance(node, Union) else node.inputs[:1]
    shifts = {window_shift(graph, read) for read in inputs}
    if len(shifts) > 1:
        msg = (
            f"the union ({node.origin}) mixes results of windows, whose event time is the last moment of their window, "
            "with other rows: give both one event time with with_column, and with_watermark after the union"
        )
        raise GraphError(msg)
    return shifts.pop()


def _check(node: Node, maker: Keyed) -> None:
    is_change_stream = getattr(maker.spec, "is_change_stream", False)
    if isinstance(node, Keyed) and is_change_stream:
        msg = (
            f"it would add up the changes of '{maker.uid}' ({maker.origin}), whose rows undo one another: "
            f"write them to a sink, or take emit=\"final\" in '{maker.uid}'"
        )
        raise GraphError(msg, uid=node.uid, where=str(node.origin))
    if isinstance(node, Keyed) and getattr(maker.spec, "may_repeat", False):
        msg = (
            f"'{maker.uid}' ({maker.origin}) may send a window more than once, and each time would count: take "
            f"allowed_lateness, early and every_rows out of '{maker.uid}', and wait longer in with_watermark instead"
        )
        raise GraphError(msg, uid=node.uid, where=str(node.origin))
    if isinstance(node, Write) and is_change_stream and not getattr(node.sink, "accepts_changes", False):
        msg = (
            f"{node.sink.describe()} does not understand the changes of '{maker.uid}' ({maker.origin}): take "
            f'emit="final" there, or a sink that keeps the column _change, such as ps.files.Sink'
        )
        raise GraphError(msg, uid=node.uid, where=str(node.origin))


def _makers(graph: Graph, ref: Ref) -> Iterator[Keyed]:
    """The steps whose results a stream holds, be it through row-wise steps, if they are no plain rows."""
    node = graph.node(ref.node)
    if isinstance(node, Keyed):
        special = getattr(node.spec, "is_change_stream", False) or getattr(node.spec, "may_repeat", False)
        if special and ref.port == MAIN:
            yield node
        return
    inputs = node.inputs if isinstance(node, Union) else node.inputs[:1]
    for read in inputs:
        yield from _makers(graph, read)
