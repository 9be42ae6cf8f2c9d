"""CSV files whose first line names the columns: each column is found by its name, in whatever order."""

from __future__ import annotations

import csv
import os
from itertools import groupby
from typing import TYPE_CHECKING

from penstock.connectors.files.lines import DAMAGES, damage, open_file
from penstock.connectors.files.listing import file_unreadable
from penstock.connectors.files.ranges import frame_of
from penstock.errors import DecodeError, sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.connectors.files.listing import FileSlice
    from penstock.connectors.files.ranges import FileFormat


def frame_by_names(
    spark: SparkSession, root: str, slices: Sequence[FileSlice], content: FileFormat, schema: StructType
) -> DataFrame:
    """A lazy frame of the rows of CSV files, as ``ranges.frame_of``, with the columns found by the files' headers.

    A column that a file does not have is ``NULL``, one that is not declared is left out.

    Raises:
        DecodeError: a header names no declared column, or one twice.
        SourceUnavailable: a file may not be read.
    """
    frames = []
    for header, group in groupby(slices, lambda part: _header(os.path.join(root, part.name), content)):
        parts = list(group)
        order = _in_order(os.path.join(root, parts[0].name), header, schema)
        frame = frame_of(spark, root, parts, content, order)
        known = {name.lower() for name in order.fieldNames()}
        columns = [
            _quoted(each.name)
            if each.name.lower() in known
            else f"CAST(NULL AS {each.dataType.simpleString()}) AS {_quoted(each.name)}"
            for each in schema.fields
        ]
        frames.append(frame.selectExpr(*columns, *(["_file"] if content.with_file else [])))
    first, *others = frames
    for other in others:
        first = first.unionAll(other)
    return first


def _header(path: str, content: FileFormat) -> tuple[str, ...]:
    named = {name.lower(): value for name, value in content.options.items()}
    separator = named.get("sep", named.get("delimiter", ","))
    try:
        with open_file(path, content.encoding) as file:
            line = file.readline().decode("utf-8-sig", errors="replace").rstrip("\r\n")
    except DAMAGES as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise file_unreadable(path, error.strerror) from error
        reason, remedy = damage(path, error)
        msg = f"{path}: {sentence(reason)} {sentence(remedy)}"
        raise DecodeError(msg) from error
    reader = csv.reader([line], delimiter=separator, quotechar=named.get("quote", '"') or None)
    return tuple(name.strip() for name in next(reader, []))


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


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
