"""What is refused before anything runs: uids, guarantees, change streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.errors import DuplicateUid, GraphError, InternalError
from penstock.graph.nodes import BAD_PORT, Graph, Keyed, Node, PortRef, Read, Union, WithWatermark, Write, describe_step
from penstock.graph.queries import direct_sources
from penstock.handles import Guarantee, check_name
from penstock.interfaces.operator import LATE_PORT, MAIN_PORT
from penstock.interfaces.sink import HasIdentity

# ---------------------------------------------------------------------------------- change streams and repeated results
# Rows of a change stream undo one another, and a window that may be sent twice would be counted twice. Both are fine
# where rows are only passed on, and wrong where they are added up.

WINDOW_TIME: Final = -1
"""Microseconds from a window's end to the event time of its result, which is the last moment within the window."""


def check_changes(graph: Graph) -> None:
    """Refuse change streams and repeated results where a step would add them up.

    Raises:
        GraphError: names the step that makes them, and the remedy.
    """
    for node in graph.nodes:
        for ref in node.inputs:
            for maker in _makers(graph, ref):
                _check(node, maker)


def window_shift(graph: Graph, ref: PortRef) -> int:
    """Return what to add to event times of a stream: a window's result belongs to the last moment of the window.

    Raises:
        GraphError: a union mixes results of windows with other rows.
    """
    node = graph.node(ref.node)
    if isinstance(node, (Read, WithWatermark, Write)):
        return 0
    if isinstance(node, Keyed):
        return WINDOW_TIME if ref.port == MAIN_PORT else 0
    inputs = node.inputs if isinstance(node, Union) else node.inputs[:1]
    shifts = {window_shift(graph, read) for read in inputs}
    if len(shifts) > 1:
        msg = (
            f"The union ({node.origin}) mixes results of windows, whose event time is the last moment of their "
            "window, with other rows. Give both one event time with with_column, and with_watermark after the union."
        )
        raise GraphError(msg)
    return shifts.pop()


def _check(node: Node, maker: Keyed) -> None:
    is_change_stream = getattr(maker.spec, "is_change_stream", False)
    if isinstance(node, Keyed) and is_change_stream:
        msg = (
            f"The step would add up the changes of '{maker.uid}' ({maker.origin}), whose rows undo one another. Write "
            f"them to a sink, or take emit=\"final\" in '{maker.uid}'."
        )
        raise GraphError(msg, uid=node.uid, where=str(node.origin))
    if isinstance(node, Keyed) and getattr(maker.spec, "may_repeat", False):
        msg = (
            f"'{maker.uid}' ({maker.origin}) may send a window more than once, and each time would count. Take "
            f"allowed_lateness, early and every_rows out of '{maker.uid}', and wait longer in with_watermark instead."
        )
        raise GraphError(msg, uid=node.uid, where=str(node.origin))
    if isinstance(node, Write) and is_change_stream and not getattr(node.sink, "accepts_changes", False):
        msg = (
            f"{node.sink.describe()} does not understand the changes of '{maker.uid}' ({maker.origin}). Take "
            'emit="final" there, or a sink that keeps the column _change, such as ps.files.Sink.'
        )
        raise GraphError(msg, uid=node.uid, where=str(node.origin))


def _makers(graph: Graph, ref: PortRef) -> Iterator[Keyed]:
    """Yield the steps whose changes or repeated results are in a stream, also through row-wise steps."""
    node = graph.node(ref.node)
    if isinstance(node, Keyed):
        special = getattr(node.spec, "is_change_stream", False) or getattr(node.spec, "may_repeat", False)
        if special and ref.port == MAIN_PORT:
            yield node
        return
    inputs = node.inputs if isinstance(node, Union) else node.inputs[:1]
    for read in inputs:
        yield from _makers(graph, read)


# ---------------------------------------------------------------------------------------------- checks of a whole graph

_RANK: Final = {
    Guarantee.NONE: 0,
    Guarantee.AT_MOST_ONCE: 1,
    Guarantee.AT_LEAST_ONCE: 2,
    Guarantee.EXACTLY_ONCE: 3,
}


def validate(graph: Graph) -> None:
    """Refuse a graph that cannot run.

    Raises:
        DuplicateUid: two steps have one uid.
        GraphError: a name is impossible, there is no source or no sink, rows go nowhere, a step would add up changes,
            no source could pause for a ``max_drift``, or a guarantee cannot be kept.
    """
    _check_names(graph)
    _check_order(graph)
    _check_ends(graph)
    _check_dangling(graph)
    check_changes(graph)
    _check_alignment(graph)
    _check_identities(graph)
    for node in graph.nodes:
        if isinstance(node, Write):
            _check_guarantee(graph, node)


def _check_names(graph: Graph) -> None:
    check_name("name of a pipeline", graph.name)
    seen: dict[str, Node] = {}
    for node in graph.nodes:
        if not isinstance(node, (Read, Keyed, Write)):
            continue
        try:
            check_name("uid", node.uid)
        except GraphError as error:
            error.where = str(node.origin)
            raise
        if node.uid in seen:
            before = seen[node.uid]
            msg = f"The uid is taken by {describe_step(before)} at {before.origin}. Give each step a uid of its own."
            raise DuplicateUid(msg, uid=node.uid, where=str(node.origin))
        seen[node.uid] = node


