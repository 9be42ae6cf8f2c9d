"""The Spark session a job runs on: made here with what the engine needs, or taken over and left as it was.

Knows nothing of pipelines. A session that penstock did not make is never stopped and its settings are not touched:
the job works on a clone that shares the SparkContext, temporary views included.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import SettingsError
from penstock.state.sessions import STATE_SETTINGS

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

SQL_SETTINGS: Final = STATE_SETTINGS | {
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.files.maxPartitionBytes": "128m",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}
"""What the engine's plans rely on; set on our own session or on our clone of the user's."""

CONTEXT_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.locality.wait": "0",
    "spark.python.worker.reuse": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.dfs.client.read.shortcircuit": "false",
    "spark.log.level": "ERROR",
    "spark.sql.ui.explainMode": "simple",  # every query's plan is told as text to listeners, formatted at some length
    "spark.sql.codegen.cache.maxEntries": "2000",  # 100 unless set: one step with its stack of layers needs more
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # asks the JVM six times for each Column that is made
}
"""What can be set only before the context exists; on another's session some of this may be missing."""


_ASKED_FOR: Final = {
    "PythonUtils": ("org.apache.spark.api.python.PythonUtils", ("toSeq", "toArray")),
    "functions": ("org.apache.spark.sql.functions", ("col", "expr")),
    "org.apache.spark.sql.functions": ("org.apache.spark.sql.functions", ("col", "expr", "lit")),
    "org.apache.spark.sql.classic.Dataset": ("org.apache.spark.sql.classic.Dataset", ("ofRows",)),
    "org.apache.spark.sql.classic.SparkSession": ("org.apache.spark.sql.classic.SparkSession", ("setActiveSession",)),
    "org.apache.spark.sql.Observation": ("org.apache.spark.sql.Observation", ()),
    "scala.concurrent.Await": ("scala.concurrent.Await", ("result", "ready")),
    "scala.concurrent.duration.Duration": ("scala.concurrent.duration.Duration", ("create",)),
}
"""Under the name that it is asked for by: the class, and those of its static methods that are asked for too."""

LONGEST_SOCKET_FOLDER: Final = 60
"""Characters of the folder for temporary files beyond which a Unix socket in it may have too long a name."""


def make_session(name: str, *, master: str | None = None) -> SparkSession:
    """A session of our own, its JVM in a process group of its own.

    A signal to the whole group of the job (Ctrl-C, a container's stop) then leaves the JVM alive for the last
    checkpoint; it ends by itself when this process does, since its standard input closes.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    cores = os.cpu_count() or 1
    master = master or os.environ.get("PENSTOCK_MASTER") or "local[*]"
    conf = SparkConf().setAppName(f"penstock {name}").setMaster(master)
    for key, value in (CONTEXT_SETTINGS | SQL_SETTINGS).items():
        conf.setIfMissing(key, value)
    if master.startswith("local"):
        conf.setIfMissing("spark.sql.shuffle.partitions", str(cores))
        conf.setIfMissing("spark.default.parallelism", str(cores))
    if len(tempfile.gettempdir()) > LONGEST_SOCKET_FOLDER:
        conf.set("spark.python.unix.domain.socket.enabled", "false")
    if SparkContext._active_spark_context is None:  # noqa: SLF001 - there is no public way to ask
        gateway = _start_jvm(conf)
        SparkContext(conf=conf, gateway=gateway)
    made = SparkSession.builder.config(conf=conf).getOrCreate()
    _remember_classes(made)
    return made


def _start_jvm(conf: SparkConf) -> Any:
    """A JVM in a process group of its own.

    Raises:
        SettingsError: there is no Java that Spark can use.
    """
    from pyspark.java_gateway import launch_gateway

    try:
        return cast("Any", launch_gateway)(conf, popen_kwargs={"start_new_session": True})
    except Exception as error:
        java = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME is {java!r}" if java else "JAVA_HOME is not set, so java is taken from PATH"
        msg = f"Spark could not start a JVM: it needs Java 17 or newer, and {where}; what it said: {error}"
        raise SettingsError(msg) from error


def take_over(spark: SparkSession) -> SparkSession:
    """A clone of the user's session on the same context, with the SQL settings that the engine's plans rely on.

    Raises:
        SettingsError: it is a Spark Connect session, which gives no access to plans, jobs and cached blocks.
    """
    from pyspark.sql import SparkSession

    if type(spark).__module__.startswith("pyspark.sql.connect") or not hasattr(spark, "_jsparkSession"):
        msg = (
            "this is a Spark Connect session; penstock needs a classic one, for it works with plans, Spark jobs and "
            "cached blocks, which Connect does not show. Build it with master(...) instead of remote(...)"
        )
        raise SettingsError(msg)
    inner = cast("Any", spark)._jsparkSession.cloneSession()  # noqa: SLF001 - there is no public way
    ours = SparkSession(spark.sparkContext, inner)
    configure(ours)
    _remember_classes(ours)
    return ours


def _remember_classes(spark: SparkSession) -> None:
    """Keep classes that PySpark asks the JVM for several times with each frame where it looks first.

    Each time costs two calls, and for a class known by its last name a search of every jar: up to 2 ms.
    """
    jvm: Any = cast("Any", spark)._jvm  # noqa: SLF001 - there is no public way
    for name, (whole, members) in _ASKED_FOR.items():
        if name not in vars(jvm):
            found = getattr(jvm, whole)
            for member in members:
                setattr(found, member, getattr(found, member))
            setattr(jvm, name, found)


def activate(spark: SparkSession) -> None:
    """Make it this thread's active session: Spark's analyser asks for it, and a new thread has none."""
    inner = cast("Any", spark)
    getattr(inner._jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession(inner._jsparkSession)  # noqa: SLF001 - there is no public way


def configure(spark: SparkSession) -> None:
    """Set what the engine's plans rely on."""
    for key, value in SQL_SETTINGS.items():
        if spark.conf.get(key, None) != value:
            spark.conf.set(key, value)
    spark.conf.set("spark.sql.shuffle.partitions", str(cores_of(spark)))


def cores_of(spark: SparkSession) -> int:
    """How many tasks run at a time; also ``n`` of the merge way."""
    return max(1, int(spark.sparkContext.defaultParallelism))
