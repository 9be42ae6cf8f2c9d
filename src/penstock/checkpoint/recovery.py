"""What a start does with the log: decided, then carried out; renames, unions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.checkpoint.entries import Manifest, Rewind, StepRecord, StepRole
from penstock.checkpoint.export import Import, OpenFolder, execute_import
from penstock.checkpoint.history import History
from penstock.checkpoint.log import OwnedLog, backoff
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

# ----------------------------------------------------------------------------------------------------
# What unions take over: they have no uid, so each input finds its watermark by the name of what it comes from. Pure.
#
# A union is known by the tasks that it unites. In a changed pipeline an input goes on from where it was, whatever its
# place is now, one that is new from the beginning, and of several from one task none can be told from another: they go
# on from the least. So a watermark is never ahead of what its input has brought.


def restore_unions(declared: Sequence[str], recorded: Sequence[TaskSnapshot]) -> dict[str, TaskSnapshot]:
    """For each union of a graph, given by the names of its tasks, what its inputs go on from, if that is known."""
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
    """The unions that have most inputs in common with one; several if that cannot be told."""
    common = {name: len(set(union_parts(name)) & set(origins)) for name in unions}
    most = max(common.values(), default=0)
    return [unions[name] for name, count in common.items() if count == most > 0]


def _least(origin: str, unions: Sequence[TaskSnapshot]) -> EventTime:
    """The least watermark that an input from there had; the beginning if there was none."""
    pairs = [pair for task in unions for pair in zip(union_parts(task.task), task.watermarks, strict=True)]
    return min((at for name, at in pairs if name == origin), default=MIN_WATERMARK)


# ----------------------------------------------------------------------------------------------------
# Steps that have another uid now: what a checkpoint holds of the old one is restored as the new one. Pure.
#
# A rename counts for the restore only: the next checkpoint names the new uid. So it may be given again and again, as a
# job that begins again does: where the old uid is gone and the new one is there, it was done. Committables stay under
# the identity they were recorded with (rule S6).


def check_rename(rename: Mapping[str, str] | None, *, fresh: bool = False) -> dict[str, str]:
    """What somebody asked for, if it can be meant: old uids to new ones.

    Raises:
        GraphError: one of them cannot be a uid.
        SettingsError: two are renamed to one, or one to itself, or the start is to begin empty.

    >>> check_rename({"totals": "sums"})
    {'totals': 'sums'}
    """
    if rename and fresh:
        msg = "rename says whose state is restored as whose, fresh that none is: leave one of them out"
        raise SettingsError(msg)
    seen: dict[str, str] = {}
    rename = rename or {}
    for old, new in rename.items():
        check_name("uid", old)
        check_name("uid", new)
        if old == new:
            msg = f"rename has {old!r} for itself: leave it out, it is restored anyway"
            raise SettingsError(msg)
        if new in seen:
            msg = f"rename has {new!r} for both {seen[new]!r} and {old!r}: a step takes over the state of one"
            raise SettingsError(msg)
        seen[new] = old
    return dict(rename)


@dataclass(frozen=True, slots=True)
class Renames:
    """Those that are to be done, old uids to new ones."""

    done: Mapping[str, str] = field(default_factory=dict)

    def of(self, target: Manifest) -> Manifest:
        """The manifest as if its steps had always had their new uids."""
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
    """Which of the renames that were asked for are to be done.

    Raises:
        UnknownName: a uid is not there; with the nearest one.
        StateIncompatible: the checkpoint has both, the pipeline still has the old one, or they are no steps of a kind.
    """
    return Renames(dict(_to_do(target, steps, rename)))


def _to_do(
    target: Manifest | None, steps: Sequence[StepRecord], rename: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    declared = {step.uid: step for step in steps}
    recorded = {step.uid: step for step in target.steps} if target else {}
    for old, new in rename.items():
        if new not in declared:
            msg = f"rename {old}={new}: the pipeline has no step {new!r}{did_you_mean(new, declared)}"
            raise UnknownName(msg)
        if old in declared:
            msg = (
                f"rename {old}={new}: the pipeline still has a step {old!r}, so nobody could tell later whose state is "
                "whose; give that step another uid"
            )
            raise StateIncompatible(msg, uid=new)
        if target is None:
            msg = f"rename {old}={new}: there is no checkpoint to restore, so nothing of {old!r}; leave the rename out"
            raise UnknownName(msg)
        if old not in recorded:
            if new in recorded:
                continue  # it was done before
            msg = f"rename {old}={new}: checkpoint {target.checkpoint} has no step {old!r}{did_you_mean(old, recorded)}"
            raise UnknownName(msg)
        _check_pair(target, recorded, recorded[old], declared[new])
        yield old, new


def _check_pair(target: Manifest, recorded: Mapping[str, StepRecord], old: StepRecord, new: StepRecord) -> None:
    if new.uid in recorded:
        msg = (
            f"rename {old.uid}={new.uid}: checkpoint {target.checkpoint} has both, and one step cannot go on from "
            "two; leave the rename out, or give the new step a uid that was never used"
        )
        raise StateIncompatible(msg, uid=new.uid)
    if (old.role, old.kind) != (new.role, new.kind):
        msg = (
            f"rename {old.uid}={new.uid}: checkpoint {target.checkpoint} recorded a {old.role.value} of kind "
            f"{old.kind!r}, the pipeline has a {new.role.value} of kind {new.kind!r}; only the uid may differ"
        )
        raise StateIncompatible(msg, uid=new.uid)


# ----------------------------------------------------------------------------------------------------
# Which recorded snapshot belongs to which step of the graph: by uid, after renames. Pure; knows no schema's meaning.
#
# What is refused here is refused before anything is published, claimed or run.

SchemaResolver = Callable[[StepRecord, TaskSnapshot], Sequence[ColumnChange]]
"""Given a step as declared and what a checkpoint holds of it, both of one kind: what becomes of each column, nothing if
all stays as it is. Raises ``StateIncompatible`` with both sides and the remedy if it cannot be taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """A step whose declared schema is not the recorded one, and what becomes of each column, if that was judged."""

    uid: str
    recorded: str
    declared: str
    moves: tuple[ColumnChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedSteps:
    """What is restored where; see the attributes of the same names of ``Recovery``."""

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
    judge: SchemaResolver,
) -> MatchedSteps:
    """Find what each step restores.

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
        change = _change(target, recorded[uid], declared[uid], found[uid], judge)
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
    """Whether leaving this snapshot unused loses something: positions do; empty state does not."""
    state = snapshot.state
    return snapshot.position is not None or (state is not None and (bool(state.layers) or state.detail is not None))


def _left_unused(target: Manifest, unused: Sequence[str], declared: Mapping[str, StepRecord]) -> StateIncompatible:
    names = ", ".join(f"'{uid}'" for uid in unused)
    here = ", ".join(f"'{uid}'" for uid in sorted(declared))
    return StateIncompatible(
        f"checkpoint {target.checkpoint} holds state of {names}, which the pipeline does not have (it has {here}); "
        "give the steps their old uids, say which is which now with --rename OLD=NEW, or leave that state unused with "
        "--allow-non-restored-state"
    )


def _change(
    target: Manifest, before: StepRecord, now: StepRecord, snapshot: TaskSnapshot, judge: SchemaResolver
) -> SchemaChange | None:
    moves: Sequence[ColumnChange] = ()
    if _holds_anything(snapshot):
        _refuse_unlike(target, before, now)
        moves = _judged(target, now, snapshot, judge)
    recorded = before.schema or (snapshot.state.schema if snapshot.state else "")
    if not moves and (not now.schema or recorded in ("", now.schema)):
        return None  # whoever asks without Spark does not know what is declared
    return SchemaChange(uid=now.uid, recorded=recorded, declared=now.schema, moves=tuple(moves))


def _refuse_unlike(target: Manifest, before: StepRecord, now: StepRecord) -> None:
    if (before.role, before.kind) != (now.role, now.kind):
        msg = (
            f"checkpoint {target.checkpoint} recorded a {before.role.value} of kind {before.kind!r}, the pipeline has "
            f"a {now.role.value} of kind {now.kind!r}; give the new step another uid, or put the old one back"
        )
        raise StateIncompatible(msg, uid=now.uid)


def _judged(target: Manifest, now: StepRecord, snapshot: TaskSnapshot, judge: SchemaResolver) -> Sequence[ColumnChange]:
    try:
        return judge(now, replace(snapshot, task=now.uid))
    except StateIncompatible as error:
        msg = f"checkpoint {target.checkpoint}: {error.args[0]}"
        raise StateIncompatible(msg, uid=now.uid) from error


# ----------------------------------------------------------------------------------------------------
# What a start does with what the log says: pure decisions. Knows nothing of files, connectors or threads.
#
# A crash at any point of carrying a decision out is followed by the same decision again.


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a start does, in this order.

    Attributes:
        commit: publish these first, in this order, under their recorded identity; ``Retry`` and ``Unknown`` are
            tried again before anything else of the same uid.
        rewind: then append this entry, if there is one.
        void: then make sure that these can never publish.
        bring: then bring this exported checkpoint into the log, if there is one.
        delete: files whose deletion is recorded but perhaps not done; delete them again.
        restored: the checkpoint that is restored, ``None`` for empty state: the parent of the next.
        snapshots: by uid, what to restore; a step that is not here begins empty.
        fresh: uids of the graph that begin empty although something is restored.
        dropped: uids whose recorded state is left unused, as was asked for.
        changes: schemas that differ, and what becomes of their columns.
        renamed: old uids whose state is restored under a new one.
        next_checkpoint: above all ids on any timeline.
        initial: a checkpoint is due before the first batch: a new log, or a new source.
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
    judge: SchemaResolver = lambda _declared, _snapshot: (),
) -> Recovery:
    """What a start of the graph ``steps`` does; ``plan`` prints it, the supervisor carries it out under its claim.

    Args:
        history: read under the claim (or, for a plan, without).
        steps: the graph as it is now.
        at: written into a rewind entry.
        fresh: begin empty beside what is there.
        rewind_to: begin at this checkpoint instead of the newest.
        discard_unpublished: with either of the two: what is open above the target is voided, not published.
        bring: begin with this exported checkpoint instead; alone, for it abandons nothing that could be discarded.
        allow_non_restored_state: leave state of uids unused that the graph no longer has.
        rename: by old uid, the one under which its state is restored.
        judge: says what becomes of a step's state, or refuses it, before anything runs.

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
        target, steps, allow_non_restored_state=allow_non_restored_state, rename=rename or {}, judge=judge
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
    """Whether an empty start leaves state behind, also such as nobody can read."""
    if not history.lost.issuperset(_unreadable(history)):
        return True
    try:
        return history.restore_point is not None
    except CheckpointUnreadable:
        return True  # a rewind went to it, and its entry was lost later


