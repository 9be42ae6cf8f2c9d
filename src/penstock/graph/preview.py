"""What stateless steps make of a few rows that somebody wrote down: an ordinary frame, no job of penstock's."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from penstock import formats
from penstock.errors import GraphError
from penstock.graph.analyze import analyze, ancestors
from penstock.graph.nodes import BAD, Graph, Keyed, Node, ParseJson, Read, Ref, RowWise, Union, WithWatermark, Write
from penstock.graph.steps import title
from penstock.graph.trouble import told
from penstock.state.sessions import current_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows: TypeAlias = Sequence[Mapping[str, object]]


def local_session() -> SparkSession:
    """The session that is there, or a new local one."""
    from pyspark.sql import SparkSession

    there = current_session()
    if there is not None:
        return there
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the workers are whatever PATH calls python3
    return SparkSession.builder.appName("penstock preview").getOrCreate()


def preview(graph: Graph, ref: Ref, rows: Rows | Mapping[str, Rows]) -> DataFrame:
    """A frame of what an output would hold for these rows.

    Raises:
        GraphError: a keyed step is on the way, or the rows do not fit the source.
    """
    spark = local_session()
    wanted = ancestors(graph, ref)
    sources = [node for node in graph.nodes if node.id in wanted and isinstance(node, Read)]
    given = _by_uid(rows, sources)
    analyze(graph, spark, only=ref).close()
    frames: dict[Ref, DataFrame] = {}
    for node in graph.nodes:
        if node.id in wanted:
            with told(node):
                _visit(node, frames, given, spark)
    return frames[ref]


def _by_uid(rows: Rows | Mapping[str, Rows], sources: Sequence[Read]) -> Mapping[str, Rows]:
    if isinstance(rows, Mapping):
        missing = sorted({source.uid for source in sources} ^ set(rows))
        if missing:
            msg = f"preview() needs rows of every source by its uid, and of no other: see {', '.join(missing)}"
            raise GraphError(msg)
        return rows
    if len(sources) != 1:
        names = ", ".join(source.uid for source in sources)
        msg = f"preview() needs rows of each of the sources {names}: hand in a dictionary of them by uid"
        raise GraphError(msg)
    return {sources[0].uid: rows}


def _visit(node: Node, frames: dict[Ref, DataFrame], given: Mapping[str, Rows], spark: SparkSession) -> None:
    here = Ref(node.id)
    match node:
        case Read():
            schema = node.source.schema(spark)
            values = [_values(row, schema.fieldNames()) for row in given[node.uid]]
            frames[here] = spark.createDataFrame(values, schema)
        case RowWise():
            tables = [spark.sql(table.query) for table in node.tables]
            frames[here] = cast("DataFrame", node.build(frames[node.inputs[0]], *tables))
        case ParseJson():
            _parse(node, frames, spark)
        case WithWatermark():
            frames[here] = frames[node.inputs[0]]
        case Union():
            first, *others = (frames[ref] for ref in node.inputs)
            for other in others:
                first = first.unionAll(other)
            frames[here] = first
        case Keyed() | Write():
            msg = f"preview() shows stateless steps only, and {title(node)} keeps state: test it with ps.testing.run"
            raise GraphError(msg)


def _parse(node: ParseJson, frames: dict[Ref, DataFrame], spark: SparkSession) -> None:
    record = formats.struct_type(spark, node.schema)
    decoded = formats.decode_json(frames[node.inputs[0]], node.column, record)
    opened = {"fail": formats.strict, "null": formats.lenient, "split": formats.good}[node.on_error]
    frames[Ref(node.id)] = opened(decoded, node.column)
    if node.on_error == "split":
        frames[Ref(node.id, BAD)] = formats.rejected(decoded)


def _values(row: Mapping[str, object], names: Sequence[str]) -> tuple[object, ...]:
    unknown = sorted(set(row) - set(names))
    if unknown:
        msg = f"a row of preview() has {', '.join(unknown)}, but the source has {', '.join(names)}"
        raise GraphError(msg)
    return tuple(row.get(name) for name in names)
