"""Slices of files as Spark frames.

Parquet is always read by Spark's own reader. Lines are read by Spark too, whole files and cuts of big ones, but many
small files by Python workers, and JSON that these decode faster; all ways give the same rows. A frame's plan has one of
few shapes, whatever the batch, and no literal in it changes, so Spark compiles nothing again.
"""

from __future__ import annotations

import csv
import itertools
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from penstock.connectors.files.arguments import SPARKS_ENCODINGS
from penstock.connectors.files.lines import DAMAGES, MARK, FileSplit, LineReader, damage, is_lz4_frame, open_file
from penstock.connectors.files.listing import FileSignature, FileSlice, compression_of, file_changed, file_unreadable
from penstock.errors import ConnectorError, DecodeError, GraphError, SourceChanged, sentence
from penstock.formats import text
from penstock.interfaces.source import DECODED_RECORD
from penstock.spark.file_ranges import frame_of_ranges
from penstock.spark.python_tasks import TaskFrames
from penstock.spark.query_log import first_line
from penstock.spark.sql import STRICT_READ, quote_identifier, string_literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import DataType, StructType

    from penstock.formats.json_arrow import JsonDecoder


# ---- frames ----------------------------------------------------------------------------------------------------------

_FEW_FILES: Final = 32
_SMALL_FILE: Final = 64 * 1024
"""Bytes of a file, on average, up to which more than a few are read by Python workers."""
_OPENING: Final = 32 * 1024
"""Bytes that could be read while a file is opened."""
_MIN_SPLIT: Final = 1024 * 1024
"""Fewest bytes of a split: a smaller one is not worth a task."""


# Spark's readers return a URL with some characters encoded, ours return a path.
_PATH: Final = "url_decode(replace(regexp_replace(_file, '^file:/+', '/'), '+', '%2B'))"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """What is in the files.

    Attributes:
        format: one of ``FORMATS``.
        options: of Spark's decoder.
        header: whether the first line of each file is skipped.
        by_name: whether that line says which column is where.
        multi_line: whether quoted values of CSV may have line breaks: Spark's reader reads such files, never in cuts.
        encoding: of the files, as Python calls it, if it is not UTF-8; such files are not cut.
        with_file: whether rows get the path of their file as the column ``_file``.
    """

    format: str
    options: Mapping[str, str]
    header: bool = False
    by_name: bool = False
    multi_line: bool = False
    encoding: str | None = None
    with_file: bool = False

    def can_cut(self, name: str) -> bool:
        """Whether the file of that name can be read in cuts."""
        if self.format == "parquet":
            return True
        return not self.multi_line and self.encoding is None and compression_of(name) is None


def frame_of(
    spark: SparkSession, root: str, slices: Sequence[FileSlice], content: FileFormat, schema: StructType
) -> DataFrame:
    """A lazy frame of exactly the rows of the slices. Spark looks at names and sizes of the files, no more."""
    if content.format == "parquet":
        return _parquet(spark, root, slices, content, schema)
    if content.multi_line:
        return _opened(_records_by_spark(spark, root, slices, content, schema), content)
    clean = r"CASE WHEN endswith(value, '\r') THEN left(value, length(value) - 1) ELSE value END AS value"  # of "\r\n"
    if content.format == "json":
        decoder = _decoder(spark, schema, content)
        if decoder is not None and not content.with_file and not _is_small(slices):
            lines = _lines_by_workers(spark, root, slices, content, decoder, schema)
            lines = lines.selectExpr(clean, "_file", DECODED_RECORD)
            return _opened(text.decode_json(lines, "value", schema, content.options, done=DECODED_RECORD), content)
    by_spark = not content.header and content.encoding is None and _suit_spark(slices)
    lines = _lines_by_spark(spark, root, slices) if by_spark else _lines_by_workers(spark, root, slices, content)
    if content.format == "text":
        return lines.selectExpr(clean, "_file") if content.with_file else lines.selectExpr(clean)
    decoding = text.decode_json if content.format == "json" else text.decode_csv
    return _opened(decoding(lines.selectExpr(clean, "_file"), "value", schema, content.options), content)


def _opened(decoded: DataFrame, content: FileFormat) -> DataFrame:
    blank = "false" if content.multi_line else r"btrim(value, ' \t') = ''"
    if content.format == "json":
        blank = f"{text.REASON} IS NOT NULL AND {blank}"  # a blank line is no JSON: good rows are not asked
    return text.failfast(decoded, "value", place="_file", skip=blank, drop_others=not content.with_file)


