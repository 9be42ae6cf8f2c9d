"""Small blocks of received rows in one file: when they are merged, and that everything still finds them."""

import pyarrow as pa
import pytest

from core.checkpoint_values import CLAIM, log_on
from core.test_received import at, checkpoint, owner, past, place
from core.test_request_keys import LIMITS, key
from penstock.admin.received import read_received, skip_block, unreadable_block
from penstock.admin.verify import Fault, broken_blocks, verify
from penstock.checkpoint.merged_blocks import (
    MERGED_BYTES,
    BlockFiles,
    block_file,
    decode_merged,
    encode_merged,
    runs_to_merge,
)
from penstock.checkpoint.received import SEAL, ReceivedBlocks
from penstock.connectors.receivers.blocks import encode_block
from penstock.control.client import JobDirectory, mark_released
from penstock.errors import CheckpointUnreadable, GenerationFenced, StateIncompatible, StorageFailed
from penstock.failpoints import FailpointCrash, armed
from penstock.filesystem.local import LocalFileSystem
from penstock.job.received_rows import unread_rows
from penstock.testing.filesystem import MemoryFileSystem

# --------------------------------------------------------------------------------------------------------------- format


@pytest.mark.parametrize("at", [0, 4, 20, 40])
def test_a_file_that_does_not_say_where_its_blocks_are_is_refused_with_its_name(at):
    whole = encode_merged([b"one", b"three"])
    damaged = bytearray(whole)
    damaged[len(whole) - 1 - at] ^= 1

    for content in (bytes(damaged), whole[at + 1 :], b""):
        with pytest.raises(CheckpointUnreadable, match="here is damaged"):
            decode_merged(content, "here")


def test_damage_to_one_block_leaves_the_others():
    whole = bytearray(encode_merged([b"one", b"three"]))
    whole[0] ^= 1

    assert decode_merged(bytes(whole), "here")[1] == b"three"


