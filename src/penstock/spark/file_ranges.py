"""Byte ranges of a file as lazy frames, read by Spark's own reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.spark.blocks import RowLeaves, ScalaLists, frame_of_plan, scala_object
from penstock.spark.plans import analyzed_plan
from penstock.spark.session import parse_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

_FILES: Final = "org.apache.spark.sql.execution.datasources"


def frame_of_ranges(
    whole: DataFrame, ranges: Sequence[tuple[int, int]], constants: Mapping[str, str] | None = None
) -> DataFrame:
    """The rows of some byte ranges of a file, each range a partition.

    A range has what it has in all of Spark's scans: of Parquet, the row groups whose middle byte is in it; of text, the
    lines that begin after its first byte, up to the byte after its last one, and the file's first line if the range
    begins there. Spark cuts files only from their beginning on, so the scan is made here, by the reader that the frame
    of the whole file would use: the columns, their types and the errors are the same.

    Args:
        whole: the frame of the whole file, as ``spark.read`` makes it. No other file is in it.
        ranges: each the first byte and the byte after the last; at least one.
        constants: further columns of text, each with one value.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    session: Any = whole.sparkSession
    jvm, classic = session._jvm, session._jsparkSession  # noqa: SLF001 - Spark's scans have no public way in
    to_list = ScalaLists(jvm)
    node = analyzed_plan(whole)
    relation = node.relation()
    of_rows = scala_object(jvm, f"{_FILES}.FileFormat").OPTION_RETURNING_BATCH()
    options = relation.options().updated(of_rows, "false")
    # As what Spark takes from the names of folders, they are no literals of the plan: nothing is compiled anew.
    constants = constants or {}
    added = parse_type(session, StructType([StructField(name, StringType(), nullable=False) for name in constants]))
    read = relation.fileFormat().buildReaderWithPartitionValues(
        classic,
        relation.dataSchema(),
        added,
        relation.dataSchema(),
        to_list.nil,
        options,
        classic.sessionState().newHadoopConfWithOptions(options),
    )
    rows = getattr(jvm, f"{_FILES}.FileScanRDD")(
        classic,
        read,
        to_list(_partitions(session, relation, ranges, list(constants.values()))),
        relation.schema(),
        to_list.nil,
        relation.fileFormat().fileConstantMetadataExtractors(),
        getattr(jvm, "org.apache.spark.sql.catalyst.FileSourceOptions")(options),
    )
    anywhere = getattr(jvm, "org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning")(0)
    of_constants = scala_object(jvm, "org.apache.spark.sql.catalyst.types.DataTypeUtils").toAttributes(added)
    columns = node.output().appendedAll(of_constants)
    return frame_of_plan(RowLeaves(session).make(columns, rows, anywhere, is_checkpointed=False), session)


def _partitions(session: Any, relation: Any, ranges: Sequence[tuple[int, int]], values: Sequence[str]) -> list[Any]:
    jvm, array = session._jvm, session.sparkContext._gateway.new_array  # noqa: SLF001
    status = relation.location().allFiles().head()
    path = scala_object(jvm, "org.apache.spark.paths.SparkPath").fromFileStatus(status)
    text = getattr(jvm, "org.apache.spark.unsafe.types.UTF8String").fromString
    row = scala_object(jvm, "org.apache.spark.sql.catalyst.InternalRow").fromSeq(ScalaLists(jvm)([*map(text, values)]))
    no_metadata = scala_object(jvm, "scala.collection.immutable.Map").empty()
    no_hosts = array(getattr(jvm, "java.lang.String"), 0)
    modified, size = status.getModificationTime(), status.getLen()
    file, partition = getattr(jvm, f"{_FILES}.PartitionedFile"), getattr(jvm, f"{_FILES}.FilePartition")
    made = []
    for number, (start, end) in enumerate(ranges):
        files = array(file, 1)
        files[0] = file(row, path, start, end - start, no_hosts, modified, size, no_metadata)
        made.append(partition(number, files))
    return made
