"""What operators get wrong: names, renames, steps of another kind, state that would be left over.

A refused start changes nothing: it reads the log before it claims it, as ``job.attempt`` does. So the story goes on as
nobody had asked, and mistakes draw from a chance of their own. What must be refused follows from what the judge knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.entries import Manifest, StepRecord
from penstock.checkpoint.history import History, name_conflict
from penstock.checkpoint.log import Log
from penstock.checkpoint.recovery import Recovery
from penstock.errors import GraphError, PenstockError, SettingsError, StateIncompatible, UnknownName
from penstock.handles import CheckpointId, TaskSnapshot
from penstock.job.start import DeclaredSteps, StartOptions, parse_start_options, resolve_start
from simulation import process
from simulation.harm import Harm

if TYPE_CHECKING:
    from simulation.world import World

RATE = 0.04
MOST = 8
"""Mistakes in one story."""


class Mistakes:
    """Made by chance, between two steps of a story."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._chance = Random(f"mistakes of {seed}")
        self._left = MOST
        self._desk = Desk(world, self._chance)

    def look(self) -> None:
        """One mistake now and then. Raises the violation if it is not refused, or if anything has changed."""
        if not self._left or self._chance.random() >= RATE:
            return
        world = self._world
        if world.is_strange or world.disk.rotten:
            return
        self._left -= 1
        before = (world.disk.files, world.outside.copy())
        self._desk.ask()
        if (world.disk.files, world.outside) != before:
            world.ledger.violated("refusal", "a start that was refused has changed something")
        if world.ledger.violation is not None:
            raise world.ledger.violation


