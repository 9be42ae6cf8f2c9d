"""Handles to JSON and back, for whoever writes them down; knows no entries."""

from __future__ import annotations

from penstock.checkpoint.fields import Fields, plain, read_whole
from penstock.handles import Committable, FileRef, LayerRef, Position, StateHandle, TaskSnapshot
from penstock.ids import CheckpointId, EventTime


def write_file(file: FileRef) -> object:
    """A file as JSON."""
    return {"path": file.path, "length": file.length, "sha256": file.sha256}


def read_file(value: object, where: str) -> FileRef:
    """A file from JSON."""
    with Fields(value, where) as fields:
        return FileRef(path=fields.text("path"), length=fields.whole("length", least=0), sha256=fields.text("sha256"))


def write_committable(item: Committable) -> object:
    """A committable as JSON."""
    return {
        "uid": item.uid,
        "kind": item.kind,
        "checkpoint": item.checkpoint,
        "target": item.target,
        "files": [write_file(file) for file in item.files],
        "detail": plain(item.detail, f"committable of '{item.uid}': detail"),
    }


def read_committable(value: object, where: str) -> Committable:
    """A committable from JSON."""
    with Fields(value, where) as fields:
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
        else {"kind": position.kind, "detail": plain(position.detail, f"{where}: position")},
        "state": None if state is None else _write_state(state, where),
        "watermarks": list(snapshot.watermarks),
    }


def read_snapshot(value: object, where: str) -> TaskSnapshot:
    """A task's snapshot from JSON."""
    with Fields(value, where) as fields:
        return TaskSnapshot(
            task=fields.text("task"),
            position=fields.one_or_none("position", _read_position),
            state=fields.one_or_none("state", _read_state),
            watermarks=tuple(EventTime(time) for time in fields.items("watermarks", read_whole)),
        )


def _read_position(value: object, where: str) -> Position:
    with Fields(value, where) as fields:
        return Position(kind=fields.text("kind"), detail=fields.json("detail"))


def _write_state(state: StateHandle, where: str) -> object:
    return {
        "kind": state.kind,
        "schema": state.schema,
        "layers": [_write_layer(layer, f"{where}: layer {layer.name}") for layer in state.layers],
        "detail": plain(state.detail, f"{where}: state"),
    }


def _read_state(value: object, where: str) -> StateHandle:
    with Fields(value, where) as fields:
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
        "detail": plain(layer.detail, where),
    }


def _read_layer(value: object, where: str) -> LayerRef:
    with Fields(value, where) as fields:
        return LayerRef(
            name=fields.text("name"),
            level=fields.whole("level", least=0),
            rows=fields.whole("rows", least=0),
            files=fields.items("files", read_file),
            detail=fields.json("detail"),
        )
