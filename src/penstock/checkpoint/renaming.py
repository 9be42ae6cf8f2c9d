"""Steps that have another uid now: what a checkpoint holds of the old one is restored as the new one. Pure.

A rename counts for the restore only: the next checkpoint names the new uid. So it may be given again and again, as a
job that begins again does: where the old uid is gone and the new one is there, it was done. Committables stay under
the identity they were recorded with (rule S6).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.checkpoint.entries import Manifest, StepRecord
from penstock.checkpoint.names import near
from penstock.checkpoint.united import renamed_union
from penstock.errors import SettingsError, StateIncompatible, UnknownName
from penstock.ids import check_name


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


def renamed(target: Manifest | None, steps: Sequence[StepRecord], rename: Mapping[str, str]) -> Renames:
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
            msg = f"rename {old}={new}: the pipeline has no step {new!r}{near(new, declared)}"
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
            msg = f"rename {old}={new}: checkpoint {target.checkpoint} has no step {old!r}{near(old, recorded)}"
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
