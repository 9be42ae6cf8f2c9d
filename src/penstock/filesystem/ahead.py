"""A file system that settles files before it is asked to: a start checks its state while the JVM boots."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from penstock.filesystem.base import Created, FileSystem, Moved
from penstock.handles import FileRef

THREADS: Final = 2
"""Threads that settle files ahead: a checksum uses one core, and disks and stores serve several at once."""


class SettledAhead:
    """A file system that has some answers of ``settle`` ready. Everything else is passed on.

    Only for files that nobody writes any more. An answer is given once: who asks again has the file read again, and so
    has who asks for one that could not be settled.

    Args:
        inner: the file system; its ``settle`` is called on threads of their own too.
        threads: how many these are at most.
    """

    def __init__(self, inner: FileSystem, *, threads: int = THREADS) -> None:
        self._inner = inner
        self._threads = threads
        self._ahead: dict[str, Future[FileRef]] = {}
        self._lock = threading.Lock()

    def begin(self, paths: Iterable[str]) -> None:
        """Settle these files in about this order, on threads that end with the process."""
        begun = {path: Future[FileRef]() for path in paths}
        with self._lock:
            self._ahead |= begun
        files, synced = list(begun.items()), set[str]()
        for first in range(min(self._threads, len(files))):
            share = files[first :: self._threads]
            threading.Thread(target=self._settle, args=(share, synced), name="settle-ahead", daemon=True).start()

    def end(self) -> None:
        """Settle no more ahead, and forget the answers that nobody has asked for."""
        with self._lock:
            left, self._ahead = self._ahead, {}
        for answer in left.values():
            answer.cancel()

    def settle(self, path: str, synced: set[str] | None = None) -> FileRef:
        """The length and checksum of a durable file: read before, or being read, or read now."""
        with self._lock:
            answer = self._ahead.pop(path, None)
        if answer is not None and not answer.cancel():  # one that is not begun is read here, beside the others
            with suppress(Exception):  # read once more, for what is wrong now
                return answer.result()
        return self._inner.settle(path, synced)

    def _settle(self, share: Sequence[tuple[str, Future[FileRef]]], synced: set[str]) -> None:
        for path, answer in share:
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(self._inner.settle(path, synced))
            except BaseException as error:
                answer.set_exception(error)

    # ---- passed on ---------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes | None:
        """See ``FileSystem``."""
        return self._inner.read(path)

    def create(self, path: str, data: bytes) -> Created:
        """See ``FileSystem``."""
        return self._inner.create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        """See ``FileSystem``."""
        self._inner.replace(path, data)

    def delete(self, path: str) -> None:
        """See ``FileSystem``."""
        self._inner.delete(path)

    def list(self, prefix: str) -> Sequence[str]:
        """See ``FileSystem``."""
        return self._inner.list(prefix)

    def remove_temporary(self, prefix: str) -> None:
        """See ``FileSystem``."""
        self._inner.remove_temporary(prefix)

    def remove_empty_folders(self, prefix: str) -> None:
        """See ``FileSystem``."""
        self._inner.remove_empty_folders(prefix)

    def move(self, source: str, target: str) -> Moved:
        """See ``FileSystem``."""
        return self._inner.move(source, target)

    def url(self, path: str) -> str:
        """See ``FileSystem``."""
        return self._inner.url(path)
