"""Opens a file system by its address."""

from __future__ import annotations

from penstock.errors import StateDirectoryRefused
from penstock.filesystem.base import FileSystem
from penstock.filesystem.local import LocalFileSystem

# ----------------------------------------------------------------------------------------------------
# Which file system a path or address means. Knows the implementations, and nothing of what they store.


def resolve(root: str) -> FileSystem:
    """The file system rooted at ``root``, proven fit to hold a log.

    Raises:
        StateDirectoryRefused: nothing here knows the scheme, or the place cannot hold a log.
    """
    scheme, separator, rest = root.partition("://")
    if separator and scheme != "file":
        msg = f"{root!r}: no file system for {scheme!r}; the state directory is a path or a file:// address"
        raise StateDirectoryRefused(msg)
    local = LocalFileSystem(rest if separator else root)
    local.probe()
    return local
