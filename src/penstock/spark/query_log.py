"""What Spark says about a failed query: the line that messages show, and its own log, silenced meanwhile."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""They print each error that names a place in a query, with all frames of the JVM, when PySpark catches it."""
_OWN_THREADS: Final = "penstock-"
_quiet = threading.local()


def first_line(error: object) -> str:
    r"""Return the first line of an error's text, without Spark's codes, the plan that follows and the full stop.

    >>> first_line("[PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'. SQLSTATE: 42601 (line 1, pos 9)\n== SQL ==")
    "Syntax error at or near 'FORM'. (line 1, pos 9)"
    """
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    first = lines[0] if lines else "no message"
    return re.sub(r"\s*SQLSTATE: \w+", "", re.sub(r"^\[[A-Z_.0-9]+\]\s*", "", first)).strip(" ;.")[:500]


def install_quiet_threads() -> None:
    """Silence the log on the threads of jobs: the job reports their errors."""
    from pyspark.logger import PySparkLogger

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_passes)  # a filter that is there already is not added again


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log on this thread within the block, whose errors are reported by the caller."""
    install_quiet_threads()
    depth = getattr(_quiet, "depth", 0)
    _quiet.depth = depth + 1
    try:
        yield
    finally:
        _quiet.depth = depth


def _passes(record: logging.LogRecord) -> bool:
    is_own = (record.threadName or "").startswith(_OWN_THREADS)
    return not is_own and not getattr(_quiet, "depth", 0)  # a record is filtered on the thread that logs it
