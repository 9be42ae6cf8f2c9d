"""The local disk as a file system, with fsync: what a call has done survives a power failure once it returns.

A hard link creates a file exclusively and as a whole: the content is written and synced under a temporary name, then
linked to the final name, which fails if that exists. ``LocalFileSystem.probe`` refuses network file systems that
only pretend to do this.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from penstock.errors import CheckpointError, CheckpointUnreadable, StateDirectoryRefused, StorageFailed, sentence
from penstock.failpoints import failpoint
from penstock.filesystem.base import Created, Moved, UnknownOutcome
from penstock.handles import FileRef

NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ncpfs", "fuse.sshfs", "fuse.s3fs"})
"""Types of file systems whose exclusive create or listing is not reliable from several hosts."""
_REFUSED_ERRNOS: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR})
"""Errors that mean that the directory cannot be used at all."""
_UNKNOWN_OUTCOME_ERRNOS: Final = frozenset({errno.EIO, errno.ETIMEDOUT, errno.ESTALE})
"""Errors after which the link may have been made all the same."""
_TEMPORARY_PREFIX: Final = ".penstock-tmp-"
_CHUNK_BYTES: Final = 1 << 20
_counter = itertools.count()  # makes names unique in this process


class LocalFileSystem:
    """Files below ``root``; absolute paths and ``file:`` addresses are used as they are.

    Files are created with mode 0600, folders below the root with 0700. Temporary files that a crash has left behind
    are never listed.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(os.path.realpath(root))

    def __repr__(self) -> str:
        return f"LocalFileSystem({str(self._root)!r})"

    # ---- reading -----------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes | None:
        """The whole content, or ``None`` if there is no such file."""
        file = self._path(path)
        with _translate_errors(file, "read"):
            try:
                return file.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, prefix: str) -> Sequence[str]:
        """All files below the folder, as paths that this file system accepts."""
        folder = self._path(prefix)
        base = folder if prefix.startswith(("/", "file:")) else Path(prefix)  # of the paths that are returned
        found: list[str] = []
        with _translate_errors(folder, "list"):
            for directory, _, names in os.walk(folder, onerror=_raise_unless_absent):
                parent = base / Path(directory).relative_to(folder)
                found += [(parent / name).as_posix() for name in names if not name.startswith(_TEMPORARY_PREFIX)]
        return sorted(found)

    def url(self, path: str) -> str:
        """A ``file:`` address, not percent-encoded: Spark takes it literally."""
        return f"file://{self._path(path)}"

    # ---- writing -----------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> Created:
        """Create if absent: links a synced temporary file to ``path``, then syncs the folder."""
        file = self._path(path)
        with _translate_errors(file, "create"):
            if file.exists():
                _sync_folder(file.parent)
                return Created.EXISTS
            self._make_folders(file.parent)
            temporary = self._write_temporary(file.parent, data)
            try:
                failpoint("local.create.temp_written")
                is_ours = _link(temporary, file)
            finally:
                with suppress(OSError):
                    temporary.unlink()
            if not is_ours:
                _sync_folder(file.parent)
                return Created.EXISTS
        try:
            failpoint("local.create.linked")
            _sync_folder(file.parent)
        except OSError as error:
            msg = f"{file} was created, but whether it would survive a crash is not known: {sentence(error)}"
            raise UnknownOutcome(msg) from error
        return Created.CREATED

    def replace(self, path: str, data: bytes) -> None:
        """Create or overwrite a file; a crash leaves either the old or the new content."""
        file = self._path(path)
        with _translate_errors(file, "write"):
            self._make_folders(file.parent)
            temporary = self._write_temporary(file.parent, data)
            temporary.replace(file)
            _sync_folder(file.parent)

    def delete(self, path: str) -> None:
        """Delete one file; folders that become empty stay."""
        file = self._path(path)
        with _translate_errors(file, "delete"), suppress(FileNotFoundError, NotADirectoryError):
            file.unlink()

    def remove_temporary(self, prefix: str) -> None:
        """Remove temporary files that crashed processes left below the folder; they never had their final name."""
        folder = self._path(prefix)
        with _translate_errors(folder, "clean"):
            for directory, _, names in os.walk(folder, onerror=_raise_unless_absent):
                for name in names:
                    if name.startswith(_TEMPORARY_PREFIX):
                        Path(directory, name).unlink(missing_ok=True)

    def remove_empty_folders(self, prefix: str) -> None:
        """Remove the folder and those below it, as far as they are empty; nobody writes there any more. Never fails."""
        for directory, _, _ in os.walk(self._path(prefix), topdown=False):
            with suppress(OSError):
                os.rmdir(directory)

    def settle(self, path: str, synced: set[str] | None = None) -> FileRef:
        """Sync a file that a Spark task wrote, and its folders up to the root; reads it once for its checksum."""
        file = self._path(path)
        digest, length = sha256(), 0
        with _translate_errors(file, "settle"):
            try:
                with file.open("rb") as content:
                    while chunk := content.read(_CHUNK_BYTES):
                        digest.update(chunk)
                        length += len(chunk)
                    _sync(content.fileno())
            except (FileNotFoundError, NotADirectoryError) as error:
                msg = (
                    f"{file} is missing, although a task reported that it had written it. The driver and all executors "
                    "must see the same state directory."
                )
                raise CheckpointUnreadable(msg) from error
            failpoint("local.settle.synced")
            self._sync_up(file.parent, set() if synced is None else synced)
        return FileRef(path=path, length=length, sha256=digest.hexdigest())

    def move(self, source: str, target: str) -> Moved:
        """Rename atomically: at any time the file has exactly one of its two names, and only one mover finds it."""
        # A hard link and an unlink would refuse an existing target atomically. But between the two, a reader could take
        # the target away while the source still exists, as if nothing were published. So it is a rename, and a check
        # before it refuses an existing target. Names are never used twice: the check is against mistakes, not races.
        old, new = self._path(source), self._path(target)
        with _translate_errors(new, f"move {old} to"):
            if not old.exists():
                return _moved_before(new)
            if new.exists() and not new.samefile(old):
                msg = f"{old} cannot be moved to {new}, because another file has that name. Names are never used twice."
                raise StateDirectoryRefused(msg)
            self._make_folders(new.parent)
            failpoint("local.move.before")
            try:
                os.rename(old, new)
            except FileNotFoundError:
                return _moved_before(new)
            if old.exists():  # both were names of one file: POSIX has rename do nothing then
                old.unlink()
            failpoint("local.move.renamed")
            _sync_folder(new.parent)
            _sync_folder(old.parent)
        return Moved(found=True)

    # ---- start -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a directory that surely cannot hold a log, without writing there.

        Raises:
            StateDirectoryRefused: it is on a network file system, a file is in its place, or this user may not write
                to it.
        """
        kind = kind_of(self._root)
        if kind in NETWORK:
            msg = (
                f"{self._root} lies on {kind}, where two hosts could own one job. Use a local disk or an object store."
            )
            raise StateDirectoryRefused(msg)
        with _translate_errors(self._root, "write in"):
            nearest = next(folder for folder in (self._root, *self._root.parents) if folder.exists())
            if not nearest.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(nearest, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def probe(self) -> None:
        """Refuse a directory that does not create files exclusively and durably, as the log needs.

        Raises:
            StateDirectoryRefused: as ``check``, or it has no hard links.
        """
        self.check()
        path = f".penstock-probe-{os.getpid()}-{next(_counter)}"
        try:
            answers = [self.create(path, b"first"), self.create(path, b"second")]
            content = self.read(path)
        finally:
            with suppress(CheckpointError):
                self.delete(path)
        if answers != [Created.CREATED, Created.EXISTS] or content != b"first":
            msg = (
                f"{self._root} does not refuse to create a file that exists ({kind_of(self._root)}). The log needs a "
                "file system that does: use a local disk, or an object store with conditional writes."
            )
            raise StateDirectoryRefused(msg)

    # ---- helpers -----------------------------------------------------------------------------------------------------

    def _path(self, path: str) -> Path:
        """Where ``path`` is on the disk."""
        if path.startswith("file:"):
            path = "/" + path.removeprefix("file:").lstrip("/")
        if path.startswith("/"):
            return Path(path)
        if "://" in path or ".." in path.split("/"):
            msg = f"{path!r} is not a path on a local disk below {self._root}."
            raise StateDirectoryRefused(msg)
        return self._root / path

    def _make_folders(self, folder: Path) -> None:
        """Make missing folders, and sync the parent of each."""
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            is_ours = each == self._root or self._root in each.parents
            with suppress(FileExistsError):
                each.mkdir(mode=0o700 if is_ours else 0o777)
            try:
                _sync_folder(each.parent)
            except OSError:  # the next caller must not take it for durable because it exists
                with suppress(OSError):
                    each.rmdir()
                raise

    def _write_temporary(self, folder: Path, data: bytes) -> Path:
        """Write and sync a new temporary file."""
        while True:
            temporary = folder / f"{_TEMPORARY_PREFIX}{os.getpid()}-{next(_counter)}"
            try:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:  # left behind by a process with the same id, perhaps on another host
                continue
            break
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                _sync(file.fileno())
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        return temporary

    def _sync_up(self, folder: Path, synced: set[str]) -> None:
        """Sync a folder, which another process may have made, and its parents up to the root; note those that were."""
        found: list[str] = []
        while str(folder) not in synced:
            _sync_folder(folder)
            found.append(str(folder))
            if folder == self._root or self._root not in folder.parents:
                break
            folder = folder.parent
        synced.update(found)  # at the end, for whoever finds one there relies on those above it


@contextmanager
def _translate_errors(file: Path, what: str) -> Iterator[None]:
    """Turn an ``OSError`` into a ``PenstockError`` with the path and the remedy; ``what`` is the verb."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _REFUSED_ERRNOS:
            msg = f"Cannot {what} {file}: {reason}. Make the directory writable for this user, or choose another one."
            raise StateDirectoryRefused(msg) from error
        remedy = {errno.ENOSPC: " Free some space.", errno.EDQUOT: " Raise the quota."}.get(error.errno or 0, "")
        msg = f"Cannot {what} {file}: {reason}.{remedy}"
        raise StorageFailed(msg) from error


