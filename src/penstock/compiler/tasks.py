"""From the logical graph to tasks and the routes between them.

Tasks are sources, unions, keyed steps and sinks. Stateless steps become part of a ``Route``, which leads from an
output of a task to inputs of other tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import assert_never
from penstock.graph.nodes import (
    Graph,
    Keyed,
    ParseJson,
    PortRef,
    PortSelect,
    Read,
    RowWise,
    StatelessStep,
    Union,
    WithWatermark,
    Write,
    bad_rows_of,
)
from penstock.handles import union_id
from penstock.interfaces.operator import MAIN_PORT

TaskNode: TypeAlias = Read | Union | Keyed | Write


@dataclass(frozen=True, slots=True)
class InputRef:
    """One input of a task."""

    task: str
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Steps that rewrite a batch on its way, and where it goes then: to one input, or along branches.

    A batch that goes along branches is persisted once, because each branch runs it.
    """

    steps: tuple[StatelessStep, ...]
    to: InputRef | None = None
    branches: tuple[Route, ...] = ()

    @property
    def only_if(self) -> tuple[str, str] | None:
        """The metric and the figure that say whether a batch has rows for this route, if it is one of bad rows."""
        return bad_rows_of(self.steps)

    def leaves(self, above: WithWatermark | None = None) -> Iterator[tuple[InputRef, WithWatermark | None]]:
        """Yield the inputs reached, each with the last ``with_watermark`` on its way (``above``: before the route)."""
        mark = next((step for step in reversed(self.steps) if isinstance(step, WithWatermark)), above)
        if self.to is not None:
            yield self.to, mark
        for branch in self.branches:
            yield from branch.leaves(mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One task: its node, its number of inputs, and a route for each port that has a consumer."""

    id: str
    node: TaskNode
    inputs: int
    routes: Mapping[str, Route]


def build_tasks(graph: Graph) -> tuple[TaskSpec, ...]:
    """Return the tasks of a graph, in the order of its nodes. A port without a consumer has no route."""
    planner = _Planner(graph)
    return tuple(planner.task(node) for node in graph.nodes if isinstance(node, (Read, Union, Keyed, Write)))


class _Planner:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ids: dict[int, str] = {}
        for node in graph.nodes:
            if isinstance(node, (Read, Keyed, Write)):
                self._ids[node.id] = node.uid
            elif isinstance(node, Union):
                self._ids[node.id] = self._union_id(node)

    def _union_id(self, node: Union) -> str:
        # A union has no uid. Its id is made of what it unites, in order, and no uid can look like it.
        name = union_id([self._origin(ref) for ref in node.inputs])
        twins = sum(other == name or other.startswith(f"{name}#") for other in self._ids.values())
        return f"{name}#{twins + 1}" if twins else name

    def _origin(self, ref: PortRef) -> str:
        """Return the id of the task that a stream comes from, with the side outputs on its way."""
        node = self._graph.node(ref.node)
        port = "" if ref.port == MAIN_PORT else f".{ref.port}"
        return (self._ids[node.id] if node.id in self._ids else self._origin(node.inputs[0])) + port

    def task(self, node: TaskNode) -> TaskSpec:
        routes = {port: self._route(PortRef(node.id, port)) for port in self._graph.ports(node)}
        return TaskSpec(
            id=self._ids[node.id],
            node=node,
            inputs=len(node.inputs),
            routes={port: route for port, route in routes.items() if route is not None},
        )

    def _route(self, ref: PortRef, steps: tuple[StatelessStep, ...] = ()) -> Route | None:
        branches = list(self._branches(ref))
        if not branches:
            return None
        if len(branches) == 1:
            only = branches[0]
            return Route(steps=steps + only.steps, to=only.to, branches=only.branches)
        return Route(steps=steps, branches=tuple(branches))

    def _branches(self, ref: PortRef) -> Iterator[Route]:
        for node in self._graph.consumers(ref):
            match node:
                case Union() | Keyed() | Write():
                    for source, read in enumerate(node.inputs):
                        if read == ref:
                            yield Route(steps=(), to=InputRef(self._ids[node.id], source))
                case ParseJson() if len(self._graph.ports(node)) > 1:
                    yield from self._split(node)
                case RowWise() | ParseJson() | WithWatermark():
                    route = self._route(PortRef(node.id, MAIN_PORT), (node,))
                    if route is not None:
                        yield route
                case Read():
                    pass
                case _:
                    assert_never(node)

    def _split(self, node: ParseJson) -> Iterator[Route]:
        ports = []
        for port in self._graph.ports(node):
            route = self._route(PortRef(node.id, port), (PortSelect(node, port),))
            if route is not None:
                ports.append(route)
        if len(ports) == 1:
            yield Route(steps=(node, *ports[0].steps), to=ports[0].to, branches=ports[0].branches)
        elif ports:
            yield Route(steps=(node,), branches=tuple(ports))
