"""The archive of Spark's classes that a JVM maps instead of loading and verifying each class: where, which, whole.

Java calls it a dynamic class data sharing archive. It fits one Java and one class path, so its name has a digest of
both. ``penstock.admin.warming`` makes it, and ``spark/jvm.py`` starts JVMs with it.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import shlex
import shutil
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from penstock.errors import SettingsError

VARIABLE: Final = "PENSTOCK_CLASS_ARCHIVE"
"""Variable that says what may be done with the archive."""
USES: Final = ("make", "use", "off")
"""Its values: use the archive and make it where there is none (the default), only use it, or neither."""
MAX_ARCHIVES: Final = 3
"""Number of archives that are kept: one for each Spark and Java that was used last."""
RETRY_SECONDS: Final = 24 * 3600
"""Seconds after which an archive that could not be made is tried again without being asked for."""
_MAGIC: Final = 0xF00BABA8.to_bytes(4, "little")
"""The beginning of a dynamic archive, which Java writes last."""  # dynamic_archive in cdsConstants.hpp
_CHUNK_BYTES: Final = 1 << 20
_AOT_JAVA: Final = 25
"""The first Java that logs what it says about archives under the tag ``aot`` too."""
_OPTION_VARIABLES: Final = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
_CLASS_PATH_VARIABLES: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_PREPEND_CLASSES")
_CLASS_PATH_SETTING: Final = "spark.driver.extraClassPath"
_JAVA_OPTIONS_SETTINGS: Final = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_OTHER_ARCHIVE: Final = re.compile(r"-Xshare|SharedArchive|ArchiveClassesAtExit|AOT(Cache|Mode|Config)")
_OTHER_LAYOUT: Final = re.compile(r"UseZGC|UseCompressed|ObjectAlignmentInBytes|UseCompactObjectHeaders")
"""Options that change how Java lays out objects."""


def archive_use(environment: Mapping[str, str]) -> str:
    """What may be done with the archive, one of ``USES``.

    Raises:
        SettingsError: the variable has another value.

    >>> archive_use({}), archive_use({"PENSTOCK_CLASS_ARCHIVE": "off"})
    ('make', 'off')
    """
    value = environment.get(VARIABLE) or USES[0]
    if value not in USES:
        msg = f"{VARIABLE} is {value!r}, but must be one of {', '.join(USES)}. Correct it or unset it."
        raise SettingsError(msg)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """The archive for one Java and one class path, whether it has been made or not.

    Attributes:
        folder: the user's cache folder, where the archives lie.
        key: digest of everything that it must fit.
        java: major version of Java.
    """

    folder: Path
    key: str
    java: int

    @property
    def is_there(self) -> bool:
        """Whether there is a file with its name, whole or not."""
        return any(self.folder.glob(f"spark-{self.key}-*.jsa"))

    def find(self) -> Path | None:
        """The archive, if one is there that is whole and this user's; a damaged one is deleted.

        Reads the whole file: Java maps it as it is, and some damages would end the JVM. What is read stays in memory
        for the JVM.
        """
        if not _is_private(self.folder):
            return None
        for path in sorted(self.folder.glob(f"spark-{self.key}-*.jsa")):
            if not _is_private(path):
                continue
            with suppress(OSError):
                if _has_magic(path) and path.stem.endswith(f"-{_checksum(path)}"):
                    os.utime(path)  # it was used: see _remove_others
                    return path
                path.unlink()
        return None

    def options_to_use(self, path: Path) -> str:
        """Options of a JVM that uses the archive, or says nothing and loads its classes if it cannot."""
        return f"{self._quiet} -Xshare:auto -XX:SharedArchiveFile={shlex.quote(str(path))}"

    def options_to_make(self, unfinished: Path) -> str:
        """Options of a JVM that writes what it has loaded when it ends."""
        return f"{self._quiet} -XX:ArchiveClassesAtExit={shlex.quote(str(unfinished))}"

    @property
    def _quiet(self) -> str:
        return "-Xlog:cds*=off" if self.java < _AOT_JAVA else "-Xlog:cds*=off -Xlog:aot*=off"

    # ---- making ------------------------------------------------------------------------------------------------------

    @property
    def _lock(self) -> Path:
        return self.folder / f".spark-{self.key}.lock"

    def is_due(self, now: float) -> bool:
        """Whether nobody has tried to make the archive lately.

        Args:
            now: seconds since 1970.
        """
        try:
            return now - self._lock.stat().st_mtime >= RETRY_SECONDS
        except OSError:
            return True

    @contextmanager
    def making(self) -> Iterator[Path | None]:
        """Context in which this process alone makes the archive: the path to write; ``None`` if another makes it.

        The file is there for others only after ``publish``. It is deleted at the end if it was not published.

        Raises:
            OSError: nothing can be written in the folder.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(self.folder):
            msg = f"{self.folder} is another user's, or others may write there"
            raise PermissionError(msg)
        with self._lock.open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            os.utime(lock.fileno())
            unfinished = self.folder / f".spark-{self.key}.unfinished"
            unfinished.unlink(missing_ok=True)  # of a process that was killed: the lock says that it is gone
            try:
                yield unfinished
            finally:
                unfinished.unlink(missing_ok=True)

    def publish(self, unfinished: Path) -> Path | None:
        """Give what a JVM has written its name, and remove what it replaces; ``None`` if it is not whole.

        Raises:
            OSError: the folder cannot be changed.
        """
        if not unfinished.is_file() or not _has_magic(unfinished):
            return None
        path = self.folder / f"spark-{self.key}-{_checksum(unfinished)}.jsa"
        unfinished.replace(path)
        self._remove_others(path)
        return path

    def _remove_others(self, newest: Path) -> None:
        """Remove archives of this key that are older, and those of others that were used longest ago."""
        with suppress(OSError):
            found = sorted(self.folder.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
            same = [path for path in found if path.name.startswith(f"spark-{self.key}-") and path != newest]
            others = [path for path in found if path != newest and path not in same]
            for path in (*same, *others[MAX_ARCHIVES - 1 :]):
                path.unlink(missing_ok=True)


def archive_options(environment: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """Options with which a JVM that is started now uses its archive; empty if there is none, or it is switched off.

    Args:
        environment: variables.
        settings: of Spark's configuration.

    Raises:
        SettingsError: ``VARIABLE`` has a value that is not known.
    """
    if archive_use(environment) == "off":
        return ""
    archive = class_archive(environment, settings)
    found = None if isinstance(archive, str) else archive.find()
    return "" if isinstance(archive, str) or found is None else archive.options_to_use(found)


# ---- which one -------------------------------------------------------------------------------------------------------


def class_archive(environment: Mapping[str, str], settings: Mapping[str, str]) -> ClassArchive | str:
    """The archive for a JVM that is started now, or why there can be none.

    Args:
        environment: variables.
        settings: of Spark's configuration.
    """
    try:
        return _found(environment, settings)
    except _NoArchive as error:
        return str(error)
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"


class _NoArchive(Exception):
    """There can be no archive; the message says why."""


def _found(environment: Mapping[str, str], settings: Mapping[str, str]) -> ClassArchive:
    _refuse_options(environment, settings)
    java, spark = _java_home(environment), _spark_home(environment)
    conf = Path(environment.get("SPARK_CONF_DIR") or spark / "conf")
    if conf.is_dir() and any(conf.iterdir()):  # Java refuses such a class path
        msg = f"{conf} is a folder with files on the class path, and Java archives jars alone."
        raise _NoArchive(msg)
    release = (java / "release").read_text(encoding="utf-8")
    version = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    if version is None:
        msg = f"{java}/release does not say the version of Java."
        raise _NoArchive(msg)
    parts: list[object] = [str(java), release, str(spark), str(conf)]
    parts += [_stamp(java / "lib" / "server" / name) for name in ("libjvm.so", "libjvm.dylib", "classes.jsa")]
    parts += [_stamp(spark / "jars" / jar) for jar in os.listdir(spark / "jars")]  # in the order that Java takes them
    key = sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return ClassArchive(folder=_cache_folder(environment), key=key, java=int(version[1]))


def _refuse_options(environment: Mapping[str, str], settings: Mapping[str, str]) -> None:
    options = {name: environment.get(name, "") for name in _OPTION_VARIABLES}
    options |= {name: settings.get(name, "") for name in _JAVA_OPTIONS_SETTINGS}
    for name, text in options.items():
        if _OTHER_ARCHIVE.search(text):
            msg = f"{name} chooses an archive itself."
            raise _NoArchive(msg)
        if _OTHER_LAYOUT.search(text):
            msg = f"{name} changes how Java lays out objects, which an archive cannot follow."
            raise _NoArchive(msg)
    class_path = {name: environment.get(name) for name in _CLASS_PATH_VARIABLES}
    for name, value in (class_path | {_CLASS_PATH_SETTING: settings.get(_CLASS_PATH_SETTING)}).items():
        if value:
            msg = f"{name} is set, which changes the class path."
            raise _NoArchive(msg)


def _java_home(environment: Mapping[str, str]) -> Path:
    """The home of the Java that Spark takes, if it is one that makes archives."""
    home = environment.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else shutil.which("java", path=environment.get("PATH"))
    found = Path(os.path.realpath(program)).parent.parent if program is not None else Path("/")
    if not (found / "release").is_file() or not (found / "lib" / "server" / "classes.jsa").is_file():
        named = f"JAVA_HOME is {home!r}" if home else f"JAVA_HOME is not set, and java is that of {str(found)!r}"
        msg = f"{named}, where no file 'release' or no archive of Java's own classes is. Install a whole JDK or JRE."
        raise _NoArchive(msg)
    return found


def _spark_home(environment: Mapping[str, str]) -> Path:
    package = importlib.util.find_spec("pyspark")
    of_package = Path(package.origin).parent if package is not None and package.origin is not None else Path("/")
    home = Path(environment["SPARK_HOME"]) if environment.get("SPARK_HOME") else of_package
    if not (home / "jars").is_dir():
        named = "SPARK_HOME" if environment.get("SPARK_HOME") else "The folder of PySpark"
        msg = f"{named} is {str(home)!r}, which has no folder of jars."
        raise _NoArchive(msg)
    return home


def _cache_folder(environment: Mapping[str, str]) -> Path:
    chosen = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):  # the standard has relative ones ignored
        return Path(chosen, "penstock")
    home = environment.get("HOME", "")
    if not os.path.isabs(home):
        msg = "The user has no home folder, and XDG_CACHE_HOME is not set."
        raise _NoArchive(msg)
    return Path(home, ".cache", "penstock")


def _stamp(path: Path) -> tuple[str, int, int]:
    """Name, size and time of a file; Java compares both for each jar."""
    try:
        status = path.stat()
    except OSError:
        return path.name, 0, 0
    return path.name, status.st_size, status.st_mtime_ns


def _is_private(path: Path) -> bool:
    """Whether only this user can write there: a JVM runs what an archive says."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _has_magic(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _checksum(path: Path) -> str:
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found = zlib.crc32(chunk, found)
    return f"{found:08x}"
