"""Entries and handles to bytes and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.checkpoint import paths
from penstock.checkpoint.entries import (
    Body,
    Claim,
    Condemn,
    Entry,
    Manifest,
    Origin,
    Pin,
    Rewind,
    StepRecord,
    StepRole,
    Stopped,
    Unpin,
)
from penstock.clock import EventTime, WallTime
from penstock.codec import (
    StrictFields,
    dump_sealed,
    load_sealed,
    read_int,
    read_object,
    read_range,
    read_text,
    to_plain_json,
)
from penstock.elements import CheckpointKind
from penstock.errors import CheckpointUnreadable, assert_never
from penstock.handles import (
    CheckpointId,
    Committable,
    EntryNumber,
    FileRef,
    Generation,
    LayerRef,
    Position,
    StateHandle,
    TaskSnapshot,
)

# ----------------------------------------------------------------------------------------------------
# Handles to JSON and back, for whoever writes them down; knows no entries.


def write_file(file: FileRef) -> object:
    """A file as JSON."""
    return {"path": file.path, "length": file.length, "sha256": file.sha256}


def read_file(value: object, where: str) -> FileRef:
    """A file from JSON."""
    with StrictFields(value, where) as fields:
        return FileRef(path=fields.text("path"), length=fields.whole("length", least=0), sha256=fields.text("sha256"))


def write_committable(item: Committable) -> object:
    """A committable as JSON."""
    return {
        "uid": item.uid,
        "kind": item.kind,
        "checkpoint": item.checkpoint,
        "target": item.target,
        "files": [write_file(file) for file in item.files],
        "detail": to_plain_json(item.detail, f"committable of '{item.uid}': detail"),
    }


def read_committable(value: object, where: str) -> Committable:
    """A committable from JSON."""
    with StrictFields(value, where) as fields:
        return Committable(
            uid=fields.text("uid"),
            kind=fields.text("kind"),
            checkpoint=CheckpointId(fields.whole("checkpoint", least=0)),
            target=fields.text("target"),
            files=fields.items("files", read_file),
            detail=fields.json("detail"),
        )


def write_snapshot(snapshot: TaskSnapshot) -> object:
    """A task's snapshot as JSON; its committables stand elsewhere, among all that are open."""
    where = f"snapshot of '{snapshot.task}'"
    position, state = snapshot.position, snapshot.state
    return {
        "task": snapshot.task,
        "position": None
        if position is None
        else {"kind": position.kind, "detail": to_plain_json(position.detail, f"{where}: position")},
        "state": None if state is None else _write_state(state, where),
        "watermarks": list(snapshot.watermarks),
    }


def read_snapshot(value: object, where: str) -> TaskSnapshot:
    """A task's snapshot from JSON."""
    with StrictFields(value, where) as fields:
        return TaskSnapshot(
            task=fields.text("task"),
            position=fields.one_or_none("position", _read_position),
            state=fields.one_or_none("state", _read_state),
            watermarks=tuple(EventTime(time) for time in fields.items("watermarks", read_int)),
        )


def _read_position(value: object, where: str) -> Position:
    with StrictFields(value, where) as fields:
        return Position(kind=fields.text("kind"), detail=fields.json("detail"))


def _write_state(state: StateHandle, where: str) -> object:
    return {
        "kind": state.kind,
        "schema": state.schema,
        "layers": [_write_layer(layer, f"{where}: layer {layer.name}") for layer in state.layers],
        "detail": to_plain_json(state.detail, f"{where}: state"),
    }


def _read_state(value: object, where: str) -> StateHandle:
    with StrictFields(value, where) as fields:
        return StateHandle(
            kind=fields.text("kind"),
            schema=fields.text("schema"),
            layers=fields.items("layers", _read_layer),
            detail=fields.json("detail"),
        )


def _write_layer(layer: LayerRef, where: str) -> object:
    return {
        "name": layer.name,
        "level": layer.level,
        "rows": layer.rows,
        "files": [write_file(file) for file in layer.files],
        "detail": to_plain_json(layer.detail, where),
    }


def _read_layer(value: object, where: str) -> LayerRef:
    with StrictFields(value, where) as fields:
        return LayerRef(
            name=fields.text("name"),
            level=fields.whole("level", least=0),
            rows=fields.whole("rows", least=0),
            files=fields.items("files", read_file),
            detail=fields.json("detail"),
        )


# ----------------------------------------------------------------------------------------------------
# Entries to bytes and back: strict, versioned, written by hand. Knows nothing of storage.

FORMAT: Final = 1


