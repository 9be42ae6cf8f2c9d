"""Lines of byte ranges of files, read in Python: in a worker, as Spark's readers give them."""

from __future__ import annotations

import codecs
import io
import json
import lzma
import os
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from penstock.connectors.files.listing import compression_of
from penstock.formats.text import DECODE_MARK
from penstock.interfaces.source import DECODED_RECORD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from penstock.formats.json_arrow import JsonDecoder


# ---- opening files ---------------------------------------------------------------------------------------------------

_DECOMPRESS_BLOCK: Final = 64 * 1024
"""Bytes that are decompressed at a time."""
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
"""The first bytes of an LZ4 frame."""
_LZ4_HEAD: Final = _LZ4_MAGIC + b"\x60\x70\x73"
"""The head of an LZ4 frame of independent blocks of up to 4 MiB, without checksums."""


def open_file(path: str, encoding: str | None = None) -> IO[bytes]:
    """The file's content, decompressed by its ending as Spark's readers do it, in UTF-8.

    Raises:
        OSError: it cannot be opened. Reading may raise it too; without ``errno`` if the content is damaged.
        UnicodeDecodeError: while reading, if the content is not in that encoding.
    """
    file = _decompressed(path)
    return file if encoding is None else io.BufferedReader(_Stream(file, _in_utf8(file, encoding)))


