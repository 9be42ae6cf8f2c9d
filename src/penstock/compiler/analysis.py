"""Schemas along a graph, and everything that can be refused only with Spark's analyser at hand; runs nothing.

Each stateless step is built once, on an empty frame; the segments compiled from the analysis reuse those plans.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from penstock.clock import MonotonicTime, WallTime
from penstock.compiler.chain import StepChain
from penstock.compiler.steps import (
    CompiledStep,
    StatelessStep,
    StepCompiler,
    columns_used,
    explain_build_errors,
    explain_table_errors,
    tables_of,
)
from penstock.compiler.tables import StaticTables
from penstock.errors import GraphError, SchemaMismatch, assert_never
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
    SupportsJsonDecoding,
    SupportsPartitions,
)
from penstock.spark.session import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)
_READ: Final = "read"
"""Stands for a port in the schema of a source's frames, where those have a column more than its rows."""
_DECODED: Final = "decoded"
"""Stands for a port in the schema of a split ``parse_json``, before its ports are taken."""
_PARSER: Final = "spark.sql.legacy.timeParserPolicy"


class Clocks(Protocol):
    """The two clocks a running job has."""

    def now(self) -> MonotonicTime:
        """Never goes back."""
        ...

    def wall(self) -> WallTime:
        """Since the epoch."""
        ...


class _Port:
    """A port of a split ``parse_json``."""

    def __init__(self, node: ParseJson, port: str) -> None:
        self.node = node
        self.port = port


