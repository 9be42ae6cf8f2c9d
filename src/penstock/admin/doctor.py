"""``penstock doctor``: all checks in order, with those of Spark and the state folder.

``python -m penstock.admin.doctor`` makes a session and shows what Spark says when it cannot.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.admin.doctor_checks import (
    Finding,
    Status,
    fail,
    find_java,
    java_of,
    look_at_environment,
    look_at_machine,
    look_at_python,
    ok,
    warn,
)
from penstock.admin.doctor_kafka import look_at_brokers, look_at_transactions
from penstock.admin.doctor_kinesis import look_at_leases, look_at_stream
from penstock.admin.warming import class_archive_of
from penstock.clock import Clock, SystemClock
from penstock.connectors.files.sink import Sink as FilesSink
from penstock.connectors.files.source import Source as FilesSource
from penstock.connectors.kafka.sink import Sink as KafkaSink
from penstock.connectors.kafka.source import Source as KafkaSource
from penstock.connectors.kinesis.config import LeaseMode, LeaseOptions
from penstock.connectors.kinesis.lease_table import TableAddress
from penstock.connectors.kinesis.sink import Sink as KinesisSink
from penstock.connectors.kinesis.source import Source as KinesisSource
from penstock.control.client import root_of
from penstock.errors import PenstockError, SettingsError, StateDirectoryRefused
from penstock.filesystem.local import NETWORK, LocalFileSystem, kind_of
from penstock.graph.nodes import Graph, Read, Write
from penstock.interfaces.source import SupportsBacklog
from penstock.spark.configuration import (
    DEFAULT_MASTER,
    MASTER,
    SQL_SETTINGS,
    SparkConfiguration,
    check_master,
    setting_shown,
)
from penstock.spark.kept_rows import missing_class
from penstock.spark.session import CONTEXT_SETTINGS, default_parallelism, make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.api.pipeline import PipelineDefinition


PROJECT: Final = "pyproject.toml"

# ---- all checks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What to check.

    Attributes:
        state: the folder for state.
        servers: Kafka brokers, as ``host:port``, several with commas.
        lease_table: the lease table of a KCL application.
        pipeline: checked with its sources and sinks; or the error with which it could not be loaded.
        spark: make a session, which takes seconds.
        configuration: of Spark, as a session that is made now would have it; ``None`` leaves the line out.
        project: the path of the project's file, and the keys that it has; ``None`` if there is none.
        warm: make the archive of Spark's classes if there is none, which takes half a minute.
    """

    state: str
    servers: str | None = None
    lease_table: str | None = None
    pipeline: PipelineDefinition | PenstockError | None = None
    spark: bool = True
    configuration: SparkConfiguration | None = None
    project: tuple[str, ...] | None = None
    warm: bool = False


def examine(options: DoctorOptions, *, announce: Callable[[str], None]) -> Iterator[Finding]:
    """Yield the findings of all checks, each as soon as it is known.

    Args:
        options: what to check.
        announce: called with a line before each check that takes long.
    """
    yield from look_at_python()
    yield java_of(find_java(os.environ))
    yield from look_at_machine()
    yield from look_at_environment(os.environ, sys.executable)
    if options.configuration is not None:
        yield configuration_of(options.configuration, options.project)
    yield from look_at_storage(options.state, SystemClock())
    graph = None
    if options.pipeline is not None:
        finding, graph = pipeline_of(options.pipeline)
        yield finding
    if graph is not None:
        yield from look_at_connectors(graph)
    yield from _brokers(options.servers, graph, announce)
    yield from _lease_tables(options.lease_table, graph, announce)
    yield from _own_session()
    configured = {} if options.configuration is None else options.configuration.settings
    yield class_archive_of(configured, make=options.warm, announce=announce)
    if options.spark:
        announce("starting Spark")
        yield try_spark()


def configuration_of(configuration: SparkConfiguration, project: tuple[str, ...] | None) -> Finding:
    """Return what configures Spark, each setting with the place that it comes from."""
    settings, origins = configuration.settings, configuration.origins
    if project is not None:  # its whole path is said once
        origins = {name: PROJECT if origin == project[0] else origin for name, origin in origins.items()}
    master = settings.pop(MASTER, None)
    parts = [f"master {master} ({origins[MASTER]})" if master else f"master {DEFAULT_MASTER}"]
    parts += [f"{setting_shown(name, value)} ({origins[name]})" for name, value in settings.items()]
    if project is None:
        parts.append(f"no {PROJECT} has a section [tool.penstock]")
    else:
        parts.append(f"{project[0]} has {', '.join(project[1:]) or 'an empty section [tool.penstock]'}")
    found = "; ".join(parts)
    try:
        check_master(master or DEFAULT_MASTER)
    except SettingsError as error:
        return fail("configuration", found, str(error))
    overruled = [name for name, value in settings.items() if SQL_SETTINGS.get(name, value).lower() != value.lower()]
    if overruled:
        fix = f"leave out {', '.join(overruled)}: the engine has values of its own, and these have no effect"
        return warn("configuration", found, fix)
    return ok("configuration", found)


