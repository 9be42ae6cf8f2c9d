"""Byte ranges and row groups as frames, compressed or not."""

from __future__ import annotations

import io
import itertools
import json
import lzma
import os
import re
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from penstock.connectors.files.listing import COMPRESSED, FileSignature, FileSlice, file_changed, file_unreadable
from penstock.errors import ConnectorError, DecodeError, SourceChanged
from penstock.formats import text
from penstock.formats.text import DECODE_MARK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# ----------------------------------------------------------------------------------------------------
# Opens files for reading by their ending, as Spark's own readers do; knows nothing of lines or pieces.

_DECOMPRESS_BLOCK = 64 * 1024


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
        block = file.read(_DECOMPRESS_BLOCK)
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


# ----------------------------------------------------------------------------------------------------
# Reads byte ranges of files inside Spark's Python workers; knows nothing of positions, decoding or the driver.
#
# A range owns what begins in it: a line whose first byte, a row group whose first page lies in ``[start, end)``. So any
# way of cutting a file gives the same rows.

MARK: Final = "penstock.changed:"
_READ_BLOCK = 4 * 1024 * 1024
_ROWS = 10_000
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSplit:
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

    pieces: tuple[FileSplit, ...]
    header: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark in a worker, with the numbers of the pieces that are this task's."""
        import pyarrow as pa

        for piece in _chosen(self.pieces, batches):
            with FileChangeCheck(piece):
                for lines in read_lines(piece, skip_first=self.header):
                    # A view: like Spark's reader, it does not look whether the bytes are UTF-8.
                    value = pa.array(lines, pa.binary()).view(pa.string())
                    file = pa.repeat(pa.scalar(piece.path, pa.string()), len(lines))
                    yield pa.RecordBatch.from_arrays([value, file], names=["value", "_file"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupReader:
    """Turns pieces of Parquet files, named by their number, into rows of ``schema`` (Arrow)."""

    pieces: tuple[FileSplit, ...]
    schema: Any

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark in a worker, with the numbers of the pieces that are this task's."""
        for piece in _chosen(self.pieces, batches):
            with FileChangeCheck(piece):
                yield from _read_groups(piece, self.schema)


def _chosen(pieces: Sequence[FileSplit], batches: Iterator[pa.RecordBatch]) -> Iterator[FileSplit]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield pieces[number]


class FileChangeCheck:
    """Fails the task if the file is not what was planned, before or after it was read, or cannot be read."""

    def __init__(self, piece: FileSplit) -> None:
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


def read_lines(piece: FileSplit, *, skip_first: bool) -> Iterator[list[bytes]]:
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
    while block := file.read(_READ_BLOCK):
        at = block.find(b"\n")
        if at >= 0:
            file.seek(position + at + 1)
            return position + at + 1
        position += len(block)
    return position


def _read_groups(piece: FileSplit, schema: Any) -> Iterator[pa.RecordBatch]:
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


# ----------------------------------------------------------------------------------------------------
# Spark frames over slices of files: whole ones by Spark's readers, cuts in Python workers. Knows no position.
#
# Both ways give the same lines and use the same decoding. A frame's plan has one of two shapes, whatever the batch, and
# no literal in it changes, so nothing is compiled again.

_SMALLEST_PIECE: Final = 1024 * 1024
_FIRM: Final = {
    "__globPaths__": "false",  # a file's name is a name, not a pattern
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "recursiveFileLookup": "true",  # no columns from folders called name=value
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """What is in the files: their format, the decoder's options, and whether a header line is to be skipped.

    ``with_file``: lines of text come with the path of their file.
    """

    format: str
    options: Mapping[str, str]
    header: bool = False
    with_file: bool = False


def frame_of(
    spark: SparkSession, root: str, slices: Sequence[FileSlice], content: FileFormat, schema: StructType
) -> DataFrame:
    """A lazy frame of exactly the rows of the slices. Looks at the files' names and sizes, reads nothing."""
    # Hadoop's local file system cannot open a file with a colon in its name, and many are named by the time of day.
    by_spark = not content.header and all(part.whole and ":" not in part.name for part in slices)
    if content.format == "parquet":
        return (
            _parquet_files(spark, root, slices, content, schema) if by_spark else _groups(spark, root, slices, schema)
        )
    lines = _whole_lines(spark, root, slices) if by_spark else _cut_lines(spark, root, slices, content)
    # Values of a cut may hold what those of a whole file do: both still have the "\r" of "\r\n".
    clean = r"CASE WHEN endswith(value, '\r') THEN left(value, length(value) - 1) ELSE value END AS value"
    if content.format == "text":
        # Spark's readers give an address with some characters encoded, ours a path.
        path = "url_decode(replace(regexp_replace(_file, '^file:/+', '/'), '+', '%2B'))" if by_spark else "_file"
        return lines.selectExpr(clean, f"{path} AS _file") if content.with_file else lines.selectExpr(clean)
    lines = lines.selectExpr(clean, "_file")
    decoding = text.decode_json if content.format == "json" else text.decode_csv
    decoded = decoding(lines, "value", schema, content.options)
    blank = r"btrim(value, ' \t') = ''"
    return text.failfast(decoded, "value", place="_file", skip=blank, alone=True)


def _whole_lines(spark: SparkSession, root: str, slices: Sequence[FileSlice]) -> DataFrame:
    paths = [os.path.join(root, part.name) for part in slices]
    return (
        spark.read.options(**_FIRM)
        .option("lineSep", "\n")
        .text(paths)
        .selectExpr("value", "_metadata.file_path AS _file")
    )


def _cut_lines(spark: SparkSession, root: str, slices: Sequence[FileSlice], content: FileFormat) -> DataFrame:
    pieces = _pieces(root, slices, spark.sparkContext.defaultParallelism)
    reader = LineReader(pieces=pieces, header=content.header)
    return _numbers(spark, len(pieces)).mapInArrow(reader, "value STRING, _file STRING")


def _parquet_files(
    spark: SparkSession, root: str, slices: Sequence[FileSlice], content: FileFormat, schema: StructType
) -> DataFrame:
    paths = [os.path.join(root, part.name) for part in slices]
    return spark.read.schema(schema).options(**content.options).options(**_FIRM).parquet(*paths)


def _groups(spark: SparkSession, root: str, slices: Sequence[FileSlice], schema: StructType) -> DataFrame:
    from pyspark.sql.pandas.types import to_arrow_schema

    pieces = _pieces(root, slices, spark.sparkContext.defaultParallelism)
    arrow = to_arrow_schema(schema, timezone="UTC")
    return _numbers(spark, len(pieces)).mapInArrow(RowGroupReader(pieces=pieces, schema=arrow), schema)


def _pieces(root: str, slices: Sequence[FileSlice], cores: int) -> tuple[FileSplit, ...]:
    """Cut slices again, so that all cores have work; by the rule of what a range owns, that changes no row."""
    total = sum(part.end - part.start for part in slices)
    size = max(_SMALLEST_PIECE, -(-total // cores))
    pieces = []
    for part in slices:
        cuts = 1 if part.name.endswith(COMPRESSED) else -(-(part.end - part.start) // size)
        bounds = [part.start + (part.end - part.start) * at // cuts for at in range(cuts + 1)]
        pieces += [
            FileSplit(
                path=os.path.join(root, part.name),
                name=part.name,
                start=start,
                end=end,
                size=part.signature.size,
                mtime_ns=part.signature.mtime_ns,
            )
            for start, end in itertools.pairwise(bounds)
        ]
    return tuple(pieces)


def _numbers(spark: SparkSession, count: int) -> DataFrame:
    """The numbers of the pieces as rows: data of the plan, not literals of its code."""
    rows = ", ".join(f"({number})" for number in range(count))
    return spark.sql(f"SELECT n FROM VALUES {rows} AS t(n)")


def parquet_schema(spark: SparkSession, path: str) -> StructType:
    """Columns of one Parquet file as Spark sees them. Runs one job over its footer."""
    return spark.read.options(**_FIRM).parquet(path).schema


def explain(exception: BaseException) -> ConnectorError | None:
    """What a failed job says about the files it read; ``None`` if it failed for another reason."""
    decode = text.explain(exception)
    if decode is not None:
        return decode
    for told in text.parse_marked(exception, MARK):
        if "unreadable" in told:
            return file_unreadable(str(told.get("path")), str(told["unreadable"]))
        now = told.get("now")
        after = FileSignature(*now) if now else None
        return file_changed(str(told.get("name")), FileSignature(*told["before"]), after, "was planned")
    return _spark_says(exception)


def _spark_says(exception: BaseException) -> ConnectorError | None:
    found = re.search(r"\[FAILED_READ_FILE\.([A-Z_]+)\] (.*)", str(exception))
    if found is None:
        return None
    condition, told = found.groups()
    if condition == "FILE_NOT_EXIST":
        msg = f"a file vanished while it was read: {told}; put it back, or rewind to a checkpoint before it was read"
        return SourceChanged(msg)
    if condition in ("PARQUET_COLUMN_DATA_TYPE_MISMATCH", "CANNOT_READ_FILE_FOOTER"):
        msg = f"{told}; the file is damaged or not what the schema says: move it away, or correct the schema"
        return DecodeError(msg)
    return None
