"""The commands ``penstock checkpoints`` and ``penstock checkpoint``: what the log of a job says of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from rich.text import Text

from penstock.admin.status import checkpoints_of
from penstock.checkpoint.entries import Claim
from penstock.checkpoint.history import resolve_checkpoint
from penstock.cli.options import STATE, AsJson, JobName, State
from penstock.cli.output import CommandOutput, ExitCode
from penstock.cli.words import (
    UNKNOWN,
    clipped,
    count,
    file_fields,
    number_text,
    output_fields,
    plain_table,
    process_fields,
    size,
    watermark,
)
from penstock.clock import MIN_WATERMARK, format_time
from penstock.control.client import JobDirectory, is_at_rest
from penstock.errors import UnknownName
from penstock.handles import CheckpointId, Generation, split_replays
from penstock.observability.status_file import watermark_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.table import Table

    from penstock.admin.status import Checkpoint
    from penstock.checkpoint.entries import Manifest, StepRecord
    from penstock.checkpoint.history import History
    from penstock.handles import Position, StateHandle, TaskSnapshot


# ---- penstock checkpoints --------------------------------------------------------------------------------------------

CHECKPOINTS_SCHEMA: Final = "penstock.checkpoints/1"  # see docs/json.md


def checkpoints(job: JobName, /, *, state: State = STATE, as_json: AsJson = False, output: CommandOutput) -> int:
    """Print all checkpoints in the log of a job.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        PenstockError: the log cannot be read.
    """
    history = JobDirectory(state, job).read()
    if as_json:
        output.document(CHECKPOINTS_SCHEMA, **_checkpoints_document(history))
        return ExitCode.ENDED
    output.result(_checkpoints_table(history))
    output.result(Text(_summary(history)))
    return ExitCode.ENDED


def _checkpoints_document(history: History) -> dict[str, object]:
    """The fields of the JSON document. Times are microseconds since 1970."""
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
        "checkpoints": [_checkpoint_fields(each) for each in checkpoints_of(history)],
    }


def _checkpoint_fields(each: Checkpoint) -> dict[str, object]:
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
        "state_bytes": each.state_bytes,
        "bytes": each.bytes,
        "output_count": each.outputs,
        "open_count": each.open,
        "is_restorable": each.is_restorable,
        "names": list(each.names),
        "is_restore_point": each.is_restore_point,
    }


def _checkpoints_table(history: History) -> Table:
    table = plain_table(
        ("", "left"),
        ("id", "right"),
        ("kind", "left"),
        ("completed", "left"),
        ("took", "right"),
        ("new", "right"),
        ("state", "right"),
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
            format_time(each.completed),
            f"{each.seconds:.2f} s",
            f"+{size(each.new_bytes)}",
            size(each.state_bytes),
            size(each.bytes),
            str(each.outputs),
            str(each.open),
            " ".join([status, *(f"pinned:{name}" for name in each.names)]),
            style=None if each.is_restorable else "dim",
        )
    return table


def _summary(history: History) -> str:
    point = history.restore_point
    following = f"continues checkpoint {point.checkpoint} (→)" if point else "begins empty"
    waiting = len(history.open_committables)
    published = f"{count(waiting, 'output')} not known to be published" if waiting else "everything is published"
    ended = "stopped in order" if is_at_rest(history) else "running, or its process died"
    return f"{history.job}: {ended} · generation {history.generation} · the next start {following} · {published}"


# ---- penstock checkpoint ---------------------------------------------------------------------------------------------

CHECKPOINT_SCHEMA: Final = "penstock.checkpoint/1"  # see docs/json.md
POSITION_WIDTH: Final = 72  # characters; the position of a files source is long, and all of it is in the JSON document


def checkpoint(
    job: JobName,
    which: Annotated[str, Parameter(help="Number of the checkpoint, or name of a savepoint.")],
    /,
    *,
    state: State = STATE,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Print one checkpoint; a condemned one too, as long as its entry is in the log.

    Raises:
        UnknownName: there is no such job, checkpoint or savepoint; with the nearest name.
        CheckpointError: the log cannot be read.
    """
    history = JobDirectory(state, job).read()
    found = _find_checkpoint(history, which)
    if as_json:
        output.document(CHECKPOINT_SCHEMA, **_checkpoint_document(history, found))
        return ExitCode.ENDED
    manifest = history.manifests[found][1]
    for line in _head(history, manifest):
        output.result(line)
    output.result(_checkpoint_table(manifest))
    for line in _tail(manifest):
        output.result(line)
    return ExitCode.ENDED


def _find_checkpoint(history: History, text: str) -> CheckpointId:
    if text.isdecimal() and int(text) in history.manifests:
        return CheckpointId(int(text))
    try:
        return resolve_checkpoint(history, text)
    except UnknownName:
        if not text.isdecimal():
            raise
        known = ", ".join(map(str, history.manifests)) or "none"
        msg = f"Checkpoint {text} is not in the log of job {history.job!r}. Checkpoints: {known}."
        raise UnknownName(msg) from None


def _checkpoint_document(history: History, checkpoint: CheckpointId) -> dict[str, object]:
    """The fields of the JSON document. Times are microseconds since 1970."""
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
        f"entry {entry} · generation {_generation(history, entry)} · {parent} · complete "
        f"{format_time(manifest.completed)} after {took:.2f} s · {files} of state, {size(manifest.state_bytes)}"
    )


def _checkpoint_table(manifest: Manifest) -> Table:
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
        has_watermark = task.watermarks and task.watermark != MIN_WATERMARK
        table.add_row(
            task.task,
            step.role.value if step is not None else UNKNOWN,
            (task.state.kind if task.state else task.position.kind if task.position else "") or UNKNOWN,
            str(len(task.state.layers)) if task.state else "",
            number_text(task.state.rows) if task.state else "",
            size(task.state.bytes) if task.state else "",
            watermark(task.watermark) if has_watermark else "",
            clipped(_position_text(task.position), POSITION_WIDTH) if task.position else "",
        )
    return table


def _position_text(position: Position) -> str:
    """How far a source was read, in words if the position is of a known form; all of it is in the JSON document."""
    match split_replays(position)[0].detail:
        case {"done": dict(done), "partial": {"name": str(name), "offset": int(offset)}}:
            return f"{count(len(done), 'file')} read, {name} up to byte {offset:,}"
        case {"done": dict(done), "partial": None}:
            return f"{count(len(done), 'file')} read"
        case {"topics": dict(topics)}:
            return ", ".join(_offsets(topics))
        case {"next": int(following), "started": _}:
            return f"next is row {following:,}"
    return json.dumps(position.detail, sort_keys=True)


def _offsets(topics: Mapping[str, Any]) -> Iterator[str]:
    for topic, known in sorted(topics.items()):
        for partition, offset in sorted(known["next"].items(), key=lambda item: int(item[0])):
            yield f"{topic}-{partition} {offset:,}"


def _tail(manifest: Manifest) -> Iterator[Text]:
    for item in manifest.open:
        of = "" if item.checkpoint == manifest.checkpoint else f" of checkpoint {item.checkpoint}"
        length = size(item.bytes)
        yield Text(f"output {item.uid}{of}: {count(len(item.files), 'file')}, {length}, to {item.target}")
    if manifest.condemned or manifest.condemned_files:
        ids = ", ".join(map(str, manifest.condemned)) or "no checkpoint"
        yield Text(f"condemned: {ids}; {count(len(manifest.condemned_files), 'file')}")
