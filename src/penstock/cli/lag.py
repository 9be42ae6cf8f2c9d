"""``penstock lag``: how far sources are behind, and whether that is too far. Changes nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.cli.exits import ExitCode
from penstock.cli.shown import as_of, number, plain_table, span
from penstock.operate.directory import JobDirectory
from penstock.operate.lags import lags, over, read_limit
from penstock.operate.standing import Being, standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from penstock.cli.output import Output
    from penstock.operate.lags import SourceBehind
    from penstock.runtime.clock import Clock

SCHEMA: Final = "penstock.lag/1"


def show_lag(
    output: Output, *, job: str, state: str, max_lag: str | None, as_json: bool, clock: Clock | None = None
) -> int:
    """Print the lag of every source; 4 if it is over the limit.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        SettingsError: the limit is none.
        CheckpointError: the log cannot be read.
    """
    limit = None if max_lag is None else read_limit(max_lag)
    now = standing(JobDirectory(state, job, clock=clock))
    found = lags(now)
    too_far = [] if limit is None else over(now, limit)
    if as_json:
        fields: dict[str, object] = {"job": job, "is": now.being.value, "age_seconds": now.hint_age}
        sources = [asdict(each) for each in found]
        output.document(SCHEMA, **fields, sources=sources, max_lag=max_lag, over=too_far)
    else:
        output.result(table_of(found))
        word = now.word if now.being is Being.RUNNING else f"{now.being.value}: nothing is read"
        output.result(Text(f"{job}: {word} · {as_of(now)}"))
        for said in too_far:
            output.result(Text(said, style="red"))
    return ExitCode.BEHIND if too_far else ExitCode.ENDED


def table_of(found: Sequence[SourceBehind]) -> Table:
    """One line a partition, and one a source; ``◀`` marks what holds the event time of a step back."""
    table = plain_table(
        ("source", "left"),
        ("partition", "left"),
        ("position", "right"),
        ("end", "right"),
        ("lag", "right"),
        ("behind", "right"),
        ("rows/s", "right"),
        ("caught up in", "right"),
        ("", "left"),
    )
    for source in found:
        for each in source.partitions:
            place = (source.source, each.partition, number(each.position), number(each.end))
            table.add_row(*place, number(each.rows), span(each.seconds), number(each.rate), "", _holds(each.holds))
        whole = (number(source.rows), span(source.seconds), number(source.rate), span(source.eta_seconds))
        table.add_row(source.source, "all", "", "", *whole, _holds(source.holds), style="bold")
    return table


def _holds(steps: Sequence[str]) -> str:
    return f"◀ holds {', '.join(steps)}" if steps else ""
