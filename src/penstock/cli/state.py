"""The commands ``penstock state show`` and ``penstock state query``: state of steps as tables, and SQL over it."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from cyclopts import Parameter
from rich.text import Text

from penstock.admin.state_read import resolve_manifest, state_of, states_of
from penstock.cli.options import STATE, AsJson, JobName, State, session_for
from penstock.cli.output import CommandOutput, ExitCode, Output, UsageError
from penstock.cli.spark_options import NO_OPTIONS, SparkArguments
from penstock.cli.words import count, file_fields, plain_table, size
from penstock.clock import format_time
from penstock.control.client import JobDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from rich.console import JustifyMethod
    from rich.table import Table

    from penstock.admin.state_read import StateReader, StepState
    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.history import History

QUERY_SCHEMA: Final = "penstock.state.query/1"
SHOW_SCHEMA: Final = "penstock.state.show/1"
"""The schemas of the JSON documents: see docs/json.md."""
TABLE_ROWS: Final = 20
"""Rows of a table for people, if there is no ``--limit``."""
At: TypeAlias = Annotated[
    str | None,
    Parameter(help="A checkpoint's number or a savepoint's name; by default the one that the next start continues."),
]


# ---- penstock state show ---------------------------------------------------------------------------------------------


def show(
    job: JobName, /, *, at: At = None, state: State = STATE, as_json: AsJson = False, output: CommandOutput
) -> int:
    """Print which steps hold state at a checkpoint, from the log alone.

    Raises:
        UnknownName: there is no such job or checkpoint; with the nearest name.
        PenstockError: the log cannot be read.
    """
    history = JobDirectory(state, job).read()
    manifest = resolve_manifest(history, at)
    if as_json:
        output.document(SHOW_SCHEMA, **_show_document(history, manifest))
        return ExitCode.ENDED
    steps = states_of(manifest)
    if steps:
        output.result(_show_table(steps))
        for each in steps:
            output.result(Text(f"{each.uid}: {each.schema}"))
    output.result(Text(_summary(history, manifest, steps)))
    return ExitCode.ENDED


def _show_document(history: History, manifest: Manifest) -> dict[str, object]:
    """The fields of the JSON document. Times are microseconds since 1970; files are below the job's directory."""
    return {
        "job": history.job,
        "checkpoint": manifest.checkpoint,
        "kind": manifest.kind.value,
        "completed": manifest.completed,
        "is_restore_point": _is_restore_point(history, manifest),
        "steps": [_step_fields(each) for each in states_of(manifest)],
    }


def _step_fields(step: StepState) -> dict[str, object]:
    return {
        "uid": step.uid,
        "kind": step.kind,
        "ddl": step.schema,
        "rows": step.rows,
        "bytes": step.bytes,
        "layer_count": step.layers,
        "files": [file_fields(file) for file in step.files],
        "by_hand": _by_hand(step.written),
    }


def _by_hand(written: object) -> dict[str, object] | None:
    """Who wrote the state by hand, when, and on which checkpoint, as the log says it."""
    if not isinstance(written, dict):
        return None
    names = {"by": "by", "written": "at", "parent": "on", "rows": "rows"}
    return {name: written.get(recorded) for name, recorded in names.items()}


def _is_restore_point(history: History, manifest: Manifest) -> bool:
    point = history.restore_point
    return point is not None and point.checkpoint == manifest.checkpoint


def _show_table(steps: tuple[StepState, ...]) -> Table:
    table = plain_table(("step", "left"), ("kind", "left"), ("rows", "right"), ("size", "right"), ("layers", "right"))
    for each in steps:
        rows = f"≤ {each.rows:,}" if each.layers > 1 else f"{each.rows:,}"
        table.add_row(each.uid, each.kind, rows, size(each.bytes), str(each.layers))
    return table


def _summary(history: History, manifest: Manifest, steps: tuple[StepState, ...]) -> str:
    following = ", which the next start continues" if _is_restore_point(history, manifest) else ""
    return (
        f"{history.job}: checkpoint {manifest.checkpoint}{following} · {manifest.kind.value}, "
        f"{format_time(manifest.completed)} · state of {count(len(steps), 'step')}"
    )


# ---- penstock state query --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuery:
    """The arguments of the command."""

    job: str
    uid: str
    sql: str | None
    at: str | None
    diff: tuple[str, str] | None
    format: str
    limit: int | None
    to: str | None
    state: str

    @property
    def most(self) -> int | None:
        """The largest number of rows to print or write; ``None`` for all."""
        if self.limit is None:
            return TABLE_ROWS if self.format == "table" else None
        return self.limit or None