def _left(history: History) -> CheckpointId | None:
    """The checkpoint that a rewind goes away from; one that cannot be read has no id."""
    try:
        return history.restore_point.checkpoint if history.restore_point else None
    except CheckpointUnreadable:
        return None


def _target(history: History, rewind: Rewind | None) -> Manifest | None:
    if rewind is None:
        return history.restore_point
    return None if rewind.to is None else history.restorable[rewind.to]


# ------------------------------------------------------------------------------------------------------------- rewind


def plan_rewind(
    history: History,
    to: CheckpointId | None,
    *,
    at: WallTime,
    discard_unpublished: bool = False,
    request: str | None = None,
) -> Rewind:
    """The entry that sets the restore point; everything open and not discarded is committed before it is written (R2).

    Raises:
        GraphError: the target is not restorable, or a discarded checkpoint is pinned.
    """
    if to is not None and to not in history.restorable:
        known = ", ".join(str(key) for key in history.restorable) or "none"
        why = "is condemned, its files may be gone" if to in history.condemned else "is not in the log"
        msg = f"checkpoint {to} {why}; restorable are: {known}"
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
    """A rewind that goes past entries and the run after it may be one start: it jumps as the next one will."""
    if bring is not None:
        return max(history.next_checkpoint, CheckpointId(bring.manifest.checkpoint + 1))
    if rewind is None or not rewind.lost:
        return history.next_checkpoint
    return history.next_checkpoint_past(history.lost.union(rewind.lost))


