"""Rows of a query's answer as a table for people, CSV, JSON or Parquet. Knows nothing of where they come from."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from contextlib import contextmanager
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from penstock.cli.exits import UsageError
from penstock.cli.shown import plain_table
from penstock.cli.words import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame
    from rich.console import JustifyMethod
    from rich.table import Table

    from penstock.cli.output import Output
    from penstock.cli.state_query import Question

SCHEMA: Final = "penstock.state.query/1"
"""Of the JSON document: see docs/json.md."""


def write_result(output: Output, answer: DataFrame, question: Question, ids: Sequence[int]) -> None:
    """Give the answer over checkpoints ``ids``, in the form that was asked for, to stdout or into a file."""
    most = question.most
    found: Any = (answer if most is None else answer.limit(most + 1)).toArrow()
    rows = found if most is None else found.slice(0, most)
    if question.format == "parquet":
        import pyarrow.parquet

        with _told_if_not_written(question):
            pyarrow.parquet.write_table(rows, question.to)
    elif question.format == "table" and question.to is None:
        output.result(_table(rows))
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
def _told_if_not_written(question: Question) -> Iterator[None]:
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
    lines.writerows(["" if value is None else shown(value) for value in row] for row in _tuples(rows))
    return out.getvalue()


def _document(
    rows: Any, answer: DataFrame, question: Question, ids: Sequence[int], *, is_cut: bool
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


def _table(rows: Any) -> Table:
    columns = [column.to_pylist() for column in rows.columns]
    table = plain_table(*zip(rows.column_names, map(_justify, columns), strict=True))
    for row in zip(*columns, strict=True):
        table.add_row(*(Text("NULL", style="dim") if value is None else Text(shown(value)) for value in row))
    return table


def _justify(values: Sequence[object]) -> JustifyMethod:
    return "right" if any(isinstance(value, int | float | Decimal) for value in values) else "left"


def _tuples(rows: Any) -> Sequence[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def shown(value: object) -> str:
    """A value for people, and in CSV; times in UTC.

    >>> shown(datetime(2026, 1, 1, tzinfo=timezone.utc)), shown([1, None]), shown(b"ab")
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
