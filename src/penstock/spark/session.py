"""The sessions: made, shared, cloned, for state."""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.clock import UTC, canonical_timezone
from penstock.errors import EngineFailed, SettingsError, sentence
from penstock.spark.configuration import (
    DEFAULT_MASTER,
    MASTER,
    SQL_SETTINGS,
    STATE_SETTINGS,
    TIMEZONE,
    check_master,
    configured_timezone,
    read_configuration,
)
from penstock.spark.jvm import MAX_SOCKET_FOLDER_CHARS, make_spark_home, remember_classes, start_jvm
from penstock.spark.local_files import set_modes_without_processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("penstock")

# ---- which session ---------------------------------------------------------------------------------------------------
# The JVM has an active session for each thread. PySpark also keeps one for the whole process, and its
# ``getActiveSession`` returns that: the one that ``createDataFrame`` was last called on, by whatever thread. An engine
# whose session is not the user's must neither read that one nor change it.


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
    """The session of this thread, else the first of the process; ``None`` if there is no Spark yet."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    first: Any = SparkSession._instantiatedSession  # noqa: SLF001 - asking in public would create one
    lives = first is not None and first._sc._jsc is not None  # noqa: SLF001
    return active_session() or (first if lives else None)


def sibling_session(session: SparkSession) -> SparkSession:
    """A new session on the same context, with the SQL settings of ``session``."""
    child = session.newSession()
    for name, value in _modifiable_settings(session).items():
        child.conf.set(name, value)
    return child


def state_session(session: SparkSession, *, tasks: int) -> SparkSession:
    """A session with the settings of the user's, except those that writing and merging layers needs.

    The user's settings count too: without ANSI, a merge that overflows must behave as the rest of the job does. Only
    the time zone is always UTC, because files are read by others.
    """
    child = sibling_session(session)
    settings = STATE_SETTINGS | {
        TIMEZONE: UTC,
        "spark.sql.shuffle.partitions": str(tasks),
    }
    for name, value in settings.items():
        child.conf.set(name, value)
    return child


def _modifiable_settings(session: SparkSession) -> dict[str, str]:
    """SQL settings of a session that may be set on another one."""
    conf = session.conf
    return {k: v for k, v in conf.getAll.items() if k.startswith("spark.sql.") and conf.isModifiable(k)}


def is_classic(session: object) -> bool:
    """Whether a session has a JVM of its own: Spark Connect gives no access to plans and cached blocks."""
    return hasattr(session, "_jsparkSession")


def parse_type(session: SparkSession, schema: StructType) -> Any:
    """A schema as the JVM's ``StructType``."""
    return cast("Any", session)._jsparkSession.parseDataType(schema.json())  # noqa: SLF001


def parse_ddl(session: SparkSession, ddl: str) -> str:
    """The JSON of the schema that a DDL text declares.

    The JVM parses it directly: PySpark's ``StructType.fromDDL`` would use the active session of the process.
    """
    struct = getattr(cast("Any", session)._jvm, "org.apache.spark.sql.types.StructType")  # noqa: SLF001
    return str(struct.fromDDL(ddl).json())


