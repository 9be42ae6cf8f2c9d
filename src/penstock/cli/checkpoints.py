"""``penstock checkpoints``: what a job's log says, from its directory alone. No Spark, no pipeline, writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.checkpoint.entries import Claim
from penstock.cli.exits import ExitCode
from penstock.cli.shown import output_fields, plain_table, process_fields
from penstock.cli.words import count, size, when
from penstock.operate.checkpoints import checkpoints_of
from penstock.operate.directory import JobDirectory, is_at_rest

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.checkpoint.history import History
    from penstock.cli.output import Output
    from penstock.operate.checkpoints import Checkpoint

SCHEMA: Final = "penstock.checkpoints/1"
"""Of the JSON document: see docs/json.md."""


def show_checkpoints(output: Output, *, job: str, state: str, as_json: bool) -> int:
    """Print them.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        PenstockError: the log cannot be read.
    """
    history = JobDirectory(state, job).read()
    if as_json:
        output.document(SCHEMA, **document(history))
        return ExitCode.ENDED
    output.result(_table(history))
    output.result(Text(_summary(history)))
    return ExitCode.ENDED


def document(history: History) -> dict[str, object]:
    """The JSON document's fields. Times are microseconds since 1970."""
    point, claim = history.restore_point, history.claim
    body = claim.body if claim is not None else None
    return {
        "job": history.job,
        "log_id": history.log_id,
        "generation": history.generation,
        "process": process_fields(body) if isinstance(body, Claim) else None,
        "is_at_rest": is_at_rest(history),
        "restore_point": point.checkpoint if point else None,
        "open": [output_fields(item) for item in history.open_committables],
        "checkpoints": [_fields(each) for each in checkpoints_of(history)],
    }


def _fields(each: Checkpoint) -> dict[str, object]:
    return {
        "checkpoint": each.checkpoint,
        "kind": each.kind,
        "entry": each.entry,
        "generation": each.generation,
        "parent": each.parent,
        "triggered": each.triggered,
        "completed": each.completed,
        "took_seconds": each.seconds,
        "new_bytes": each.new_bytes,
        "bytes": each.bytes,
        "output_count": each.outputs,
        "open_count": each.open,
        "is_restorable": each.is_restorable,
        "names": list(each.names),
        "is_restore_point": each.is_restore_point,
    }


def _table(history: History) -> Table:
    table = plain_table(
        ("", "left"),
        ("id", "right"),
        ("kind", "left"),
        ("completed", "left"),
        ("took", "right"),
        ("new", "right"),
        ("total", "right"),
        ("outputs", "right"),
        ("open", "right"),
        ("status", "left"),
    )
    for each in checkpoints_of(history):
        status = "restorable" if each.is_restorable else "condemned"
        table.add_row(
            "→" if each.is_restore_point else "",
            str(each.checkpoint),
            each.kind,
            when(each.completed),
            f"{each.seconds:.2f} s",
            f"+{size(each.new_bytes)}",
            size(each.bytes),
            str(each.outputs),
            str(each.open),
            " ".join([status, *(f"pinned:{name}" for name in each.names)]),
            style=None if each.is_restorable else "dim",
        )
    return table


def _summary(history: History) -> str:
    point = history.restore_point
    following = f"checkpoint {point.checkpoint} (→)" if point else "empty state"
    waiting = len(history.open_committables)
    published = f"{count(waiting, 'output')} not known to be published" if waiting else "everything is published"
    ended = "stopped in order" if is_at_rest(history) else "running, or ended without a last word"
    return (
        f"{history.job}: {ended} · generation {history.generation} · the next start continues {following} · {published}"
    )
