"""Puts tasks, channels and connectors of one attempt together. The only place where all parts meet; decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.checkpoint.timeline import WHOLE, Timeline
from penstock.facts import Counted, Listener
from penstock.failpoints import failpoint
from penstock.filesystem.base import FileSystem
from penstock.graph.drift import drift_groups
from penstock.graph.nodes import Keyed, Read, Ref, Union, WithWatermark, Write
from penstock.graph.pace import Every, at_once
from penstock.graph.upstream import to_name_partitions, upstream
from penstock.handles import Guarantee, TaskSnapshot
from penstock.ids import END_OF_TIME, EventTime, Generation
from penstock.job.placing import letterbox
from penstock.job.restoring import Restores
from penstock.job.rewrites import controlled, counting, followed
from penstock.job.spark_edge import SparkEdge
from penstock.operators.base import OperatorContext
from penstock.runtime.alignment import Alignment, Barriers
from penstock.runtime.channel import Channel
from penstock.runtime.clock import Clock
from penstock.runtime.drift_gates import DriftGates
from penstock.runtime.inputs import Inputs, Upstream
from penstock.runtime.latency import MarkerRhythm
from penstock.runtime.output import Output, Path, Rewrite
from penstock.runtime.pacing import pace_of
from penstock.runtime.plan import Leaf, Route, TaskPlan
from penstock.runtime.rate_control import TARGET, RateControl
from penstock.runtime.roles import AnyTask, Stepper
from penstock.runtime.source_task import SourceTask
from penstock.runtime.supervisor import Supervisor
from penstock.runtime.task import StepTask
from penstock.runtime.task_protocols import Work
from penstock.runtime.threads import TaskThread, ThreadFactory
from penstock.runtime.tracker import BarrierTracker
from penstock.runtime.works import OperatorWork, SinkWork, UnionWork
from penstock.settings import Settings
from penstock.sinks.base import SinkContext
from penstock.sources.base import Limits, SourceContext, Until
from penstock.sources.replaying import open_replaying

if TYPE_CHECKING:
    from penstock.graph.analyze import Analysis


BARRIERS: Final[Mapping[str, Callable[[int], Barriers]]] = {
    "exactly-once": Alignment,
    "at-least-once": BarrierTracker,
}
"""How a task follows its barriers, by the job's mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all tasks of an attempt share."""

    analysis: Analysis
    plans: tuple[TaskPlan, ...]
    snapshots: Mapping[str, TaskSnapshot]
    edge: SparkEdge
    filesystem: FileSystem
    job: str
    log_id: str
    generation: Generation
    settings: Settings
    cores: int
    until: Until
    initial: bool
    clock: Clock
    listener: Listener
    supervisor: Supervisor
    thread: ThreadFactory = TaskThread
    timeline: Timeline = WHOLE


