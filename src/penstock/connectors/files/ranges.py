"""Slices of files as Spark frames.

Parquet is always read by Spark's own reader. Lines are read by Spark if the files are whole, and in Python workers if
they are cut; both ways give the same lines and decode them alike. A frame's plan has one of two shapes, whatever the
batch, and no literal in it changes, so Spark compiles nothing again.
"""

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
from penstock.errors import ConnectorError, DecodeError, GraphError, SourceChanged
from penstock.formats import text
from penstock.formats.text import DECODE_MARK
from penstock.spark.parquet import frame_of_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import DataType, StructType


# ---- opening files ---------------------------------------------------------------------------------------------------

_DECOMPRESS_BLOCK: Final = 64 * 1024
"""Bytes that are decompressed at a time."""


def open_file(path: str) -> IO[bytes]:
    """The file's content, decompressed by its ending as Spark's readers do it.

    Raises:
        OSError: it cannot be opened. Reading may raise it too; without ``errno`` if the content is damaged.
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


def _unsnapped(file: IO[bytes]) -> Iterator[bytes]:
    """The content of a file of Hadoop's snappy codec: blocks, each of a content length and compressed chunks."""
    import pyarrow as pa

    while head := file.read(4):
        remaining = _number(head + _exactly(file, 4 - len(head)))
        while remaining > 0:
            packed = _exactly(file, _number(_exactly(file, 4)))
            size = _unpacked_size(packed)
            yield pa.decompress(packed, decompressed_size=size, codec="snappy", asbytes=True)
            remaining -= size


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
_READ_BLOCK: Final = 4 * 1024 * 1024
_MAX_ROWS: Final = 10_000
"""Most rows of one Arrow batch."""
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
    """Makes rows of splits, given by number: ``value``, a line without its end, and ``_file``."""

    splits: tuple[FileSplit, ...]
    header: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the splits whose numbers are in ``batches``. Spark calls it in a worker."""
        import pyarrow as pa

        for split in _numbered(self.splits, batches):
            with FileChangeCheck(split):
                for lines in read_lines(split, skip_first=self.header):
                    # A view, since Spark's reader does not check that the bytes are UTF-8 either.
                    value = pa.array(lines, pa.binary()).view(pa.string())
                    file = pa.repeat(pa.scalar(split.path, pa.string()), len(lines))
                    yield pa.RecordBatch.from_arrays([value, file], names=["value", "_file"])


def _numbered(splits: Sequence[FileSplit], batches: Iterator[pa.RecordBatch]) -> Iterator[FileSplit]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield splits[number]


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
        if isinstance(error, OSError | EOFError | zlib.error | lzma.LZMAError):  # what decompressors raise
            reason = f"it is no valid {os.path.splitext(self._split.path)[1]} file: {error}"
            details = {"place": self._split.path, "reason": reason, "remedy": "move the file away, or write it again"}
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


def read_lines(split: FileSplit, *, skip_first: bool) -> Iterator[list[bytes]]:
    """The lines that begin in the split, without their line feed, in lists of bounded size.

    ``skip_first`` leaves out the file's first line.
    """
    skip = 1 if skip_first and split.start == 0 else 0
    with open_file(split.path) as file:
        compressed = split.path.endswith(COMPRESSED)
        position = 0 if compressed else _first_line(file, split.start)
        end = None if compressed else split.end
        for found in _lines_from(file, position, end):
            lines = found[skip:] if skip else found
            skip = max(0, skip - len(found))
            for at in range(0, len(lines), _MAX_ROWS):
                yield lines[at : at + _MAX_ROWS]


def _lines_from(file: IO[bytes], position: int, end: int | None) -> Iterator[list[bytes]]:
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


# ---- frames ----------------------------------------------------------------------------------------------------------

_MIN_SPLIT: Final = 1024 * 1024
"""Fewest bytes of a split: a smaller one is not worth a task."""
_STRICT_READ: Final = {
    "__globPaths__": "false",  # a file's name is a name, not a pattern
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "recursiveFileLookup": "true",  # no columns from folders called name=value
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """What is in the files.

    Attributes:
        format: one of ``FORMATS``.
        options: of Spark's decoder.
        header: whether the first line of each file is skipped.
        with_file: whether lines of text get the path of their file as a column.
    """

    format: str
    options: Mapping[str, str]
    header: bool = False
    with_file: bool = False


def frame_of(
    spark: SparkSession, root: str, slices: Sequence[FileSlice], content: FileFormat, schema: StructType
) -> DataFrame:
    """A lazy frame of exactly the rows of the slices. Spark looks at names and sizes of the files, no more."""
    if content.format == "parquet":
        return _parquet(spark, root, slices, content, schema)
    # Hadoop's local file system cannot open a file with a colon in its name, and many are named by the time of day.
    by_spark = not content.header and all(part.whole and ":" not in part.name for part in slices)
    lines = _lines_by_spark(spark, root, slices) if by_spark else _lines_of_cuts(spark, root, slices, content)
    # Both ways leave the "\r" of "\r\n" in the value.
    clean = r"CASE WHEN endswith(value, '\r') THEN left(value, length(value) - 1) ELSE value END AS value"
    if content.format == "text":
        # Spark's readers return a URL with some characters encoded, ours return a path.
        path = "url_decode(replace(regexp_replace(_file, '^file:/+', '/'), '+', '%2B'))" if by_spark else "_file"
        return lines.selectExpr(clean, f"{path} AS _file") if content.with_file else lines.selectExpr(clean)
    lines = lines.selectExpr(clean, "_file")
    decoding = text.decode_json if content.format == "json" else text.decode_csv
    decoded = decoding(lines, "value", schema, content.options)
    blank = r"btrim(value, ' \t') = ''"
    return text.failfast(decoded, "value", place="_file", skip=blank, drop_others=True)


def _lines_by_spark(spark: SparkSession, root: str, slices: Sequence[FileSlice]) -> DataFrame:
    paths = [os.path.join(root, part.name) for part in slices]
    return (
        spark.read.options(**_STRICT_READ)
        .option("lineSep", "\n")
        .text(paths)
        .selectExpr("value", "_metadata.file_path AS _file")
    )


def _lines_of_cuts(spark: SparkSession, root: str, slices: Sequence[FileSlice], content: FileFormat) -> DataFrame:
    splits = _splits(root, slices, spark.sparkContext.defaultParallelism)
    reader = LineReader(splits=splits, header=content.header)
    return _split_numbers(spark, len(splits)).mapInArrow(reader, "value STRING, _file STRING")


def _splits(root: str, slices: Sequence[FileSlice], cores: int) -> tuple[FileSplit, ...]:
    """Cut slices again, so that all cores have work. No row changes, by the rule of what a split owns."""
    total = sum(part.end - part.start for part in slices)
    size = max(_MIN_SPLIT, -(-total // cores))
    splits = []
    for part in slices:
        bounds = [part.start, part.end] if part.name.endswith(COMPRESSED) else _bounds(part, size)
        splits += [
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
    return tuple(splits)


def _bounds(part: FileSlice, size: int) -> list[int]:
    """The slice cut evenly into parts of at most ``size`` bytes: where they begin, and where the last one ends."""
    cuts = -(-(part.end - part.start) // size)
    return [part.start + (part.end - part.start) * at // cuts for at in range(cuts + 1)]


def _split_numbers(spark: SparkSession, count: int) -> DataFrame:
    """The numbers of the splits as rows: data of the plan, not literals of its code."""
    rows = ", ".join(f"({number})" for number in range(count))
    return spark.sql(f"SELECT n FROM VALUES {rows} AS t(n)")


# ---- Parquet ---------------------------------------------------------------------------------------------------------

_UNCHECKED: Final = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""Options to read files without looking for Hadoop's checksums, which cannot be done for a name with a colon."""


