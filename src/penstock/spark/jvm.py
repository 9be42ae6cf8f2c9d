"""The JVM: started, its log, its death, its folders deleted."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import shlex
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import SettingsError, StateDirectoryRefused, StorageFailed
from penstock.spark.class_archive import archive_options
from penstock.spark.configuration import read_configuration

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

    from pyspark import SparkConf
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")

# ---- starting a JVM --------------------------------------------------------------------------------------------------

MAX_SOCKET_FOLDER_CHARS: Final = 60
"""Characters of the folder for temporary files; in a longer one the name of a Unix socket may be too long."""
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
"""By the name that PySpark asks for: the class, and its static methods that PySpark asks for too."""


# State is kept in the heap. New objects may take 60 % of it by default: then G1, the default collector, marks what is
# kept again and again once that is half of the heap, and a third of the time one core does nothing else.
_COLLECTOR: Final = "-XX:+UnlockExperimentalVMOptions -XX:G1MaxNewSizePercent=20"
"""Options that leave G1 room for state. Another collector takes no notice of them."""


def start_jvm(conf: SparkConf) -> Any:
    """A gateway to a new JVM in a process group of its own, with the archive of Spark's classes if there is one.

    Raises:
        SettingsError: there is no Java that Spark can use, or Spark refuses its configuration.
    """
    options = f"{_COLLECTOR} {archive_options(os.environ, read_configuration().settings)}".strip()
    try:
        return _launch(conf, options)
    except Exception:  # whatever the reason: without them it starts, or says why not
        log.debug("the JVM did not start with %s", options)
    try:
        return _launch(conf, "")
    except Exception as error:
        raise SettingsError(_why_no_jvm()) from error


def _launch(conf: SparkConf, options: str) -> Any:
    from pyspark.java_gateway import launch_gateway

    before = os.environ.get(_OPTIONS)
    # PySpark passes this process's environment on. The user's options come last, for Java takes the last of each.
    os.environ[_OPTIONS] = " ".join(filter(None, (options, before)))
    try:
        return cast("Any", launch_gateway)(conf, popen_kwargs={"start_new_session": True})
    finally:
        if before is None:
            del os.environ[_OPTIONS]
        else:
            os.environ[_OPTIONS] = before


def end_jvm() -> None:
    """End this process's JVM, and wait until it has done what it does at its end."""
    process = _jvm_process()
    if process is not None and process.stdin is not None:
        process.stdin.close()  # the JVM ends when its standard input does
        process.wait()


def make_spark_home() -> None:
    """Give the next JVM a ``SPARK_HOME`` that can be written to, unless one is set: a folder of links, deleted at exit.

    ``local-cluster`` keeps the folders of executors below it. The package from pip may be read-only, and would keep
    them for ever.
    """
    if os.environ.get("SPARK_HOME"):
        return
    import pyspark

    folder = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (folder / entry.name).symlink_to(entry)
    os.environ["SPARK_HOME"] = str(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _why_no_jvm() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if java is None:
        where = f"JAVA_HOME is {home!r}, which has no bin/java" if home else "JAVA_HOME is not set, nor is it on PATH"
        return f"Spark needs Java 17 or newer, and there is none: {where}; penstock doctor says what to install"
    return (
        f"Spark could not start a JVM with {java}: see what it wrote to standard error. It needs Java 17 or newer, and "
        "a configuration that it takes (spark-defaults.conf, PYSPARK_SUBMIT_ARGS); penstock doctor looks at both"
    )


def remember_classes(spark: SparkSession) -> None:
    """Store classes that PySpark asks the JVM for with each frame, as attributes of its view of the JVM.

    Otherwise each use costs two calls, and for a class without its package a search of every jar: up to 2 ms.
    """
    jvm: Any = cast("Any", spark)._jvm  # noqa: SLF001 - there is no public way
    for name, (whole, members) in _ASKED_FOR.items():
        if name not in vars(jvm):
            found = getattr(jvm, whole)
            for member in members:
                setattr(found, member, getattr(found, member))
            setattr(jvm, name, found)


# ---- its log ---------------------------------------------------------------------------------------------------------

_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Variable with options for the JVM in client mode, in addition to those of Spark's configuration."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors that need more space, not another folder."""


def log_jvm_to_file(job: str, state: str, *, option: str = "--state") -> Path:
    """Make the next JVM write its log into a file, and return its path. So the terminal shows penstock's errors.

    Args:
        job: whose log it is.
        state: the folder of the file; made if absent. An address with ``://`` stands for the temporary folder.
        option: the command line's option that names the folder, or one below it.

    Raises:
        StateDirectoryRefused: the folder cannot be made, or nothing can be written there.
        StorageFailed: there is no room for it.
    """
    path = engine_log(job, state, option=option)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_folder(path.parent, option, error) from error
    path = path.resolve()
    ours = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()} "
    ours += f"-Dpenstock.engine.log={shlex.quote(str(path))}"
    os.environ[_OPTIONS] = " ".join(filter(None, (os.environ.get(_OPTIONS), ours)))
    return path


