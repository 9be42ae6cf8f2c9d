"""What a start would do, as one value: decided from the log, the pipeline and what its sources tell. Pure; asks nobody.

:mod:`penstock.operate.plan.planning` gathers the facts, and knows where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from penstock.checkpoint.entries import Manifest, StepRecord
from penstock.checkpoint.history import History, LogMark
from penstock.durations import format_duration
from penstock.handles import Json
from penstock.ids import CheckpointId, WallTime
from penstock.operate.plan.bringing import BringPlan, bringing
from penstock.operate.plan.outputs import OutputPlan, RewindPlan, outputs, rewinding
from penstock.operate.plan.steps import Beginning, Route, StepPlan, Verdict
from penstock.sources.base import Waiting

RECENT: Final = 10
"""Of so many of the newest checkpoints, the longest is what a time-out is held against."""

Told: TypeAlias = "Waiting | str"
"""What a source says that waits for it, or why it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
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
    waiting: Waiting | None
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
    bring: BringPlan | None = None
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
        return {verdict.value: sum(step.verdict is verdict for step in self.steps) for verdict in Verdict}

    @property
    def is_refused(self) -> bool:
        """Whether a start would fail before it reads."""
        return bool(self.refused) or any(step.verdict is Verdict.REFUSED for step in self.steps)

    @property
    def is_change(self) -> bool:
        """Whether a start would do anything but go on with all steps and settings as they were."""
        goes_on = all(step.verdict is Verdict.KEPT for step in self.steps)
        is_brought = self.bring is not None and self.bring.is_change
        return not goes_on or self.rewind is not None or is_brought or bool(self.void) or bool(self.changed)


def plan_start(
    pipeline: PipelineFacts,
    way: Route,
    *,
    told: Mapping[str, Told],
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
    brought = bringing(history, bring, bare.void) if bare and bring else None
    sources = _sources(pipeline, way, told)
    return StartPlan(
        job=pipeline.job,
        log=history.mark,
        beginning=way.deciding.beginning,
        at=at,
        publish=outputs(bare.commit) if bare else (),
        rewind=rewinding(history, bare.rewind, bare.void) if bare and bare.rewind else None,
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


def _restored(history: History, target: Manifest | None, brought: BringPlan | None) -> Restored | None:
    if target is None:
        return None
    return Restored(
        checkpoint=target.checkpoint,
        kind=target.kind.value,
        completed=target.completed if brought is None else brought.completed,
        names=tuple(sorted(pin.name for pin in history.pins.values() if pin.checkpoint == target.checkpoint)),
    )


def _sources(pipeline: PipelineFacts, way: Route, told: Mapping[str, Told]) -> tuple[SourcePlan, ...]:
    found = []
    for uid, position in way.positions().items():
        said = told.get(uid, "it was not asked")
        found.append(
            SourcePlan(
                uid=uid,
                describe=pipeline.sources[uid],
                resumes=position is not None,
                waiting=said if isinstance(said, Waiting) else None,
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
    took = [manifest.completed - manifest.triggered for _, manifest in history.manifests.values()][-RECENT:]
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