def encode(entry: Entry) -> bytes:
    """The bytes of an entry, the same for the same entry on any machine.

    Raises:
        InternalError: a detail cannot be written as JSON, or the entry is far too large.
    """
    kind, fields = _write_body(entry.body)
    document = {
        "format": FORMAT,
        "number": entry.number,
        "log": entry.log_id,
        "job": entry.job,
        "generation": entry.generation,
        "token": entry.token,
        "previous": entry.previous,
        "kind": kind,
        "body": fields,
    }
    return dump_sealed(document)


def decode(data: bytes, number: EntryNumber) -> Entry:
    """The entry of these bytes, read from where entry ``number`` lies.

    Raises:
        CheckpointUnreadable: they are not exactly what was written; names the file, the field and the value.
    """
    where = paths.entry(number)
    with StrictFields(load_sealed(data, where), where) as fields:
        _check_format(fields)
        held = fields.whole("number")
        if held != number:
            msg = f"{where}.number: is {held}, the file's name says {number}"
            raise CheckpointUnreadable(msg)
        kind = fields.text("kind")
        read = _READERS.get(kind)
        if read is None:
            msg = f"{where}.kind: unknown kind of entry {kind!r}; known are {', '.join(sorted(_READERS))}"
            raise CheckpointUnreadable(msg)
        return Entry(
            number=number,
            log_id=fields.text("log"),
            job=fields.text("job"),
            generation=Generation(fields.whole("generation", least=0)),
            token=fields.text("token"),
            previous=fields.text("previous"),
            body=fields.one("body", read),
        )


def _check_format(fields: StrictFields) -> None:
    version = fields.whole("format")
    if version != FORMAT:
        msg = f"{fields.where}.format: is {version}, this penstock reads {FORMAT}; use the version that wrote it"
        raise CheckpointUnreadable(msg)


# ------------------------------------------------------------------------------------------------------------- bodies


def _write_body(body: Body) -> tuple[str, object]:  # noqa: PLR0911 - one case a kind
    match body:
        case Claim():
            return "claim", {"host": body.host, "pid": body.pid, "started": body.started, "version": body.version}
        case Manifest():
            return "checkpoint", write_manifest(body)
        case Rewind():
            return "rewind", _write_rewind(body)
        case Pin():
            return "pin", _write_pin(body)
        case Unpin():
            return "unpin", {"name": body.name, "at": body.at, "request": body.request}
        case Condemn():
            fields = {"files": list(body.files), "at": body.at, "reason": body.reason}
            return "condemn", {"checkpoints": list(body.checkpoints), **fields}
        case Stopped():
            return "stopped", {"checkpoint": body.checkpoint, "at": body.at, "fulfils": list(body.fulfils)}
        case _:
            assert_never(body)


def _read_claim(value: object, where: str) -> Claim:
    with StrictFields(value, where) as fields:
        return Claim(
            host=fields.text("host"),
            pid=fields.whole("pid"),
            started=WallTime(fields.whole("started")),
            version=fields.text("version"),
        )


def write_manifest(body: Manifest) -> object:
    """A checkpoint as JSON; what only some have is left out elsewhere."""
    origin = {} if body.origin is None else {"origin": _write_origin(body.origin)}
    return {
        "checkpoint": body.checkpoint,
        "kind": body.kind.value,
        "parent": body.parent,
        "triggered": body.triggered,
        "completed": body.completed,
        "steps": [
            {"uid": step.uid, "role": step.role.value, "kind": step.kind, "schema": step.schema} for step in body.steps
        ],
        "tasks": [write_snapshot(snapshot) for snapshot in body.tasks],
        "open": [write_committable(item) for item in body.open],
        "pins": [_write_pin(pin) for pin in body.pins],
        "fulfils": list(body.fulfils),
        "condemned": list(body.condemned),
        "condemned_files": list(body.condemned_files),
        "deleted": body.deleted,
        "floor": body.floor,
        **({"settings": to_plain_json(body.settings, "settings")} if body.settings else {}),
        **origin,
        **({"undone": [list(pair) for pair in body.undone]} if body.undone else {}),
    }


