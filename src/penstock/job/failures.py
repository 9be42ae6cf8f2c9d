"""Turns any exception into a ``PenstockError``, which says whose fault it is and whether a retry can help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from penstock.errors import (
    EngineDied,
    EngineFailed,
    InternalError,
    LayerMissing,
    PenstockError,
    StorageFailed,
    UserFunctionError,
    is_refused_write,
    sentence,
)
from penstock.graph.nodes import Graph, Keyed, Node, RowWise, describe_step
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.spark.jvm import is_connection_lost, is_spark_error
from penstock.user_code import is_users_code, short_path

_CONTEXT_STOPPED: Final = re.compile(r"stopped SparkContext|SparkContext was shut down|SparkContext has been shutdown")
_USER_SQLSTATE: Final = re.compile(r"SQLSTATE: (?:22|42)\w{3}")
"""22: an expression cannot be computed for a row; 42: a plan is wrong. Both fail again after a retry."""
_SQL_CONTEXT: Final = re.compile(r"== SQL[^\n]*\(line \d+, position \d+\) ==\n((?:[^\n]*\n *\^+ *(?:\n|$))+)")
"""Spark's context of an expression that failed: lines of the SQL text, each with carets below what failed."""
_CALL_CONTEXT: Final = re.compile(r'== DataFrame ==\n"([^"\n]*)" was called from\n([^\n]+):(\d+)')
"""The same where no SQL text made the expression: the function of a Column, and the line that called it."""
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_TO_WORKERS: Final = "install it there, or have 'penstock run … --py-files' take it there."
_PYTHON_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def to_penstock_error(error: BaseException, graph: Graph | None = None) -> PenstockError:
    """The exception as a ``PenstockError``; the caller chains the original.

    Args:
        error: any exception.
        graph: of the job, if it is known. The steps whose SQL failed are named, with their lines.

    >>> to_penstock_error(OSError(28, "No space left on device")).retry
    True
    """
    if isinstance(error, PenstockError):
        return error
    text = str(error)
    # Storage and connectors come before functions: in a Python worker their failures are PythonExceptions too.
    known = (
        _engine_error(error)
        or _storage_error(error, text)
        or _lost_block_error(error)
        or _connector_error(error)
        or _function_error(error, text)
        or _sql_error(text, graph)
    )
    if known is not None:
        return known
    if is_spark_error(error):
        return EngineFailed(f"A Spark job failed: {sentence(_first_line(text) + _root_cause(text))}")
    return InternalError(
        f"{type(error).__name__}: {sentence(_first_line(text))} This is a bug of penstock. Please report it."
    )


def _engine_error(error: BaseException) -> PenstockError | None:
    if is_connection_lost(error) or _CONTEXT_STOPPED.search(str(error)[:2_000]):
        return EngineDied("The JVM under Spark, or its context, is gone. The job begins again in a new process.")
    return None


def _storage_error(error: BaseException, text: str) -> PenstockError | None:
    if is_refused_write(error):
        return StorageFailed(
            f"Storage refused a write: {sentence(_first_line(text))} Free space, or make the folder writable."
        )
    return None


def _lost_block_error(error: BaseException) -> PenstockError | None:
    from penstock.spark.blocks import is_lost_block

    if is_lost_block(error):
        return LayerMissing(
            "A cached block of state is gone, perhaps with a lost executor. The job restores from the durable layers."
        )
    return None


def _connector_error(error: BaseException) -> PenstockError | None:
    from penstock.connectors.files import ranges
    from penstock.connectors.kafka import client
    from penstock.connectors.kinesis import ranges as kinesis_ranges

    return client.explain(error) or ranges.explain(error) or kinesis_ranges.explain(error)


def _function_error(error: BaseException, text: str) -> PenstockError | None:
    if type(error).__name__ == "PythonException" or "PythonException" in text[:2_000]:
        missing = _NO_MODULE.search(text)
        hint = f". If workers lack {missing[1]}, {_TO_WORKERS}" if missing is not None else ""
        return UserFunctionError(f"A function of the pipeline raised in a Spark worker: {_python_failure(text)}{hint}")
    return None


def _python_failure(text: str) -> str:
    """The last frame of the user's own code in a worker's traceback, and the exception that it raised."""
    frames = [frame for frame in _PYTHON_FRAME.findall(text) if is_users_code(frame[0])]
    raised = [line.strip() for line in text.splitlines() if re.match(r"\s*[A-Za-z_.]*(?:Error|Exception)\b", line)]
    place = f"{short_path(frames[-1][0])}:{frames[-1][1]} in {frames[-1][2]}: " if frames else ""
    own = [line for line in raised if "PythonException" not in line and "SparkException" not in line]
    return place + (own[-1] if own else _first_line(text))[:400]


def _sql_error(text: str, graph: Graph | None) -> PenstockError | None:
    if not _USER_SQLSTATE.search(text):
        return None
    reason = f"cannot be computed: {_first_line(text)}"
    for line, fragment in _failed_sql(text):
        steps = _steps_with(line, graph) or _steps_with(fragment, graph)
        if steps:
            places = " or ".join(f"{describe_step(step)} at {step.origin}" for step in steps)
            return UserFunctionError(f"{fragment!r} in {places} {reason}")
    called = _CALL_CONTEXT.search(text)
    if called is not None:
        return UserFunctionError(f"{called[1]!r} at {short_path(called[2].strip())}:{called[3]} {reason}")
    return UserFunctionError(f"An expression of the pipeline {reason}")


def _failed_sql(text: str) -> Iterator[tuple[str, str]]:
    """The lines of SQL that an error's contexts show, and what of them failed; blanks count as one."""
    for context in _SQL_CONTEXT.finditer(text):
        lines = context[1].splitlines()
        pairs = list(zip(lines[::2], lines[1::2], strict=False))
        failed = " ".join(line[carets.index("^") : len(carets.rstrip())] for line, carets in pairs)
        yield _even(" ".join(line for line, _ in pairs)), _even(failed)


def _steps_with(sql: str, graph: Graph | None) -> list[Node]:
    """The steps whose text, as the user wrote it, has this SQL in it; none for a mere name."""
    if graph is None or sql.replace("`", "").isidentifier():
        return []
    return [node for node in graph.nodes if any(sql in _even(text) for text in _texts(node))]


def _texts(node: Node) -> Iterator[str]:
    if isinstance(node, RowWise):
        yield node.text
    elif isinstance(node, Keyed) and isinstance(node.spec, WindowAggregate):
        spec = node.spec
        parts = [expression for _, expression in spec.keys]
        for aggregate in spec.aggregates:
            parts += [*aggregate.of, *aggregate.conditions, *(() if aggregate.by is None else (aggregate.by,))]
        parts.append(getattr(spec.window, "by", None) or "")
        yield from (part for part in parts if isinstance(part, str))


def _even(text: str) -> str:
    return " ".join(text.split())


def _first_line(text: str) -> str:
    """The first line that says something, without what py4j puts before it; cut to 400 characters."""
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith(("An error occurred while calling", "at "))]
    return ((useful or lines or ["no message"])[0])[:400]


def _root_cause(text: str) -> str:
    """The last cause of a Java stack trace, as the end of a sentence; empty if there is none."""
    causes = re.findall(r"^\s*Caused by: (.*)$", text, re.MULTILINE)
    return f" (caused by {causes[-1][:200]})" if causes else ""
