"""Sizes, times and tables as people read them, and parts of JSON documents that commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, format_time
from penstock.handles import Committable

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from penstock.admin.savepoints import Savepoint
    from penstock.checkpoint.entries import Claim
    from penstock.checkpoint.export import UnpublishedOutput
    from penstock.facts import Restoring
    from penstock.handles import FileRef


# ---- numbers and times -----------------------------------------------------------------------------------------------

UNKNOWN: Final = "-"
"""Shown where a value is not known."""


def clock_time(wall: int) -> str:
    """The time of day of a wall time in microseconds, in UTC.

    >>> clock_time(1_767_268_800_000_000)
    '12:00:00 UTC'
    """
    return format_time(wall).partition(" ")[2]


def size(number: int) -> str:
    """A number of bytes in the largest unit that fits.

    >>> size(2_100_000)
    '2.1 MB'
    """
    value, units = float(number), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1_000 and len(units) > 1:  # noqa: PLR2004 - the step of the units
        value /= 1_000
        units.pop(0)
    return f"{number} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def count(number: int, what: str) -> str:
    """A number with the name of what is counted, in the plural if needed.

    >>> count(1, "output"), count(2_000, "output")
    ('1 output', '2,000 outputs')
    """
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def clipped(text: str, most: int) -> str:
    """The first ``most`` characters of a text; characters that cannot be printed are escaped.

    >>> clipped("abc", 3), clipped("abcd", 3), clipped("tab" + chr(9), 9) == "tab" + repr(chr(9))[1:-1]
    ('abc', 'ab…', True)
    """
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def watermark(at: int) -> str:
    """A watermark as date and time, in UTC.

    >>> watermark(0), watermark(MIN_WATERMARK), watermark(MAX_WATERMARK)
    ('1970-01-01 00:00:00 UTC', 'none yet', 'at the end')
    """
    if at == MIN_WATERMARK:
        return "none yet"
    return "at the end" if at == MAX_WATERMARK else format_time(at)


def age(micros: int) -> str:
    """A duration in microseconds, in its largest two units.

    >>> age(400_000), age(12_000_000), age(3_725_000_000), age(200_000_000_000)
    ('0.4 s', '12 s', '1 h 2 min', '2 d 7 h')
    """
    seconds = max(0, micros) / 1_000_000
    if seconds < 10:  # noqa: PLR2004 - tenths say something only of short times
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((place for place, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)


def duration_text(seconds: float | None) -> str:
    """A duration in seconds, in its largest two units.

    >>> duration_text(0.44), duration_text(750), duration_text(None)
    ('0.4 s', '12 min 30 s', '-')
    """
    return UNKNOWN if seconds is None else age(int(seconds * 1_000_000))


def number_text(value: float | None) -> str:
    """A whole number with separated thousands.

    >>> number_text(12_345), number_text(1_234.56), number_text(None)
    ('12,345', '1,235', '-')
    """
    return UNKNOWN if value is None else f"{value:,.0f}"


# ---- tables ----------------------------------------------------------------------------------------------------------


def plain_table(*columns: tuple[str, JustifyMethod]) -> Table:
    """A table without lines, from names of columns and where their cells are aligned."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in columns:
        table.add_column(name, justify=justify)
    return table


# ---- parts of JSON documents -----------------------------------------------------------------------------------------


def output_fields(item: Committable | UnpublishedOutput) -> dict[str, object]:
    """The fields of an output: where its rows go, and how many files wait if that is known.

    The document of a plan has the same fields: ``penstock.admin.reprocessing.OutputPlan``.
    """
    committable = item if isinstance(item, Committable) else None
    return {
        "uid": item.uid,
        "checkpoint": item.checkpoint,
        "kind": item.kind,
        "target": item.target,
        "file_count": len(committable.files) if committable else None,
        "bytes": committable.bytes if committable else None,
    }


def file_fields(file: FileRef) -> dict[str, object]:
    """The fields of a file."""
    return {"path": file.path, "bytes": file.length}


def process_fields(claim: Claim) -> dict[str, object]:
    """The fields of the process that owns a job, or owned it last."""
    return {"host": claim.host, "pid": claim.pid, "started": claim.started, "version": claim.version}


def savepoint_fields(each: Savepoint) -> dict[str, object]:
    """The fields of a savepoint."""
    return {
        "savepoint": each.name,
        "checkpoint": each.checkpoint,
        "taken": each.taken,
        "named": each.named,
        "by": each.owner,
        "state_bytes": each.bytes,
        "is_restore_point": each.is_restore_point,
        "is_restorable": each.is_restorable,
    }


# ---- progress of a start ---------------------------------------------------------------------------------------------


def progress_of(fact: Restoring) -> str:
    """What a start does before its sources read, and how far it is.

    >>> from penstock.facts import Restoring
    >>> progress_of(Restoring(doing="restoring", task="totals", done=2_000_000, total=44_000_000))
    "restoring 'totals', 2.0 MB of 44.0 MB done"
    >>> progress_of(Restoring(doing="publishing", task="out", done=0, total=2))
    "publishing what the log held open, 0 of 2 outputs, 'out'"
    """
    if fact.doing == "publishing":
        return f"publishing what the log held open, {fact.done:,} of {count(fact.total, 'output')}, '{fact.task}'"
    if fact.doing == "copying":
        return f"copying the exported checkpoint, {size(fact.done)} of {size(fact.total)}"
    return f"restoring '{fact.task}', {size(fact.done)} of {size(fact.total)} done"
