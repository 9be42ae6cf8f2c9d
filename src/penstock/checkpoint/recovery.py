"""What a start does with what the log says: pure decisions. Knows nothing of files, connectors or threads.

A crash at any point of carrying a decision out is followed by the same decision again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.checkpoint.entries import Manifest, Rewind, StepRecord, StepRole
from penstock.checkpoint.history import History
from penstock.checkpoint.importing import Import
from penstock.checkpoint.matching import Judge, SchemaChange, match
from penstock.errors import CheckpointUnreadable, GraphError
from penstock.handles import Committable, TaskSnapshot
from penstock.ids import CheckpointId, EntryNumber, WallTime


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
    judge: Judge = lambda _declared, _snapshot: (),
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
    matched = match(target, steps, allow_non_restored_state=allow_non_restored_state, rename=rename or {}, judge=judge)
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
