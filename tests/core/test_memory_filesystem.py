"""The file system in memory: its faults do what their names say."""

import pytest

from penstock.errors import StorageFailed
from penstock.filesystem.base import Created, UnknownOutcome
from penstock.testing.filesystem import MemoryFileSystem, Operation


@pytest.fixture
def filesystem():
    return MemoryFileSystem()


def test_every_call_is_logged_in_order(filesystem):
    filesystem.create("a", b"")
    filesystem.read("b")
    filesystem.list("c")
    filesystem.move("a", "d")

    assert filesystem.operations == [
        Operation(*each) for each in [("create", "a"), ("read", "b"), ("list", "c"), ("move", "a")]
    ]


def test_a_fault_strikes_its_operation_its_paths_and_its_number_of_times(filesystem):
    filesystem.fail("create", StorageFailed("full"), path="log/*", times=2)

    assert filesystem.create("state/a", b"") is Created.CREATED
    for _ in range(2):
        with pytest.raises(StorageFailed, match="full"):
            filesystem.create("log/1", b"")
    assert filesystem.create("log/1", b"") is Created.CREATED


def test_a_lost_answer_has_its_effect(filesystem):
    filesystem.lose_answer("create")
    with pytest.raises(UnknownOutcome, match="no answer to create of a"):
        filesystem.create("a", b"x")

    assert filesystem.read("a") == b"x"


def test_a_delayed_write_lands_later_and_may_find_its_name_taken(filesystem):
    filesystem.delay("create", times=2)
    for path in ("a", "b"):
        with pytest.raises(UnknownOutcome):
            filesystem.create(path, b"late")
    filesystem.create("a", b"first")
    assert filesystem.read("b") is None

    filesystem.land()

    assert filesystem.files == {"a": b"first", "b": b"late"}


def test_a_crash_loses_what_was_not_synced_and_what_is_in_flight(filesystem):
    filesystem.create("created", b"1")
    filesystem.replace("hint", b"2")
    filesystem.write_unsynced("settled", b"3")
    filesystem.settle("settled")
    filesystem.write_unsynced("written", b"4")
    filesystem.create("old", b"5")
    filesystem.move("old", "new")
    filesystem.create("deleted", b"6")
    filesystem.delete("deleted")
    filesystem.delay("create")
    with pytest.raises(UnknownOutcome):
        filesystem.create("late", b"7")

    filesystem.crash()
    filesystem.land()

    assert filesystem.files == {"created": b"1", "settled": b"3", "new": b"5", "deleted": b"6"}


def test_an_orderly_end_makes_everything_durable(filesystem):
    filesystem.create("a", b"")
    filesystem.delete("a")
    filesystem.replace("hint", b"2")
    filesystem.sync()
    filesystem.crash()

    assert filesystem.files == {"hint": b"2"}
