"""Where a job begins: its newest checkpoint, empty, an older one, or an exported copy. Says it; begins nothing.

Whatever is not the newest checkpoint counts until an attempt has begun so: from then on that is in the log.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from penstock.checkpoint.exported import EXPORT
from penstock.checkpoint.importing import import_again, plan_import
from penstock.checkpoint.names import which_checkpoint
from penstock.errors import PlanOutdated, SettingsError, UnknownName
from penstock.filesystem.local import LocalFileSystem
from penstock.ids import Generation
from penstock.job.importing import Folders, open_export

if TYPE_CHECKING:
    from penstock.checkpoint.exported import Export
    from penstock.checkpoint.history import History
    from penstock.checkpoint.importing import Import
    from penstock.ids import CheckpointId, WallTime


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenExport:
    """An exported checkpoint as somebody has seen it: a path that is begun with only if it still is the same.

    Attributes:
        folder: the absolute path of its folder.
        sha256: of its ``export.json``.
    """

    folder: str
    sha256: str

    def __fspath__(self) -> str:
        return self.folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What was asked for.

    Attributes:
        fresh: empty, beside what is there.
        checkpoint: at this checkpoint of the job's own log: a savepoint's name, or a number.
        folder: with an exported checkpoint: the absolute path of its folder.
        sha256: of that folder's ``export.json``, if it has to be that one.
        claim: the folder's files become the job's.
        discard_unpublished: what is open above the checkpoint is voided and not published.
    """

    fresh: bool = False
    checkpoint: str | None = None
    folder: str | None = None
    sha256: str | None = None
    claim: bool = False
    discard_unpublished: bool = False

    @property
    def is_rewind(self) -> bool:
        """Whether it goes back in its own log, which alone goes past what cannot be read."""
        return self.fresh or self.checkpoint is not None


CONTINUE: Final = Beginning()
"""As ever: the newest checkpoint, or empty if there is none."""


class Decided(TypedDict):
    """What a recovery is told of it."""

    fresh: bool
    rewind_to: CheckpointId | None
    discard_unpublished: bool
    bring: Import | None


def read_beginning(
    *, fresh: bool, restore_from: str | int | os.PathLike[str] | None, claim: bool, discard_unpublished: bool
) -> Beginning:
    """What the arguments of a start mean. A text with a slash, or that begins with a dot, is a folder.

    Raises:
        SettingsError: they contradict one another.

    >>> read_beginning(fresh=False, restore_from="before-v2", claim=False, discard_unpublished=False).checkpoint
    'before-v2'
    >>> read_beginning(fresh=False, restore_from="/exports/orders", claim=True, discard_unpublished=False).folder
    '/exports/orders'
    """
    place = None if restore_from is None or isinstance(restore_from, int) else os.fspath(restore_from)
    is_folder = place is not None and (not isinstance(restore_from, str) or "/" in place or place.startswith("."))
    checkpoint = None if restore_from is None or is_folder else str(restore_from)
    if fresh and restore_from is not None:
        msg = f"fresh begins empty, restore_from={str(restore_from)!r} does not: give one of the two"
        raise SettingsError(msg)
    if claim and not is_folder:
        msg = "claim takes an exported folder's files over: give that folder as restore_from, with a slash in its path"
        raise SettingsError(msg)
    if discard_unpublished and not (fresh or checkpoint):
        msg = (
            "discard_unpublished is for going back in the job's own log: give a savepoint or a number as restore_from, "
            "or fresh. Before a start from a folder, rewind with it"
        )
        raise SettingsError(msg)
    folder = os.path.abspath(os.path.expanduser(place)) if is_folder and place is not None else None
    return Beginning(
        fresh=fresh,
        checkpoint=checkpoint,
        folder=folder,
        sha256=restore_from.sha256 if isinstance(restore_from, SeenExport) else None,
        claim=claim,
        discard_unpublished=discard_unpublished,
    )


def decided(
    beginning: Beginning,
    history: History,
    *,
    job: str,
    at: WallTime,
    generation: Generation | None = None,
    folders: Folders = LocalFileSystem,
) -> Decided:
    """What it means for the log as it is, which is decided again under the claim (rule L2).

    An export that is the restore point already, because a start crashed right after it had come so far, is not brought
    twice: the start goes on from there.

    Args:
        beginning: what was asked for.
        history: of the log.
        job: whose it is.
        at: now.
        generation: of our claim; before there is one, that of the next.
        folders: how an exported folder is read.

    Raises:
        UnknownName: there is no such checkpoint, or no such folder.
        CheckpointUnreadable: the folder holds no export, or not what was exported.
        StateDirectoryRefused: the folder's files were taken over.
        PlanOutdated: the folder holds another export than the one that was to be begun with.
    """
    found = Decided(
        fresh=beginning.fresh,
        rewind_to=None,
        discard_unpublished=beginning.discard_unpublished,
        bring=None,
    )
    if beginning.checkpoint is not None:
        found["rewind_to"] = _which(history, beginning.checkpoint, job)
    if beginning.folder is not None:
        folder, claims = beginning.folder, beginning.claim
        export = open_export(folder, log_id=history.log_id, folders=folders)
        changed = None if beginning.sha256 is None else changed_since(export, folder, beginning.sha256)
        if changed is not None:
            msg = f"since the plan was made has moved the export: {changed}; plan again"
            raise PlanOutdated(msg)
        found["bring"] = import_again(export, history, folder=folder, at=at) or plan_import(
            export,
            history,
            folder=folder,
            generation=Generation(history.tail + 1) if generation is None else generation,
            at=at,
            claims=claims,
        )
    return found


def changed_since(export: Export, folder: str, sha256: str) -> str | None:
    """In words, that a folder holds another export than somebody has seen in it; ``None`` if it is the same."""
    if export.sha256 == sha256:
        return None
    return f"{folder} holds another one, checkpoint {export.checkpoint} of job {export.job!r}"


def _which(history: History, text: str, job: str) -> CheckpointId:
    hint = f"; an exported folder is written with a slash: ./{text}" if Path(text, EXPORT).is_file() else ""
    if history.is_empty:
        msg = f"job {job!r} has no state here, so it has no checkpoint {text!r}{hint}"
        raise UnknownName(msg)
    try:
        return which_checkpoint(history, text)
    except UnknownName as error:
        msg = f"{error}{hint}"
        raise UnknownName(msg) from None
