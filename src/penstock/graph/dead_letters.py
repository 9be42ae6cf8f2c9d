"""Where dead letters are added to a graph, what is known of them there, and which source may read them again.

A letter has the row as it was, why it is one, and where it came from, in columns that are the same for all pipelines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock import formats
from penstock.errors import GraphError
from penstock.graph.nodes import BAD, Graph, Keyed, ParseJson, Read, Ref, RowWise, WithWatermark, Write
from penstock.graph.parts import check_uid
from penstock.graph.steps import title
from penstock.graph.upstream import upstream
from penstock.ids import check_name
from penstock.operators.base import LATE
from penstock.sinks.dead_letters import DeadLetters
from penstock.sources.dead_letters import AS_IT_WAS
from penstock.state.changing import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.graph.nodes import Node, Origin
    from penstock.graph.stream import Stream

DECODE: Final = "decode"
OTHER: Final = "other"
VERB: Final = "dead_letter"

_OFFSETS: Final = {"topic": "STRING", "partition": "INT", "offset": "BIGINT"}
_FILE: Final = "_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What a graph knows of rows that become dead letters.

    Attributes:
        cause: ``decode``, ``late``, or what the pipeline says.
        step: which gave them up.
        sources: uids of the sources that they come from.
        error: SQL of why, as text.
        undecoded: the column that could not be decoded.
        time: the column that has the event time.
        source: the source that may read them again, as they are.
        no_replay: why none may.
    """

    cause: str
    step: str
    sources: tuple[str, ...]
    error: str = "CAST(NULL AS STRING)"
    undecoded: str | None = None
    time: str | None = None
    source: str | None = None
    no_replay: str | None = None


def keep(stream: Stream, uid: str, cause: str | None, origin: Origin) -> None:
    """Add dead letters: one step that makes letters of rows, and a sink.

    Raises:
        GraphError: the uid or the cause is no name, or late and undecoded rows were given another cause.
    """
    check_uid(uid, origin)
    pipeline, ref = stream.pipeline, stream.ref
    if cause is not None:
        _check_cause(cause, ref, uid, origin)

    def build(frame: DataFrame) -> DataFrame:
        # Only now the graph is whole: who else reads the rows decides whether they may be read again.
        return letters(frame, provenance(pipeline.graph(), ref, cause=cause, time=stream.time))

    made = pipeline.keep(
        lambda number: RowWise(id=number, origin=origin, inputs=(ref,), verb=VERB, text=uid, build=build)
    )
    pipeline.keep(lambda number: Write(id=number, origin=origin, inputs=(Ref(made.id),), uid=uid, sink=DeadLetters()))


def _check_cause(cause: str, ref: Ref, uid: str, origin: Origin) -> None:
    if ref.port in (BAD, LATE):
        msg = f"cause is {cause!r}, but these rows have one: they are {'late' if ref.port == LATE else 'not decoded'}"
        raise GraphError(msg, uid=uid, where=str(origin))
    try:
        check_name("cause", cause)
    except GraphError as error:
        error.uid, error.where = uid, str(origin)
        raise


# ---------------------------------------------------------------------------------------------------- what is known


def provenance(graph: Graph, ref: Ref, *, cause: str | None = None, time: str | None = None) -> Provenance:
    """What a graph knows of the rows of an output, should they become dead letters."""
    node = graph.node(ref.node)
    sources = tuple(sorted(upstream(graph, ref)))
    if isinstance(node, Keyed) and ref.port == LATE:
        return Provenance(
            cause=LATE,
            step=node.uid,
            sources=sources,
            error="'came after each window that would hold it was closed'",
            time=getattr(node.spec, "time", None),
            no_replay="they would be late again: their windows are closed for ever",
        )
    if isinstance(node, ParseJson) and ref.port == BAD:
        source, why = _back_to(graph, node)
        return Provenance(
            cause=DECODE,
            step=title(node),
            sources=sources,
            error=formats.ERROR,
            undecoded=node.column,
            source=source,
            no_replay=why,
        )
    why = "they were decoded and given up later: only rows that parse_json could not decode go back to their source"
    return Provenance(cause=cause or OTHER, step=title(node), sources=sources, time=time, no_replay=why)


def _back_to(graph: Graph, parse: ParseJson) -> tuple[str | None, str | None]:
    """The source whose very rows a step gets, if nobody else gets them; or why there is none."""
    after: Node = parse
    while True:
        ref = after.inputs[0]
        node = graph.node(ref.node)
        if any(other is not after for other in graph.consumers(ref)):
            return None, f"other steps get the rows of {title(node)} too, and would get them twice"
        if isinstance(node, Read):
            return node.uid, None
        if not (isinstance(node, WithWatermark) or (isinstance(node, RowWise) and node.verb == "where")):
            return None, f"{title(node)} stands between the source and {title(parse)}, and makes other rows of its own"
        after = node


def replayed_by(graph: Graph, source: str) -> tuple[str, ...]:
    """The uids of all dead letters that a source may read again, in the order of the graph."""
    found = []
    for node in graph.nodes:
        if isinstance(node, Write) and isinstance(node.sink, DeadLetters):
            ref = graph.node(node.inputs[0].node).inputs[0]
            if provenance(graph, ref).source == source:
                found.append(node.uid)
    return tuple(found)


# --------------------------------------------------------------------------------------------------------- the columns


def letters(frame: DataFrame, told: Provenance) -> DataFrame:
    """Rows as letters; written as SQL, without any literal that changes from batch to batch."""
    kept = [name for name in frame.columns if told.cause != DECODE or name != formats.ERROR]
    record = ", ".join(map(quoted, kept))
    time = told.time if told.time in kept and frame.schema[str(told.time)].dataType.typeName() == "timestamp" else None
    return frame.selectExpr(
        f"{_literal(told.cause)} AS cause",
        f"{told.error} AS error",
        f"{_literal(told.step)} AS step",
        f"{_literal(', '.join(told.sources))} AS source",
        f"{_place(kept)} AS place",
        f"{quoted(time) if time else 'CAST(NULL AS TIMESTAMP)'} AS event_time",
        f"{_literal(told.undecoded)} AS undecoded",
        f"{_literal(told.no_replay)} AS no_replay",
        f"struct({record}) AS {AS_IT_WAS}",
    )


def _place(kept: list[str]) -> str:
    """Topic, partition and offset where rows have all three; the file where they have it."""
    has_offset = all(name in kept for name in _OFFSETS)
    parts = [
        f"'{name}', try_cast({quoted(name) if has_offset else 'NULL'} AS {kind})" for name, kind in _OFFSETS.items()
    ]
    file = f"try_cast({_FILE} AS STRING)" if _FILE in kept else "CAST(NULL AS STRING)"
    return f"named_struct({', '.join(parts)}, 'file', {file})"


def _literal(text: str | None) -> str:
    if text is None:
        return "CAST(NULL AS STRING)"
    return formats.literal(text)
