"""Opens a file system by its address."""

from __future__ import annotations

from penstock.errors import StateDirectoryRefused
from penstock.filesystem.base import FileSystem
from penstock.filesystem.local import LocalFileSystem


def resolve(root: str, *, probes: bool = True) -> FileSystem:
    """The file system rooted at ``root``, after a check that it can hold a log.

    ``probes=False`` writes nothing, so that a folder that refuses writes in an unusual way is not found.

    Raises:
        StateDirectoryRefused: the scheme is not supported, or the folder cannot hold a log.
    """
    scheme, separator, rest = root.partition("://")
    if separator and scheme != "file":
        msg = (
            f"{root!r} is of the file system {scheme!r}, which is not supported. Give a path or a file:// address as "
            "the state directory."
        )
        raise StateDirectoryRefused(msg)
    local = LocalFileSystem(rest if separator else root)
    if probes:
        local.probe()
    else:
        local.check()
    return local
