"""CollectSink; stand-ins for a pipeline's sources and sinks."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.api.pipeline import PipelineDefinition
from penstock.compiler.steps import explain_build_errors
from penstock.connectors import memory
from penstock.errors import HarnessError, did_you_mean
from penstock.graph.nodes import Graph, Keyed, Node, Read, Write, without_pause
from penstock.graph.validate import validate_mode
from penstock.handles import Guarantee
from penstock.interfaces.source import SupportsPartitions
from penstock.testing.frames import Row, in_order, rows_in
from penstock.testing.sources import ScriptedSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.interfaces.sink import Sink, SinkContext


# ----------------------------------------------------------------------------------------------------
# A sink that keeps rows for a test: what is staged and what is published apart, checkpoint by checkpoint.

_NUMBERS: Final = itertools.count(1)


class CollectSink(memory.Sink):
    """Rows in this process, two-phase as in a sink of a database: staged, then published by their checkpoint.

    Exactly-once: the output of a checkpoint is published once, however often that is tried. Rows that a pipeline made
    twice are there twice.

    >>> out = CollectSink()
    >>> out.rows, out.staged
    ([], [])
    """

    def __init__(self) -> None:
        name = f"collected-{next(_NUMBERS)}"
        super().__init__(name)
        self._stands_for: Sink | None = None
        self._writer: _Writer | None = None
        self._generation: int | None = None
        weakref.finalize(self, memory.clear_rows, name)

    def stand_for(self, sink: Sink) -> None:
        """Take the place of another sink, which still refuses the columns that it cannot write."""
        self._stands_for = sink

    @property
    def rows(self) -> list[Row]:
        """Published rows, in the order of checkpoints; those of one checkpoint sorted, see :func:`in_order`."""
        return [row for epoch in self.epochs for row in epoch]

    @property
    def epochs(self) -> list[list[Row]]:
        """Published rows by checkpoint, in the order of publishing."""
        with self._store.lock:
            published = [list(epoch) for epoch in self._store.published.values()]
        return [_sorted(epoch) for epoch in published]

    @property
    def staged(self) -> list[Row]:
        """Rows of the newest attempt that are written and not published, sorted.

        A crash takes them away, unless their checkpoint is in the log: then the restart publishes them.
        """
        with self._store.lock:
            waiting = [
                table
                for identity, epoch in self._store.staged.items()
                if identity.split("/")[-2] == str(self._generation)
                for table in epoch
            ]
        return _sorted([*waiting, *(self._writer.tables if self._writer is not None else ())])

    def check(self, schema: StructType) -> None:
        """What the sink that it stands for refuses, and what Arrow cannot hold.

        Raises:
            GraphError: with the column and the remedy.
        """
        if self._stands_for is not None:
            self._stands_for.check(schema)
        super().check(schema)

    def writer(self, context: SinkContext) -> memory.MemoryWriter:
        """A writer that stages in this process."""
        self._generation = context.generation
        self._writer = _Writer(self._name, context)
        return self._writer

    def describe(self) -> str:
        """For people."""
        return "collected" if self._stands_for is None else f"collected, in place of {self._stands_for.describe()}"


class _Writer(memory.MemoryWriter):
    @property
    def tables(self) -> list[pa.Table]:
        """What the open epoch holds."""
        return list(self._epoch)


def _sorted(tables: Iterable[Any]) -> list[Row]:
    return in_order(row for table in tables for row in rows_in(table))


# ----------------------------------------------------------------------------------------------------
# A user's pipeline with its sources scripted and its sinks collecting; all other steps stay as they are.

_T = TypeVar("_T")


@dataclass(slots=True)
class StandIns:
    """Who stands in for which source and sink, by uid. A new version of the pipeline keeps those whose uid it keeps.

    Attributes:
        sources: those that the pipeline reads now.
        sinks: all there ever were: what is open of a sink that is gone is published too.
        steps: the stateful ones it has now.
    """

    sources: dict[str, ScriptedSource] = field(default_factory=dict)
    sinks: dict[str, CollectSink] = field(default_factory=dict)
    steps: tuple[str, ...] = ()
    _known: dict[str, ScriptedSource] = field(default_factory=dict)

    def graph(self, pipeline: PipelineDefinition, spark: SparkSession, *, mode: str) -> Graph:
        """The pipeline's graph with its stand-ins.

        Sources are read as soon as they have rows, whatever their pace: the test says when there are rows.

        Raises:
            GraphError: the pipeline is refused.
            HarnessError: it is no pipeline.
        """
        if not hasattr(pipeline, "graph"):
            msg = f"a pipeline is a function under @ps.pipeline(…), got {pipeline!r}"
            raise HarnessError(msg)
        graph = pipeline.graph()
        validate_mode(graph, Guarantee(mode))
        self._known |= self.sources
        self.sources = {}
        self.steps = tuple(node.uid for node in graph.nodes if isinstance(node, Keyed))
        return replace(graph, nodes=tuple(self._node(node, spark) for node in graph.nodes))

    def rename(self, names: Mapping[str, str]) -> None:
        """Sources that have another uid in the next version: what was sent to them stays theirs."""
        for old, new in names.items():
            known = self.sources.get(old) or self._known.get(old)
            if known is not None:
                self._known[new] = known
                self.sources.pop(new, None)  # that of a start that was refused

    def _node(self, node: Node, spark: SparkSession) -> Node:
        match node:
            case Read():
                return replace(node, source=self._source(node, spark), pace=without_pause)
            case Write():
                sink = self.sinks.get(node.uid) or CollectSink()
                sink.stand_for(node.sink)
                self.sinks[node.uid] = sink
                return replace(node, sink=sink)
            case _:
                return node

    def _source(self, node: Read, spark: SparkSession) -> ScriptedSource:
        with explain_build_errors(node):
            schema = node.source.schema(spark)
        source = self._known.get(node.uid) or ScriptedSource(schema, poll_interval_ms=0, name=f"send({node.uid!r})")
        column = node.source.partition_column if isinstance(node.source, SupportsPartitions) else None
        source.redeclare(schema, column)
        self.sources[node.uid] = source
        return source

    def source(self, uid: str) -> ScriptedSource:
        """The stand-in of a source.

        Raises:
            HarnessError: there is no such source; with the nearest name.
        """
        return _named(uid, self.sources, "source", self.roles)

    def sink(self, uid: str) -> CollectSink:
        """The stand-in of a sink.

        Raises:
            HarnessError: there is no such sink; with the nearest name.
        """
        return _named(uid, self.sinks, "sink", self.roles)

    @property
    def roles(self) -> Mapping[str, str]:
        """What each uid is."""
        steps = dict.fromkeys(self.steps, "step")
        return {**dict.fromkeys(self.sources, "source"), **steps, **dict.fromkeys(self.sinks, "sink")}


def _named(uid: str, those: Mapping[str, _T], wanted: str, roles: Mapping[str, str]) -> _T:
    if uid in those:
        return those[uid]
    if uid in roles:
        msg = f"{uid!r} is a {roles[uid]}, not a {wanted}; {_listed(wanted, those)}"
    else:
        msg = f"there is no {wanted} {uid!r}{did_you_mean(uid, those, otherwise=_listed(wanted, those))}"
    raise HarnessError(msg)


def _listed(what: str, names: Collection[str]) -> str:
    return f"its {what}s are {', '.join(repr(name) for name in names)}"
