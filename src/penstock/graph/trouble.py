"""Says in the user's words what went wrong while a step was built: line, step, nearest columns; no trace of the JVM."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Final

from penstock.errors import GraphError, PenstockError, SchemaMismatch, UserFunctionError
from penstock.graph.nodes import Node, Origin
from penstock.graph.origin import raised_at
from penstock.graph.steps import title

_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_COLUMNS_SHOWN: Final = 20


@contextmanager
def told(node: Node, columns: Sequence[str] = ()) -> Iterator[None]:
    """Around the building of a step: whatever is raised becomes an error with the step and the user's line."""
    try:
        with _quiet():
            yield
    except PenstockError as error:
        error.where = error.where or str(node.origin)
        error.uid = error.uid or getattr(node, "uid", None)
        raise
    except Exception as error:
        raise _explained(error, node, columns) from error


def _explained(error: Exception, node: Node, columns: Sequence[str]) -> PenstockError:
    from pyspark.errors import AnalysisException, ParseException

    uid, where = getattr(node, "uid", None), str(node.origin)
    inside = raised_at(error)
    place = f" ({inside})" if inside and getattr(node, "verb", None) == "transform" else ""
    if isinstance(error, (AnalysisException, ParseException)):
        missing = _missing_column(error)
        if missing is not None:
            return SchemaMismatch(f"{title(node)}: {_no_column(missing, columns)}{place}", uid=uid, where=where)
        return GraphError(f"{title(node)}: {_first_line(error)}{place}", uid=uid, where=where)
    msg = f"{title(node)} raised {type(error).__name__}: {_first_line(error)}{place}"
    return UserFunctionError(msg, uid=uid, where=where)


def _missing_column(error: Exception) -> str | None:
    condition = getattr(error, "getCondition", lambda: None)() or ""
    if not condition.startswith(("UNRESOLVED_COLUMN", "UNRESOLVED_USING_COLUMN", "FIELD_NOT_FOUND")):
        return None
    given: dict[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    name = given.get("objectName") or given.get("colName") or given.get("fieldName")
    return str(name).replace("`", "") if name else None


def _no_column(name: str, columns: Sequence[str]) -> str:
    near = get_close_matches(name.rpartition(".")[2], columns, n=3, cutoff=0.6)
    meant = f"; did you mean {' or '.join(near)}?" if near else ";"
    shown = ", ".join(columns[:_COLUMNS_SHOWN]) + (", …" if len(columns) > _COLUMNS_SHOWN else "")
    return f"there is no column {name!r}{meant} there are {shown}" if columns else f"there is no column {name!r}"


def _first_line(error: Exception) -> str:
    """Without Spark's codes and the plan that follows."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    first = lines[0] if lines else "no message"
    return re.sub(r"\s*SQLSTATE: \w+", "", re.sub(r"^\[[A-Z_.0-9]+\]\s*", "", first)).strip(" ;")[:500]


@contextmanager
def _quiet() -> Iterator[None]:
    """PySpark logs each failed analysis with the JVM's whole trace; here the failure is told in a better way."""
    from pyspark.logger import PySparkLogger

    thread = threading.get_ident()

    def passes(record: logging.LogRecord) -> bool:
        return record.thread != thread

    loggers: list[logging.Logger] = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(passes)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(passes)


@contextmanager
def told_table(name: str, origin: Origin) -> Iterator[None]:
    """Around the reading of a declared table."""
    try:
        with _quiet():
            yield
    except PenstockError as error:
        error.where = error.where or str(origin)
        raise
    except Exception as error:
        msg = f"table {name!r} cannot be read: {_first_line(error)}"
        raise GraphError(msg, where=str(origin)) from error
