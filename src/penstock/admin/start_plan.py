"""What a start would do, as one value: steps, sources, sinks, settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from penstock.errors import GraphError, PenstockError, StateIncompatible
from penstock.handles import CheckpointId, ColumnAction, Json, Position, TaskSnapshot
from penstock.interfaces.source import Backlog
from penstock.job.start import FROM_LATEST, TIMEZONE, StartOptions, timezone_of

_NO_TIME: Final = WallTime(0)
"""Time of the entries that a recovery would write. A plan writes none, so it does not matter."""
RECENT_CHECKPOINTS: Final = 10
"""Number of recent checkpoints whose longest duration is compared with the timeouts."""
BacklogOrReason: TypeAlias = "Backlog | str"
"""The backlog of a source, or the reason why it is unknown."""


# ---- verdicts on steps ---------------------------------------------------------------------------------------------
# decide_recovery is asked about one step at a time, so a plan lists every refusal where a start stops at the first.


class StepVerdict(str, Enum):
    """What becomes of a step's state."""

    NEW = "new"
    MIGRATED = "migrated"
    DROPPED = "dropped"
    KEPT = "kept"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The verdict on one step, and the size of its state.

    Attributes:
        uid: of the step.
        role: ``source``, ``step`` or ``sink``.
        kind: of its state's format; empty if the step has no state.
        verdict: what becomes of its state.
        reason: why, in words.
        rows: in its layers; ``None`` if it has none.
        bytes: of its layers; ``None`` if it has none.
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
    """The parts of a start that are the same for all steps; decides what it does with some or all of them.

    Attributes:
        history: of the job's log.
        start: how to start; ``checkpoint`` is a number here, and no longer a name.
        bring: the import, if the start begins with an exported checkpoint.
        resolver: compares restored columns with the declared ones; by default they are not compared.
    """

    history: History
    start: StartOptions = FROM_LATEST
    bring: Import | None = None
    resolver: SchemaResolver = field(default=lambda _declared, _snapshot: ())

    def decide(
        self,
        steps: Sequence[StepRecord],
        *,
        allow_non_restored_state: bool | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> Recovery:
        """What the start does with these steps alone; unless ``rename`` is given, renames to other steps are ignored.

        Raises:
            StateIncompatible: the start is refused.
            UnknownName: a rename names a step that does not exist.
            GraphError: the log cannot go to that checkpoint, or cannot discard that output.
        """
        start, uids = self.start, {step.uid for step in steps}
        return decide_recovery(
            self.history,
            steps,
            at=_NO_TIME,
            fresh=start.fresh,
            rewind_to=None if start.checkpoint is None else CheckpointId(int(start.checkpoint)),
            discard_unpublished=start.discard_unpublished,
            bring=self.bring,
            allow_non_restored_state=(
                start.allow_non_restored_state if allow_non_restored_state is None else allow_non_restored_state
            ),
            rename={old: new for old, new in start.rename.items() if new in uids} if rename is None else rename,
            resolver=self.resolver,
        )

    def decide_all(self, steps: Sequence[StepRecord]) -> Recovery:
        """What the start does with all steps of the pipeline. Every rename must be to one of them.

        Raises:
            StateIncompatible: the start is refused.
            UnknownName: a rename names a step that does not exist.
            GraphError: the log cannot go to that checkpoint, or cannot discard that output.
        """
        return self.decide(steps, rename=self.start.rename)

    def target(self) -> tuple[Recovery, Manifest | None]:
        """What the start does without any steps, and the checkpoint that it restores.

        Raises:
            GraphError: the log cannot go to that checkpoint.
        """
        bare = self.decide((), allow_non_restored_state=True)
        if self.bring is not None:
            return bare, self.bring.manifest
        return bare, None if bare.restored is None else self.history.manifests[bare.restored][1]

    def name_of(self, target: Manifest) -> str:
        """The restored checkpoint in words. One that is not imported yet has the number of the export."""
        if self.bring is None or self.bring.is_brought:
            return f"checkpoint {target.checkpoint}"
        return f"exported checkpoint {self.bring.export.checkpoint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTarget:
    """What a start restores, and the verdict on each step. Sources have not been asked for their backlogs yet.

    Attributes:
        decision: the start.
        bare: what the start does without any steps; ``None`` if that is refused.
        target: the checkpoint that it restores; ``None`` for an empty start.
        steps: the verdict on every step.
        refused: why the whole start is refused.
    """

    decision: StartDecision
    bare: Recovery | None
    target: Manifest | None
    steps: tuple[StepPlan, ...]
    refused: tuple[str, ...]

    def positions(self) -> dict[str, Position | None]:
        """Position at which each source resumes, by uid; ``None`` for a new source. Refused sources are left out."""
        positions = {uid: snapshot.position for uid, snapshot in _snapshots(self.decision, self.target).items()}
        sources = [step for step in self.steps if step.role == "source"]
        return {
            step.uid: positions.get(step.uid) if step.verdict in (StepVerdict.KEPT, StepVerdict.MIGRATED) else None
            for step in sources
            if step.verdict not in (StepVerdict.REFUSED, StepVerdict.DROPPED)
        }


def start_target(decision: StartDecision, steps: Sequence[StepRecord]) -> StartTarget:
    """What a start restores for these steps. A refusal is part of the result, not raised."""
    try:
        bare, target = decision.target()
    except (GraphError, StateIncompatible) as error:
        return StartTarget(decision=decision, bare=None, target=None, steps=(), refused=(str(error),))
    judged = verdicts(decision, steps, target)
    reasons = [step.reason for step in judged if step.verdict is StepVerdict.REFUSED]
    refused: tuple[str, ...] = ()
    try:  # all steps together may be refused where each alone is not
        if reasons:
            apply_renames(target, steps, decision.start.rename)  # what a start checks first
        else:
            decision.decide_all(steps)
    except (GraphError, StateIncompatible) as error:
        refused = (str(error),) if error.args[0] not in reasons else ()
    return StartTarget(decision=decision, bare=bare, target=target, steps=judged, refused=refused)


def verdicts(decision: StartDecision, steps: Sequence[StepRecord], target: Manifest | None) -> tuple[StepPlan, ...]:
    """The verdict on every step of the pipeline, in its order, and then on the steps that it no longer has.

    Unions are left out: they have no uid, and keep nothing but their watermarks.
    """
    snapshots = _snapshots(decision, target)
    declared = (
        _step_plan(step, snapshots.get(step.uid), *_judge_declared(decision, step, target))
        for step in _without_unions(steps)
    )
    return (*declared, *_plans_of_gone(decision, steps, target, snapshots))


def _without_unions(steps: Iterable[StepRecord]) -> Iterator[StepRecord]:
    return (step for step in steps if not step.uid.startswith("union@"))


def _judge_declared(decision: StartDecision, step: StepRecord, target: Manifest | None) -> tuple[StepVerdict, str]:
    """The verdict on a step of the pipeline, and the reason."""
    try:
        alone = decision.decide((step,), allow_non_restored_state=True)
    except StateIncompatible as error:
        return StepVerdict.REFUSED, error.args[0]
    if target is None or step.uid in alone.fresh:
        return StepVerdict.NEW, "reads from its start on" if step.role is StepRole.SOURCE else "begins empty"
    moves = [str(move) for change in alone.changes for move in change.moves if move.act is not ColumnAction.KEEP]
    renames = [f"goes on with what was '{old}'" for old, new in alone.renamed.items() if new == step.uid]
    if moves or renames:
        return StepVerdict.MIGRATED, "; ".join([*renames, *moves])
    return StepVerdict.KEPT, f"goes on from {decision.name_of(target)}"


def _plans_of_gone(
    decision: StartDecision, steps: Sequence[StepRecord], target: Manifest | None, snapshots: Mapping[str, TaskSnapshot]
) -> Iterator[StepPlan]:
    """Plans of the steps that the checkpoint has and the pipeline no longer has."""
    if target is None:
        return
    recorded = {step.uid: step for step in target.steps}
    with_state = frozenset(decision.decide((), allow_non_restored_state=True).dropped)
    gone = sorted(snapshots.keys() - {step.uid for step in steps})
    for step in _without_unions(recorded.get(uid, StepRecord(uid=uid, role=StepRole.STEP)) for uid in gone):
        if step.uid not in with_state:
            verdict, reason = StepVerdict.DROPPED, "the pipeline no longer has it, and it keeps nothing"
        elif decision.start.allow_non_restored_state:
            verdict, reason = StepVerdict.DROPPED, "the pipeline no longer has it: its state is left unused"
        else:
            verdict = StepVerdict.REFUSED
            reason = (
                f"The pipeline no longer has it, and {decision.name_of(target)} holds its state. Say which step it is "
                f"now with --rename {step.uid}=NEW, or leave the state unused with --allow-non-restored-state."
            )
        yield _step_plan(step, snapshots[step.uid], verdict, reason)


def _step_plan(step: StepRecord, snapshot: TaskSnapshot | None, verdict: StepVerdict, reason: str) -> StepPlan:
    state = None if snapshot is None else snapshot.state
    return StepPlan(
        uid=step.uid,
        role=step.role.value,
        kind=step.kind,
        verdict=verdict,
        reason=reason,
        rows=None if state is None else state.rows,
        bytes=None if state is None else state.bytes,
    )


def _snapshots(decision: StartDecision, target: Manifest | None) -> dict[str, TaskSnapshot]:
    """The snapshots of the checkpoint, by uid; a renamed step's by its new uid."""
    if target is None:
        return {}
    return {decision.start.rename.get(snapshot.task, snapshot.task): snapshot for snapshot in target.tasks}


# ---- the plan of a start -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """A sink and its end-to-end guarantee; ``because`` names the part that weakens it."""

    uid: str
    describe: str
    guarantee: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInfo:
    """What is known of a pipeline without running it.

    Attributes:
        job: its name.
        steps: as a checkpoint would record them.
        sources: descriptions in words, by uid.
        sinks: with their guarantees.
        code: a digest of each step, by name.
    """

    job: str
    steps: tuple[StepRecord, ...]
    sources: Mapping[str, str]
    sinks: tuple[SinkPlan, ...]
    code: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Where a source resumes, and its backlog.

    Attributes:
        uid: of the source.
        describe: the source, in words.
        resumes: whether it resumes at a position of the checkpoint.
        backlog: what waits; ``None`` if it is unknown.
        unknown: why it is unknown.
    """

    uid: str
    describe: str
    resumes: bool
    backlog: Backlog | None
    unknown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The checkpoint that a start restores; ``names`` are its savepoint names in the job's own log.

    An imported one has the number that it gets there, and the time at which its own job completed it.
    """

    checkpoint: CheckpointId
    kind: str
    completed: WallTime
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A setting that differs from the last run's; the start uses ``now``."""

    name: str
    before: Json
    now: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlan:
    """What a start would do, in the order in which it does it.

    Attributes:
        job: its name.
        log: the mark of its log.
        start: how to start; ``checkpoint`` is a number, and an export has its digest.
        at: when the plan was made.
        publish: open output that is published first.
        rewind: the rewind that is written then, if there is one.
        void: output that is voided then: it is never published.
        bring: the import that is done then, if the start begins with an exported checkpoint.
        restored: the checkpoint that is restored; ``None`` for an empty start.
        steps: the verdict on each step's state.
        sources: where each resumes.
        sinks: with their guarantees.
        settings: of the start.
        changed: settings that differ from the last run's; ``None`` if those are unknown.
        refused: why the whole start is refused, apart from single steps.
        refusal: the error that the start would end with.
        warnings: what may go wrong.
        code: a digest of each step.
    """

    job: str
    log: LogMark
    start: StartOptions
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
    refusal: PenstockError | None = None
    warnings: tuple[str, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """Number of steps with each verdict, by its name."""
        return {verdict.value: sum(step.verdict is verdict for step in self.steps) for verdict in StepVerdict}

    @property
    def is_refused(self) -> bool:
        """Whether a start would fail before it reads."""
        return (
            self.refusal is not None
            or bool(self.refused)
            or any(step.verdict is StepVerdict.REFUSED for step in self.steps)
        )

    @property
    def is_change(self) -> bool:
        """Whether a start would do anything but continue with all steps and settings as they were."""
        keeps_all = all(step.verdict is StepVerdict.KEPT for step in self.steps)
        imports = self.bring is not None and self.bring.is_change
        return not keeps_all or self.rewind is not None or imports or bool(self.void) or bool(self.changed)


def plan_start(
    pipeline: PipelineInfo,
    target: StartTarget,
    *,
    backlogs: Mapping[str, BacklogOrReason],
    settings: Mapping[str, Json],
    at: WallTime,
    warnings: Sequence[str] = (),
    refusal: PenstockError | None = None,
) -> StartPlan:
    """Put the plan of a start together.

    Args:
        pipeline: the pipeline as it is now.
        target: what the start restores.
        backlogs: of the sources, by uid.
        settings: of the start.
        at: the present time.
        warnings: found by the caller.
        refusal: the error that the start would end with, found by the caller.
    """
    history, bare, bring = target.decision.history, target.bare, target.decision.bring
    import_plan = plan_import_effects(history, bring, bare.void) if bare and bring else None
    sources = _sources(pipeline, target, backlogs)
    return StartPlan(
        job=pipeline.job,
        log=history.mark,
        start=target.decision.start,
        at=at,
        publish=outputs(bare.commit) if bare else (),
        rewind=plan_rewind_effects(history, bare.rewind, bare.void) if bare and bare.rewind else None,
        void=outputs(bare.void) if bare else (),
        bring=import_plan,
        restored=_restored(history, target.target, import_plan),
        steps=target.steps,
        sources=sources,
        sinks=pipeline.sinks,
        settings=settings,
        changed=changed_settings(_last_settings(history), settings),
        refused=_refused(target, refusal),
        refusal=refusal,
        warnings=(
            *warnings,
            *(import_plan.warnings() if import_plan else ()),
            *(f"source '{each.uid}': {text}" for each in sources if each.backlog for text in each.backlog.warnings),
            *_timeout_warnings(history, settings),
        ),
        code=pipeline.code,
    )


def _refused(target: StartTarget, refusal: PenstockError | None) -> tuple[str, ...]:
    """Why the whole start is refused; a refusal that is a step's verdict is not repeated."""
    if refusal is None or target.refused or any(step.verdict is StepVerdict.REFUSED for step in target.steps):
        return target.refused
    return (str(refusal),)


def _restored(history: History, target: Manifest | None, import_plan: ImportPlan | None) -> Restored | None:
    if target is None:
        return None
    return Restored(
        checkpoint=target.checkpoint,
        kind=target.kind.value,
        completed=target.completed if import_plan is None else import_plan.completed,
        names=tuple(sorted(pin.name for pin in history.pins.values() if pin.checkpoint == target.checkpoint)),
    )


def _sources(
    pipeline: PipelineInfo, target: StartTarget, backlogs: Mapping[str, BacklogOrReason]
) -> tuple[SourcePlan, ...]:
    plans = []
    for uid, position in target.positions().items():
        backlog = backlogs.get(uid, "it was not asked")
        plans.append(
            SourcePlan(
                uid=uid,
                describe=pipeline.sources[uid],
                resumes=position is not None,
                backlog=backlog if isinstance(backlog, Backlog) else None,
                unknown=backlog if isinstance(backlog, str) else "",
            )
        )
    return tuple(plans)


def _last_settings(history: History) -> Mapping[str, Json]:
    """Settings of the last run that completed a checkpoint, whatever is restored."""
    newest = max(history.manifests, default=None)
    settings = {} if newest is None else history.manifests[newest][1].settings
    return settings and {TIMEZONE: timezone_of(settings), **settings}


def changed_settings(before: Mapping[str, Json], now: Mapping[str, Json]) -> tuple[SettingChange, ...] | None:
    """Settings that differ; ``None`` if ``before`` is empty. Only names in both are compared."""
    if not before:
        return None
    names = sorted(before.keys() & now.keys())
    pairs = ((name, before[name], now[name]) for name in names)
    return tuple(SettingChange(name=name, before=was, now=new) for name, was, new in pairs if was != new)


def _timeout_warnings(history: History, settings: Mapping[str, Json]) -> list[str]:
    """A warning for each timeout that is shorter than a recent checkpoint took."""
    recent = [manifest for _, manifest in history.manifests.values()][-RECENT_CHECKPOINTS:]
    longest = max((manifest.completed - manifest.triggered for manifest in recent), default=0)
    warnings = []
    for name, consequence in (
        ("checkpoint_timeout", "checkpoints would be aborted"),
        ("stop_timeout", "a stop would end without its last checkpoint"),
    ):
        limit = settings.get(name)
        if isinstance(limit, int) and limit < longest:
            text = f"{name} is {format_duration(limit)}, and a recent checkpoint took {longest / 1_000_000:.2f} s"
            warnings.append(f"{text}: {consequence}")
    return warnings
