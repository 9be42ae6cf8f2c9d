"""One generation: claim, recover, build, run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version

from penstock.checkpoint import paths
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.entries import Claim
from penstock.checkpoint.events import AttemptId, EndJob, RunStarted
from penstock.checkpoint.gc import stages_of
from penstock.checkpoint.history import History
from penstock.checkpoint.log import ManifestWriter, OwnedLog
from penstock.checkpoint.policy import CheckpointConfig
from penstock.checkpoint.recovery import Recovery, execute_recovery
from penstock.clock import MonotonicTime, WallTime
from penstock.compiler.tasks import build_tasks
from penstock.connectors import committers
from penstock.control.client import host_identity
from penstock.control.server import RunningAttempt
from penstock.dead_letters.replay import letters_frame
from penstock.errors import GenerationFenced, PenstockError, StateDirectoryRefused, StorageFailed
from penstock.facts import JobStarted
from penstock.failpoints import failpoint
from penstock.graph.nodes import Write
from penstock.handles import CommitOutcome, Committable, Generation
from penstock.interfaces.sink import CommitContext
from penstock.job.decision import decide_start
from penstock.job.failures import to_penstock_error
from penstock.job.start import (
    FROM_LATEST,
    DeclaredSteps,
    StartOptions,
    declare_steps,
    log_schema_changes,
    recorded_settings,
    unchosen_timezone,
)
from penstock.job.wiring import AttemptBuilder, JobEnvironment
from penstock.runtime.executors import AttemptParts
from penstock.runtime.source_task import SourceTask
from penstock.runtime.supervisor import Supervisor
from penstock.settings import Settings
from penstock.spark.scheduling import SparkPools
from penstock.spark.session import default_parallelism

log = logging.getLogger("penstock")


class Attempt:
    """Builds and runs one generation. The next attempt does all of it again (rule L6).

    Args:
        env: of the job.
        number: 1, 2, … within this process.
        after: the generation of the previous attempt. A claim of another process since then is a fence (rule L9).
        start: how to start; ``is_begun`` becomes true when the log records it.
    """

    def __init__(
        self, env: JobEnvironment, *, number: int, after: Generation | None, start: StartOptions = FROM_LATEST
    ) -> None:
        self._env = env
        self._number = number
        self._start = start
        self._specs = build_tasks(env.analysis.graph)
        self._declared: DeclaredSteps | None = None
        self._pools: SparkPools | None = None
        self._owned: OwnedLog | None = None
        self.supervisor = Supervisor(env.clock, env.listener)
        self.generation = after
        self.is_begun = False

    def run(self, running: Callable[[], None]) -> EndJob:
        """Claim, recover, build, and run to the end; ``running`` is called when the sources start.

        Raises:
            PenstockError: the failure that ended the attempt.
        """
        try:
            parts = self.open(running)
            self._env.requests.attempt_started(self._running_attempt(parts))
            return self.supervisor.run(parts)
        except Exception as raised:
            error = as_fence_if_superseded(to_penstock_error(raised, self._env.analysis.graph), self._owned)
            self._env.requests.attempt_ended(error)
            if error is raised:
                raise
            raise error from raised

    def give_up(self, error: PenstockError) -> None:
        """End with this error soon, from any thread: running Spark jobs are cancelled."""
        self.supervisor.failed("stop", error)
        if self._pools is not None:
            self._pools.cancel()

    def open(self, running: Callable[[], None]) -> AttemptParts:
        """Claim, recover and build; the supervisor has yet to begin. After a failure the built tasks are closed."""
        owned = self._claim()
        recovery = self._recover(owned)
        if self._number > 1:
            self._env.analysis.read_tables_again()
        builder = self._build(owned, recovery)
        try:
            failpoint("recovery.restored")
            self._env.listener(job_started_fact(owned, recovery, attempt=self._number, wall=self._env.clock.wall()))
            running()
            return self._parts(owned, recovery, builder)
        except BaseException:
            builder.close()
            raise

    @property
    def declared(self) -> DeclaredSteps:
        """The state that the steps declare, asked once an attempt: it takes some calls to the JVM."""
        if self._declared is None:
            self._declared = declare_steps(self._specs, self._env.analysis, self._env.spark)
        return self._declared

    # ---- claim and recover -----------------------------------------------------------------------------------------

    def _claim(self) -> OwnedLog:
        env = self._env
        is_first = self.generation is None
        if is_first:
            # A refused start changes nothing.
            self._decide(env.log.read(past_unreadable=self._start.is_rewind))
            env.check_owner()  # right before the claim, since deciding takes a while
        claim = Claim(host=host_identity(), pid=os.getpid(), started=env.clock.wall(), version=version("penstock"))
        owned = env.log.claim(
            claim,
            take_over=env.take_over,
            expect=env.expect if is_first else None,
            after=self.generation,
            past_unreadable=self._start.is_rewind,
        )
        self._owned = owned
        self.generation = owned.generation
        env.requests.claimed(owned)
        self._pools = SparkPools(
            env.spark, job=env.name, generation=owned.generation, cores=default_parallelism(env.spark)
        )
        return owned

    def _decide(self, history: History, generation: Generation | None = None) -> Recovery:
        return decide_start(
            self._env.analysis.graph,
            self._start,
            history,
            declared=self.declared,
            zone=unchosen_timezone(self._env.settings, self._env.spark),
            filesystem=self._env.filesystem,
            at=self._env.clock.wall(),
            generation=generation,
        )

    def _recover(self, owned: OwnedLog) -> Recovery:
        """Publish, void and delete what the log says; the result says what to restore."""
        env, recovery = self._env, self._decide(owned.history, owned.generation)
        log_schema_changes(recovery)
        execute_recovery(
            recovery,
            log=owned,
            filesystem=env.filesystem,
            commit=self._publish,
            void=lambda item: committers.void(item, self._commit_context()),
            listener=env.listener,
            pause=env.pause,
        )
        self.is_begun = True
        return recovery

    # ---- build and run ---------------------------------------------------------------------------------------------

    def _build(self, owned: OwnedLog, recovery: Recovery) -> AttemptBuilder:
        """Every task, restored; if one cannot be, the tasks built before it are closed."""
        env, pools = self._env, self._pools
        assert pools is not None  # made by the claim
        builder = AttemptBuilder(
            env,
            specs=self._specs,
            owned=owned,
            recovery=recovery,
            pools=pools,
            supervisor=self.supervisor,
            letters=partial(letters_frame, pools.spark, env.filesystem),
            cores=default_parallelism(env.spark),
        )
        try:
            with pools.around("restore"):
                builder.build()
        except BaseException:
            builder.close()
            raise
        return builder

    def _parts(self, owned: OwnedLog, recovery: Recovery, builder: AttemptBuilder) -> AttemptParts:
        env, pools = self._env, self._pools
        assert pools is not None  # made by the claim
        return AttemptParts(
            coordinator=Coordinator(_checkpoint_config(env.settings)),
            started=lambda at: self._started(at, recovery, builder),
            tasks=builder.tasks,
            threads=builder.threads,
            workers=env.workers(self.supervisor.failed),
            manifest_writer=ManifestWriter(
                owned,
                env.filesystem,
                retained=env.settings.retained,
                leftovers=lambda: self._leftovers(owned),
            ),
            publish=self._publish,
            explain=partial(to_penstock_error, graph=env.analysis.graph),
            cancel=pools.cancel,
            background=pools.background("clean-up"),
            snapshot=pools.snapshot,
            answered=env.requests.answered,
        )

    def _running_attempt(self, parts: AttemptParts) -> RunningAttempt:
        return RunningAttempt(
            put=self.supervisor.request,
            failed=self.supervisor.failed,
            on_log=lambda work: parts.workers.submit("log", work),
            clock=self._env.clock,
        )

    def _publish(self, item: Committable) -> CommitOutcome:
        return committers.publish(item, self._commit_context())

    def _commit_context(self) -> CommitContext:
        env, pools = self._env, self._pools
        return CommitContext(
            filesystem=env.filesystem,
            failpoint=failpoint,
            job=env.name,
            spark=env.spark,
            sinks={spec.id: spec.node.sink for spec in self._specs if isinstance(spec.node, Write)},
            jobs=pools.commit if pools is not None else lambda _name: nullcontext(),
            check_owner=self._owned.require_owner if self._owned is not None else lambda: None,
        )

    def _leftovers(self, owned: OwnedLog) -> Iterator[str]:
        """Every file that drivers wrote: layers, and what sinks staged under any name they had."""
        folders = {paths.STATE, paths.STAGED}
        for spec in self._specs:
            if isinstance(spec.node, Write):
                folders.update(spec.node.sink.stages_in(owned.log_id, spec.id))
        found = {path for folder in folders for path in self._env.filesystem.list(folder)}
        for folder in {*stages_of(owned.history)} - folders:
            try:
                found.update(self._env.filesystem.list(folder))
            except (StorageFailed, StateDirectoryRefused) as error:  # no sink writes there any more
                log.warning("job %s: files that are no longer needed may stay in %s: %s", self._env.name, folder, error)
        yield from sorted(found)

    def _started(self, at: MonotonicTime, recovery: Recovery, builder: AttemptBuilder) -> RunStarted:
        return RunStarted(
            at=at,
            wall=self._env.clock.wall(),
            attempts={id: AttemptId(f"{id}@{self._number}") for id in builder.tasks},
            sources=tuple(id for id, task in builder.tasks.items() if isinstance(task, SourceTask)),
            steps=self.declared.steps,
            next_checkpoint=recovery.next_checkpoint,
            parent=recovery.restored,
            initial=recovery.initial,
            settled=bool(recovery.commit),
            settings=recorded_settings(self._env.settings, self._env.spark),
        )


def job_started_fact(owned: OwnedLog, recovery: Recovery, *, attempt: int, wall: WallTime) -> JobStarted:
    """The fact that a recovery was carried out: what it restored, and what it did before.

    Args:
        owned: the log, under the claim of this start.
        recovery: what was carried out.
        attempt: 1, 2, … within the process.
        wall: the present time.
    """
    restored = None if recovery.restored is None else owned.history.manifests.get(recovery.restored)
    return JobStarted(
        job=owned.job,
        generation=owned.generation,
        restored=recovery.restored,
        published=len(recovery.commit),
        attempt=attempt,
        age_ms=None if restored is None else max(0, wall - restored[1].completed) / 1_000,
        new=recovery.fresh,
        migrated=tuple(change.uid for change in recovery.changes),
        dropped=recovery.dropped,
        imported=recovery.bring.folder if recovery.bring is not None else None,
    )


def as_fence_if_superseded(error: PenstockError, owned: OwnedLog | None) -> PenstockError:
    """The fence instead of an error in a superseded driver: the new owner swept what is missing (rule G4)."""
    if owned is None or isinstance(error, GenerationFenced):
        return error
    return owned.superseded() or error


def _checkpoint_config(settings: Settings) -> CheckpointConfig:
    return CheckpointConfig(
        interval=settings.checkpoint_every,
        timeout=settings.checkpoint_timeout,
        min_pause=settings.min_pause,
        tolerable_failures=settings.tolerated_failures,
    )
