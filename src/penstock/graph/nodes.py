"""The logical graph as frozen data: nodes, edges, uids. Knows neither Spark nor how anything is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.graph.pace import Pace, when_ready
from penstock.handles import Guarantee
from penstock.operators.base import LATE, MAIN, OperatorSpec
from penstock.sinks.base import Sink
from penstock.sources.base import Source

BAD = "bad"


@dataclass(frozen=True, slots=True)
class Origin:
    """The user's file and line that made a node.

    >>> str(Origin("shop.py", 12))
    'shop.py:12'
    """

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Ref:
    """An output of a node: the node's number and one of its ports."""

    node: int
    port: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A static table that row-wise steps may join: a SQL query, read again every ``refresh`` microseconds."""

    name: str
    query: str
    refresh: int | None
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A source, and when it is read."""

    id: int
    origin: Origin
    uid: str
    source: Source
    pace: Pace = when_ready

    @property
    def inputs(self) -> tuple[Ref, ...]:
        """A source has none."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWise:
    """A stateless step: rewrites a frame, row by row.

    ``build(frame, *tables)`` returns the rewritten frame. ``checked`` steps hold the user's own plan (``transform``,
    ``sql``), so their analysed plan is held against the allow-list.
    """

    id: int
    origin: Origin
    inputs: tuple[Ref, ...]
    verb: str
    text: str
    build: Callable[..., object]
    tables: tuple[Table, ...] = ()
    checked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseJson:
    """Decodes a column of JSON text. Ports: ``out``, and ``bad`` where ``on_error`` is ``split``."""

    id: int
    origin: Origin
    inputs: tuple[Ref, ...]
    column: str
    schema: str
    on_error: str

    @property
    def bad_rows(self) -> tuple[str, str]:
        """The measure and the figure that tell how many rows are bad."""
        return f"bad:{self.id}", "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class WithWatermark:
    """Says which column is event time, and how late rows may come. Durations are microseconds.

    ``idle_after``: without a batch for so long, the edge no longer holds others back. ``max_ahead``: event times
    further than that ahead of the wall clock do not move the watermark. ``max_drift``: how far event times may be ahead
    of the slowest that they meet before sources pause.
    """

    id: int
    origin: Origin
    inputs: tuple[Ref, ...]
    column: str
    delay: int
    idle_after: int | None
    max_ahead: int | None
    max_drift: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """Several streams of the same columns as one."""

    id: int
    origin: Origin
    inputs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """A stateful step."""

    id: int
    origin: Origin
    inputs: tuple[Ref, ...]
    uid: str
    spec: OperatorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A sink. ``guarantee`` is what the user asked for, if anything."""

    id: int
    origin: Origin
    inputs: tuple[Ref, ...]
    uid: str
    sink: Sink
    guarantee: Guarantee | None = None


Node: TypeAlias = Read | RowWise | ParseJson | WithWatermark | Union | Keyed | Write
Stateless: TypeAlias = RowWise | ParseJson | WithWatermark


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A pipeline as data: nodes in the order they were made, so that each comes after its inputs."""

    name: str
    origin: Origin
    nodes: tuple[Node, ...]
    tables: tuple[Table, ...] = field(default=())

    def node(self, id: int) -> Node:
        """The node with this number."""
        return self.nodes[id]

    @property
    def sources(self) -> frozenset[str]:
        """The uids of what is read."""
        return frozenset(node.uid for node in self.nodes if isinstance(node, Read))

    @property
    def sinks(self) -> frozenset[str]:
        """The uids of what is written."""
        return frozenset(node.uid for node in self.nodes if isinstance(node, Write))

    def consumers(self, ref: Ref) -> Iterator[Node]:
        """The nodes that read this output, in order."""
        return (node for node in self.nodes if ref in node.inputs)

    def ports(self, node: Node) -> tuple[str, ...]:
        """The outputs a node has."""
        match node:
            case Write():
                return ()
            case ParseJson(on_error="split"):
                return (MAIN, BAD)
            case Keyed():
                return (MAIN, LATE)
            case _:
                return (MAIN,)
