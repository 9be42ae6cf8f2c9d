"""Publishes staged files by rename. Needs the committable alone: no Spark, no writer."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import CommitFailed, PenstockError, SinkIdentityConflict, StateDirectoryRefused, StateIncompatible
from penstock.filesystem.base import UnknownOutcome
from penstock.handles import CommitOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.filesystem.base import FileSystem
    from penstock.handles import Committable, FileRef
    from penstock.interfaces.sink import CommitContext

HIDDEN: Final = ".penstock"
"""Folder below the target where output is staged; Spark and most readers ignore such names."""
_VOIDED: Final = ".voided"
"""Ending of the name to which the first file of a voided epoch is renamed."""
REMEDIES: Final = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Give this user the right to write there"),
    errno.EROFS: "Mount it so that it can be written",
    errno.ENOTDIR: "Move the file away that is in the folder's place",
    errno.EXDEV: "Files are published by a rename, so all below the target, '.penstock' too, must be on one file "
    "system. Remove the mount or link between them",
}
"""What an operator does about errors that a retry cannot solve; without the full stop."""


def files_committer(context: CommitContext) -> FilesCommitter:
    """The committer of files, for the log."""
    return FilesCommitter(context.filesystem, context.failpoint)


class FilesCommitter:
    """Commits and voids committables of kind ``files/1``.

    A commit renames each staged file to its final name. A void renames the first one to a name that no commit uses.
    The first file decides for its whole epoch, so of a commit and a void that race one wins. Nothing is copied, no
    final file is overwritten.

    A staged file that is gone was published: a reader may have taken the final file away. This holds only while the
    folder of the generation exists, which nothing removes: without it the target is not mounted, or was emptied by
    hand.

    Args:
        filesystem: of the files.
        failpoint: called with ``sink.files.before_move`` and ``sink.files.moved`` for each file.
    """

    def __init__(self, filesystem: FileSystem, failpoint: Callable[[str], None] = lambda _name: None) -> None:
        self._filesystem = filesystem
        self._failpoint = failpoint

    def commit(self, item: Committable) -> CommitOutcome:
        """Rename what is still staged. ``ALREADY_DONE``: nothing is staged any more, or the epoch was voided.

        Raises:
            SinkIdentityConflict: a file with other content has a final name.
            CommitFailed: the outcome is unknown; a retry is safe and may help.
            StateDirectoryRefused: the same, but an operator has to fix something first.
        """
        moves = _moves(item)
        with _explain_failure("publish", item):
            return self._commit(item, moves)

    def check_committable(self, item: Committable) -> None:
        """Refuse what a commit would refuse, as far as it can be seen without one.

        Raises:
            SinkIdentityConflict: a file with other content has a final name.
            StateIncompatible: another version of penstock wrote the committable.
        """
        moves = _moves(item)
        with _explain_failure("publish", item):
            staged = self._listed(os.path.dirname(ref.path) for ref, _ in moves)
            for ref, final in moves:
                if ref.path in staged:
                    self._is_published(item, ref, final)

    def _commit(self, item: Committable, moves: Sequence[tuple[FileRef, str]]) -> CommitOutcome:
        if not moves:
            return CommitOutcome.ALREADY_DONE
        self._require_folder(item)
        staged = self._listed(os.path.dirname(ref.path) for ref, _ in moves)
        if moves[0][0].path + _VOIDED in staged:
            return CommitOutcome.ALREADY_DONE
        moved = 0
        gone: dict[str, tuple[str, str]] = {}  # by final folder, one file that an earlier commit has renamed
        for number, (ref, final) in enumerate(moves):
            self._failpoint("sink.files.before_move")
            if ref.path in staged and self._publish(item, ref, final):
                moved += 1
                self._failpoint("sink.files.moved")
                continue
            self._require_folder(item)
            if number == 0 and self._is_voided(moves):  # a void won the race
                return CommitOutcome.ALREADY_DONE
            gone[os.path.dirname(final)] = (ref.path, final)
        for source, final in gone.values():  # that process may have died before its renames were durable
            moved += self._filesystem.move(source, final).found
        self._tidy(item, moves)
        return CommitOutcome.DONE if moved else CommitOutcome.ALREADY_DONE

    def void(self, item: Committable) -> CommitOutcome:
        """Make sure that no commit can publish the files. ``ALREADY_DONE``: a commit had begun, and was completed.

        Raises:
            SinkIdentityConflict: a half-published epoch cannot be completed, as for ``commit``.
            CommitFailed: see ``commit``.
            StateDirectoryRefused: see ``commit``.
        """
        moves = _moves(item)
        if not moves:
            return CommitOutcome.DONE
        first = moves[0][0]
        with _explain_failure("void", item):
            self._require_folder(item)
            if not self._is_voided(moves) and not self._filesystem.move(first.path, first.path + _VOIDED).found:
                outcome = self._commit(item, moves)
                return CommitOutcome.ALREADY_DONE if outcome is CommitOutcome.DONE else outcome
            for ref, _ in moves[1:]:
                self._filesystem.delete(ref.path)
            # The name is the record of the void; the rows are not needed.
            self._filesystem.replace(first.path + _VOIDED, b"")
        return CommitOutcome.DONE

    def final(self, item: Committable, path: str) -> str | None:
        """The final path of a staged file; ``None`` if the committable does not name it."""
        try:
            return next((final for ref, final in _moves(item) if ref.path == path), None)
        except StateIncompatible:
            return None

    def has_evidence(self, item: Committable) -> bool:
        """Whether the folder of the generation exists, so that a staged file that is gone was published."""
        try:
            self._require_folder(item)
        except CommitFailed:
            return False
        return True

    def _require_folder(self, item: Committable) -> None:
        """Raise ``CommitFailed`` unless the folder of the generation exists (see the class)."""
        top = os.path.join(item.target, HIDDEN)
        for folder in sorted({_generation(top, ref.path) or top for ref in item.files}):
            address = self._filesystem.url(folder)
            if not address.startswith("file:"):
                continue  # an object store has no mounts, and its folders are only names
            try:
                os.stat(address.removeprefix("file://"))
            except FileNotFoundError as error:
                msg = (
                    f"Folder {folder} is not there, so whether the output of checkpoint {item.checkpoint} was "
                    "published cannot be told. Mount the target again, or put the folder back from where it was "
                    "moved. It is looked for again. If it was deleted, make it again, empty: what was staged in it "
                    "then counts as published, which it may not have been."
                )
                raise CommitFailed(msg, uid=item.uid) from error

    def _is_voided(self, moves: Sequence[tuple[FileRef, str]]) -> bool:
        return self._is_there(moves[0][0].path + _VOIDED)

    def _is_there(self, path: str) -> bool:
        return path in self._listed([os.path.dirname(path)])

    def _listed(self, folders: Iterable[str]) -> set[str]:
        """The files in some small folders, each listed once, which is cheaper than to look at each file."""
        listed = {folder: self._filesystem.list(folder) for folder in sorted(set(folders))}
        return {f"{folder}/{os.path.basename(path)}" for folder, paths in listed.items() for path in paths}

    def _publish(self, item: Committable, ref: FileRef, final: str) -> bool:
        """Whether this call renamed a staged file; ``False``: it is gone, or exists under both names."""
        if not self._is_published(item, ref, final):
            return self._filesystem.move(ref.path, final).found
        self._filesystem.delete(ref.path)  # a rename that left its source: the same file twice
        return False

    def _is_published(self, item: Committable, ref: FileRef, final: str) -> bool:
        """Whether the final file is there. One with other content is refused."""
        existing = self._filesystem.read(final)
        if existing is None or hashlib.sha256(existing).hexdigest() == ref.sha256:
            return existing is not None
        msg = (
            f"File {final} is there already, with other content than {ref.path}, which is to be published under that "
            f"name (checkpoint {item.checkpoint}). Nothing was overwritten. Move the foreign file away."
        )
        raise SinkIdentityConflict(msg, uid=item.uid)

    def _tidy(self, item: Committable, moves: Sequence[tuple[FileRef, str]]) -> None:
        """Remove the checksums that Hadoop wrote for the staged files, and folders that are empty now.

        The folder of the generation is never removed: it proves that the target is mounted.
        """
        top = os.path.join(item.target, HIDDEN)
        for ref, _ in moves:
            folder, _, name = ref.path.rpartition("/")
            self._filesystem.delete(f"{folder}/.{name}.crc")
            stop = _generation(top, ref.path)
            while stop is not None and folder.startswith(stop + "/"):
                try:
                    os.rmdir(folder)
                except OSError:
                    break  # not empty, not local, or removed by another process
                folder = os.path.dirname(folder)


def _generation(top: str, path: str) -> str | None:
    """The folder ``<top>/<log>/<uid>/<generation>`` of a staged file.

    >>> _generation("/out/.penstock", "/out/.penstock/log/uid/7/3/part-0.json")
    '/out/.penstock/log/uid/7'
    """
    below = path.removeprefix(top + "/").split("/")
    return "/".join([top, *below[:3]]) if path.startswith(top + "/") and len(below) > 3 else None  # noqa: PLR2004


@contextmanager
def _explain_failure(what: str, item: Committable) -> Iterator[None]:
    """Turn failures into errors that say what failed, why, and whether a retry may help."""
    try:
        yield
    except (PenstockError, UnknownOutcome, OSError) as error:
        if isinstance(error, PenstockError) and not error.retry:
            error.uid = error.uid or item.uid
            raise
        if isinstance(error, CommitFailed):
            raise
        number = _errno(error)
        remedy = REMEDIES.get(number) if number is not None else None
        end = f"{remedy}." if remedy else "It is tried again."
        msg = f"Cannot {what} the output of checkpoint {item.checkpoint} in {item.target}: {error}. {end}"
        kind = StateDirectoryRefused if remedy else CommitFailed
        raise kind(msg, uid=item.uid) from error


def _errno(error: BaseException | None) -> int | None:
    """The number of the first ``OSError`` in a chain of causes."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error.errno if error is not None else None


def _moves(item: Committable) -> list[tuple[FileRef, str]]:
    """Staged files and their final names. The first one decides between commit and void."""
    detail: Any = item.detail
    try:
        return [(ref, detail["moves"][ref.path]) for ref in item.files]
    except (KeyError, TypeError) as error:
        msg = (
            f"The committable of checkpoint {item.checkpoint} names no final file for {error}. Another version "
            "wrote it. Publish it with that version of penstock."
        )
        raise StateIncompatible(msg, uid=item.uid) from error
