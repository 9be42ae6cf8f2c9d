"""One attempt of a job: claim, recover, build, run, under one generation. The next does all of it again (rule L6)."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from penstock.checkpoint.coordinator import Coordinator, CoordinatorSettings
from penstock.checkpoint.entries import Claim, StepRecord, StepRole
from penstock.checkpoint.journal import Journal
from penstock.checkpoint.log import Log
from penstock.checkpoint.messages import AnswerRequest, AttemptId, EndJob, JobStarted
from penstock.checkpoint.recovery import Recovery, decide_recovery
from penstock.facts import JobStarted as JobStartedFact
from penstock.facts import Listener
from penstock.failpoints import failpoint
from penstock.filesystem.base import FileSystem
from penstock.graph.nodes import Keyed, Read, Union, Write
from penstock.handles import Committable
from penstock.ids import Instant
from penstock.job.explain import explain
from penstock.job.recover import carry_out
from penstock.job.session import cores_of
from penstock.job.spark_edge import SparkEdge
from penstock.job.wiring import Assembly, Surroundings
from penstock.runtime.clock import Clock
from penstock.runtime.plan import TaskPlan, plan_tasks
from penstock.runtime.source_task import SourceTask
from penstock.runtime.supervisor import Supervisor, Wiring
from penstock.runtime.threads import Workers
from penstock.settings import Settings
from penstock.sinks.base import Committer
from penstock.sinks.committers import committer
from penstock.sources.base import Until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.graph.analyze import Analysis


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
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
    fresh: bool
    allow_non_restored_state: bool
    take_over: bool
    pause: Callable[[float], None]
    answered: Callable[[AnswerRequest], None]


class Attempt:
    """Builds and runs one generation. Made, run once, thrown away."""

    def __init__(self, plan: Plan, *, number: int) -> None:
        self._plan = plan
        self._number = number
        self._tasks = plan_tasks(plan.analysis.graph)
        self.supervisor = Supervisor(plan.clock, plan.listener)

    def run(self, running: Callable[[], None]) -> EndJob:
        """Claim, recover, and run to the end; ``running`` is called when the sources start.

        Raises:
            PenstockError: what failed, explained.
        """
        try:
            return self._run(running)
        except Exception as error:
            told = explain(error)
            if told is error:
                raise
            raise told from error

    def _run(self, running: Callable[[], None]) -> EndJob:
        plan = self._plan
        owned = plan.log.claim(
            Claim(host=platform.node(), pid=os.getpid(), started=plan.clock.wall(), version=version("penstock")),
            take_over=plan.take_over,
        )
        steps = step_records(self._tasks)
        recovery = decide_recovery(
            owned.history,
            steps,
            fresh=plan.fresh and self._number == 1,
            allow_non_restored_state=plan.allow_non_restored_state,
            at=plan.clock.wall(),
        )
        cores = cores_of(plan.spark)
        edge = SparkEdge(plan.spark, job=plan.name, generation=owned.generation, cores=cores)
        carry_out(
            recovery,
            log=owned,
            filesystem=plan.filesystem,
            commit=lambda item: self._committer(item).commit(item),
            void=lambda item: self._committer(item).void(item),
            listener=plan.listener,
            pause=plan.pause,
        )
        assembly = Assembly(
            Surroundings(
                analysis=plan.analysis,
                plans=self._tasks,
                snapshots=recovery.snapshots,
                edge=edge,
                filesystem=plan.filesystem,
                job=plan.name,
                log_id=owned.log_id,
                generation=owned.generation,
                settings=plan.settings,
                cores=cores,
                until=plan.until,
                initial=recovery.initial,
                clock=plan.clock,
                listener=plan.listener,
                supervisor=self.supervisor,
            )
        )
        assembly.build()
        failpoint("recovery.restored")
        plan.listener(
            JobStartedFact(
                job=plan.name,
                generation=owned.generation,
                restored=recovery.restored,
                published=len(recovery.commit),
                attempt=self._number,
            )
        )
        wiring = Wiring(
            coordinator=Coordinator(_coordinator_settings(plan.settings)),
            started=lambda at: self._started(at, recovery, assembly, steps),
            tasks=assembly.tasks,
            threads=assembly.threads,
            workers=Workers(self.supervisor.broke),
            journal=Journal(
                owned,
                plan.filesystem,
                retained=plan.settings.retained,
                leftovers=lambda: self._leftovers(owned.log_id),
            ),
            publish=lambda item: self._committer(item).commit(item),
            explain=explain,
            cancel=edge.cancel,
            background=edge.background("clean-up"),
            answered=plan.answered,
        )
        running()
        return self.supervisor.run(wiring)

    def _committer(self, item: Committable) -> Committer:
        return committer(item.kind, self._plan.filesystem, failpoint)

    def _leftovers(self, log_id: str) -> Iterator[str]:
        """Everything that drivers wrote and that may lie about: layers, and what sinks staged."""
        for folder in ("state", "staged"):
            yield from self._plan.filesystem.list(folder)
        for task in self._tasks:
            if isinstance(task.node, Write):
                for folder in task.node.sink.stages_in(log_id, task.id):
                    yield from self._plan.filesystem.list(folder)

    def _started(
        self, at: Instant, recovery: Recovery, assembly: Assembly, steps: tuple[StepRecord, ...]
    ) -> JobStarted:
        return JobStarted(
            at=at,
            wall=self._plan.clock.wall(),
            attempts={id: AttemptId(f"{id}@{self._number}") for id in assembly.tasks},
            sources=tuple(id for id, task in assembly.tasks.items() if isinstance(task, SourceTask)),
            steps=steps,
            next_checkpoint=recovery.next_checkpoint,
            parent=recovery.restored,
            initial=recovery.initial,
            settled=bool(recovery.commit),
        )


def step_records(tasks: tuple[TaskPlan, ...]) -> tuple[StepRecord, ...]:
    """The tasks, as manifests record them."""
    records = []
    for task in tasks:
        match task.node:
            case Read(uid=uid):
                records.append(StepRecord(uid=uid, role=StepRole.SOURCE))
            case Keyed(uid=uid, spec=spec):
                records.append(StepRecord(uid=uid, role=StepRole.STEP, kind=spec.kind))
            case Write(uid=uid):
                records.append(StepRecord(uid=uid, role=StepRole.SINK))
            case Union():
                records.append(StepRecord(uid=task.id, role=StepRole.STEP))
    return tuple(records)


def _coordinator_settings(settings: Settings) -> CoordinatorSettings:
    return CoordinatorSettings(
        interval=settings.checkpoint_every,
        timeout=settings.checkpoint_timeout,
        min_pause=settings.min_pause,
        tolerable_failures=settings.tolerated_failures,
    )
