"""What workers and listings say of files that cannot be read; no Spark."""

from __future__ import annotations

import errno
import os

import pyarrow as pa
import pytest

from penstock.connectors.files import directory, lines, ranges
from penstock.connectors.files.lines import FileSplit, LineReader
from penstock.connectors.files.listing import COMPRESSED
from penstock.errors import DecodeError, SourceChanged, SourceUnavailable


def refuse(number):
    def call(path, *_, **__):
        raise OSError(number, os.strerror(number), path)

    return call


def read(path):
    """All lines, as a worker reads them."""
    status = os.stat(path)
    piece = FileSplit(
        path=str(path), name=path.name, start=0, end=status.st_size, size=status.st_size, mtime_ns=status.st_mtime_ns
    )
    numbers = pa.RecordBatch.from_arrays([pa.array([0])], names=["n"])
    found = LineReader(tasks=((piece,),), header=False)(iter([numbers]))
    return [line for batch in found for line in batch.column(0).to_pylist()]


def told(error):
    """As the driver sees it: only text comes out of a worker."""
    return ranges.explain(Exception(f"PythonException: Traceback ...\nRuntimeError: {error}\n"))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_file_that_a_worker_cannot_read_is_a_source_unavailable(tmp_path, monkeypatch, number):
    path = tmp_path / "a.json"
    path.write_text("{}\n")
    monkeypatch.setattr(lines, "open_file", refuse(number))
    with pytest.raises(RuntimeError) as failure:
        read(path)
    error = told(failure.value)
    assert isinstance(error, SourceUnavailable)
    assert error.retry
    assert str(path) in str(error)
    assert os.strerror(number) in str(error)
    assert "the right to read" in str(error)


def test_a_file_that_goes_while_a_worker_opens_it_is_a_source_changed(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("{}\n")

    def vanish(name, *_):
        os.unlink(name)
        refuse(errno.ENOENT)(name)

    monkeypatch.setattr(lines, "open_file", vanish)
    with pytest.raises(RuntimeError) as failure:
        read(path)
    assert isinstance(told(failure.value), SourceChanged)


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst", ".deflate", ".snappy"])
def test_a_damaged_compressed_file_is_a_decode_error(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    path.write_bytes(b"\x00\x00\x00\x09this is not compressed at all")
    with pytest.raises(RuntimeError) as failure:
        read(path)
    error = told(failure.value)
    assert isinstance(error, DecodeError)
    assert str(path) in str(error)


@pytest.mark.parametrize("ending", COMPRESSED)
def test_what_cannot_be_cut_is_never_read_as_it_stands(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    path.write_bytes(b"raw\n")
    with pytest.raises(RuntimeError):
        read(path)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_looked_at_is_a_source_unavailable(tmp_path, monkeypatch, number):
    path = str(tmp_path / "a.json")
    monkeypatch.setattr(os, "stat", refuse(number))
    with pytest.raises(SourceUnavailable, match="the right to read") as failure:
        directory.signature(path)
    assert path in str(failure.value)


def test_a_folder_that_cannot_be_entered_names_itself_and_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "scandir", refuse(errno.EACCES))
    with pytest.raises(SourceUnavailable, match="the right to read"):
        directory.scan(str(tmp_path), pattern="*", recursive=False)


def test_a_file_whose_folder_became_a_file_is_gone(tmp_path):
    (tmp_path / "a").write_text("")
    assert directory.signature(str(tmp_path / "a" / "b")) is None