def query(  # noqa: PLR0913 - the options of the command
    job: JobName,
    uid: Annotated[str, Parameter(help="Uid of the step.")],
    sql: Annotated[str | None, Parameter(help="A SELECT statement; by default all rows, sorted.")] = None,
    /,
    *,
    at: At = None,
    diff: Annotated[
        tuple[str, str] | None,
        Parameter(negative="", help="Two checkpoints: rows that came, went or changed in between, with _change."),
    ] = None,
    format: Annotated[Literal["table", "csv", "json", "parquet"], Parameter(help="Format of the result.")] = "table",
    limit: Annotated[
        int | None, Parameter(help="Maximum number of rows; 0 is all. By default 20 in a table, all in other formats.")
    ] = None,
    to: Annotated[str | None, Parameter(help="File to write to, instead of stdout; parquet needs one.")] = None,
    spark: SparkArguments = NO_OPTIONS,
    state: State = STATE,
    output: CommandOutput,
) -> int:
    """Run SQL over the state of a step, in the current Spark session or one of its own. Changes nothing.

    Raises:
        UsageError: options exclude each other, or ``sql`` is no SELECT over this table.
        UnknownName: there is no such job, checkpoint or step; with the nearest name.
        PenstockError: the state cannot be read.
    """
    asked = StateQuery(job=job, uid=uid, sql=sql, at=at, diff=diff, format=format, limit=limit, to=to, state=state)
    _check(asked)
    directory = JobDirectory(state, job)
    history = directory.read()
    manifests = [resolve_manifest(history, which) for which in diff or (at,)]
    for manifest in manifests:
        state_of(manifest, uid)  # raises at once if the step is not there, not after Spark has started
    ids = [int(manifest.checkpoint) for manifest in manifests]
    with session_for(output, spark, "state query") as session:
        from penstock.admin.state_read import StateReader

        output.note(_progress(ids, asked), style="dim")
        frame = _query_table(StateReader(session, directory), history, asked)
        _answer(output, _select(session, frame, asked), asked, ids)
    return ExitCode.ENDED


def _answer(output: Output, answer: DataFrame, asked: StateQuery, ids: list[int]) -> None:
    from pyspark.errors import PySparkException

    from penstock.job.failures import to_penstock_error

    try:
        _write_result(output, answer, asked, ids)
    except PySparkException as error:  # such as a division by zero in the query
        raise to_penstock_error(error) from error


def _check(asked: StateQuery) -> None:
    if asked.diff is not None and asked.at is not None:
        msg = "--at and --diff exclude one another. Leave --at out, because --diff names both checkpoints."
        raise UsageError(msg)
    if asked.format == "parquet" and asked.to is None:
        msg = "--format parquet needs a file. Add --to totals.parquet."
        raise UsageError(msg)
    if asked.limit is not None and asked.limit < 0:
        msg = f"--limit is {asked.limit}. It must be a number of rows, or 0 for all."
        raise UsageError(msg)


def _progress(ids: list[int], asked: StateQuery) -> str:
    which = f"checkpoints {ids[0]} and {ids[1]}" if asked.diff else f"checkpoint {ids[0]}"
    return f"reading the state of {asked.uid} at {which} of {asked.job} …"


def _query_table(reader: StateReader, history: History, asked: StateQuery) -> DataFrame:
    from penstock.admin.state_read import diff_state

    if asked.diff is not None:
        return diff_state(reader, history, asked.uid, *asked.diff)
    return reader.rows(resolve_manifest(history, asked.at), asked.uid)


def _select(session: SparkSession, frame: DataFrame, asked: StateQuery) -> DataFrame:
    """The result of the SQL over the table, or the whole table in order."""
    from pyspark.errors import PySparkException

    from penstock.spark.query_log import first_line

    if asked.sql is None:
        return _sorted(frame)
    for name in {f"`{asked.uid}`", plain_name(asked.uid)}:
        frame.createOrReplaceTempView(name)
    try:
        session.sql(f"SELECT * FROM (\n{asked.sql}\n)")  # refuses what is not a query; nothing runs
        return session.sql(asked.sql)
    except PySparkException as error:
        msg = f"This is not a SELECT over {plain_name(asked.uid)} ({', '.join(frame.columns)}): {first_line(error)}"
        raise UsageError(msg) from error


def plain_name(uid: str) -> str:
    """The name of a step as a table name that needs no quotes.

    >>> plain_name("totals-out"), plain_name("2nd.totals")
    ('totals_out', '_2nd_totals')
    """
    name = re.sub(r"\W", "_", uid)
    return f"_{name}" if name[:1].isdigit() else name


def _sorted(frame: DataFrame) -> DataFrame:
    from penstock.operators.aggregates.base import is_ordered
    from penstock.spark.sql import quote_identifier

    names = [quote_identifier(field.name) for field in frame.schema if is_ordered(field.dataType)]
    return frame.orderBy(*names) if names else frame