def pipeline_of(pipeline: PipelineDefinition | PenstockError) -> tuple[Finding, Graph | None]:
    """Check whether the pipeline can be built; returns its graph, too."""
    if isinstance(pipeline, PenstockError):
        return fail("pipeline", str(pipeline), "penstock run would be refused with the same words"), None
    try:
        graph = pipeline.graph()
    except PenstockError as error:
        return fail("pipeline", str(error), "penstock run would be refused with the same words"), None
    read, written = ", ".join(sorted(graph.sources)), ", ".join(sorted(graph.sinks))
    return ok("pipeline", f"{graph.name} reads {read} and writes {written}"), graph


def _brokers(servers: str | None, graph: Graph | None, announce: Callable[[str], None]) -> Iterator[Finding]:
    if servers is not None:
        announce(f"asking {servers}")
        yield from look_at_brokers(servers)
    for node in graph.nodes if graph is not None else ():
        if isinstance(node, Read) and isinstance(node.source, KafkaSource):
            announce(f"asking {node.source.servers}")
            yield from look_at_brokers(node.source.servers, options=node.source.options, topics=node.source.topics)
        if isinstance(node, Write) and isinstance(node.sink, KafkaSink):
            announce(f"asking {node.sink.servers}")
            found = list(look_at_brokers(node.sink.servers, options=node.sink.options, topics=(node.sink.topic,)))
            yield from found
            if not any(each.status is Status.FAIL for each in found):  # or they would be asked in vain once more
                yield from look_at_transactions(node.sink)


def _lease_tables(table: str | None, graph: Graph | None, announce: Callable[[str], None]) -> Iterator[Finding]:
    asked = [] if table is None else [LeaseOptions(mode=LeaseMode.EXPORT, address=TableAddress(table=table))]
    for node in graph.nodes if graph is not None else ():
        leases = getattr(node.source, "leases", None) if isinstance(node, Read) else None
        if isinstance(leases, LeaseOptions) and leases.mode is not LeaseMode.NONE:
            asked.append(leases)
    for options in asked:
        announce("asking DynamoDB")
        yield from look_at_leases(options)


def _own_session() -> Iterator[Finding]:
    """Check the session that the pipeline's module has made, if it has."""
    if "pyspark" not in sys.modules:
        return
    from penstock.spark.session import current_session, is_classic

    session = current_session()
    if session is not None and is_classic(session):
        yield from session_of(session)


# ---- inputs and outputs of the pipeline ------------------------------------------------------------------------------


def look_at_connectors(graph: Graph) -> Iterator[Finding]:
    """Check what the pipeline reads and writes, a line each, without Spark; Kafka's brokers have lines of their own."""
    for node in graph.nodes:
        if isinstance(node, Read):
            name = f"source {node.uid}"
            if isinstance(node.source, FilesSource):
                yield input_folder(name, node.source)
            elif isinstance(node.source, KinesisSource):
                yield look_at_stream(name, node.source.address)
            elif isinstance(node.source, SupportsBacklog) and not isinstance(node.source, KafkaSource):
                yield _input(name, node.source)
            else:
                yield ok(name, node.source.describe())
        if isinstance(node, Write):
            name = f"sink {node.uid}"
            if isinstance(node.sink, FilesSink):
                yield output_folder(name, node.sink)
            elif isinstance(node.sink, KinesisSink):
                yield look_at_stream(name, node.sink.address)
            else:
                yield ok(name, node.sink.describe())


