"""The logical graph as frozen data; paces; call sites."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from penstock.clock import format_duration, parse_duration
from penstock.errors import GraphError, assert_never
from penstock.handles import Guarantee, check_name
from penstock.interfaces.operator import LATE_PORT, MAIN_PORT, OperatorSpec
from penstock.interfaces.sink import Sink
from penstock.interfaces.source import Source

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


# ----------------------------------------------------------------------------------------------------
# How often a source is read, as the user says it; knows neither clocks nor what is read.

MIN_INTERVAL: Final = 10_000
"""Microseconds between two ticks, at least."""
DEFAULT_LINGER: Final = 50_000
"""Microseconds from the beginning of one batch to that of the next at least, while each takes all there is."""


@dataclass(frozen=True, slots=True)
class WhenReady:
    """Read as soon as the step before is free and there is data, and at least ``linger`` microseconds after the last.

    Who lags behind does not linger: while more waits than a batch takes, the next one begins at once.
    """

    linger: int = DEFAULT_LINGER

    def __str__(self) -> str:
        return (
            "when ready" if self.linger == DEFAULT_LINGER else f"when ready, lingering {format_duration(self.linger)}"
        )


@dataclass(frozen=True, slots=True)
class Every:
    """Read at the ticks of a metronome: multiples of ``interval`` microseconds since the epoch."""

    interval: int

    def __str__(self) -> str:
        return f"every {format_duration(self.interval)}"


Pace: TypeAlias = WhenReady | Every
when_ready: Final = WhenReady()
"""The pace of a source that is given none: as :func:`linger` of 50 milliseconds."""
without_pause: Final = WhenReady(linger=0)
"""Without a pause: where nobody waits for more rows, as in a run until caught up."""


def linger(time: str) -> WhenReady:
    """Read when there is data, but let rows gather: a batch begins at least that long after the one before.

    A batch costs time whatever is in it, so many small ones cost processors and save little delay: at 10,000 rows a
    second on two cores, half of the rows were through after 68 milliseconds with the 50 that are the default, after 92
    with 100, for two thirds of the processors' time. Where batches take longer than that, a pause of three fifths of
    what they take as a rule leaves time to others, while batches begin no more than ten times that time apart. The
    first rows after a rest are read at once, and so is what a batch had no room for.
    Kafka's producers have ``linger.ms`` and Flink's edges a buffer timeout for the same reason.

    Args:
        time: for example ``"20 ms"``; ``"0 ms"`` is no pause.

    Raises:
        GraphError: it is no length of time.

    >>> print(linger("20 ms"))
    when ready, lingering 20 milliseconds
    """
    return WhenReady(parse_duration("linger", time, least=0))


def every(interval: str) -> Every:
    """At most one batch in each interval, begun at its multiples: fewer, larger batches, in step across jobs.

    The first batch begins at the first multiple after the start, so a restart keeps the rhythm. A tick that finds the
    source still busy is served late, by one batch that takes what has come; those before it are not made up, and
    counted as ``ticks_missed``. A run until caught up does not wait for ticks.

    Args:
        interval: for example ``"1 second"``; at least 10 milliseconds.

    Raises:
        GraphError: it is no length of time, or too short.

    >>> print(every("90 seconds"))
    every 90 seconds
    """
    return Every(parse_duration("interval", interval, least=MIN_INTERVAL))


# ----------------------------------------------------------------------------------------------------
# The logical graph as frozen data: nodes, edges, uids. Knows neither Spark nor how anything is run.

BAD_PORT = "bad"


@dataclass(frozen=True, slots=True)
class CallSite:
    """The user's file and line that made a node.

    >>> str(CallSite("shop.py", 12))
    'shop.py:12'
    """

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class PortRef:
    """An output of a node: the node's number and one of its ports."""

    node: int
    port: str = MAIN_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A static table that row-wise steps may join: a SQL query, read again every ``refresh`` microseconds."""

    name: str
    query: str
    refresh: int | None
    origin: CallSite


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A source, and when it is read."""

    id: int
    origin: CallSite
    uid: str
    source: Source
    pace: Pace = when_ready

    @property
    def inputs(self) -> tuple[PortRef, ...]:
        """A source has none."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWise:
    """A stateless step: rewrites a frame, row by row.

    ``build(frame, *tables)`` returns the rewritten frame. ``checked`` steps hold the user's own plan (``transform``,
    ``sql``), so their analysed plan is held against the allow-list.
    """

    id: int
    origin: CallSite
    inputs: tuple[PortRef, ...]
    verb: str
    text: str
    build: Callable[..., object]
    tables: tuple[Table, ...] = ()
    checked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseJson:
    """Decodes a column of JSON text. Ports: ``out``, and ``bad`` where ``on_error`` is ``split``."""

    id: int
    origin: CallSite
    inputs: tuple[PortRef, ...]
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
    origin: CallSite
    inputs: tuple[PortRef, ...]
    column: str
    delay: int
    idle_after: int | None
    max_ahead: int | None
    max_drift: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """Several streams of the same columns as one."""

    id: int
    origin: CallSite
    inputs: tuple[PortRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """A stateful step."""

    id: int
    origin: CallSite
    inputs: tuple[PortRef, ...]
    uid: str
    spec: OperatorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A sink. ``guarantee`` is what the user asked for, if anything."""

    id: int
    origin: CallSite
    inputs: tuple[PortRef, ...]
    uid: str
    sink: Sink
    guarantee: Guarantee | None = None


