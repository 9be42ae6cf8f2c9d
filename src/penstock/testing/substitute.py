"""``CollectSink``; stand-ins for a pipeline's sources and sinks."""

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


# ---- CollectSink -----------------------------------------------------------------------------------------------------

_NUMBERS: Final = itertools.count(1)


class CollectSink(memory.Sink):
    """Keeps rows in this process, in two phases as a database does: staged, then published by their checkpoint.

    Exactly-once: the output of a checkpoint is published once, however often that is tried. Rows that a pipeline made
    twice are there twice.

    >>> out = CollectSink()
    >>> out.rows, out.staged
    ([], [])
    """

    def __init__(self) -> None:
        name = f"collected-{next(_NUMBERS)}"
        super().__init__(name)
        self._replaced: Sink | None = None
        self._writer: _Writer | None = None
        self._generation: int | None = None
        weakref.finalize(self, memory.clear_rows, name)

    def stand_for(self, sink: Sink) -> None:
        """Replace another sink, which still refuses the columns that it cannot write."""
        self._replaced = sink

    @property
    def rows(self) -> list[Row]:
        """Published rows, in the order of checkpoints; those of one checkpoint sorted, see ``in_order``."""
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

        A crash loses them unless their checkpoint is in the log: then the restart publishes them.
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
        """Refuse what the replaced sink refuses, and what Arrow cannot hold.

        Raises:
            GraphError: with the column and the remedy.
        """
        if self._replaced is not None:
            self._replaced.check(schema)
        super().check(schema)

    def writer(self, context: SinkContext) -> memory.MemoryWriter:
        """Return a writer that stages in this process."""
        self._generation = context.generation
        self._writer = _Writer(self._name, context)
        return self._writer

    def describe(self) -> str:
        """Describe the sink, with the one that it replaces."""
        return "collected" if self._replaced is None else f"collected, in place of {self._replaced.describe()}"


class _Writer(memory.MemoryWriter):
    @property
    def tables(self) -> list[pa.Table]:
        """The rows of the open epoch."""
        return list(self._epoch)


def _sorted(tables: Iterable[Any]) -> list[Row]:
    return in_order(row for table in tables for row in rows_in(table))


# ---- stand-ins -------------------------------------------------------------------------------------------------------

_T = TypeVar("_T")


@dataclass(slots=True)
class StandIns:
    """The stand-ins of sources and sinks, by uid. A new version of the pipeline keeps those whose uid it keeps.

    Attributes:
        sources: those that the pipeline has now.
        sinks: all there ever were: open output of a sink that is gone is published too.
        steps: the uids of the stateful steps that the pipeline has now.
    """

    sources: dict[str, ScriptedSource] = field(default_factory=dict)
    sinks: dict[str, CollectSink] = field(default_factory=dict)
    steps: tuple[str, ...] = ()
    _all_sources: dict[str, ScriptedSource] = field(default_factory=dict)

    def graph(self, pipeline: PipelineDefinition, spark: SparkSession, *, mode: str) -> Graph:
        """Return the pipeline's graph with its stand-ins.

        Sources are read as soon as they have rows, whatever their pace: the test decides when there are rows.

        Raises:
            GraphError: the pipeline is refused.
            HarnessError: it is not a pipeline.
        """
        if not hasattr(pipeline, "graph"):
            msg = f"{pipeline!r} is no pipeline. Write a function under @ps.pipeline(…)."
            raise HarnessError(msg)
        graph = pipeline.graph()
        validate_mode(graph, Guarantee(mode))
        self._all_sources |= self.sources
        self.sources = {}
        self.steps = tuple(node.uid for node in graph.nodes if isinstance(node, Keyed))
        return replace(graph, nodes=tuple(self._node(node, spark) for node in graph.nodes))

    def rename(self, names: Mapping[str, str]) -> None:
        """Keep the rows sent to sources that have another uid in the next version."""
        for old, new in names.items():
            source = self.sources.get(old) or self._all_sources.get(old)
            if source is not None:
                self._all_sources[new] = source
                self.sources.pop(new, None)  # left by a start that was refused

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
        source = self._all_sources.get(node.uid) or ScriptedSource(
            schema, poll_interval_ms=0, name=f"send({node.uid!r})"
        )
        column = node.source.partition_column if isinstance(node.source, SupportsPartitions) else None
        source.redeclare(schema, column)
        self.sources[node.uid] = source
        return source

    def source(self, uid: str) -> ScriptedSource:
        """Return the stand-in of a source.

        Raises:
            HarnessError: there is no such source; the message names the nearest.
        """
        return _named(uid, self.sources, "source", self.roles)

    def sink(self, uid: str) -> CollectSink:
        """Return the stand-in of a sink.

        Raises:
            HarnessError: there is no such sink; the message names the nearest.
        """
        return _named(uid, self.sinks, "sink", self.roles)

    @property
    def roles(self) -> Mapping[str, str]:
        """``source``, ``step`` or ``sink``, by uid."""
        steps = dict.fromkeys(self.steps, "step")
        return {**dict.fromkeys(self.sources, "source"), **steps, **dict.fromkeys(self.sinks, "sink")}


def _named(uid: str, known: Mapping[str, _T], role: str, roles: Mapping[str, str]) -> _T:
    if uid in known:
        return known[uid]
    if uid in roles:
        msg = f"{uid!r} is a {roles[uid]}, not a {role}. {_listed(role, known)}"
    else:
        msg = f"{role.capitalize()} {uid!r} does not exist{did_you_mean(uid, known, otherwise=_listed(role, known))}"
    raise HarnessError(msg)


def _listed(role: str, names: Collection[str]) -> str:
    return f"The pipeline's {role}s: {', '.join(repr(name) for name in names) or 'none'}."