def input_folder(name: str, source: FilesSource) -> Finding:
    """Check that a folder of input is there and can be read, with all files of it that match."""
    what = source.describe()
    if not os.path.isdir(source.path):
        there = "is not a folder" if os.path.exists(source.path) else "is not there"
        return fail(name, f"{what}: {source.path} {there}", "make the folder, mount it, or correct the path")
    try:
        listing = source.directory.listing()
    except PenstockError as error:
        return fail(name, f"{what}: {error}", "fix that first: the job waits for it, and reads nothing")
    closed = sorted(file for file in listing if not os.access(os.path.join(source.path, file), os.R_OK))
    if closed:
        fix = "give this user, on all executors, the right to read them: the job stops at the first"
        return fail(name, f"{what}: {len(closed)} of {len(listing)} files cannot be read, such as {closed[0]}", fix)
    if not listing and os.listdir(source.path):
        fix = "compare their names with pattern=; in folders below only recursive=True finds them"
        return warn(name, f"{what}: no file matches, and the folder is not empty", fix)
    return ok(name, f"{what}: {len(listing)} file{'' if len(listing) == 1 else 's'}")


def _input(name: str, source: Any) -> Finding:
    """Check a source that can tell what waits for a first start."""
    try:
        source.backlog(None)
    except PenstockError as error:
        return fail(name, f"{source.describe()}: {error}", "fix that first: a start fails, or waits for it")
    return ok(name, f"{source.describe()} answers")


def output_folder(name: str, sink: FilesSink) -> Finding:
    """Check that a folder of output can be written to, or made, by writing a file that is deleted again."""
    what, target = sink.describe(), Path(sink.target)
    folder = nearest_folder(target)
    made = "" if folder == target.resolve() else ", will be made"
    try:
        if made and os.path.exists(folder / target.resolve().relative_to(folder).parts[0]):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        with tempfile.NamedTemporaryFile(prefix=".penstock-doctor-", dir=folder):
            pass
    except OSError as error:
        fix = "give this user the right to write there, move the file away that is in its place, or name another path"
        return fail(name, f"{what}: cannot write in {folder}: {error.strerror or error}", fix)
    return ok(name, f"{what}: can be written{made}")


# ---- Spark -----------------------------------------------------------------------------------------------------------
# The trial runs in a process of its own: a JVM that hangs only delays it, and nothing of it stays here.

TRIAL: Final = "penstock.admin.doctor"
"""The module whose main function is the trial."""
SPARK_TIMEOUT: Final = 120.0
"""Seconds that the trial gets for a session and one small job."""
DEGRADES: Final[Mapping[str, str]] = {
    "spark.scheduler.mode": "checkpoints written in the background take turns with batches as they come, not fairly",
    "spark.locality.wait": "tasks wait up to 3 s for a core that has their rows",
    "spark.python.worker.reuse": "each task starts a Python worker, about 0.1 s",
    "spark.python.unix.domain.socket.enabled": "rows go to Python workers through TCP",
    "spark.sql.codegen.cache.maxEntries": "code of plans that were compiled is thrown away and compiled again",
    "spark.sql.ui.explainMode": "each plan is written out at length, some ms a batch",
    "spark.python.sql.dataFrameDebugging.enabled": "each column that is made asks the JVM six times, some ms a batch",
    "spark.ui.enabled": "Spark's own web page keeps the jobs of the last batches in the driver's memory",
}
"""What a session lacks without a setting of ours, by setting."""  # the others depend on taste or on the machine
_SWITCHES: Final = {"true", "false"}


def session_of(spark: SparkSession) -> Iterator[Finding]:
    """Check the settings of a session that penstock did not make; its context can no longer be changed."""
    conf = spark.sparkContext.getConf()
    yield from missing_settings({name: conf.get(name, None) for name in CONTEXT_SETTINGS})


def missing_settings(there: Mapping[str, str | None]) -> Iterator[Finding]:
    """Yield a warning for each setting of ours that a session lacks and that costs something.

    Args:
        there: the session's settings, by the names of ``penstock.spark.session.CONTEXT_SETTINGS``.
    """
    missing = [name for name in DEGRADES if not _suffices(CONTEXT_SETTINGS[name], there.get(name))]
    for name in missing:
        found = f"{name} is {there.get(name) or 'not set'}: {DEGRADES[name]}"
        yield warn("your session", found, f'build the session with .config("{name}", "{CONTEXT_SETTINGS[name]}")')
    if not missing:
        yield ok("your session", f"has all {len(DEGRADES)} settings that matter")


