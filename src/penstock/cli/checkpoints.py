"""``penstock checkpoints``: what a job's log says, from its directory alone. No Spark, no pipeline, writes nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.checkpoint.entries import Claim
from penstock.cli.exits import ExitCode
from penstock.cli.shown import output_fields, plain_table
from penstock.cli.words import count, size, when
from penstock.operate.directory import JobDirectory, is_at_rest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.history import History
    from penstock.cli.output import Output

SCHEMA: Final = "penstock.checkpoints/1"
"""Of the JSON document: fields may be added under this name, never changed or taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One checkpoint.

    Attributes:
        id: rises over the whole log.
        kind: why it was taken.
        entry: its number in the log.
        generation: the claim under which it was taken.
        parent: the checkpoint it continues.
        completed: when, in microseconds since 1970.
        duration_ms: from the trigger to the last acknowledgement.
        bytes: of files that no earlier checkpoint of the log names.
        total_bytes: of all files that it needs.
        outputs: what its sinks handed over.
        open: those of them that the log does not know to be published.
        status: ``restorable`` or ``condemned``.
        pins: names it has.
        is_restore_point: the next start continues it.
    """

    id: int
    kind: str
    entry: int
    generation: int
    parent: int | None
    completed: int
    duration_ms: float
    bytes: int
    total_bytes: int
    outputs: int
    open: int
    status: str
    pins: tuple[str, ...]
    is_restore_point: bool


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


def rows(history: History) -> list[Row]:
    """All checkpoints of the log, oldest first."""
    open_now = [item.checkpoint for item in history.open_committables]
    point = history.restore_point
    entries = {entry.number: entry for entry in history.entries}
    seen: set[str] = set()
    found = []
    for key, (number, manifest) in history.manifests.items():
        files = _files(manifest)
        found.append(
            Row(
                id=key,
                kind=manifest.kind.value,
                entry=number,
                generation=entries[number].generation,
                parent=manifest.parent,
                completed=manifest.completed,
                duration_ms=(manifest.completed - manifest.triggered) / 1_000,
                bytes=sum(length for path, length in files.items() if path not in seen),
                total_bytes=sum(files.values()),
                outputs=sum(item.checkpoint == key for item in manifest.open),
                open=open_now.count(key),
                status="condemned" if key in history.condemned else "restorable",
                pins=history.names_of(key),
                is_restore_point=point is not None and point.checkpoint == key,
            )
        )
        seen.update(files)
    return found


def document(history: History) -> dict[str, object]:
    """The JSON document's fields. Times are microseconds since 1970."""
    point, claim = history.restore_point, history.claim
    return {
        "job": history.job,
        "log": history.log_id,
        "generation": history.generation,
        "owner": asdict(claim.body) if claim is not None and isinstance(claim.body, Claim) else None,
        "stopped": is_at_rest(history),
        "restore_point": point.checkpoint if point else None,
        "open": [output_fields(item) for item in history.open_committables],
        "checkpoints": [asdict(row) for row in rows(history)],
    }


def _files(manifest: Manifest) -> Mapping[str, int]:
    layers = [layer for task in manifest.tasks if task.state for layer in task.state.layers]
    files = {file.path: file.length for layer in layers for file in layer.files}
    return files | {file.path: file.length for item in manifest.open for file in item.files}


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
    for row in rows(history):
        status = " ".join([row.status, *(f"pinned:{name}" for name in row.pins)])
        table.add_row(
            "→" if row.is_restore_point else "",
            str(row.id),
            row.kind,
            when(row.completed),
            f"{row.duration_ms / 1_000:.2f} s",
            f"+{size(row.bytes)}",
            size(row.total_bytes),
            str(row.outputs),
            str(row.open),
            status,
            style="dim" if row.status == "condemned" else None,
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
