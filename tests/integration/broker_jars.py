"""Fetches the jars of a Kafka broker once and keeps them in the user's cache folder. Starts no broker.

``broker_jars.txt`` names each jar and its hash; ``connector_jars.txt`` does so for Spark's Kafka connector, which
benches compare with. Maven brings them where it is installed, otherwise Ivy, which comes with PySpark; each takes them
from wherever it is set up to take jars from. Without a network, a filled cache folder will do:
``$XDG_CACHE_HOME/penstock/kafka-…``, or the same below ``~/.cache``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

BROKER = Path(__file__).with_name("broker_jars.txt")
CONNECTOR = Path(__file__).with_name("connector_jars.txt")
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
"""Of Maven's own plugin, pinned like the jars: each Maven has another default."""


class JarsUnavailable(Exception):
    """The jars are not in the cache, and nothing here could fetch them; the message says what was tried."""


@dataclass(frozen=True, slots=True)
class Jar:
    group: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


def jars_folder(listed: Path = BROKER, name: str = "kafka") -> Path:
    """The folder that holds exactly the listed jars; the first call on a machine fetches them (44 MB for the broker).

    ``name`` is what its own name begins with.

    Safe to call from several processes at once: one fetches, the others wait for it.

    Raises:
        JarsUnavailable: they are not there and cannot be had.
    """
    text = listed.read_text(encoding="utf-8")
    jars = read_list(text)
    folder = cache_folder(os.environ) / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(".lock")):
        if not folder.is_dir():
            _fetch(jars, folder)
    return folder


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where the user's programs keep what can be fetched again."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "penstock"


def read_list(text: str) -> tuple[Jar, ...]:
    rows = [re.split("[: ]", line) for line in text.splitlines() if line and not line.startswith("#")]
    return tuple(Jar(group, name, version, sha256) for group, name, version, sha256 in rows)


def java() -> str:
    """The command that runs Java: of JAVA_HOME, or the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


# ------------------------------------------------------------------------------------------------------------ fetching


def _fetch(jars: tuple[Jar, ...], folder: Path) -> None:
    """Into a folder beside it, which takes the name when all is there: no reader sees half of it."""
    tried: list[str] = []
    for client, command in (("Maven", _maven), ("Ivy", _ivy)):
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as name:
            work = Path(name)
            words = command(jars, work)
            problem = "not installed" if words is None else _run(words, work) or _damage(jars, work / "libs")
            if problem is None:
                (work / "libs").rename(folder)
                return
            tried.append(f"{client}: {problem}")
    msg = (
        f"the jars that tests and benches need could not be fetched into {folder}.\n"
        "They come through Maven, or through the Ivy in PySpark, from the repository that these are set up for;\n"
        "a machine without a way there needs that folder copied from one that has it.\n" + "\n".join(tried)
    )
    raise JarsUnavailable(msg)


def _run(words: list[str], work: Path) -> str | None:
    """What went wrong, or nothing."""
    done = subprocess.run(
        words,
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else f"exit code {done.returncode}: {done.stdout[-2000:]}"


def _damage(jars: tuple[Jar, ...], libs: Path) -> str | None:
    """What is not as listed, or nothing."""
    there = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in libs.iterdir()}
    listed = {jar.file_name: jar.sha256 for jar in jars}
    wrong = sorted(name for name in there.keys() | listed.keys() if there.get(name) != listed.get(name))
    return f"missing, surplus, or not the bytes that are listed: {', '.join(wrong)}" if wrong else None


def _maven(jars: tuple[Jar, ...], work: Path) -> list[str] | None:
    maven = shutil.which("mvn")
    if maven is None:
        return None
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    wanted = "\n".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.name}</artifactId>"
        f"<version>{jar.version}</version>{alone}</dependency>"
        for jar in jars
    )
    (work / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>penstock</groupId><artifactId>broker</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>\n{wanted}\n</dependencies></project>\n",
        encoding="utf-8",
    )
    return [maven, "-q", "-B", COPY, "-DoutputDirectory=libs", "-DincludeScope=runtime"]


def _ivy(jars: tuple[Jar, ...], work: Path) -> list[str] | None:
    ivy = _spark_ivy()
    if ivy is None:
        return None
    wanted = "\n".join(
        f'<dependency org="{jar.group}" name="{jar.name}" rev="{jar.version}" transitive="false" conf="all->master"/>'
        for jar in jars
    )
    (work / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="penstock" module="broker"/>'
        f'<configurations><conf name="all"/></configurations><dependencies>\n{wanted}\n</dependencies></ivy-module>\n',
        encoding="utf-8",
    )
    names = "libs/[artifact]-[revision].[ext]"
    return [java(), "-jar", str(ivy), "-warn", "-ivy", "ivy.xml", "-cache", str(work / "ivy"), "-retrieve", names]


def _spark_ivy() -> Path | None:
    spark = find_spec("pyspark")
    folders = spark.submodule_search_locations if spark else None
    found = [jar for folder in folders or () for jar in Path(folder, "jars").glob("ivy-*.jar")]
    return found[0] if found else None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
