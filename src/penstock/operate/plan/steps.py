"""What a start does with each step's state: every verdict, where a start would stop at the first refusal. Pure.

Nothing is decided here: :func:`~penstock.checkpoint.recovery.decide_recovery` is asked one step at a time, so that the
two cannot say different things.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from penstock.checkpoint.entries import Manifest, StepRecord, StepRole
from penstock.checkpoint.history import History
from penstock.checkpoint.importing import Import
from penstock.checkpoint.matching import Judge
from penstock.checkpoint.names import near
from penstock.checkpoint.recovery import Recovery, decide_recovery
from penstock.checkpoint.renaming import renamed
from penstock.errors import GraphError, StateIncompatible, UnknownName
from penstock.handles import Act, Position, TaskSnapshot
from penstock.ids import CheckpointId, WallTime

_NO_TIME = WallTime(0)
"""A plan writes no entry, so what would be written into one does not matter."""


class Verdict(str, Enum):
    """What becomes of a step's state."""

    NEW = "new"
    MIGRATED = "migrated"
    DROPPED = "dropped"
    KEPT = "kept"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class FromExport:
    """An exported checkpoint to begin with.

    Attributes:
        folder: the absolute path of its folder.
        claim: the folder's files become the job's.
        sha256: of its ``export.json`` when it was looked at.
    """

    folder: str
    claim: bool
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """How a start is to begin, if not with what the log says.

    Attributes:
        fresh: empty.
        checkpoint: at this one.
        export: with this one, from outside of the log.
        discard_unpublished: with one of the first two: what is open above is voided, not published.
        allow_non_restored_state: leave state unused whose step the pipeline no longer has.
        rename: by old uid, the one under which its state is restored.
    """

    fresh: bool = False
    checkpoint: CheckpointId | None = None
    export: FromExport | None = None
    discard_unpublished: bool = False
    allow_non_restored_state: bool = False
    rename: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_rewind(self) -> bool:
        """Whether it goes back, which alone goes past what cannot be read."""
        return self.fresh or self.checkpoint is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What becomes of one step.

    Attributes:
        uid: of the step.
        role: ``source``, ``step`` or ``sink``.
        kind: of its state's format, where it has one.
        verdict: what becomes of its state.
        reason: why, in words.
        rows: that its layers hold; ``None`` where it keeps none.
        bytes: of its layers.
    """

    uid: str
    role: str
    kind: str
    verdict: Verdict
    reason: str
    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """A start as far as it is the same for all steps: :meth:`decide` asks about some of them.

    ``judge`` says what becomes of a step's columns; unless it is given, they are not looked at. ``bring`` is the
    import that an exported checkpoint comes to.
    """

    history: History
    beginning: Beginning = field(default_factory=Beginning)
    bring: Import | None = None
    judge: Judge = field(default=lambda _declared, _snapshot: ())

    def decide(self, steps: Sequence[StepRecord], *, allow: bool | None = None) -> Recovery:
        """What a start of these steps does, with the renames that are to one of them.

        Raises:
            StateIncompatible: it is refused.
            UnknownName: a rename names a step that is not there.
            GraphError: there is no going to that checkpoint, or to that discard.
        """
        begin, uids = self.beginning, {step.uid for step in steps}
        return decide_recovery(
            self.history,
            steps,
            at=_NO_TIME,
            fresh=begin.fresh,
            rewind_to=begin.checkpoint,
            discard_unpublished=begin.discard_unpublished,
            bring=self.bring,
            allow_non_restored_state=begin.allow_non_restored_state if allow is None else allow,
            rename={old: new for old, new in begin.rename.items() if new in uids},
            judge=self.judge,
        )

    def whole(self, steps: Sequence[StepRecord]) -> Recovery:
        """What a start of the whole pipeline does; a rename to no step of it is none.

        Raises:
            StateIncompatible: it is refused.
            UnknownName: a rename names a step that is not there.
            GraphError: there is no going to that checkpoint, or to that discard.
        """
        strange = [new for new in self.beginning.rename.values() if new not in {step.uid for step in steps}]
        if strange:
            there = [step.uid for step in steps]
            msg = f"the pipeline has no step {strange[0]!r} to rename to{near(strange[0], there)}"
            raise UnknownName(msg)
        return self.decide(steps)

    def target(self) -> tuple[Recovery, Manifest | None]:
        """What it does whatever the steps are, and the checkpoint that is restored.

        Raises:
            GraphError: there is no going there.
        """
        bare = self.decide((), allow=True)
        if self.bring is not None:
            return bare, self.bring.manifest
        return bare, None if bare.restored is None else self.history.manifests[bare.restored][1]

    def name_of(self, target: Manifest) -> str:
        """What is restored, in words: an export by the number that it had in its own log."""
        if self.bring is None or self.bring.is_brought:
            return f"checkpoint {target.checkpoint}"
        return f"exported checkpoint {self.bring.export.checkpoint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a start goes, before any source is asked: what it does whatever the steps are, and what it restores."""

    deciding: Deciding
    bare: Recovery | None
    target: Manifest | None
    steps: tuple[StepPlan, ...]
    refused: tuple[str, ...]

    def positions(self) -> dict[str, Position | None]:
        """By uid, where the sources of the pipeline go on; those whose state is refused go nowhere."""
        held = {uid: snapshot.position for uid, snapshot in _found(self.deciding, self.target).items()}
        sources = [step for step in self.steps if step.role == "source"]
        return {
            step.uid: held.get(step.uid) if step.verdict in (Verdict.KEPT, Verdict.MIGRATED) else None
            for step in sources
            if step.verdict not in (Verdict.REFUSED, Verdict.DROPPED)
        }


