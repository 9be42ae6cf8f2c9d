"""The columns of a stream and its rows for some input, without running the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeAlias, cast

from penstock.clock import SystemClock, sleep
from penstock.compiler.analysis import analyze
from penstock.compiler.steps import explain_build_errors
from penstock.errors import GraphError, did_you_mean, no_column
from penstock.formats import text
from penstock.graph.nodes import (
    BAD_PORT,
    Graph,
    GraphBuilder,
    Keyed,
    Node,
    ParseCsv,
    ParseJson,
    PortRef,
    Read,
    RowWise,
    Union,
    WithWatermark,
    Write,
    describe_step,
)
from penstock.graph.queries import ancestors
from penstock.interfaces.source import NoData, PlannedBatch, ReadLimit, SourceContext, SupportsReplay, Until
from penstock.spark.session import current_session, make_session
from penstock.user_code import short_tracebacks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@short_tracebacks
class Previewable:
    """An output of a pipeline: its columns, and its rows for a few rows of input."""

    def __init__(self, pipeline: GraphBuilder, ref: PortRef) -> None:
        self.pipeline = pipeline
        self.ref = ref

    @property
    def schema(self) -> StructType:
        """The columns. Uses the active Spark session, or starts a local one; nothing of the job runs."""
        analysis = analyze(self.pipeline.graph(), local_session(), only=self.ref)
        analysis.close()
        return analysis.schema(self.ref)

    def print_schema(self) -> None:
        """Print the columns as Spark does."""
        print(self.schema.treeString())  # noqa: T201 - it is what was asked for

    def preview(self, rows: Sequence[Mapping[str, object]] | Mapping[str, Sequence[Mapping[str, object]]]) -> DataFrame:
        """Return the rows that these steps make of the given rows, as a Spark DataFrame; nothing of the job runs.

        Args:
            rows: rows of the source, as dictionaries. With several sources: a dictionary of such lists by uid.

        >>> import penstock as ps
        >>> lines = ps.Pipeline("demo").read("lines", ps.files.Source("in/", format="text"))
        >>> lines.select("length(value) AS n").preview([{"value": "hello"}]).collect()
        [Row(n=5)]
        """
        return preview(self.pipeline.graph(), self.ref, rows)


PreviewRows: TypeAlias = Sequence[Mapping[str, object]]


def local_session() -> SparkSession:
    """Return the current Spark session, or make one as a job would, for the jobs that this process starts later."""
    return current_session() or make_session("preview")


def preview(graph: Graph, ref: PortRef, rows: PreviewRows | Mapping[str, PreviewRows]) -> DataFrame:
    """Return the rows of an output for these rows of input.

    Raises:
        GraphError: a keyed step is on the way, or the rows do not fit the source.
    """
    spark = local_session()
    by_uid = _by_uid(rows, _sources(graph, ref))

    def read(node: Read) -> DataFrame:
        schema = node.source.schema(spark)
        values = [_values(row, schema.fieldNames()) for row in by_uid[node.uid]]
        return spark.createDataFrame(values, schema)

    return _frame(graph, ref, spark, read)


@short_tracebacks
def show(stream: Previewable, *, rows: int = 20, timeout: float = 30.0) -> None:
    """Print what a stream's steps make of the first rows that its sources have now; nothing of the job runs.

    Each source is read from its beginning, up to ``rows`` rows: no position is kept, and nothing is published.

    Args:
        stream: of stateless steps; a window needs more than the first rows: test it with ``ps.testing.run``.
        rows: most rows of each source, and of what is printed.
        timeout: seconds to wait for the first rows of a source, such as those of a topic.

    Raises:
        GraphError: a keyed step is on the way, or ``rows`` is not at least 1.
        SourceUnavailable: a source cannot be read.

    >>> import penstock as ps
    >>> numbers = ps.Pipeline("demo").read("n", ps.generator.Source(lambda n: n.select("n"), rows=3))
    >>> ps.show(numbers.select("n * 2 AS twice"), rows=2)  # doctest: +NORMALIZE_WHITESPACE
    +-----+
    |twice|
    +-----+
    |0    |
    |2    |
    +-----+
    """
    if not isinstance(rows, int) or rows < 1:
        msg = f"show() cannot take rows={rows!r}. Write a whole number of at least 1."
        raise GraphError(msg)
    spark = local_session()
    graph = stream.pipeline.graph()
    with ExitStack() as readers:
        frame = _frame(graph, stream.ref, spark, lambda node: _first_rows(node, spark, rows, timeout, readers))
        frame.limit(rows).show(rows, truncate=False)


def _first_rows(node: Read, spark: SparkSession, rows: int, timeout: float, readers: ExitStack) -> DataFrame:
    """The first rows of a source; its reader is closed with the stack."""
    # Without effects outside: a preview takes no lease from the job that has it.
    source = node.source.replayed(None) if isinstance(node.source, SupportsReplay) else node.source
    reader = source.open(SourceContext(uid=node.uid, spark=spark, until=Until.CAUGHT_UP), None)
    readers.callback(reader.close)
    clock = SystemClock()
    until = clock.now() + int(timeout * 1_000_000)
    while True:
        poll = reader.poll(now=clock.now(), wall=clock.wall(), limits=ReadLimit(rows=rows))
        if isinstance(poll, PlannedBatch):
            return reader.frame(poll.plan).limit(rows)
        if not isinstance(poll, NoData) or poll.wake_at > until:
            return spark.createDataFrame([], node.source.schema(spark))
        sleep(max(0, poll.wake_at - clock.now()) / 1_000_000)


def _sources(graph: Graph, ref: PortRef) -> list[Read]:
    wanted = ancestors(graph, ref)
    return [node for node in graph.nodes if node.id in wanted and isinstance(node, Read)]


def _frame(graph: Graph, ref: PortRef, spark: SparkSession, read: Callable[[Read], DataFrame]) -> DataFrame:
    """The rows of an output; ``read`` gives those of each source."""
    wanted = ancestors(graph, ref)
    analyze(graph, spark, only=ref).close()
    frames: dict[PortRef, DataFrame] = {}
    for node in graph.nodes:
        if node.id in wanted:
            with explain_build_errors(node):
                _visit(node, frames, read, spark)
    return frames[ref]


def _by_uid(rows: PreviewRows | Mapping[str, PreviewRows], sources: Sequence[Read]) -> Mapping[str, PreviewRows]:
    if isinstance(rows, Mapping):
        known = [source.uid for source in sources]
        for uid in sorted({*known, *rows}):
            if uid not in known:
                msg = f"preview() has rows of {uid!r}, which is no source of the stream{did_you_mean(uid, known)}"
                raise GraphError(msg)
            if uid not in rows:
                msg = f"preview() has no rows of source {uid!r}. Give rows of each source, as in {{{uid!r}: [{{…}}]}}."
                raise GraphError(msg)
        return rows
    if len(sources) != 1:
        names = ", ".join(f"{source.uid!r}: […]" for source in sources)
        msg = f"preview() needs rows of each of the {len(sources)} sources. Give them by uid, as in {{{names}}}."
        raise GraphError(msg)
    return {sources[0].uid: rows}


def _visit(
    node: Node, frames: dict[PortRef, DataFrame], read: Callable[[Read], DataFrame], spark: SparkSession
) -> None:
    here = PortRef(node.id)
    match node:
        case Read():
            frames[here] = read(node)
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
            step = describe_step(node)
            msg = f"preview() and show() take stateless steps only, and {step} keeps state. Use ps.testing.run."
            raise GraphError(msg)


def _parse(node: ParseJson, frames: dict[PortRef, DataFrame], spark: SparkSession) -> None:
    record = text.struct_type(spark, node.schema)
    frame = frames[node.inputs[0]]
    if isinstance(node, ParseCsv):
        decoded = text.decode_csv(frame, node.column, record, dict(node.options))
    else:
        decoded = text.decode_json(frame, node.column, record)
    opened = {"fail": text.failfast, "null": text.permissive, "split": text.drop_malformed}[node.on_error]
    frames[PortRef(node.id)] = opened(decoded, node.column)
    if node.on_error == "split":
        frames[PortRef(node.id, BAD_PORT)] = text.malformed(decoded)


def _values(row: Mapping[str, object], names: Sequence[str]) -> tuple[object, ...]:
    unknown = sorted(set(row) - set(names))
    if unknown:
        msg = f"A row of preview() does not fit the source. {no_column(unknown[0], names)}"
        raise GraphError(msg)
    return tuple(row.get(name) for name in names)
