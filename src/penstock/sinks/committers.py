"""Which committer understands a committable of which kind: so output of a removed sink can be published too.

The one module that knows the connectors; it imports one only when a committable of its kind is there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from penstock.errors import StateIncompatible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.filesystem.base import FileSystem
    from penstock.sinks.base import Committer

COMMITTERS: Final[Mapping[str, str]] = {
    "files/1": "penstock.sinks.files_commit:FilesCommitter",
    "memory/1": "penstock.sinks.memory:MemoryCommitter",
}
"""Kind of committable to ``module:class``, made with a file system and a failpoint. No kind is ever removed."""


def committer(kind: str, filesystem: FileSystem, failpoint: Callable[[str], None] = lambda _name: None) -> Committer:
    """The committer for committables of ``kind``.

    Raises:
        StateIncompatible: this version of penstock does not know the kind, or its client library is missing.
    """
    if kind not in COMMITTERS:
        msg = (
            f"output of kind {kind!r} waits to be published, this penstock knows {', '.join(sorted(COMMITTERS))}: "
            "start the version that wrote it, or discard it with a rewind"
        )
        raise StateIncompatible(msg)
    module, _, name = COMMITTERS[kind].partition(":")
    try:
        made: Callable[[FileSystem, Callable[[str], None]], Committer] = getattr(import_module(module), name)
    except ImportError as error:
        msg = f"output of kind {kind!r} waits to be published, but {error}: install the extra that brings it"
        raise StateIncompatible(msg) from error
    return made(filesystem, failpoint)
