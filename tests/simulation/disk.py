"""The file system of the simulation: every call is a place where another may run, a process die, an answer be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import paths
from penstock.errors import PenstockError, StorageFailed
from penstock.filesystem.base import Created, Moved, UnknownOutcome
from penstock.handles import EntryNumber
from penstock.testing.filesystem import MemoryFileSystem

if TYPE_CHECKING:
    from simulation.world import World

IN_THE_JOB = "deadletters"
"""The only folder of the job whose files have absolute names, too: sinks publish there."""

UNCERTAIN = frozenset({"create", "move"})
"""Calls whose answer may be lost."""


class Disk(MemoryFileSystem):
    """Memory, with a gate before and behind each call. What is delayed lands alone, at any time, or never."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.in_flight: list[tuple[str, str, Callable[[], Any]]] = []
        self.used: dict[str, bytes] = {}
        """What each name was first used for."""
        self.rotten: dict[str, bytes] = {}
        """Entries that are not what was written, or gone; and what was written."""
        self.moved_at: dict[str, int] = {}
        """When what was published got its name."""
        self.mended: set[str] = set()
        """Entries that were, and were put back; also while somebody was about to claim upon what they were."""

    # ------------------------------------------------------------------------------- one folder that has two names

    def url(self, path: str) -> str:
        """As sinks name it that publish in the job's directory."""
        return super().url(path) if path.startswith("/") else f"file:///job/{path}"

    def read(self, path: str) -> bytes | None:
        return super().read(_at(path))

    def create(self, path: str, data: bytes) -> Created:
        return super().create(_at(path), data)

    def delete(self, path: str) -> None:
        super().delete(_at(path))

    def list(self, prefix: str) -> Sequence[str]:
        found = super().list(_at(prefix))
        return found if _at(prefix) == prefix else [path.removeprefix("/job/") for path in found]

    # --------------------------------------------------------------------------------------------------------- gates

    def write_unsynced(self, path: str, data: bytes) -> None:
        """What a Spark task does, through the gate."""
        self._do("write", path, lambda: self._files.__setitem__(path, data))

    def copy_for(self, world: World, *, durable_only: bool) -> Disk:
        """What is left when everybody is dead and nothing in flight lands."""
        copy = Disk(world)
        copy._durable = dict(self._durable)
        copy._files = dict(self._durable if durable_only else self._files)
        copy.used = dict(self.used)
        copy.rotten = dict(self.rotten)
        copy.mended = set(self.mended)
        copy.moved_at = dict(self.moved_at)
        return copy

    # ------------------------------------------------------------------------------------------- hands laid on the log

    def damage(self, path: str, data: bytes | None) -> None:
        """Other bytes, or none, where an entry was written."""
        self.rotten[path] = self._files[path]
        if data is None:
            self.remove(path)
        else:
            self.corrupt(path, data)

    def mend(self, *, missing_only: bool = False) -> None:
        """The operator puts entries back from a copy; too late for one that somebody has claimed upon as it was."""
        for path, data in list(self.rotten.items()):
            number = paths.entry_number(path)
            assert number is not None
            above = self._files.get(paths.entry(EntryNumber(number + 1)))
            is_linked = above is None or sha256(data).hexdigest().encode() in above
            if is_linked and not (missing_only and path in self._files):
                self.corrupt(path, data)
                del self.rotten[path]
                self.mended.add(path)

    def is_entry(self, number: int) -> bool:
        """Whether this entry is there and can be read."""
        path = paths.entry(EntryNumber(number))
        return path in self._files and path not in self.rotten

    def durable_items(self) -> Iterable[tuple[str, bytes]]:
        """What a crash leaves."""
        return self._durable.items()

    def durable(self, path: str) -> bytes | None:
        """What a crash leaves of it."""
        return self._durable.get(path)

    def is_there(self, path: str) -> bool:
        """Whether the file exists."""
        return path in self._files

    def wipe(self) -> None:
        """The operator deletes the state directory; what sinks published stays."""
        for files in (self._files, self._durable):
            for path in [path for path in files if not path.startswith("/") or path.startswith("/job/")]:
                del files[path]
        self.in_flight.clear()
        self.used.clear()
        self.rotten.clear()
        self.mended.clear()
        self.moved_at.clear()

    def land_one(self, number: int) -> str:
        """One delayed call takes effect."""
        name, path, act = self.in_flight.pop(number)
        with suppress(PenstockError):  # its name may be taken; nobody waits for the answer
            self._effect(name, path, act, is_late=True)
        return f"{name} {path}"

    def move(self, source: str, target: str) -> Moved:
        self.moved_at.setdefault(target, self._world.wall())
        return super().move(source, target)

    def _do(self, name: str, path: str, act: Callable[[], Any]) -> Any:
        world = self._world
        if world.current is None:
            return act()
        world.before(name, path)
        fault = world.fault(name, path)
        if fault is None:
            try:
                result = self._effect(name, path, act)
            except PenstockError as error:
                world.observe((name, path, str(error)))
                raise
            world.observe((name, path, tuple(result) if isinstance(result, list) else result))
            world.after(name, path)
            return result
        if fault == "fails":
            msg = f"{name} of {path} failed"
            raise StorageFailed(msg)
        if fault == "late":
            self.in_flight.append((name, path, act))
        else:
            self._effect(name, path, act)
        msg = f"no answer to {name} of {path}"
        raise UnknownOutcome(msg)

    def _effect(self, name: str, path: str, act: Callable[[], Any], *, is_late: bool = False) -> Any:
        if name in ("read", "list"):
            return act()
        before = self._files.get(path)
        result = act()
        after = self._files.get(path)
        if before is not after:
            self._changed(name, path, before, after, is_late=is_late)
        return result

    def _changed(self, name: str, path: str, before: bytes | None, after: bytes | None, *, is_late: bool) -> None:
        ledger = self._world.ledger
        if name in ("create", "write") and after is not None:
            if path.startswith("log/"):
                ledger.entry_landed(path, after)
                self._find_unlinked(path, after)
                return
            if path.startswith("control/"):
                self._world.answers.landed(path, after)
                return
            # The first try of a repeated call may land when the file is deleted already: the same bytes, once more.
            if path in self.used and not (is_late and self.used[path] == after):
                ledger.violated("L7", f"the name {path} is used twice")
            self.used[path] = after
            if path.endswith(".blocks"):
                self._world.count("merged")
            if "/_replays/" in path:
                ledger.letters.landed(path, after)
        elif name == "move":
            ledger.moved(path, before or b"")
        elif name == "delete":
            self.rotten.pop(path, None)
            self._world.answers.forgotten(path)
            ledger.deleted(path)

    def _find_unlinked(self, path: str, data: bytes) -> None:
        """Whoever wrote this entry had read the one below before it was put back: now that one cannot be read again."""
        below = next(
            (each for each in self.mended if paths.entry_number(each) == (paths.entry_number(path) or 0) - 1), ""
        )
        if below in self._files and sha256(self._files[below]).hexdigest().encode() not in data:
            self.rotten[below] = self._files[below]


def _at(path: str) -> str:
    return f"/job/{path}" if path.startswith(IN_THE_JOB) else path
