"""Spark frames over slices of files: whole ones by Spark's readers, cuts in Python workers. Knows no position.

Both ways give the same lines and use the same decoding. A frame's plan has one of two shapes, whatever the batch, and
no literal in it changes, so nothing is compiled again.
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock import formats
from penstock.errors import ConnectorError, DecodeError, SourceChanged
from penstock.sources.file_listing import COMPRESSED, Signature, Slice, changed, unreadable
from penstock.sources.file_ranges import MARK, LineReader, Piece, RowGroupReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SMALLEST_PIECE: Final = 1024 * 1024
_FIRM: Final = {
    "__globPaths__": "false",  # a file's name is a name, not a pattern
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "recursiveFileLookup": "true",  # no columns from folders called name=value
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What is in the files: their format, the decoder's options, and whether a header line is to be skipped.

    ``with_file``: lines of text come with the path of their file.
    """

    format: str
    options: Mapping[str, str]
    header: bool = False
    with_file: bool = False


def frame_of(
    spark: SparkSession, root: str, slices: Sequence[Slice], content: Content, schema: StructType
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
    decoding = formats.decode_json if content.format == "json" else formats.decode_csv
    decoded = decoding(lines, "value", schema, content.options)
    blank = r"btrim(value, ' \t') = ''"
    return formats.strict(decoded, "value", place="_file", skip=blank, alone=True)


def _whole_lines(spark: SparkSession, root: str, slices: Sequence[Slice]) -> DataFrame:
    paths = [os.path.join(root, part.name) for part in slices]
    return (
        spark.read.options(**_FIRM)
        .option("lineSep", "\n")
        .text(paths)
        .selectExpr("value", "_metadata.file_path AS _file")
    )


def _cut_lines(spark: SparkSession, root: str, slices: Sequence[Slice], content: Content) -> DataFrame:
    pieces = _pieces(root, slices, spark.sparkContext.defaultParallelism)
    reader = LineReader(pieces=pieces, header=content.header)
    return _numbers(spark, len(pieces)).mapInArrow(reader, "value STRING, _file STRING")


def _parquet_files(
    spark: SparkSession, root: str, slices: Sequence[Slice], content: Content, schema: StructType
) -> DataFrame:
    paths = [os.path.join(root, part.name) for part in slices]
    return spark.read.schema(schema).options(**content.options).options(**_FIRM).parquet(*paths)


def _groups(spark: SparkSession, root: str, slices: Sequence[Slice], schema: StructType) -> DataFrame:
    from pyspark.sql.pandas.types import to_arrow_schema

    pieces = _pieces(root, slices, spark.sparkContext.defaultParallelism)
    arrow = to_arrow_schema(schema, timezone="UTC")
    return _numbers(spark, len(pieces)).mapInArrow(RowGroupReader(pieces=pieces, schema=arrow), schema)


def _pieces(root: str, slices: Sequence[Slice], cores: int) -> tuple[Piece, ...]:
    """Cut slices again, so that all cores have work; by the rule of what a range owns, that changes no row."""
    total = sum(part.end - part.start for part in slices)
    size = max(_SMALLEST_PIECE, -(-total // cores))
    pieces = []
    for part in slices:
        cuts = 1 if part.name.endswith(COMPRESSED) else -(-(part.end - part.start) // size)
        bounds = [part.start + (part.end - part.start) * at // cuts for at in range(cuts + 1)]
        pieces += [
            Piece(
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
    decode = formats.explain(exception)
    if decode is not None:
        return decode
    for told in formats.marked(exception, MARK):
        if "unreadable" in told:
            return unreadable(str(told.get("path")), str(told["unreadable"]))
        now = told.get("now")
        after = Signature(*now) if now else None
        return changed(str(told.get("name")), Signature(*told["before"]), after, "was planned")
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
