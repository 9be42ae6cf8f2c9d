"""One generation: claim, recover, build, run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.entries import Claim
from penstock.checkpoint.events import AnswerRequest, AttemptId, EndJob, RunStarted
from penstock.checkpoint.gc import stages_of
from penstock.checkpoint.history import History, LogMark, timeline
from penstock.checkpoint.log import Log, ManifestWriter, OwnedLog
from penstock.checkpoint.policy import CheckpointConfig
from penstock.checkpoint.recovery import Recovery, decide_recovery, execute_recovery
from penstock.clock import Clock, MonotonicTime, WallTime
from penstock.compiler.tasks import build_tasks
from penstock.connectors.staging import committer
from penstock.control.client import host_identity
from penstock.control.server import RequestRegistry, RunningAttempt
from penstock.dead_letters.replay import letters_frame
from penstock.errors import GenerationFenced, PenstockError
from penstock.facts import JobStarted, Listener
from penstock.failpoints import failpoint
from penstock.filesystem.base import FileSystem
from penstock.graph.nodes import Write
from penstock.handles import Committable, Generation
from penstock.interfaces.sink import Committer
from penstock.interfaces.source import Until
from penstock.job.failures import to_penstock_error
from penstock.job.start import (
    FROM_LATEST,
    DeclaredSteps,
    StartOptions,
    declare_steps,
    log_schema_changes,
    resolve_start,
)
from penstock.job.wiring import AttemptBuilder, Surroundings
from penstock.runtime.executors import AttemptParts, TaskRunnerFactory, TaskThread, WorkerPool, WorkerThreads
from penstock.runtime.source_task import SourceTask
from penstock.runtime.supervisor import Supervisor
from penstock.settings import Settings
from penstock.spark.scheduling import SparkPools
from penstock.spark.session import default_parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.compiler.analysis import Analysis


# ----------------------------------------------------------------------------------------------------
# What observers are told when a start is through with the past: what it restored, and what it did before. Pure.


def job_started_fact(owned: OwnedLog, recovery: Recovery, *, attempt: int, wall: WallTime) -> JobStarted:
    """The fact, once the recovery was carried out.

    Args:
        owned: the log, under the claim of this start.
        recovery: what was done.
        attempt: 1, 2, … within the process.
        wall: now.
    """
    held = None if recovery.restored is None else owned.history.manifests.get(recovery.restored)
    return JobStarted(
        job=owned.job,
        generation=owned.generation,
        restored=recovery.restored,
        published=len(recovery.commit),
        attempt=attempt,
        age_ms=None if held is None else max(0, wall - held[1].completed) / 1_000,
        new=recovery.fresh,
        migrated=tuple(change.uid for change in recovery.changes),
        dropped=recovery.dropped,
        imported=recovery.bring.folder if recovery.bring is not None else None,
    )


# ----------------------------------------------------------------------------------------------------
# One attempt of a job: claim, recover, build, run, under one generation. The next does all of it again (rule L6).


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    """What all attempts of a job share: nothing in it changes while the job lives."""

    name: str
    analysis: Analysis
    spark: SparkSession
    filesystem: FileSystem
    log: Log
    settings: Settings
    until: Until
    clock: Clock
    listener: Listener
    allow_non_restored_state: bool
    take_over: bool
    pause: Callable[[float], None]
    answered: Callable[[AnswerRequest], None]
    thread: TaskRunnerFactory = TaskThread
    workers: Callable[[Callable[[str, BaseException], None]], WorkerPool] = WorkerThreads
    requests: RequestRegistry = field(default_factory=RequestRegistry)
    before_claim: Callable[[], None] = lambda: None
    expect: LogMark | None = None
    rename: Mapping[str, str] = field(default_factory=dict)


class Attempt:
    """Builds and runs one generation. Made, run once, thrown away.

    Args:
        plan: of the job.
        number: 1, 2, … within this process.
        after: the generation of the attempt before, if there was one: a claim of anybody else since then is a fence,
            not something to take back (rule L9).
        beginning: where, unless at the newest checkpoint; :attr:`is_begun` tells when that is in the log.
    """

    def __init__(
        self, plan: JobEnvironment, *, number: int, after: Generation | None, beginning: StartOptions = FROM_LATEST
    ) -> None:
        self._plan = plan
        self._number = number
        self._beginning = beginning
        self._tasks = build_tasks(plan.analysis.graph)
        self._declared: DeclaredSteps | None = None
        self._edge: SparkPools | None = None
        self._owned: OwnedLog | None = None
        self.supervisor = Supervisor(plan.clock, plan.listener)
        self.generation = after
        self.is_begun = False

    def run(self, running: Callable[[], None]) -> EndJob:
        """Claim, recover, and run to the end; ``running`` is called when the sources start.

        Raises:
            PenstockError: what failed, explained.
        """
        try:
            return self._run(running)
        except Exception as error:
            told = as_fence_if_superseded(to_penstock_error(error), self._owned)
            self._plan.requests.attempt_ended(told)
            if told is error:
                raise
            raise told from error

    def give_up(self, error: PenstockError) -> None:
        """End with this error as soon as can be, from any thread: running Spark jobs are cancelled."""
        self.supervisor.failed("stop", error)
        if self._edge is not None:
            self._edge.cancel()

    def _run(self, running: Callable[[], None]) -> EndJob:
        wiring = self.open(running)
        hands = RunningAttempt(
            put=self.supervisor.request,
            failed=self.supervisor.failed,
            on_log=lambda work: wiring.workers.submit("log", work),
            clock=self._plan.clock,
        )
        self._plan.requests.attempt_started(hands)
        return self.supervisor.run(wiring)

    def open(self, running: Callable[[], None]) -> AttemptParts:
        """Claim, recover and build; the supervisor has yet to begin. If that fails, what was built is closed again."""
        owned = self._claim()
        recovery = self._recover(owned)
        assembly = self._assemble(owned, recovery)
        try:
            failpoint("recovery.restored")
            self._plan.listener(job_started_fact(owned, recovery, attempt=self._number, wall=self._plan.clock.wall()))
            running()
            return self._wire(owned, recovery, assembly)
        except BaseException:
            assembly.close()
            raise

    def _claim(self) -> OwnedLog:
        plan = self._plan
        is_first = self.generation is None
        if is_first:
            self._decide(plan.log.read(past_unreadable=self._beginning.is_rewind))  # refused, it leaves all as it was
            plan.before_claim()  # right before it, for a decision takes a while
        claim = Claim(host=host_identity(), pid=os.getpid(), started=plan.clock.wall(), version=version("penstock"))
        owned = plan.log.claim(
            claim,
            take_over=plan.take_over,
            expect=plan.expect if is_first else None,
            after=self.generation,
            past_unreadable=self._beginning.is_rewind,
        )
        self._owned = owned
        self.generation = owned.generation
        plan.requests.claimed(owned)
        self._edge = SparkPools(
            plan.spark, job=plan.name, generation=owned.generation, cores=default_parallelism(plan.spark)
        )
        return owned

    @property
    def declared(self) -> DeclaredSteps:
        """What the steps keep, asked once an attempt: it takes some calls to the JVM."""
        if self._declared is None:
            self._declared = declare_steps(self._tasks, self._plan.analysis, self._plan.spark)
        return self._declared

    def _decide(self, history: History, generation: Generation | None = None) -> Recovery:
        plan, at = self._plan, self._plan.clock.wall()
        return decide_recovery(
            history,
            self.declared.steps,
            allow_non_restored_state=plan.allow_non_restored_state,
            rename=plan.rename,
            resolver=self.declared.judge,
            at=at,
            **resolve_start(self._beginning, history, job=plan.name, at=at, generation=generation),
        )

    def _recover(self, owned: OwnedLog) -> Recovery:
        """Publish, void and delete what the log says, and say what is restored."""
        plan, recovery = self._plan, self._decide(owned.history, owned.generation)
        log_schema_changes(recovery)
        execute_recovery(
            recovery,
            log=owned,
            filesystem=plan.filesystem,
            commit=lambda item: self._committer(item).commit(item),
            void=lambda item: self._committer(item).void(item),
            listener=plan.listener,
            pause=plan.pause,
        )
        self.is_begun = True
        return recovery

    def _assemble(self, owned: OwnedLog, recovery: Recovery) -> AttemptBuilder:
        """Every task, restored; if one cannot be, those before it are closed again."""
        plan = self._plan
        assert self._edge is not None  # made by the claim
        assembly = AttemptBuilder(
            Surroundings(
                analysis=plan.analysis,
                plans=self._tasks,
                snapshots=recovery.snapshots,
                edge=self._edge,
                letters=partial(letters_frame, self._edge.spark, plan.filesystem),
                filesystem=plan.filesystem,
                job=plan.name,
                log_id=owned.log_id,
                generation=owned.generation,
                settings=plan.settings,
                cores=default_parallelism(plan.spark),
                until=plan.until,
                initial=recovery.initial,
                clock=plan.clock,
                listener=plan.listener,
                supervisor=self.supervisor,
                timeline=timeline(owned.history, recovery.restored),
                thread=plan.thread,
            )
        )
        try:
            with self._edge.around("restore"):
                assembly.build()
        except BaseException:
            assembly.close()
            raise
        return assembly

    def _wire(self, owned: OwnedLog, recovery: Recovery, assembly: AttemptBuilder) -> AttemptParts:
        plan = self._plan
        assert self._edge is not None  # made by the claim
        return AttemptParts(
            coordinator=Coordinator(_coordinator_settings(plan.settings)),
            started=lambda at: self._started(at, recovery, assembly),
            tasks=assembly.tasks,
            threads=assembly.threads,
            workers=plan.workers(self.supervisor.failed),
            manifest_writer=ManifestWriter(
                owned,
                plan.filesystem,
                retained=plan.settings.retained,
                leftovers=lambda: self._leftovers(owned),
            ),
            publish=lambda item: self._committer(item).commit(item),
            explain=to_penstock_error,
            cancel=self._edge.cancel,
            background=self._edge.background("clean-up"),
            snapshot=self._edge.snapshot,
            answered=plan.answered,
        )

    def _committer(self, item: Committable) -> Committer:
        return committer(item.kind, self._plan.filesystem, failpoint)

    def _leftovers(self, owned: OwnedLog) -> Iterator[str]:
        """Everything that drivers wrote and that may lie about: layers, and what sinks staged, by any name they had."""
        folders = {"state", "staged", *stages_of(owned.history)}
        for task in self._tasks:
            if isinstance(task.node, Write):
                folders.update(task.node.sink.stages_in(owned.log_id, task.id))
        yield from sorted({path for folder in folders for path in self._plan.filesystem.list(folder)})

    def _started(self, at: MonotonicTime, recovery: Recovery, assembly: AttemptBuilder) -> RunStarted:
        return RunStarted(
            at=at,
            wall=self._plan.clock.wall(),
            attempts={id: AttemptId(f"{id}@{self._number}") for id in assembly.tasks},
            sources=tuple(id for id, task in assembly.tasks.items() if isinstance(task, SourceTask)),
            steps=self.declared.steps,
            next_checkpoint=recovery.next_checkpoint,
            parent=recovery.restored,
            initial=recovery.initial,
            settled=bool(recovery.commit),
            settings=asdict(self._plan.settings),
        )


def _coordinator_settings(settings: Settings) -> CheckpointConfig:
    return CheckpointConfig(
        interval=settings.checkpoint_every,
        timeout=settings.checkpoint_timeout,
        min_pause=settings.min_pause,
        tolerable_failures=settings.tolerated_failures,
    )


def as_fence_if_superseded(error: PenstockError, owned: OwnedLog | None) -> PenstockError:
    """What goes wrong in a driver that was superseded is a fence: the new owner swept what is missing (rule G4)."""
    if owned is None or isinstance(error, GenerationFenced):
        return error
    return owned.superseded() or error
