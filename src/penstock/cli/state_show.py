"""``penstock state show``: which steps hold state at a checkpoint, from the log alone. No Spark, writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.cli.exits import ExitCode
from penstock.cli.shown import file_fields, plain_table
from penstock.cli.words import count, size, when
from penstock.operate.directory import JobDirectory
from penstock.operate.state.find import chosen, held_by

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.history import History
    from penstock.cli.output import Output
    from penstock.operate.state.find import Held

SCHEMA: Final = "penstock.state.show/1"
"""Of the JSON document: see docs/json.md."""


def show_state(output: Output, *, job: str, state: str, at: str | None, as_json: bool) -> int:
    """Print it.

    Raises:
        UnknownName: there is no such job or checkpoint; with the nearest name.
        PenstockError: the log cannot be read.
    """
    history = JobDirectory(state, job).read()
    manifest = chosen(history, at)
    if as_json:
        output.document(SCHEMA, **document(history, manifest))
        return ExitCode.ENDED
    held = held_by(manifest)
    if held:
        output.result(_table(held))
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
        "steps": [_step(each) for each in held_by(manifest)],
    }


def _step(held: Held) -> dict[str, object]:
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


def _table(held: tuple[Held, ...]) -> Table:
    table = plain_table(("step", "left"), ("kind", "left"), ("rows", "right"), ("size", "right"), ("layers", "right"))
    for each in held:
        rows = f"≤ {each.rows:,}" if each.layers > 1 else f"{each.rows:,}"
        table.add_row(each.uid, each.kind, rows, size(each.bytes), str(each.layers))
    return table


def _summary(history: History, manifest: Manifest, held: tuple[Held, ...]) -> str:
    following = ", which the next start continues" if _is_restore_point(history, manifest) else ""
    return (
        f"{history.job}: checkpoint {manifest.checkpoint}{following} · {manifest.kind.value}, "
        f"{when(manifest.completed)} · state of {count(len(held), 'step')}"
    )
