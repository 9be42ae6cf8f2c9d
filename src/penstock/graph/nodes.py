"""The logical graph as frozen data; paces; call sites."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Final, Literal, Protocol, TypeAlias, TypeVar, get_args

from penstock.clock import format_duration, parse_duration
from penstock.errors import GraphError, assert_never
from penstock.handles import Guarantee, check_name
from penstock.interfaces.operator import LATE_PORT, MAIN_PORT, OperatorSpec
from penstock.interfaces.sink import Sink
from penstock.interfaces.source import Source
from penstock.user_code import PACKAGE, short_path

# ----------------------------------------------------------------------------------------------------- pace of a source

MIN_INTERVAL: Final = 10_000
"""The shortest interval of ``every``, in microseconds."""
DEFAULT_LINGER: Final = 50_000
"""Microseconds from the start of a batch to the start of the next, while each batch takes all there is."""


@dataclass(frozen=True, slots=True)
class WhenReady:
    """Read when there is data and the next step is free, at least ``linger`` microseconds after the last batch began.

    A source that lags does not linger: while more rows wait than a batch takes, the next batch begins at once.
    """

    linger: int = DEFAULT_LINGER

    def __str__(self) -> str:
        return (
            "when ready" if self.linger == DEFAULT_LINGER else f"when ready, lingering {format_duration(self.linger)}"
        )


@dataclass(frozen=True, slots=True)
class Every:
    """Read at multiples of ``interval`` microseconds since the epoch.

    Rows of ticks that passed while the job was down are read in at most ``catch_up`` batches.
    """

    interval: int
    catch_up: int = 1

    def __str__(self) -> str:
        text = f"every {format_duration(self.interval)}"
        return text if self.catch_up == 1 else f"{text}, up to {self.catch_up} missed ones one by one"


Pace: TypeAlias = WhenReady | Every
when_ready: Final = WhenReady()
"""The default pace of a source: ``linger`` of 50 milliseconds."""
without_pause: Final = WhenReady(linger=0)
"""No pause between batches, as in a run until caught up."""


def linger(time: str) -> WhenReady:
    """Return the pace of a source that lets rows gather: a batch begins at least ``time`` after the previous one began.

    Each batch has a fixed cost: many small batches cost processor time and save little delay. At 10,000 rows a
    second on two cores, the median row took 68 ms with the default of 50 ms. With 100 ms it took 92 ms, for two thirds
    of the processor time.

    Where batches take longer than ``time``, the pause is two fifths of a typical batch, and batches begin at most ten
    times ``time`` apart. The first rows after a rest are read at once, and so are rows that a batch had no room for.
    Kafka's producers have ``linger.ms`` and Flink's network channels a buffer timeout for the same reason.

    Args:
        time: for example ``"20 ms"``; ``"0 ms"`` is no pause.

    Raises:
        GraphError: ``time`` is not a duration.

    >>> print(linger("20 ms"))
    when ready, lingering 20 milliseconds
    """
    return WhenReady(parse_duration("linger", time, least=0))


MissedTicks: TypeAlias = Literal["once", "each"]
"""How rows of ticks that passed while the job was down are read."""


def every(interval: str, *, missed: MissedTicks = "once", max_missed: int = 100) -> Every:
    """Return the pace of a source that is read at most once in each interval, at its multiples since the epoch.

    Batches are fewer and larger, and in step across jobs. The first batch begins at the first multiple after the start,
    so a restart keeps the rhythm. A tick that finds the source busy is served late, by one batch with all rows that
    have come; further ticks that were missed are only counted, as ``ticks_missed``. A run until caught up does not wait
    for ticks. Spark Streaming's batch interval is the model.

    A job that starts again finds rows of ticks that passed since its checkpoint. They are one batch, with no more rows
    and bytes than a batch may have. Ticks without a batch are counted as ``ticks_missed``. A source that receives rows
    knows the tick of each row; with ``missed="each"`` its batches are those of the ticks, one after another.

    Args:
        interval: for example ``"1 second"``; at least 10 milliseconds.
        missed: ``"once"`` for one batch, or ``"each"`` for one for each tick that has rows.
        max_missed: most batches of missed ticks, with ``"each"``; the rows of all older ticks are the first of them.

    Raises:
        GraphError: ``interval`` is not a duration, or is too short, or another argument is impossible.

    >>> print(every("90 seconds"))
    every 90 seconds
    """
    if missed not in get_args(MissedTicks):
        msg = f"missed={missed!r} is not possible. Give 'once' or 'each'."
        raise GraphError(msg)
    if not isinstance(max_missed, int) or max_missed < 1:
        msg = f"max_missed={max_missed!r} is not possible. Give a whole number of at least 1."
        raise GraphError(msg)
    micros = parse_duration("interval", interval, least=MIN_INTERVAL)
    return Every(micros, catch_up=max_missed if missed == "each" else 1)


# ---------------------------------------------------------------------------------------------------------------- nodes

BAD_PORT = "bad"


@dataclass(frozen=True, slots=True)
class CallSite:
    """The file and line of the user's code that made a node.

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
    """A static table that row-wise steps may join: a SQL query, read again every ``refresh`` microseconds.

    ``on_error`` is ``fail``, or ``keep``: a table that cannot be read again keeps the content that was read last.
    """

    name: str
    query: str
    refresh: int | None
    origin: CallSite
    on_error: str = "fail"


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
    """A stateless step that rewrites a frame row by row.

    ``build(frame, *tables)`` returns the rewritten frame. The analysed plan of a ``checked`` step
    (``transform``, ``sql``) is the user's own, so it is checked against the allow-list.
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
        """The names of the metric and of the figure in it that count bad rows."""
        return f"bad:{self.id}", "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseCsv(ParseJson):
    """Decodes a column of CSV text. What becomes of good and bad records is as for JSON."""

    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WithWatermark:
    """Says which column is event time, and how late rows may come. Durations are microseconds.

    ``idle_after``: after this time without a batch, the stream is idle and holds back no watermark. ``max_ahead``:
    event times further ahead of the wall clock do not move the watermark. ``max_drift``: how far event time may be
    ahead of the slowest stream of its alignment group before sources pause.
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


