"""What a start would do, as one value: steps, sources, sinks, settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, TypeAlias

from penstock.admin.reprocessing import (
    ImportPlan,
    OutputPlan,
    RewindPlan,
    outputs,
    plan_import_effects,
    plan_rewind_effects,
)
from penstock.checkpoint.entries import Manifest, StepRecord, StepRole
from penstock.checkpoint.export import Import
from penstock.checkpoint.history import History, LogMark
from penstock.checkpoint.recovery import Recovery, SchemaResolver, apply_renames, decide_recovery
from penstock.clock import WallTime, format_duration
from penstock.errors import GraphError, StateIncompatible, UnknownName, did_you_mean
from penstock.handles import CheckpointId, ColumnAction, Json, Position, TaskSnapshot
from penstock.interfaces.source import Backlog

# ----------------------------------------------------------------------------------------------------
# What a start does with each step's state: every verdict, where a start would stop at the first refusal. Pure.
#
# Nothing is decided here: :func:`~penstock.checkpoint.recovery.decide_recovery` is asked one step at a time, so that
# the two cannot say different things.

_NO_TIME = WallTime(0)
"""A plan writes no entry, so what would be written into one does not matter."""


class StepVerdict(str, Enum):
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
    verdict: StepVerdict
    reason: str
    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDecision:
    """A start as far as it is the same for all steps: :meth:`decide` asks about some of them.

    ``judge`` says what becomes of a step's columns; unless it is given, they are not looked at. ``bring`` is the
    import that an exported checkpoint comes to.
    """

    history: History
    beginning: Beginning = field(default_factory=Beginning)
    bring: Import | None = None
    judge: SchemaResolver = field(default=lambda _declared, _snapshot: ())

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
            resolver=self.judge,
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
            msg = f"the pipeline has no step {strange[0]!r} to rename to{did_you_mean(strange[0], there)}"
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
class StartTarget:
    """Where a start goes, before any source is asked: what it does whatever the steps are, and what it restores."""

    deciding: StartDecision
    bare: Recovery | None
    target: Manifest | None
    steps: tuple[StepPlan, ...]
    refused: tuple[str, ...]

    def positions(self) -> dict[str, Position | None]:
        """By uid, where the sources of the pipeline go on; those whose state is refused go nowhere."""
        held = {uid: snapshot.position for uid, snapshot in _found(self.deciding, self.target).items()}
        sources = [step for step in self.steps if step.role == "source"]
        return {
            step.uid: held.get(step.uid) if step.verdict in (StepVerdict.KEPT, StepVerdict.MIGRATED) else None
            for step in sources
            if step.verdict not in (StepVerdict.REFUSED, StepVerdict.DROPPED)
        }


def start_target(deciding: StartDecision, steps: Sequence[StepRecord]) -> StartTarget:
    """Where a start goes. A refusal is part of the answer, never raised."""
    try:
        bare, target = deciding.target()
    except (GraphError, StateIncompatible) as error:
        return StartTarget(deciding=deciding, bare=None, target=None, steps=(), refused=(str(error),))
    found = verdicts(deciding, steps, target)
    own = [step.reason for step in found if step.verdict is StepVerdict.REFUSED]
    refused: tuple[str, ...] = ()
    try:  # all steps together, which may be refused where each alone is not
        if own:
            apply_renames(target, steps, deciding.beginning.rename)  # the first thing that a start looks at
        else:
            deciding.whole(steps)
    except (GraphError, StateIncompatible) as error:
        refused = (str(error),) if error.args[0] not in own else ()
    return StartTarget(deciding=deciding, bare=bare, target=target, steps=found, refused=refused)


def verdicts(deciding: StartDecision, steps: Sequence[StepRecord], target: Manifest | None) -> tuple[StepPlan, ...]:
    """What becomes of every step of the pipeline, in its order, and then of those that it no longer has.

    Unions are left out: they have no uid, and keep nothing but how far event time was.
    """
    found = _found(deciding, target)
    declared = [_declared(deciding, step, target, found.get(step.uid)) for step in _named(steps)]
    return (*declared, *_gone(deciding, steps, target, found))


def _named(steps: Iterable[StepRecord]) -> Iterator[StepRecord]:
    return (step for step in steps if not step.uid.startswith("union@"))


def _declared(
    deciding: StartDecision, step: StepRecord, target: Manifest | None, snapshot: TaskSnapshot | None
) -> StepPlan:
    rows, size = _held(snapshot)
    made = StepPlan(
        uid=step.uid, role=step.role.value, kind=step.kind, verdict=StepVerdict.KEPT, reason="", rows=rows, bytes=size
    )
    try:
        alone = deciding.decide((step,), allow=True)
    except StateIncompatible as error:
        return _with(made, StepVerdict.REFUSED, error.args[0])
    if target is None or step.uid in alone.fresh:
        return _with(
            made, StepVerdict.NEW, "begins empty" if step.role.value != "source" else "reads from its start on"
        )
    moves = [str(move) for change in alone.changes for move in change.moves if move.act is not ColumnAction.KEEP]
    told = [f"goes on with what was '{old}'" for old, new in alone.renamed.items() if new == step.uid]
    if moves or told:
        return _with(made, StepVerdict.MIGRATED, "; ".join([*told, *moves]))
    return _with(made, StepVerdict.KEPT, f"goes on from {deciding.name_of(target)}")


def _gone(
    deciding: StartDecision, steps: Sequence[StepRecord], target: Manifest | None, found: Mapping[str, TaskSnapshot]
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
            verdict=StepVerdict.DROPPED,
            reason="",
            rows=rows,
            bytes=size,
        )
        if step.uid not in held:
            yield _with(made, StepVerdict.DROPPED, "the pipeline no longer has it, and it keeps nothing")
        elif deciding.beginning.allow_non_restored_state:
            yield _with(made, StepVerdict.DROPPED, "the pipeline no longer has it: its state is left unused")
        else:
            yield _with(
                made,
                StepVerdict.REFUSED,
                f"{deciding.name_of(target)} holds its state, and the pipeline no longer has it; say which step it is "
                f"now with --rename {step.uid}=NEW, or leave the state unused with --allow-non-restored-state",
            )


def _found(deciding: StartDecision, target: Manifest | None) -> dict[str, TaskSnapshot]:
    """What the checkpoint holds, by the uids that the pipeline has for it."""
    if target is None:
        return {}
    return {deciding.beginning.rename.get(snapshot.task, snapshot.task): snapshot for snapshot in target.tasks}


def _held(snapshot: TaskSnapshot | None) -> tuple[int | None, int | None]:
    """Rows and bytes of the layers of a step."""
    state = snapshot.state if snapshot is not None else None
    return (state.rows, state.bytes) if state is not None else (None, None)


def _with(plan: StepPlan, verdict: StepVerdict, reason: str) -> StepPlan:
    return replace(plan, verdict=verdict, reason=reason)


# ----------------------------------------------------------------------------------------------------
# What a start would do, as one value: decided from the log, the pipeline and what its sources tell. Pure; asks nobody.
#
# :mod:`penstock.operate.plan.planning` gathers the facts, and knows where they come from.

RECENT_CHECKPOINTS: Final = 10
"""Of so many of the newest checkpoints, the longest is what a time-out is held against."""
BacklogOrReason: TypeAlias = "Backlog | str"
"""What a source says that waits for it, or why it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInfo:
    """What is known of a pipeline without running it.

    Attributes:
        job: its name.
        steps: as a checkpoint would record them.
        sources: by uid, what each is, in words.
        sinks: by uid, what each is, what its rows get in the end, and whose doing that is.
        code: a digest of each step, by name.
    """

    job: str
    steps: tuple[StepRecord, ...]
    sources: Mapping[str, str]
    sinks: tuple[SinkPlan, ...]
    code: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """What a sink's rows get, end to end: ``because`` names the weakest part."""

    uid: str
    describe: str
    guarantee: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Where a source goes on, and what waits for it.

    Attributes:
        uid: of the source.
        describe: what it is.
        resumes: whether it goes on from a position in the checkpoint.
        waiting: what waits; ``None`` if it is not known.
        unknown: why it is not known.
    """

    uid: str
    describe: str
    resumes: bool
    waiting: Backlog | None
    unknown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The checkpoint that a start restores; ``names`` are those that it has as a savepoint in the job's own log.

    One that is brought in has the number that it will have there, and is as old as where it was taken.
    """

    checkpoint: CheckpointId
    kind: str
    completed: WallTime
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A setting that the last run had otherwise; the new one holds."""

    name: str
    before: Json
    now: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlan:
    """What a start would do, in the order of its doing.

    Attributes:
        job: whose.
        log: how far its log was.
        beginning: how the start was to begin.
        at: when this was planned.
        publish: committed before anything else.
        rewind: then written, if there is one.
        void: then made sure never to be published.
        bring: then brought into the log, if it is an exported checkpoint.
        restored: what is restored; ``None`` for an empty start.
        steps: what becomes of each step's state.
        sources: where each goes on.
        sinks: what their rows get.
        settings: of the start.
        changed: settings that differ from the last run's; ``None`` if those are not known.
        refused: why the whole start is refused, apart from single steps.
        warnings: what may go wrong.
        code: a digest of each step.
    """

    job: str
    log: LogMark
    beginning: Beginning
    at: WallTime
    publish: tuple[OutputPlan, ...] = ()
    rewind: RewindPlan | None = None
    void: tuple[OutputPlan, ...] = ()
    bring: ImportPlan | None = None
    restored: Restored | None = None
    steps: tuple[StepPlan, ...] = ()
    sources: tuple[SourcePlan, ...] = ()
    sinks: tuple[SinkPlan, ...] = ()
    settings: Mapping[str, Json] = field(default_factory=dict)
    changed: tuple[SettingChange, ...] | None = None
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """How many steps have which verdict."""
        return {verdict.value: sum(step.verdict is verdict for step in self.steps) for verdict in StepVerdict}

    @property
    def is_refused(self) -> bool:
        """Whether a start would fail before it reads."""
        return bool(self.refused) or any(step.verdict is StepVerdict.REFUSED for step in self.steps)

    @property
    def is_change(self) -> bool:
        """Whether a start would do anything but go on with all steps and settings as they were."""
        goes_on = all(step.verdict is StepVerdict.KEPT for step in self.steps)
        is_brought = self.bring is not None and self.bring.is_change
        return not goes_on or self.rewind is not None or is_brought or bool(self.void) or bool(self.changed)


def plan_start(
    pipeline: PipelineInfo,
    way: StartTarget,
    *,
    told: Mapping[str, BacklogOrReason],
    settings: Mapping[str, Json],
    at: WallTime,
    warnings: Sequence[str] = (),
    refused: Sequence[str] = (),
) -> StartPlan:
    """The plan.

    Args:
        pipeline: as it is now.
        way: where the start goes.
        told: what the sources say that waits for them, by uid.
        settings: of the start.
        at: now.
        warnings: of whoever looked.
        refused: why it cannot start at all, by whoever looked.
    """
    history, bare, bring = way.deciding.history, way.bare, way.deciding.bring
    brought = plan_import_effects(history, bring, bare.void) if bare and bring else None
    sources = _sources(pipeline, way, told)
    return StartPlan(
        job=pipeline.job,
        log=history.mark,
        beginning=way.deciding.beginning,
        at=at,
        publish=outputs(bare.commit) if bare else (),
        rewind=plan_rewind_effects(history, bare.rewind, bare.void) if bare and bare.rewind else None,
        void=outputs(bare.void) if bare else (),
        bring=brought,
        restored=_restored(history, way.target, brought),
        steps=way.steps,
        sources=sources,
        sinks=pipeline.sinks,
        settings=settings,
        changed=changed_settings(_last_settings(history), settings),
        refused=(*refused, *way.refused),
        warnings=(
            *warnings,
            *(brought.warnings() if brought else ()),
            *(f"source '{each.uid}': {text}" for each in sources if each.waiting for text in each.waiting.warnings),
            *_timeouts(history, settings),
        ),
        code=pipeline.code,
    )


def _restored(history: History, target: Manifest | None, brought: ImportPlan | None) -> Restored | None:
    if target is None:
        return None
    return Restored(
        checkpoint=target.checkpoint,
        kind=target.kind.value,
        completed=target.completed if brought is None else brought.completed,
        names=tuple(sorted(pin.name for pin in history.pins.values() if pin.checkpoint == target.checkpoint)),
    )


def _sources(pipeline: PipelineInfo, way: StartTarget, told: Mapping[str, BacklogOrReason]) -> tuple[SourcePlan, ...]:
    found = []
    for uid, position in way.positions().items():
        said = told.get(uid, "it was not asked")
        found.append(
            SourcePlan(
                uid=uid,
                describe=pipeline.sources[uid],
                resumes=position is not None,
                waiting=said if isinstance(said, Backlog) else None,
                unknown=said if isinstance(said, str) else "",
            )
        )
    return tuple(found)


def _last_settings(history: History) -> Mapping[str, Json]:
    """Those of the last run that has taken a checkpoint, whatever is restored."""
    newest = max(history.manifests, default=None)
    return {} if newest is None else history.manifests[newest][1].settings


def changed_settings(before: Mapping[str, Json], now: Mapping[str, Json]) -> tuple[SettingChange, ...] | None:
    """What differs, by name; ``None`` if nothing is known of before. What only one of them knows is no difference."""
    if not before:
        return None
    names = sorted(before.keys() & now.keys())
    pairs = ((name, before[name], now[name]) for name in names)
    return tuple(SettingChange(name=name, before=was, now=new) for name, was, new in pairs if was != new)


def _timeouts(history: History, settings: Mapping[str, Json]) -> list[str]:
    """Time-outs that checkpoints of late would not have kept."""
    took = [manifest.completed - manifest.triggered for _, manifest in history.manifests.values()][-RECENT_CHECKPOINTS:]
    longest = max(took, default=0)
    found = []
    for name, then in (
        ("checkpoint_timeout", "checkpoints would be aborted"),
        ("stop_timeout", "a stop would end without its last checkpoint"),
    ):
        limit = settings.get(name)
        if isinstance(limit, int) and limit < longest:
            text = f"{name} is {format_duration(limit)}, and a checkpoint of late took {longest / 1_000_000:.2f} s"
            found.append(f"{text}: {then}")
    return found
