"""Idempotency keys: in the block of their rows, in files of their own before blocks go, known after any start."""

import pytest

from core.checkpoint_values import CLAIM, log_on, manifest
from penstock.checkpoint import paths
from penstock.checkpoint.gc import collect
from penstock.checkpoint.received import SEAL, ReceivedBlocks
from penstock.checkpoint.request_keys import KeyIndex, RequestKeys, decode_key_file, merged_with, split_keys, with_keys
from penstock.errors import CheckpointUnreadable, GenerationFenced, StorageFailed
from penstock.handles import BlockId, Generation, KeyLimits, RequestKey, TaskSnapshot
from penstock.testing.filesystem import MemoryFileSystem

LIMITS = KeyLimits(horizon=1_000, most=100)


def key(name, at=0, rows=1):
    return RequestKey(name, f"digest of {name}", rows, 0, at)


class Driver:
    """One claim on a job's directory."""

    claims = 0

    def __init__(self, filesystem, resume=None, limits=LIMITS):
        Driver.claims += 1
        self.filesystem = filesystem
        self.log = log_on(filesystem, ids=f"claim-{Driver.claims}")[0].claim(CLAIM, take_over=True)
        self.blocks = ReceivedBlocks("hook", self.log, filesystem, pause=lambda _: None)
        self.adopted = self.blocks.adopt(resume, limits).blocks
        self.last = None

    def write(self, *names, at=0):
        block = self.blocks.write(b"rows", [key(name, at) for name in names])
        self.last = BlockId(block.generation, block.number + 1)
        return block

    def checkpoint(self, **rest):
        history = self.log.history
        parent = history.restore_point
        task = TaskSnapshot(task="hook", position=self.blocks.position(self.last))
        made = manifest(history.next_checkpoint, parent and parent.checkpoint, tasks=(task,))
        self.log.append(collect(made, history, **{"retained": 1, **rest}))

    def knows(self, *names, now=0):
        return [name for name in names if self.blocks.find_key(name, now) is not None]


def files(filesystem, kind):
    return [path for path in filesystem.list("wal") if path.endswith(kind)]


@pytest.fixture
def disk():
    return MemoryFileSystem()


# -------------------------------------------------------------------------------------------------------------- format


def test_rows_and_keys_are_read_back_from_one_block(disk):
    driver = Driver(disk)
    block = driver.write("a", "b")

    assert driver.blocks.read(block) == b"rows"
    assert split_keys(disk.read(driver.blocks.place(block)), "here")[1] == (key("a"), key("b"))


def test_a_block_without_keys_is_as_it_was():
    assert with_keys(b"rows", ()) == b"rows"
    assert split_keys(b"rows", "here") == (b"rows", ())


@pytest.mark.parametrize("at", [0, 3, 20, -20, -50])
def test_a_damaged_block_or_file_is_refused_with_its_name(at):
    for content in (
        with_keys(b"rows", [key("a")]),
        with_keys(b"penstock keys/1\n", [key("a")], BlockId(Generation(4), 2)),
    ):
        harmed = bytearray(content)
        harmed[at] ^= 1
        with pytest.raises(CheckpointUnreadable, match="wal/hook/4/7 is damaged"):
            split_keys(bytes(harmed), "wal/hook/4/7")


@pytest.mark.parametrize("name", ["a", "ab"])  # an odd and an even length: a bit more is a byte more for one of them
@pytest.mark.parametrize("data", [b"rows", b'{"n": 1}\n', b'{"keys":[]}'])
def test_no_bit_of_the_length_of_the_keys_can_change_unnoticed(name, data):
    content = with_keys(data, [key(name)])
    for bit in range(64):
        harmed = bytearray(content)
        harmed[-16 + bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointUnreadable, match="wal/hook/4/7 is damaged"):
            split_keys(bytes(harmed), "wal/hook/4/7")


def test_a_file_of_keys_must_be_one():
    for content in (b"", b"rows", with_keys(b"penstock keys/1\n", [key("a")])):
        with pytest.raises(CheckpointUnreadable, match="is damaged"):
            decode_key_file(content, "here")


def test_a_damaged_file_of_keys_stops_a_start(disk):
    driver = Driver(disk)
    driver.write("a")
    driver.checkpoint()
    driver.blocks.clean()
    (path,) = files(disk, ".keys")
    disk.replace(path, disk.read(path)[:-1] + b"?")

    with pytest.raises(CheckpointUnreadable, match=path):
        Driver(disk)


# ----------------------------------------------------------------------------------------------------------- the index


def test_a_key_ends_with_its_horizon_and_makes_room():
    index = KeyIndex(KeyLimits(horizon=10, most=2))
    index.add([key("a", at=0), key("b", at=5)])

    assert not index.has_room(9)
    assert index.find("a", 9)
    assert index.find("a", 10) is None
    assert index.has_room(10)
    assert not index.has_room(10, in_flight=1)


def test_there_are_few_files_and_each_key_is_written_few_times():
    sizes, written = [], 0
    for _ in range(1_000):
        count = merged_with(sizes, 1)
        merged = 1 + sum(sizes[len(sizes) - count :])
        written += merged
        sizes = [*sizes[: len(sizes) - count], merged]
    assert len(sizes) <= 10
    assert written <= 1_000 * 12


# ---------------------------------------------------------------------------------------------------------- durability


