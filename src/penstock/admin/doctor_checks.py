"""Findings; environment, machine, packages, Java."""

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

# ----------------------------------------------------------------------------------------------------
# What a check found: a frozen line with its remedy, and what several of them come to. Knows no check.


class Status(str, Enum):
    """How a check ended, from best to worst."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of ``penstock doctor``.

    Attributes:
        name: what was looked at.
        status: whether it will do.
        found: what is there.
        fix: what to do about it; ``None`` where nothing needs doing.
    """

    name: str
    status: Status
    found: str
    fix: str | None = None


def ok(name: str, found: str) -> Finding:
    """It will do."""
    return Finding(name=name, status=Status.OK, found=found)


def warn(name: str, found: str, fix: str) -> Finding:
    """It works, but not as well as it could, or not for ever."""
    return Finding(name=name, status=Status.WARN, found=found, fix=fix)


def fail(name: str, found: str, fix: str) -> Finding:
    """A job cannot run so."""
    return Finding(name=name, status=Status.FAIL, found=found, fix=fix)


def worst(findings: Iterable[Finding]) -> Status:
    """What all of them come to.

    >>> worst([ok("java", "17"), warn("memory", "1 GB", "add some")])
    <Status.WARN: 'warn'>
    """
    order = list(Status)
    return max((finding.status for finding in findings), key=order.index, default=Status.OK)


# ----------------------------------------------------------------------------------------------------
# What the environment says to penstock and to Spark: unknown names, impossible values, what leads astray. Pure.

_OTHERS: Final = ("MASTER", "FAILPOINTS", "FAILPOINTS_RECORD", "LIFELINE")
"""What penstock reads besides the settings of a job."""
_ARMED: Final = f"{PREFIX}FAILPOINTS"


def look_at_environment(environment: Mapping[str, str], executable: str) -> Iterator[Finding]:
    """Variables of penstock's own, then those of Spark that change what is started."""
    yield ours_of(environment)
    yield from spark_variables_of(environment, executable)


def known_variables() -> frozenset[str]:
    """Every variable that penstock reads."""
    return frozenset(PREFIX + name.upper() for name in (*(field.name for field in fields(Settings)), *_OTHERS))


def ours_of(environment: Mapping[str, str]) -> Finding:
    """Which of ours are set, and whether they can be."""
    given = {name: value for name, value in sorted(environment.items()) if name.startswith(PREFIX)}
    unknown = given.keys() - known_variables()
    shown = [name if name in unknown else f"{name}={value}" for name, value in given.items()]  # it may be a secret
    found = ", ".join(shown) or f"no {PREFIX}* variable is set"
    if unknown:
        fix = "; ".join(f"{name} is not read{_nearest(name, known_variables())}" for name in sorted(unknown))
        return warn("environment", found, fix)
    try:
        read_settings({}, environment=environment)
    except SettingsError as error:
        return fail("environment", found, f"{error}; correct it or unset it")
    if given.get(_ARMED):
        return warn("environment", found, f"unset {_ARMED}: jobs crash on purpose where it says")
    return ok("environment", found)


def spark_variables_of(environment: Mapping[str, str], executable: str) -> Iterator[Finding]:
    """What would lead Spark elsewhere: another Spark, Spark Connect, another Python for the workers."""
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
    return did_you_mean(name, known, otherwise=f"those that are: {', '.join(sorted(known))}")


# ----------------------------------------------------------------------------------------------------
# The Java that Spark would take: where it comes from, and whether it is new enough. Starts no Spark.

