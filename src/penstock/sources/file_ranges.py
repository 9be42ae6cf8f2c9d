"""Reads byte ranges of files inside Spark's Python workers; knows nothing of positions, decoding or the driver.

A range owns what begins in it: a line whose first byte, a row group whose first page lies in ``[start, end)``. So any
way of cutting a file gives the same rows.
"""

from __future__ import annotations

import json
import lzma
import os
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from penstock.formats import DECODE_MARK
from penstock.sources.file_compressed import open_file
from penstock.sources.file_listing import COMPRESSED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

MARK: Final = "penstock.changed:"
_BLOCK = 4 * 1024 * 1024
_ROWS = 10_000
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One range of one file, and the signature that the file must have before and after it is read."""

    path: str
    name: str
    start: int
    end: int
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReader:
    """Turns pieces, named by their number, into rows of ``value`` (a line without its end) and ``_file``."""

    pieces: tuple[Piece, ...]
    header: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark in a worker, with the numbers of the pieces that are this task's."""
        import pyarrow as pa

        for piece in _chosen(self.pieces, batches):
            with Unchanged(piece):
                for lines in read_lines(piece, skip_first=self.header):
                    # A view: like Spark's reader, it does not look whether the bytes are UTF-8.
                    value = pa.array(lines, pa.binary()).view(pa.string())
                    file = pa.repeat(pa.scalar(piece.path, pa.string()), len(lines))
                    yield pa.RecordBatch.from_arrays([value, file], names=["value", "_file"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupReader:
    """Turns pieces of Parquet files, named by their number, into rows of ``schema`` (Arrow)."""

    pieces: tuple[Piece, ...]
    schema: Any

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark in a worker, with the numbers of the pieces that are this task's."""
        for piece in _chosen(self.pieces, batches):
            with Unchanged(piece):
                yield from _read_groups(piece, self.schema)


def _chosen(pieces: Sequence[Piece], batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield pieces[number]


class Unchanged:
    """Fails the task if the file is not what was planned, before or after it was read, or cannot be read."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece

    def __enter__(self) -> None:
        self._check()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, GeneratorExit):  # a limit above: the rows that were taken were right when read
            return
        self._check()
        if isinstance(error, OSError) and error.errno is not None:
            raise self._unreadable(error) from error
        if isinstance(error, OSError | EOFError | zlib.error | lzma.LZMAError):  # what decompressors raise
            reason = f"it is no valid {os.path.splitext(self._piece.path)[1]} file: {error}"
            told = {"place": self._piece.path, "reason": reason, "remedy": "move the file away, or write it again"}
            raise RuntimeError(DECODE_MARK + json.dumps(told)) from error

    def _check(self) -> None:
        piece = self._piece
        try:
            status = os.stat(piece.path)
        except (FileNotFoundError, NotADirectoryError):
            now = None
        except OSError as error:
            raise self._unreadable(error) from error
        else:
            now = [status.st_size, status.st_mtime_ns]
        before = [piece.size, piece.mtime_ns]
        if now != before:
            told = json.dumps({"name": piece.name, "before": before, "now": now})
            raise RuntimeError(MARK + told)

    def _unreadable(self, error: OSError) -> RuntimeError:
        return RuntimeError(MARK + json.dumps({"path": self._piece.path, "unreadable": error.strerror or str(error)}))


def read_lines(piece: Piece, *, skip_first: bool) -> Iterator[list[bytes]]:
    """The lines that begin in the piece, without their line feed, in lists of bounded size.

    ``skip_first`` leaves out the file's first line, in the piece that has it.
    """
    skip = 1 if skip_first and piece.start == 0 else 0
    with open_file(piece.path) as file:
        compressed = piece.path.endswith(COMPRESSED)
        position = 0 if compressed else _first_line(file, piece.start)
        end = None if compressed else piece.end
        for found in _lines_from(file, position, end):
            lines = found[skip:] if skip else found
            skip = max(0, skip - len(found))
            for at in range(0, len(lines), _ROWS):
                yield lines[at : at + _ROWS]


def _lines_from(file: IO[bytes], position: int, end: int | None) -> Iterator[list[bytes]]:
    """All lines from ``position`` (the beginning of a line) on whose first byte is before ``end``."""
    if end is not None and position >= end:
        return
    parts: list[bytes] = []  # a line without its end so far; joined once, so that a long one costs no more than it is
    first = position == 0
    begin = position
    while block := file.read(_BLOCK):
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
        lines = text.split(b"\n")
        if end is not None and begin + len(text) >= end:
            lines = _before(lines, begin, end)
            if lines:
                yield lines
            return
        yield lines
        position += len(block)
        begin = position - (len(block) - last - 1)
        parts = [block[last + 1 :]]
        if end is not None and begin >= end:
            return
    tail = b"".join(parts)
    if tail and (end is None or begin < end):
        yield [tail]


def _before(lines: list[bytes], begin: int, end: int) -> list[bytes]:
    kept = 0
    for line in lines:
        if begin >= end:
            break
        kept += 1
        begin += len(line) + 1
    return lines[:kept]


def _first_line(file: IO[bytes], start: int) -> int:
    """Seek to the first line that begins at or after ``start``; its place, or the end of the file."""
    if start == 0:
        return 0
    file.seek(start - 1)
    position = start - 1
    while block := file.read(_BLOCK):
        at = block.find(b"\n")
        if at >= 0:
            file.seek(position + at + 1)
            return position + at + 1
        position += len(block)
    return position


def _read_groups(piece: Piece, schema: Any) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(piece.path, coerce_int96_timestamp_unit="us") as file:
        owned = [g for g in range(file.metadata.num_row_groups) if piece.start <= _begins(file.metadata, g) < piece.end]
        if not owned:
            return
        there = {name.lower(): name for name in file.schema_arrow.names}
        wanted = [there[name.lower()] for name in schema.names if name.lower() in there]
        for batch in file.iter_batches(batch_size=_ROWS, row_groups=owned, columns=wanted):
            columns = []
            for field in schema:
                name = there.get(field.name.lower())
                if name is None:
                    columns.append(pa.nulls(batch.num_rows, field.type))
                else:
                    columns.append(_as(batch.column(name), field, piece.path))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _as(column: Any, field: Any, path: str) -> Any:
    """The column in the type that Spark awaits, where Spark's own reader would read it so too."""
    if column.type != field.type and not _readable_as(column.type, field.type):
        told = {
            "place": path,
            "reason": f"column {field.name!r} is {column.type} in the file and {field.type} in the schema",
            "remedy": "correct the schema, or move the file away",
        }
        raise RuntimeError(DECODE_MARK + json.dumps(told))
    return column.cast(field.type)


def _readable_as(there: Any, wanted: Any) -> bool:
    import pyarrow.types as pt

    families = (
        lambda t: pt.is_string(t) or pt.is_large_string(t) or pt.is_string_view(t) or pt.is_dictionary(t),
        lambda t: pt.is_binary(t) or pt.is_large_binary(t) or pt.is_fixed_size_binary(t) or pt.is_binary_view(t),
        lambda t: pt.is_list(t) or pt.is_large_list(t) or pt.is_fixed_size_list(t),
        *(pt.is_timestamp, pt.is_decimal, pt.is_struct, pt.is_map, pt.is_date),
    )
    if any(family(there) and family(wanted) for family in families):
        return True
    numbers = (pt.is_integer, pt.is_floating)
    return any(kind(there) and kind(wanted) and there.bit_width <= wanted.bit_width for kind in numbers)


def _begins(metadata: Any, group: int) -> int:
    column = metadata.row_group(group).column(0)
    starts = [column.data_page_offset]
    if column.dictionary_page_offset:  # 0 stands for none in files of some writers
        starts.append(column.dictionary_page_offset)
    return int(min(starts))
