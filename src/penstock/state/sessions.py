"""The session that a thread works on, and frames made without PySpark's own note of it, which all threads share.

The JVM knows an active session for each thread. PySpark keeps one for the whole process besides, and that is what its
``getActiveSession`` gives: whichever ``createDataFrame`` was last called on, by whatever thread. An engine that works
on a session of its own beside the user's must neither believe that note nor write it. Knows nothing of jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def active_session() -> SparkSession | None:
    """The session that is active on this thread; ``None`` if none is."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext._active_spark_context  # noqa: SLF001 - there is no public way to ask
    if context is None:
        return None
    active = getattr(context._jvm, "org.apache.spark.sql.classic.SparkSession").getActiveSession()  # noqa: SLF001
    return SparkSession(context, active.get()) if active.isDefined() else None


def current_session() -> SparkSession | None:
    """The session of this thread, else the one that the process began with; ``None`` if there is no Spark yet."""
    from pyspark.sql import SparkSession

    began: Any = SparkSession._instantiatedSession  # noqa: SLF001 - there is no public way to ask without beginning one
    lives = began is not None and began._sc._jsc is not None  # noqa: SLF001
    return active_session() or (began if lives else None)


def empty(session: SparkSession, schema: StructType) -> DataFrame:
    """A frame with these columns and no rows."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    inner: Any = session
    columns = inner._jsparkSession.parseDataType(schema.json())  # noqa: SLF001
    none = getattr(inner._jvm, "java.util.ArrayList")()  # noqa: SLF001
    return ClassicDataFrame(inner._jsparkSession.createDataFrame(none, columns), session)  # noqa: SLF001


def frame_of_table(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """The rows of an Arrow table, as ``createDataFrame`` makes them a frame."""
    from pyspark.sql.pandas.conversion import SparkConversionMixin

    return SparkConversionMixin.createDataFrame(session, table, schema)