def route(deciding: Deciding, steps: Sequence[StepRecord]) -> Route:
    """Where a start goes. A refusal is part of the answer, never raised."""
    try:
        bare, target = deciding.target()
    except (GraphError, StateIncompatible) as error:
        return Route(deciding=deciding, bare=None, target=None, steps=(), refused=(str(error),))
    found = verdicts(deciding, steps, target)
    own = [step.reason for step in found if step.verdict is Verdict.REFUSED]
    refused: tuple[str, ...] = ()
    try:  # all steps together, which may be refused where each alone is not
        if own:
            renamed(target, steps, deciding.beginning.rename)  # the first thing that a start looks at
        else:
            deciding.whole(steps)
    except (GraphError, StateIncompatible) as error:
        refused = (str(error),) if error.args[0] not in own else ()
    return Route(deciding=deciding, bare=bare, target=target, steps=found, refused=refused)


def verdicts(deciding: Deciding, steps: Sequence[StepRecord], target: Manifest | None) -> tuple[StepPlan, ...]:
    """What becomes of every step of the pipeline, in its order, and then of those that it no longer has.

    Unions are left out: they have no uid, and keep nothing but how far event time was.
    """
    found = _found(deciding, target)
    declared = [_declared(deciding, step, target, found.get(step.uid)) for step in _named(steps)]
    return (*declared, *_gone(deciding, steps, target, found))


def _named(steps: Iterable[StepRecord]) -> Iterator[StepRecord]:
    return (step for step in steps if not step.uid.startswith("union@"))


def _declared(deciding: Deciding, step: StepRecord, target: Manifest | None, snapshot: TaskSnapshot | None) -> StepPlan:
    rows, size = _held(snapshot)
    made = StepPlan(
        uid=step.uid, role=step.role.value, kind=step.kind, verdict=Verdict.KEPT, reason="", rows=rows, bytes=size
    )
    try:
        alone = deciding.decide((step,), allow=True)
    except StateIncompatible as error:
        return _with(made, Verdict.REFUSED, error.args[0])
    if target is None or step.uid in alone.fresh:
        return _with(made, Verdict.NEW, "begins empty" if step.role.value != "source" else "reads from its start on")
    moves = [str(move) for change in alone.changes for move in change.moves if move.act is not Act.KEEP]
    told = [f"goes on with what was '{old}'" for old, new in alone.renamed.items() if new == step.uid]
    if moves or told:
        return _with(made, Verdict.MIGRATED, "; ".join([*told, *moves]))
    return _with(made, Verdict.KEPT, f"goes on from {deciding.name_of(target)}")


def _gone(
    deciding: Deciding, steps: Sequence[StepRecord], target: Manifest | None, found: Mapping[str, TaskSnapshot]
) -> Iterator[StepPlan]:
    """Steps that the checkpoint has and the pipeline has not."""
    if target is None:
        return
    recorded = {step.uid: step for step in target.steps}
    held = frozenset(deciding.decide((), allow=True).dropped)
    gone = sorted(found.keys() - {step.uid for step in steps})
    for step in _named(recorded.get(uid, StepRecord(uid=uid, role=StepRole.STEP)) for uid in gone):
        rows, size = _held(found[step.uid])
        made = StepPlan(
            uid=step.uid,
            role=step.role.value,
            kind=step.kind,
            verdict=Verdict.DROPPED,
            reason="",
            rows=rows,
            bytes=size,
        )
        if step.uid not in held:
            yield _with(made, Verdict.DROPPED, "the pipeline no longer has it, and it keeps nothing")
        elif deciding.beginning.allow_non_restored_state:
            yield _with(made, Verdict.DROPPED, "the pipeline no longer has it: its state is left unused")
        else:
            yield _with(
                made,
                Verdict.REFUSED,
                f"{deciding.name_of(target)} holds its state, and the pipeline no longer has it; say which step it is "
                f"now with --rename {step.uid}=NEW, or leave the state unused with --allow-non-restored-state",
            )


def _found(deciding: Deciding, target: Manifest | None) -> dict[str, TaskSnapshot]:
    """What the checkpoint holds, by the uids that the pipeline has for it."""
    if target is None:
        return {}
    return {deciding.beginning.rename.get(snapshot.task, snapshot.task): snapshot for snapshot in target.tasks}


def _held(snapshot: TaskSnapshot | None) -> tuple[int | None, int | None]:
    """Rows and bytes of the layers of a step."""
    state = snapshot.state if snapshot is not None else None
    return (state.rows, state.bytes) if state is not None else (None, None)


def _with(plan: StepPlan, verdict: Verdict, reason: str) -> StepPlan:
    return replace(plan, verdict=verdict, reason=reason)
