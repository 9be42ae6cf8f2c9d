"""Whether an exported checkpoint is whole: every file that it was exported with. Changes nothing.

``export.verify_export`` raises at the first fault, for programs that want to go on or not; this one finds all of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.checkpoint.exported import CLAIMED, EXPORT
from penstock.errors import CheckpointUnreadable
from penstock.filesystem.local import LocalFileSystem
from penstock.job.importing import open_export
from penstock.operate.files.checking import Fault, Problem, Progress, check, silent

if TYPE_CHECKING:
    from penstock.ids import CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderVerdict:
    """What was found.

    Attributes:
        folder: its absolute path.
        job: whose checkpoint it is; ``None`` if ``export.json`` cannot be read, and with it all else.
        checkpoint: its id there.
        names: what it was called there.
        quick: content was not read.
        files: how many were checked.
        bytes: of those.
        broken: what is wrong; nothing: it can be restored.
        others: files that do not belong to it.
    """

    folder: str
    job: str | None = None
    checkpoint: CheckpointId | None = None
    names: tuple[str, ...] = ()
    quick: bool = False
    files: int = 0
    bytes: int = 0
    broken: tuple[Problem, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.broken

    @property
    def remedies(self) -> tuple[str, ...]:
        """What an operator can do."""
        if self.is_sound:
            return ()
        return ("export the checkpoint once more, into another folder, or put the files back from a copy",)


def verify_folder(folder: str | Path, *, quick: bool = False, progress: Progress = silent) -> FolderVerdict:
    """Look at everything that a restore from this folder would read.

    Args:
        folder: with an ``export.json``.
        quick: look at existence and length only; content is not read.
        progress: gets the bytes that were checked and those there are.

    Raises:
        UnknownName: there is no export.
        StateDirectoryRefused: its files were taken over by a job.
    """
    place = os.path.abspath(os.path.expanduser(folder))
    there = LocalFileSystem(place)
    try:
        export = open_export(place, log_id=None)
    except CheckpointUnreadable as error:
        problem = Problem(path=EXPORT, fault=Fault.UNREADABLE, message=str(error))
        return FolderVerdict(folder=place, quick=quick, broken=(problem,))
    own = {EXPORT, CLAIMED, *(file.path for file in export.files)}
    return FolderVerdict(
        folder=place,
        job=export.job,
        checkpoint=export.checkpoint,
        names=export.names,
        quick=quick,
        files=len(export.files),
        bytes=export.bytes,
        broken=tuple(check(there, export.files, quick=quick, progress=progress)),
        others=tuple(path for path in there.list("") if path not in own),
    )
