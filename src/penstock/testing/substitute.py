"""A user's pipeline with its sources scripted and its sinks collecting; all other steps stay as they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import HarnessError
from penstock.graph.nodes import Graph, Keyed, Node, Read, Write
from penstock.graph.pace import at_once
from penstock.graph.pipeline import PipelineDefinition
from penstock.graph.trouble import told
from penstock.graph.validate import validate_mode
from penstock.handles import Guarantee
from penstock.sources.base import Partitioned
from penstock.testing.sinks import CollectSink
from penstock.testing.sources import ScriptedSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = TypeVar("_T")


@dataclass(slots=True)
class Cast:
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
                return replace(node, source=self._source(node, spark), pace=at_once)
            case Write():
                sink = self.sinks.get(node.uid) or CollectSink()
                sink.stand_for(node.sink)
                self.sinks[node.uid] = sink
                return replace(node, sink=sink)
            case _:
                return node

    def _source(self, node: Read, spark: SparkSession) -> ScriptedSource:
        with told(node):
            schema = node.source.schema(spark)
        source = self._known.get(node.uid) or ScriptedSource(schema, poll_interval_ms=0, name=f"send({node.uid!r})")
        column = node.source.partition_column if isinstance(node.source, Partitioned) else None
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
        msg = f"there is no {wanted} {uid!r}; {nearest(uid, those) or _listed(wanted, those)}"
    raise HarnessError(msg)


def nearest(name: str, names: Collection[str]) -> str:
    """``did you mean …?``, or nothing if none is near."""
    near = get_close_matches(str(name), names, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def _listed(what: str, names: Collection[str]) -> str:
    return f"its {what}s are {', '.join(repr(name) for name in names)}"
