"""The schemas along a graph, and what only Spark's analyser can refuse; no Spark job is run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from penstock.clock import Clock
from penstock.compiler.chain import StepChain
from penstock.compiler.steps import (
    CompiledStep,
    StepCompiler,
    columns_used,
    explain_build_errors,
    tables_of,
)
from penstock.compiler.tables import StaticTables, explain_table_errors
from penstock.connectors.committers import check_committers
from penstock.errors import GraphError, SchemaMismatch, assert_never
from penstock.formats import text
from penstock.graph.nodes import (
    BAD_PORT,
    Graph,
    Keyed,
    Node,
    ParseJson,
    PortRef,
    PortSelect,
    Read,
    RowWise,
    StatelessStep,
    Union,
    WithWatermark,
    Write,
    describe_step,
)
from penstock.graph.queries import ancestors, exclusive_steps, pushed_down_parse
from penstock.interfaces.operator import MAIN_PORT
from penstock.interfaces.source import (
    DECODED_RECORD,
    Source,
    SupportsColumnPruning,
    SupportsFixedColumns,
    SupportsJsonDecoding,
    SupportsPartitions,
)
from penstock.spark.plans import analyzed_plan
from penstock.spark.session import is_classic
from penstock.spark.sql import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.handles import Position

log = logging.getLogger(__name__)
_READ: Final = "read"
"""A pseudo port: the schema of a source's frames, where they have one more column than its rows."""
_DECODED: Final = "decoded"
"""A pseudo port: the schema of a split ``parse_json`` before its ports are taken."""
_PARSER: Final = "spark.sql.legacy.timeParserPolicy"


class Analysis:
    """The schemas and compiled steps of a graph. Made by ``analyze``."""

    def __init__(
        self, graph: Graph, spark: SparkSession, clock: Clock | None, positions: Mapping[str, Position]
    ) -> None:
        self.graph = graph
        self._clock = clock
        self.tables = StaticTables(spark, clock.now if clock is not None else None)
        self._spark = spark
        self._steps = StepCompiler(spark, self.tables)
        self._schemas: dict[PortRef, StructType] = {}
        self._positions = positions
        self._fixed: dict[int, Source] = {}
        self._decoding: dict[int, Source] = {}

    def schema(self, ref: PortRef) -> StructType:
        """Return the columns of an output."""
        return self._schemas[ref]

    def chain(self, node: Node, steps: Sequence[StatelessStep], *, is_root: bool = True) -> StepChain:
        """Return the compiled chain of a route's steps.

        Args:
            node: the node of the task at which the route begins.
            steps: the steps of the route, or of one of its branches.
            is_root: whether the batches come from the task itself, not from a branch point.
        """
        counts = is_root and isinstance(node, Read)
        wall = self._clock.wall if self._clock is not None else None
        schema, whole = self._input(node, steps)
        return StepChain(self._steps, steps, schema, whole=whole, counts_rows=counts, wall=wall)

    def source(self, node: Read) -> Source:
        """Return the source to open: its columns are fixed, and it decodes JSON and leaves columns out where it may."""
        parse = pushed_down_parse(self.graph, node)
        if parse is not None:
            by = "the source, while it reads" if node.id in self._decoding else "Spark"
            log.info("%s (%s) behind source '%s' is done by %s", describe_step(parse), parse.origin, node.uid, by)
        return self._pruned(node, self._decoding.get(node.id, self._fixed[node.id]))

    def _pruned(self, node: Read, source: Source) -> Source:
        """Return the source without the columns that no step uses; the column of its partitions is always used."""
        steps = exclusive_steps(self.graph, node)
        if not steps or not isinstance(source, SupportsColumnPruning):
            return source
        schema, _ = self._input(node, steps)
        compiled: list[CompiledStep] = []
        used: frozenset[str] = frozenset()
        for step in steps:
            compiled += self._compiled(step, schema, says_place=False)
            schema = compiled[-1].schema
            if isinstance(step, WithWatermark):  # its column is observed, whether or not a later step keeps it
                used |= columns_used(self._steps.editor, [*compiled, self._only(step.column, schema)])
        used |= columns_used(self._steps.editor, compiled)
        partition_column = source.partition_column if isinstance(source, SupportsPartitions) else None
        return source.only(used if partition_column is None else used | {partition_column})

    def _only(self, column: str, schema: StructType) -> CompiledStep:
        leaf = self._steps.editor.new_leaf(schema)
        frame = leaf.frame.select(quote_identifier(column))
        return CompiledStep(leaf=leaf, plan=analyzed_plan(frame), schema=frame.schema)

    def read_tables_again(self) -> None:
        """Have the static tables read again when they are next used: by the steps of the next attempt."""
        self.tables.expire()

    def close(self) -> None:
        """Release the static tables."""
        self.tables.close()

    def _input(self, node: Node, steps: Sequence[StatelessStep]) -> tuple[StructType, StructType | None]:
        """Return the columns of batches that enter steps, and those of fully decoded batches, if there may be any."""
        if not steps:
            return self._schemas[PortRef(node.id)], None
        first = steps[0]
        if isinstance(first, (RowWise, WithWatermark)):
            return self._schemas[first.inputs[0]], None
        if isinstance(first, ParseJson):
            read = self._schemas.get(PortRef(first.inputs[0].node, _READ))
            return read or self._schemas[first.inputs[0]], read
        is_whole = first.node.id in self._steps.decoded
        return self._schemas[PortRef(first.node.id, _DECODED)], self._schemas[
            PortRef(first.node.id)
        ] if is_whole else None

    def visit(self, node: Node) -> None:
        """Add the schemas of a node's outputs; those of its inputs are known."""
        inputs = tuple(self._schemas[ref] for ref in node.inputs)
        match node:
            case Read():
                with explain_build_errors(node):
                    source = self._fixed[node.id] = self._with_fixed_columns(node)
                    self._schemas[PortRef(node.id)] = source.schema(self._spark)
            case ParseJson():
                self._stateless(node, self._pushed_down(node, inputs[0]))
            case RowWise() | WithWatermark():
                self._stateless(node, inputs[0])
            case Union():
                with explain_build_errors(node):
                    self._schemas[PortRef(node.id)] = _common_schema(node, inputs)
            case Keyed():
                with explain_build_errors(node, inputs[0].fieldNames()):
                    for port, schema in node.spec.ports(inputs).items():
                        self._schemas[PortRef(node.id, port)] = schema
            case Write():
                with explain_build_errors(node, inputs[0].fieldNames()):
                    node.sink.check(inputs[0])
                    check_committers(node.sink)
            case _:
                assert_never(node)

    def _with_fixed_columns(self, node: Read) -> Source:
        source = node.source
        if isinstance(source, SupportsFixedColumns) and source.takes_columns:
            return source.with_fixed_columns(self._spark, self._positions.get(node.uid))
        return source

    def _pushed_down(self, node: ParseJson, schema: StructType) -> StructType:
        """Let the source decode a ``parse_json`` while it reads, if it can; return the columns of its frames then.

        The legacy parser of times exists in Spark alone, so nothing is pushed down with it.
        """
        read = self.graph.node(node.inputs[0].node)
        if not isinstance(read, Read) or pushed_down_parse(self.graph, read) is not node:
            return schema
        if DECODED_RECORD in schema.fieldNames() or self._spark.conf.get(_PARSER) == "LEGACY":
            return schema
        with explain_build_errors(node):
            record = text.struct_type(self._spark, node.schema)
            text.parsed_schema(schema, node.column, record)
        with explain_build_errors(read):
            source = cast("SupportsJsonDecoding", read.source).decoding(node.column, record)
            if source is None:
                return schema
            self._decoding[read.id] = source
            self._schemas[PortRef(read.id, _READ)] = source.schema(self._spark)
        self._steps.decoded.add(node.id)
        return self._schemas[PortRef(read.id, _READ)]

    def _stateless(self, node: RowWise | WithWatermark | ParseJson, schema: StructType) -> None:
        last = self._built(node, schema)
        if not isinstance(node, ParseJson) or node.on_error != "split":
            self._schemas[PortRef(node.id)] = last.schema
            return
        self._schemas[PortRef(node.id, _DECODED)] = last.schema
        for port in (MAIN_PORT, BAD_PORT):
            self._schemas[PortRef(node.id, port)] = self._built(PortSelect(node, port), last.schema).schema

    def _built(self, step: StatelessStep, schema: StructType) -> CompiledStep:
        return self._compiled(step, schema)[-1]

    def _compiled(
        self, step: StatelessStep, schema: StructType, *, says_place: bool = True
    ) -> tuple[CompiledStep, ...]:
        snapshots = {}
        for table in tables_of(step):
            with explain_table_errors(table.name, table.origin):
                snapshots[table.name] = self.tables.acquire(table)
        try:
            return self._steps.compile(step, schema, snapshots, says_place=says_place)
        finally:
            for snapshot in snapshots.values():
                snapshot.lease.release()