class Assembly:
    """Builds every task of an attempt, with its thread."""

    def __init__(self, around: Surroundings) -> None:
        self._of = around
        self._channels: dict[Leaf, Channel] = {}
        self._controls: dict[str, RateControl] = {}
        self.threads: dict[str, Stepper] = {}
        self.tasks: dict[str, AnyTask] = {}
        self._gates = self._drift_gates()

    def build(self) -> None:
        """All channels and threads first, then the tasks, each restored from its snapshot."""
        of = self._of
        for plan in of.plans:
            self.threads[plan.id] = of.thread(
                plan.id,
                clock=of.clock,
                around=of.edge.around,
                foreground=of.edge.foreground,
                failed=of.supervisor.broke,
                finished=of.supervisor.finished,
            )
            for source in range(plan.inputs):
                self._channels[Leaf(plan.id, source)] = Channel(capacity=of.settings.channel_capacity)
            if isinstance(plan.node, Read) and of.settings.rate_control:
                pace = plan.node.pace
                self._controls[plan.id] = RateControl(pace.interval if isinstance(pace, Every) else TARGET)
        for plan in of.plans:
            self._connect(plan)
        restores = Restores(of.snapshots, of.listener)
        for plan in of.plans:
            restores.begins(plan.id)
            self.tasks[plan.id] = self._task(plan)

    def close(self) -> None:
        """Close the tasks that were built, when another could not be."""
        for task in self.tasks.values():
            with suppress(Exception):  # what could not be built is the failure that is told
                task.close()

    def _connect(self, plan: TaskPlan) -> None:
        for route in plan.routes.values():
            for leaf, _ in route.leaves():
                self._channels[leaf].connect(on_put=self.threads[leaf.task].wake, on_take=self.threads[plan.id].wake)

    def _drift_gates(self) -> DriftGates | None:
        groups = drift_groups(self._of.analysis.graph)
        if not groups:
            return None
        return DriftGates(
            groups,
            now=self._of.clock.now(),
            wake=lambda uid: self.threads[uid].wake(),
            finite=self._of.until is Until.CAUGHT_UP,
        )

    def _task(self, plan: TaskPlan) -> AnyTask:
        output = Output(
            {port: self._path(plan, route, is_root=True) for port, route in plan.routes.items()}, self._of.edge.keep
        )
        if isinstance(plan.node, Read):
            return self._source(plan, plan.node, output)
        return StepTask(
            plan.id,
            self._inputs(plan),
            output,
            self._work(plan),
            barriers=BARRIERS[self._of.settings.mode],
            shell=self._of.supervisor,
            clock=self._of.clock,
        )

    def _path(self, plan: TaskPlan, route: Route, *, is_root: bool) -> Path:
        rewrite: Rewrite | None = None
        if route.steps or (is_root and isinstance(plan.node, Read)):
            rewrite = self._of.analysis.segment(plan.node, route.steps, is_root=is_root)
            if is_root and isinstance(plan.node, Read):
                rewrite = counting(rewrite, plan.id, self._of.listener)
                if plan.id in self._controls:
                    rewrite = controlled(rewrite, plan.id, self._controls[plan.id], self._of.clock)
            for step in route.steps:
                if self._gates is not None and isinstance(step, WithWatermark) and self._gates.follows(step):
                    rewrite = followed(rewrite, step, self._gates)
        return Path(
            rewrite=rewrite,
            channel=self._channels[route.to] if route.to is not None else None,
            branches=tuple(self._path(plan, branch, is_root=False) for branch in route.branches),
            only_if=route.only_if,
        )

    def _source(self, plan: TaskPlan, node: Read, output: Output) -> SourceTask:
        snapshot = self._of.snapshots.get(plan.id)
        edge = self._of.edge
        context = SourceContext(uid=plan.id, spark=edge.spark, until=self._of.until, report=self._of.supervisor.report)
        has_ended = snapshot is not None and END_OF_TIME in snapshot.watermarks
        graph, filesystem = self._of.analysis.graph, self._of.filesystem
        frame = partial(edge.letters, filesystem)
        box = letterbox(graph, plan.id, filesystem, self._of.timeline.has, frame, has_ended=has_ended)
        resume = snapshot.position if snapshot else None
        reader = open_replaying(self._of.analysis.source(node), context, resume, box)
        settings = self._of.settings
        limits = Limits(rows=settings.max_rows_per_batch, bytes=settings.max_bytes_per_batch)
        control = self._controls.get(plan.id)
        return SourceTask(
            plan.id,
            reader,
            output,
            limits=lambda: limits if control is None else replace(limits, rows=control.cap(limits.rows)),
            held=self._of.initial,
            has_ended=has_ended,
            pace=pace_of(at_once if self._of.until is Until.CAUGHT_UP else node.pace),
            markers=MarkerRhythm(settings.latency_every) if settings.latency_every is not None else None,
            gates=self._gates,
            shell=self._of.supervisor,
            clock=self._of.clock,
        )

    def _inputs(self, plan: TaskPlan) -> Inputs:
        found = {
            leaf: (mark, other.id)
            for other in self._of.plans
            for route in other.routes.values()
            for leaf, mark in route.leaves()
        }
        leaves = [Leaf(plan.id, source) for source in range(plan.inputs)]
        snapshot = self._of.snapshots.get(plan.id)
        watermarks = snapshot.watermarks if snapshot else ()
        return Inputs(
            [self._channels[leaf] for leaf in leaves],
            [found[leaf][0] for leaf in leaves],
            upstream=[self._upstream(ref, *found[leaf]) for ref, leaf in zip(plan.node.inputs, leaves, strict=True)],
            restored=watermarks if len(watermarks) == len(leaves) else _least(watermarks) * len(leaves),
            wake=self.threads[plan.id].wake,
        )

    def _upstream(self, ref: Ref, mark: WithWatermark | None, name: str) -> Upstream:
        graph, gates = self._of.analysis.graph, self._gates
        expected = to_name_partitions(graph, mark) if mark is not None else frozenset[str]()
        if gates is None:
            return Upstream(name=name, expected=expected)
        sources = upstream(graph, ref)
        return Upstream(name=name, expected=expected, stood=lambda now: gates.stood(sources, now))

    def _work(self, plan: TaskPlan) -> Work:
        node = plan.node
        if isinstance(node, Union):
            return UnionWork(plan.id)
        if isinstance(node, Write):
            return self._sink(plan, node)
        assert isinstance(node, Keyed)
        return self._operator(plan, node)

    def _operator(self, plan: TaskPlan, node: Keyed) -> OperatorWork:
        of = self._of
        snapshot = of.snapshots.get(plan.id)
        context = OperatorContext(
            uid=plan.id,
            spark=of.edge.spark,
            filesystem=of.filesystem,
            folder=f"state/{plan.id}/{of.generation}",
            generation=of.generation,
            inputs=tuple(of.analysis.schema(ref) for ref in node.inputs),
            consumed=frozenset(plan.routes),
            partitions=of.cores,
            cores=of.cores,
            background=of.edge.background(plan.id),
            count=lambda name, amount: of.listener(Counted(task=plan.id, name=name, amount=amount)),
            failpoint=failpoint,
            wall=of.clock.wall,
            report=of.listener,
        )
        operator = node.spec.open(context, snapshot.state if snapshot else None)
        repeats = Guarantee(of.settings.mode) is not Guarantee.EXACTLY_ONCE
        return OperatorWork(plan.id, operator, repeats=repeats)

    def _sink(self, plan: TaskPlan, node: Write) -> SinkWork:
        of = self._of
        context = SinkContext(
            uid=plan.id,
            spark=of.edge.spark,
            schema=of.analysis.schema(node.inputs[0]),
            log_id=of.log_id,
            job=of.job,
            generation=of.generation,
            filesystem=of.filesystem,
            staging=f"staged/{plan.id}/{of.generation}",
            cores=of.cores,
            background=of.edge.background(plan.id),
            failpoint=failpoint,
        )
        return SinkWork(plan.id, node.sink.writer(context))


def _least(watermarks: tuple[EventTime, ...]) -> tuple[EventTime, ...]:
    """What surely is so of any input of a step that has another number of them now; nothing if nothing is known."""
    return (min(watermarks),) if watermarks else ()
