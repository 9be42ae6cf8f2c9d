"""Tells observers how much of the state a start has restored, step by step. Restores nothing itself."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.facts import Listener, Restoring
from penstock.handles import TaskSnapshot


class Restores:
    """The steps of one start whose state has to be read, one after the other."""

    def __init__(self, snapshots: Mapping[str, TaskSnapshot], listener: Listener) -> None:
        self._bytes = {uid: snapshot.state.bytes for uid, snapshot in snapshots.items() if snapshot.state is not None}
        self._total = sum(self._bytes.values())
        self._done = 0
        self._listener = listener

    def begins(self, uid: str) -> None:
        """It is this step's turn, and all before it are done."""
        size = self._bytes.get(uid, 0)
        if size:
            self._listener(Restoring(doing="restoring", task=uid, done=self._done, total=self._total))
        self._done += size
