"""``penstock checkpoint``: one checkpoint in full, as its entry in the log says it. Changes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.checkpoint.names import which_checkpoint
from penstock.cli.exits import ExitCode
from penstock.cli.shown import UNKNOWN, file_fields, number, output_fields, plain_table
from penstock.cli.words import clipped, count, size, watermark, when
from penstock.errors import UnknownName
from penstock.ids import BEGINNING, CheckpointId, Generation
from penstock.job.numbers import watermark_fields
from penstock.operate.directory import JobDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from penstock.checkpoint.entries import Manifest, StepRecord
    from penstock.checkpoint.history import History
    from penstock.cli.output import Output
    from penstock.handles import StateHandle, TaskSnapshot

SCHEMA: Final = "penstock.checkpoint/1"
"""Of the JSON document: see docs/json.md."""

SHOWN: Final = 72
"""Characters of a position, for a files source remembers many names; all of it is in the document."""


def show_checkpoint(output: Output, *, job: str, which: str, state: str, as_json: bool) -> int:
    """Print it; a condemned one too, as long as its entry is in the log.

    Raises:
        UnknownName: there is no such job, checkpoint or savepoint; with the nearest name.
        CheckpointError: the log cannot be read.
    """
    history = JobDirectory(state, job).read()
    checkpoint = _which(history, which)
    if as_json:
        output.document(SCHEMA, **document(history, checkpoint))
        return ExitCode.ENDED
    manifest = history.manifests[checkpoint][1]
    for line in _head(history, manifest):
        output.result(line)
    output.result(_table(manifest))
    for line in _tail(manifest):
        output.result(line)
    return ExitCode.ENDED


def _which(history: History, text: str) -> CheckpointId:
    if text.isdecimal() and int(text) in history.manifests:
        return CheckpointId(int(text))
    try:
        return which_checkpoint(history, text)
    except UnknownName:
        if not text.isdecimal():
            raise
        known = ", ".join(map(str, history.manifests)) or "none"
        msg = f"checkpoint {text} is not in the log of job {history.job!r}; there is {known}"
        raise UnknownName(msg) from None


def document(history: History, checkpoint: CheckpointId) -> dict[str, object]:
    """The JSON document's fields. Times are microseconds since 1970."""
    entry, manifest = history.manifests[checkpoint]
    steps = {step.uid: step for step in manifest.steps}
    point = history.restore_point
    return {
        "job": history.job,
        "checkpoint": checkpoint,
        "kind": manifest.kind.value,
        "entry": entry,
        "generation": _generation(history, entry),
        "parent": manifest.parent,
        "triggered": manifest.triggered,
        "completed": manifest.completed,
        "took_seconds": (manifest.completed - manifest.triggered) / 1_000_000,
        "is_restorable": checkpoint not in history.condemned,
        "names": list(history.names_of(checkpoint)),
        "is_restore_point": point is not None and point.checkpoint == checkpoint,
        "state_bytes": manifest.state_bytes,
        "steps": [_step(task, steps.get(task.task)) for task in manifest.tasks],
        "outputs": [output_fields(item) for item in manifest.open],
        "open": [output_fields(item) for item in manifest.open if item in history.open_committables],
        "condemned": list(manifest.condemned),
        "condemned_files": list(manifest.condemned_files),
        "floor": manifest.floor,
    }


def _generation(history: History, entry: int) -> Generation:
    return next(each.generation for each in history.entries if each.number == entry)


def _step(task: TaskSnapshot, step: StepRecord | None) -> dict[str, object]:
    return {
        "uid": task.task,
        "role": step.role.value if step is not None else None,
        "kind": (step.kind or None) if step is not None else None,
        "position": None if task.position is None else {"kind": task.position.kind, "detail": task.position.detail},
        "state": None if task.state is None else _state(task.state),
        **watermark_fields(task.watermark if task.watermarks else None),
    }


def _state(state: StateHandle) -> dict[str, object]:
    layers = [
        {
            "name": layer.name,
            "level": layer.level,
            "rows": layer.rows,
            "bytes": layer.bytes,
            "files": [file_fields(file) for file in layer.files],
        }
        for layer in state.layers
    ]
    return {"kind": state.kind, "ddl": state.schema, "detail": state.detail, "layers": layers}


# ---------------------------------------------------------------------------------------------------------- for people


def _head(history: History, manifest: Manifest) -> Iterator[Text]:
    entry = history.manifests[manifest.checkpoint][0]
    names = "".join(f" · savepoint {name}" for name in history.names_of(manifest.checkpoint))
    status = " · condemned, its files may be gone" if manifest.checkpoint in history.condemned else ""
    point = history.restore_point
    following = " · the next start continues it" if point and point.checkpoint == manifest.checkpoint else ""
    title = f"{history.job}: checkpoint {manifest.checkpoint} ({manifest.kind.value}){names}{status}{following}"
    yield Text(title, style="bold")
    parent = "began empty" if manifest.parent is None else f"continues {manifest.parent}"
    took = (manifest.completed - manifest.triggered) / 1_000_000
    files = count(len(manifest.state_files), "file")
    yield Text(
        f"entry {entry} · generation {_generation(history, entry)} · {parent} · complete {when(manifest.completed)} "
        f"after {took:.2f} s · {files} of state, {size(manifest.state_bytes)}"
    )


def _table(manifest: Manifest) -> Table:
    table = plain_table(
        ("uid", "left"),
        ("role", "left"),
        ("kind", "left"),
        ("layers", "right"),
        ("rows", "right"),
        ("size", "right"),
        ("watermark", "left"),
        ("position", "left"),
    )
    steps = {step.uid: step for step in manifest.steps}
    for task in manifest.tasks:
        step = steps.get(task.task)
        has_mark = task.watermarks and task.watermark != BEGINNING
        table.add_row(
            task.task,
            step.role.value if step is not None else UNKNOWN,
            (task.state.kind if task.state else task.position.kind if task.position else "") or UNKNOWN,
            str(len(task.state.layers)) if task.state else "",
            number(task.state.rows) if task.state else "",
            size(task.state.bytes) if task.state else "",
            watermark(task.watermark) if has_mark else "",
            clipped(json.dumps(task.position.detail, sort_keys=True), SHOWN) if task.position else "",
        )
    return table


def _tail(manifest: Manifest) -> Iterator[Text]:
    for item in manifest.open:
        of = "" if item.checkpoint == manifest.checkpoint else f" of checkpoint {item.checkpoint}"
        length = size(item.bytes)
        yield Text(f"output {item.uid}{of}: {count(len(item.files), 'file')}, {length}, to {item.target}")
    if manifest.condemned or manifest.condemned_files:
        ids = ", ".join(map(str, manifest.condemned)) or "no checkpoint"
        yield Text(f"condemned: {ids}; {count(len(manifest.condemned_files), 'file')}")