def _unreadable(history: History) -> tuple[EntryNumber, ...]:
    return tuple(EntryNumber(found.number) for found in history.unreadable)


def _condemned_by(history: History, discard: Sequence[Committable]) -> tuple[CheckpointId, ...]:
    """A discard condemns the checkpoints of what it drops and all built on them (R3): a rewind forward would lose rows.

    A committable of an aborted checkpoint went into the log with a later one: all that list it, or follow, count.
    """
    roots = frozenset(
        key for key, (_, manifest) in history.manifests.items() if any(item in manifest.open for item in discard)
    )
    condemned = history.built_on(roots) - history.condemned
    held = sorted(pin.name for pin in history.pins.values() if pin.checkpoint in condemned)
    if held:
        msg = f"discarding would condemn checkpoints that have names: {', '.join(held)}; unpin them first"
        raise GraphError(msg)
    return tuple(sorted(condemned))


# ----------------------------------------------------------------------------------------------------
# What a start does before its sources run: publish what is open, void what was discarded, delete what was condemned.
#
# Carries out a :class:`~penstock.checkpoint.recovery.Recovery`; decides nothing. A crash at any point is followed by
# the same again.

CommitFunction = Callable[[Committable], CommitOutcome]
logger = logging.getLogger("penstock")
_SETTLED = frozenset({CommitOutcome.DONE, CommitOutcome.ALREADY_DONE})


def execute_recovery(
    recovery: Recovery,
    *,
    log: OwnedLog,
    filesystem: FileSystem,
    commit: CommitFunction,
    void: CommitFunction,
    listener: Listener,
    pause: Callable[[float], None],
    folders: OpenFolder = LocalFileSystem,
) -> None:
    """Do what the recovery says, in its order.

    ``pause`` is called before anything is tried again; it may raise, to give up. ``folders`` says how an
    exported folder is read.
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
        filesystem.delete(path)


def _until_settled(
    item: Committable, act: CommitFunction, log: OwnedLog, pause: Callable[[float], None]
) -> CommitOutcome:
    """Again and again until it is surely done: later output of the sink must not pass it (rule S1)."""
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
