"""Arrow batches as lazy frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# ----------------------------------------------------------------------------------------------------
# Arrow batches as lazy frames of a session, each batch a partition. Runs no job. Knows no record and no offset.
#
# What PySpark has for this makes everything of a frame anew: a file, the function that decodes the batches, whose class
# Spark takes from its jar to see what it refers to, and a leaf that goes through all rules of analysis. For a batch of
# some hundred rows that was two thirds of what its plan cost the driver, and nothing of it depends on the rows. So the
# function is taken from the first frame, and a leaf that is known to be sound is not analysed.
#
# All that touches Spark's internals for this is here; where Spark has them otherwise, frames are made as PySpark does.

Java: TypeAlias = Any
"""An object in the JVM."""
MAX_INLINE_BYTES: Final = 1024 * 1024
"""Bytes up to which batches go to the JVM in a call. They travel as text there, so that more goes by a file."""


class ArrowSender:
    """Sends batches to the JVM of a session.

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
        self._split = _module(jvm, "org.apache.spark.sql.execution.arrow.ArrowConverters").getBatchesFromStream
        self._bytes = getattr(jvm, "java.io.ByteArrayInputStream")
        self._channel = getattr(jvm, "java.nio.channels.Channels").newChannel
        self._mold: ArrowFrameFactory | None = None
        self._has_mold = True

    def frame(self, batches: Sequence[pa.RecordBatch]) -> DataFrame:
        """A lazy frame of them, each a partition."""
        from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

        messages = self._sent(batches)
        if self._mold is not None:
            made = self._mold.frame(messages, len(batches))
        else:
            made = self._made(messages, self._json, self._spark._jsparkSession)  # noqa: SLF001
            if self._has_mold:
                self._mold = factory_of(self._spark, made)
                self._has_mold = self._mold is not None
        return cast("DataFrame", ClassicFrame(made, self._spark))

    def _sent(self, batches: Sequence[pa.RecordBatch]) -> Java:
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
    """What all frames of the same columns have in common: the JVM's own objects."""

    context: Java
    session: Java
    schema: Java
    decode: Java
    """The function from batches to rows, of a task."""

    placed: tuple[Java, Java]
    """Partitioning and order of a leaf: none."""

    tags: tuple[Java, Java]
    """Of rows, and of batches."""

    attributes: Java
    mapped: Java
    leaf: Java
    framed: Java
    none: Java

    def frame(self, messages: Java, partitions: int) -> Java:
        """A frame of these batches. Its columns have expression ids of their own, as those of any new frame."""
        row, batch = self.tags
        sent = self.context.parallelize(messages.toIndexedSeq(), partitions, batch)
        rows = self.mapped(sent, self.decode, False, False, False, False, row, batch)
        columns = self.attributes(self.schema)
        none = self.none
        leaf = self.leaf(columns, rows, *self.placed, False, none, self.session, none, none, False)
        leaf.setAnalyzed()
        return self.framed(self.session, leaf)


def factory_of(spark: SparkSession, made: Java) -> ArrowFrameFactory | None:
    """The mold of a frame that Spark made of Arrow batches; ``None`` if this Spark has another way to make it.

    It is tried at once, without a row.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    inner: Any = spark
    jvm = inner._jvm  # noqa: SLF001
    try:
        leaf = made.logicalPlan()
        rows = leaf.rdd()
        function = rows.getClass().getDeclaredField("f")
        function.setAccessible(True)
        tag, of = _module(jvm, "scala.reflect.ClassTag").apply, getattr(jvm, "java.lang.Class").forName
        mold = ArrowFrameFactory(
            context=inner.sparkContext._jsc.sc(),  # noqa: SLF001
            session=inner._jsparkSession,  # noqa: SLF001
            schema=made.schema(),
            decode=function.get(rows),
            placed=(leaf.outputPartitioning(), leaf.outputOrdering()),
            tags=(tag(of("org.apache.spark.sql.catalyst.InternalRow")), tag(of("[B"))),
            attributes=_module(jvm, "org.apache.spark.sql.catalyst.types.DataTypeUtils").toAttributes,
            mapped=getattr(jvm, "org.apache.spark.rdd.MapPartitionsRDD"),
            leaf=getattr(jvm, "org.apache.spark.sql.execution.LogicalRDD"),
            framed=getattr(jvm, "org.apache.spark.sql.classic.Dataset").ofRows,
            none=_module(jvm, "scala.None"),
        )
        mold.frame(_module(jvm, "scala.collection.Iterator").empty(), 1)
    except (Py4JError, PySparkException, TypeError):  # the last: a class that is not there is a package that is called
        return None
    return mold


def _module(jvm: Java, name: str) -> Java:
    """Scala's object of that name."""
    return getattr(getattr(jvm, f"{name}$"), "MODULE$")


# ----------------------------------------------------------------------------------------------------
# The sessions that plans are made in: a thread's own, and twins of it for layers. Knows nothing of jobs.
#
# The JVM knows an active session for each thread. PySpark keeps one for the whole process besides, and that is what its
# ``getActiveSession`` gives: whichever ``createDataFrame`` was last called on, by whatever thread. An engine that works
# on a session of its own beside the user's must neither believe that note nor write it.


def frame_of_arrow(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """The rows of an Arrow table, as ``createDataFrame`` makes them a frame."""
    from pyspark.sql.pandas.conversion import SparkConversionMixin

    return SparkConversionMixin.createDataFrame(session, table, schema)
