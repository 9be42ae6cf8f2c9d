"""What a start does with the log: steps matched with the checkpoint, the recovery decided, then carried out.

What is refused is refused before anything is published, claimed or run. A crash while a recovery is carried out is
followed by the same decision again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.checkpoint.entries import Manifest, Rewind, StepRecord, StepRole
from penstock.checkpoint.export import Import, OpenFolder, execute_import
from penstock.checkpoint.gc import delete_file
from penstock.checkpoint.history import History
from penstock.checkpoint.log import OwnedLog, Sleep, backoff
from penstock.clock import MIN_WATERMARK, EventTime, WallTime
from penstock.errors import (
    CheckpointUnreadable,
    CommitFailed,
    GraphError,
    SettingsError,
    StateIncompatible,
    UnknownName,
    did_you_mean,
)
from penstock.facts import Listener, Published, Restoring
from penstock.failpoints import failpoint
from penstock.filesystem.base import FileSystem
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import (
    CheckpointId,
    ColumnChange,
    CommitOutcome,
    Committable,
    EntryNumber,
    TaskSnapshot,
    check_name,
    renamed_union,
    union_parts,
)

logger = logging.getLogger("penstock")

# ---- unions ---------------------------------------------------------------------------------------------------------
# A union has no uid: it is known by the tasks that it unites, and each input finds its watermark by its task's name.
# In a changed pipeline an input keeps its watermark at any place, and a new input begins at MIN_WATERMARK. Several
# inputs from one task cannot be distinguished and begin at the smallest of their watermarks. So a watermark is never
# ahead of the rows of its input.


def restore_unions(declared: Sequence[str], recorded: Sequence[TaskSnapshot]) -> dict[str, TaskSnapshot]:
    """The snapshots of a graph's unions, by name; ``declared`` are the names of its tasks.

    A union whose tasks the checkpoint does not know has none.
    """
    unions = {task.task: task for task in recorded if len(task.watermarks) == len(union_parts(task.task)) > 0}
    found = {id: _snapshot(id, union_parts(id), unions) for id in declared if union_parts(id)}
    return {id: snapshot for id, snapshot in found.items() if snapshot is not None}


def _snapshot(id: str, origins: Sequence[str], unions: Mapping[str, TaskSnapshot]) -> TaskSnapshot | None:
    alike = [task for name, task in unions.items() if sorted(union_parts(name)) == sorted(origins)]
    if id in unions and len(alike) == 1 and len(set(origins)) == len(origins):
        return unions[id]
    known = alike or _nearest(origins, unions)
    if not known:
        return None
    least = {origin: _least(origin, known) for origin in origins}
    return TaskSnapshot(task=id, watermarks=tuple(least[origin] for origin in origins))


def _nearest(origins: Sequence[str], unions: Mapping[str, TaskSnapshot]) -> list[TaskSnapshot]:
    """The unions that share most inputs with these origins; several if they share equally many."""
    common = {name: len(set(union_parts(name)) & set(origins)) for name in unions}
    most = max(common.values(), default=0)
    return [unions[name] for name, count in common.items() if count == most > 0]


def _least(origin: str, unions: Sequence[TaskSnapshot]) -> EventTime:
    """The smallest watermark that an input from this task had; ``MIN_WATERMARK`` if there was none."""
    pairs = [pair for task in unions for pair in zip(union_parts(task.task), task.watermarks, strict=True)]
    return min((at for name, at in pairs if name == origin), default=MIN_WATERMARK)


# ---- renames --------------------------------------------------------------------------------------------------------
# State of the old uid is restored as that of the new one. The next checkpoint has the new uid, so the same rename may
# be given at every start: it is done where the old uid is gone and the new one is there. Committables keep the
# identity that they were recorded with (rule S6).


def check_rename(rename: Mapping[str, str] | None, *, fresh: bool = False) -> dict[str, str]:
    """The renames of a start, old uids to new ones, checked without the log.

    Raises:
        GraphError: one of them cannot be a uid.
        SettingsError: two are renamed to one, or one to itself, or the start is to begin empty.

    >>> check_rename({"totals": "sums"})
    {'totals': 'sums'}
    """
    if rename and fresh:
        msg = "rename restores the state of a step under its new uid, and fresh restores none. Leave one of them out."
        raise SettingsError(msg)
    seen: dict[str, str] = {}
    rename = rename or {}
    for old, new in rename.items():
        check_name("uid", old)
        check_name("uid", new)
        if old == new:
            msg = f"rename has {old!r} for itself. Leave it out, because its state is restored anyway."
            raise SettingsError(msg)
        if new in seen:
            msg = (
                f"rename has {new!r} for both {seen[new]!r} and {old!r}. A step can take over the state of only one "
                "step."
            )
            raise SettingsError(msg)
        seen[new] = old
    return dict(rename)


@dataclass(frozen=True, slots=True)
class Renames:
    """The renames to apply to a checkpoint, old uids to new ones."""

    done: Mapping[str, str] = field(default_factory=dict)

    def of(self, target: Manifest) -> Manifest:
        """The manifest with the new uids of its steps and tasks."""
        if not self.done:
            return target
        return replace(
            target,
            steps=tuple(replace(step, uid=self._uid(step.uid)) for step in target.steps),
            tasks=tuple(replace(task, task=self._uid(task.task)) for task in target.tasks),
        )

    def _uid(self, uid: str) -> str:
        return self.done.get(uid) or renamed_union(uid, self.done)


def apply_renames(target: Manifest | None, steps: Sequence[StepRecord], rename: Mapping[str, str]) -> Renames:
    """The requested renames that are not done yet.

    Raises:
        UnknownName: a uid is not there; the message names the nearest one.
        StateIncompatible: the checkpoint has both uids, the pipeline still has the old one, or roles or kinds differ.
    """
    return Renames(dict(_not_done(target, steps, rename)))


def _not_done(
    target: Manifest | None, steps: Sequence[StepRecord], rename: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    declared = {step.uid: step for step in steps}
    recorded = {step.uid: step for step in target.steps} if target else {}
    for old, new in rename.items():
        if new not in declared:
            msg = f"rename {old}={new}: The pipeline has no step {new!r}{did_you_mean(new, declared)}"
            raise UnknownName(msg)
        if old in declared:
            msg = (
                f"rename {old}={new}: The pipeline still has a step {old!r}, so it could not be told later whose "
                "state is whose. Give that step another uid."
            )
            raise StateIncompatible(msg, uid=new)
        if target is None:
            msg = f"rename {old}={new}: There is no checkpoint to restore, so nothing of {old!r}. Leave the rename out."
            raise UnknownName(msg)
        if old not in recorded:
            if new in recorded:
                continue  # done at an earlier start
            msg = f"rename {old}={new}: Checkpoint {target.checkpoint} has no step {old!r}{did_you_mean(old, recorded)}"
            raise UnknownName(msg)
        _check_pair(target, recorded, recorded[old], declared[new])
        yield old, new


def _check_pair(target: Manifest, recorded: Mapping[str, StepRecord], old: StepRecord, new: StepRecord) -> None:
    if new.uid in recorded:
        msg = (
            f"rename {old.uid}={new.uid}: Checkpoint {target.checkpoint} has both, and one step cannot go on from "
            "two. Leave the rename out, or give the new step a uid that was never used."
        )
        raise StateIncompatible(msg, uid=new.uid)
    if (old.role, old.kind) != (new.role, new.kind):
        msg = (
            f"rename {old.uid}={new.uid}: Checkpoint {target.checkpoint} recorded a {old.role.value} of kind "
            f"{old.kind!r}, and the pipeline has a {new.role.value} of kind {new.kind!r}. Only the uid may differ."
        )
        raise StateIncompatible(msg, uid=new.uid)


# ---- steps and their snapshots --------------------------------------------------------------------------------------

SchemaResolver = Callable[[StepRecord, TaskSnapshot], Sequence[ColumnChange]]
"""Returns how the columns change from a recorded snapshot to the declared step of the same kind; empty if all stay.

