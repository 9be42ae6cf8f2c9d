"""How values look to people and to scripts: ages, times, tables, documents. Knows no command."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from rich.table import Table

from penstock.checkpoint.entries import host_of
from penstock.cli.live import event_time
from penstock.ids import BEGINNING, END_OF_TIME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import JustifyMethod

    from penstock.cli.output import Output
    from penstock.operate.standing import Standing

UNKNOWN: Final = "-"
"""Where nothing is known."""

_STEPS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def write_document(output: Output, schema: str, fields: Mapping[str, object]) -> None:
    """Print one JSON document; under one schema fields may be added, never changed or taken away."""
    output.out.file.write(json.dumps({"schema": schema, **fields}, indent=2) + "\n")


def span(seconds: float | None) -> str:
    """A length of time, as short as it can be told.

    >>> span(0.44), span(12), span(750), span(90_000), span(None)
    ('0.4 s', '12 s', '12.5 min', '1.0 d', '-')
    """
    if seconds is None:
        return UNKNOWN
    for length, unit in _STEPS:
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"  # noqa: PLR2004 - tenths of few seconds only


def number(value: float | None) -> str:
    """A number with its thousands apart.

    >>> number(12_345), number(1_234.56), number(None)
    ('12,345', '1,235', '-')
    """
    return UNKNOWN if value is None else f"{value:,.0f}"


def moment(wall: int) -> str:
    """A time in UTC.

    >>> moment(1_767_268_800_000_000)
    '2026-01-01 12:00:00Z'
    """
    return datetime.fromtimestamp(wall / 1_000_000, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def watermark(at: int) -> str:
    """Event time of a step, in UTC."""
    if at == BEGINNING:
        return "none yet"
    return "at the end" if at == END_OF_TIME else event_time(at)


def plain_table(*columns: tuple[str, JustifyMethod]) -> Table:
    """A table without lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in columns:
        table.add_column(name, justify=justify)
    return table


def who(now: Standing) -> str:
    """The process that has the job, or had it."""
    claim, me = now.claim, now.owner.me if now.owner is not None else None
    if me is not None:
        return f"process {me.pid} on {host_of(me.host)}"
    if claim is None:
        return "process unknown"
    return f"process {claim.pid} on {host_of(claim.host)}"


def as_of(now: Standing) -> str:
    """How old the numbers of the run are, and that they are of a run before, if so."""
    if now.hint is None:
        return "no run has left its numbers"
    of = "" if now.is_hint_of_now else f", of generation {now.hint.generation}: the newest run has left none"
    return f"as of {span(now.hint_age)} ago{of}"
