"""All that can be refused before anything runs and without Spark, each with the user's line; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.errors import DuplicateUid, GraphError, InternalError
from penstock.graph.changes import check_changes
from penstock.graph.nodes import BAD, Graph, Keyed, Node, Read, Ref, WithWatermark, Write
from penstock.graph.steps import title
from penstock.graph.upstream import straight
from penstock.handles import Guarantee
from penstock.ids import check_name
from penstock.operators.base import LATE

_RANK: Final = {Guarantee.AT_MOST_ONCE: 0, Guarantee.AT_LEAST_ONCE: 1, Guarantee.EXACTLY_ONCE: 2}


def validate(graph: Graph) -> None:
    """Refuse what cannot run.

    Raises:
        DuplicateUid: two steps have one uid.
        GraphError: a name is impossible, there is no source or no sink, rows go nowhere, changes are taken for rows of
            their own, nobody could pause for a ``max_drift``, or a guarantee cannot be kept.
    """
    _names(graph)
    _wiring(graph)
    _ends(graph)
    _dangling(graph)
    check_changes(graph)
    _drift(graph)
    for node in graph.nodes:
        if isinstance(node, Write):
            _guarantee(graph, node)


def _names(graph: Graph) -> None:
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
            msg = f"the uid is taken by {title(before)} at {before.origin}; each step needs its own"
            raise DuplicateUid(msg, uid=node.uid, where=str(node.origin))
        seen[node.uid] = node


def _wiring(graph: Graph) -> None:
    """Only a graph that was not made by :class:`Pipeline` can fail here."""
    for place, node in enumerate(graph.nodes):
        known = all(ref.node < place and ref.port in graph.ports(graph.node(ref.node)) for ref in node.inputs)
        if node.id != place or not known:
            msg = f"node {place} of pipeline {graph.name!r} is out of order or reads an output that is not there"
            raise InternalError(msg, where=str(node.origin))


def _ends(graph: Graph) -> None:
    ends = ((Read, "source: begin with p.read(uid, source)"), (Write, "sink: end with stream.write(uid, sink)"))
    for kind, what in ends:
        if not any(isinstance(node, kind) for node in graph.nodes):
            msg = f"pipeline {graph.name!r} has no {what}"
            raise GraphError(msg, where=str(graph.origin))


def _dangling(graph: Graph) -> None:
    """Rows that go nowhere are a mistake. Late rows need not be read: they are counted."""
    for node in graph.nodes:
        for port in graph.ports(node):
            if port == LATE or any(graph.consumers(Ref(node.id, port))):
                continue
            uid = node.uid if isinstance(node, (Read, Keyed)) else None
            if port == BAD:
                msg = (
                    f"the bad rows of {title(node)} go nowhere: keep them with bad.dead_letter(uid), write them with "
                    "bad.write(uid, ps.files.Sink(…)), or choose on_error='null' or 'fail'"
                )
            else:
                msg = f"the rows of {title(node)} go nowhere: end the branch with .write(uid, sink), or leave it out"
            raise GraphError(msg, uid=uid, where=str(node.origin))


def _drift(graph: Graph) -> None:
    for node in graph.nodes:
        if isinstance(node, WithWatermark) and node.max_drift is not None and straight(graph, node.inputs[0]) is None:
            msg = (
                f"max_drift of {title(node)}: only sources can pause, and these rows are made by a step that keeps "
                "state; set max_drift in with_watermark before that step"
            )
            raise GraphError(msg, where=str(node.origin))


def _guarantee(graph: Graph, node: Write) -> None:
    asked = node.guarantee
    if asked is None:
        return
    best = node.sink.guarantee
    if _RANK[asked] > _RANK[best]:
        msg = f"{asked.value} is asked for, but the best that {node.sink.describe()} can do is {best.value}"
        raise GraphError(msg, uid=node.uid, where=str(node.origin))
    for source in _sources(graph, node):
        if _RANK[asked] > _RANK[source.source.guarantee]:
            msg = (
                f"{asked.value} is asked for, but its rows come from {source.source.describe()} (source "
                f"'{source.uid}'), which can be read {source.source.guarantee.value} only"
            )
            raise GraphError(msg, uid=node.uid, where=str(node.origin))


def validate_mode(graph: Graph, best: Guarantee) -> None:
    """Refuse a job that runs with weaker barriers than a sink was asked to rely on.

    Raises:
        GraphError: more is asked for than ``best``, the most that the job's mode gives.
    """
    for node in graph.nodes:
        if isinstance(node, Write) and node.guarantee is not None and _RANK[node.guarantee] > _RANK[best]:
            msg = f"{node.guarantee.value} is asked for, but the job runs with mode={best.value!r}"
            raise GraphError(msg, uid=node.uid, where=str(node.origin))


def guarantee_of(graph: Graph, node: Write) -> Guarantee:
    """What the rows of a sink get in the end: the least of the sink and the sources behind it."""
    return weakest(graph, node)[0]


def weakest(graph: Graph, node: Write, mode: Guarantee = Guarantee.EXACTLY_ONCE) -> tuple[Guarantee, str]:
    """What the rows of a sink get in the end in a job of this mode, and which part gives no more."""
    found = [(node.sink.guarantee, "the sink")]
    found += [(source.source.guarantee, f"source '{source.uid}'") for source in _sources(graph, node)]
    return min([*found, (mode, f"mode {mode.value}")], key=lambda part: _RANK[part[0]])


def _sources(graph: Graph, node: Node) -> Iterator[Read]:
    """The sources whose rows reach a node, in the order of the graph."""
    wanted = {node.id}
    for earlier in reversed(graph.nodes[: node.id + 1]):
        if earlier.id in wanted:
            wanted.update(ref.node for ref in earlier.inputs)
    return (found for found in graph.nodes if found.id in wanted and isinstance(found, Read))