Raises ``StateIncompatible`` with both schemas and the remedy if the state cannot be restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """A step whose declared schema is not the recorded one, with the changes of its columns if they were resolved."""

    uid: str
    recorded: str
    declared: str
    moves: tuple[ColumnChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedSteps:
    """What each step restores; the attributes mean the same in ``Recovery``."""

    snapshots: Mapping[str, TaskSnapshot] = field(default_factory=dict)
    fresh: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    changes: tuple[SchemaChange, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)


def match_steps(
    target: Manifest | None,
    steps: Sequence[StepRecord],
    *,
    allow_non_restored_state: bool,
    rename: Mapping[str, str],
    resolver: SchemaResolver,
) -> MatchedSteps:
    """Match the steps of a graph with the snapshots of a checkpoint, by uid, after renames.

    Raises:
        StateIncompatible: kinds or schemas do not match, or state would be left unused.
        UnknownName: a rename names a step that is not there.
    """
    names = apply_renames(target, steps, rename)
    if target is None:
        return MatchedSteps()
    target = names.of(target)
    declared = {step.uid: step for step in steps}
    recorded = {step.uid: step for step in target.steps}
    found = {snapshot.task: snapshot for snapshot in target.tasks}
    unused = tuple(sorted(uid for uid, snapshot in found.items() if uid not in declared and _holds_anything(snapshot)))
    if unused and not allow_non_restored_state:
        raise _left_unused(target, unused, declared)
    changes = []
    for uid in sorted(found.keys() & declared.keys() & recorded.keys()):
        change = _change(target, recorded[uid], declared[uid], found[uid], resolver)
        changes += [change] if change else []
    snapshots = {uid: snapshot for uid, snapshot in found.items() if uid in declared}
    snapshots |= restore_unions([step.uid for step in steps], list(found.values()))
    return MatchedSteps(
        snapshots=snapshots,
        fresh=tuple(step.uid for step in steps if step.uid not in snapshots),
        dropped=unused,
        changes=tuple(changes),
        renamed=names.done,
    )


def _holds_anything(snapshot: TaskSnapshot) -> bool:
    """Whether leaving this snapshot unused loses anything: a position, or state that is not empty."""
    state = snapshot.state
    return snapshot.position is not None or (state is not None and (bool(state.layers) or state.detail is not None))


def _left_unused(target: Manifest, unused: Sequence[str], declared: Mapping[str, StepRecord]) -> StateIncompatible:
    names = ", ".join(f"'{uid}'" for uid in unused)
    here = ", ".join(f"'{uid}'" for uid in sorted(declared))
    return StateIncompatible(
        f"Checkpoint {target.checkpoint} holds state of {names}, which the pipeline does not have (it has "
        f"{here}). Give the steps their old uids, name the new ones with penstock run … --rename OLD=NEW, or "
        "leave that state unused with --allow-non-restored-state."
    )


def _change(
    target: Manifest, before: StepRecord, now: StepRecord, snapshot: TaskSnapshot, resolver: SchemaResolver
) -> SchemaChange | None:
    moves: Sequence[ColumnChange] = ()
    if _holds_anything(snapshot):
        _refuse_unlike(target, before, now)
        moves = _resolved(target, now, snapshot, resolver)
    recorded = before.schema or (snapshot.state.schema if snapshot.state else "")
    if not moves and (not now.schema or recorded in ("", now.schema)):
        return None  # without Spark the declared schema is unknown and empty
    return SchemaChange(uid=now.uid, recorded=recorded, declared=now.schema, moves=tuple(moves))


def _refuse_unlike(target: Manifest, before: StepRecord, now: StepRecord) -> None:
    if (before.role, before.kind) != (now.role, now.kind):
        msg = (
            f"Checkpoint {target.checkpoint} recorded a {before.role.value} of kind {before.kind!r}, and the pipeline "
            f"has a {now.role.value} of kind {now.kind!r}. Give the new step another uid, or put the old one back."
        )
        raise StateIncompatible(msg, uid=now.uid)


def _resolved(
    target: Manifest, now: StepRecord, snapshot: TaskSnapshot, resolver: SchemaResolver
) -> Sequence[ColumnChange]:
    try:
        return resolver(now, replace(snapshot, task=now.uid))
    except StateIncompatible as error:
        msg = f"Checkpoint {target.checkpoint}: {error.args[0]}"
        raise StateIncompatible(msg, uid=now.uid) from error


# ---- the decision ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a start does, in this order.

    Attributes:
        commit: publish these first, in this order, under their recorded identity. ``RETRY`` and ``UNKNOWN`` are tried
            again before anything else of the same uid.
        rewind: then append this entry, if there is one.
        void: then make sure that these can never be published.
        bring: then import this exported checkpoint, if there is one.
        delete: then delete these files, whose deletion is recorded but perhaps not done.
        restored: the restored checkpoint, which is the parent of the next; ``None`` for empty state.
        snapshots: what each step restores, by uid. Other steps begin empty.
        fresh: uids of the graph that begin empty although a checkpoint is restored.
        dropped: uids whose recorded state is left unused, as requested.
        changes: steps whose schema differs.
        renamed: old uids whose state is restored under a new one.
        next_checkpoint: id of the next checkpoint, above all ids of all timelines.
        initial: whether a checkpoint is due before the first batch: for a new log, or a new source.
    """

    commit: tuple[Committable, ...] = ()
    rewind: Rewind | None = None
    void: tuple[Committable, ...] = ()
    bring: Import | None = None
    delete: tuple[str, ...] = ()
    restored: CheckpointId | None = None
    snapshots: Mapping[str, TaskSnapshot] = field(default_factory=dict)
    fresh: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    changes: tuple[SchemaChange, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    next_checkpoint: CheckpointId
    initial: bool


def decide_recovery(  # noqa: PLR0913 - all that can be asked of a start
    history: History,
    steps: Sequence[StepRecord],
    *,
    at: WallTime,
    fresh: bool = False,
    rewind_to: CheckpointId | None = None,
    discard_unpublished: bool = False,
    bring: Import | None = None,
    allow_non_restored_state: bool = False,
    rename: Mapping[str, str] | None = None,
    resolver: SchemaResolver = lambda _declared, _snapshot: (),
) -> Recovery:
    """The recovery of a start with the graph ``steps``; ``penstock plan`` prints it, a job carries it out.

    Args:
        history: the log, read under the claim by a job.
        steps: the graph as it is now.
        at: written into a rewind entry.
        fresh: begin with empty state; checkpoints stay in the log.
        rewind_to: begin at this checkpoint instead of the newest.
        discard_unpublished: with ``fresh`` or ``rewind_to``: void, not publish, output above the target.
        bring: begin with this exported checkpoint instead. It excludes the three above.
        allow_non_restored_state: leave state of uids unused that the graph no longer has.
        rename: new uids by the old ones under which their state is recorded.
        resolver: returns how a step's columns change, or refuses its state.

    Raises:
        StateIncompatible: kinds or schemas do not match, or state would be left unused.
        UnknownName: a rename names a step that is not there.
        GraphError: the rewind is impossible.
    """
    rewind = None
    if (fresh and _leaves_something(history)) or rewind_to is not None:
        rewind = plan_rewind(history, None if fresh else rewind_to, at=at, discard_unpublished=discard_unpublished)
    target = bring.manifest if bring is not None else _target(history, rewind)
    matched = match_steps(
        target, steps, allow_non_restored_state=allow_non_restored_state, rename=rename or {}, resolver=resolver
    )
    discarded = rewind.discard if rewind else ()
    return Recovery(
        commit=tuple(item for item in history.open_committables if item not in discarded),
        rewind=rewind,
        void=(*history.to_void, *discarded),
        bring=bring,
        delete=history.condemned_files(after=history.deleted),
        restored=target.checkpoint if target else None,
        snapshots=matched.snapshots,
        fresh=matched.fresh,
        dropped=matched.dropped,
        changes=matched.changes,
        renamed=matched.renamed,
        next_checkpoint=_next_checkpoint(history, rewind, bring),
        initial=target is None or any(step.role is StepRole.SOURCE and step.uid in matched.fresh for step in steps),
    )


def _leaves_something(history: History) -> bool:
    """Whether an empty start abandons state, including unreadable state."""
    if not history.lost.issuperset(_unreadable(history)):
        return True
    try:
        return history.restore_point is not None
    except CheckpointUnreadable:
        return True  # a rewind names a checkpoint whose entry was lost later


def _left(history: History) -> CheckpointId | None:
    """The checkpoint that a rewind abandons; ``None`` if it is unreadable."""
    try:
        return history.restore_point.checkpoint if history.restore_point else None
    except CheckpointUnreadable:
        return None


def _target(history: History, rewind: Rewind | None) -> Manifest | None:
    if rewind is None:
        return history.restore_point
    return None if rewind.to is None else history.restorable[rewind.to]


def plan_rewind(
    history: History,
    to: CheckpointId | None,
    *,
    at: WallTime,
    discard_unpublished: bool = False,
    request: str | None = None,
) -> Rewind:
    """The entry that sets the restore point. What is open and not discarded is published before it is written (R2).

    Raises:
        GraphError: the target is not restorable, or a discarded checkpoint is pinned.
    """
    if to is not None and to not in history.restorable:
        known = ", ".join(str(key) for key in history.restorable) or "none"
        why = "is condemned, so its files may be gone" if to in history.condemned else "is not in the log"
        msg = f"Checkpoint {to} {why}. Restorable checkpoints: {known}."
        raise GraphError(msg)
    discard: tuple[Committable, ...] = ()
    if discard_unpublished:
        discard = tuple(item for item in history.open_committables if to is None or item.checkpoint > to)
    return Rewind(
        to=to,
        left=_left(history),
        at=at,
        discard=discard,
        condemned=_condemned_by(history, discard),
        lost=tuple(number for number in _unreadable(history) if number not in history.lost),
        request=request,
    )


def _next_checkpoint(history: History, rewind: Rewind | None, bring: Import | None) -> CheckpointId:
    # A rewind that skips lost entries is not in the log yet: the id jumps as it will after the rewind.
    if bring is not None:
        return max(history.next_checkpoint, CheckpointId(bring.manifest.checkpoint + 1))
    if rewind is None or not rewind.lost:
        return history.next_checkpoint
    return history.next_checkpoint_past(history.lost.union(rewind.lost))


def _unreadable(history: History) -> tuple[EntryNumber, ...]:
    return tuple(EntryNumber(found.number) for found in history.unreadable)


def _condemned_by(history: History, discard: Sequence[Committable]) -> tuple[CheckpointId, ...]:
    """Checkpoints that a discard condemns: those that list discarded output, and all built on them (R3).

    A rewind forward to one of them would lose rows. Output of an aborted checkpoint is listed by a later one.
    """
    roots = frozenset(
        key for key, (_, manifest) in history.manifests.items() if any(item in manifest.open for item in discard)
    )
    condemned = history.built_on(roots) - history.condemned
    names = sorted(pin.name for pin in history.pins.values() if pin.checkpoint in condemned)
    if names:
        msg = (
            f"Discarding would condemn checkpoints that have names: {', '.join(names)}. Drop the names first with "
            "penstock savepoint drop."
        )
        raise GraphError(msg)
    return tuple(sorted(condemned))


# ---- the decision carried out ---------------------------------------------------------------------------------------

CommitFunction = Callable[[Committable], CommitOutcome]
"""Publishes, or voids, one committable."""
_SETTLED = frozenset({CommitOutcome.DONE, CommitOutcome.ALREADY_DONE})


def execute_recovery(
    recovery: Recovery,
    *,
    log: OwnedLog,
    filesystem: FileSystem,
    commit: CommitFunction,
    void: CommitFunction,
    listener: Listener,
    pause: Sleep,
    folders: OpenFolder = LocalFileSystem,
) -> None:
    """Carry out a recovery, before the sources run.

    ``pause`` is called before a retry; it may raise, to give up. ``folders`` opens an exported folder.
    """
    for number, item in enumerate(recovery.commit):
        listener(Restoring(doing="publishing", task=item.uid, done=number, total=len(recovery.commit)))
        failpoint("sink.commit.before")
        outcome = _until_settled(item, commit, log, pause)
        failpoint("sink.published")
        listener(Published(task=item.uid, checkpoint=item.checkpoint, outcome=outcome.value))
    failpoint("recovery.committed")
    if recovery.rewind is not None:
        log.append(recovery.rewind)
    for item in recovery.void:
        _until_settled(item, void, log, pause)
        failpoint("sink.voided")
    if recovery.bring is not None:
        execute_import(recovery.bring, log=log, filesystem=filesystem, pause=pause, listener=listener, folders=folders)
    for path in recovery.delete:
        failpoint("recovery.delete.before")
        delete_file(filesystem, path)


def _until_settled(item: Committable, act: CommitFunction, log: OwnedLog, pause: Sleep) -> CommitOutcome:
    """Commit or void an item until that is surely done: later output of the sink must not overtake it (rule S1)."""
    for seconds in backoff():
        try:
            outcome = act(item)
        except CommitFailed as error:
            logger.warning("publishing checkpoint %s of %s waits: %s", item.checkpoint, item.uid, error)
            outcome = CommitOutcome.RETRY
        if outcome in _SETTLED:
            return outcome
        pause(seconds)
        log.check()
    raise AssertionError  # pragma: no cover - the backoff has no end
