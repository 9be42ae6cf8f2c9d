"""Findings of ``penstock doctor``, and its checks of environment, Java, machine and packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Final

from penstock.errors import SettingsError, did_you_mean
from penstock.settings import PREFIX, Settings, read_settings

# ---- findings --------------------------------------------------------------------------------------------------------


class Status(str, Enum):
    """The result of a check, from best to worst."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of ``penstock doctor``.

    Attributes:
        name: what was checked.
        status: the result.
        found: what there is.
        fix: what to do about it; ``None`` if nothing needs doing.
    """

    name: str
    status: Status
    found: str
    fix: str | None = None


def ok(name: str, found: str) -> Finding:
    """Return a finding that needs nothing done."""
    return Finding(name=name, status=Status.OK, found=found)


def warn(name: str, found: str, fix: str) -> Finding:
    """Return a finding that works, but not as well as it could, or not for ever."""
    return Finding(name=name, status=Status.WARN, found=found, fix=fix)


def fail(name: str, found: str, fix: str) -> Finding:
    """Return a finding with which a job cannot run."""
    return Finding(name=name, status=Status.FAIL, found=found, fix=fix)


def worst(findings: Iterable[Finding]) -> Status:
    """Return the worst status of all findings.

    >>> worst([ok("java", "17"), warn("memory", "1 GB", "add some")])
    <Status.WARN: 'warn'>
    """
    order = list(Status)
    return max((finding.status for finding in findings), key=order.index, default=Status.OK)


# ---- environment variables -------------------------------------------------------------------------------------------

_OTHERS: Final = ("MASTER", "CLASS_ARCHIVE", "FAILPOINTS", "FAILPOINTS_RECORD", "LIFELINE")
"""Variables that penstock reads in addition to the settings of a job."""
_ARMED: Final = f"{PREFIX}FAILPOINTS"


def look_at_environment(environment: Mapping[str, str], executable: str) -> Iterator[Finding]:
    """Check penstock's own variables, then those that change how Spark starts."""
    yield ours_of(environment)
    yield from spark_variables_of(environment, executable)


def known_variables() -> frozenset[str]:
    """Return every variable that penstock reads."""
    return frozenset(PREFIX + name.upper() for name in (*(field.name for field in fields(Settings)), *_OTHERS))


def ours_of(environment: Mapping[str, str]) -> Finding:
    """Check which of penstock's variables are set, and whether their values are valid."""
    ours = {name: value for name, value in sorted(environment.items()) if name.startswith(PREFIX)}
    unknown = ours.keys() - known_variables()
    # the value of an unknown variable may be a secret
    shown = [name if name in unknown else f"{name}={value}" for name, value in ours.items()]
    found = ", ".join(shown) or f"no {PREFIX}* variable is set"
    if unknown:
        fix = " ".join(f"{name} is not read{_nearest(name, known_variables())}" for name in sorted(unknown))
        return warn("environment", found, fix)
    try:
        read_settings({}, environment=environment)
    except SettingsError as error:
        return fail("environment", found, f"{error} Correct it or unset it.")
    if ours.get(_ARMED):
        return warn("environment", found, f"unset {_ARMED}: jobs crash on purpose where it says")
    return ok("environment", found)


