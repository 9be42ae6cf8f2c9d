"""Opens files for reading by their ending, as Spark's own readers do; knows nothing of lines or pieces."""

from __future__ import annotations

import io
import zlib
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK = 64 * 1024


def open_file(path: str) -> IO[bytes]:
    """The file's content, decompressed if its ending says that it is compressed.

    Raises:
        OSError: it cannot be opened. Reading may raise it too, without a number if the content is damaged.
    """
    if path.endswith(".gz"):
        import gzip

        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.endswith(".bz2"):
        import bz2

        return bz2.open(path, "rb")
    if path.endswith(".xz"):
        import lzma

        return lzma.open(path, "rb")
    if path.endswith((".zst", ".lz4")):
        import pyarrow as pa

        return pa.input_stream(path, compression="detect")  # type: ignore[no-any-return]
    if path.endswith((".deflate", ".snappy")):
        file = open(path, "rb")  # noqa: SIM115 - closed by the stream
        return io.BufferedReader(_Stream(file, _inflated(file) if path.endswith(".deflate") else _unsnapped(file)))
    return open(path, "rb")


class _Stream(io.RawIOBase):
    """Blocks of bytes as a file that can only be read on."""

    def __init__(self, file: IO[bytes], blocks: Iterator[bytes]) -> None:
        self._file = file
        self._blocks = blocks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = block
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _inflated(file: IO[bytes]) -> Iterator[bytes]:
    """Of Hadoop's default codec: one zlib stream."""
    stream = zlib.decompressobj()
    while not stream.eof:
        block = file.read(_BLOCK)
        if not block:
            msg = "it ends in the middle"
            raise EOFError(msg)
        yield stream.decompress(block)


def _unsnapped(file: IO[bytes]) -> Iterator[bytes]:
    """Of Hadoop's codec: blocks of so many bytes of content, each in pieces of so many compressed ones."""
    import pyarrow as pa

    while head := file.read(4):
        left = _number(head + _exactly(file, 4 - len(head)))
        while left > 0:
            packed = _exactly(file, _number(_exactly(file, 4)))
            size = _length(packed)
            yield pa.decompress(packed, decompressed_size=size, codec="snappy", asbytes=True)
            left -= size


def _exactly(file: IO[bytes], size: int) -> bytes:
    found = file.read(size)
    if len(found) < size:
        msg = "it ends in the middle"
        raise EOFError(msg)
    return found


def _number(head: bytes) -> int:
    return int.from_bytes(head, "big")


def _length(packed: bytes) -> int:
    """How long a snappy block is when unpacked: its first bytes, seven bits in each."""
    size = 0
    for at, byte in enumerate(packed[:5]):
        size |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:  # noqa: PLR2004
            break
    return size
