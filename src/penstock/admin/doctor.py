"""Penstock doctor: all checks, storage, brokers, a trial of Spark."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.admin.doctor_checks import (
    Finding,
    fail,
    find_java,
    java_of,
    look_at_environment,
    look_at_machine,
    look_at_python,
    ok,
    warn,
)
from penstock.clock import Clock, SystemClock
from penstock.connectors.kafka.client import Connection
from penstock.connectors.kafka.source import Source as KafkaSource
from penstock.connectors.secrets import Option, resolve
from penstock.control.client import root_of
from penstock.errors import PenstockError, StateDirectoryRefused
from penstock.filesystem.local import NETWORK, LocalFileSystem, kind_of
from penstock.graph.nodes import Graph, Read
from penstock.spark.session import CONTEXT_SETTINGS, default_parallelism, make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.api.pipeline import PipelineDefinition


# ----------------------------------------------------------------------------------------------------
# Kafka brokers: whether they answer in time, and whether topics that a pipeline reads are there. Reads no record.

BROKER_TIMEOUT: Final = 5.0
"""Seconds for an answer."""


def look_at_brokers(
    servers: str, *, options: Mapping[str, Option] | None = None, topics: Collection[str] = ()
) -> Iterator[Finding]:
    """Ask the cluster for its metadata.

    Args:
        servers: ``host:port``, several with commas.
        options: client properties of the source that reads from there.
        topics: that must be there.
    """
    name = f"kafka {servers}"
    try:
        import confluent_kafka
        from confluent_kafka.admin import AdminClient
    except ImportError:
        yield fail(name, "its client library is not installed", "pip install 'penstock[kafka]'")
        return
    heard: list[str] = []
    try:
        asked = resolve(Connection(servers=servers, options=options or {}).client_options())
        client: Any = AdminClient
        admin = client({**asked, "error_cb": lambda error: heard.append(str(error.str())), "log_level": 0})
    except (PenstockError, confluent_kafka.KafkaException, ValueError) as error:
        yield fail(name, _words(error), "correct the servers and options of the source")
        return
    try:
        told = admin.list_topics(timeout=BROKER_TIMEOUT)
    except confluent_kafka.KafkaException as error:
        admin.poll(0)  # hears what was said meanwhile
        yield unreachable(name, _words(error), heard)
        return
    versions = f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"
    yield reached(name, len(told.brokers), len(told.topics), versions)
    yield from topics_of(name, wanted=topics, there=set(told.topics))


def reached(name: str, brokers: int, topics: int, client: str) -> Finding:
    """It answered."""
    many = "1 broker" if brokers == 1 else f"{brokers} brokers"
    return ok(name, f"{many}, {topics} topics ({client})")


def unreachable(name: str, why: str, heard: Collection[str] = ()) -> Finding:
    """It did not."""
    more = next(iter(heard), "")
    found = f"no answer within {BROKER_TIMEOUT:g} s: {why}" + (f" ({more})" if more and more not in why else "")
    fix = (
        "look whether a broker listens there, and whether its advertised.listeners name addresses that this machine "
        "can reach; for TLS or SASL name the pipeline instead of --servers, so that its options are used"
    )
    return fail(name, found, fix)


def topics_of(name: str, *, wanted: Collection[str], there: Collection[str]) -> Iterator[Finding]:
    """Whether the topics that are read are there."""
    missing = sorted(set(wanted) - set(there))
    if missing:
        yield warn(name, f"topics that are not there: {', '.join(missing)}", "make them before the job is started")


def _words(error: Exception) -> str:
    inner = error.args[0] if error.args else error
    text = getattr(inner, "str", None)
    return str(text()) if callable(text) else str(error)


# ----------------------------------------------------------------------------------------------------
# Spark itself: whether a classic session comes up here, and what a session of the user's own lacks.
#
# The trial runs in a process of its own, so that a JVM which hangs is only late, and nothing of it stays here.

TRIAL: Final = "penstock.admin.doctor"
SPARK_TIMEOUT: Final = 120.0
"""Seconds for a session and one small job in it."""
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
"""What a session is without a setting that ours have; others of ours are matters of taste or of this machine."""
_SWITCHES: Final = {"true", "false"}


def session_of(spark: SparkSession) -> Iterator[Finding]:
    """What degrades on a session that penstock did not make, whose context can no longer be changed."""
    conf = spark.sparkContext.getConf()
    yield from missing_settings({name: conf.get(name, None) for name in CONTEXT_SETTINGS})


def missing_settings(there: Mapping[str, str | None]) -> Iterator[Finding]:
    """One line for each setting that ours have and this one has not, where that costs something.

    Args:
        there: what is set, by the names of :data:`penstock.spark.session.CONTEXT_SETTINGS`.
    """
    missing = [name for name in DEGRADES if not _will_do(CONTEXT_SETTINGS[name], there.get(name))]
    for name in missing:
        found = f"{name} is {there.get(name) or 'not set'}: {DEGRADES[name]}"
        yield warn("your session", found, f'build the session with .config("{name}", "{CONTEXT_SETTINGS[name]}")')
    if not missing:
        yield ok("your session", f"has all {len(DEGRADES)} settings that matter")


def try_spark(run: Callable[[], tuple[int, str, str]] | None = None) -> Finding:
    """Make a session as ``penstock run`` does, run one job with a Python worker in it, and end it."""
    try:
        code, out, err = (run or _in_a_process)()
    except subprocess.TimeoutExpired:
        fix = "look at what the JVM does (jps, jstack), at the name of this host, and at SPARK_SUBMIT_OPTS"
        return fail("spark", f"no session within {SPARK_TIMEOUT:g} s", fix)
    told = _last_json(out)
    if code != 0 or told is None:
        return fail("spark", "no session: " + (_reason(err) or f"its process ended with {code}"), _remedy(err))
    found = f"Spark {told['version']}: a classic session and a job with Python workers in {told['seconds']:.1f} s"
    return ok("spark", f"{found}, on {told['cores']} cores")


def _in_a_process() -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", TRIAL],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SPARK_TIMEOUT,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def _last_json(out: str) -> dict[str, Any] | None:
    for line in reversed(out.strip().splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return None


def _reason(err: str) -> str:
    """The line that says most, without frames: what the JVM died of, or else the last error."""
    lines = [line.strip() for line in err.splitlines() if re.search(r"(Error|Exception)\b.*:", line)]
    died = [line.split('" ', 1)[1] for line in lines if re.match(r'Exception in thread ".*" ', line)]
    return [*lines, *died[:1]][-1] if lines else ""


def _remedy(err: str) -> str:
    if "PYTHON_VERSION_MISMATCH" in err:
        return f"unset PYSPARK_PYTHON, or set it to {sys.executable}"
    if "UnknownHost" in err or "BindException" in err:
        return "set SPARK_LOCAL_IP=127.0.0.1, or give this host's name an address in /etc/hosts"
    return f"see the lines above about java; python -m {TRIAL} shows everything that Spark says"


def _will_do(ours: str, there: str | None) -> bool:
    if there is None:
        return False
    if ours.isdecimal():
        number = re.match(r"\d+", there)
        is_least = ours != "0"
        return number is not None and (int(number[0]) >= int(ours) if is_least else int(number[0]) == 0)
    return there.lower() == ours.lower() if ours in _SWITCHES else there == ours


# ----------------------------------------------------------------------------------------------------
# The folder for state: what kind of file system it lies on, whether that does what the log needs, room, clocks.
#
# Writes a few small files beside what is there, and takes them away again.

NAME: Final = "state folder"
MIB: Final = 1 << 20
LITTLE: Final = 1024 * MIB
SCARCE: Final = 64 * MIB
WRITES: Final = 5
SLOW_MS: Final = 100.0
"""A durable write that takes longer: a checkpoint needs several of them, one after the other."""
SKEW_SECONDS: Final = 2.0
_PASSING: Final = {
    "tmpfs": "memory: state is gone when the machine restarts",
    "ramfs": "memory: state is gone when the machine restarts",
    "overlay": "the container's own layer: state is gone with the container",
    "overlayfs": "the container's own layer: state is gone with the container",
    "aufs": "the container's own layer: state is gone with the container",
}
"""Kinds of file systems that work and do not last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What writing durably was like: milliseconds of the middle one, and how far the files' times are ahead of ours."""

    milliseconds: float
    skew_seconds: float