def try_spark(run: Callable[[], tuple[int, str, str]] | None = None) -> Finding:
    """Make a session as ``penstock run`` does, run one job with a Python worker in it, and stop it."""
    try:
        code, out, err = (run or _run_trial)()
    except subprocess.TimeoutExpired:
        fix = "look at what the JVM does (jps, jstack), at the name of this host, and at SPARK_SUBMIT_OPTS"
        return fail("spark", f"no session within {SPARK_TIMEOUT:g} s", fix)
    result = _trial_result(out)
    if code != 0 or result is None:
        return fail("spark", "no session: " + (_reason(err) or f"its process ended with {code}"), _remedy(err))
    found = f"Spark {result['version']}: a classic session and a job with Python workers in {result['seconds']:.1f} s"
    found += f", on {result['cores']} cores"
    lacks = result.get("missing_class")
    if lacks is not None:
        found += f"; it has no class {lacks}, so Spark plans each batch anew, some 50 ms a batch of a keyed step"
        return warn("spark", found, "use a version of Spark that penstock is tested with: 4.1, 4.2 or 4.3")
    return ok("spark", found)


def _run_trial() -> tuple[int, str, str]:
    process = subprocess.run(
        [sys.executable, "-m", TRIAL],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SPARK_TIMEOUT,
        check=False,
    )
    return process.returncode, process.stdout, process.stderr


def _trial_result(out: str) -> dict[str, Any] | None:
    """The last line that is the result of the trial; a logger may have written lines of JSON after it."""
    for line in reversed(out.splitlines()):
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and found.keys() >= {"version", "cores", "seconds"}:
                return found
    return None


def _reason(err: str) -> str:
    """The most telling line of an error: what the JVM died of, or else the last error."""
    lines = [line.strip() for line in err.splitlines() if re.search(r"(Error|Exception)\b.*:", line)]
    deaths = [line.split('" ', 1)[1] for line in lines if re.match(r'Exception in thread ".*" ', line)]
    return [*lines, *deaths[:1]][-1] if lines else ""


def _remedy(err: str) -> str:
    if "PYTHON_VERSION_MISMATCH" in err:
        return f"unset PYSPARK_PYTHON, or set it to {sys.executable}"
    if "UnknownHost" in err or "BindException" in err:
        return "set SPARK_LOCAL_IP=127.0.0.1, or give this host's name an address in /etc/hosts"
    return f"see the lines above about java; python -m {TRIAL} shows everything that Spark says"


def _suffices(ours: str, there: str | None) -> bool:
    if there is None:
        return False
    if ours.isdecimal():
        number = re.match(r"\d+", there)
        is_minimum = ours != "0"
        return number is not None and (int(number[0]) >= int(ours) if is_minimum else int(number[0]) == 0)
    return there.lower() == ours.lower() if ours in _SWITCHES else there == ours


# ---- the state folder ------------------------------------------------------------------------------------------------
# The checks write a few small files next to existing ones, and delete them.

STATE_FOLDER: Final = "state folder"
"""Name of its findings."""
MIB: Final = 1 << 20
SPACE_WARNING: Final = 1024 * MIB
"""Free bytes below which there is a warning."""
SPACE_MINIMUM: Final = 64 * MIB
"""Free bytes below which checkpoints will fail."""
TRIAL_WRITES: Final = 5
"""Number of durable writes that are timed."""
SLOW_MS: Final = 100.0
"""Milliseconds above which a durable write is slow."""  # a checkpoint makes several, one after another
SKEW_SECONDS: Final = 2.0
"""Seconds by which the clocks of file system and machine may differ."""
_TEMPORARY: Final = {
    "tmpfs": "memory: state is gone when the machine restarts",
    "ramfs": "memory: state is gone when the machine restarts",
    "overlay": "the container's own layer: state is gone with the container",
    "overlayfs": "the container's own layer: state is gone with the container",
    "aufs": "the container's own layer: state is gone with the container",
}
"""Kinds of file systems that work but are lost with the machine or container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The median duration of a durable write, and how far the file system's clock is ahead of this machine's."""

    milliseconds: float
    skew_seconds: float


def look_at_storage(state: str, clock: Clock) -> Iterator[Finding]:
    """Check the state folder, or the folder in which it would be made."""
    root = root_of(state)
    if root is None:
        yield fail(STATE_FOLDER, state, "no file system here knows that address: name a folder of this machine")
        return
    if os.path.exists(root) and not os.path.isdir(root):  # Path.exists() may raise
        yield fail(STATE_FOLDER, f"{root.resolve()} is a file", "name a folder with --state, or take the file away")
        return
    folder = nearest_folder(root)
    yield kind_finding(str(root.resolve()), kind_of(folder), is_new=folder != root.resolve())
    try:
        LocalFileSystem(folder).probe()
        written = try_writing(folder, clock)
    except (PenstockError, OSError) as error:
        yield refused(error)
        return
    yield written_of(written)
    yield space_of(shutil.disk_usage(folder).free)
    yield skew_of(written.skew_seconds)


