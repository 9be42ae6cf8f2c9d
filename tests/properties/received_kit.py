"""Drivers that receive rows into one job's write-ahead log: crashes, zombies, lost answers, failed syncs, rewinds.

The classes are the product's own; the file system is the one in memory. A story is a sequence of acts, and the same
acts give the same story. `Received.judge` kills everyone and asks, for each checkpoint that could be restored, whether
one fresh driver would have read each acknowledged row exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from core.checkpoint_values import CLAIM, manifest
from penstock.checkpoint.entries import StepRecord, StepRole
from penstock.checkpoint.gc import collect
from penstock.checkpoint.history import History
from penstock.checkpoint.log import Log, OwnedLog
from penstock.checkpoint.received import ReceivedBlocks
from penstock.checkpoint.recovery import plan_rewind
from penstock.errors import CheckpointUnreadable, PenstockError
from penstock.filesystem.base import Created, UnknownOutcome
from penstock.handles import BlockId, TaskSnapshot
from penstock.testing.filesystem import MemoryFileSystem

UID, RENAMED = "in", "renamed"
MERGE_AT = 2
"""So many blocks become one file here."""
FAULTS = ("answer lost", "lands late", "folder not synced")
STEPS = (StepRecord(uid=UID, role=StepRole.SOURCE, kind="received/1"),)
Act = tuple[Any, ...]


class GaveUp(Exception):
    """A driver waited for an answer that never came, and ended."""


class Disk(MemoryFileSystem):
    """Lets another driver act in the middle of a call, and fails a block's write in the ways a disk can."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] | None = None
        self.at = 0
        self.fault = ""
        self.on_their_way: list[tuple[str, bytes]] = []

    def _do(self, name: str, path: str, act: Callable[[], Any]) -> Any:
        if path.startswith("wal"):
            self._let_others_act()
        return super()._do(name, path, act)

    def _let_others_act(self) -> None:
        self.at -= 1
        if self.meanwhile is not None and self.at < 0:
            act_of_other, self.meanwhile = self.meanwhile, None
            act_of_other()

    def create(self, path: str, data: bytes) -> Created:
        fault, self.fault = self.fault, ""
        if not fault or not path.startswith("wal"):
            created = super().create(path, data)
            self._sync_folder(path)
            return created
        if fault == "answer lost":
            super().create(path, data)
        elif fault == "lands late":
            self.on_their_way.append((path, data))
        elif fault == "folder not synced" and path not in self.files:
            self.write_unsynced(path, data)
        raise UnknownOutcome(fault)

    def _sync_folder(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        self._durable |= {other: data for other, data in self.files.items() if other.rpartition("/")[0] == folder}


@dataclass(eq=False)
class Driver:
    """One driver: its claim, its blocks, what it has read, and the block that waits to be acknowledged."""

    log: OwnedLog
    blocks: ReceivedBlocks
    to_read: list[BlockId]
    read: tuple[str, ...]
    uid: str
    last: BlockId | None = None
    unconfirmed: str | None = None
    is_new: bool = True
    may_clean: bool = False
    written: int = 0

    @property
    def state(self) -> tuple[object, ...]:
        own = (self.is_new, self.may_clean, self.unconfirmed)
        return (self.log.generation, self.log.history.tail, self.read, self.last, own, *self.to_read)


@dataclass(eq=False)
class Received:
    """The job's directory, those who run or are paused, and what was promised to those who sent rows."""

    rows: int = 3
    starts: int = 3
    retained: int = 2
    rewinds: int = 1
    faults: int = 1
    disk: Disk = field(default_factory=Disk)
    drivers: list[Driver] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    sent: int = 0
    contents: dict[int, tuple[str, ...]] = field(default_factory=dict)
    wrong: str | None = None

    def __post_init__(self) -> None:
        self._ids = count()

    # ---- what may happen ---------------------------------------------------------------------------------------------

    def acts(self) -> Iterator[Act]:
        """Everything that may happen next."""
        if self.starts and len(self.drivers) < 2:
            yield ("start",)
            for other in range(len(self.drivers)):
                yield from (("start", at, other) for at in range(4))
            if self.rewinds:
                yield from (("rewind", target) for target in sorted(self._history().restorable)[:-1])
        for number, driver in enumerate(self.drivers):
            yield ("crash", number)
            if driver.unconfirmed is not None:
                yield ("confirm", number)
            elif self.sent < self.rows:
                yield ("write", number)
                if self.faults:
                    yield from (("write", number, how) for how in FAULTS)
            if driver.to_read:
                yield ("read", number)
            if driver.is_new:
                yield ("checkpoint", number)
            if driver.may_clean:
                yield from self._cleanings(number, driver)
        if self.disk.on_their_way:
            yield ("land",)
        if self.disk.files:
            yield ("power fails",)

    def _cleanings(self, number: int, driver: Driver) -> Iterator[Act]:
        yield ("clean", number)
        if driver.written > MERGE_AT:  # blocks may be merged: what may happen between two steps of it
            yield from (("clean", number, "dies", at) for at in range(2, 9))
            if self.faults:
                yield from (("clean", number, how) for how in FAULTS)
            if self.starts and len(self.drivers) < 2:
                yield from (("clean", number, "start", at) for at in range(2, 9))

    def do(self, act: Act) -> None:
        """One act; a driver that fails at it is gone."""
        what, *rest = act
        if what in ("start", "rewind"):
            self._start(*rest) if what == "start" else self._start(rewind_to=rest[0])
        elif what == "land":
            for path, data in self.disk.on_their_way:
                self.disk.create(path, data)
            self.disk.on_their_way.clear()
        elif what == "power fails":
            self.drivers.clear()
            self.disk.crash()
            self.disk.on_their_way.clear()
        else:
            driver = self.drivers[rest[0]]
            try:
                {
                    "crash": self._crash,
                    "write": self._write,
                    "confirm": self._confirm,
                    "read": self._read,
                    "checkpoint": self._checkpoint,
                    "clean": self._clean,
                }[what](driver, *rest[1:])
            except (PenstockError, GaveUp):
                self._crash(driver)

    # ---- drivers -----------------------------------------------------------------------------------------------------

    def _log(self) -> Log:
        def give_up(_seconds: float) -> None:
            raise GaveUp

        return Log(self.disk, job="orders", new_id=lambda: f"id-{next(self._ids)}", pause=give_up)

    def _history(self) -> History:
        return self._log().read()

    def _start(self, at: int | None = None, other: int | None = None, *, rewind_to: int | None = None) -> None:
        self.starts -= 1
        if at is not None:
            paused = self.drivers[other]
            self.disk.meanwhile, self.disk.at = lambda: self._act_whole(paused), at
        try:
            driver = self._open(rewind_to)
        except PenstockError as error:
            self.wrong = f"a start fails: {error}"
            return
        finally:
            self.disk.meanwhile = None
        self.drivers.append(driver)

    def _act_whole(self, driver: Driver) -> None:
        """The paused driver finishes what it does: it writes a row, if it has none, and has it confirmed."""
        try:
            if driver.unconfirmed is None and self.sent < self.rows:
                self._write(driver)
            if driver.unconfirmed is not None:
                self._confirm(driver)
        except PenstockError:
            self._crash(driver)

    def _open(self, rewind_to: int | None = None) -> Driver:
        log = self._log().claim(CLAIM, take_over=True)
        if rewind_to is not None:
            self.rewinds -= 1
            log.append(plan_rewind(log.history, rewind_to, at=9))
        point = log.history.restore_point
        resume = None if point is None else point.tasks[0].position
        uid = UID if point is None or self.starts % 2 else RENAMED  # every other start renames the source
        blocks = ReceivedBlocks(uid, log, self.disk, lambda _: None, merge_at=MERGE_AT)
        adopted = blocks.adopt(resume).blocks
        read = () if point is None else self.contents[point.checkpoint]
        return Driver(log, blocks, list(adopted), read, uid)

    def _crash(self, driver: Driver) -> None:
        if driver in self.drivers:
            self.drivers.remove(driver)

    def _write(self, driver: Driver, fault: str = "") -> None:
        self.sent += 1
        self.faults -= bool(fault)
        self.disk.fault = fault
        row = f"row {self.sent}"
        driver.to_read.append(driver.blocks.write(row.encode()))
        driver.written += 1
        driver.unconfirmed = row

    def _confirm(self, driver: Driver) -> None:
        row, driver.unconfirmed = driver.unconfirmed, None
        driver.blocks.check()
        self.acknowledged.add(row)

    def _read(self, driver: Driver) -> None:
        block = driver.to_read.pop(0)
        try:
            row = driver.blocks.read(block).decode()
        except CheckpointUnreadable as error:
            driver.blocks.check()  # whoever was taken over may miss a block
            self.wrong = f"a block cannot be read: {error}"
            return
        driver.read = (*driver.read, row)
        driver.last, driver.is_new = BlockId(block.generation, block.number + 1), True

    def _checkpoint(self, driver: Driver) -> None:
        history = driver.log.history
        parent = history.restore_point
        number = history.next_checkpoint
        task = TaskSnapshot(task=driver.uid, position=driver.blocks.position(driver.last))
        made = manifest(number, parent and parent.checkpoint, tasks=(task,), steps=STEPS)
        driver.log.append(collect(made, history, retained=self.retained))
        self.contents[number] = driver.read
        driver.is_new, driver.may_clean = False, True

    def _clean(self, driver: Driver, how: str = "", at: int = 0) -> None:
        driver.may_clean = False
        if how in FAULTS:
            self.faults -= 1
            self.disk.fault = how
        elif how:
            self.disk.meanwhile, self.disk.at = (self._start if how == "start" else _die), at
        try:
            driver.blocks.clean()
        except PenstockError:
            pass  # as a source does: the next clean-up goes on
        finally:
            self.disk.meanwhile, self.disk.fault = None, ""

    # ---- the judge ---------------------------------------------------------------------------------------------------

    def judge(self) -> str | None:
        """What is lost or repeated if everyone dies now and the power fails; ``None`` if all is well."""
        if self.wrong:
            return self.wrong
        for checkpoint in (None, *self._history().restorable):
            whole = replace(self, disk=Disk(), drivers=[], starts=1)
            for path, data in self.disk._durable.items():
                whole.disk.create(path, data)
            try:
                driver = whole._open(checkpoint)
                while driver.to_read:
                    whole._read(driver)
            except PenstockError as error:
                return f"a start from {checkpoint} fails: {error}"
            lost = self.acknowledged - set(driver.read)
            if lost:
                return f"a start from {checkpoint} loses {sorted(lost)}"
            if len(set(driver.read)) < len(driver.read):
                return f"a start from {checkpoint} repeats rows: {driver.read}"
        return None

    def key(self) -> object:
        """Equal for two worlds in which the same may happen."""
        return (
            tuple(sorted(self.disk.files.items())),
            frozenset(self.disk._durable),
            tuple(self.disk.on_their_way),
            tuple(driver.state for driver in self.drivers),
            frozenset(self.acknowledged),
            self.faults,
        )


def _die() -> None:
    raise GaveUp


def story(acts: list[Act], **bounds: int) -> Received:
    """The world after these acts."""
    world = Received(**bounds)
    for act in acts:
        world.do(act)
    return world
