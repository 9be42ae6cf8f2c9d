"""Penstock state show, query."""

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

from cyclopts import App, Parameter
from rich.text import Text

from penstock.admin.state_read import resolve_manifest, state_of, states_of
from penstock.cli.options import STATE, AsJson, JobName, State, epilogue, session_for
from penstock.cli.output import ExitCode, Output, UsageError
from penstock.cli.words import count, file_fields, plain_table, size, when
from penstock.control.client import JobDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from rich.console import JustifyMethod
    from rich.table import Table

    from penstock.admin.state_read import StateReader, StepState
    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.history import History


# ----------------------------------------------------------------------------------------------------
# ``penstock state``: its words and options.

STATE_HELP: Final = """\
State of steps as tables: what there is, and SQL over it, of a running job or a dead one."""
SHOW: Final = """\
Show which steps hold state at a checkpoint, and how much. Reads the log alone; no Spark."""
QUERY: Final = """\
Query the state of a step: one row for each key and open window, aggregates finished.

The table is named as the step (in backticks, or with _ for what no name can have). Spark runs the query in this
process, which takes some seconds to start; nothing is claimed or changed, and the job may run."""
STATE_EXAMPLES: Final = """\
Examples:
  penstock state show orders --state ./state
  penstock state query orders totals "SELECT * FROM totals ORDER BY n DESC" --state ./state"""
SHOW_EXAMPLES: Final = """\
Examples:
  penstock state show orders --state ./state
  penstock state show orders --at before-v2 --json | jq -r '.steps[] | select(.uid == "totals") | .files[].path'"""
QUERY_EXAMPLES: Final = """\
Examples:
  penstock state query orders totals --state ./state
  penstock state query orders totals "SELECT user, n FROM totals ORDER BY n DESC LIMIT 10"
  penstock state query orders totals --at before-v2 --format csv > totals.csv
  penstock state query orders totals --diff 41 42
  penstock state query orders totals --format parquet --to totals.parquet"""
At: TypeAlias = Annotated[
    str | None, Parameter(help="A checkpoint's number or a savepoint's name; what the next start continues if absent.")
]


