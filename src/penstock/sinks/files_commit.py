"""Publishes staged files by rename, from the committable alone; knows no Spark and no writer."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, SinkIdentityConflict, StateIncompatible
from penstock.filesystem.base import UnknownOutcome
from penstock.handles import CommitOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.filesystem.base import FileSystem
    from penstock.handles import Committable, FileRef

_VOIDED = ".voided"


class FilesCommitter:
    """Commits and voids committables of kind ``files/1``.

    A staged file is renamed to its final name, or (void) to a name that nobody publishes; the first file decides for
    all of an epoch which of the two it is, so a commit and a void that race have one winner. A staged file that is
    gone was published: a reader may have taken the final file away. Nothing is copied, no final file is overwritten.

    Args:
        filesystem: where the files are.
        failpoint: called with ``sink.files.before_move`` and ``sink.files.moved`` for each file.
    """

    def __init__(self, filesystem: FileSystem, failpoint: Callable[[str], None] = lambda _name: None) -> None:
        self._filesystem = filesystem
        self._failpoint = failpoint

    def commit(self, item: Committable) -> CommitOutcome:
        """Rename what is still staged. ``ALREADY_DONE``: nothing was, or it was voided.

        Raises:
            SinkIdentityConflict: a final name is taken by a file with another content.
        """
        moves = _moves(item)
        try:
            return self._commit(item, moves)
        except SinkIdentityConflict:
            raise
        except (PenstockError, UnknownOutcome, OSError):
            return CommitOutcome.RETRY

    def _commit(self, item: Committable, moves: Sequence[tuple[FileRef, str]]) -> CommitOutcome:
        if not moves or self._is_voided(moves):
            return CommitOutcome.ALREADY_DONE
        moved = 0
        for number, (ref, final) in enumerate(moves):
            self._failpoint("sink.files.before_move")
            if self._publish(item, ref, final):
                moved += 1
                self._failpoint("sink.files.moved")
            elif number == 0 and self._is_voided(moves):  # a void came between
                return CommitOutcome.ALREADY_DONE
        self._tidy(item, moves)
        return CommitOutcome.DONE if moved else CommitOutcome.ALREADY_DONE

    def void(self, item: Committable) -> CommitOutcome:
        """Take the staged files out of reach. ``ALREADY_DONE``: it was published, in whole or in part; then wholly.

        Raises:
            SinkIdentityConflict: a half-published epoch cannot be completed, see :meth:`commit`.
        """
        moves = _moves(item)
        if not moves:
            return CommitOutcome.DONE
        first = moves[0][0]
        try:
            if not self._is_voided(moves) and not self._filesystem.move(first.path, first.path + _VOIDED).found:
                outcome = self._commit(item, moves)
                return CommitOutcome.ALREADY_DONE if outcome is CommitOutcome.DONE else outcome
            for ref, _ in moves[1:]:
                self._filesystem.delete(ref.path)
            self._filesystem.replace(first.path + _VOIDED, b"")  # the name is the evidence, the rows are not needed
        except SinkIdentityConflict:
            raise
        except (PenstockError, UnknownOutcome, OSError):
            return CommitOutcome.RETRY
        return CommitOutcome.DONE

    def _is_voided(self, moves: Sequence[tuple[FileRef, str]]) -> bool:
        return self._is_there(moves[0][0].path + _VOIDED)

    def _is_there(self, path: str) -> bool:
        """Whether a staged file exists, by listing its small folder: its content may be large."""
        folder, _, name = path.rpartition("/")
        return any(found.rpartition("/")[2] == name for found in self._filesystem.list(folder))

    def _publish(self, item: Committable, ref: FileRef, final: str) -> bool:
        if not self._is_there(ref.path):
            return False
        taken = self._filesystem.read(final)
        if taken is None:
            return self._filesystem.move(ref.path, final).found
        if hashlib.sha256(taken).hexdigest() == ref.sha256:  # a rename that left its source: the same file twice
            self._filesystem.delete(ref.path)
            return False
        msg = (
            f"{final} is there already, with other content than {ref.path}, which is to be published under that name "
            f"(checkpoint {item.checkpoint}); move the foreign file away: nothing was overwritten"
        )
        raise SinkIdentityConflict(msg, uid=item.uid)

    def _tidy(self, item: Committable, moves: Sequence[tuple[FileRef, str]]) -> None:
        """Remove checksums that Hadoop wrote beside the staged files, and folders that are empty now."""
        stop = os.path.join(item.target, ".penstock")
        for ref, _ in moves:
            folder, _, name = ref.path.rpartition("/")
            self._filesystem.delete(f"{folder}/.{name}.crc")
            # Up to the generation's folder, which a writer may be using: it stays.
            while folder.startswith(stop) and folder[len(stop) :].strip("/").count("/") > 2:  # noqa: PLR2004
                try:
                    os.rmdir(folder)
                except OSError:
                    break  # not empty, not local, or done by another
                folder = os.path.dirname(folder)


def _moves(item: Committable) -> list[tuple[FileRef, str]]:
    """Staged files and their final names, in the order that decides."""
    detail: Any = item.detail
    try:
        return [(ref, detail["moves"][ref.path]) for ref in item.files]
    except (KeyError, TypeError) as error:
        msg = (
            f"the committable of checkpoint {item.checkpoint} names no final file for {error}: it is of another version"
        )
        raise StateIncompatible(msg, uid=item.uid) from error