def _parquet(
    spark: SparkSession, root: str, slices: Sequence[FileSlice], content: FileFormat, schema: StructType
) -> DataFrame:
    paths = [os.path.join(root, part.name) for part in slices]
    whole = _parquet_reader(spark, paths, content.options).schema(schema).parquet(*paths)
    if all(part.whole for part in slices):
        return whole
    (part,) = slices  # a cut is a batch of its own
    return frame_of_ranges(whole, _group_ranges(paths[0], part, spark.sparkContext.defaultParallelism))


def _parquet_reader(spark: SparkSession, paths: Sequence[str], options: Mapping[str, str]) -> DataFrameReader:
    reader = spark.read.options(**options).options(**_STRICT_READ)
    return reader.options(**_UNCHECKED) if any(":" in os.path.basename(path) for path in paths) else reader


def _group_ranges(path: str, part: FileSlice, cores: int) -> list[tuple[int, int]]:
    """The ranges of whole row groups that begin in the slice, about as many as there are cores.

    Raises:
        DecodeError: the file's footer cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer: Any = pq.read_metadata(path)
    except (OSError, pa.ArrowInvalid) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise file_unreadable(path, error.strerror) from error
        msg = f"{path}: it is no valid Parquet file: {error}; move the file away, or write it again"
        raise DecodeError(msg) from error
    first_bytes = [_first_byte(footer, group) for group in range(footer.num_row_groups)]
    cuts = _bounds(part, max(_MIN_SPLIT, -(-(part.end - part.start) // cores)))
    bounds = sorted({group_bound(first_bytes, at, part.signature.size) for at in cuts})
    return list(itertools.pairwise(bounds)) or [(bounds[0], bounds[0])]


def group_bound(first_bytes: Sequence[int], at: int, size: int) -> int:
    """Where the first row group begins that begins at or after ``at``; ``size``, that of the file, if none does.

    Spark reads a row group with the range that its middle byte is in. The ranges between such bounds thus hold the row
    groups that begin in them, and whatever a footer says, each row group is in exactly one of them.
    """
    return min((first for first in first_bytes if first >= at), default=size) if at > 0 else 0


def _first_byte(footer: Any, group: int) -> int:
    column = footer.row_group(group).column(0)
    starts = [column.data_page_offset]
    if column.dictionary_page_offset:  # some writers write 0 for none
        starts.append(column.dictionary_page_offset)
    return int(min(starts))


def parquet_schema(spark: SparkSession, path: str) -> StructType:
    """The columns of a Parquet file as Spark reads them. Runs one job over its footer.

    Raises:
        GraphError: Spark has no type for one of them.
    """
    from pyspark.errors import AnalysisException

    try:
        return _parquet_reader(spark, [path], {}).parquet(path).schema
    except AnalysisException as error:
        msg = f"{path}: its columns cannot be taken: {error}. Give schema= with the columns to read, and their types."
        raise GraphError(msg) from error


def check_parquet_schema(spark: SparkSession, schema: StructType) -> None:
    """Refuse columns that Spark cannot read from Parquet, whatever is in the files.

    Raises:
        GraphError: names the column.
    """
    from pyspark.sql import types as t

    ignores_case = spark.conf.get("spark.sql.caseSensitive") != "true"
    for name, kind in _nested("", schema):
        if isinstance(kind, (t.CalendarIntervalType, t.CharType, t.VarcharType)):
            instead = "STRING" if isinstance(kind, (t.CharType, t.VarcharType)) else "the type that it has in the files"
            msg = (
                f"Column {name!r} is {kind.simpleString().upper()}, which Spark does not read from Parquet. Declare it "
                f"as {instead}, or leave it out."
            )
            raise GraphError(msg)
        names = [field.name.lower() if ignores_case else field.name for field in getattr(kind, "fields", ())]
        if len(set(names)) < len(names):
            msg = f"Column {name!r} has two fields of one name: {kind.simpleString()}. Rename one, or leave it out."
            raise GraphError(msg)


def _nested(name: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    """A type and all types in it, with the names by which Spark's errors call them."""
    from pyspark.sql import types as t

    if name:
        yield name, kind
    if isinstance(kind, t.StructType):
        inner = [(field.name, field.dataType) for field in kind.fields]
    elif isinstance(kind, t.MapType):
        inner = [("key", kind.keyType), ("value", kind.valueType)]
    else:
        inner = [("element", kind.elementType)] if isinstance(kind, t.ArrayType) else []
    for own, each in inner:
        yield from _nested(f"{name}.{own}" if name else own, each)