def read_manifest(value: object, where: str) -> Manifest:
    """A checkpoint from JSON."""
    with StrictFields(value, where) as fields:
        return Manifest(
            checkpoint=CheckpointId(fields.whole("checkpoint", least=0)),
            kind=fields.choice("kind", CheckpointKind),
            parent=_checkpoint_or_none(fields, "parent"),
            triggered=WallTime(fields.whole("triggered")),
            completed=WallTime(fields.whole("completed")),
            steps=fields.items("steps", _read_step),
            tasks=fields.items("tasks", read_snapshot),
            open=fields.items("open", read_committable),
            pins=fields.items("pins", _read_pin),
            fulfils=fields.items("fulfils", read_text),
            condemned=fields.items("condemned", _read_checkpoint),
            condemned_files=fields.items("condemned_files", read_text),
            deleted=EntryNumber(fields.whole("deleted", least=-1)),
            floor=EntryNumber(fields.whole("floor", least=0)),
            settings=fields.one("settings", read_object) if fields.has("settings") else {},
            origin=fields.one("origin", _read_origin) if fields.has("origin") else None,
            undone=fields.items("undone", read_range) if fields.has("undone") else (),
        )


def _write_origin(origin: Origin) -> object:
    rest = {"export": origin.export, "claimed": origin.claimed}
    return {"log": origin.log_id, "job": origin.job, "checkpoint": origin.checkpoint, **rest}


def _read_origin(value: object, where: str) -> Origin:
    with StrictFields(value, where) as fields:
        return Origin(
            log_id=fields.text("log"),
            job=fields.text("job"),
            checkpoint=CheckpointId(fields.whole("checkpoint", least=0)),
            export=fields.text("export"),
            claimed=fields.flag("claimed"),
        )


def _read_step(value: object, where: str) -> StepRecord:
    with StrictFields(value, where) as fields:
        return StepRecord(
            uid=fields.text("uid"),
            role=fields.choice("role", StepRole),
            kind=fields.text("kind"),
            schema=fields.text("schema"),
        )


def _write_pin(pin: Pin) -> object:
    return {
        "name": pin.name,
        "checkpoint": pin.checkpoint,
        "at": pin.at,
        "owner": pin.owner,
        "expires": pin.expires,
        "request": pin.request,
    }


def _read_pin(value: object, where: str) -> Pin:
    with StrictFields(value, where) as fields:
        expires = fields.whole_or_none("expires")
        return Pin(
            name=fields.text("name"),
            checkpoint=CheckpointId(fields.whole("checkpoint", least=0)),
            at=WallTime(fields.whole("at")),
            owner=fields.text("owner"),
            expires=None if expires is None else WallTime(expires),
            request=fields.text_or_none("request"),
        )


def _read_unpin(value: object, where: str) -> Unpin:
    with StrictFields(value, where) as fields:
        name, at = fields.text("name"), WallTime(fields.whole("at"))
        return Unpin(name=name, at=at, request=fields.text_or_none("request"))


def _write_rewind(body: Rewind) -> object:
    return {
        "to": body.to,
        "left": body.left,
        "at": body.at,
        "discard": [write_committable(item) for item in body.discard],
        "condemned": list(body.condemned),
        "lost": list(body.lost),
        "request": body.request,
    }


def _read_rewind(value: object, where: str) -> Rewind:
    with StrictFields(value, where) as fields:
        return Rewind(
            to=_checkpoint_or_none(fields, "to"),
            left=_checkpoint_or_none(fields, "left"),
            at=WallTime(fields.whole("at")),
            discard=fields.items("discard", read_committable),
            condemned=fields.items("condemned", _read_checkpoint),
            lost=fields.items("lost", lambda item, place: EntryNumber(read_int(item, place))),
            request=fields.text_or_none("request"),
        )


def _read_condemn(value: object, where: str) -> Condemn:
    with StrictFields(value, where) as fields:
        return Condemn(
            checkpoints=fields.items("checkpoints", _read_checkpoint),
            files=fields.items("files", read_text),
            at=WallTime(fields.whole("at")),
            reason=fields.text("reason"),
        )


def _read_stopped(value: object, where: str) -> Stopped:
    with StrictFields(value, where) as fields:
        return Stopped(
            checkpoint=_checkpoint_or_none(fields, "checkpoint"),
            at=WallTime(fields.whole("at")),
            fulfils=fields.items("fulfils", read_text),
        )


def _read_checkpoint(value: object, where: str) -> CheckpointId:
    return CheckpointId(read_int(value, where))


def _checkpoint_or_none(fields: StrictFields, name: str) -> CheckpointId | None:
    value = fields.whole_or_none(name)
    return None if value is None else CheckpointId(value)


_READERS: Final[dict[str, Callable[[object, str], Body]]] = {
    "claim": _read_claim,
    "checkpoint": read_manifest,
    "rewind": _read_rewind,
    "pin": _read_pin,
    "unpin": _read_unpin,
    "condemn": _read_condemn,
    "stopped": _read_stopped,
}