def _decoder(spark: SparkSession, schema: StructType, content: FileFormat) -> JsonDecoder | None:
    """What decodes these files in Python workers, in half the time that Spark takes; ``None`` if Spark alone can."""
    if content.options or spark.conf.get("spark.sql.legacy.timeParserPolicy") == "LEGACY":
        return None
    from penstock.formats.json_arrow import decoder_of

    decoder = decoder_of(schema)
    return None if decoder is None else decoder.in_zone(spark.conf.get("spark.sql.session.timeZone"))


def _is_small(slices: Sequence[FileSlice]) -> bool:
    """Whether a Python worker would take longer to begin than it saves."""
    return len(slices) <= _FEW_FILES and _bytes(slices) <= _MIN_SPLIT


def _suit_spark(slices: Sequence[FileSlice]) -> bool:
    """Whether Spark's own reader can read the lines, and not slower than Python workers."""
    # Hadoop's local file system cannot open a file with a colon in its name, and many are named by the time of day.
    # Hadoop's codec for lz4 reads files of Hadoop alone.
    if any(":" in part.name or compression_of(part.name) == "lz4" or _lacks_codec(part.name) for part in slices):
        return False
    # It takes a third of a millisecond to open a file, a worker a tenth of that.
    return len(slices) <= _FEW_FILES or _bytes(slices) > _SMALL_FILE * len(slices)


def _lacks_codec(name: str) -> bool:
    """Whether Spark, or a release of it that penstock runs on, reads such a file as if it were not compressed."""
    return name.lower().endswith((".xz", ".gzip", ".zstd"))


def _bytes(slices: Sequence[FileSlice]) -> int:
    return sum(part.end - part.start for part in slices)


