"""Columns whose values are in the names of folders: ``date=2026-01-31/country=DE/a.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import GraphError
from penstock.formats.text import DECODE_MARK
from penstock.spark.sql import string_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FILE: Final = "_file"
"""Column of a frame with the path of each row's file."""
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Spark and Hive call the folder of rows without a value."""
_REMEDY: Final = "Move the file to a folder key=value for each of partition_columns, or correct partition_columns"


def with_partitions(frame: DataFrame, root: str, columns: StructType, *, with_file: bool) -> DataFrame:
    """The frame with the columns that the folders below ``root`` name; ``FILE`` is dropped unless ``with_file``.

    A row fails the job (see ``formats.text.explain``) if its path has no folder for a column, or another type of value.
    """
    kept = [f"`{name.replace('`', '``')}`" for name in frame.columns if with_file or name != FILE]
    return frame.selectExpr(*kept, *(_column(root, field.name, field.dataType.simpleString()) for field in columns))


def _column(root: str, name: str, kind: str) -> str:
    below = f"substring({FILE}, {len(root) + 1})"
    pattern = string_literal(f"^.*/{_escaped(name)}=([^/]*)/.*$")
    found = f"regexp_extract({below}, {pattern}, 1)"
    value = f"coalesce(try_url_decode(replace({found}, '+', '%2B')), {found})"  # writers escape characters
    typed = f"try_cast({value} AS {kind})"
    reason = string_literal(f"Its path has no folder {name}=… with a value of type {kind}")
    told = f"to_json(named_struct('place', {FILE}, 'reason', {reason}, 'remedy', {string_literal(_REMEDY)}))"
    fails = f"CAST(raise_error(concat('{DECODE_MARK}', {told})) AS {kind})"
    bad = f"{below} NOT RLIKE {pattern} OR {typed} IS NULL"
    null = f"WHEN {found} = '{_NULL}' THEN CAST(NULL AS {kind})"
    return f"CASE {null} WHEN {bad} THEN {fails} ELSE {typed} END AS `{name.replace('`', '``')}`"


def _escaped(name: str) -> str:
    return "".join(each if each.isalnum() or each == "_" else f"\\{each}" for each in name)


def with_columns(data: StructType, columns: StructType | None) -> StructType:
    """The columns of the files, and then those of their folders.

    Raises:
        GraphError: a name would appear twice.
    """
    from pyspark.sql.types import StructType

    if columns is None:
        return data
    known = {name.lower() for name in data.fieldNames()}
    for name in columns.fieldNames():
        if name.lower() in known or name == FILE:
            msg = (
                f"Column {name!r} is in the files and in partition_columns. Leave it out of schema= (for Parquet, give "
                "schema= with the other columns), or out of partition_columns."
            )
            raise GraphError(msg)
    return StructType([*data.fields, *columns.fields])
