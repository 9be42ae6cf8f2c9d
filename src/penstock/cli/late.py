"""``penstock late``: rows that the last run put aside, and where they went. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.cli.exits import ExitCode
from penstock.cli.shown import as_of, number, plain_table
from penstock.job.numbers import outlet_fields
from penstock.operate.directory import JobDirectory
from penstock.operate.lateness import put_aside
from penstock.operate.standing import standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from penstock.cli.output import Output
    from penstock.operate.lateness import PutAside
    from penstock.runtime.clock import Clock

SCHEMA: Final = "penstock.late/1"
"""Of the JSON document: see docs/json.md."""


def show_late(output: Output, *, job: str, state: str, as_json: bool, clock: Clock | None = None) -> int:
    """Print them.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        CheckpointError: the log cannot be read.
    """
    now = standing(JobDirectory(state, job, clock=clock))
    found = put_aside(now)
    if as_json:
        fields: dict[str, object] = {"job": job, "is": now.being.value, "doing": now.doing}
        aside = [put_aside_fields(each) for each in found]
        output.document(SCHEMA, **fields, numbers_age_seconds=now.hint_age, put_aside=aside)
        return ExitCode.ENDED
    if found:
        output.result(table_of(found))
    elif now.hint is not None:
        output.result(Text(f"{job} puts no rows aside: it has no step that could"))
    output.result(Text(f"{job}: {now.word} · {as_of(now)}"))
    return ExitCode.ENDED


def put_aside_fields(each: PutAside) -> dict[str, object]:
    """What a step has put aside, in a document."""
    return {
        "step": each.step,
        "kind": each.kind,
        "rows": each.rows,
        "causes": [{"cause": cause.cause, "rows": cause.rows} for cause in each.causes],
        "partitions": [{"name": name, "rows": rows} for name, rows in each.partitions],
        "sinks": [outlet_fields(sink) for sink in each.sinks],
    }


def table_of(found: Sequence[PutAside]) -> Table:
    """One line a cause, then one a source partition, where rows say which they are of."""
    table = plain_table(("step", "left"), ("rows", "right"), ("why", "left"), ("written to", "left"))
    for each in found:
        sinks = "; ".join(f"{sink.uid} ({sink.to})" for sink in each.sinks) or "nowhere: counted and dropped"
        for index, cause in enumerate(each.causes):
            table.add_row(each.step if not index else "", number(cause.rows), f"{each.kind}: {cause.cause}", sinks)
            sinks = ""
        for partition, rows in each.partitions:
            table.add_row("", number(rows), f"late, of {partition}", "", style="dim")
    return table
