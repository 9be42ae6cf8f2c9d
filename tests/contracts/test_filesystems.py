"""The file systems of ours keep the contract."""

import pytest

from penstock.filesystem.ahead import SettledAhead
from penstock.filesystem.local import LocalFileSystem
from penstock.testing.contracts import FileSystemContract
from penstock.testing.filesystem import MemoryFileSystem


class TestLocalFileSystem(FileSystemContract):
    @pytest.fixture
    def filesystem(self, tmp_path):
        return LocalFileSystem(tmp_path / "job")


class TestMemoryFileSystem(FileSystemContract):
    @pytest.fixture
    def filesystem(self):
        return MemoryFileSystem()

    def write(self, filesystem, path, data):
        filesystem.write_unsynced(path, data)


class TestSettledAhead(FileSystemContract):
    @pytest.fixture
    def filesystem(self, tmp_path):
        return SettledAhead(LocalFileSystem(tmp_path / "job"))
