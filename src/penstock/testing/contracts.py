"""Test suites that implementations of penstock's protocols must pass; subclass one and give it a fixture.

::

    class TestMyFileSystem(FileSystemContract):
        @pytest.fixture
        def filesystem(self, tmp_path):
            return MyFileSystem(tmp_path)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest

from penstock.errors import CheckpointError, CheckpointUnreadable
from penstock.filesystem.base import Created, FileSystem, Moved
from penstock.testing.contract_sink import SinkContract
from penstock.testing.contract_source import SourceContract

__all__ = ["FileSystemContract", "SinkContract", "SourceContract"]


class FileSystemContract:
    """What a log, layers and staged output rely on. Override :meth:`filesystem`, empty for each test."""

    @pytest.fixture
    def filesystem(self) -> FileSystem:
        """An empty file system."""
        msg = "override the fixture 'filesystem'"
        raise pytest.UsageError(msg)

    def write(self, filesystem: FileSystem, path: str, data: bytes) -> None:
        """Write a file as a Spark task would; override it where ``replace`` is not the way."""
        filesystem.replace(path, data)

    def test_what_was_created_is_read_back_whole(self, filesystem: FileSystem) -> None:
        """Content comes back byte for byte, whatever the bytes."""
        for path, data in {"a": b"", "folder/b": bytes(range(256)), "deep/er/c": b"x" * 300_000}.items():
            assert filesystem.create(path, data) is Created.CREATED
            assert filesystem.read(path) == data

    def test_what_is_absent_reads_as_none(self, filesystem: FileSystem) -> None:
        """Absent files, absent folders, and a path below a file."""
        filesystem.create("file", b"x")
        assert filesystem.read("nothing") is None
        assert filesystem.read("no/thing") is None
        assert filesystem.read("file/below") is None

    def test_a_second_create_changes_nothing(self, filesystem: FileSystem) -> None:
        """Create-if-absent: the first content stays, also if the second is the same."""
        assert filesystem.create("log/0", b"first") is Created.CREATED
        assert filesystem.create("log/0", b"second") is Created.EXISTS
        assert filesystem.create("log/0", b"first") is Created.EXISTS
        assert filesystem.read("log/0") == b"first"

    def test_of_many_creators_one_wins_and_its_content_stays(self, filesystem: FileSystem) -> None:
        """Mutual exclusion and atomic visibility, under threads."""
        for turn in range(20):
            path = f"race/{turn}"
            contents = [bytes([number]) * 1000 for number in range(8)]
            with ThreadPoolExecutor(len(contents)) as pool:
                answers = list(pool.map(lambda data, path=path: filesystem.create(path, data), contents))
            winners = [data for data, answer in zip(contents, answers, strict=True) if answer is Created.CREATED]
            assert winners == [filesystem.read(path)]

    def test_a_deleted_name_is_absent_and_deleting_again_is_fine(self, filesystem: FileSystem) -> None:
        """Deletion is idempotent."""
        filesystem.create("state/a", b"1")
        filesystem.delete("state/a")
        filesystem.delete("state/a")
        filesystem.delete("never/there")
        assert filesystem.read("state/a") is None
        assert list(filesystem.list("state")) == []

    def test_replace_writes_over_what_is_there(self, filesystem: FileSystem) -> None:
        """A hint is replaced whole."""
        filesystem.replace("hint", b"a longer text")
        filesystem.replace("hint", b"short")
        assert filesystem.read("hint") == b"short"

    def test_a_listing_is_deep_sorted_and_of_that_folder_only(self, filesystem: FileSystem) -> None:
        """Names that merely begin like the folder are not below it."""
        for path in ("log/2", "log/10", "log/sub/1", "logs/3", "state/x"):
            filesystem.create(path, b"")
        assert list(filesystem.list("log")) == ["log/10", "log/2", "log/sub/1"]
        assert list(filesystem.list("log/sub")) == ["log/sub/1"]
        assert list(filesystem.list("absent")) == []
        assert list(filesystem.list("")) == ["log/10", "log/2", "log/sub/1", "logs/3", "state/x"]

    def test_a_listing_sees_a_creation_at_once(self, filesystem: FileSystem) -> None:
        """Strong consistency (L4): what was created is listed, what was deleted is not."""
        for number in range(50):
            filesystem.create(f"log/{number:03d}", b"")
            assert list(filesystem.list("log"))[-1] == f"log/{number:03d}"
        filesystem.delete("log/049")
        assert list(filesystem.list("log"))[-1] == "log/048"

    def test_settling_describes_the_file(self, filesystem: FileSystem) -> None:
        """Length and checksum are those of the content, the path is the one asked for."""
        data = b"row" * 1_000_000
        self.write(filesystem, "state/totals/3/part-0", data)
        found = filesystem.settle("state/totals/3/part-0")
        assert (found.path, found.length) == ("state/totals/3/part-0", len(data))
        assert found.sha256 == sha256(data).hexdigest()

    def test_settling_what_is_not_there_names_it(self, filesystem: FileSystem) -> None:
        """A task's file that is gone is never taken for an empty one."""
        with pytest.raises(CheckpointUnreadable, match=r"state/gone"):
            filesystem.settle("state/gone")

    def test_a_move_takes_the_content_along(self, filesystem: FileSystem) -> None:
        """The folders of the target are made."""
        filesystem.create("staged/a", b"rows")
        assert filesystem.move("staged/a", "out/new/a") == Moved(found=True)
        assert filesystem.read("out/new/a") == b"rows"
        assert filesystem.read("staged/a") is None

    def test_a_second_move_finds_nothing(self, filesystem: FileSystem) -> None:
        """The staged file gone is the evidence that it was published (S7)."""
        filesystem.create("staged/a", b"rows")
        filesystem.move("staged/a", "out/a")
        assert filesystem.move("staged/a", "out/a") == Moved(found=False)
        assert filesystem.read("out/a") == b"rows"

    def test_of_many_movers_one_finds_the_file(self, filesystem: FileSystem) -> None:
        """Two publishers of one file: one publishes."""
        for turn in range(20):
            filesystem.create(f"staged/{turn}", b"rows")
            with ThreadPoolExecutor(4) as pool:
                movers = [pool.submit(filesystem.move, f"staged/{turn}", f"out/{turn}/{name}") for name in range(4)]
            assert sum(mover.result().found for mover in movers) == 1
            assert len(filesystem.list(f"out/{turn}")) == 1

    def test_a_move_never_overwrites(self, filesystem: FileSystem) -> None:
        """A name that is taken by another file is refused, and both files stay."""
        filesystem.create("staged/a", b"new")
        filesystem.create("out/a", b"old")
        with pytest.raises(CheckpointError, match=r"out/a"):
            filesystem.move("staged/a", "out/a")
        assert filesystem.read("out/a") == b"old"
        assert filesystem.read("staged/a") == b"new"

    def test_an_address_ends_with_the_path(self, filesystem: FileSystem) -> None:
        """Spark is given an address with a scheme."""
        address = filesystem.url("state/totals/3")
        assert ":" in address
        assert address.endswith("state/totals/3")