def nearest_folder(path: Path) -> Path:
    """Return the folder itself, or the nearest parent that exists and that this user can see."""
    path = path.resolve()
    while not os.path.isdir(path) and path != path.parent:  # Path.is_dir() raises for a folder closed to this user
        path = path.parent
    return path


def try_writing(folder: Path, clock: Clock) -> Written:
    """Do what the log does: create, list, rename, read, delete. Everything is deleted again.

    Raises:
        OSError: no folder can be made there.
        PenstockError: an operation failed.
        StateDirectoryRefused: an operation did not do what it should.
    """
    trial = Path(tempfile.mkdtemp(prefix=".penstock-doctor-", dir=folder))
    files = LocalFileSystem(trial)
    durations = []
    try:
        for number in range(TRIAL_WRITES):
            before = clock.now()
            files.create(f"{number}.json", b"{}")
            durations.append(clock.now() - before)
        skew = (trial / f"{TRIAL_WRITES - 1}.json").stat().st_mtime - clock.wall() / 1_000_000
        files.move("0.json", "moved.json")
        listed = files.list("")
        expected = sorted(["moved.json", *(f"{number}.json" for number in range(1, TRIAL_WRITES))])
        if list(listed) != expected or files.read("moved.json") != b"{}":
            msg = (
                f"Folder {folder} does not list the files that were written and renamed in it. It lists "
                f"{', '.join(listed) or 'nothing'}. Use a local disk."
            )
            raise StateDirectoryRefused(msg)
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    return Written(milliseconds=sorted(durations)[TRIAL_WRITES // 2] / 1_000, skew_seconds=skew)


def kind_finding(path: str, kind: str, *, is_new: bool) -> Finding:
    """Check whether the kind of file system is fit for state."""
    found = f"{path} on {kind}" + (", will be made" if is_new else "")
    if kind in NETWORK:
        return fail(STATE_FOLDER, found, "two hosts could own one job there: use a local disk")
    if kind in _TEMPORARY:
        return warn(
            STATE_FOLDER, f"{found}, {_TEMPORARY[kind]}", "for more than a try, put --state on a disk or a volume"
        )
    return ok(STATE_FOLDER, found)


def refused(error: Exception) -> Finding:
    """Return the finding that durable writes fail."""
    return fail("durable writes", str(error), "name a folder that this user may write, on a local disk, with --state")


def written_of(written: Written) -> Finding:
    """Check whether durable writes are quick enough for checkpoints every few seconds."""
    found = f"create, link, fsync, rename, list: fine, {written.milliseconds:.1f} ms each"
    if written.milliseconds > SLOW_MS:
        return warn("durable writes", found, "a checkpoint makes several: use a faster disk, or take them less often")
    return ok("durable writes", found)


def space_of(free: int) -> Finding:
    """Check whether state has room to grow."""
    found = f"{free / MIB / 1024:.1f} GiB free"
    if free < SPACE_MINIMUM:
        return fail("space", found, "free some, or name another folder with --state: checkpoints will fail")
    if free < SPACE_WARNING:
        return warn("space", found, "keep more free: state, its old checkpoints and staged output all lie there")
    return ok("space", found)


def skew_of(seconds: float) -> Finding:
    """Check whether the file system's clock agrees with this machine's."""
    if abs(seconds) <= SKEW_SECONDS:
        return ok("clocks", "the file system's agrees with this machine's")
    where = "ahead of" if seconds > 0 else "behind"
    fix = "set both by NTP: nothing is decided by them, but times in listings and in checkpoints will not agree"
    return warn("clocks", f"the file system's is {abs(seconds):.1f} s {where} this machine's", fix)


# ---- the trial of Spark ----------------------------------------------------------------------------------------------


def main() -> int:
    """Make a session as ``penstock run`` does, run a job with Python workers, and print the result as JSON."""
    clock = SystemClock()
    started = clock.now()
    spark = make_session("doctor")
    try:

        def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
            yield from batches

        rows = spark.range(1_000).mapInArrow(pass_on, "id LONG").count()
        result = {
            "version": spark.version,
            "cores": default_parallelism(spark),
            "rows": rows,
            "missing_class": missing_class(spark),
            "seconds": (clock.now() - started) / 1_000_000,
        }
    finally:
        spark.stop()
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
