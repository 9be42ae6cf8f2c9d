"""The write-ahead log of one source: what is sealed, adopted, acknowledged and deleted."""

from dataclasses import replace

import pytest

from core.checkpoint_values import CLAIM, history, log_on, manifest
from penstock.checkpoint import paths
from penstock.checkpoint.entries import Claim
from penstock.checkpoint.gc import collect
from penstock.checkpoint.received import (
    SEAL,
    ReceivedBlocks,
    ReceivedPosition,
    SealedGeneration,
    adopt,
    generations_to_seal,
    low_mark,
)
from penstock.errors import CheckpointUnreadable, GenerationFenced, StateIncompatible, StorageFailed
from penstock.filesystem import local
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import BlockId, Position, TaskSnapshot
from penstock.testing.filesystem import MemoryFileSystem


@pytest.fixture
def filesystem():
    return MemoryFileSystem()


def owner(filesystem, **options):
    log, _ = log_on(filesystem, ids=f"claim-{len(filesystem.operations)}")
    return log.claim(CLAIM, take_over=True, **options)


def received(filesystem, owned=None, uid="in"):
    return ReceivedBlocks(uid, owned or owner(filesystem), filesystem, pause=lambda _: None)


def checkpoint(owned, position, number=0, **rest):
    task = TaskSnapshot(task="in", position=position)
    owned.append(collect(manifest(number, tasks=(task,)), owned.history, **rest))


def at(generation, number):
    return BlockId(generation, number)


def past(block):
    return at(block.generation, block.number + 1)


def place(block):
    return paths.block("in", block)


def test_a_block_is_read_back_as_it_was_written(filesystem):
    blocks = received(filesystem)
    blocks.adopt(None)

    assert [blocks.write(b"one"), blocks.write(b"two")] == [at(0, 0), at(0, 1)]
    assert blocks.read(at(0, 1)) == b"two"


def test_a_position_comes_back_as_it_was():
    position = ReceivedPosition(log_id="l", uid="in", next=at(7, 3), sealed=7)

    assert ReceivedPosition.decode(position.encode()) == position


# --------------------------------------------------------------------------------------------------------- a successor


def test_G5_a_successor_seals_and_reads_what_was_not_read(filesystem):
    first = received(filesystem)
    first.adopt(None)
    for row in (b"a", b"b", b"c"):
        first.write(row)

    second = received(filesystem)

    assert second.adopt(first.position(past(at(0, 0)))).blocks == (at(0, 1), at(0, 2))
    assert filesystem.files[place(at(0, 3))] == SEAL
    with pytest.raises(GenerationFenced, match="taken over"):
        first.write(b"d")


def test_G5_a_generation_without_a_folder_is_sealed_too(filesystem):
    silent = received(filesystem)
    silent.adopt(None)

    assert received(filesystem).adopt(None).blocks == ()

    assert filesystem.files[place(at(0, 0))] == SEAL
    with pytest.raises(GenerationFenced):
        silent.write(b"a")


def test_a_block_that_is_faster_than_the_seal_is_adopted(filesystem):
    first = received(filesystem)
    first.adopt(None)
    real, written = filesystem.create, []

    def create(path, data):
        if data == SEAL and not written:
            written.append(first.write(b"a"))
        return real(path, data)

    filesystem.create = create

    assert received(filesystem).adopt(None).blocks == (at(0, 0),)


def test_a_seal_whose_answer_is_lost_is_written_again(filesystem):
    received(filesystem).adopt(None)
    filesystem.lose_answer("create", path="wal/*")

    assert received(filesystem).adopt(None).blocks == ()
    assert filesystem.files[place(at(0, 0))] == SEAL


def test_what_a_crash_left_half_written_is_removed(filesystem):
    received(filesystem).adopt(None)

    received(filesystem).adopt(None)

    assert [each.path for each in filesystem.operations if each.name == "remove_temporary"] == ["wal/in/0"]


