"""How values look to people: ages, times, tables, who has a job. Knows no command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table

from penstock.checkpoint.entries import host_of
from penstock.checkpoint.exported import LeftOpen
from penstock.cli.words import age
from penstock.handles import Committable
from penstock.operate.standing import Being

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from penstock.checkpoint.entries import Claim
    from penstock.handles import FileRef
    from penstock.operate.savepoints import Savepoint
    from penstock.operate.standing import Standing

UNKNOWN: Final = "-"
"""Where nothing is known."""


def span(seconds: float | None) -> str:
    """A length of time, if it is known.

    >>> span(0.44), span(750), span(None)
    ('0.4 s', '12 min 30 s', '-')
    """
    return UNKNOWN if seconds is None else age(int(seconds * 1_000_000))


def number(value: float | None) -> str:
    """A number with its thousands apart.

    >>> number(12_345), number(1_234.56), number(None)
    ('12,345', '1,235', '-')
    """
    return UNKNOWN if value is None else f"{value:,.0f}"


def plain_table(*columns: tuple[str, JustifyMethod]) -> Table:
    """A table without lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in columns:
        table.add_column(name, justify=justify)
    return table


def output_fields(item: Committable | LeftOpen) -> dict[str, object]:
    """An output that a sink has handed over, in a document: where its rows go, how many files wait, if that is known.

    A plan says the same of an output: :class:`penstock.operate.plan.outputs.OutputPlan`.
    """
    made = item if isinstance(item, Committable) else None
    return {
        "uid": item.uid,
        "checkpoint": item.checkpoint,
        "kind": item.kind,
        "target": item.target,
        "file_count": len(made.files) if made else None,
        "bytes": made.bytes if made else None,
    }


def file_fields(file: FileRef) -> dict[str, object]:
    """A file, in a document."""
    return {"path": file.path, "bytes": file.length}


def process_fields(claim: Claim) -> dict[str, object]:
    """The process that has a job, or had it, in a document."""
    return {"host": claim.host, "pid": claim.pid, "started": claim.started, "version": claim.version}


def savepoint_fields(each: Savepoint) -> dict[str, object]:
    """A savepoint, in a document."""
    return {
        "savepoint": each.name,
        "checkpoint": each.checkpoint,
        "taken": each.taken,
        "named": each.named,
        "by": each.owner,
        "state_bytes": each.bytes,
        "is_restore_point": each.is_restore_point,
    }


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
    of = "" if now.is_hint_of_now else f", by generation {now.hint.generation}"
    if of and now.being is Being.RUNNING:
        of += ": this one has told none yet"
    return f"as of {span(now.hint_age)} ago{of}"