def _check_order(graph: Graph) -> None:
    # Only a graph that was not made by ``Pipeline`` can fail here.
    for place, node in enumerate(graph.nodes):
        known = all(ref.node < place and ref.port in graph.ports(graph.node(ref.node)) for ref in node.inputs)
        if node.id != place or not known:
            msg = f"Node {place} of pipeline {graph.name!r} is out of order or reads an output that does not exist."
            raise InternalError(msg, where=str(node.origin))


def _check_ends(graph: Graph) -> None:
    ends = ((Read, "source. Begin with p.read(uid, source)"), (Write, "sink. End with stream.write(uid, sink)"))
    for kind, what in ends:
        if not any(isinstance(node, kind) for node in graph.nodes):
            msg = f"Pipeline {graph.name!r} has no {what}."
            raise GraphError(msg, where=str(graph.origin))


def _check_dangling(graph: Graph) -> None:
    # Rows that go nowhere are a mistake. Late rows need no consumer: they are counted.
    for node in graph.nodes:
        for port in graph.ports(node):
            if port == LATE_PORT or any(graph.consumers(PortRef(node.id, port))):
                continue
            uid = node.uid if isinstance(node, (Read, Keyed)) else None
            if port == BAD_PORT:
                msg = (
                    f"The bad rows of {describe_step(node)} go nowhere. Keep them with bad.dead_letter(uid), "
                    "write them with bad.write(uid, ps.files.Sink(…)), or choose on_error='null' or 'fail'."
                )
            else:
                step = describe_step(node)
                msg = f"The rows of {step} go nowhere. End the branch with .write(uid, sink), or leave it out."
            raise GraphError(msg, uid=uid, where=str(node.origin))


def _check_alignment(graph: Graph) -> None:
    for node in graph.nodes:
        if (
            isinstance(node, WithWatermark)
            and node.max_drift is not None
            and direct_sources(graph, node.inputs[0]) is None
        ):
            msg = (
                f"max_drift of {describe_step(node)}: Only sources can pause, and these rows are made by a step that "
                "keeps state. Set max_drift in with_watermark before that step."
            )
            raise GraphError(msg, where=str(node.origin))


def _check_identities(graph: Graph) -> None:
    owners: dict[str, Write] = {}
    for node in graph.nodes:
        if isinstance(node, Write) and isinstance(node.sink, HasIdentity) and node.sink.identity is not None:
            other = owners.setdefault(node.sink.identity, node)
            if other is not node:
                msg = (
                    f"'{other.uid}' and '{node.uid}' both have {node.sink.identity}. Each would take the other's "
                    "output for its own. Give each sink a name of its own."
                )
                raise GraphError(msg, uid=node.uid, where=str(node.origin))


def _check_guarantee(graph: Graph, node: Write) -> None:
    asked = node.guarantee
    if asked is None:
        return
    best = node.sink.guarantee
    if _RANK[asked] > _RANK[best]:
        msg = (
            f"{asked.value} is asked for, but the best that {node.sink.describe()} can do is {best.value}. Write "
            f"guarantee={best.value!r}, or take a sink that can do it."
        )
        raise GraphError(msg, uid=node.uid, where=str(node.origin))
    for source in _sources(graph, node):
        if _RANK[asked] > _RANK[source.source.guarantee]:
            msg = (
                f"{asked.value} is asked for, but its rows come from {source.source.describe()} (source "
                f"'{source.uid}'), which can be read {source.source.guarantee.value} only. Write "
                f"guarantee={source.source.guarantee.value!r}, or take a source that can be read again."
            )
            raise GraphError(msg, uid=node.uid, where=str(node.origin))


def validate_mode(graph: Graph, best: Guarantee) -> None:
    """Refuse a job whose mode is weaker than the guarantee that a sink was asked for.

    Raises:
        GraphError: a sink was asked for more than ``best``, which is what the job's mode gives.
    """
    for node in graph.nodes:
        if isinstance(node, Write) and node.guarantee is not None and _RANK[node.guarantee] > _RANK[best]:
            msg = (
                f"{node.guarantee.value} is asked for, but the job runs with mode={best.value!r}. Run it with "
                f"mode={node.guarantee.value!r} (PENSTOCK_MODE={node.guarantee.value}), or write "
                f"guarantee={best.value!r}."
            )
            raise GraphError(msg, uid=node.uid, where=str(node.origin))


def weakest_guarantee(graph: Graph, node: Write, mode: Guarantee = Guarantee.EXACTLY_ONCE) -> tuple[Guarantee, str]:
    """Return the guarantee of a sink's rows in a job of this mode, and the part that limits it."""
    found = [(node.sink.guarantee, "the sink")]
    found += [(source.source.guarantee, f"source '{source.uid}'") for source in _sources(graph, node)]
    return min([*found, (mode, f"mode {mode.value}")], key=lambda part: _RANK[part[0]])


def _sources(graph: Graph, node: Node) -> Iterator[Read]:
    """Yield the sources whose rows reach a node, in the order of the graph."""
    wanted = {node.id}
    for earlier in reversed(graph.nodes[: node.id + 1]):
        if earlier.id in wanted:
            wanted.update(ref.node for ref in earlier.inputs)
    return (found for found in graph.nodes if found.id in wanted and isinstance(found, Read))