def look_at_storage(state: str, clock: Clock) -> Iterator[Finding]:
    """The folder, or where it would be made."""
    root = root_of(state)
    if root is None:
        yield fail(NAME, state, "no file system here knows that address: name a folder of this machine")
        return
    if root.exists() and not root.is_dir():
        yield fail(NAME, f"{root.resolve()} is a file", "name a folder with --state, or take the file away")
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
    """The folder itself, or the one above it that is there."""
    path = path.resolve()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def try_writing(folder: Path, clock: Clock) -> Written:
    """Do what the log does: create, list, rename, read, delete; nothing of it is left behind.

    Raises:
        PenstockError: one of them failed.
        StateDirectoryRefused: one of them did not do what it should.
    """
    place = folder / f".penstock-doctor-{os.getpid()}"
    files = LocalFileSystem(place)
    took = []
    try:
        for number in range(WRITES):
            before = clock.now()
            files.create(f"{number}.json", b"{}")
            took.append(clock.now() - before)
        skew = (place / f"{WRITES - 1}.json").stat().st_mtime - clock.wall() / 1_000_000
        files.move("0.json", "moved.json")
        listed = files.list("")
        expected = sorted(["moved.json", *(f"{number}.json" for number in range(1, WRITES))])
        if list(listed) != expected or files.read("moved.json") != b"{}":
            msg = f"{folder} does not list what was written and renamed: {', '.join(listed) or 'nothing'}"
            raise StateDirectoryRefused(msg)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return Written(milliseconds=sorted(took)[WRITES // 2] / 1_000, skew_seconds=skew)


def kind_finding(path: str, kind: str, *, is_new: bool) -> Finding:
    """What the kind of file system means for state."""
    found = f"{path} on {kind}" + (", will be made" if is_new else "")
    if kind in NETWORK:
        return fail(NAME, found, "two hosts could own one job there: use a local disk")
    if kind in _PASSING:
        return warn(NAME, f"{found}, {_PASSING[kind]}", "for more than a try, put --state on a disk or a volume")
    return ok(NAME, found)


def refused(error: Exception) -> Finding:
    """It cannot be written as the log needs it."""
    return fail("durable writes", str(error), "name a folder that this user may write, on a local disk, with --state")


def written_of(written: Written) -> Finding:
    """Whether durable writes are quick enough for checkpoints every few seconds."""
    found = f"create, link, fsync, rename, list: fine, {written.milliseconds:.1f} ms each"
    if written.milliseconds > SLOW_MS:
        return warn("durable writes", found, "a checkpoint makes several: use a faster disk, or take them less often")
    return ok("durable writes", found)


def space_of(free: int) -> Finding:
    """Whether state has room to grow."""
    found = f"{free / MIB / 1024:.1f} GiB free"
    if free < SCARCE:
        return fail("space", found, "free some, or name another folder with --state: checkpoints will fail")
    if free < LITTLE:
        return warn("space", found, "keep more free: state, its old checkpoints and staged output all lie there")
    return ok("space", found)


def skew_of(seconds: float) -> Finding:
    """Whether the clock of the file system is that of this machine."""
    if abs(seconds) <= SKEW_SECONDS:
        return ok("clocks", "the file system's agrees with this machine's")
    where = "ahead of" if seconds > 0 else "behind"
    fix = "set both by NTP: nothing is decided by them, but times in listings and in checkpoints will not agree"
    return warn("clocks", f"the file system's is {abs(seconds):.1f} s {where} this machine's", fix)


# ----------------------------------------------------------------------------------------------------
# All checks of ``penstock doctor`` in their order, each told as soon as it is known. Prints nothing.


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What to look at.

    Attributes:
        state: the folder for state.
        servers: Kafka brokers, as ``host:port``, several with commas.
        pipeline: its sources are looked at too; or why it cannot be found.
        spark: whether to make a session, which takes seconds.
    """

    state: str
    servers: str | None = None
    pipeline: PipelineDefinition | PenstockError | None = None
    spark: bool = True


def examine(question: DoctorOptions, *, tell: Callable[[str], None]) -> Iterator[Finding]:
    """Every finding.

    Args:
        question: what to look at.
        tell: gets a line before each check that takes long.
    """
    yield from look_at_python()
    java = java_of(find_java(os.environ))
    yield java
    yield from look_at_machine()
    yield from look_at_environment(os.environ, sys.executable)
    yield from look_at_storage(question.state, SystemClock())
    graph = None
    if question.pipeline is not None:
        finding, graph = pipeline_of(question.pipeline)
        yield finding
    yield from _brokers(question.servers, graph, tell)
    yield from _own_session()
    if question.spark:
        tell("starting Spark")
        yield try_spark()


def pipeline_of(pipeline: PipelineDefinition | PenstockError) -> tuple[Finding, Graph | None]:
    """Whether it can be built, and its graph."""
    if isinstance(pipeline, PenstockError):
        return fail("pipeline", str(pipeline), "penstock run would be refused with the same words"), None
    try:
        graph = pipeline.graph()
    except PenstockError as error:
        return fail("pipeline", str(error), "penstock run would be refused with the same words"), None
    read, written = ", ".join(sorted(graph.sources)), ", ".join(sorted(graph.sinks))
    return ok("pipeline", f"{graph.name} reads {read} and writes {written}"), graph


def _brokers(servers: str | None, graph: Graph | None, tell: Callable[[str], None]) -> Iterator[Finding]:
    if servers is not None:
        tell(f"asking {servers}")
        yield from look_at_brokers(servers)
    for node in graph.nodes if graph is not None else ():
        if isinstance(node, Read) and isinstance(node.source, KafkaSource):
            tell(f"asking {node.source.servers}")
            yield from look_at_brokers(node.source.servers, options=node.source.options, topics=node.source.topics)


def _own_session() -> Iterator[Finding]:
    """Of the session that the pipeline's module has made, if it has."""
    if "pyspark" not in sys.modules:
        return
    from penstock.spark.session import current_session, is_classic

    session = current_session()
    if session is not None and is_classic(session):
        yield from session_of(session)


# ----------------------------------------------------------------------------------------------------
# Makes a session as ``penstock run`` does, runs a job with Python workers, prints what it was like as JSON.
#
# ``python -m penstock.operate.doctor.spark_trial`` shows what Spark says when it cannot.


def main() -> int:
    """One session, one job."""
    clock = SystemClock()
    before = clock.now()
    spark = make_session("doctor")
    try:

        def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
            yield from batches

        rows = spark.range(1_000).mapInArrow(pass_on, "id LONG").count()
        told = {
            "version": spark.version,
            "cores": default_parallelism(spark),
            "rows": rows,
            "seconds": (clock.now() - before) / 1_000_000,
        }
    finally:
        spark.stop()
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
