"""``penstock lag``: how far sources are behind, and whether that is too far. Changes nothing."""

from __future__ import annotations

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
    from penstock.operate.lags import Limit, PartitionBehind, SourceBehind
    from penstock.runtime.clock import Clock

SCHEMA: Final = "penstock.lag/1"
"""Of the JSON document: see docs/json.md."""


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
        fields: dict[str, object] = {"job": job, "is": now.being.value, "doing": now.doing}
        fields |= {"numbers_age_seconds": now.hint_age, "sources": [_source(each) for each in found]}
        output.document(SCHEMA, **fields, **_limit(limit), over=too_far)
    else:
        output.result(table_of(found))
        word = now.word if now.being is Being.RUNNING else f"{now.being.value}: nothing is read"
        output.result(Text(f"{job}: {word} · {as_of(now)}"))
        for said in too_far:
            output.result(Text(said, style="red"))
    return ExitCode.BEHIND if too_far else ExitCode.ENDED


def _source(each: SourceBehind) -> dict[str, object]:
    return {
        "uid": each.source,
        "behind_rows": each.rows,
        "behind_seconds": each.seconds,
        "rows_per_second": each.rate,
        "caught_up_in_seconds": each.eta_seconds,
        "partitions": [_partition(part) for part in each.partitions],
        "holds": list(each.holds),
    }


def _partition(each: PartitionBehind) -> dict[str, object]:
    return {
        "name": each.partition,
        "next": each.position,
        "end": each.end,
        "behind_rows": each.rows,
        "behind_seconds": each.seconds,
        "rows_per_second": each.rate,
        "holds": list(each.holds),
    }


def _limit(limit: Limit | None) -> dict[str, object]:
    micros = limit.micros if limit is not None else None
    return {
        "limit_rows": limit.rows if limit is not None else None,
        "limit_seconds": None if micros is None else micros / 1_000_000,
    }


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
