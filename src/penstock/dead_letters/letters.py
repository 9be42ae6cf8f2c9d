"""Rows as dead letters: what the graph knows of them, their columns, and which source may read them again.

A letter has the row as it was, why it is one, and where it came from, in the same columns for all pipelines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.dead_letters.replay import ReplayInbox
from penstock.dead_letters.store import FOLDER, RAW_ROW, DeadLetterSink
from penstock.formats import text
from penstock.graph.nodes import (
    BAD_PORT,
    Graph,
    Keyed,
    Node,
    ParseJson,
    PortRef,
    Read,
    RowWise,
    WithWatermark,
    Write,
    describe_step,
)
from penstock.graph.queries import upstream_sources
from penstock.interfaces.operator import LATE_PORT
from penstock.spark.sql import quote_identifier, string_literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from penstock.dead_letters.replay import LetterFrames
    from penstock.filesystem.base import FileSystem


DECODE: Final = "decode"
"""Cause of rows that ``parse_json`` could not decode."""
OTHER: Final = "other"
"""Cause of rows that a pipeline gives up without naming a cause."""
VERB: Final = "dead_letter"
"""Verb of the step that turns rows into letters."""
_OFFSETS: Final = {"topic": "STRING", "partition": "INT", "offset": "BIGINT"}
_FILE: Final = "_file"

# ---- provenance -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What a graph knows of rows that become dead letters.

    Attributes:
        cause: ``decode``, ``late``, or a cause that the pipeline gives.
        step: the step that gave them up.
        sources: uids of the sources that they come from.
        error: SQL of the error's text.
        undecoded: the column that could not be decoded.
        time: the column of the event time.
        source: uid of the source that may read them again; ``None`` if no source may.
        no_replay: why no source may.
    """

    cause: str
    step: str
    sources: tuple[str, ...]
    error: str = "CAST(NULL AS STRING)"
    undecoded: str | None = None
    time: str | None = None
    source: str | None = None
    no_replay: str | None = None


def provenance(graph: Graph, ref: PortRef, *, cause: str | None = None, time: str | None = None) -> Provenance:
    """The provenance of an output's rows as dead letters."""
    node = graph.node(ref.node)
    sources = tuple(sorted(upstream_sources(graph, ref)))
    if isinstance(node, Keyed) and ref.port == LATE_PORT:
        return Provenance(
            cause=LATE_PORT,
            step=node.uid,
            sources=sources,
            error="'came after each window that would hold it was closed'",
            time=getattr(node.spec, "time", None),
            no_replay="they would be late again: their windows are closed for ever",
        )
    if isinstance(node, ParseJson) and ref.port == BAD_PORT:
        source, why = _back_to(graph, node)
        return Provenance(
            cause=DECODE,
            step=describe_step(node),
            sources=sources,
            error=text.ERROR,
            undecoded=node.column,
            source=source,
            no_replay=why,
        )
    why = "they were decoded and given up later: only rows that parse_json could not decode go back to their source"
    return Provenance(cause=cause or OTHER, step=describe_step(node), sources=sources, time=time, no_replay=why)


def _back_to(graph: Graph, parse: ParseJson) -> tuple[str | None, str | None]:
    """The source whose unchanged rows a step gets, if no other step gets them; or why there is none."""
    after: Node = parse
    while True:
        ref = after.inputs[0]
        node = graph.node(ref.node)
        if any(other is not after for other in graph.consumers(ref)):
            return None, f"other steps get the rows of {describe_step(node)} too, and would get them twice"
        if isinstance(node, Read):
            return node.uid, None
        if not (isinstance(node, WithWatermark) or (isinstance(node, RowWise) and node.verb == "where")):
            return (
                None,
                f"{describe_step(node)} stands between the source and {describe_step(parse)}, "
                "and makes other rows of its own",
            )
        after = node


def replayed_by(graph: Graph, source: str) -> tuple[str, ...]:
    """Uids of all dead letters that a source may read again, in the order of the graph."""
    found = []
    for node in graph.nodes:
        if isinstance(node, Write) and isinstance(node.sink, DeadLetterSink):
            ref = graph.node(node.inputs[0].node).inputs[0]
            if provenance(graph, ref).source == source:
                found.append(node.uid)
    return tuple(found)


# ---- the columns of letters -----------------------------------------------------------------------------------------


def to_letters(frame: DataFrame, origin: Provenance) -> DataFrame:
    """Rows as letters, without any literal that changes from batch to batch."""
    kept = [name for name in frame.columns if origin.cause != DECODE or name != text.ERROR]
    record = ", ".join(map(quote_identifier, kept))
    has_time = origin.time in kept and frame.schema[str(origin.time)].dataType.typeName() == "timestamp"
    return frame.selectExpr(
        f"{_literal(origin.cause)} AS cause",
        f"{origin.error} AS error",
        f"{_literal(origin.step)} AS step",
        f"{_literal(', '.join(origin.sources))} AS source",
        f"{_place(kept)} AS place",
        f"{quote_identifier(str(origin.time)) if has_time else 'CAST(NULL AS TIMESTAMP)'} AS event_time",
        f"{_literal(origin.undecoded)} AS undecoded",
        f"{_literal(origin.no_replay)} AS no_replay",
        f"struct({record}) AS {RAW_ROW}",
    )


def _place(kept: list[str]) -> str:
    """SQL of topic, partition and offset if the rows have all three, and of the file if they have it."""
    has_offset = all(name in kept for name in _OFFSETS)
    parts = [
        f"'{name}', try_cast({quote_identifier(name) if has_offset else 'NULL'} AS {kind})"
        for name, kind in _OFFSETS.items()
    ]
    file = f"try_cast({_FILE} AS STRING)" if _FILE in kept else "CAST(NULL AS STRING)"
    return f"named_struct({', '.join(parts)}, 'file', {file})"


def _literal(text: str | None) -> str:
    if text is None:
        return "CAST(NULL AS STRING)"
    return string_literal(text)


# ---- dead letters of a job ------------------------------------------------------------------------------------------


def with_dead_letter_folders(graph: Graph, filesystem: FileSystem) -> Graph:
    """The graph with its dead letter sinks writing to the job's directory.

    Raises:
        GraphError: files cannot be published there.
    """

    def place(node: Node) -> Node:
        if isinstance(node, Write) and isinstance(node.sink, DeadLetterSink):
            return replace(node, sink=node.sink.placed(filesystem.url(f"{FOLDER}/{node.uid}")))
        return node

    return replace(graph, nodes=tuple(map(place, graph.nodes)))


def replay_inbox(
    graph: Graph,
    source: str,
    filesystem: FileSystem,
    on_timeline: Callable[[int], bool],
    frame: LetterFrames,
    *,
    has_ended: bool,
) -> ReplayInbox:
    """The dead letters that a source may read again; none once it has ended, since it reads nothing any more."""
    uids = () if has_ended else replayed_by(graph, source)
    others = frozenset(node.uid for node in graph.nodes if isinstance(node, Read) and node.uid != source)
    return ReplayInbox(uids=uids, filesystem=filesystem, on_timeline=on_timeline, frame=frame, others=others)