Node: TypeAlias = Read | RowWise | ParseJson | WithWatermark | Union | Keyed | Write
Stateless: TypeAlias = RowWise | ParseJson | WithWatermark


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A pipeline as data: nodes in the order they were made, so that each comes after its inputs."""

    name: str
    origin: CallSite
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

    def consumers(self, ref: PortRef) -> Iterator[Node]:
        """The nodes that read this output, in order."""
        return (node for node in self.nodes if ref in node.inputs)

    def ports(self, node: Node) -> tuple[str, ...]:
        """The outputs a node has."""
        match node:
            case Write():
                return ()
            case ParseJson(on_error="split"):
                return (MAIN_PORT, BAD_PORT)
            case Keyed():
                return (MAIN_PORT, LATE_PORT)
            case _:
                return (MAIN_PORT,)


# ----------------------------------------------------------------------------------------------------
# Finds the user's file and line that called into penstock; knows nothing of what was called.

_PACKAGE: Final = str(Path(__file__).resolve().parent.parent) + "/"
_FOREIGN: Final = ("/pyspark/", "/py4j/", "/site-packages/", "<frozen ")


def call_site() -> CallSite:
    """Where the first frame outside of penstock stands."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads every source file
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return CallSite("<unknown>", 0)
    return CallSite(_short(frame.f_code.co_filename), frame.f_lineno)


def raised_at(error: BaseException) -> str | None:
    """``shop.py:12 in add_tax`` for the innermost frame of the user's own code that an error went through."""
    place: str | None = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_PACKAGE) and not any(part in code.co_filename for part in _FOREIGN):
            place = f"{_short(code.co_filename)}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return place


def defined_at(function: object) -> str | None:
    """``shop.py:12`` for where a function of the user stands, if it has such a place."""
    code = getattr(function, "__code__", None)
    return f"{_short(code.co_filename)}:{code.co_firstlineno}" if code is not None else None


def _short(file: str) -> str:
    """Relative to where the user stands, if it is below."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file


# ----------------------------------------------------------------------------------------------------
# What methods of pipelines and streams take, and how it is refused; knows nothing of what becomes of it.


NodeT = TypeVar("NodeT", bound=Node)


class GraphBuilder(Protocol):
    """Collects the nodes of one graph; :class:`penstock.Pipeline` is one."""

    name: str

    def keep(self, make: Callable[[int], NodeT]) -> NodeT:
        """Add the node made for the next number, and return it."""

    def graph(self) -> Graph:
        """Return the graph as it is so far, unchecked."""


class TableRef:
    """A declared static table, to be handed to :meth:`Pipeline.sql` or :meth:`Stream.transform`."""

    def __init__(self, pipeline: GraphBuilder, table: Table) -> None:
        self.pipeline = pipeline
        self.table = table

    def __repr__(self) -> str:
        return f"TableRef({self.table.name!r})"


def check_uid(uid: object, origin: CallSite) -> None:
    """Refuse an impossible uid, with the line."""
    try:
        check_name("uid", uid)
    except GraphError as error:
        error.where = str(origin)
        raise


def is_column(value: object) -> bool:
    """Whether it is a Spark ``Column``; asks by name, so that a pipeline of strings needs no Spark."""
    return type(value).__name__ == "Column" and type(value).__module__.startswith("pyspark.")


# ----------------------------------------------------------------------------------------------------
# The row-wise steps that are penstock's own, as functions from frame to frame, and how steps are named for people.

_LONGEST_TITLE = 80


def call_text(function: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """``shop.add_tax(rate=0.2)``."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or "?"
    given = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
    return f"{module}.{name}({', '.join(given)})"


def to_ddl(schema: StructType) -> str:
    """A schema as text that is parsed again when the job is built."""
    return ", ".join(f"`{f.name.replace('`', '``')}` {f.dataType.simpleString()}" for f in schema.fields)


def describe_step(node: Node) -> str:  # noqa: PLR0911 - one for each kind of step
    """A step in a few words: its verb, then its uid or what it does."""
    match node:
        case Read():
            return f"read '{node.uid}'"
        case RowWise():
            return _clipped(f"{node.verb} {node.text}") if node.verb != "sql" else "sql"
        case ParseJson():
            return f"parse_json {node.column}"
        case WithWatermark():
            return f"with_watermark {node.column}, delay {format_duration(node.delay)}"
        case Union():
            return "union"
        case Keyed():
            return f"'{node.uid}'"
        case Write():
            return f"write '{node.uid}'"
        case _:
            assert_never(node)


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST_TITLE else text[: _LONGEST_TITLE - 1] + "…"
