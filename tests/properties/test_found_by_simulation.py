"""What seeds of the simulation have shown to be wrong once, each as small as it can be told."""

from __future__ import annotations

import itertools

import pytest

from penstock.checkpoint import paths
from penstock.checkpoint.coordinator import StopProgress
from penstock.checkpoint.entries import Claim, Manifest, Rewind, Stopped
from penstock.checkpoint.events import StopRequested, WriteStopped
from penstock.checkpoint.log import Log, OwnedLog
from penstock.checkpoint.recovery import decide_recovery
from penstock.clock import MonotonicTime, WallTime
from penstock.elements import CheckpointKind
from penstock.errors import StateDirectoryRefused
from penstock.filesystem.base import Created
from penstock.handles import CheckpointId, EntryNumber
from penstock.testing.filesystem import MemoryFileSystem

WALL = WallTime(0)


def log_in(filesystem: MemoryFileSystem) -> Log:
    ids = itertools.count()
    return Log(filesystem, job="shop", new_id=lambda: f"{id(ids)}-{next(ids)}", pause=lambda _: None)


def claimed(filesystem: MemoryFileSystem, **options: object) -> OwnedLog:
    return log_in(filesystem).claim(Claim(host="a", pid=1, started=WALL, version="1"), **options)  # type: ignore[arg-type]


def checkpoint(id: int) -> Manifest:
    return Manifest(
        checkpoint=CheckpointId(id),
        kind=CheckpointKind.PERIODIC,
        parent=None,
        triggered=WALL,
        completed=WALL,
        steps=(),
        tasks=(),
    )


def rot(filesystem: MemoryFileSystem, number: int) -> bytes:
    path = paths.entry(EntryNumber(number))
    before = filesystem.files[path]
    filesystem.corrupt(path, before[:-2])
    return before


def go_past(filesystem: MemoryFileSystem) -> Rewind:
    owned = claimed(filesystem, past_unreadable=True)
    found = decide_recovery(owned.history, (), at=WALL, fresh=True)
    assert found.rewind is not None
    owned.append(found.rewind)
    return found.rewind


class Overtaken(MemoryFileSystem):
    """A living owner is faster, once."""

    def create(self, path: str, data: bytes) -> Created:
        if path == paths.entry(EntryNumber(1)) and b"checkpoint" not in data:
            assert self.owner is not None
            owner, self.owner = self.owner, None
            owner.append(checkpoint(0))
        return super().create(path, data)

    owner: OwnedLog | None = None


def test_L2_who_expects_a_tail_refuses_also_when_the_log_moves_under_the_claim() -> None:
    filesystem = Overtaken()
    filesystem.owner = claimed(filesystem)
    with pytest.raises(StateDirectoryRefused, match="The log has moved"):
        claimed(filesystem, expect_tail=EntryNumber(0), take_over=True)


def test_R8_a_log_whose_only_checkpoint_cannot_be_read_is_gone_past_to_empty_state() -> None:
    filesystem = MemoryFileSystem()
    claimed(filesystem).append(checkpoint(0))
    rot(filesystem, 1)
    assert go_past(filesystem).lost == (1,)
    assert log_in(filesystem).read().next_checkpoint >= 1_000_000


def test_R8_a_claim_that_cannot_be_read_is_gone_past_though_entries_were_written_under_it() -> None:
    filesystem = MemoryFileSystem()
    claimed(filesystem)
    claimed(filesystem).append(checkpoint(0))
    rot(filesystem, 1)
    assert go_past(filesystem).lost == (1,)
    assert log_in(filesystem).read().restore_point is None


def test_R8_an_entry_that_was_gone_past_stays_lost_though_its_file_is_put_back() -> None:
    filesystem = MemoryFileSystem()
    owned = claimed(filesystem)
    owned.append(checkpoint(0))
    owned.append(checkpoint(1))
    before = rot(filesystem, 1)
    go_past(filesystem)
    filesystem.corrupt(paths.entry(EntryNumber(1)), before)
    history = log_in(filesystem).read()
    assert list(history.restorable) == [1]
    assert history.next_checkpoint >= 1_000_000


def test_C3_a_stop_that_comes_when_the_stopped_entry_is_on_its_way_is_not_in_it() -> None:
    ending = StopProgress()
    ending.add(StopRequested(at=MonotonicTime(0), wall=WALL, request="first"))
    ending.final = CheckpointId(1)
    second = StopRequested(at=MonotonicTime(0), wall=WALL, request="second")
    assert not ending.is_too_late_for(second, has_begun=True, is_sent=True)
    sent = ending.proceed((), WALL)
    assert sent == [WriteStopped(body=Stopped(checkpoint=CheckpointId(1), at=WALL, fulfils=("first",)))]
    assert ending.is_too_late_for(second, has_begun=True, is_sent=True)
