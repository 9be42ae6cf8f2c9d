"""Entries to bytes and back: strict, versioned, written by hand. Knows nothing of storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.checkpoint import paths
from penstock.checkpoint.canonical import seal, unseal
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
from penstock.checkpoint.fields import Fields, plain, read_object, read_range, read_text, read_whole
from penstock.checkpoint.handle_codec import read_committable, read_snapshot, write_committable, write_snapshot
from penstock.elements.control import CheckpointKind
from penstock.errors import CheckpointUnreadable, assert_never
from penstock.ids import CheckpointId, EntryNumber, Generation, WallTime

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
    return seal(document)


def decode(data: bytes, number: EntryNumber) -> Entry:
    """The entry of these bytes, read from where entry ``number`` lies.

    Raises:
        CheckpointUnreadable: they are not exactly what was written; names the file, the field and the value.
    """
    where = paths.entry(number)
    with Fields(unseal(data, where), where) as fields:
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


def _check_format(fields: Fields) -> None:
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
    with Fields(value, where) as fields:
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
        **({"settings": plain(body.settings, "settings")} if body.settings else {}),
        **origin,
        **({"undone": [list(pair) for pair in body.undone]} if body.undone else {}),
    }


def read_manifest(value: object, where: str) -> Manifest:
    """A checkpoint from JSON."""
    with Fields(value, where) as fields:
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
    with Fields(value, where) as fields:
        return Origin(
            log_id=fields.text("log"),
            job=fields.text("job"),
            checkpoint=CheckpointId(fields.whole("checkpoint", least=0)),
            export=fields.text("export"),
            claimed=fields.flag("claimed"),
        )


def _read_step(value: object, where: str) -> StepRecord:
    with Fields(value, where) as fields:
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
    with Fields(value, where) as fields:
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
    with Fields(value, where) as fields:
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
    with Fields(value, where) as fields:
        return Rewind(
            to=_checkpoint_or_none(fields, "to"),
            left=_checkpoint_or_none(fields, "left"),
            at=WallTime(fields.whole("at")),
            discard=fields.items("discard", read_committable),
            condemned=fields.items("condemned", _read_checkpoint),
            lost=fields.items("lost", lambda item, place: EntryNumber(read_whole(item, place))),
            request=fields.text_or_none("request"),
        )


def _read_condemn(value: object, where: str) -> Condemn:
    with Fields(value, where) as fields:
        return Condemn(
            checkpoints=fields.items("checkpoints", _read_checkpoint),
            files=fields.items("files", read_text),
            at=WallTime(fields.whole("at")),
            reason=fields.text("reason"),
        )


def _read_stopped(value: object, where: str) -> Stopped:
    with Fields(value, where) as fields:
        return Stopped(
            checkpoint=_checkpoint_or_none(fields, "checkpoint"),
            at=WallTime(fields.whole("at")),
            fulfils=fields.items("fulfils", read_text),
        )


def _read_checkpoint(value: object, where: str) -> CheckpointId:
    return CheckpointId(read_whole(value, where))


def _checkpoint_or_none(fields: Fields, name: str) -> CheckpointId | None:
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