def _in_utf8(file: IO[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    while block := file.read(_DECOMPRESS_BLOCK):
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", final=True).encode()


def _decompressed(path: str) -> IO[bytes]:  # noqa: PLR0911 - one for each kind of file
    compression = compression_of(path)
    if compression == "gzip":
        import gzip

        return gzip.open(path, "rb")  # type: ignore[return-value]
    if compression == "bz2":
        import bz2

        return bz2.open(path, "rb")
    if compression == "xz":
        import lzma

        return lzma.open(path, "rb")
    if compression == "zstd" or (compression == "lz4" and is_lz4_frame(path)):
        import pyarrow as pa

        return pa.input_stream(path, compression=compression)  # type: ignore[no-any-return]
    file = open(path, "rb")  # noqa: SIM115 - closed by the stream
    if compression == "deflate":
        return io.BufferedReader(_Stream(file, _inflated(file)))
    if compression in ("snappy", "lz4"):
        return io.BufferedReader(_Stream(file, _unblocked(file, _unsnapped if compression == "snappy" else _unlz4ed)))
    return file


def is_lz4_frame(path: str) -> bool:
    """Whether an ``.lz4`` file is as the program ``lz4`` writes it, which Spark cannot read. Hadoop writes blocks."""
    with open(path, "rb") as file:
        return file.read(len(_LZ4_MAGIC)) == _LZ4_MAGIC


class _Stream(io.RawIOBase):
    """Blocks of bytes as a file that can only be read forwards."""

    def __init__(self, file: IO[bytes], blocks: Iterator[bytes]) -> None:
        self._file = file
        self._blocks = blocks
        self._block = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._block:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._block = block
        size = min(len(buffer), len(self._block))
        buffer[:size] = self._block[:size]
        self._block = self._block[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _inflated(file: IO[bytes]) -> Iterator[bytes]:
    """The content of a file of Hadoop's default codec: one zlib stream."""
    stream = zlib.decompressobj()
    while not stream.eof:
        block = file.read(_DECOMPRESS_BLOCK)
        if not block:
            msg = "it ends in the middle"
            raise EOFError(msg)
        yield stream.decompress(block)


def _unblocked(file: IO[bytes], unpacked: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """The content of a file of Hadoop's codecs of blocks, each of a content length and compressed chunks."""
    while head := file.read(4):
        remaining = _number(head + _exactly(file, 4 - len(head)))
        while remaining > 0:
            content = unpacked(_exactly(file, _number(_exactly(file, 4))))
            yield content
            remaining -= len(content)


def _unsnapped(chunk: bytes) -> bytes:
    import pyarrow as pa

    return pa.decompress(chunk, decompressed_size=_unpacked_size(chunk), codec="snappy", asbytes=True)  # type: ignore[no-any-return]


def _unlz4ed(chunk: bytes) -> bytes:
    import pyarrow as pa

    # The chunk does not say how long its content is, and ``pa.decompress`` must know. Frames are read without that.
    frame = _LZ4_HEAD + len(chunk).to_bytes(4, "little") + chunk + bytes(4)
    return pa.CompressedInputStream(pa.BufferReader(frame), "lz4").read()  # type: ignore[no-any-return]


def _exactly(file: IO[bytes], size: int) -> bytes:
    found = file.read(size)
    if len(found) < size:
        msg = "it ends in the middle"
        raise EOFError(msg)
    return found


def _number(head: bytes) -> int:
    return int.from_bytes(head, "big")


def _unpacked_size(packed: bytes) -> int:
    """The size of a snappy block when unpacked: a varint in its first bytes."""
    size = 0
    for at, byte in enumerate(packed[:5]):
        size |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:  # noqa: PLR2004
            break
    return size


# ---- reading lines of splits in a Python worker ----------------------------------------------------------------------

# A split owns the lines whose first byte lies in [start, end). So any way of cutting a file gives the same rows.

MARK: Final = "penstock.changed:"
"""Precedes the JSON by which a worker reports a changed or unreadable file, in the text of its exception."""
_READ_BLOCK: Final = 1024 * 1024
"""Bytes that are read at a time, and that make a batch of rows."""
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSplit:
    """A byte range of a file, and the signature that the file must have before and after it is read."""

    path: str
    name: str
    start: int
    end: int
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReader:
    """Makes rows of the splits of a task: ``value``, a line without its end, and ``_file``.

    With a decoder there is a third column, ``_record``. Where it is not null, ``value`` and ``_file`` are.
    """

    header: bool
    encoding: str | None = None
    decoder: JsonDecoder | None = None

    def read(self, splits: Sequence[FileSplit]) -> Iterator[pa.RecordBatch]:
        """The rows of the splits of a task. Spark calls it in its Python workers."""
        blocks: list[tuple[str, bytes]] = []  # of small files together: a batch for each would take longer than reading
        size = 0
        for split in splits:
            with FileChangeCheck(split):
                for block in read_lines(split, skip_first=self.header, encoding=self.encoding):
                    blocks.append((split.path, block))
                    size += len(block)
                    if size >= _READ_BLOCK:
                        yield self._batch(blocks)
                        blocks, size = [], 0
        if blocks:
            yield self._batch(blocks)

    def _batch(self, blocks: Sequence[tuple[str, bytes]]) -> pa.RecordBatch:
        import pyarrow as pa

        text = b"\n".join([block for _, block in blocks])
        records = None if self.decoder is None else self.decoder.decode_lines(text)
        if records is not None:
            nothing = pa.nulls(len(records), pa.string())
            return pa.RecordBatch.from_arrays([nothing, nothing, records], names=["value", "_file", DECODED_RECORD])
        lines = text.split(b"\n")
        paths = [pa.repeat(pa.scalar(path, pa.string()), block.count(b"\n") + 1) for path, block in blocks]
        columns = {"value": pa.array(lines, pa.binary()), "_file": pa.concat_arrays(paths)}
        if self.decoder is not None:
            decoded = self.decoder.decode(lines)
            columns |= {"value": decoded.rest, DECODED_RECORD: decoded.records}
        # A view, since Spark's reader does not check that the bytes are UTF-8 either.
        columns["value"] = columns["value"].view(pa.string())
        return pa.RecordBatch.from_pydict(columns)


DAMAGES: Final = (OSError, EOFError, zlib.error, lzma.LZMAError, UnicodeDecodeError)
"""What decompressors and decoders raise."""


def damage(path: str, error: BaseException) -> tuple[str, str]:
    """What is wrong with a file that raised one of ``DAMAGES``, and the remedy."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not in its encoding: {error}", "correct the option encoding, or move the file away"
    return f"it is no valid {os.path.splitext(path)[1]} file: {error}", "move the file away, or write it again"


class FileChangeCheck:
    """Fails the task if the file has changed before or after it was read, or cannot be read."""

    def __init__(self, split: FileSplit) -> None:
        self._split = split

    def __enter__(self) -> None:
        self._check()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, GeneratorExit):  # a LIMIT above stopped the read: its rows were right
            return
        self._check()
        if isinstance(error, OSError) and error.errno is not None:
            raise self._unreadable(error) from error
        if isinstance(error, DAMAGES):
            reason, remedy = damage(self._split.path, error)
            details = {"place": self._split.path, "reason": reason, "remedy": remedy}
            raise RuntimeError(DECODE_MARK + json.dumps(details)) from error

    def _check(self) -> None:
        split = self._split
        try:
            status = os.stat(split.path)
        except (FileNotFoundError, NotADirectoryError):
            now = None
        except OSError as error:
            raise self._unreadable(error) from error
        else:
            now = [status.st_size, status.st_mtime_ns]
        before = [split.size, split.mtime_ns]
        if now != before:
            raise RuntimeError(MARK + json.dumps({"name": split.name, "before": before, "now": now}))

    def _unreadable(self, error: OSError) -> RuntimeError:
        return RuntimeError(MARK + json.dumps({"path": self._split.path, "unreadable": error.strerror or str(error)}))


def read_lines(split: FileSplit, *, skip_first: bool, encoding: str | None = None) -> Iterator[bytes]:
    """The lines that begin in the split, in blocks of at least one, without the line feed of a block's last line.

    ``skip_first`` leaves out the file's first line. Compressed files and those of an ``encoding`` are read wholly.
    """
    skips = skip_first and split.start == 0
    with open_file(split.path, encoding) as file:
        is_whole = encoding is not None or compression_of(split.path) is not None
        position = 0 if is_whole else _first_line(file, split.start)
        end = None if is_whole else split.end
        for block in _blocks_from(file, position, end):
            if skips:
                skips = False
                _, is_longer, rest = block.partition(b"\n")
                if is_longer:
                    yield rest
            else:
                yield block


def _blocks_from(file: IO[bytes], position: int, end: int | None) -> Iterator[bytes]:
    """The lines from ``position``, the beginning of a line, on whose first byte is before ``end``."""
    if end is not None and position >= end:
        return
    parts: list[bytes] = []  # of a line without its end; joined once, so that a long line costs linear time
    first = position == 0
    begin = position
    while block := file.read(_READ_BLOCK):
        if first:
            first = False
            if block.startswith(_BOM):
                block = block[len(_BOM) :]
                begin = position = position + len(_BOM)
        last = block.rfind(b"\n")
        if last < 0:
            parts.append(block)
            position += len(block)
            continue
        text = b"".join([*parts, block[:last]])
        if end is not None and begin + len(text) >= end:
            # The last line that begins before the end is that of the byte before it.
            stop = text.find(b"\n", end - begin - 1)
            yield text if stop < 0 else text[:stop]
            return
        yield text
        position += len(block)
        begin = position - (len(block) - last - 1)
        parts = [block[last + 1 :]]
        if end is not None and begin >= end:
            return
    tail = b"".join(parts)
    if tail and (end is None or begin < end):
        yield tail


def _first_line(file: IO[bytes], start: int) -> int:
    """Seek to the first line that begins at or after ``start``; its offset, or the end of the file."""
    if start == 0:
        return 0
    file.seek(start - 1)
    position = start - 1
    while block := file.read(_READ_BLOCK):
        at = block.find(b"\n")
        if at >= 0:
            file.seek(position + at + 1)
            return position + at + 1
        position += len(block)
    return position