OLDEST: Final = 17
"""What Spark 4 runs on at least."""
PATIENCE: Final = 30.0
"""Seconds that ``java -version`` may take."""
_INSTALL: Final = (
    "install Java 17 or newer (Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17; conda: "
    "conda install openjdk) and put it on PATH, or its home into JAVA_HOME"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaInstall:
    """A Java, as far as it could be found.

    Attributes:
        by: what led to it, ``JAVA_HOME`` or ``PATH``.
        path: of the program; ``None`` if there is none.
        home: as it says itself.
        version: its major version; ``None`` if it does not say.
        said: what it said, where that was no version.
    """

    by: str
    path: str | None
    home: str | None = None
    version: int | None = None
    said: str = ""


def find_java(environment: Mapping[str, str]) -> JavaInstall:
    """The one that Spark takes: that of ``JAVA_HOME`` if this is set, else the first on ``PATH``."""
    home = environment.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        return (
            _ask("JAVA_HOME", str(program)) if program.is_file() else JavaInstall(by="JAVA_HOME", path=None, home=home)
        )
    found = shutil.which("java", path=environment.get("PATH"))
    return JavaInstall(by="PATH", path=None) if found is None else _ask("PATH", found)


def java_of(java: JavaInstall) -> Finding:
    """Whether Spark can run on it."""
    if java.path is None and java.by == "JAVA_HOME":
        fix = f"there is no bin/java in it: name a Java's home, or unset it to take java from PATH; {_INSTALL}"
        return fail("java", f"JAVA_HOME is {java.home}", fix)
    if java.path is None:
        return fail("java", "there is none: JAVA_HOME is not set, and no java is on PATH", _INSTALL)
    if java.version is None:
        return fail("java", f"{java.path} does not say its version: {java.said or 'it said nothing'}", _INSTALL)
    found = f"{java.version} ({java.home or java.path}, found by {java.by})"
    return ok("java", found) if java.version >= OLDEST else fail("java", found, _INSTALL)


def _ask(by: str, path: str) -> JavaInstall:
    try:
        done = subprocess.run(
            [path, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return JavaInstall(by=by, path=path, said=str(error))
    return parse_java_version(by, path, done.stderr + done.stdout)


def parse_java_version(by: str, path: str, said: str) -> JavaInstall:
    """What a Java says of itself, whichever vendor's.

    >>> parse_java_version("PATH", "/usr/bin/java", "    java.specification.version = 1.8").version
    8
    """
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", said)
    home = re.search(r"java\.home = (.+)", said)
    return JavaInstall(
        by=by,
        path=path,
        home=home[1].strip() if home else None,
        version=int(version[1]) if version else None,
        said=said.strip().split("\n")[0],
    )


# ----------------------------------------------------------------------------------------------------
# Cores and memory that a job of this machine would have. Starts nothing.

GIB: Final = 1 << 30
LITTLE: Final = 2 * GIB
"""Of memory: a driver with 1 GB of heap, what lies beside it, and a Python worker for each core."""
CGROUP: Final = Path("/sys/fs/cgroup")


def look_at_machine() -> Iterator[Finding]:
    """Cores, then memory."""
    yield cores_of(os.cpu_count() or 1, granted_cores())
    yield memory_of(total_memory(), granted_memory())


def cores_of(there: int, granted: float | None) -> Finding:
    """Whether the background can work beside the batches."""
    limit = granted if granted is not None and granted < there else None
    found = f"{there} cores" if there != 1 else "1 core"
    if limit is not None:
        found += f", of which this container may use {limit:g}"
    if (limit or there) < 2:  # noqa: PLR2004 - one for batches, one beside it
        fix = "give it two or more: on one, checkpoints and compaction run between batches and add to latency"
        return warn("cores", found, fix)
    return ok("cores", found)


def memory_of(there: int | None, granted: int | None) -> Finding:
    """Whether a driver and its workers fit."""
    if there is None:
        return ok("memory", "not known on this system")
    limit = granted if granted is not None and granted < there else None
    found = f"{there / GIB:.1f} GiB"
    if limit is not None:
        found += f", of which this container may use {limit / GIB:.1f} GiB"
    if (limit or there) < LITTLE:
        return warn("memory", found, "2 GiB or more: Spark's JVM takes 1 GiB of heap unless told otherwise")
    return ok("memory", found)


def total_memory() -> int | None:
    """Bytes of the machine; ``None`` where the system does not tell."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def granted_memory(cgroup: Path = CGROUP) -> int | None:
    """Bytes that the container may use; ``None`` without a limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            return int((cgroup / name).read_text(encoding="ascii"))
    return None


def granted_cores(cgroup: Path = CGROUP) -> float | None:
    """Cores that this process may use, by its container and by its affinity; ``None`` without a limit."""
    limits: list[float] = []
    with suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        limits.append(int(quota) / int(period))
    with suppress(AttributeError, OSError):
        limits.append(float(len(os.sched_getaffinity(0))))
    return min(limits, default=None)


# ----------------------------------------------------------------------------------------------------
# Python and the packages that penstock asks for: whether those installed are in its ranges. Knows no Spark.

PACKAGE: Final = "penstock"
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[^]]*])?\s*([^;]*)(?:;(.*))?$")
_EXTRA: Final = re.compile(r"\s*extra\s*==\s*['\"]([\w-]+)['\"]\s*$")
_PART: Final = re.compile(r"(>=|<=|==|!=|<|>)\s*([\d.]+)")
_TESTED: Final = re.compile(r"Programming Language :: Python :: (\d+\.\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A package that is asked for, in which versions, and for which extra (``None``: always)."""

    name: str
    versions: str
    extra: str | None = None


Version = Callable[[str], "str | None"]
"""The version of a package that is installed here."""


def look_at_python() -> Iterator[Finding]:
    """Python, the packages that are always needed, and those of the extras."""
    tested = [found[1] for line in _classifiers() if (found := _TESTED.match(line))]
    yield python_of((sys.version_info.major, sys.version_info.minor), sys.version.split()[0], sys.executable, tested)
    asked = requirements(metadata.requires(PACKAGE) or ())
    yield packages_of(asked, installed)
    yield extras_of(asked, installed)


def installed(name: str) -> str | None:
    """The version of a package, ``None`` if it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def python_of(version: tuple[int, int], text: str, executable: str, tested: Collection[str]) -> Finding:
    """Whether this Python is one that penstock is tested with."""
    found = f"{text} ({executable})"
    known = sorted(tuple(int(part) for part in each.split(".")) for each in tested)
    if known and not known[0] <= version <= known[-1]:
        between = " to ".join(".".join(map(str, end)) for end in (known[0], known[-1]))
        return warn("python", found, f"penstock is tested with Python {between}: make the venv with one of them")
    return ok("python", found)


def requirements(lines: Sequence[str]) -> list[Requirement]:
    """What a package's metadata asks for; what it asks for on some systems only is left out.

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
    """Whether a version is in a range such as ``>=4.1,<5``; marks of pre-releases are not looked at.

    >>> is_within("4.3.0", ">=4.1,<5"), is_within("3.5.1", ">=4.1,<5"), is_within("5.0", "<5")
    (True, False, False)
    """
    return all(_fits(_numbers(version), operator, _numbers(bound)) for operator, bound in _PART.findall(versions))


def packages_of(asked: Sequence[Requirement], version: Version) -> Finding:
    """Whether everything that is always needed is there in its range."""
    needed = [each for each in asked if each.extra is None]
    there = {each.name: version(each.name) for each in needed}
    wrong = [each for each in needed if (now := there[each.name]) is None or not is_within(now, each.versions)]
    found = ", ".join(f"{name} {now or 'is missing'}" for name, now in there.items())
    if wrong:
        wanted = " ".join(f"'{each.name}{each.versions}'" for each in wrong)
        return fail("packages", found, f"pip install {wanted}")
    client = next((name for name in ("pyspark-client", "pyspark-connect") if version(name)), None)
    if client is not None:
        fix = f"pip uninstall {client} and install pyspark again: it makes Spark Connect sessions, which are refused"
        return warn("packages", f"{found}, and {client}", fix)
    return ok("packages", found)


def extras_of(asked: Sequence[Requirement], version: Version) -> Finding:
    """Which extras are installed; none is needed unless a pipeline uses it."""
    extras = sorted({each.extra for each in asked if each.extra is not None})
    there, missing, old = [], [], []
    for extra in extras:
        mine = [each for each in asked if each.extra == extra]
        versions = {each.name: version(each.name) for each in mine}
        if None in versions.values():
            missing.append(extra)
            continue
        there.append(f"{extra} ({', '.join(f'{name} {now}' for name, now in versions.items())})")
        outside = (each for each in mine if not is_within(str(versions[each.name]), each.versions))
        old += [f"'{each.name}{each.versions}'" for each in outside]
    found = "; ".join(
        [
            *there,
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