def test_G5_a_driver_that_was_taken_over_leaves_what_its_successor_is_writing(tmp_path, monkeypatch):
    disk = LocalFileSystem(tmp_path)
    slow, blocks = (
        ReceivedBlocks("in", log_on(disk, ids=ids)[0].claim(CLAIM, take_over=True), disk, pause=lambda _: None)
        for ids in ("slow", "next")
    )
    blocks.adopt(None)
    overtaken = []

    def meanwhile(place):
        if place == "local.create.temp_written":
            monkeypatch.undo()
            with pytest.raises(GenerationFenced, match="is a seal"):
                slow.adopt(None)
            overtaken.append(place)

    monkeypatch.setattr(local, "failpoint", meanwhile)

    assert blocks.read(blocks.write(b"a")) == b"a"
    assert overtaken


def test_the_sealed_generations_that_checkpoints_record_are_not_read_again(filesystem):
    received(filesystem).adopt(None)
    owned = owner(filesystem)
    second = received(filesystem, owned)
    second.adopt(None)
    checkpoint(owned, second.position())
    filesystem.operations.clear()

    received(filesystem).adopt(second.position())

    assert place(at(0, 0)) not in [each.path for each in filesystem.operations]


def test_G5_a_driver_that_was_taken_over_before_it_has_adopted_reads_no_seal_as_a_block(filesystem):
    slow = received(filesystem)
    received(filesystem).adopt(None)

    with pytest.raises(GenerationFenced, match="is a seal"):
        slow.adopt(None)


@pytest.mark.parametrize(
    ("claimed", "found", "expected"), [((), (), ()), ((3,), (), (3,)), ((), (4,), (4,)), ((1, 9), (1, 9, 12), (1,))]
)
def test_only_older_generations_are_sealed(claimed, found, expected):
    assert generations_to_seal(claimed, found, 9) == expected


# ------------------------------------------------------------------------------------------------------ missing blocks

SEALED = [
    SealedGeneration(generation=3, numbers=(1, 2), end=3),
    SealedGeneration(generation=4, numbers=(), end=0),
    SealedGeneration(generation=7, numbers=(0,), end=1),
]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (None, (at(3, 1), at(3, 2), at(7, 0))),
        (at(3, 2), (at(3, 2), at(7, 0))),
        (at(3, 3), (at(7, 0),)),
        (at(4, 0), (at(7, 0),)),
        (at(7, 1), ()),
        (at(9, 0), ()),
    ],
)
def test_blocks_are_read_generation_by_generation(start, expected):
    assert adopt(SEALED, start, place=place) == expected


@pytest.mark.parametrize(
    ("generations", "start", "missing"),
    [
        (SEALED, at(3, 0), at(3, 0)),
        ([SealedGeneration(generation=3, numbers=(0, 2), end=3)], at(3, 0), at(3, 1)),
        ([SealedGeneration(generation=3, numbers=(0, 1), end=3)], None, at(3, 2)),
        ([SealedGeneration(generation=3, numbers=(), end=0)], at(3, 2), at(3, 0)),
    ],
)
def test_a_missing_block_stops_the_job_with_its_name(generations, start, missing):
    with pytest.raises(CheckpointUnreadable, match=f"{place(missing)} is missing"):
        adopt(generations, start, place=place)


# -------------------------------------------------------------------------------------------- acknowledging, failures


def test_G5_a_newer_claim_is_a_fence_before_rows_are_acknowledged(filesystem):
    blocks = received(filesystem)
    blocks.adopt(None)
    blocks.write(b"a")
    blocks.check()

    owner(filesystem)

    with pytest.raises(GenerationFenced):
        blocks.check()


def test_an_entry_that_another_thread_is_appending_is_no_fence(filesystem):
    owned = owner(filesystem)
    blocks = received(filesystem, owned)
    blocks.adopt(None)
    before = owned.history
    checkpoint(owned, blocks.position())
    owned.history = before  # as the thread of the receiver sees it until the other one is done

    blocks.check()


def test_a_number_is_used_again_after_a_write_that_surely_failed(filesystem):
    blocks = received(filesystem)
    blocks.adopt(None)
    filesystem.fail("create", StorageFailed("No space left."), path="wal/*")

    with pytest.raises(StorageFailed, match="No space left"):
        blocks.write(b"a")

    assert blocks.write(b"b") == at(0, 0)


