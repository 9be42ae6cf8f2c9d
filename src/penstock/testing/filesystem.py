"""A file system in memory that records operations and fails on demand: for tests of connectors and pipelines.

It can lose an answer, let a write land late, lose unsynced data in a crash, and raise at any operation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import TypeVar

from penstock.errors import CheckpointUnreadable, StateDirectoryRefused
from penstock.filesystem.base import Created, Moved, UnknownOutcome
from penstock.handles import FileRef

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Operation:
    """One call: its name (``"create"``) and its path."""

    name: str
    path: str


@dataclass(slots=True)
class _Fault:
    operation: str
    pattern: str
    left: int
    error: Exception | None = None
    late: bool = False


class MemoryFileSystem:
    """Files as a dictionary. Safe for several threads.

    Attributes:
        operations: every call, in order.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._lock = threading.RLock()
        self._files: dict[str, bytes] = {}
        self._durable: dict[str, bytes] = {}
        self._faults: list[_Fault] = []
        self._in_flight: list[Callable[[], object]] = []

    # ---- for the test ------------------------------------------------------------------------------------------------

    def fail(self, operation: str, error: Exception, *, path: str = "*", times: int = 1) -> None:
        """Raise ``error`` at the next calls of an operation on paths of a pattern; they have no effect."""
        self._faults.append(_Fault(operation, path, times, error=error))

    def lose_answer(self, operation: str, *, path: str = "*", times: int = 1) -> None:
        """Let the next such calls have their effect, but raise ``UnknownOutcome``."""
        self._faults.append(_Fault(operation, path, times))

    def delay(self, operation: str, *, path: str = "*", times: int = 1) -> None:
        """Let the next such calls raise ``UnknownOutcome`` and have their effect only when ``land`` is called."""
        self._faults.append(_Fault(operation, path, times, late=True))

    def land(self) -> None:
        """Apply the delayed operations in the order of their calls; they may find their names taken."""
        with self._lock:
            in_flight, self._in_flight = self._in_flight, []
            for act in in_flight:
                act()

    def write_unsynced(self, path: str, data: bytes) -> None:
        """Write as a Spark task does: a crash loses the file unless it was settled."""
        with self._lock:
            self._files[path] = data

    def corrupt(self, path: str, data: bytes) -> None:
        """Replace the content of a file, as a bad disk would."""
        with self._lock:
            self._files[path] = self._durable[path] = data

    def remove(self, path: str) -> None:
        """Remove a file without recording an operation."""
        with self._lock:
            self._files.pop(path)
            self._durable.pop(path, None)

    def crash(self) -> None:
        """Lose everything that is not durable, and all delayed operations, as when the power fails."""
        with self._lock:
            self._files = dict(self._durable)
            self._in_flight.clear()

    @property
    def files(self) -> dict[str, bytes]:
        """A copy of all files."""
        with self._lock:
            return dict(self._files)

    # ---- FileSystem --------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes | None:
        """Return the whole content, or ``None``."""
        return self._do("read", path, lambda: self._files.get(path))

    def create(self, path: str, data: bytes) -> Created:
        """Create the file if it is absent; durable."""

        def act() -> Created:
            if path in self._files:
                return Created.EXISTS
            self._files[path] = self._durable[path] = bytes(data)
            return Created.CREATED

        return self._do("create", path, act)

    def replace(self, path: str, data: bytes) -> None:
        """Write the file over an existing one; not yet durable."""
        self._do("replace", path, lambda: self._files.__setitem__(path, bytes(data)))

    def delete(self, path: str) -> None:
        """Delete the file; a crash may bring it back until ``sync`` was called."""
        self._do("delete", path, lambda: self._files.pop(path, None))

    def sync(self) -> None:
        """Make everything durable, as an orderly end of the process does."""
        with self._lock:
            self._durable = dict(self._files)

    def list(self, prefix: str) -> Sequence[str]:
        """Return all files below a folder, sorted."""
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        return self._do("list", prefix, lambda: sorted(path for path in self._files if path.startswith(folder)))

    def remove_temporary(self, prefix: str) -> None:
        """Do nothing but record the call: writes are whole at once."""
        self._do("remove_temporary", prefix, lambda: None)

    def remove_empty_folders(self, prefix: str) -> None:
        """Do nothing: there are no folders."""

    def settle(self, path: str, synced: set[str] | None = None) -> FileRef:  # noqa: ARG002 - there are no folders
        """Make the file durable and describe it."""

        def act() -> FileRef:
            data = self._files.get(path)
            if data is None:
                msg = f"{path} is not there, though a task said that it had written it."
                raise CheckpointUnreadable(msg)
            self._durable[path] = data
            return FileRef(path=path, length=len(data), sha256=sha256(data).hexdigest())

        return self._do("settle", path, act)

    def move(self, source: str, target: str) -> Moved:
        """Rename the file; durable."""

        def act() -> Moved:
            if source not in self._files:
                return Moved(found=False)
            if target in self._files:
                msg = f"{source} cannot be moved to {target}, since another file has that name. Use each name once."
                raise StateDirectoryRefused(msg)
            self._files[target] = self._durable[target] = self._files.pop(source)
            self._durable.pop(source, None)
            return Moved(found=True)

        return self._do("move", source, act)

    def url(self, path: str) -> str:
        """Return an address that only a fake Spark understands."""
        return f"memory:///{path.lstrip('/')}"

    def _do(self, name: str, path: str, act: Callable[[], _T]) -> _T:
        with self._lock:
            self.operations.append(Operation(name, path))
            fault = self._fault(name, path)
            if fault is None:
                return act()
            if fault.error is not None:
                raise fault.error
            if fault.late:
                self._in_flight.append(act)
            else:
                act()
            msg = f"There was no answer to {name} of {path}."
            raise UnknownOutcome(msg)

    def _fault(self, name: str, path: str) -> _Fault | None:
        for fault in self._faults:
            if fault.left and fault.operation == name and fnmatchcase(path, fault.pattern):
                fault.left -= 1
                return fault
        return None
