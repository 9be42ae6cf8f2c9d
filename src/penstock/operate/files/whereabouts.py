"""Where staged output is that is not where it was staged: published, or out of sight. Changes nothing."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from penstock.errors import StateIncompatible
from penstock.operate.files.disk import digest, find
from penstock.sinks.base import ShowsOutput
from penstock.sinks.committers import committer

if TYPE_CHECKING:
    from penstock.filesystem.base import FileSystem
    from penstock.handles import Committable, FileRef


class Whereabouts(Enum):
    """What has become of a staged file that is not there."""

    PUBLISHED = "published"
    """It lies under its final name, as it was staged."""
    TAKEN = "taken"
    """It counts as published, but is not there as it was: a reader took it, or it was removed unpublished."""
    NO_TARGET = "no target"
    """It cannot be told: the target is not mounted, or was emptied."""
    LOST = "lost"
    """Nothing proves that it was published."""


def whereabouts(filesystem: FileSystem, item: Committable, file: FileRef, *, quick: bool = False) -> Whereabouts:
    """What has become of it, by the sink's own evidence.

    Args:
        filesystem: of the job.
        item: an output that is not known to be published.
        file: one of its staged files, which is not there.
        quick: believe a file by its name and length.

    Raises:
        StorageFailed: a file cannot be looked at.
    """
    try:
        understands = committer(item.kind, filesystem)
    except StateIncompatible:
        return Whereabouts.LOST
    if not isinstance(understands, ShowsOutput) or (final := understands.final(item, file.path)) is None:
        return Whereabouts.LOST
    there = find(filesystem, final)
    if there is None:
        return Whereabouts.TAKEN if understands.has_evidence(item) else Whereabouts.NO_TARGET
    same = there.length == file.length and (quick or digest(filesystem, final) == file.sha256)
    return Whereabouts.PUBLISHED if same else Whereabouts.TAKEN