class Analysis:
    """What is known of a graph before it runs. Made by :func:`analyze`."""

    def __init__(self, graph: Graph, spark: SparkSession, clock: Clocks | None) -> None:
        self.graph = graph
        self._clock = clock
        self.tables = StaticTables(spark, clock.now if clock is not None else None)
        self._spark = spark
        self._pieces = StepCompiler(spark, self.tables)
        self._schemas: dict[PortRef, StructType] = {}
        self._decoding: dict[int, Source] = {}

    def schema(self, ref: PortRef) -> StructType:
        """The columns of an output."""
        return self._schemas[ref]

    def segment(self, node: Node, steps: Sequence[StatelessStep], *, is_root: bool = True) -> StepChain:
        """Fused steps, compiled, of the batches that they begin with.

        Args:
            node: the task whose output the route begins at.
            steps: the steps of the route, or of one of its branches.
            is_root: whether the batches come from the task itself, not from a branch point.
        """
        counts = is_root and isinstance(node, Read)
        wall = self._clock.wall if self._clock is not None else None
        schema, whole = self._input(node, steps)
        return StepChain(self._pieces, steps, schema, whole=whole, counts_rows=counts, wall=wall)

    def source(self, node: Read) -> Source:
        """What is to be opened for a source: the same, but decoding where it takes that off the step behind it."""
        parse = pushed_down_parse(self.graph, node)
        if parse is not None:
            who = "the source, while it reads" if node.id in self._decoding else "Spark"
            log.info("%s (%s) behind source '%s' is done by %s", describe_step(parse), parse.origin, node.uid, who)
        return self._pruned(node, self._decoding.get(node.id, node.source))

    def _pruned(self, node: Read, source: Source) -> Source:
        """The source, saved the work for columns that nobody looks at; gauges look at that of its partitions."""
        steps = exclusive_steps(self.graph, node)
        if not steps or not isinstance(source, SupportsColumnPruning):
            return source
        schema, _ = self._input(node, steps)
        pieces: list[CompiledStep] = []
        for step in steps:
            pieces += self._pieces_of(step, schema)
            schema = pieces[-1].schema
        used = columns_used(self._pieces.editor, pieces)
        told_by = source.partition_column if isinstance(source, SupportsPartitions) else None
        return source.only(used if told_by is None else used | {told_by})

    def close(self) -> None:
        """Let go of static tables."""
        self.tables.close()

    def _input(self, node: Node, steps: Sequence[StatelessStep]) -> tuple[StructType, StructType | None]:
        """The columns of the batches that steps begin with, and of those that have all their records, if any may."""
        if not steps:
            return self._schemas[PortRef(node.id)], None
        first = steps[0]
        if isinstance(first, (RowWise, WithWatermark)):
            return self._schemas[first.inputs[0]], None
        if isinstance(first, ParseJson):
            read = self._schemas.get(PortRef(first.inputs[0].node, _READ))
            return read or self._schemas[first.inputs[0]], read
        is_whole = first.node.id in self._pieces.decoded
        return self._schemas[PortRef(first.node.id, _DECODED)], self._schemas[
            PortRef(first.node.id)
        ] if is_whole else None

    def visit(self, node: Node) -> None:
        """Find the schemas of a node's outputs; its inputs are known."""
        inputs = tuple(self._schemas[ref] for ref in node.inputs)
        match node:
            case Read():
                with explain_build_errors(node):
                    self._schemas[PortRef(node.id)] = node.source.schema(self._spark)
            case ParseJson():
                self._stateless(node, self._pushed_down(node, inputs[0]))
            case RowWise() | WithWatermark():
                self._stateless(node, inputs[0])
            case Union():
                with explain_build_errors(node):
                    self._schemas[PortRef(node.id)] = _same(node, inputs)
            case Keyed():
                with explain_build_errors(node, inputs[0].fieldNames()):
                    for port, schema in node.spec.ports(inputs).items():
                        self._schemas[PortRef(node.id, port)] = schema
            case Write():
                with explain_build_errors(node, inputs[0].fieldNames()):
                    node.sink.check(inputs[0])
            case _:
                assert_never(node)

    def _pushed_down(self, node: ParseJson, schema: StructType) -> StructType:
        """Let the source before it decode while it reads, if it can and nobody else wants the text; what it gives then.

        Not with the parser of old for times: that is Spark's alone.
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
        self._pieces.decoded.add(node.id)
        return self._schemas[PortRef(read.id, _READ)]

    def _stateless(self, node: RowWise | WithWatermark | ParseJson, schema: StructType) -> None:
        last = self._built(node, schema)
        if not isinstance(node, ParseJson) or node.on_error != "split":
            self._schemas[PortRef(node.id)] = last.schema
            return
        self._schemas[PortRef(node.id, _DECODED)] = last.schema
        for port in (MAIN_PORT, BAD_PORT):
            self._schemas[PortRef(node.id, port)] = self._built(_Port(node, port), last.schema).schema

    def _built(self, step: StatelessStep, schema: StructType) -> CompiledStep:
        return self._pieces_of(step, schema)[-1]

    def _pieces_of(self, step: StatelessStep, schema: StructType) -> tuple[CompiledStep, ...]:
        readings = {}
        for table in tables_of(step):
            with explain_table_errors(table.name, table.origin):
                readings[table.name] = self.tables.take(table)
        try:
            return self._pieces.of(step, schema, readings)
        finally:
            for reading in readings.values():
                reading.lease.release()


def analyze(graph: Graph, spark: SparkSession, *, clock: Clocks | None = None, only: PortRef | None = None) -> Analysis:
    """Find all schemas, check every step, and refuse what cannot run.

    Args:
        graph: as frozen data.
        spark: a classic session.
        clock: of the run, for tables that are read again and for ``max_ahead``; none where nothing will run.
        only: look at what leads to this output alone.

    Raises:
        GraphError: with the user's line, the step and the remedy.
        UserFunctionError: a function given to ``transform`` raised; the original is chained.
    """
    if not is_classic(spark):
        msg = "penstock needs a classic Spark session: Spark Connect does not give access to plans and cached blocks"
        raise GraphError(msg)
    analysis = Analysis(graph, spark, clock)
    wanted = {node.id for node in graph.nodes} if only is None else ancestors(graph, only)
    for node in graph.nodes:
        if node.id in wanted:
            analysis.visit(node)
    return analysis


def _same(node: Union, inputs: tuple[StructType, ...]) -> StructType:
    first, *others = inputs
    shape = [(field.name, field.dataType) for field in first.fields]
    for place, other in enumerate(others, start=2):
        if [(field.name, field.dataType) for field in other.fields] != shape:
            names = ", ".join(f'"{name}"' for name in first.fieldNames())
            msg = (
                f"{describe_step(node)}: the streams differ: the first has {first.simpleString()}, number {place} has "
                f"{other.simpleString()}; bring them to the same columns, for example with .select({names})"
            )
            raise SchemaMismatch(msg)
    return first
