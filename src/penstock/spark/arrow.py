"""Arrow batches as lazy frames."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.spark.blocks import JavaObject, RowLeaves, function_of, mapped_rdd, scala_object
from penstock.spark.bound_plans import note_sent

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# What PySpark has for this makes everything of a frame again: a file, the function that decodes the batches, whose
# class Spark reads from its jar to see what it refers to, and a leaf that goes through all rules of analysis. For a
# batch of some hundred rows that was two thirds of what its plan cost the driver, and nothing of it depends on the
# rows. So the function is taken from the first frame, and a leaf that is known to be sound is not analysed. Where
# Spark's internals are others than expected, frames are made as PySpark makes them.

MAX_INLINE_BYTES: Final = 1024 * 1024
"""Bytes up to which batches go to the JVM in a call, as text; more goes by a file."""


ONE_PARTITION: Final = 2_000
"""Rows up to which the frame of a table has one partition."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns in Arrow's types; points in time are in UTC.

    Raises:
        PySparkTypeError: Arrow has no such type.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark 4.1 does not ask for the zone: it is UTC there
    zone = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return cast("Any", to_arrow_schema)(schema, **zone)


def in_chunks(batch: pa.RecordBatch, cores: int) -> pa.Table:
    """A record batch as a table, one chunk for each partition of its frame."""
    import pyarrow as pa

    parts = 1 if batch.num_rows <= ONE_PARTITION else cores
    share = -(-batch.num_rows // parts)
    return pa.Table.from_batches([batch.slice(at, share) for at in range(0, batch.num_rows, share)])


class ArrowSender:
    """Sends Arrow batches to the JVM of a session and makes lazy frames of them. Runs no job.

    Args:
        spark: the session.
        schema: the columns of all batches, in order and of just these types.
    """

    def __init__(self, spark: SparkSession, schema: StructType) -> None:
        from pyspark.sql.pandas.serializers import ArrowStreamSerializer

        self._spark: Any = spark
        self._json = schema.json()
        jvm = self._spark._jvm  # noqa: SLF001 - there is no public way
        arrow = "org.apache.spark.sql.api.python"
        utils = getattr(jvm, f"{arrow}.PythonSQLUtils")
        self._read, self._made = utils.readArrowStreamFromFile, utils.toDataFrame
        self._server = getattr(jvm, f"{arrow}.ArrowIteratorServer")
        self._serializer = ArrowStreamSerializer()
        self._split = scala_object(jvm, "org.apache.spark.sql.execution.arrow.ArrowConverters").getBatchesFromStream
        self._bytes = getattr(jvm, "java.io.ByteArrayInputStream")
        self._channel = getattr(jvm, "java.nio.channels.Channels").newChannel
        self._factory: ArrowFrameFactory | None = None
        self._may_have_factory = True

    def frame(self, batches: Sequence[pa.RecordBatch]) -> DataFrame:
        """A lazy frame of the batches, each a partition."""
        from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

        messages = self._sent(batches)
        if self._factory is not None:
            made = self._factory.frame(messages, len(batches))
        else:
            made = self._made(messages, self._json, self._spark._jsparkSession)  # noqa: SLF001
            if self._may_have_factory:
                self._factory = factory_of(self._spark, made)
                self._may_have_factory = self._factory is not None
        frame = cast("DataFrame", ClassicFrame(made, self._spark))
        note_sent(frame, sum(batch.num_rows for batch in batches))
        return frame

    def _sent(self, batches: Sequence[pa.RecordBatch]) -> JavaObject:
        """An iterator over the batches in the JVM."""
        import pyarrow as pa

        if sum(batch.nbytes for batch in batches) > MAX_INLINE_BYTES:
            context = self._spark.sparkContext
            return context._serialize_to_jvm(batches, self._serializer, self._read, self._server)  # noqa: SLF001
        into = pa.BufferOutputStream()
        with pa.ipc.new_stream(into, batches[0].schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        return self._split(self._channel(self._bytes(into.getvalue().to_pybytes())))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowFrameFactory:
    """The JVM's objects that all frames of the same columns share."""

    context: JavaObject
    session: JavaObject
    schema: JavaObject
    decode: JavaObject
    """The function of a task from batches to rows."""

    partitioning: JavaObject
    """That of a leaf: none."""

    batch_tag: JavaObject
    leaves: RowLeaves
    attributes: JavaObject
    mapped: JavaObject
    framed: JavaObject

    def frame(self, messages: JavaObject, partitions: int) -> JavaObject:
        """A frame of these batches. Its columns have expression ids of their own, as those of any new frame."""
        sent = self.context.parallelize(messages.toIndexedSeq(), partitions, self.batch_tag)
        rows = mapped_rdd(self.mapped, sent, self.decode, row_tag=self.leaves.row_tag, item_tag=self.batch_tag)
        leaf = self.leaves.make(self.attributes(self.schema), rows, self.partitioning, is_checkpointed=False)
        leaf.setAnalyzed()
        return self.framed(self.session, leaf)


def factory_of(spark: SparkSession, made: JavaObject) -> ArrowFrameFactory | None:
    """The factory for frames like ``made``, which Spark made of Arrow batches; ``None`` if this Spark differs inside.

    The factory is tried at once, without a row.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    inner: Any = spark
    jvm = inner._jvm  # noqa: SLF001
    try:
        leaf = made.logicalPlan()
        rows = leaf.rdd()
        bytes_class = getattr(jvm, "java.lang.Class").forName("[B")
        factory = ArrowFrameFactory(
            context=inner.sparkContext._jsc.sc(),  # noqa: SLF001
            session=inner._jsparkSession,  # noqa: SLF001
            schema=made.schema(),
            decode=function_of(rows),
            partitioning=leaf.outputPartitioning(),
            batch_tag=scala_object(jvm, "scala.reflect.ClassTag").apply(bytes_class),
            leaves=RowLeaves(spark),
            attributes=scala_object(jvm, "org.apache.spark.sql.catalyst.types.DataTypeUtils").toAttributes,
            mapped=getattr(jvm, "org.apache.spark.rdd.MapPartitionsRDD"),
            framed=getattr(jvm, "org.apache.spark.sql.classic.Dataset").ofRows,
        )
        factory.frame(scala_object(jvm, "scala.collection.Iterator").empty(), 1)
    except (Py4JError, PySparkException, TypeError):  # TypeError: py4j takes a missing class for a package
        return None
    return factory


def frame_of_arrow(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """The frame that ``createDataFrame`` makes of an Arrow table."""
    from pyspark.sql.pandas.conversion import SparkConversionMixin

    return SparkConversionMixin.createDataFrame(session, table, schema)