class Desk:
    """Asks for what cannot be, and sometimes for what can; compares the answer with what the judge knows."""

    def __init__(self, world: World, chance: Random) -> None:
        self._world = world
        self._chance = chance
        self._harm = Harm(world, chance)

    def ask(self) -> None:
        """One of all mistakes."""
        history = Log(self._world.disk, job="sim", new_id=str, pause=lambda _: None).read()
        acts: tuple[Callable[[History], None], ...] = (
            self._misname,
            self._misname,
            self._rename,
            self._rename,
            self._swap_kind,
            self._leave_over,
            self._go_nowhere,
            self._harm.log,
            self._harm.lost_log,
            self._harm.outdated,
            self._harm.folder,
            self._harm.folder,
        )
        self._chance.choice(acts)(history)

    # ---- names and numbers of checkpoints -------------------------------------------------------------------------

    def _misname(self, history: History) -> None:
        """A start from a savepoint or a number: refused unless the judge knows it, and as what the judge knows it."""
        facts, chance = self._world.ledger.facts, self._chance
        names, numbers = sorted(facts.pins), [str(id) for id in sorted(facts.manifests)]
        text = chance.choice([*names, *names, *numbers, "before-v2", *(f"{name}x" for name in names), "7000000"])
        known = facts.pins.get(text)
        if text.isdecimal():
            known = int(text) if int(text) in facts.known() else None
        found = self._answer(
            f"start from {text!r}",
            lambda: resolve_start(StartOptions(checkpoint=text), history, job="sim", at=self._world.wall()),
            must_be=None if known is not None else (UnknownName,),
        )
        if found is not None and found["rewind_to"] != known:
            self._violated(f"{text!r} is taken for checkpoint {found['rewind_to']}, it is {known}")
        if (name_conflict(history, text) is not None) != (text in facts.pins):
            self._violated(f"whether the name {text!r} is free: {name_conflict(history, text)}")

    def _go_nowhere(self, history: History) -> None:
        """A rewind to any number: refused unless that can be restored, or if it discards what somebody has named."""
        facts, chance = self._world.ledger.facts, self._chance
        to = CheckpointId(chance.choice([*facts.manifests, max(facts.manifests, default=0) + 1]))
        discard = chance.random() < 0.5
        found = self._answer(
            f"rewind to {to}",
            lambda: self._decide(history, rewind_to=to, discard_unpublished=discard, allow_non_restored_state=True),
            must_be=(GraphError,) if to not in facts.known() else None,
            may_be=(GraphError,) if discard and facts.pins else (),
        )
        if found is not None and found.restored != to:
            self._violated(f"a rewind to {to} restores {found.restored}")

    # ---- renames ---------------------------------------------------------------------------------------------------

    def _rename(self, history: History) -> None:
        """A start with renames by chance: done only where one step has become another of the same kind."""
        chance, target = self._chance, history.restore_point
        steps = list(self._world.pipeline.steps)
        if chance.random() < 0.8:  # a new version of the pipeline, in which some step has another uid
            at = chance.randrange(len(steps))
            steps[at] = replace(steps[at], uid="another")
        declared = [step.uid for step in steps]
        recorded = [step.uid for step in target.steps] if target is not None else []
        gone = [uid for uid in recorded if uid not in declared] or recorded
        olds = [*gone * 4, *recorded, *declared, "nobody"]
        news = [*declared, *[uid for uid in declared if uid not in recorded] * 4, "nobody", "no uid!"]
        words = {chance.choice(olds): chance.choice(news) for _ in range(chance.choice((1, 1, 1, 2)))}
        fresh = chance.random() < 0.1
        must_be = self._why_not(words, target, steps, fresh=fresh)
        found = self._answer(
            f"rename {words}",
            lambda: self._renamed(history, steps, words, fresh=fresh),
            must_be=(GraphError, SettingsError, UnknownName, StateIncompatible) if must_be else None,
        )
        if found is None or target is None:
            return
        known = {task.task: task for task in target.tasks}
        for old, new in words.items():
            if old in known and found.snapshots.get(new) != replace(known[old], task=new):
                self._violated(f"'{old}' is now '{new}', which restores {found.snapshots.get(new)}, not {known[old]}")

    def _renamed(
        self, history: History, steps: Sequence[StepRecord], words: Mapping[str, str], *, fresh: bool
    ) -> Recovery:
        start = parse_start_options(
            fresh=fresh, restore_from=None, claim=False, discard_unpublished=False, rename=words
        )
        return self._decide(history, steps=steps, rename=start.rename, allow_non_restored_state=True)

    def _why_not(
        self, words: Mapping[str, str], target: Manifest | None, steps: Sequence[StepRecord], *, fresh: bool
    ) -> str:
        """Why these renames cannot be, as the judge sees it; empty if they can."""
        declared = {step.uid: step for step in steps}
        recorded = {step.uid: step for step in target.steps} if target is not None else {}
        if fresh or len(set(words.values())) < len(words):
            return "contradiction"
        for old, new in words.items():
            if old == new or new not in declared or old in declared or target is None or "@" in old + new:
                return "not a rename"
            if old not in recorded and new not in recorded:
                return "nobody knows it"
            if old in recorded and new in recorded:
                return "two steps become one"
            if old in recorded and _likeness(recorded[old]) != _likeness(declared[new]):
                return "of another kind"
        return ""

    # ---- other steps -----------------------------------------------------------------------------------------------

    def _swap_kind(self, history: History) -> None:
        """A step has the uid of one of another kind: refused if there is anything that it would restore."""
        target, steps = history.restore_point, self._world.pipeline.steps
        step = self._chance.choice(steps)
        other = replace(step, kind="another/1")
        declared = tuple(other if each is step else each for each in steps)
        held = _held(target).get(step.uid)
        resolver = DeclaredSteps(steps=declared, positions={step.uid: "another/1"}).resolver
        is_position = held is not None and held.position is not None
        options: dict[str, Any] = {"steps": declared}
        if is_position and self._chance.random() < 0.5:  # its positions are of another kind, which only it can say
            options = {"resolver": resolver}
        self._answer(
            f"'{step.uid}' of another kind",
            lambda: self._decide(history, allow_non_restored_state=True, **options),
            must_be=(StateIncompatible,) if held is not None else None,
        )

    def _leave_over(self, history: History) -> None:
        """A pipeline without one of its steps: refused if that leaves anything unused, unless somebody allows it."""
        target, steps = history.restore_point, self._world.pipeline.steps
        gone = self._chance.choice(steps)
        left = tuple(step for step in steps if step is not gone)
        unused = _held(target).keys() - {step.uid for step in left}
        is_allowed = self._chance.random() < 0.5
        found = self._answer(
            f"a pipeline without '{gone.uid}'",
            lambda: self._decide(history, steps=left, allow_non_restored_state=is_allowed),
            must_be=(StateIncompatible,) if unused and not is_allowed else None,
        )
        if found is not None and set(found.dropped) != unused:
            self._violated(f"a start without '{gone.uid}' says that it leaves {found.dropped} unused, not {unused}")

    # ---- answers ---------------------------------------------------------------------------------------------------

    def _decide(self, history: History, *, steps: Sequence[StepRecord] | None = None, **options: Any) -> Recovery:
        steps = self._world.pipeline.steps if steps is None else steps
        return process.decide_recovery(history, steps, at=self._world.wall(), **options)

    def _answer(
        self,
        what: str,
        ask: Callable[[], Any],
        *,
        must_be: tuple[type[PenstockError], ...] | None,
        may_be: tuple[type[PenstockError], ...] = (),
    ) -> Any:
        """What the product answers; ``None`` if it refuses. ``must_be``: with one of these errors, or not at all."""
        try:
            found = ask()
        except PenstockError as error:
            if not isinstance(error, must_be or may_be):
                self._violated(f"{what} is refused: {type(error).__name__}: {error}")
            self._world.count(f"mistake {type(error).__name__}")
            return None
        if must_be is not None:
            self._violated(f"{what} is not refused")
        self._world.count("no mistake")
        return found

    def _violated(self, what: str) -> None:
        self._world.ledger.violated("refusal", what)


def _likeness(step: StepRecord) -> tuple[object, str]:
    return step.role, step.kind


def _held(target: Manifest | None) -> dict[str, TaskSnapshot]:
    """The tasks of a checkpoint that have anything to restore, apart from watermarks."""
    tasks = target.tasks if target is not None else ()
    return {task.task: task for task in tasks if task.position is not None or _holds_state(task)}


def _holds_state(task: TaskSnapshot) -> bool:
    return task.state is not None and (bool(task.state.layers) or task.state.detail is not None)