@pytest.mark.parametrize(
    ("sizes", "runs", "decided"),
    [
        ([], [], 0),
        ([1] * 255, [], 0),
        ([1] * 600, [(0, 256), (256, 512)], 512),
        ([MERGED_BYTES // 20 + 1] * 45, [(0, 20), (20, 40)], 40),
        ([1] * 15 + [MERGED_BYTES] * 3 + [1], [], 18),
        ([1] * 16 + [MERGED_BYTES], [(0, 16)], 17),
    ],
)
def test_a_run_ends_at_a_number_of_blocks_or_bytes_and_large_blocks_stay_alone(sizes, runs, decided):
    assert runs_to_merge(sizes) == (tuple(range(*run) for run in runs), decided)


# -------------------------------------------------------------------------------------------------------------- merging


class Merging:
    """A driver that merges two blocks into one file, and has written some."""

    def __init__(self, count=6, keys=None):
        self.filesystem = MemoryFileSystem()
        self.owned = owner(self.filesystem)
        self.blocks = ReceivedBlocks("in", self.owned, self.filesystem, pause=lambda _: None, merge_at=2)
        self.blocks.adopt(None, keys)
        self.written = [self.blocks.write(f"row {n}".encode(), [key(str(n))] if keys else ()) for n in range(count)]

    @property
    def names(self):
        files = (block_file(path) for path in self.filesystem.list("wal"))
        return [(file.first.number, file.last.number) for file in files if file is not None]

    def rows(self, blocks=None):
        return [(blocks or self.blocks).read(block).decode() for block in self.written]

    def successor(self, resume=None, keys=None):
        found = ReceivedBlocks("in", owner(self.filesystem), self.filesystem, pause=lambda _: None, merge_at=2)
        return found, found.adopt(resume, keys).blocks


ROWS = [f"row {number}" for number in range(6)]


def test_blocks_that_pile_up_are_merged_but_for_the_newest_and_read_as_before():
    job = Merging()

    assert job.blocks.clean() == 0
    assert sorted(job.names) == [(0, 1), (2, 3), (4, 4), (5, 5)]
    assert job.rows() == ROWS
    successor, adopted = job.successor()
    assert list(adopted) == job.written
    assert job.rows(successor) == ROWS
    assert job.filesystem.files[place(at(0, 6))] == SEAL


def test_a_position_within_a_merged_file_stays_one_and_the_file_goes_when_all_its_blocks_may():
    job = Merging()
    position = job.blocks.position(past(job.written[2]))
    checkpoint(job.owned, job.blocks.position(past(job.written[0])), 0, retained=1)
    job.blocks.clean()
    assert sorted(job.names) == [(1, 2), (3, 4), (5, 5)]

    checkpoint(job.owned, position, 1, retained=1)
    assert job.blocks.clean() == 1
    assert sorted(job.names) == [(3, 4), (5, 5)]
    assert list(job.successor(position)[1]) == job.written[3:]


def test_what_is_read_by_every_checkpoint_is_deleted_and_not_merged():
    job = Merging()
    checkpoint(job.owned, job.blocks.position(past(job.written[4])))

    assert job.blocks.clean() == 5
    assert [each.path for each in job.filesystem.operations if each.path.endswith(".blocks")] == []


@pytest.mark.parametrize("how", ["lose_answer", "delay"])
def test_a_merged_file_that_may_not_be_durable_replaces_nothing(how):
    job = Merging()
    getattr(job.filesystem, how)("create", path="wal/*.blocks")

    with pytest.raises(StorageFailed, match="is not known"):
        job.blocks.clean()
    job.filesystem.land()

    assert {(number, number) for number in range(6)} <= set(job.names)
    assert list(job.successor()[1]) == job.written
    job.blocks.clean()  # and goes on with the next ones
    assert job.rows() == ROWS


@pytest.mark.parametrize("where", ["received.merge.before", "received.merge.written", "received.merge.delete"])
def test_after_a_crash_every_block_is_read_once(where):
    job = Merging()
    with armed(where, "raise", hit=2), pytest.raises(FailpointCrash):
        job.blocks.clean()

    successor, adopted = job.successor()

    assert list(adopted) == job.written
    assert job.rows(successor) == ROWS


def test_a_fenced_driver_merges_nothing():
    job = Merging()
    owner(job.filesystem)

    with pytest.raises(GenerationFenced):
        job.blocks.clean()

    assert sorted(job.names) == [(number, number) for number in range(6)]


def test_a_file_of_that_name_that_was_put_there_replaces_nothing():
    job = Merging()
    job.filesystem.create(block_path(0, 1), encode_merged([b"", b""]))
    job.blocks.clean()

    assert job.rows() == ROWS


def block_path(first, last):
    return f"wal/in/0/{first:020d}-{last:020d}.blocks"


def test_keys_of_requests_stay_with_their_blocks():
    job = Merging(keys=LIMITS)
    job.blocks.clean()
    assert (0, 1) in job.names

    successor, _ = job.successor(keys=LIMITS)

    assert all(successor.find_key(str(number), 0) for number in range(6))


# ----------------------------------------------------------------------------------------------------------- operators

TABLES = [pa.table({"id": [number, number]}) for number in range(4)]


@pytest.fixture
def stopped(tmp_path):
    """A stopped job with four blocks of two rows, of which the first two lie in one file."""
    filesystem = LocalFileSystem(tmp_path / "state" / "orders")
    owned = log_on(filesystem, ids="claim")[0].claim(CLAIM, take_over=True)
    blocks = ReceivedBlocks("in", owned, filesystem, pause=lambda _: None, merge_at=2)
    blocks.adopt(None)
    for table in TABLES:
        blocks.write(encode_block(table))
    checkpoint(owned, blocks.position())
    blocks.clean()
    mark_released(owned.log_id, owned.generation)
    return JobDirectory(tmp_path / "state", "orders")


def broken(job):
    return [(each.path, each.fault) for each in verify(job).broken]


def harm(job, path, at):
    content = bytearray(job.filesystem.read(path))
    content[at] ^= 1
    job.filesystem.replace(path, bytes(content))


def test_status_and_a_start_without_the_source_count_the_rows_of_merged_files(stopped):
    history = stopped.read()
    (kept,) = read_received(stopped.filesystem, history).sources

    assert (kept.blocks, kept.unread_bytes) == (4, kept.bytes)
    assert [each.rows for each in unread_rows(stopped.filesystem, history, None, ())] == [8]


def test_verify_does_not_miss_a_block_that_was_merged_since_the_folder_was_listed(stopped):
    listed = [path for path in stopped.filesystem.list("wal") if not path.endswith(".blocks")]

    assert list(broken_blocks(stopped.filesystem, stopped.read(), listed, quick=True)) == []
    assert list(broken_blocks(stopped.filesystem, stopped.read(), listed, quick=False)) == []


def test_verify_finds_a_damaged_block_in_a_merged_file_and_a_skip_replaces_it_alone(stopped):
    assert verify(stopped).is_sound
    harm(stopped, block_path(0, 1), 100)
    assert broken(stopped) == [(place(at(0, 0)), Fault.CONTENT)]

    skip_block(stopped, place(at(0, 0)))

    assert verify(stopped).is_sound
    assert [each.rows for each in unread_rows(stopped.filesystem, stopped.read(), None, ())] == [6]


def test_a_merged_file_that_does_not_say_where_its_blocks_are_is_skipped_as_a_whole(stopped):
    with pytest.raises(StateIncompatible, match="is sound"):
        unreadable_block(stopped.filesystem, block_path(0, 1))
    harm(stopped, block_path(0, 1), -20)
    assert broken(stopped) == [(block_path(0, 1), Fault.CONTENT)]
    assert [each.rows for each in unread_rows(stopped.filesystem, stopped.read(), None, ())] == [6]

    skip_block(stopped, block_path(0, 1))

    assert verify(stopped).is_sound
    assert BlockFiles("in", stopped.filesystem).read(at(0, 2)) == encode_block(TABLES[2])
    assert [each.rows for each in unread_rows(stopped.filesystem, stopped.read(), None, ())] == [4]