def empty_frame(session: SparkSession, schema: StructType) -> DataFrame:
    """A frame with these columns and no rows."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    inner: Any = session
    no_rows = getattr(inner._jvm, "java.util.ArrayList")()  # noqa: SLF001
    made = inner._jsparkSession.createDataFrame(no_rows, parse_type(session, schema))  # noqa: SLF001
    return ClassicDataFrame(made, session)


# ---- the session of a job --------------------------------------------------------------------------------------------
# A job works on a clone, which shares the SparkContext, temporary views included. So the settings of a session that
# penstock did not make are not changed.

CONTEXT_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.locality.wait": "0",
    "spark.python.worker.reuse": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.dfs.client.read.shortcircuit": "false",
    "spark.log.level": "ERROR",
    "spark.sql.ui.explainMode": "simple",  # listeners get each query's plan as text, and "formatted" takes long
    "spark.sql.codegen.cache.maxEntries": "2000",  # 100 unless set: one step with its stack of layers needs more
    # Up to 64m unless set: an array that is cleared for each aggregation of a task, and lies outside of generations. In
    # a heap above 4 GB this one does not: with its header of 16 bytes it takes half a region.
    "spark.buffer.pageSize": str((2 << 20) - 16),
    # 4m unless set: an array that is cleared for each stage's tasks, for it is broadcast. Where it lies outside of
    # generations, the collector marked the whole heap again and again.
    "spark.broadcast.blockSize": "256k",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # asks the JVM six times for each Column that is made
}
"""Settings that must be made before the context exists; a user's session may lack some of them."""
LOOPBACK_SETTINGS: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Settings of a driver whose executors are on its own machine."""
PARALLELISM: Final = "spark.default.parallelism"
EXECUTOR_PAUSE: Final = 0.2
"""Seconds from one look for executors to the next."""
EXECUTOR_CALM: Final = 15  # three seconds: on a busy machine the second worker's executor comes that much later
"""Number of looks in a row that must see the same executors."""
EXECUTOR_LOOKS: Final = 300
"""Number of looks after which a start says that none has come, and goes on."""
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,")


@dataclass(slots=True, eq=False)
class _MadeSession:
    """A session that penstock made, and the number of its users in this process."""

    session: SparkSession
    users: int = 0


_made: _MadeSession | None = None
_made_lock = threading.Lock()


@contextmanager
def borrow_session(
    name: str, spark: SparkSession | None = None, *, master: str | None = None, timezone: str | None = None
) -> Iterator[SparkSession]:
    """A clone of ``spark``, else of the session that is there, else of one that is made here.

    A session that was made here is stopped when its last user in this process leaves. No other one is ever stopped.

    Args:
        name: of a session that is made.
        spark: the user's session.
        master: of a session that is made; by default that of ``make_session``.
        timezone: of the clone; by default that of the session.

    Raises:
        SettingsError: it is a Spark Connect session, or none can be made.
    """
    base, made = _enter(name, spark, master)
    try:
        yield clone_session(base, timezone=timezone)
    finally:
        if made is not None:
            _leave(made)


def _enter(name: str, spark: SparkSession | None, master: str | None) -> tuple[SparkSession, _MadeSession | None]:
    global _made  # noqa: PLW0603 - there is one SparkContext in a process
    with _made_lock:
        base = spark or current_session()
        if base is None:
            from pyspark import SparkContext

            is_ours = SparkContext._active_spark_context is None  # noqa: SLF001 - there is no public way to ask
            base = make_session(name, master=master)
            _made = _MadeSession(base) if is_ours else None
        if _made is None or getattr(base, "_sc", None) is not _made.session.sparkContext:
            return base, None
        _made.users += 1
        return base, _made


def _leave(made: _MadeSession) -> None:
    with _made_lock:
        made.users -= 1
        if made.users or made.session.sparkContext._jsc is None:  # noqa: SLF001 - the user may have stopped it
            return
        try:
            made.session.stop()
        except Exception:
            log.debug("the Spark session was gone already")


def make_session(name: str, *, master: str | None = None) -> SparkSession:
    """A session of our own, its JVM in a process group of its own; for the caller to stop.

    A signal to the whole group of the job (Ctrl-C, a container's stop) then leaves the JVM alive for the last
    checkpoint; it ends by itself when this process does, since its standard input closes.

    Raises:
        SettingsError: the master is none, or there is no Java that Spark can use.
        EngineFailed: Spark could not start on this master.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    configured = read_configuration().settings
    master = check_master(master or configured.get(MASTER) or DEFAULT_MASTER)
    conf = SparkConf().setMaster(master)
    for key, value in _own_settings(name, master, configured).items():
        conf.setIfMissing(key, value)
    if len(tempfile.gettempdir()) > MAX_SOCKET_FOLDER_CHARS:
        conf.set("spark.python.unix.domain.socket.enabled", "false")
    if master.startswith("local-cluster"):
        make_spark_home()
    if SparkContext._active_spark_context is None:  # noqa: SLF001 - there is no public way to ask
        gateway: Any = SparkContext._gateway or start_jvm(conf)  # noqa: SLF001 - the JVM outlives a stopped context
        try:
            context = SparkContext(conf=conf, gateway=gateway)
        except Exception as error:
            msg = (
                f"Spark could not start on master {master!r}: {sentence(_java_message(error))} "
                "penstock doctor checks the master and the configuration."
            )
            raise EngineFailed(msg) from error
        # A JVM that has just booted takes a third of a second for it, and nobody waits for that.
        threading.Thread(target=set_modes_without_processes, args=(context,), name="modes", daemon=True).start()
        if not master.startswith("local") and PARALLELISM not in configured:
            _keep_parallelism(context, master)
    made = SparkSession.builder.config(conf=conf).getOrCreate()
    remember_classes(made)
    return made


def _own_settings(name: str, master: str, configured: Mapping[str, str]) -> dict[str, str]:
    """Settings of a session that penstock makes: those that it relies on, and those that are not configured."""
    settings = {"spark.app.name": f"penstock {name}", TIMEZONE: configured_timezone()}
    settings |= CONTEXT_SETTINGS | SQL_SETTINGS
    if master.startswith("local"):  # executors on other machines must be able to reach the driver
        settings |= LOOPBACK_SETTINGS
        cluster = _LOCAL_CLUSTER.match(master)
        cores = int(cluster[1]) * int(cluster[2]) if cluster else os.cpu_count() or 1
        settings |= {PARALLELISM: str(cores), "spark.sql.shuffle.partitions": str(cores)}
    return {key: value for key, value in settings.items() if key in SQL_SETTINGS or key not in configured}


def _keep_parallelism(context: SparkContext, master: str) -> None:
    """Wait for the first executors, and keep the number of their cores as the number of partitions.

    Spark's own answer changes with each executor that comes or goes, and is 2 before the first: too few for state,
    whose partitions stay as they are for the whole run.
    """
    inner = cast("Any", context)
    pause, seen, same = threading.Event(), (0, 0), 0
    for _ in range(EXECUTOR_LOOKS):
        executors = int(inner._jsc.sc().getExecutorMemoryStatus().size()) - 1  # noqa: SLF001 - one is the driver
        now = (executors, int(context.defaultParallelism))
        same = same + 1 if executors and now == seen else 0
        seen = now
        if same >= EXECUTOR_CALM:
            break
        pause.wait(EXECUTOR_PAUSE)
    else:
        seconds = EXECUTOR_LOOKS * EXECUTOR_PAUSE
        log.warning("No executor of %s came in %g s. Are workers there, with free cores and memory?", master, seconds)
    inner._conf.set(PARALLELISM, str(seen[1]))  # noqa: SLF001 - the context's own, which its scheduler reads


def _java_message(error: BaseException) -> str:
    """What Spark says about a failed start, without the frames of the JVM."""
    java: Any = getattr(error, "java_exception", None)
    text = str(error if java is None else java.getMessage())
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def lacks_session(error: BaseException) -> bool:
    """Whether PySpark raised an error where no Spark runs: Columns and UDFs are made in the JVM."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    inside = str(Path(sys.modules["pyspark"].__file__ or "").parent) + os.sep
    is_pysparks = frame is not None and frame.tb_frame.f_code.co_filename.startswith(inside)
    return is_pysparks and SparkContext._active_spark_context is None  # noqa: SLF001 - there is no public way to ask


# ---- its time zone ---------------------------------------------------------------------------------------------------


def session_timezone(spark: SparkSession | None = None) -> str:
    """The time zone of ``spark``, else of the session that is there, else of the one that penstock would make."""
    session = spark or current_session()
    return configured_timezone() if session is None else canonical_timezone(str(session.conf.get(TIMEZONE)))


# ---- clones ----------------------------------------------------------------------------------------------------------


def clone_session(spark: SparkSession, *, timezone: str | None = None) -> SparkSession:
    """A clone of the user's session on the same context, with the SQL settings that the engine's plans rely on.

    All other settings are the user's: ANSI, the time zone unless ``timezone`` is given, case, and so on.

    Raises:
        SettingsError: it is a Spark Connect session, which gives no access to plans, jobs and cached blocks.
    """
    from pyspark.sql import SparkSession

    if type(spark).__module__.startswith("pyspark.sql.connect") or not is_classic(spark):
        msg = (
            "This is a Spark Connect session. Penstock needs a classic one, since it works with plans, Spark jobs and "
            "cached blocks, which Connect does not show. Build it with master(...) instead of remote(...)."
        )
        raise SettingsError(msg)
    inner = cast("Any", spark)._jsparkSession.cloneSession()  # noqa: SLF001 - there is no public way
    ours = SparkSession(spark.sparkContext, inner)
    configure(ours)
    if timezone is not None:
        ours.conf.set(TIMEZONE, timezone)
    remember_classes(ours)
    return ours


def set_active_session(spark: SparkSession) -> None:
    """Make it this thread's active session, which Spark's analyser needs; a new thread has none."""
    inner = cast("Any", spark)
    getattr(inner._jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession(inner._jsparkSession)  # noqa: SLF001 - there is no public way


def configure(spark: SparkSession) -> None:
    """Apply ``SQL_SETTINGS``, with one shuffle partition for each task slot."""
    for key, value in SQL_SETTINGS.items():
        if spark.conf.get(key, None) != value:
            spark.conf.set(key, value)
    spark.conf.set("spark.sql.shuffle.partitions", str(default_parallelism(spark)))


def default_parallelism(spark: SparkSession) -> int:
    """How many tasks run at a time; also the number of partitions that layers are hashed into."""
    return max(1, int(spark.sparkContext.defaultParallelism))
