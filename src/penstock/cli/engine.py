"""The JVM under a job, seen from outside: where its log goes, and whether it is alive. Knows nothing of the job."""

from __future__ import annotations

import errno
import os
import shlex
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import StateDirectoryRefused, StorageFailed

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Options that Spark gives its JVM in client mode, besides those of its configuration."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What an operator mends without another folder."""


def log_to_file(job: str, state: str, *, option: str = "--state") -> Path:
    """Let the next JVM write its log into a file beside the state, so that errors of ours come first; its path.

    Args:
        job: whose log it is.
        state: the folder; made if absent.
        option: which of the command line names the folder, or one below it.

    Raises:
        StateDirectoryRefused: the folder cannot be made, or nothing can be written there.
        StorageFailed: there is no room for it.
    """
    folder = Path(tempfile.gettempdir()) if "://" in state else Path(state)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = (folder / f"{job}.engine.log").resolve()
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _no_folder(folder, option, error) from error
    ours = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()} "
    ours += f"-Dpenstock.engine.log={shlex.quote(str(path))}"
    os.environ[_OPTIONS] = " ".join(filter(None, (os.environ.get(_OPTIONS), ours)))
    return path


def _no_folder(folder: Path, option: str, error: OSError) -> StateDirectoryRefused | StorageFailed:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StorageFailed(f"cannot make {folder} of {option}: {reason}; free some space")
    msg = f"cannot write in {folder} of {option}: {reason}; make it a writable folder, or give {option} another one"
    return StateDirectoryRefused(msg)


class EngineWatch:
    """Notices the death of this process's JVM, also while nobody asks anything of it.

    Args:
        died: called on a thread of its own when the JVM ended although nobody called :meth:`release`.
    """

    def __init__(self, died: Callable[[], None]) -> None:
        self._died = died
        self._process: subprocess.Popen[bytes] | None = None
        self._released = threading.Event()

    def begin(self) -> None:
        """Watch the JVM that this process has now; harmless if it is watched already or is another's."""
        if self._process is not None:
            return
        self._process = _jvm()
        if self._process is not None:
            threading.Thread(target=self._wait, name="engine-watch", daemon=True).start()

    def release(self) -> None:
        """From now on it may end."""
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


def _jvm() -> subprocess.Popen[bytes] | None:
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway  # noqa: SLF001 - there is no public way to ask
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    return process