def _lines_by_spark(spark: SparkSession, root: str, slices: Sequence[FileSlice]) -> DataFrame:
    paths = [os.path.join(root, part.name) for part in slices]
    whole = spark.read.options(**STRICT_READ).option("lineSep", "\n").text(paths)
    if all(part.whole for part in slices):
        return whole.selectExpr("value", "_metadata.file_path AS _file").selectExpr("value", f"{_PATH} AS _file")
    (part,) = slices  # a cut is a batch of its own
    bounds = _bounds(part, max(_MIN_SPLIT, -(-(part.end - part.start) // spark.sparkContext.defaultParallelism)))
    # A line that begins at `start` belongs to the range that holds the byte before it.
    ranges = [(max(start - 1, 0), end - 1) for start, end in itertools.pairwise(bounds)]
    return frame_of_ranges(whole, ranges, {"_file": paths[0]})


def _lines_by_workers(
    spark: SparkSession,
    root: str,
    slices: Sequence[FileSlice],
    content: FileFormat,
    decoder: JsonDecoder | None = None,
    record: StructType | None = None,
) -> DataFrame:
    from pyspark.sql.types import StringType, StructType

    cores = spark.sparkContext.defaultParallelism
    tasks = _tasks(_splits(root, slices, content, cores), cores)
    reader = LineReader(header=content.header, encoding=content.encoding, decoder=decoder)
    columns = StructType().add("value", StringType()).add("_file", StringType())
    if record is not None:
        columns.add(DECODED_RECORD, record)
    return TaskFrames(spark, columns).frame(tasks, reader.read)


def _splits(root: str, slices: Sequence[FileSlice], content: FileFormat, cores: int) -> tuple[FileSplit, ...]:
    """Cut slices again, so that all cores have work. No row changes, by the rule of what a split owns."""
    total = sum(part.end - part.start for part in slices)
    size = max(_MIN_SPLIT, -(-total // cores))
    splits = []
    for part in slices:
        bounds = _bounds(part, size) if content.can_cut(part.name) else [part.start, part.end]
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


def _tasks(splits: Sequence[FileSplit], cores: int) -> tuple[tuple[FileSplit, ...], ...]:
    """The splits in their order, for at most as many tasks as there are cores, each of about as many bytes."""
    costs = [split.end - split.start + _OPENING for split in splits]
    share = sum(costs) / cores
    tasks: dict[int, list[FileSplit]] = {}
    before = 0
    for split, cost in zip(splits, costs, strict=True):
        tasks.setdefault(min(int((before + cost / 2) / share), cores - 1), []).append(split)
        before += cost
    return tuple(map(tuple, tasks.values()))


def _records_by_spark(
    spark: SparkSession, root: str, slices: Sequence[FileSlice], content: FileFormat, schema: StructType
) -> DataFrame:
    """Records of CSV whose values may have line breaks, decoded, with ``_file``."""
    paths = [os.path.join(root, part.name) for part in slices]
    _require_sparks_codecs(paths)
    options = {**content.options, **text.MULTI_LINE, "header": str(content.header).lower()}
    if content.encoding is not None:
        options["encoding"] = SPARKS_ENCODINGS[content.encoding]
    whole = _reader(spark, paths, options).schema(text.with_corrupt(schema)).csv(paths)
    return text.decoded_csv(whole.selectExpr("*", "_metadata.file_path AS _file"), schema, _PATH)


def _require_sparks_codecs(paths: Sequence[str]) -> None:
    """Check that Spark can decompress files: it reads some as if they were not compressed.

    Raises:
        DecodeError: it cannot.
        SourceUnavailable: a file may not be read.
    """
    for path in paths:
        try:
            is_unknown = _lacks_codec(path) or (compression_of(path) == "lz4" and is_lz4_frame(path))
        except OSError as error:
            raise file_unreadable(path, error.strerror) from error
        if is_unknown:
            msg = (
                f"{path}: Spark, which reads files with multiLine, cannot decompress it. Compress it with gzip, bzip2 "
                "or zstd as a file .gz, .bz2 or .zst, or leave out the option multiLine."
            )
            raise DecodeError(msg)


# ---- CSV whose first line names the columns --------------------------------------------------------------------------

_BETWEEN: Final = "\udfff"
"""Stands for the separator, since Python takes one character: this one is in no decoded text."""


def frame_by_names(
    spark: SparkSession, root: str, slices: Sequence[FileSlice], content: FileFormat, schema: StructType
) -> DataFrame:
    """A lazy frame of the rows of CSV files, as ``frame_of``, with the columns found by the files' headers.

    A column that a file does not have is ``NULL``, one that is not declared is left out.

    Raises:
        DecodeError: a header names no declared column, or one twice.
        SourceUnavailable: a file may not be read.
    """
    frames = []
    for header, group in itertools.groupby(slices, lambda part: _header(os.path.join(root, part.name), content)):
        parts = list(group)
        order = _in_order(os.path.join(root, parts[0].name), header, schema)
        frame = frame_of(spark, root, parts, content, order)
        known = {name.lower() for name in order.fieldNames()}
        columns = [
            quote_identifier(each.name)
            if each.name.lower() in known
            else f"CAST(NULL AS {each.dataType.simpleString()}) AS {quote_identifier(each.name)}"
            for each in schema.fields
        ]
        frames.append(frame.selectExpr(*columns, *(["_file"] if content.with_file else [])))
    first, *others = frames
    for other in others:
        first = first.unionAll(other)
    return first


def _header(path: str, content: FileFormat) -> tuple[str, ...]:
    named = {name.lower(): value for name, value in content.options.items()}
    separator = text.unescaped_separator(named.get("sep", named.get("delimiter", ",")))
    quote = named.get("quote", '"').strip("\0")
    try:
        with open_file(path, content.encoding) as file:
            line = file.readline().decode("utf-8-sig", errors="replace").rstrip("\r\n")
    except DAMAGES as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise file_unreadable(path, error.strerror) from error
        reason, remedy = damage(path, error)
        msg = f"{path}: {sentence(reason)} {sentence(remedy)}"
        raise DecodeError(msg) from error
    reader = csv.reader([line.replace(separator, _BETWEEN)], delimiter=_BETWEEN, quotechar=quote or None)
    try:
        names = next(reader, [])
    except csv.Error as error:  # such as lines that end with CR alone
        msg = f"{path}: The first line is no header: {error}. Correct the file: its lines must end with LF or CR LF."
        raise DecodeError(msg) from error
    return tuple(name.replace(_BETWEEN, separator).strip() for name in names)


def _in_order(path: str, header: Sequence[str], schema: StructType) -> StructType:
    """The declared columns in the order of the header, and a column of text for each other name."""
    from pyspark.sql.types import StringType, StructField, StructType

    declared = {each.name.lower(): each for each in schema.fields}
    found = [name.lower() for name in header]
    twice = sorted({name for name in found if name in declared and found.count(name) > 1})
    if twice or not declared.keys() & set(found):
        what = f"names column {twice[0]!r} twice" if twice else "names no column of the schema"
        msg = (
            f"{path}: The first line {what}. It reads {', '.join(header)!r}. Columns: {', '.join(schema.fieldNames())}"
            ". Correct the file or schema=, or set the option header to True if the columns are always in one order."
        )
        raise DecodeError(msg)
    return StructType(
        [declared.get(name) or StructField(f"_other_{number}", StringType()) for number, name in enumerate(found)]
    )


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
    whole = _reader(spark, paths, content.options).schema(schema).parquet(*paths)
    if all(part.whole for part in slices):
        if not content.with_file:
            return whole
        return whole.selectExpr("*", "_metadata.file_path AS _file").selectExpr(*_names(schema), f"{_PATH} AS _file")
    (part,) = slices  # a cut is a batch of its own
    cut = frame_of_ranges(whole, _group_ranges(paths[0], part, spark.sparkContext.defaultParallelism))
    return cut.selectExpr("*", f"{string_literal(paths[0])} AS _file") if content.with_file else cut


def _names(schema: StructType) -> list[str]:
    return [f"`{name.replace('`', '``')}`" for name in schema.fieldNames()]


def _reader(spark: SparkSession, paths: Sequence[str], options: Mapping[str, str]) -> DataFrameReader:
    reader = spark.read.options(**options).options(**STRICT_READ)
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
        msg = f"File {path!r} is not a valid Parquet file ({error}). Move it away, or write it again."
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
        return _reader(spark, [path], {}).parquet(path).schema
    except AnalysisException as error:
        msg = (
            f"The columns of file {path!r} cannot be taken from it: {first_line(error)}. Give schema= with the columns "
            "to read, and their types."
        )
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
    known = text.explain(exception)
    if known is not None:
        return known
    for details in text.parse_marked(exception, MARK):
        if "unreadable" in details:
            return file_unreadable(str(details.get("path")), str(details["unreadable"]))
        now = details.get("now")
        after = FileSignature(*now) if now else None
        return file_changed(str(details.get("name")), FileSignature(*details["before"]), after, "was planned")
    return _spark_error(exception)


_FAILED_READ: Final = re.compile(r"\[FAILED_READ_FILE\.([A-Z_]+)\] (.*)")
_FILE: Final = re.compile(r" file:/*(/\S*?)\.?(?=\s|$)")
_CAUSE: Final = re.compile(r"^\s*Caused by: (.*)$", re.MULTILINE)
_DENIED: Final = re.compile(r"\(Permission denied\)|AccessControlException")
_DAMAGED: Final = re.compile(
    r"EOFException|end of stream|ZipException|DataFormatException|ParquetDecodingException|gzip|bzip2|zstd|snappy|lz4|"
    r"\bCRC\b|corrupt|incorrect (?:header|data) check|invalid (?:block|stored|distance|code|literal|bit)",
    re.IGNORECASE,
)
"""What decompressors and decoders of Java say of content that will never be right."""
_UNLIKE_SCHEMA: Final = re.compile(
    r"Caused by: [\w.]+: ([^\0]{0,1000}?(?:is not a group|is not primitive|to be \w+ type|in case-insensitive mode))"
)
"""A column that is a struct, list or map only in the file or only in the schema, or fields that differ by case only."""


def _spark_error(exception: BaseException) -> ConnectorError | None:
    described = str(exception)
    found = _FAILED_READ.search(described)
    if found is None:
        return None
    condition, message = found[1], first_line(found[2])
    file = _FILE.search(found[2])
    if file and _DENIED.search(described):
        return file_unreadable(unquote(file[1]), "Permission denied")
    if condition == "FILE_NOT_EXIST":
        msg = (
            f"A file vanished while it was read: {message}. Put it back, or rewind to a checkpoint before it was read."
        )
        return SourceChanged(msg)
    if condition in ("PARQUET_COLUMN_DATA_TYPE_MISMATCH", "CANNOT_READ_FILE_FOOTER"):
        msg = f"{message}. The file is damaged or does not fit the schema. Move it away, or correct the schema."
        return DecodeError(msg)
    return _without_hint(described, message, unquote(file[1])) if condition == "NO_HINT" and file else None


def _without_hint(described: str, message: str, path: str) -> ConnectorError:
    """The error of a failure to which Spark gives no name: only what caused it tells what is wrong with the file."""
    unlike, causes = _UNLIKE_SCHEMA.search(described), _CAUSE.findall(described)
    if unlike is not None:
        reason = " ".join(unlike[1].split())
        return DecodeError(
            f"{message}: {reason}. The file does not fit the schema. Move it away, or correct the schema."
        )
    cause = causes[-1] if causes else message
    if any(_DAMAGED.search(each) for each in causes):
        msg = (
            f"File {path!r} is damaged or was not written to its end ({cause}). To go on, move it away, or replace "
            "it by a whole one, and start the job again. Files must arrive whole: write them under a name that begins "
            "with '_' or '.' or ends with '.tmp', then rename."
        )
        return DecodeError(msg)
    return file_unreadable(path, cause)
