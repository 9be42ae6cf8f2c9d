"""The JVM under a job, seen from outside: where its log goes, and whether it is alive. Knows nothing of the job."""

from __future__ import annotations

import os
import shlex
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Options that Spark gives its JVM in client mode, besides those of its configuration."""


def log_to_file(job: str, state: str) -> Path:
    """Let the next JVM write its log into a file beside the state, so that errors of ours come first; its path."""
    folder = Path(tempfile.gettempdir()) if "://" in state else Path(state)
    folder.mkdir(parents=True, exist_ok=True)
    path = (folder / f"{job}.engine.log").resolve()
    ours = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()} "
    ours += f"-Dpenstock.engine.log={shlex.quote(str(path))}"
    os.environ[_OPTIONS] = " ".join(filter(None, (os.environ.get(_OPTIONS), ours)))
    return path


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