def add_state(app: App, output: Output) -> None:
    """Add ``state`` with ``show`` and ``query``."""
    family = App(name="state", help=STATE_HELP, help_epilogue=epilogue(STATE_EXAMPLES), version_flags=[])
    app.command(family)

    def show(job: JobName, /, *, at: At = None, state: State = STATE, as_json: AsJson = False) -> int:

        return show_state(output, job=job, state=state, at=at, as_json=as_json)

    def query(  # noqa: PLR0913 - the options of the command
        job: JobName,
        uid: Annotated[str, Parameter(help="The step.")],
        sql: Annotated[str | None, Parameter(help="A SELECT; all rows, sorted, if absent.")] = None,
        /,
        *,
        at: At = None,
        diff: Annotated[
            tuple[str, str] | None,
            Parameter(negative="", help="Two checkpoints: rows that came, went or changed in between, with _change."),
        ] = None,
        format: Annotated[Literal["table", "csv", "json", "parquet"], Parameter(help="Of the result.")] = "table",
        limit: Annotated[
            int | None, Parameter(help="Most rows; 0 is all. 20 in a table, all in other formats, if absent.")
        ] = None,
        to: Annotated[str | None, Parameter(help="File to write to, instead of stdout; parquet needs one.")] = None,
        state: State = STATE,
    ) -> int:

        question = StateQuery(
            job=job, uid=uid, sql=sql, at=at, diff=diff, format=format, limit=limit, to=to, state=state
        )
        return query_state(output, question)

    family.command(show, help=SHOW, help_epilogue=epilogue(SHOW_EXAMPLES))
    family.command(query, help=QUERY, help_epilogue=epilogue(QUERY_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# Rows of a query's answer as a table for people, CSV, JSON or Parquet. Knows nothing of where they come from.

SCHEMA: Final = "penstock.state.query/1"
"""Of the JSON document: see docs/json.md."""


def write_result(output: Output, answer: DataFrame, question: StateQuery, ids: Sequence[int]) -> None:
    """Give the answer over checkpoints ``ids``, in the form that was asked for, to stdout or into a file."""
    most = question.most
    found: Any = (answer if most is None else answer.limit(most + 1)).toArrow()
    rows = found if most is None else found.slice(0, most)
    if question.format == "parquet":
        import pyarrow.parquet

        with _told_if_not_written(question):
            pyarrow.parquet.write_table(rows, question.to)
    elif question.format == "table" and question.to is None:
        output.result(_rows_table(rows))
        output.result(Text(_footer(rows.num_rows, is_cut=found.num_rows > rows.num_rows)))
        return
    else:
        is_cut = found.num_rows > rows.num_rows
        if question.format == "json":
            told = _document(rows, answer, question, ids, is_cut=is_cut)
            text = json.dumps(told, indent=2, ensure_ascii=False) + "\n"
        else:
            text = _csv(rows)
        if question.to is None:
            output.out.file.write(text)
            return
        with _told_if_not_written(question):
            Path(question.to).write_text(text, encoding="utf-8")
    output.note(f"{count(rows.num_rows, 'row')} in {question.to}")


@contextmanager
def _told_if_not_written(question: StateQuery) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"--to {question.to} cannot be written ({error.strerror or error}): name a file in a folder that is there"
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
    rows: Any, answer: DataFrame, question: StateQuery, ids: Sequence[int], *, is_cut: bool
) -> Mapping[str, object]:
    return {
        "schema": SCHEMA,
        "job": question.job,
        "uid": question.uid,
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
    """A value for people, and in CSV; times in UTC.

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
    """A value as JSON has it: times as ISO 8601, decimals and what is no number as text, bytes in base64.

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


# ----------------------------------------------------------------------------------------------------
# ``penstock state query``: SQL over the state of a step, run by a Spark of its own. Claims and changes nothing.

TABLE_ROWS = 20
"""Rows of a table for people, unless they say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuery:
    """What is asked, as on the command line."""

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
        """Rows to give at most; ``None`` for all."""
        if self.limit is None:
            return TABLE_ROWS if self.format == "table" else None
        return self.limit or None


def query_state(output: Output, question: StateQuery) -> int:
    """Answer it.

    Raises:
        UsageError: options that exclude one another, or what is no SELECT over this table.
        UnknownName: no such job, checkpoint or step; with the nearest.
        PenstockError: the state cannot be read.
    """
    _check(question)
    directory = JobDirectory(question.state, question.job)
    history = directory.read()
    manifests = [resolve_manifest(history, at) for at in question.diff or (question.at,)]
    for manifest in manifests:
        state_of(manifest, question.uid)  # what is not there is said at once, not after Spark has started
    ids = [int(manifest.checkpoint) for manifest in manifests]
    with session_for(output, "state query") as session:
        from penstock.admin.state_read import StateReader

        output.note(_progress(ids, question), style="dim")
        frame = _query_table(StateReader(session, directory), history, question)
        _answer(output, _select(session, frame, question), question, ids)
    return ExitCode.ENDED


def _answer(output: Output, answer: DataFrame, question: StateQuery, ids: list[int]) -> None:
    from pyspark.errors import PySparkException

    from penstock.job.failures import to_penstock_error

    try:
        write_result(output, answer, question, ids)
    except PySparkException as error:  # such as a division by zero in the query
        raise to_penstock_error(error) from error


def _check(question: StateQuery) -> None:
    if question.diff is not None and question.at is not None:
        msg = "--at and --diff exclude one another: --diff names both checkpoints itself"
        raise UsageError(msg)
    if question.format == "parquet" and question.to is None:
        msg = "--format parquet needs a file: add --to totals.parquet"
        raise UsageError(msg)
    if question.limit is not None and question.limit < 0:
        msg = f"--limit is {question.limit}, but must be a number of rows, or 0 for all"
        raise UsageError(msg)


def _progress(ids: list[int], question: StateQuery) -> str:
    which = f"checkpoints {ids[0]} and {ids[1]}" if question.diff else f"checkpoint {ids[0]}"
    return f"reading the state of {question.uid} at {which} of {question.job} …"


def _query_table(reader: StateReader, history: History, question: StateQuery) -> DataFrame:
    from penstock.admin.state_read import diff_state

    if question.diff is not None:
        return diff_state(reader, history, question.uid, *question.diff)
    return reader.rows(resolve_manifest(history, question.at), question.uid)


def _select(session: SparkSession, frame: DataFrame, question: StateQuery) -> DataFrame:
    """The user's query over the table, or all of it in order."""
    from pyspark.errors import PySparkException

    if question.sql is None:
        return _sorted(frame)
    for name in {f"`{question.uid}`", plain_name(question.uid)}:
        frame.createOrReplaceTempView(name)
    try:
        session.sql(f"SELECT * FROM (\n{question.sql}\n)")  # only a query can stand there; nothing runs
        return session.sql(question.sql)
    except PySparkException as error:
        msg = f"this is no SELECT over {plain_name(question.uid)} ({', '.join(frame.columns)}): {_first_line(error)}"
        raise UsageError(msg) from error


def plain_name(uid: str) -> str:
    """The step's name as a table can be called without quotes.

    >>> plain_name("totals-out"), plain_name("2nd.totals")
    ('totals_out', '_2nd_totals')
    """
    name = re.sub(r"\W", "_", uid)
    return f"_{name}" if name[:1].isdigit() else name


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]


def _sorted(frame: DataFrame) -> DataFrame:
    from penstock.operators.aggregates.base import is_ordered
    from penstock.spark.sql import quote_identifier

    names = [quote_identifier(field.name) for field in frame.schema if is_ordered(field.dataType)]
    return frame.orderBy(*names) if names else frame


# ----------------------------------------------------------------------------------------------------
# ``penstock state show``: which steps hold state at a checkpoint, from the log alone. No Spark, writes nothing.

SHOW_SCHEMA: Final = "penstock.state.show/1"
"""Of the JSON document: see docs/json.md."""


def show_state(output: Output, *, job: str, state: str, at: str | None, as_json: bool) -> int:
    """Print it.

    Raises:
        UnknownName: there is no such job or checkpoint; with the nearest name.
        PenstockError: the log cannot be read.
    """
    history = JobDirectory(state, job).read()
    manifest = resolve_manifest(history, at)
    if as_json:
        output.document(SHOW_SCHEMA, **document(history, manifest))
        return ExitCode.ENDED
    held = states_of(manifest)
    if held:
        output.result(_show_table(held))
        for each in held:
            output.result(Text(f"{each.uid}: {each.schema}"))
    output.result(Text(_summary(history, manifest, held)))
    return ExitCode.ENDED


def document(history: History, manifest: Manifest) -> dict[str, object]:
    """The JSON document's fields. Times are microseconds since 1970; files are below the job's directory."""
    return {
        "job": history.job,
        "checkpoint": manifest.checkpoint,
        "kind": manifest.kind.value,
        "completed": manifest.completed,
        "is_restore_point": _is_restore_point(history, manifest),
        "steps": [_step(each) for each in states_of(manifest)],
    }


def _step(held: StepState) -> dict[str, object]:
    return {
        "uid": held.uid,
        "kind": held.kind,
        "ddl": held.schema,
        "rows": held.rows,
        "bytes": held.bytes,
        "layer_count": held.layers,
        "files": [file_fields(file) for file in held.files],
        "by_hand": _by_hand(held.written),
    }


def _by_hand(written: object) -> dict[str, object] | None:
    """Who wrote it, when, upon which checkpoint; as the log says it."""
    if not isinstance(written, dict):
        return None
    names = {"by": "by", "written": "at", "parent": "on", "rows": "rows"}
    return {name: written.get(recorded) for name, recorded in names.items()}


def _is_restore_point(history: History, manifest: Manifest) -> bool:
    point = history.restore_point
    return point is not None and point.checkpoint == manifest.checkpoint


def _show_table(held: tuple[StepState, ...]) -> Table:
    table = plain_table(("step", "left"), ("kind", "left"), ("rows", "right"), ("size", "right"), ("layers", "right"))
    for each in held:
        rows = f"≤ {each.rows:,}" if each.layers > 1 else f"{each.rows:,}"
        table.add_row(each.uid, each.kind, rows, size(each.bytes), str(each.layers))
    return table


def _summary(history: History, manifest: Manifest, held: tuple[StepState, ...]) -> str:
    following = ", which the next start continues" if _is_restore_point(history, manifest) else ""
    return (
        f"{history.job}: checkpoint {manifest.checkpoint}{following} · {manifest.kind.value}, "
        f"{when(manifest.completed)} · state of {count(len(held), 'step')}"
    )