def spark_variables_of(environment: Mapping[str, str], executable: str) -> Iterator[Finding]:
    """Check variables that lead to another Spark, to Spark Connect, or to another Python for the workers."""
    remote = next((name for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED") if environment.get(name)), None)
    if remote is not None:
        found = f"{remote}={environment[remote]}"
        yield fail("spark variables", found, f"unset {remote}: it makes Spark Connect sessions, which are refused")
    home = environment.get("SPARK_HOME")
    if home:
        fix = "unset SPARK_HOME, unless that Spark has the version of the package pyspark to the last digit"
        yield warn("spark variables", f"SPARK_HOME={home}, so its jars are taken and not PySpark's own", fix)
    worker = environment.get("PYSPARK_PYTHON")
    if worker and worker != executable:
        fix = f"unset it, or set it to {executable}, unless it has the same Python and packages"
        yield warn("spark variables", f"PYSPARK_PYTHON={worker} runs the workers, not the Python of this command", fix)


def _nearest(name: str, known: Collection[str]) -> str:
    return did_you_mean(name, known, otherwise=f"Those that are: {', '.join(sorted(known))}.")


# ---- Java ------------------------------------------------------------------------------------------------------------

MIN_JAVA: Final = 17
"""Oldest Java that Spark 4 runs on."""
JAVA_TIMEOUT: Final = 30.0
"""Seconds that ``java -version`` may take."""
_INSTALL: Final = (
    "install Java 17 or newer (Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17; conda: "
    "conda install openjdk) and put it on PATH, or its home into JAVA_HOME"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaInstall:
    """An installed Java.

    Attributes:
        by: where it was found: ``JAVA_HOME`` or ``PATH``.
        path: of the program; ``None`` if there is none.
        home: as the program reports it.
        version: its major version; ``None`` if the program does not report one.
        output: its first line of output, or the error with which it did not start.
    """

    by: str
    path: str | None
    home: str | None = None
    version: int | None = None
    output: str = ""


def find_java(environment: Mapping[str, str]) -> JavaInstall:
    """Return the Java that Spark uses: that of ``JAVA_HOME`` if this is set, else the first on ``PATH``."""
    home = environment.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        return (
            _run_java("JAVA_HOME", str(program))
            if program.is_file()
            else JavaInstall(by="JAVA_HOME", path=None, home=home)
        )
    found = shutil.which("java", path=environment.get("PATH"))
    return JavaInstall(by="PATH", path=None) if found is None else _run_java("PATH", found)


def java_of(java: JavaInstall) -> Finding:
    """Check whether Spark can run on this Java."""
    if java.path is None and java.by == "JAVA_HOME":
        fix = f"there is no bin/java in it: name a Java's home, or unset it to take java from PATH; {_INSTALL}"
        return fail("java", f"JAVA_HOME is {java.home}", fix)
    if java.path is None:
        return fail("java", "there is none: JAVA_HOME is not set, and no java is on PATH", _INSTALL)
    if java.version is None:
        return fail("java", f"{java.path} does not say its version: {java.output or 'it said nothing'}", _INSTALL)
    found = f"{java.version} ({java.home or java.path}, found by {java.by})"
    return ok("java", found) if java.version >= MIN_JAVA else fail("java", found, _INSTALL)


def _run_java(by: str, path: str) -> JavaInstall:
    try:
        process = subprocess.run(
            [path, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=JAVA_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return JavaInstall(by=by, path=path, output=str(error))
    return parse_java_version(by, path, process.stderr + process.stdout)


def parse_java_version(by: str, path: str, output: str) -> JavaInstall:
    """Parse the output of ``java -version``, which is the same for all vendors.

    >>> parse_java_version("PATH", "/usr/bin/java", "    java.specification.version = 1.8").version
    8
    """
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", output)
    home = re.search(r"java\.home = (.+)", output)
    return JavaInstall(
        by=by,
        path=path,
        home=home[1].strip() if home else None,
        version=int(version[1]) if version else None,
        output=output.strip().split("\n")[0],
    )


# ---- cores and memory ------------------------------------------------------------------------------------------------

GIB: Final = 1 << 30
LITTLE_MEMORY: Final = 2 * GIB
"""Bytes that a driver with 1 GiB of heap, its other memory and a Python worker for each core need."""
CGROUP: Final = Path("/sys/fs/cgroup")


def look_at_machine() -> Iterator[Finding]:
    """Check cores, then memory."""
    yield cores_of(os.cpu_count() or 1, granted_cores())
    yield memory_of(total_memory(), granted_memory())


def cores_of(total: int, granted: float | None) -> Finding:
    """Check whether background work has a core next to the batches."""
    limit = granted if granted is not None and granted < total else None
    found = f"{total} cores" if total != 1 else "1 core"
    if limit is not None:
        found += f", of which this container may use {limit:g}"
    if (limit or total) < 2:  # noqa: PLR2004 - one for batches, one for background work
        fix = "give it two or more: on one, checkpoints and compaction run between batches and add to latency"
        return warn("cores", found, fix)
    return ok("cores", found)


def memory_of(total: int | None, granted: int | None) -> Finding:
    """Check whether a driver and its workers fit."""
    if total is None:
        return ok("memory", "not known on this system")
    limit = granted if granted is not None and granted < total else None
    found = f"{total / GIB:.1f} GiB"
    if limit is not None:
        found += f", of which this container may use {limit / GIB:.1f} GiB"
    if (limit or total) < LITTLE_MEMORY:
        return warn("memory", found, "2 GiB or more: Spark's JVM takes 1 GiB of heap by default")
    return ok("memory", found)


def total_memory() -> int | None:
    """Return the bytes of the machine; ``None`` where the system does not report them."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def granted_memory(cgroup: Path = CGROUP) -> int | None:
    """Return the bytes that the container may use; ``None`` without a limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            return int((cgroup / name).read_text(encoding="ascii"))
    return None


def granted_cores(cgroup: Path = CGROUP) -> float | None:
    """Return the cores that this process may use, by container and affinity; ``None`` without a limit."""
    limits: list[float] = []
    with suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        limits.append(int(quota) / int(period))
    with suppress(AttributeError, OSError):
        limits.append(float(len(os.sched_getaffinity(0))))
    return min(limits, default=None)


# ---- Python and packages ---------------------------------------------------------------------------------------------

PACKAGE: Final = "penstock"
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[^]]*])?\s*([^;]*)(?:;(.*))?$")
_EXTRA: Final = re.compile(r"\s*extra\s*==\s*['\"]([\w-]+)['\"]\s*$")
_PART: Final = re.compile(r"(>=|<=|==|!=|<|>)\s*([\d.]+)")
_TESTED: Final = re.compile(r"Programming Language :: Python :: (\d+\.\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A required package, its versions, and the extra that requires it (``None``: always required)."""

    name: str
    versions: str
    extra: str | None = None


VersionOf = Callable[[str], "str | None"]
"""Returns the installed version of a package."""


def look_at_python() -> Iterator[Finding]:
    """Check Python, the packages that are always needed, and those of the extras."""
    tested = [found[1] for line in _classifiers() if (found := _TESTED.match(line))]
    yield python_of((sys.version_info.major, sys.version_info.minor), sys.version.split()[0], sys.executable, tested)
    required = requirements(metadata.requires(PACKAGE) or ())
    yield packages_of(required, installed)
    yield extras_of(required, installed)


def installed(name: str) -> str | None:
    """Return the version of a package, ``None`` if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def python_of(version: tuple[int, int], text: str, executable: str, tested: Collection[str]) -> Finding:
    """Check whether penstock is tested with this Python."""
    found = f"{text} ({executable})"
    known = sorted(tuple(int(part) for part in each.split(".")) for each in tested)
    if known and not known[0] <= version <= known[-1]:
        between = " to ".join(".".join(map(str, end)) for end in (known[0], known[-1]))
        return warn("python", found, f"penstock is tested with Python {between}: make the venv with one of them")
    return ok("python", found)


def requirements(lines: Sequence[str]) -> list[Requirement]:
    """Parse the requirements in a package's metadata; those for some systems only are left out.

    >>> requirements(["pyspark<5,>=4.1", "confluent-kafka>=2.12; extra == 'kafka'"])[1].extra
    'kafka'
    """
    found = []
    for line in lines:
        parts = _REQUIREMENT.match(line)
        extra = _EXTRA.match(parts[3]) if parts is not None and parts[3] else None
        if parts is not None and (extra is not None or not parts[3]):
            found.append(Requirement(name=parts[1], versions=parts[2].strip(), extra=extra[1] if extra else None))
    return found


def is_within(version: str, versions: str) -> bool:
    """Return whether a version is in a range such as ``>=4.1,<5``; pre-release suffixes are ignored.

    >>> is_within("4.3.0", ">=4.1,<5"), is_within("3.5.1", ">=4.1,<5"), is_within("5.0", "<5")
    (True, False, False)
    """
    return all(_fits(_numbers(version), operator, _numbers(bound)) for operator, bound in _PART.findall(versions))


def packages_of(required: Sequence[Requirement], version_of: VersionOf) -> Finding:
    """Check whether every package that is always needed is installed in its range."""
    needed = [each for each in required if each.extra is None]
    versions = {each.name: version_of(each.name) for each in needed}
    wrong = [each for each in needed if (now := versions[each.name]) is None or not is_within(now, each.versions)]
    found = ", ".join(f"{name} {now or 'is missing'}" for name, now in versions.items())
    if wrong:
        wanted = " ".join(f"'{each.name}{each.versions}'" for each in wrong)
        return fail("packages", found, f"pip install {wanted}")
    client = next((name for name in ("pyspark-client", "pyspark-connect") if version_of(name)), None)
    if client is not None:
        fix = f"pip uninstall {client} and install pyspark again: it makes Spark Connect sessions, which are refused"
        return warn("packages", f"{found}, and {client}", fix)
    return ok("packages", found)


def extras_of(required: Sequence[Requirement], version_of: VersionOf) -> Finding:
    """Check which extras are installed; a pipeline needs only those that it uses."""
    extras = sorted({each.extra for each in required if each.extra is not None})
    complete, missing, old = [], [], []
    for extra in extras:
        mine = [each for each in required if each.extra == extra]
        versions = {each.name: version_of(each.name) for each in mine}
        if None in versions.values():
            missing.append(extra)
            continue
        complete.append(f"{extra} ({', '.join(f'{name} {now}' for name, now in versions.items())})")
        outside = (each for each in mine if not is_within(str(versions[each.name]), each.versions))
        old += [f"'{each.name}{each.versions}'" for each in outside]
    found = "; ".join(
        [
            *complete,
            *([f"not installed: {', '.join(f'{PACKAGE}[{extra}]' for extra in missing)}"] if missing else []),
        ]
    )
    if old:
        return warn("extras", found, f"pip install {' '.join(old)}")
    return ok("extras", found or "there are none")


def _classifiers() -> list[str]:
    return metadata.metadata(PACKAGE).get_all("Classifier") or []


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release[0].split(".")) if release else ()


def _fits(version: tuple[int, ...], operator: str, bound: tuple[int, ...]) -> bool:
    size = max(len(version), len(bound))
    one, other = (each + (0,) * (size - len(each)) for each in (version, bound))
    match operator:
        case ">=":
            return one >= other
        case "<=":
            return one <= other
        case ">":
            return one > other
        case "<":
            return one < other
        case "==":
            return one == other
        case _:
            return one != other
