"""Simulated processes: a driver, as ``job.attempt`` and ``job.job`` would run it, and the operator's tools.

Everything that decides is the product's own. What is restated here is only the order of construction in
``Attempt._run`` and the restart loop of ``Job``, which need a Spark session.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.entries import Claim
from penstock.checkpoint.journal import Journal
from penstock.checkpoint.log import Log, OwnedLog
from penstock.checkpoint.messages import AttemptId, JobStarted
from penstock.checkpoint.recovery import Recovery, decide_recovery
from penstock.errors import GenerationFenced, InternalError, PenstockError
from penstock.graph.nodes import Write
from penstock.ids import Instant
from penstock.job.explain import explain
from penstock.job.recover import carry_out
from penstock.job.wiring import Assembly, Surroundings
from penstock.runtime.lifecycle import JobState, Lifecycle
from penstock.runtime.restart import FixedDelay, RestartStrategy
from penstock.runtime.roles import Wiring
from penstock.runtime.supervisor import Supervisor
from penstock.settings import Settings
from penstock.sources.base import Until
from simulation.fibers import Fiber, FiberLock
from simulation.outside import committer_for
from simulation.shapes import FakeEdge
from simulation.threadless import Piece, Queues, Stepped

if TYPE_CHECKING:
    from simulation.world import World


ONE_SECOND = FixedDelay(attempts=3)


@dataclass(eq=False)
class Process:
    """Something that runs on a machine of its own and can die there."""

    world: World
    name: str
    pieces: list[Piece] = field(default_factory=list)
    is_dead: bool = False
    outcome: object = None
    frozen_until: int = 0

    def spawn(self, name: str, work: Callable[[], None], *, after: int = 0) -> None:
        self.pieces.append(Piece(name, None, work, sleeps_until=after))

    def units(self, now: int) -> list[tuple[str, Callable[[], None]]]:
        """What could go on now."""
        return [(piece.name, partial(self.go_on, piece)) for piece in self.pieces if piece.sleeps_until <= now]

    def next_time(self) -> int | None:
        """When something could go on, if nothing can now."""
        return min((piece.sleeps_until for piece in self.pieces), default=None)

    def go_on(self, piece: Piece) -> None:
        if self.world.is_plain:
            self.world.piece = piece
            self.pieces.remove(piece)
            piece.work()
            return
        if piece.fiber is None:
            piece.fiber = Fiber(piece.work)
        self.world.piece = piece
        piece.fiber.resume()
        if piece.fiber.is_over:
            if piece in self.pieces:
                self.pieces.remove(piece)
            if isinstance(piece.fiber.error, BaseException):
                raise piece.fiber.error

    def kill(self) -> None:
        self.is_dead = True
        for piece in self.pieces:
            if piece.fiber is not None and piece.fiber is not Fiber.current:
                piece.fiber.kill()
        self.pieces = [piece for piece in self.pieces if piece.fiber is Fiber.current and piece.fiber]

    def log(self) -> Log:
        return Log(self.world.disk, job="sim", new_id=self.world.new_id, pause=self.pause)

    def claim(self, *, take_over: bool = False) -> OwnedLog:
        body = Claim(host=self.name, pid=1, started=self.world.wall(), version="sim")
        owned = self.log().claim(body, take_over=take_over)
        owned._lock = FiberLock()  # type: ignore[assignment]  # a thread's lock would stop the whole simulation
        return owned

    def pause(self, seconds: float) -> None:
        self.world.sleep(self, seconds)

    def ends(self, outcome: object) -> None:
        self.outcome = outcome
        self.world.tell(f"{self.name} ends: {outcome}")
        self.world.judge(self, outcome)


class Driver(Process):
    """Runs the pipeline: attempts, each with a claim of its own, until the end or an error that ends it."""

    def __init__(
        self, world: World, name: str, *, rewind: dict[str, Any] | None = None, strategy: RestartStrategy = ONE_SECOND
    ) -> None:
        super().__init__(world, name)
        self._rewind = rewind or {}
        self._strategy = strategy
        self._life = Lifecycle()
        self._number = 0
        self.supervisor: Supervisor | None = None
        self.wiring: Wiring | None = None
        self.generation = -1
        self.spawn("attempt", self._attempt)

    def units(self, now: int) -> list[tuple[str, Callable[[], None]]]:
        found = super().units(now)
        if self.supervisor is not None and self.wiring is not None:
            at = self.supervisor.next_turn
            if at is not None and at <= now:
                found.append(("turn", self._turn))
            for id, thread in self.wiring.threads.items():
                assert isinstance(thread, Stepped)
                at = thread.next_step
                if at is not None and at <= now:
                    found.append((id, thread.step))
        return found

    def next_time(self) -> int | None:
        times = [super().next_time()]
        if self.supervisor is not None and self.wiring is not None:
            steps = [thread.next_step for thread in self.wiring.threads.values() if isinstance(thread, Stepped)]
            times += [self.supervisor.next_turn, *steps]
        return min((at for at in times if at is not None), default=None)

    def _attempt(self) -> None:
        self._number += 1
        self._life.to(JobState.RESTORING)
        supervisor = Supervisor(self.world, self.world.listen)
        try:
            wiring = self._wire(supervisor)
            self.supervisor, self.wiring = supervisor, wiring
            self._life.to(JobState.RUNNING)
            supervisor.begin(wiring)
        except Exception as error:
            self._failed(explain(error), error)

    def _turn(self) -> None:
        supervisor, wiring = self.supervisor, self.wiring
        assert supervisor is not None
        assert wiring is not None
        was_over = supervisor.ended is not None
        try:
            supervisor.turn()
        except Exception as error:
            supervisor.tear_down(wiring)
            self._failed(explain(error), error)
            return
        if supervisor.ended is not None:
            if not was_over:
                supervisor.finish()
                self._life.to(JobState.STOPPING)
            if supervisor.is_finished:
                supervisor.tear_down(wiring)
                self.supervisor = self.wiring = None
                self._life.to(JobState.STOPPED)
                self.ends(supervisor.ended)

    def _failed(self, error: PenstockError, cause: BaseException) -> None:
        self.supervisor = self.wiring = None
        if isinstance(error, InternalError):
            self.world.ledger.violated("internal", f"{error} ({cause!r})")
        chance = self.world.chance.random()
        self._strategy, delay = self._strategy.after_failure(self.world.now(), chance=chance)
        if not error.retry or delay is None:
            self._life.to(JobState.FENCED if isinstance(error, GenerationFenced) else JobState.FAILED)
            self.ends(error)
            return
        self._life.to(JobState.RESTARTING)
        self.world.tell(f"{self.name} restarts after: {error}")
        self.spawn("attempt", self._attempt, after=self.world.now() + delay)

    # ---------------------------------------------------------------------------- as in job.attempt, in its order

    def _wire(self, supervisor: Supervisor) -> Wiring:
        world = self.world
        owned = self.claim()
        self.generation = owned.generation
        rewind = {**self._rewind, "allow_non_restored_state": False} if self._number == 1 else {}
        recovery = decide_recovery(owned.history, world.pipeline.steps, at=world.wall(), **rewind)
        edge: Any = FakeEdge()
        carry_out(
            recovery,
            log=owned,
            filesystem=world.disk,
            commit=lambda item: committer_for(world, item.kind).commit(item),
            void=lambda item: committer_for(world, item.kind).void(item),
            listener=world.listen,
            pause=self.pause,
        )
        assembly = self._assembly(owned, recovery, edge, supervisor)
        assembly.build()
        world.tell(f"{self.name} runs as generation {owned.generation} from {recovery.restored}")
        return Wiring(
            coordinator=Coordinator(world.coordinator),
            started=lambda at: self._started(at, recovery, assembly),
            tasks=assembly.tasks,
            threads=assembly.threads,
            workers=Queues(self, supervisor.broke),
            journal=Journal(
                owned, world.disk, retained=world.retained, leftovers=lambda: self._leftovers(owned.log_id)
            ),
            publish=lambda item: committer_for(world, item.kind).commit(item),
            explain=explain,
            cancel=edge.cancel,
            background=nullcontext,
            answered=lambda answer: world.tell(f"answer {answer.request}: {answer.answer.value}"),
        )

    def _assembly(self, owned: OwnedLog, recovery: Recovery, edge: Any, supervisor: Supervisor) -> Assembly:
        world, analysis = self.world, self.world.pipeline.analysis
        return Assembly(
            Surroundings(
                analysis=analysis,  # type: ignore[arg-type]
                plans=world.pipeline.plans,
                snapshots=recovery.snapshots,
                edge=edge,
                filesystem=world.disk,
                job="sim",
                log_id=owned.log_id,
                generation=owned.generation,
                settings=Settings(channel_capacity=world.capacity),
                cores=2,
                until=Until.STOPPED,
                initial=recovery.initial,
                clock=world,
                listener=world.listen,
                supervisor=supervisor,
                thread=Stepped,
            )
        )

    def _leftovers(self, log_id: str) -> list[str]:
        found = [path for folder in ("state", "staged") for path in self.world.disk.list(folder)]
        for plan in self.world.pipeline.plans:
            if isinstance(plan.node, Write):
                for folder in plan.node.sink.stages_in(log_id, plan.id):
                    found += self.world.disk.list(folder)
        return found

    def _started(self, at: Instant, recovery: Recovery, assembly: Assembly) -> JobStarted:
        return JobStarted(
            at=at,
            wall=self.world.wall(),
            attempts={id: AttemptId(f"{id}@{self._number}") for id in assembly.tasks},
            sources=tuple(plan.id for plan in self.world.pipeline.plans if not plan.inputs),
            steps=self.world.pipeline.steps,
            next_checkpoint=recovery.next_checkpoint,
            parent=recovery.restored,
            initial=recovery.initial,
            settled=bool(recovery.commit),
        )