@dataclass(frozen=True, slots=True)
class PortSelect:
    """One port of a ``parse_json`` with two, taken as a step of its own; a graph names it by a ``PortRef``."""

    node: ParseJson
    port: str

    @property
    def origin(self) -> CallSite:
        """The line of the ``parse_json``."""
        return self.node.origin


StatelessStep: TypeAlias = RowWise | ParseJson | WithWatermark | PortSelect


def bad_rows_of(steps: Iterable[StatelessStep]) -> tuple[str, str] | None:
    """The metric and the figure that say whether a batch has rows for these steps, if they are those of bad rows."""
    return next((s.node.bad_rows for s in steps if isinstance(s, PortSelect) and s.port == BAD_PORT), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A pipeline as data: nodes in the order they were made, each after its inputs."""

    name: str
    origin: CallSite
    nodes: tuple[Node, ...]
    tables: tuple[Table, ...] = field(default=())

    def node(self, id: int) -> Node:
        """The node with this number."""
        return self.nodes[id]

    @property
    def sources(self) -> frozenset[str]:
        """The uids of the sources."""
        return frozenset(node.uid for node in self.nodes if isinstance(node, Read))

    @property
    def sinks(self) -> frozenset[str]:
        """The uids of the sinks."""
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


# --------------------------------------------------------------------------------------------- lines of the user's code


def call_site() -> CallSite:
    """Return the file and line of the innermost frame outside of penstock."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads every source file
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    if frame is None:
        return CallSite("<unknown>", 0)
    return CallSite(short_path(frame.f_code.co_filename), frame.f_lineno)


def defined_at(function: object) -> str | None:
    """Return ``shop.py:12``, where a function is defined, or ``None`` if it has no code of its own."""
    code = getattr(function, "__code__", None)
    return f"{short_path(code.co_filename)}:{code.co_firstlineno}" if code is not None else None


# ------------------------------------------------------------------------------------------------------- making a graph


NodeT = TypeVar("NodeT", bound=Node)


class GraphBuilder(Protocol):
    """Collects the nodes of one graph; ``penstock.Pipeline`` is one."""

    name: str

    def keep(self, make: Callable[[int], NodeT]) -> NodeT:
        """Add the node made for the next number, and return it."""

    def graph(self) -> Graph:
        """Return the graph as it is so far, unchecked."""


class TableRef:
    """A declared static table, to be handed to ``Pipeline.sql`` or ``Stream.transform``."""

    def __init__(self, pipeline: GraphBuilder, table: Table) -> None:
        self.pipeline = pipeline
        self.table = table

    def __repr__(self) -> str:
        return f"TableRef({self.table.name!r})"


def check_uid(uid: object, origin: CallSite) -> None:
    """Refuse an impossible uid; the error names the user's line."""
    if not isinstance(uid, str):
        msg = (
            f"The first argument is of type {type(uid).__name__}, but must be the step's uid. Begin with a text such "
            "as 'totals': checkpoints keep the step's state under it."
        )
        raise GraphError(msg, where=str(origin))
    try:
        check_name("uid", uid)
    except GraphError as error:
        error.where = str(origin)
        raise


def is_column(value: object) -> bool:
    """Return whether a value is a Spark ``Column``."""
    # By name, so that a pipeline of strings does not load Spark.
    return type(value).__name__ == "Column" and type(value).__module__.startswith("pyspark.")


# -------------------------------------------------------------------------------------------------------- steps as text

_LONGEST_TITLE = 80


def call_text(function: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """Return a call as text: ``shop.add_tax(rate=0.2)``."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or "?"
    arguments = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
    return f"{module}.{name}({', '.join(arguments)})"


def describe_step(node: Node) -> str:  # noqa: PLR0911 - one for each kind of step
    """Return a step in a few words: its verb, then its uid or its argument."""
    match node:
        case Read():
            return f"read '{node.uid}'"
        case RowWise():
            return _clipped(f"{node.verb} {node.text}") if node.verb != "sql" else "sql"
        case ParseCsv():
            return f"parse_csv {node.column}"
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
