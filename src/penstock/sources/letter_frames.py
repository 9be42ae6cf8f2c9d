"""Spark frames of dead letters as the source's own rows; knows neither replays nor positions."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Final

from penstock.errors import SourceChanged
from penstock.sources.base import RECORD
from penstock.sources.dead_letters import AS_IT_WAS, FOLDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.filesystem.base import FileSystem
    from penstock.sources.dead_letters import Letters, Replay

FIRM: Final = {"__globPaths__": "false", "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
_FEW: Final = 16
"""Ranges that are compared one by one; more are looked up as single numbers."""


def letters_frame(spark: SparkSession, filesystem: FileSystem, replay: Replay, schema: StructType) -> DataFrame:
    """A lazy frame of the letters of a replay, in the columns that their source has now.

    Args:
        spark: a session.
        filesystem: of the job's directory.
        replay: which letters.
        schema: of the source. A column that the letters do not have is ``NULL``; so is :data:`RECORD`, since none of
            them could be decoded by the source.

    Raises:
        SourceChanged: a file is gone.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField, StructType

    letters = {filesystem.url(f"{FOLDER}/{replay.uid}/{each.file}"): each for each in replay.letters}
    for address in letters:
        path = address.removeprefix("file://")
        if "://" not in path and not os.path.exists(path):
            raise gone(path)
    whole = StructType([field for field in schema.fields if field.name != RECORD])
    wanted = StructType([StructField(AS_IT_WAS, whole)])
    frame = spark.read.schema(wanted).options(**FIRM).parquet(*letters)
    chosen = " ".join(f"WHEN '{each.file}' THEN {_chosen(each)}" for each in letters.values())
    columns = (
        F.lit(None).cast(field.dataType).alias(RECORD)
        if field.name == RECORD
        else F.col(AS_IT_WAS).getField(field.name).alias(field.name)
        for field in schema.fields
    )
    return frame.where(f"CASE _metadata.file_name {chosen} ELSE false END").select(*columns)


def gone(path: str) -> SourceChanged:
    """What is said of a file of letters that went away after its replay was taken up."""
    msg = (
        f"{path} went away while its dead letters were to be read again: put it back before the next start, or "
        "they are left out (penstock deadletter drop leaves files that are yet to be read)"
    )
    return SourceChanged(msg)


def _chosen(letters: Letters) -> str:
    if len(letters.ranges) <= _FEW:
        return " OR ".join(
            f"(_metadata.row_index >= {start}L AND _metadata.row_index < {end}L)" for start, end in letters.ranges
        )
    numbers = itertools.chain.from_iterable(range(start, end) for start, end in letters.ranges)
    return f"_metadata.row_index IN ({', '.join(f'{number}L' for number in numbers)})"
