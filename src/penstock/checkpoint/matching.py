"""Which recorded snapshot belongs to which step of the graph: by uid, after renames. Pure; knows no schema's meaning.

What is refused here is refused before anything is published, claimed or run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.checkpoint.entries import Manifest, StepRecord
from penstock.checkpoint.renaming import renamed
from penstock.checkpoint.united import united_anew
from penstock.errors import StateIncompatible
from penstock.handles import ColumnMove, TaskSnapshot

Judge = Callable[[StepRecord, TaskSnapshot], Sequence[ColumnMove]]
"""Given a step as declared and what a checkpoint holds of it, both of one kind: what becomes of each column, nothing if
all stays as it is. Raises ``StateIncompatible`` with both sides and the remedy if it cannot be taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """A step whose declared schema is not the recorded one, and what becomes of each column, if that was judged."""

    uid: str
    recorded: str
    declared: str
    moves: tuple[ColumnMove, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """What is restored where; see the attributes of the same names of ``Recovery``."""

    snapshots: Mapping[str, TaskSnapshot] = field(default_factory=dict)
    fresh: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    changes: tuple[SchemaChange, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)


def match(
    target: Manifest | None,
    steps: Sequence[StepRecord],
    *,
    allow_non_restored_state: bool,
    rename: Mapping[str, str],
    judge: Judge,
) -> Matched:
    """Find what each step restores.

    Raises:
        StateIncompatible: kinds or schemas do not match, or state would be left unused.
        UnknownName: a rename names a step that is not there.
    """
    names = renamed(target, steps, rename)
    if target is None:
        return Matched()
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
    snapshots |= united_anew([step.uid for step in steps], list(found.values()))
    return Matched(
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
    target: Manifest, before: StepRecord, now: StepRecord, snapshot: TaskSnapshot, judge: Judge
) -> SchemaChange | None:
    moves: Sequence[ColumnMove] = ()
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


def _judged(target: Manifest, now: StepRecord, snapshot: TaskSnapshot, judge: Judge) -> Sequence[ColumnMove]:
    try:
        return judge(now, replace(snapshot, task=now.uid))
    except StateIncompatible as error:
        msg = f"checkpoint {target.checkpoint}: {error.args[0]}"
        raise StateIncompatible(msg, uid=now.uid) from error
