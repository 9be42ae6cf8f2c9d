"""What somebody says who starts a simulated driver: where it is to begin, and which step is called what now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.entries import StepRecord
from penstock.checkpoint.export import Import
from penstock.checkpoint.history import History
from penstock.checkpoint.log import OwnedLog
from penstock.errors import CheckpointUnreadable, PenstockError, StateDirectoryRefused
from penstock.handles import CheckpointId
from penstock.job.start import FROM_LATEST, ResolvedStart, StartOptions, resolve_start
from simulation.exports import is_anothers
from simulation.names import first_called

if TYPE_CHECKING:
    from simulation.world import World


class Beginnings:
    """Of one driver; ``rewind`` counts for its first attempt, a folder until an attempt has begun with it."""

    def __init__(
        self, world: World, steps: Sequence[StepRecord], rewind: Mapping[str, Any], brings: StartOptions | None
    ):
        self._world = world
        self._steps = steps
        self._rewind = rewind
        self._brings = brings
        self._renamed: dict[str, str] = {}

    def resolved(self, owned: OwnedLog, number: int, *, drops_state: bool) -> ResolvedStart:
        """Where this attempt begins, as the recovery gets it."""
        wall, folders = self._world.wall(), self._world.folder
        found = resolve_start(
            self._brings or FROM_LATEST,
            owned.history,
            job="sim",
            at=wall,
            generation=owned.generation,
            folders=folders,
        )
        if self._brings is None and number == 1:
            found = {**found, **self._rewind}  # type: ignore[typeddict-item]
        self._renamed |= _names_now(owned.history, self._steps, **found)
        return {**found, "allow_non_restored_state": drops_state, "rename": self._renamed}

    def begun(self) -> None:
        """What was asked for is in the log."""
        if self._brings is not None:
            self._brings = self._world.importing = None
            self._world.count("begun with a folder")

    def is_too_late(self, error: PenstockError) -> bool:
        """Whether the folder that it was to begin with is somebody else's."""
        is_gone = isinstance(error, StateDirectoryRefused | CheckpointUnreadable)
        return is_gone and self._brings is not None and is_anothers(self._world, self._brings.folder or "")


def _names_now(
    history: History,
    steps: Sequence[StepRecord],
    *,
    bring: Import | None = None,
    fresh: bool = False,
    rewind_to: CheckpointId | None = None,
    **_: object,
) -> dict[str, str]:
    """Old uids to those of the pipeline."""
    target = bring.manifest if bring is not None else None
    if rewind_to is not None:
        target = history.restorable.get(rewind_to)
    elif bring is None and not fresh:
        target = history.restore_point
    declared = {first_called(step.uid): step.uid for step in steps}
    recorded = [step.uid for step in target.steps if not step.uid.startswith("union@")] if target is not None else []
    return {old: new for old in recorded if (new := declared.get(first_called(old), old)) != old}
