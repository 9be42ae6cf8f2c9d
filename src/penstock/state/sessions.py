"""The sessions that plans are made in: a thread's own, and twins of it for layers. Knows nothing of jobs.

The JVM knows an active session for each thread. PySpark keeps one for the whole process besides, and that is what its
``getActiveSession`` gives: whichever ``createDataFrame`` was last called on, by whatever thread. An engine that works
on a session of its own beside the user's must neither believe that note nor write it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

STATE_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.unionOutputPartitioning": "true",
    "spark.sql.codegen.useIdInClassName": "false",  # the number of a stage rises with the layers below it
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.session.timeZone": "UTC",
}
"""What the plans of layers rely on."""


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


def twin(session: SparkSession) -> SparkSession:
    """A session beside ``session`` with the same settings of SQL."""
    child = session.newSession()
    for name, value in _chosen(session).items():
        child.conf.set(name, value)
    return child


def state_session(session: SparkSession, *, tasks: int) -> SparkSession:
    """A session beside the user's, with its settings, and over them those that writing and merging layers needs.

    A new session knows what was set for the context, not what was set later: without ANSI a merge that overflows must
    do as the rest of the job does.

    Timestamps become INT96 in Parquet by default, which other readers lose beyond the years 1677 to 2262.
    """
    child = twin(session)
    for name, value in (STATE_SETTINGS | {"spark.sql.shuffle.partitions": str(tasks)}).items():
        child.conf.set(name, value)
    return child


def _chosen(session: SparkSession) -> dict[str, str]:
    """A session's settings of SQL that may be set on another one."""
    conf = session.conf
    return {k: v for k, v in conf.getAll.items() if k.startswith("spark.sql.") and conf.isModifiable(k)}


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
