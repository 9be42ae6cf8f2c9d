"""The Java that Spark would take: where it comes from, and whether it is new enough. Starts no Spark."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.operate.doctor.findings import Finding, fail, ok

OLDEST: Final = 17
"""What Spark 4 runs on at least."""

PATIENCE: Final = 30.0
"""Seconds that ``java -version`` may take."""

_INSTALL: Final = (
    "install Java 17 or newer (Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17; conda: "
    "conda install openjdk) and put it on PATH, or its home into JAVA_HOME"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
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


def find_java(environment: Mapping[str, str]) -> Java:
    """The one that Spark takes: that of ``JAVA_HOME`` if this is set, else the first on ``PATH``."""
    home = environment.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        return _ask("JAVA_HOME", str(program)) if program.is_file() else Java(by="JAVA_HOME", path=None, home=home)
    found = shutil.which("java", path=environment.get("PATH"))
    return Java(by="PATH", path=None) if found is None else _ask("PATH", found)


def java_of(java: Java) -> Finding:
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


def _ask(by: str, path: str) -> Java:
    try:
        done = subprocess.run(
            [path, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Java(by=by, path=path, said=str(error))
    return told_by(by, path, done.stderr + done.stdout)


def told_by(by: str, path: str, said: str) -> Java:
    """What a Java says of itself, whichever vendor's.

    >>> told_by("PATH", "/usr/bin/java", "    java.specification.version = 1.8").version
    8
    """
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", said)
    home = re.search(r"java\.home = (.+)", said)
    return Java(
        by=by,
        path=path,
        home=home[1].strip() if home else None,
        version=int(version[1]) if version else None,
        said=said.strip().split("\n")[0],
    )
