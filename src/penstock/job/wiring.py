"""Tasks, channels, connectors of an attempt put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.checkpoint.history import UNBROKEN, Timeline
from penstock.clock import MAX_WATERMARK, Clock, EventTime
from penstock.compiler.tasks import InputRef, Route, TaskSpec
from penstock.dead_letters.letters import replay_inbox
from penstock.dead_letters.replay import LetterFrames, open_with_replays
from penstock.facts import Counted, Listener, Restoring
from penstock.failpoints import failpoint
from penstock.filesystem.base import FileSystem
from penstock.graph.nodes import Every, Keyed, PortRef, Read, Union, WithWatermark, Write, without_pause
from penstock.graph.queries import alignment_groups, sources_naming_partitions, upstream_sources
from penstock.handles import Generation, Guarantee, TaskSnapshot
from penstock.interfaces.operator import OperatorContext
from penstock.interfaces.sink import SinkContext
from penstock.interfaces.source import ReadLimit, SourceContext, Until
from penstock.runtime.barriers import AlignedBarrierHandler, BarrierHandler, BarrierTracker
from penstock.runtime.channels import Channel, OutputPath, Rewrite, TaskOutput
from penstock.runtime.executors import AnyTask, TaskRunner, TaskRunnerFactory, TaskThread
from penstock.runtime.inputs import Inputs, UpstreamInfo
from penstock.runtime.rate_control import DEFAULT_BATCH_DURATION, RateControl
from penstock.runtime.source_task import (
    LatencyMarkerTimer,
    SourceTask,
    schedule_of,
    with_rate_control,
    with_row_counts,
    with_watermark_alignment,
)
from penstock.runtime.supervisor import Supervisor
from penstock.runtime.task import StepTask, TaskLogic
from penstock.runtime.task_logic import OperatorLogic, SinkLogic, UnionLogic
from penstock.runtime.watermark_alignment import AlignmentCoordinator
from penstock.settings import Settings
from penstock.spark.scheduling import SparkPools

if TYPE_CHECKING:
    from penstock.compiler.analysis import Analysis


# ----------------------------------------------------------------------------------------------------
# Tells observers how much of the state a start has restored, step by step. Restores nothing itself.


class RestoreReporter:
    """The steps of one start whose state has to be read, one after the other."""

    def __init__(self, snapshots: Mapping[str, TaskSnapshot], listener: Listener) -> None:
        self._bytes = {uid: snapshot.state.bytes for uid, snapshot in snapshots.items() if snapshot.state is not None}
        self._total = sum(self._bytes.values())
        self._done = 0
        self._listener = listener

    def begins(self, uid: str) -> None:
        """It is this step's turn, and all before it are done."""
        size = self._bytes.get(uid, 0)
        if size:
            self._listener(Restoring(doing="restoring", task=uid, done=self._done, total=self._total))
        self._done += size


# ----------------------------------------------------------------------------------------------------
# Puts tasks, channels and connectors of one attempt together. The only place where all parts meet; decides nothing.

BARRIER_HANDLERS: Final[Mapping[str, Callable[[int], BarrierHandler]]] = {
    "exactly-once": AlignedBarrierHandler,
    "at-least-once": BarrierTracker,
}
"""How a task follows its barriers, by the job's mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all tasks of an attempt share."""

    analysis: Analysis
    plans: tuple[TaskSpec, ...]
    snapshots: Mapping[str, TaskSnapshot]
    edge: SparkPools
    letters: LetterFrames
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
    thread: TaskRunnerFactory = TaskThread
    timeline: Timeline = UNBROKEN