def test_keys_outlive_their_blocks(disk):
    driver = Driver(disk)
    for number in range(40):
        driver.write(f"key {number}")
        driver.checkpoint()
        driver.blocks.clean()
    assert len(files(disk, ".block")) == 1
    assert len(files(disk, ".keys")) <= 7

    names = [f"key {number}" for number in range(40)]
    assert Driver(disk).knows(*names, now=5) == names


def test_the_file_is_durable_before_a_block_is_deleted(disk):
    driver = Driver(disk)
    driver.write("a")
    driver.write("b")
    driver.checkpoint()
    disk.fail("create", StorageFailed("The disk is full."), path="*.keys")

    with pytest.raises(StorageFailed):
        driver.blocks.clean()
    assert len(files(disk, ".block")) == 2
    disk.lose_answer("create", path="*.keys")
    with pytest.raises(StorageFailed, match="is not known"):
        driver.blocks.clean()
    assert len(files(disk, ".block")) == 2
    assert driver.blocks.clean() == 1
    assert Driver(disk).knows("a", "b") == ["a", "b"]


def test_planted_the_index_is_lost_with_its_blocks(disk, monkeypatch):
    monkeypatch.setattr(RequestKeys, "save", lambda keys: keys._covered)  # writes nothing
    driver = Driver(disk)
    driver.write("a")
    driver.write("b")
    driver.checkpoint()
    driver.blocks.clean()

    assert Driver(disk).knows("a", "b") == ["b"]


def test_a_block_that_lands_while_a_successor_seals_has_its_keys_known(disk, monkeypatch):
    first = Driver(disk)
    first.write("a")
    late, early = [], RequestKeys("hook", Generation(99), disk, LIMITS)
    seal = ReceivedBlocks._seal

    def write_meanwhile(blocks, generation, found, **rest):
        if not late:
            early.rebuild(SEAL)
            late.append(first.write("b"))
        return seal(blocks, generation, found, **rest)

    monkeypatch.setattr(ReceivedBlocks, "_seal", write_meanwhile)
    successor = Driver(disk)

    assert successor.adopted[-1] == late[0]
    assert successor.knows("a", "b") == ["a", "b"]
    assert early.find("b", 0) is None  # an index that is made before sealing misses it


def test_a_rewind_and_a_fresh_start_forget_no_key(disk):
    driver = Driver(disk)
    begin = driver.blocks.position()
    driver.write("a")
    driver.checkpoint()
    driver.blocks.clean()
    driver.write("b")

    for resume in (begin, None):
        assert Driver(disk, resume).knows("a", "b") == ["a", "b"]


def test_a_paused_process_deletes_no_key_that_a_successor_has_not_read(disk):
    driver = Driver(disk)
    for name in ("a", "b", "c"):
        driver.write(name)
        driver.checkpoint()
        driver.blocks.clean()
    driver.write("d")
    driver.checkpoint()
    successor = Driver(disk)
    successor.write("e")

    with pytest.raises(GenerationFenced):
        driver.blocks.clean()
    assert successor.knows(*"abcde") == list("abcde")
    assert Driver(disk).knows(*"abcde") == list("abcde")


def test_files_that_are_merged_while_a_successor_reads_are_read_merged(disk):
    driver = Driver(disk)
    for name in ("a", "b"):
        driver.write(name)
        driver.checkpoint()
        driver.blocks.clean()
    listed = [*files(disk, ".keys"), "wal/hook/0/00000000000000000099.keys"]  # listed, and then deleted
    calls = []

    class Stale(type(disk)):
        def list(self, prefix):
            calls.append(prefix)
            return listed if len(calls) == 1 else disk.list(prefix)

        def read(self, path):
            return disk.read(path)

    keys = RequestKeys("hook", Generation(99), Stale(), LIMITS)
    keys.rebuild(SEAL)
    assert len(calls) == 2
    assert keys.find("a", 0)
    assert keys.find("b", 0)


def test_a_start_reads_no_block_that_a_file_covers(disk):
    driver = Driver(disk)
    for _ in range(70):  # without keys
        driver.blocks.write(b"rows")
    driver.last = BlockId(driver.log.generation, 0)
    driver.checkpoint()
    driver.blocks.clean()
    driver.blocks.write(b"rows")
    assert len(files(disk, ".block")) == 71

    read = []
    original = disk.read
    disk.read = lambda path: read.append(path) or original(path)
    Driver(disk, driver.blocks.position())
    assert sum(path.endswith(".block") for path in read) <= 4  # the last of each generation, and its seal


def test_keys_that_have_ended_leave_the_disk(disk):
    driver = Driver(disk)
    for number in range(5):
        driver.write(f"old {number}")
    driver.checkpoint()
    driver.blocks.clean()
    assert driver.knows("old 1", now=5_000) == []
    for number in range(5):
        driver.write(f"new {number}", at=5_000)
    driver.checkpoint()
    driver.blocks.clean()

    (path,) = files(disk, ".keys")
    assert [each.key for each in decode_key_file(disk.read(path), path)[1]] == [f"new {number}" for number in range(5)]


def test_paths_of_files_of_keys():
    file = BlockId(Generation(7), 3)

    assert paths.key_file_id(paths.key_file("hook", file)) == file
    assert paths.block_id(paths.key_file("hook", file)) is None
    assert paths.key_file_id(paths.block("hook", file)) is None
