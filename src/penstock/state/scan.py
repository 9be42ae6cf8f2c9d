"""Reads the files of durable layers as rows of the format, whatever columns they were written with.

Knows nothing of which files to read, and of whether their columns may become those of the format: see ``migration``.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.handles import Act
from penstock.state.blocks import literal
from penstock.state.changing import quoted
from penstock.state.column_types import spark_type
from penstock.state.migration import moves_between, recorded_in
from penstock.state.sessions import empty

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.filesystem.base import FileSystem
    from penstock.handles import ColumnMove, FileRef, LayerRef
    from penstock.state.layer import LayerFormat

    Files: TypeAlias = Sequence[tuple[LayerRef, Sequence[FileRef]]]


WHOLE: Final = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""A file that is gone or damaged fails the job, whatever the session says."""


def scan(layers_format: LayerFormat, filesystem: FileSystem, session: SparkSession, files: Files) -> DataFrame:
    """The rows of exactly these files of each layer, whatever else lies in their folders; none may be left out. No job.

    One scan for all layers that were written with the same columns.
    """
    by_schema: dict[str | None, list[FileRef]] = {}
    for ref, found in files:
        if found:
            by_schema.setdefault(recorded_in(ref), []).extend(found)
    frames = []
    for schema, found in by_schema.items():
        moves = moves_between(schema, layers_format.ddl()) if schema is not None else ()
        paths = [literal(filesystem.url(file.path)) for file in found]
        frame = session.read.schema(_as_written(moves, layers_format)).options(**WHOLE).parquet(*paths)
        frames.append(frame.select(*_moved(moves, layers_format)) if moves else frame)
    if not frames:
        return empty(session, layers_format.schema)
    return reduce(lambda left, right: left.union(right), frames)


def _as_written(moves: Sequence[ColumnMove], layers_format: LayerFormat) -> StructType:
    """The columns to read; those of the format, unless there are moves."""
    from pyspark.sql.types import DataType, StructType

    if not moves:
        return layers_format.schema
    made = StructType()
    for move in moves:
        if move.recorded is None or move.declared is None:
            continue
        if move.act is Act.KEEP:
            made.add(move.recorded.name, layers_format.schema[move.declared.name].dataType)
        else:
            made.add(move.recorded.name, DataType.fromDDL(spark_type(move.recorded.type)))
    return made


def _moved(moves: Sequence[ColumnMove], layers_format: LayerFormat) -> list[Column]:
    """The declared columns, made of what was read; NULL if one is new, which no merge counts."""
    from pyspark.sql import functions as F

    made = []
    for move in moves:
        if move.declared is None:
            continue
        of = F.lit(None) if move.recorded is None else F.col(quoted(move.recorded.name))
        kind = layers_format.schema[move.declared.name].dataType
        made.append((of if move.act is Act.KEEP else of.cast(kind)).alias(move.declared.name))
    return made