def analyze(
    graph: Graph,
    spark: SparkSession,
    *,
    clock: Clock | None = None,
    only: PortRef | None = None,
    positions: Mapping[str, Position] = MappingProxyType({}),
) -> Analysis:
    """Find all schemas and compile every step; refuse what cannot run.

    Args:
        graph: the checked graph.
        spark: a classic session.
        clock: the clocks of the run, for tables that are read again and for ``max_ahead``; none if nothing will run.
        only: analyse only the nodes that lead to this output.
        positions: by uid, those at which sources resume; they may record columns.

    Raises:
        GraphError: a step cannot run; names the user's line and the remedy.
        UserFunctionError: a function given to ``transform`` raised; the original is chained.
    """
    if not is_classic(spark):
        msg = (
            "Penstock needs a classic Spark session, since Spark Connect gives no access to plans and cached blocks. "
            "Build it with master(...) instead of remote(...)."
        )
        raise GraphError(msg)
    analysis = Analysis(graph, spark, clock, positions)
    wanted = {node.id for node in graph.nodes} if only is None else ancestors(graph, only)
    for node in graph.nodes:
        if node.id in wanted:
            analysis.visit(node)
    return analysis


def _common_schema(node: Union, inputs: tuple[StructType, ...]) -> StructType:
    first, *others = inputs
    shape = [(field.name, field.dataType) for field in first.fields]
    for place, other in enumerate(others, start=2):
        if [(field.name, field.dataType) for field in other.fields] != shape:
            names = ", ".join(f'"{name}"' for name in first.fieldNames())
            msg = (
                f"{describe_step(node)}: The streams differ: the first has {first.simpleString()}, number {place} has "
                f"{other.simpleString()}. Bring them to the same columns, for example with .select({names})."
            )
            raise SchemaMismatch(msg)
    return first
