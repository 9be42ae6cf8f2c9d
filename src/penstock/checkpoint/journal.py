"""Writes a run's manifests with what rides in them, and deletes what they condemn. Decides only by ``gc``.

Called from worker threads: appending on one, cleaning up on another; the log itself keeps them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.checkpoint.entries import Manifest, Stopped
from penstock.checkpoint.gc import collect, delete_recorded, orphans_of
from penstock.checkpoint.log import OwnedLog
from penstock.filesystem.base import FileSystem
from penstock.ids import EntryNumber


class Journal:
    """One generation's hand on the log.

    Args:
        log: the log under our claim.
        filesystem: rooted at the job's directory.
        retained: checkpoints that stay restorable, the newest included.
        leftovers: lists files that drivers write, those of older generations among them; looked at once, for the
            first manifest, which condemns the orphans (rule G2).
    """

    def __init__(
        self,
        log: OwnedLog,
        filesystem: FileSystem,
        *,
        retained: int,
        leftovers: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._log = log
        self._filesystem = filesystem
        self._retained = retained
        self._leftovers: Callable[[], Iterable[str]] | None = leftovers
        self._deleted = log.history.deleted

    def checkpoint(self, manifest: Manifest) -> EntryNumber:
        """Complete the manifest with what it condemns, and append it.

        Raises:
            GenerationFenced: the log is somebody else's now.
            StorageFailed: surely nothing was written.
        """
        history = self._log.history
        orphans: tuple[str, ...] = ()
        if self._leftovers is not None:
            orphans = orphans_of(history, self._log.generation, self._leftovers())
        complete = collect(manifest, history, retained=self._retained, deleted=self._deleted, orphans=orphans)
        number = self._log.append(complete)
        self._leftovers = None
        return number

    def stopped(self, body: Stopped) -> EntryNumber:
        """Append the entry of an orderly end."""
        return self._log.append(body)

    def clean(self) -> None:
        """Delete what entries in the log condemn, then the entries that the floor allows; repeats do no harm."""
        self._deleted = delete_recorded(self._filesystem, self._log.history)
        self._log.trim()