def engine_log(job: str, state: str, *, option: str = "--state") -> Path:
    """The file that a job's JVM logs to, after a check that it can be written; makes nothing.

    Raises:
        StateDirectoryRefused: the folder cannot be made, or the file cannot be written.
    """
    folder = Path(tempfile.gettempdir()) if "://" in state else Path(state)
    path = folder / f"{job}.engine.log"
    try:
        nearest = next(place for place in (path, folder, *folder.parents) if place.exists())
        if nearest == folder and not folder.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if nearest != path and not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if nearest != path and not os.access(nearest, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _no_folder(folder, option, error) from error
    if nearest == path and not os.access(path, os.W_OK):
        msg = (
            f"File {path} cannot be written: {os.strerror(errno.EACCES)}. Delete it, make it writable for this user, "
            f"or give {option} another folder."
        )
        raise StateDirectoryRefused(msg)
    return path


def _no_folder(folder: Path, option: str, error: OSError) -> StateDirectoryRefused | StorageFailed:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StorageFailed(f"Folder {folder} of {option} cannot be made: {reason}. Free some space.")
    msg = (
        f"Folder {folder} of {option} cannot be written in: {reason}. "
        f"Make it a writable folder, or give {option} another one."
    )
    return StateDirectoryRefused(msg)


# ---- its death -------------------------------------------------------------------------------------------------------


class JvmWatch:
    """Notices the death of this process's JVM, even while it has nothing to do.

    Args:
        died: called on a thread of its own when the JVM ends before ``release``.
    """

    def __init__(self, died: Callable[[], None]) -> None:
        self._died = died
        self._process: subprocess.Popen[bytes] | None = None
        self._released = threading.Event()

    def begin(self) -> None:
        """Watch this process's JVM; does nothing if it is watched already or is not the process's own."""
        if self._process is not None:
            return
        self._process = _jvm_process()
        if self._process is not None:
            threading.Thread(target=self._wait, name="engine-watch", daemon=True).start()

    def release(self) -> None:
        """Stop watching: the JVM may end now."""
        self._released.set()

    @property
    def is_dead(self) -> bool:
        """Whether the JVM that was watched has ended."""
        return self._process is not None and self._process.poll() is not None

    def _wait(self) -> None:
        assert self._process is not None  # the thread is started only with one
        self._process.wait()
        if not self._released.is_set():
            self._died()


def _jvm_process() -> subprocess.Popen[bytes] | None:
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway  # noqa: SLF001 - there is no public way to ask
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    return process


def is_connection_lost(error: BaseException) -> bool:
    """Whether the connection to the JVM broke. A ``ConnectionError`` counts only if py4j raised it or passed it on."""
    return type(error).__name__ == "Py4JNetworkError" or (isinstance(error, ConnectionError) and _passed_py4j(error))


def _passed_py4j(error: BaseException) -> bool:
    frame = error.__traceback__
    while frame is not None:
        if "py4j" in frame.tb_frame.f_code.co_filename:
            return True
        frame = frame.tb_next
    return False


def is_spark_error(error: BaseException) -> bool:
    """Whether Spark raised the error, or the way to it broke."""
    modules = {cls.__module__.split(".")[0] for cls in type(error).__mro__}
    return bool(modules & {"py4j", "pyspark"}) or is_connection_lost(error)


# ---- its files -------------------------------------------------------------------------------------------------------


def delete_folders(spark: SparkSession, urls: Sequence[str]) -> None:
    """Delete whole folders; a missing one is fine. Only for what this process wrote and no committable names."""
    context: Any = spark.sparkContext
    for url in urls:
        path = getattr(context._jvm, "org.apache.hadoop.fs.Path")(url)  # noqa: SLF001
        path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)  # noqa: SLF001