def _raise_unless_absent(error: OSError) -> None:
    """Raise an error of ``os.walk``, unless the folder is absent or has disappeared: then it counts as empty."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _link(temporary: Path, file: Path) -> bool:
    """Link the temporary file to its final name; ``False`` if another file has that name."""
    try:
        os.link(temporary, file)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _UNKNOWN_OUTCOME_ERRNOS:
            msg = f"Whether {file} was created is not known: {sentence(error)}"
            raise UnknownOutcome(msg) from error
        raise
    return True


def _moved_before(target: Path) -> Moved:
    """The answer for a source that is gone. Whoever renamed it may have died before the rename was durable."""
    with suppress(FileNotFoundError, NotADirectoryError):
        _sync_folder(target.parent)
    return Moved(found=False)


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":  # fsync does not flush the drive's own cache there
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def kind_of(path: Path) -> str:
    """The type of the file system that ``path`` is on, or ``"unknown"``."""
    nearest, kind = Path("/"), "unknown"
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, mount_text, mount_kind, *_ = line.split(" ")
            mount = Path(mount_text.replace("\\040", " "))  # the kernel escapes a space
            if (mount == path or mount in path.parents) and len(mount.parts) >= len(nearest.parts):
                nearest, kind = mount, mount_kind
    return kind
