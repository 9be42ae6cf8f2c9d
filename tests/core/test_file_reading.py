"""What workers read of compressed files and headers, and what is said of files that cannot be read; no Spark."""

from __future__ import annotations

import errno
import gzip
import os

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from penstock.connectors.files import directory, lines, ranges
from penstock.connectors.files.lines import FileSplit, LineReader, open_file
from penstock.connectors.files.listing import COMPRESSIONS, FileSignature, FileSlice
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
    return [line for batch in LineReader(header=False).read([piece]) for line in batch.column(0).to_pylist()]


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


@pytest.mark.parametrize("ending", [*COMPRESSIONS, ".GZ"])
def test_a_damaged_compressed_file_is_a_decode_error(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    path.write_bytes(b"\x00\x00\x00\x09this is not compressed at all")
    with pytest.raises(RuntimeError) as failure:
        read(path)
    error = told(failure.value)
    assert isinstance(error, DecodeError)
    assert str(path) in str(error)


@pytest.mark.parametrize("ending", [*COMPRESSIONS, *map(str.upper, COMPRESSIONS)])
def test_what_cannot_be_cut_is_never_read_as_it_stands(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    path.write_bytes(b"raw\n")
    with pytest.raises(RuntimeError):
        read(path)


def as_hadoop(codec, *blocks):
    """A file as Hadoop's codecs of blocks write it; each block is given as its chunks."""
    return b"".join(
        sum(map(len, chunks)).to_bytes(4, "big")
        + b"".join(
            len(packed).to_bytes(4, "big") + packed
            for packed in (pa.compress(chunk, codec=codec, asbytes=True) for chunk in chunks)
        )
        for chunks in blocks
    )


LONG = b"".join(b"%d;some words\n" % n for n in range(20_000))
ONE_BLOCK, SEVERAL_CHUNKS, EMPTY_BLOCK = [b"1\n2\n"], [LONG, b"3\n"], []


@pytest.mark.parametrize(("ending", "codec"), [(".lz4", "lz4_raw"), (".snappy", "snappy")])
@pytest.mark.parametrize("blocks", [[], [EMPTY_BLOCK], [ONE_BLOCK], [SEVERAL_CHUNKS, ONE_BLOCK, EMPTY_BLOCK]])
def test_blocks_of_hadoop_are_read(tmp_path, ending, codec, blocks):
    path = tmp_path / f"a{ending}"
    path.write_bytes(as_hadoop(codec, *blocks))
    with open_file(str(path)) as file:
        assert file.read() == b"".join(map(b"".join, blocks))


def test_frames_of_lz4_are_read(tmp_path):
    path = tmp_path / "a.lz4"
    path.write_bytes(pa.compress(LONG, codec="lz4", asbytes=True) + pa.compress(b"1\n", codec="lz4", asbytes=True))
    with open_file(str(path)) as file:
        assert file.read() == LONG + b"1\n"


def slices(*names):
    return [FileSlice(name=name, signature=FileSignature(1, 1), start=0, end=1) for name in names]


@pytest.mark.parametrize("ending", [".gzip", ".GZ", ".zstd"])
def test_endings_that_only_some_programs_write_are_known(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    path.write_bytes(pa.compress(LONG, codec="zstd", asbytes=True) if ending == ".zstd" else gzip.compress(LONG))
    with open_file(str(path)) as file:
        assert file.read() == LONG
    assert not ranges.FileFormat(format="text", options={}).can_cut(path.name)


@pytest.mark.parametrize(
    ("name", "by_spark"),
    [("a.txt", True), ("a.gz", True), *((f"a{ending}", False) for ending in (".xz", ".lz4", ".gzip", ".zstd", ".XZ"))],
)
def test_spark_reads_only_lines_that_its_codecs_can_read(name, by_spark):
    assert ranges._suit_spark(slices("b.txt", name)) is by_spark


@pytest.mark.parametrize("name", ["a.csv.xz", "a.csv.lz4", "a.csv.gzip"])
def test_a_file_that_spark_cannot_read_is_refused_with_multi_line(tmp_path, name):
    (tmp_path / name).write_bytes(pa.compress(b"1\n", codec="lz4", asbytes=True))
    content = ranges.FileFormat(format="csv", options={}, multi_line=True)
    with pytest.raises(DecodeError, match=r"Compress it with gzip, .* or leave out the option multiLine") as failure:
        ranges.frame_of(None, str(tmp_path), slices(name), content, StructType().add("n", LongType()))
    assert str(tmp_path / name) in str(failure.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, 'id,"user, name",x'),
        ({"sep": "\t"}, "id\tuser, name\tx"),
        ({"sep": r"\t"}, "id\tuser, name\tx"),
        ({"delimiter": "||"}, 'id||"user, name"||x'),
        ({"sep": r"\\|"}, r"id\|user, name\|x"),
        ({"SEP": "::", "quote": "'"}, "id::'user, name'::x"),
        ({"sep": ";", "quote": ""}, "id;user, name;x"),
        ({"sep": ";", "quote": "\0"}, "id;user, name;x"),
    ],
)
def test_a_header_is_split_as_spark_splits_lines(tmp_path, options, line):
    path = tmp_path / "a.csv"
    path.write_text(line + "\r\n")
    content = ranges.FileFormat(format="csv", options=options, header=True, by_name=True)
    assert ranges._header(str(path), content) == ("id", "user, name", "x")


def test_a_separator_within_quotes_separates_no_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('"a||b"||c\n')
    content = ranges.FileFormat(format="csv", options={"sep": "||"}, header=True, by_name=True)
    assert ranges._header(str(path), content) == ("a||b", "c")


@pytest.mark.parametrize("content", ["id,name\r1,a\r", "id," + 200_000 * "x"])
def test_a_first_line_that_is_no_header_is_a_decode_error(tmp_path, content):
    path = tmp_path / "a.csv"
    path.write_text(content, newline="")
    content = ranges.FileFormat(format="csv", options={}, header=True, by_name=True)
    with pytest.raises(DecodeError, match=r"The first line is no header: .*\. Correct the file") as failure:
        ranges._header(str(path), content)
    assert str(path) in str(failure.value)


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
