"""Puts the tasks, channels and connectors of an attempt together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.checkpoint import paths
from penstock.checkpoint.history import LogMark, timeline
from penstock.checkpoint.log import Log, OwnedLog, Sleep
from penstock.checkpoint.received import ReceivedBlocks
from penstock.checkpoint.recovery import Recovery
from penstock.clock import MAX_WATERMARK, Clock, EventTime
from penstock.compiler.tasks import InputRef, Route, TaskSpec
from penstock.connectors.committers import open_writer
from penstock.control.server import RequestRegistry
from penstock.dead_letters.letters import replay_inbox
from penstock.dead_letters.replay import LetterFrames, open_with_replays
from penstock.facts import Counted, Listener, Restoring
from penstock.failpoints import failpoint
from penstock.filesystem.base import FileSystem
from penstock.graph.nodes import Every, Keyed, PortRef, Read, Union, WithWatermark, Write, without_pause
from penstock.graph.queries import alignment_groups, sources_naming_partitions, upstream_sources
from penstock.handles import Guarantee, TaskSnapshot
from penstock.interfaces.operator import OperatorContext
from penstock.interfaces.sink import BlockBudget, SinkContext
from penstock.interfaces.source import BatchTicks, JobResources, ReadLimit, SourceContext, Until, receives
from penstock.runtime.barriers import AlignedBarrierHandler, BarrierHandler, BarrierTracker
from penstock.runtime.channels import Channel, OutputPath, Rewrite, TaskOutput
from penstock.runtime.executors import AnyTask, TaskRunner, TaskRunnerFactory, TaskThread, WorkerPool, WorkerThreads
from penstock.runtime.inputs import Inputs, UpstreamInfo
from penstock.runtime.poll_schedule import schedule_of
from penstock.runtime.rate_control import DEFAULT_BATCH_DURATION, RateControl
from penstock.runtime.source_task import (
    LatencyMarkerTimer,
    SourceTask,
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
    from pyspark.sql import SparkSession

    from penstock.compiler.analysis import Analysis


# ---- restore progress ----------------------------------------------------------------------------------------------


class RestoreReporter:
    """Reports how many bytes of state a start has restored, step by step."""

    def __init__(self, snapshots: Mapping[str, TaskSnapshot], listener: Listener) -> None:
        self._bytes = {uid: snapshot.state.bytes for uid, snapshot in snapshots.items() if snapshot.state is not None}
        self._total = sum(self._bytes.values())
        self._done = 0
        self._listener = listener

    def begins(self, uid: str) -> None:
        """Report that this step is restored next; the steps before it are done."""
        size = self._bytes.get(uid, 0)
        if size:
            self._listener(Restoring(doing="restoring", task=uid, done=self._done, total=self._total))
        self._done += size


# ---- what attempts are made of --------------------------------------------------------------------------------------

BARRIER_HANDLERS: Final[Mapping[str, Callable[[int], BarrierHandler]]] = {
    "exactly-once": AlignedBarrierHandler,
    "at-least-once": BarrierTracker,
}
"""How a task handles barriers, by the job's mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    """What all attempts of a job share. It is made once and does not change.

    Attributes:
        name: of the job.
        analysis: of the pipeline's graph.
        spark: the session of the job.
        filesystem: rooted at the job's directory.
        log: of the job.
        settings: of the job.
        until: when the job ends by itself.
        clock: of the job.
        listener: gets every fact.
        requests: to the job.
        pause: sleeps between retries.
        take_over: claim the log even if its owner lives.
        expect: the mark at which the first claim must find the log.
        check_owner: refuses the first claim while a living owner answers.
        thread: makes the runner of a task.
        workers: makes the pool for background work.
        resources: what sources keep open from one attempt to the next.
    """

    name: str
    analysis: Analysis
    spark: SparkSession
    filesystem: FileSystem
    log: Log
    settings: Settings
    until: Until
    clock: Clock
    listener: Listener
    requests: RequestRegistry
    pause: Sleep
    take_over: bool = False
    expect: LogMark | None = None
    check_owner: Callable[[], None] = lambda: None
    thread: TaskRunnerFactory = TaskThread
    workers: Callable[[Callable[[str, BaseException], None]], WorkerPool] = WorkerThreads
    resources: JobResources = field(default_factory=JobResources)


class AttemptBuilder:
    """Builds every task of an attempt, with its thread, channels and connectors.

    Args:
        env: of the job.
        specs: the tasks to build.
        owned: the log, under the claim of the attempt.
        recovery: what the tasks restore.
        pools: Spark pools of the attempt.
        supervisor: of the attempt.
        letters: reads the dead letters of a replay.
        cores: of the cluster.
    """

    def __init__(
        self,
        env: JobEnvironment,
        *,
        specs: tuple[TaskSpec, ...],
        owned: OwnedLog,
        recovery: Recovery,
        pools: SparkPools,
        supervisor: Supervisor,
        letters: LetterFrames,
        cores: int,
    ) -> None:
        self._env = env
        self._specs = specs
        self._owned = owned
        self._recovery = recovery
        self._pools = pools
        self._supervisor = supervisor
        self._letters = letters
        self._cores = cores
        self._timeline = timeline(owned.history, recovery.restored)
        self._channels: dict[InputRef, Channel] = {}
        self._rate_controls: dict[str, RateControl] = {}
        self._kept_output = BlockBudget()
        self.threads: dict[str, TaskRunner] = {}
        self.tasks: dict[str, AnyTask] = {}
        self._alignment = self._alignment_coordinator()

    def build(self) -> None:
        """Build all channels and threads first, then the tasks, each restored from its snapshot."""
        settings = self._env.settings
        for spec in self._specs:
            self.threads[spec.id] = self._env.thread(
                spec.id,
                clock=self._env.clock,
                around=self._pools.around,
                foreground=self._pools.foreground,
                failed=self._supervisor.failed,
                finished=self._supervisor.finished,
            )
            for source in range(spec.inputs):
                self._channels[InputRef(spec.id, source)] = Channel(capacity=settings.channel_capacity)
            if isinstance(spec.node, Read) and settings.rate_control:
                pace = spec.node.pace
                self._rate_controls[spec.id] = RateControl(
                    pace.interval if isinstance(pace, Every) else DEFAULT_BATCH_DURATION
                )
        for spec in self._specs:
            self._connect(spec)
        progress = RestoreReporter(self._recovery.snapshots, self._env.listener)
        for spec in self._specs:
            progress.begins(spec.id)
            self.tasks[spec.id] = self._task(spec)

    def close(self) -> None:
        """Close the tasks that were built, when another could not be."""
        for task in self.tasks.values():
            with suppress(Exception):  # the failure to build is the one that is raised
                task.close()

    def _connect(self, spec: TaskSpec) -> None:
        for route in spec.routes.values():
            for leaf, _ in route.leaves():
                self._channels[leaf].connect(on_put=self.threads[leaf.task].wake, on_take=self.threads[spec.id].wake)

    def _alignment_coordinator(self) -> AlignmentCoordinator | None:
        groups = alignment_groups(self._env.analysis.graph)
        if not groups:
            return None
        return AlignmentCoordinator(
            groups,
            now=self._env.clock.now(),
            wake=lambda uid: self.threads[uid].wake(),
            finite=self._env.until is Until.CAUGHT_UP,
        )

    def _task(self, spec: TaskSpec) -> AnyTask:
        output = TaskOutput(
            {port: self._path(spec, route, is_root=True) for port, route in spec.routes.items()}, self._pools.keep
        )
        if isinstance(spec.node, Read):
            return self._source(spec, spec.node, output)
        return StepTask(
            spec.id,
            self._inputs(spec),
            output,
            self._logic(spec),
            barriers=BARRIER_HANDLERS[self._env.settings.mode],
            shell=self._supervisor,
            clock=self._env.clock,
        )

    # ---- outputs and inputs ----------------------------------------------------------------------------------------

    def _path(self, spec: TaskSpec, route: Route, *, is_root: bool) -> OutputPath:
        rewrite: Rewrite | None = None
        if route.steps or (is_root and isinstance(spec.node, Read)):
            rewrite = self._env.analysis.chain(spec.node, route.steps, is_root=is_root)
            if is_root and isinstance(spec.node, Read):
                rewrite = with_row_counts(rewrite, spec.id, self._env.listener)
                if spec.id in self._rate_controls:
                    rewrite = with_rate_control(rewrite, spec.id, self._rate_controls[spec.id], self._env.clock)
            for step in route.steps:
                if self._alignment is not None and isinstance(step, WithWatermark) and self._alignment.follows(step):
                    rewrite = with_watermark_alignment(rewrite, step, self._alignment)
        return OutputPath(
            rewrite=rewrite,
            channel=self._channels[route.to] if route.to is not None else None,
            branches=tuple(self._path(spec, branch, is_root=False) for branch in route.branches),
            only_if=route.only_if,
        )

    def _inputs(self, spec: TaskSpec) -> Inputs:
        found = {
            leaf: (with_watermark, other.id)
            for other in self._specs
            for route in other.routes.values()
            for leaf, with_watermark in route.leaves()
        }
        leaves = [InputRef(spec.id, source) for source in range(spec.inputs)]
        snapshot = self._recovery.snapshots.get(spec.id)
        watermarks = snapshot.watermarks if snapshot else ()
        return Inputs(
            [self._channels[leaf] for leaf in leaves],
            [found[leaf][0] for leaf in leaves],
            upstream=[self._upstream(ref, *found[leaf]) for ref, leaf in zip(spec.node.inputs, leaves, strict=True)],
            restored=watermarks if len(watermarks) == len(leaves) else _least(watermarks) * len(leaves),
            wake=self.threads[spec.id].wake,
        )

    def _upstream(self, ref: PortRef, with_watermark: WithWatermark | None, name: str) -> UpstreamInfo:
        graph, alignment = self._env.analysis.graph, self._alignment
        expected = sources_naming_partitions(graph, with_watermark) if with_watermark is not None else frozenset[str]()
        if alignment is None:
            return UpstreamInfo(name=name, expected=expected)
        sources = upstream_sources(graph, ref)
        return UpstreamInfo(name=name, expected=expected, paused_until=lambda now: alignment.paused_until(sources, now))

    # ---- sources, operators and sinks -------------------------------------------------------------------------------

    def _source(self, spec: TaskSpec, node: Read, output: TaskOutput) -> SourceTask:
        env, snapshot = self._env, self._recovery.snapshots.get(spec.id)
        context = SourceContext(
            uid=spec.id,
            spark=self._pools.spark,
            until=env.until,
            report=self._supervisor.report,
            received=ReceivedBlocks(spec.id, self._owned, env.filesystem, env.pause),
            ticks=BatchTicks(interval=node.pace.interval, catch_up=node.pace.catch_up)
            if isinstance(node.pace, Every)
            else None,
            wall=env.clock.wall,
            resources=env.resources,
            log_id=self._owned.log_id,
            generation=self._owned.generation,
            check_owner=self._owned.require_owner,
        )
        has_ended = snapshot is not None and MAX_WATERMARK in snapshot.watermarks
        inbox = replay_inbox(
            env.analysis.graph, spec.id, env.filesystem, self._timeline.has, self._letters, has_ended=has_ended
        )
        resume = snapshot.position if snapshot else None
        reader = open_with_replays(env.analysis.source(node), context, resume, inbox)
        latency_every = env.settings.latency_every
        limits = ReadLimit(rows=env.settings.max_rows_per_batch, bytes=env.settings.max_bytes_per_batch)
        control = self._rate_controls.get(spec.id)
        return SourceTask(
            spec.id,
            reader,
            output,
            limits=lambda: limits if control is None else replace(limits, rows=control.cap(limits.rows)),
            held=self._recovery.initial,
            has_ended=has_ended,
            schedule=schedule_of(
                without_pause if env.until is Until.CAUGHT_UP else node.pace, at_once=receives(node.source)
            ),
            markers=LatencyMarkerTimer(latency_every) if latency_every is not None else None,
            alignment=self._alignment,
            reads_last=receives(node.source) and env.until is Until.STOPPED,
            shell=self._supervisor,
            clock=env.clock,
        )

    def _logic(self, spec: TaskSpec) -> TaskLogic:
        node = spec.node
        if isinstance(node, Union):
            return UnionLogic(spec.id)
        if isinstance(node, Write):
            return self._sink(spec, node)
        assert isinstance(node, Keyed)
        return self._operator(spec, node)

    def _operator(self, spec: TaskSpec, node: Keyed) -> OperatorLogic:
        env, generation = self._env, self._owned.generation
        snapshot = self._recovery.snapshots.get(spec.id)
        context = OperatorContext(
            uid=spec.id,
            spark=self._pools.spark,
            filesystem=env.filesystem,
            folder=paths.state_folder(spec.id, generation),
            generation=generation,
            inputs=tuple(env.analysis.schema(ref) for ref in node.inputs),
            consumed=frozenset(spec.routes),
            partitions=self._cores,
            cores=self._cores,
            background=self._pools.background(spec.id),
            count=lambda name, amount: env.listener(Counted(task=spec.id, name=name, amount=amount)),
            failpoint=failpoint,
            wall=env.clock.wall,
            report=env.listener,
        )
        operator = node.spec.open(context, snapshot.state if snapshot else None)
        repeats = Guarantee(env.settings.mode) is not Guarantee.EXACTLY_ONCE
        return OperatorLogic(spec.id, operator, repeats=repeats)

    def _sink(self, spec: TaskSpec, node: Write) -> SinkLogic:
        env, owned = self._env, self._owned
        context = SinkContext(
            uid=spec.id,
            spark=self._pools.spark,
            schema=env.analysis.schema(node.inputs[0]),
            log_id=owned.log_id,
            job=env.name,
            generation=owned.generation,
            filesystem=env.filesystem,
            staging=paths.staged_folder(spec.id, owned.generation),
            cores=self._cores,
            replays=self._can_replay(node),
            kept=self._kept_output,
            next_checkpoint=self._recovery.next_checkpoint,
            check_owner=owned.require_owner,
            background=self._pools.background(spec.id),
            failpoint=failpoint,
            now=env.clock.now,
        )
        return SinkLogic(spec.id, open_writer(node.sink, context))

    def _can_replay(self, node: Write) -> bool:
        """Whether no source of a sink's rows loses any when the job begins again from its checkpoint."""
        uids = upstream_sources(self._env.analysis.graph, node.inputs[0])
        sources = [spec.node.source for spec in self._specs if isinstance(spec.node, Read) and spec.id in uids]
        return all(source.guarantee in (Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE) for source in sources)


def _least(watermarks: tuple[EventTime, ...]) -> tuple[EventTime, ...]:
    """The least watermark: true of each input of a step that has another number of inputs now. Nothing if unknown."""
    return (min(watermarks),) if watermarks else ()