# ---- the rows of an answer -------------------------------------------------------------------------------------------


def _write_result(output: Output, answer: DataFrame, asked: StateQuery, ids: Sequence[int]) -> None:
    """Write an answer from checkpoints ``ids`` to stdout or into a file, in the format that was asked for."""
    most = asked.most
    found: Any = (answer if most is None else answer.limit(most + 1)).toArrow()
    rows = found if most is None else found.slice(0, most)
    if asked.format == "parquet":
        import pyarrow.parquet

        with _usage_error_if_not_written(asked):
            pyarrow.parquet.write_table(rows, asked.to)
    elif asked.format == "table" and asked.to is None:
        output.result(_rows_table(rows))
        output.result(Text(_footer(rows.num_rows, is_cut=found.num_rows > rows.num_rows)))
        return
    else:
        is_cut = found.num_rows > rows.num_rows
        if asked.format == "json":
            document = _document(rows, answer, asked, ids, is_cut=is_cut)
            text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        else:
            text = _csv(rows)
        if asked.to is None:
            output.text(text)
            return
        with _usage_error_if_not_written(asked):
            Path(asked.to).write_text(text, encoding="utf-8")
    output.note(f"{count(rows.num_rows, 'row')} in {asked.to}")


@contextmanager
def _usage_error_if_not_written(asked: StateQuery) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"--to {asked.to} cannot be written: {error.strerror or error}. Name a file in a folder that exists."
        raise UsageError(msg) from error


def _footer(shown: int, *, is_cut: bool) -> str:
    return f"the first {count(shown, 'row')}; --limit 0 shows all" if is_cut else count(shown, "row")


def _csv(rows: Any) -> str:
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(rows.column_names)
    lines.writerows(["" if value is None else value_text(value) for value in row] for row in _tuples(rows))
    return out.getvalue()


def _document(
    rows: Any, answer: DataFrame, asked: StateQuery, ids: Sequence[int], *, is_cut: bool
) -> Mapping[str, object]:
    return {
        "schema": QUERY_SCHEMA,
        "job": asked.job,
        "uid": asked.uid,
        "checkpoint": ids[-1],
        "compared_checkpoint": ids[0] if len(ids) > 1 else None,
        "columns": [{"name": field.name, "type": field.dataType.simpleString()} for field in answer.schema],
        "answer": [dict(zip(rows.column_names, map(as_json, row), strict=True)) for row in _tuples(rows)],
        "is_cut": is_cut,
    }


def _rows_table(rows: Any) -> Table:
    columns = [column.to_pylist() for column in rows.columns]
    table = plain_table(*zip(rows.column_names, map(_justify, columns), strict=True))
    for row in zip(*columns, strict=True):
        table.add_row(*(Text("NULL", style="dim") if value is None else Text(value_text(value)) for value in row))
    return table


def _justify(values: Sequence[object]) -> JustifyMethod:
    return "right" if any(isinstance(value, int | float | Decimal) for value in values) else "left"


def _tuples(rows: Any) -> Sequence[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def value_text(value: object) -> str:
    """A value as text, in tables and CSV; times are in UTC.

    >>> value_text(datetime(2026, 1, 1, tzinfo=timezone.utc)), value_text([1, None]), value_text(b"ab")
    ('2026-01-01 00:00:00Z', '[1, null]', '0x6162')
    """
    match value:
        case datetime():
            at = value.astimezone(timezone.utc) if value.tzinfo else value
            return f"{at.replace(tzinfo=None)}" + ("Z" if value.tzinfo else "")
        case bytes():
            return f"0x{value.hex()}"
        case list() | dict():
            return json.dumps(as_json(value), ensure_ascii=False)
        case bool():
            return str(value).lower()
        case _:
            return str(value)


def as_json(value: object) -> object:
    """A value for JSON: times in ISO 8601, decimals and numbers that are not finite as text, bytes in base64.

    >>> as_json({"at": datetime(2026, 1, 1, tzinfo=timezone.utc), "of": [math.inf, Decimal("1.10")]})
    {'at': '2026-01-01T00:00:00+00:00', 'of': ['inf', '1.10']}
    """
    made: object
    match value:
        case None | bool() | int() | str():
            made = value
        case float() if math.isfinite(value):
            made = value
        case datetime():
            made = (value.astimezone(timezone.utc) if value.tzinfo else value).isoformat()
        case date():
            made = value.isoformat()
        case bytes():
            made = base64.b64encode(value).decode("ascii")
        case list() | tuple():
            made = [as_json(item) for item in value]
        case dict():
            made = {str(key): as_json(item) for key, item in value.items()}
        case _:
            made = str(value)
    return made