# ---- errors ----------------------------------------------------------------------------------------------------------


def explain(exception: BaseException) -> ConnectorError | None:
    """The error of a Spark job that failed because of the files it read; ``None`` for other failures."""
    decode_error = text.explain(exception)
    if decode_error is not None:
        return decode_error
    for details in text.parse_marked(exception, MARK):
        if "unreadable" in details:
            return file_unreadable(str(details.get("path")), str(details["unreadable"]))
        now = details.get("now")
        after = FileSignature(*now) if now else None
        return file_changed(str(details.get("name")), FileSignature(*details["before"]), after, "was planned")
    return _spark_error(exception)


_UNLIKE_SCHEMA: Final = re.compile(
    r"Caused by: [\w.]+: ([^\0]{0,1000}?(?:is not a group|is not primitive|to be \w+ type|in case-insensitive mode))"
)
"""A column that is a struct, list or map only in the file or only in the schema, or fields that differ by case only."""


def _spark_error(exception: BaseException) -> ConnectorError | None:
    described = str(exception)
    found = re.search(r"\[FAILED_READ_FILE\.([A-Z_]+)\] (.*)", described)
    if found is None:
        return None
    condition, message = found.groups()
    if condition == "FILE_NOT_EXIST":
        msg = f"a file vanished while it was read: {message}; put it back, or rewind to a checkpoint before it was read"
        return SourceChanged(msg)
    if condition in ("PARQUET_COLUMN_DATA_TYPE_MISMATCH", "CANNOT_READ_FILE_FOOTER"):
        msg = f"{message}; the file is damaged or not what the schema says: move it away, or correct the schema"
        return DecodeError(msg)
    unlike = _UNLIKE_SCHEMA.search(described)
    if unlike is not None:
        reason = " ".join(unlike[1].split())
        return DecodeError(f"{message}: {reason}; the file is not what the schema says: move it away, or correct it")
    return None