class AttemptBuilder:
    """Builds every task of an attempt, with its thread."""

    def __init__(self, around: Surroundings) -> None:
        self._of = around
        self._channels: dict[InputRef, Channel] = {}
        self._controls: dict[str, RateControl] = {}
        self.threads: dict[str, TaskRunner] = {}
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
                failed=of.supervisor.failed,
                finished=of.supervisor.finished,
            )
            for source in range(plan.inputs):
                self._channels[InputRef(plan.id, source)] = Channel(capacity=of.settings.channel_capacity)
            if isinstance(plan.node, Read) and of.settings.rate_control:
                pace = plan.node.pace
                self._controls[plan.id] = RateControl(
                    pace.interval if isinstance(pace, Every) else DEFAULT_BATCH_DURATION
                )
        for plan in of.plans:
            self._connect(plan)
        restores = RestoreReporter(of.snapshots, of.listener)
        for plan in of.plans:
            restores.begins(plan.id)
            self.tasks[plan.id] = self._task(plan)

    def close(self) -> None:
        """Close the tasks that were built, when another could not be."""
        for task in self.tasks.values():
            with suppress(Exception):  # what could not be built is the failure that is told
                task.close()

    def _connect(self, plan: TaskSpec) -> None:
        for route in plan.routes.values():
            for leaf, _ in route.leaves():
                self._channels[leaf].connect(on_put=self.threads[leaf.task].wake, on_take=self.threads[plan.id].wake)

    def _drift_gates(self) -> AlignmentCoordinator | None:
        groups = alignment_groups(self._of.analysis.graph)
        if not groups:
            return None
        return AlignmentCoordinator(
            groups,
            now=self._of.clock.now(),
            wake=lambda uid: self.threads[uid].wake(),
            finite=self._of.until is Until.CAUGHT_UP,
        )

    def _task(self, plan: TaskSpec) -> AnyTask:
        output = TaskOutput(
            {port: self._path(plan, route, is_root=True) for port, route in plan.routes.items()}, self._of.edge.keep
        )
        if isinstance(plan.node, Read):
            return self._source(plan, plan.node, output)
        return StepTask(
            plan.id,
            self._inputs(plan),
            output,
            self._work(plan),
            barriers=BARRIER_HANDLERS[self._of.settings.mode],
            shell=self._of.supervisor,
            clock=self._of.clock,
        )

    def _path(self, plan: TaskSpec, route: Route, *, is_root: bool) -> OutputPath:
        rewrite: Rewrite | None = None
        if route.steps or (is_root and isinstance(plan.node, Read)):
            rewrite = self._of.analysis.segment(plan.node, route.steps, is_root=is_root)
            if is_root and isinstance(plan.node, Read):
                rewrite = with_row_counts(rewrite, plan.id, self._of.listener)
                if plan.id in self._controls:
                    rewrite = with_rate_control(rewrite, plan.id, self._controls[plan.id], self._of.clock)
            for step in route.steps:
                if self._gates is not None and isinstance(step, WithWatermark) and self._gates.follows(step):
                    rewrite = with_watermark_alignment(rewrite, step, self._gates)
        return OutputPath(
            rewrite=rewrite,
            channel=self._channels[route.to] if route.to is not None else None,
            branches=tuple(self._path(plan, branch, is_root=False) for branch in route.branches),
            only_if=route.only_if,
        )

    def _source(self, plan: TaskSpec, node: Read, output: TaskOutput) -> SourceTask:
        snapshot = self._of.snapshots.get(plan.id)
        edge = self._of.edge
        context = SourceContext(uid=plan.id, spark=edge.spark, until=self._of.until, report=self._of.supervisor.report)
        has_ended = snapshot is not None and MAX_WATERMARK in snapshot.watermarks
        graph, filesystem = self._of.analysis.graph, self._of.filesystem
        box = replay_inbox(graph, plan.id, filesystem, self._of.timeline.has, self._of.letters, has_ended=has_ended)
        resume = snapshot.position if snapshot else None
        reader = open_with_replays(self._of.analysis.source(node), context, resume, box)
        settings = self._of.settings
        limits = ReadLimit(rows=settings.max_rows_per_batch, bytes=settings.max_bytes_per_batch)
        control = self._controls.get(plan.id)
        return SourceTask(
            plan.id,
            reader,
            output,
            limits=lambda: limits if control is None else replace(limits, rows=control.cap(limits.rows)),
            held=self._of.initial,
            has_ended=has_ended,
            schedule=schedule_of(without_pause if self._of.until is Until.CAUGHT_UP else node.pace),
            markers=LatencyMarkerTimer(settings.latency_every) if settings.latency_every is not None else None,
            alignment=self._gates,
            shell=self._of.supervisor,
            clock=self._of.clock,
        )

    def _inputs(self, plan: TaskSpec) -> Inputs:
        found = {
            leaf: (mark, other.id)
            for other in self._of.plans
            for route in other.routes.values()
            for leaf, mark in route.leaves()
        }
        leaves = [InputRef(plan.id, source) for source in range(plan.inputs)]
        snapshot = self._of.snapshots.get(plan.id)
        watermarks = snapshot.watermarks if snapshot else ()
        return Inputs(
            [self._channels[leaf] for leaf in leaves],
            [found[leaf][0] for leaf in leaves],
            upstream=[self._upstream(ref, *found[leaf]) for ref, leaf in zip(plan.node.inputs, leaves, strict=True)],
            restored=watermarks if len(watermarks) == len(leaves) else _least(watermarks) * len(leaves),
            wake=self.threads[plan.id].wake,
        )

    def _upstream(self, ref: PortRef, mark: WithWatermark | None, name: str) -> UpstreamInfo:
        graph, gates = self._of.analysis.graph, self._gates
        expected = sources_naming_partitions(graph, mark) if mark is not None else frozenset[str]()
        if gates is None:
            return UpstreamInfo(name=name, expected=expected)
        sources = upstream_sources(graph, ref)
        return UpstreamInfo(name=name, expected=expected, paused_until=lambda now: gates.paused_until(sources, now))

    def _work(self, plan: TaskSpec) -> TaskLogic:
        node = plan.node
        if isinstance(node, Union):
            return UnionLogic(plan.id)
        if isinstance(node, Write):
            return self._sink(plan, node)
        assert isinstance(node, Keyed)
        return self._operator(plan, node)

    def _operator(self, plan: TaskSpec, node: Keyed) -> OperatorLogic:
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
        return OperatorLogic(plan.id, operator, repeats=repeats)

    def _sink(self, plan: TaskSpec, node: Write) -> SinkLogic:
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
        return SinkLogic(plan.id, node.sink.writer(context))


def _least(watermarks: tuple[EventTime, ...]) -> tuple[EventTime, ...]:
    """What surely is so of any input of a step that has another number of them now; nothing if nothing is known."""
    return (min(watermarks),) if watermarks else ()
