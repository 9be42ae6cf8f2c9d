"""A simulated driver, as ``job.attempt`` and ``job.runner`` run it.

Everything that decides is the product's own. What is restated here is only the order of construction in
``Attempt.open`` and the restart loop of ``JobRunner``, which need a Spark session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import AttemptId, RunStarted
from penstock.checkpoint.gc import stages_of
from penstock.checkpoint.log import ManifestWriter, OwnedLog
from penstock.checkpoint.recovery import Recovery, decide_recovery, execute_recovery
from penstock.clock import MonotonicTime
from penstock.errors import GenerationFenced, InternalError, PenstockError, StateIncompatible
from penstock.facts import CheckpointFailed, LatencyMeasured
from penstock.graph.nodes import Write
from penstock.handles import Generation
from penstock.interfaces.source import Until
from penstock.job.failures import to_penstock_error
from penstock.job.received_rows import refuse_rows_beside_import
from penstock.job.start import StartOptions
from penstock.job.wiring import AttemptBuilder, JobEnvironment
from penstock.runtime.executors import AttemptParts
from penstock.runtime.lifecycle import FixedDelay, JobState, Lifecycle, RestartStrategy
from penstock.runtime.source_task import SourceTask
from penstock.runtime.supervisor import Supervisor
from simulation.beginnings import Beginnings
from simulation.desk import Desk
from simulation.machine import Process
from simulation.outside import committer_for
from simulation.relay import Relay
from simulation.threadless import FakeEdge, Queues, Stepped
from simulation.times import Times

if TYPE_CHECKING:
    from simulation.world import World

ONE_SECOND = FixedDelay(attempts=3)


def is_after_the_end(outcome: object) -> bool:
    """Whether rows were refused because event time had come to its end: only an operator gets past that."""
    is_told = any(words in str(outcome) for words in ("came to its end", "or was drained"))
    return isinstance(outcome, StateIncompatible) and is_told


class Driver(Process):
    """Runs the pipeline: attempts, each with a claim of its own, until the end or an error that ends it.

    ``may_refuse``: it may find that it cannot run this pipeline from what the log says, and say so.
    """

    may_refuse = False

    def __init__(
        self,
        world: World,
        name: str,
        *,
        rewind: dict[str, Any] | None = None,
        strategy: RestartStrategy = ONE_SECOND,
        until: Until = Until.STOPPED,
        take_over: bool = False,
        drops_state: bool = False,
        is_polite: bool = False,
        brings: StartOptions | None = None,
    ) -> None:
        super().__init__(world, name)
        self.pipeline = world.pipeline
        self.times = Times(world, self.pipeline.shape)
        self.desk = Desk(self, self.name)
        self.generation = Generation(-1)
        self.supervisor: Supervisor | None = None
        self.wiring: AttemptParts | None = None
        self._beginnings = Beginnings(world, self.pipeline.steps, rewind or {}, brings)
        self._strategy = strategy
        self._take_over = take_over
        self._drops_state = drops_state
        self._is_polite = is_polite
        self._life = Lifecycle()
        self._number = 0
        self._edge = FakeEdge(self)
        self._measured: Counter[tuple[str, str]] = Counter()
        self._env = JobEnvironment(
            name="sim",
            analysis=self.pipeline.analysis,  # type: ignore[arg-type]
            spark=self._edge.spark,
            filesystem=world.disk,
            log=self.log(),
            settings=world.terms.settings,
            until=until,
            clock=world,
            listener=self.heard,
            requests=self.desk.requests,
            pause=self.pause,
            thread=partial(Stepped, process=self),
        )
        self.spawn("attempt", self._attempt)

    def units(self, now: int) -> Iterator[tuple[str, Callable[[], None]]]:
        yield from super().units(now)
        if self.supervisor is not None and self.wiring is not None:
            threads: Any = self.wiring.threads
            at = self.supervisor.next_turn
            if at is not None and at <= now:
                yield "turn", self._turn
            for id, thread in threads.items():
                if thread.is_due(now):
                    yield id, thread.step

    def next_time(self) -> int | None:
        times = [super().next_time()]
        if self.supervisor is not None and self.wiring is not None:
            steps = [thread.next_step for thread in self.wiring.threads.values() if isinstance(thread, Stepped)]
            times += [self.supervisor.next_turn, *steps]
        return min((at for at in times if at is not None), default=None)

    def _attempt(self) -> None:
        self._number += 1
        self._life.to(JobState.RESTORING)
        supervisor = Supervisor(self.world, self.heard)
        try:
            wiring = self._wire(supervisor)
            self.supervisor, self.wiring = supervisor, wiring
            self._life.to(JobState.RUNNING)
            supervisor.begin(wiring)
            self.desk.running(supervisor, wiring)
        except Exception as error:
            self._failed(to_penstock_error(error), error)

    def _turn(self) -> None:
        supervisor, wiring = self.supervisor, self.wiring
        assert supervisor is not None
        assert wiring is not None
        was_over = supervisor.ended is not None
        try:
            supervisor.turn()
        except Exception as error:
            supervisor.tear_down(wiring)
            self._failed(to_penstock_error(error), error)
            return
        if supervisor.ended is not None:
            if not was_over:
                supervisor.finish()
                self._life.to(JobState.STOPPING)
            if supervisor.is_finished:
                supervisor.tear_down(wiring)
                self.supervisor = self.wiring = None
                self._life.to(JobState.STOPPED)
                self.desk.close(None)
                self._judge_end(wiring)
                self.ends(supervisor.ended)

    def _failed(self, error: PenstockError, cause: BaseException) -> None:
        self.supervisor = self.wiring = None
        self.desk.requests.attempt_ended(error)
        if isinstance(error, InternalError):
            self.world.ledger.violated("internal", f"{error} ({cause!r})")
        chance = self.world.chance.random()
        delay = self._strategy.uncounted_delay
        if error.is_counted:
            self._strategy, delay = self._strategy.after_failure(self.world.now(), chance=chance)
        is_cut = isinstance(error, StateIncompatible) and self.pipeline.shape.without != frozenset()
        # A driver of before a source was taken out adds it again, beside one that may have come to the end without it.
        adds = self.world.is_grown or bool({*self.pipeline.shape.sources} - {*self.world.pipeline.shape.sources})
        is_over = adds or self.world.ledger.facts.is_drained
        self.may_refuse = is_cut or (is_over and is_after_the_end(error)) or self._beginnings.is_too_late(error)
        if not error.retry or delay is None:
            self._life.to(JobState.FENCED if isinstance(error, GenerationFenced) else JobState.FAILED)
            self.desk.close(error)
            self.ends(error)
            return
        self._life.to(JobState.RESTARTING)
        self.world.tell(f"{self.name} restarts after: {error}")
        self.spawn("attempt", self._attempt, after=self.world.now() + delay)

    # ------------------------------------------------------------------------------------------- what it is told

    def heard(self, fact: object) -> None:
        """A fact for observers."""
        self.world.count(type(fact).__name__)
        if isinstance(fact, CheckpointFailed):
            self.world.tell(f"checkpoint {fact.checkpoint} aborted: {fact.reason}")
        if isinstance(fact, LatencyMeasured):
            self._measured[fact.source, fact.task] += 1
            if fact.micros < 0:
                self.world.ledger.violated("latency", f"a marker of {fact.source} arrives before it was sent")

    def _judge_end(self, wiring: AttemptParts) -> None:
        """In an orderly end nothing is left: every marker has arrived everywhere, no batch is kept, all is answered."""
        ledger = self.world.ledger
        if self._edge.kept:
            ledger.violated("leases", f"{self._edge.kept} batches are persisted after the end")
        for (source, task), arrived in self._measured.items():
            others = {sink: count for (of, sink), count in self._measured.items() if of == source}
            if set(others.values()) != {arrived}:
                ledger.violated("latency", f"markers of {source} arrive {others}, at {task} {arrived} times")
        for id, task in wiring.tasks.items():
            is_marked = isinstance(task, SourceTask) and task._markers is not None
            if is_marked and task._markers.next_at is not None and not any(of == id for of, _ in self._measured):
                ledger.violated("latency", f"no marker of {id} has arrived anywhere")

    # ---------------------------------------------------------------------------- as in job.attempt, in its order

    def _wire(self, supervisor: Supervisor) -> AttemptParts:
        world = self.world
        after = self.generation if self.generation >= 0 else None
        if after is None and self._is_polite:
            self.desk.check_owner()
        owned = self.claim(take_over=self._take_over, after=after)
        self.generation = owned.generation
        self.desk.requests.claimed(owned)
        recovery = self._recover(owned)
        builder = self._build(owned, recovery, supervisor)
        world.tell(f"{self.name} runs as generation {owned.generation} from {recovery.restored}")
        relay: Any = Relay(Coordinator(world.coordinator), world)
        return AttemptParts(
            coordinator=relay,
            started=lambda at: self._started(at, recovery, builder),
            tasks=builder.tasks,
            threads=builder.threads,
            workers=Queues(self, supervisor.failed),
            manifest_writer=ManifestWriter(
                owned, world.disk, retained=world.terms.settings.retained, leftovers=lambda: self._leftovers(owned)
            ),
            publish=lambda item: committer_for(self, item.kind).commit(item),
            explain=to_penstock_error,
            cancel=self._edge.cancel,
            background=nullcontext,
            snapshot=nullcontext,
            answered=self.desk.requests.answered,
        )

    def _recover(self, owned: OwnedLog) -> Recovery:
        world = self.world
        wanted = self._beginnings.resolved(owned, self._number, drops_state=self._drops_state)
        recovery = decide_recovery(owned.history, self.pipeline.steps, at=world.wall(), **wanted)
        refuse_rows_beside_import(world.disk, owned.history, wanted["bring"], wanted["rename"])
        self._edge, self._measured = FakeEdge(self), Counter()
        execute_recovery(
            recovery,
            log=owned,
            filesystem=world.disk,
            commit=lambda item: committer_for(self, item.kind).commit(item),
            void=lambda item: committer_for(self, item.kind).void(item),
            listener=self.heard,
            pause=self.pause,
            folders=world.folder,
        )
        self._beginnings.begun()
        return recovery

    def _build(self, owned: OwnedLog, recovery: Recovery, supervisor: Supervisor) -> AttemptBuilder:
        self.times = Times(self.world, self.pipeline.shape, recovery.restored)
        builder = AttemptBuilder(
            self._env,
            specs=self.pipeline.plans,
            owned=owned,
            recovery=recovery,
            pools=self._edge,  # type: ignore[arg-type]
            supervisor=supervisor,
            letters=self._edge.letters,
            cores=2,
        )
        try:
            builder.build()
        except BaseException:
            builder.close()
            raise
        return builder

    def _leftovers(self, owned: OwnedLog) -> list[str]:
        folders = {"state", "staged", *stages_of(owned.history)}
        for plan in self.pipeline.plans:
            if isinstance(plan.node, Write):
                folders.update(plan.node.sink.stages_in(owned.log_id, plan.id))
        return sorted({path for folder in sorted(folders) for path in self.world.disk.list(folder)})

    def _started(self, at: MonotonicTime, recovery: Recovery, builder: AttemptBuilder) -> RunStarted:
        return RunStarted(
            at=at,
            wall=self.world.wall(),
            attempts={id: AttemptId(f"{id}@{self._number}") for id in builder.tasks},
            sources=tuple(plan.id for plan in self.pipeline.plans if not plan.inputs),
            steps=self.pipeline.steps,
            next_checkpoint=recovery.next_checkpoint,
            parent=recovery.restored,
            initial=recovery.initial,
            settled=bool(recovery.commit),
        )
