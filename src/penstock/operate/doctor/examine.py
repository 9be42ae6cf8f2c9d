"""All checks of ``penstock doctor`` in their order, each told as soon as it is known. Prints nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.graph.nodes import Graph, Read
from penstock.operate.doctor.environment import look_at_environment
from penstock.operate.doctor.findings import Finding, fail, ok
from penstock.operate.doctor.java import find_java, java_of
from penstock.operate.doctor.kafka import look_at_brokers
from penstock.operate.doctor.machine import look_at_machine
from penstock.operate.doctor.packages import look_at_python
from penstock.operate.doctor.spark import session_of, try_spark
from penstock.operate.doctor.storage import look_at_storage
from penstock.runtime.clock import SystemClock
from penstock.sources.kafka.source import Source as KafkaSource

if TYPE_CHECKING:
    from penstock.graph.pipeline import PipelineDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to look at.

    Attributes:
        state: the folder for state.
        servers: Kafka brokers, as ``host:port``, several with commas.
        pipeline: its sources are looked at too; or why it cannot be found.
        spark: whether to make a session, which takes seconds.
    """

    state: str
    servers: str | None = None
    pipeline: PipelineDefinition | PenstockError | None = None
    spark: bool = True


def examine(question: Question, *, tell: Callable[[str], None]) -> Iterator[Finding]:
    """Every finding.

    Args:
        question: what to look at.
        tell: gets a line before each check that takes long.
    """
    yield from look_at_python()
    java = java_of(find_java(os.environ))
    yield java
    yield from look_at_machine()
    yield from look_at_environment(os.environ, sys.executable)
    yield from look_at_storage(question.state, SystemClock())
    graph = None
    if question.pipeline is not None:
        finding, graph = pipeline_of(question.pipeline)
        yield finding
    yield from _brokers(question.servers, graph, tell)
    yield from _own_session()
    if question.spark:
        tell("starting Spark")
        yield try_spark()


def pipeline_of(pipeline: PipelineDefinition | PenstockError) -> tuple[Finding, Graph | None]:
    """Whether it can be built, and its graph."""
    if isinstance(pipeline, PenstockError):
        return fail("pipeline", str(pipeline), "penstock run would be refused with the same words"), None
    try:
        graph = pipeline.graph()
    except PenstockError as error:
        return fail("pipeline", str(error), "penstock run would be refused with the same words"), None
    read, written = ", ".join(sorted(graph.sources)), ", ".join(sorted(graph.sinks))
    return ok("pipeline", f"{graph.name} reads {read} and writes {written}"), graph


def _brokers(servers: str | None, graph: Graph | None, tell: Callable[[str], None]) -> Iterator[Finding]:
    if servers is not None:
        tell(f"asking {servers}")
        yield from look_at_brokers(servers)
    for node in graph.nodes if graph is not None else ():
        if isinstance(node, Read) and isinstance(node.source, KafkaSource):
            tell(f"asking {node.source.servers}")
            yield from look_at_brokers(node.source.servers, options=node.source.options, topics=node.source.topics)


def _own_session() -> Iterator[Finding]:
    """Of the session that the pipeline's module has made, if it has."""
    if "pyspark" not in sys.modules:
        return
    from penstock.state.sessions import current_session

    session = current_session()
    if session is not None and hasattr(session, "_jsparkSession"):
        yield from session_of(session)
