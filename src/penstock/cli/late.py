"""``penstock late``: rows that the last run put aside, and where they went. Changes nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.cli.exits import ExitCode
from penstock.cli.shown import as_of, number, plain_table
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


def show_late(output: Output, *, job: str, state: str, as_json: bool, clock: Clock | None = None) -> int:
    """Print them.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        CheckpointError: the log cannot be read.
    """
    now = standing(JobDirectory(state, job, clock=clock))
    found = put_aside(now)
    if as_json:
        fields: dict[str, object] = {"job": job, "is": now.being.value, "age_seconds": now.hint_age}
        output.document(SCHEMA, **fields, put_aside=[asdict(each) for each in found])
        return ExitCode.ENDED
    if found:
        output.result(table_of(found))
    elif now.hint is not None:
        output.result(Text(f"{job} puts no rows aside: it has no step that could"))
    output.result(Text(f"{job}: {now.word} · {as_of(now)}"))
    return ExitCode.ENDED


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