@pytest.mark.parametrize("how", ["lose_answer", "delay"])
def test_after_a_write_of_unknown_outcome_nothing_is_written_by_this_generation(filesystem, how):
    blocks = received(filesystem)
    blocks.adopt(None)
    getattr(filesystem, how)("create", path="wal/*")

    for _ in range(2):
        with pytest.raises(StorageFailed, match="is not known"):
            blocks.write(b"a")

    filesystem.land()
    assert received(filesystem).adopt(None).blocks == (at(0, 0),)


# ------------------------------------------------------------------------------------------------------------ cleaning


def test_G5_blocks_go_when_every_restorable_checkpoint_is_past_them(filesystem):
    owned = owner(filesystem)
    blocks = received(filesystem, owned)
    blocks.adopt(None)
    written = [blocks.write(b"a") for _ in range(4)]
    checkpoint(owned, blocks.position(past(written[0])), 0, retained=2)
    checkpoint(owned, blocks.position(past(written[2])), 1, retained=2)

    assert blocks.clean() == 1
    assert filesystem.read(place(written[0])) is None
    checkpoint(owned, blocks.position(past(written[2])), 2, retained=2)
    assert blocks.clean() == 2


def test_the_last_file_of_a_generation_stays_so_that_a_successor_knows_where_to_seal(filesystem):
    owned = owner(filesystem)
    blocks = received(filesystem, owned)
    blocks.adopt(None)
    last = [blocks.write(b"a") for _ in range(2)][-1]
    checkpoint(owned, blocks.position(past(last)))
    blocks.clean()

    assert received(filesystem).adopt(blocks.position(past(last))).blocks == ()

    assert filesystem.files[place(at(0, 2))] == SEAL


def test_nothing_is_deleted_while_a_checkpoint_from_before_the_source_can_be_restored():
    task = TaskSnapshot(
        task="in", position=ReceivedPosition(log_id="log-1", uid="in", next=at(0, 3), sealed=0).encode()
    )
    both = history(CLAIM, manifest(0), manifest(1, 0, tasks=(task,)))

    assert low_mark(both, "in") is None
    assert low_mark(history(CLAIM, manifest(1, tasks=(task,))), "in") == at(0, 3)


def test_G5_a_fenced_driver_deletes_nothing(filesystem):
    owned = owner(filesystem)
    blocks = received(filesystem, owned)
    blocks.adopt(None)
    written = [blocks.write(b"a") for _ in range(2)]
    checkpoint(owned, blocks.position(past(written[1])))
    owner(filesystem)

    with pytest.raises(GenerationFenced):
        blocks.clean()

    assert filesystem.read(place(written[0])) == b"a"


def test_a_fresh_start_reads_what_is_kept_from_the_first_on(filesystem):
    owned = owner(filesystem)
    first = received(filesystem, owned)
    first.adopt(None)
    written = [first.write(b"a") for _ in range(3)]
    checkpoint(owned, first.position(past(written[0])))

    assert received(filesystem).adopt(None).blocks == tuple(written[1:])


# ----------------------------------------------------------------------------------------------- positions of others


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (Position(kind="files/1", detail={}), "of kind 'files/1'"),
        (ReceivedPosition(log_id="other", uid="in", next=at(0, 0), sealed=0).encode(), "another state directory"),
    ],
)
def test_a_position_of_other_blocks_is_refused(filesystem, position, message):
    owned = owner(filesystem)

    with pytest.raises(StateIncompatible, match=message):
        received(filesystem, owned).adopt(position)


def test_a_claim_that_cannot_be_read_is_a_generation_too(filesystem):
    from penstock.checkpoint.history import Unreadable
    from penstock.checkpoint.received import known_claims

    found = replace(history(CLAIM, CLAIM), unreadable=(Unreadable(number=2, message="torn"),))

    assert known_claims(found) == {0, 1, 2}
    assert isinstance(found.entries[0].body, Claim)
