"""Reads the files of durable layers as rows of the format, whatever columns they were written with.

Knows nothing of which files to read, and of whether their columns may become those of the format: see ``migration``.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

from penstock.handles import Act
from penstock.state.blocks import literal
from penstock.state.changing import quoted
from penstock.state.column_types import spark_type
from penstock.state.migration import moves_between, recorded_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from penstock.handles import ColumnMove, FileRef, LayerRef
    from penstock.state.layer import LayerFormat
    from penstock.state.writer import LayerWriter

    Files: TypeAlias = Sequence[tuple[LayerRef, Sequence[FileRef]]]


def scan(writer: LayerWriter, files: Files) -> DataFrame:
    """The rows of exactly these files of each layer, whatever else lies in their folders. No job.

    One scan for all layers that were written with the same columns.
    """
    layers_format = writer.layers_format
    by_schema: dict[str | None, list[FileRef]] = {}
    for ref, found in files:
        if found:
            by_schema.setdefault(recorded_in(ref), []).extend(found)
    frames = [_read(writer, schema, found) for schema, found in by_schema.items()]
    if not frames:
        return writer.session.createDataFrame([], layers_format.schema)
    return reduce(lambda left, right: left.union(right), frames)


def _read(writer: LayerWriter, schema: str | None, files: Sequence[FileRef]) -> DataFrame:
    layers_format = writer.layers_format
    moves = moves_between(schema, layers_format.ddl()) if schema is not None else ()
    paths = [literal(writer.filesystem.url(file.path)) for file in files]
    found = writer.session.read.schema(_as_written(moves, layers_format)).parquet(*paths)
    return found.select(*(_moved(move, layers_format) for move in moves if move.declared)) if moves else found


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


def _moved(move: ColumnMove, layers_format: LayerFormat) -> Column:
    """A declared column, made of what was read; NULL if it is new, which no merge counts."""
    from pyspark.sql import functions as F

    assert move.declared is not None  # asked for columns of the format only
    of = F.lit(None) if move.recorded is None else F.col(quoted(move.recorded.name))
    kind = layers_format.schema[move.declared.name].dataType
    return (of if move.act is Act.KEEP else of.cast(kind)).alias(move.declared.name)
