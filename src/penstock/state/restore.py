"""Brings durable layers back into Spark's cache as one layer; knows nothing of the log that named them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import CheckpointUnreadable, LayerMissing, StateIncompatible
from penstock.ids import BEGINNING
from penstock.state.durable import read_files
from penstock.state.layer import Layer, LayerFormat, build
from penstock.state.writer import LayerWriter, bounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.filesystem.base import FileSystem
    from penstock.handles import FileRef, LayerRef, StateHandle


def check_schema(handle: StateHandle, layers_format: LayerFormat) -> None:
    """Refuse state whose kind or columns are not the step's.

    Raises:
        StateIncompatible: with both and the remedy.
    """
    uid = layers_format.uid
    if handle.kind != layers_format.kind:
        kept = layers_format.kind
        msg = f"the checkpoint holds state of kind {handle.kind!r}, this step keeps {kept!r}: give it another uid"
        raise StateIncompatible(msg, uid=uid)
    if handle.schema != layers_format.ddl():
        msg = (
            f"the checkpoint's state has the columns {handle.schema}; the pipeline declares {layers_format.ddl()}. "
            "Restore with the keys and aggregates it was written with, or give the step a new uid and start it "
            "without its state"
        )
        raise StateIncompatible(msg, uid=uid)


def check_window(handle: StateHandle, described: str, uid: str) -> None:
    """Refuse state of other windows: its rows are cut in other places.

    Raises:
        StateIncompatible: with both and the remedy.
    """
    held = handle.detail.get("window") if isinstance(handle.detail, dict) else None
    if held != described:
        msg = (
            f"the checkpoint's state is cut for windows {held!r}; the pipeline declares {described!r}. Restore with "
            "those windows, or give the step a new uid and start it without its state"
        )
        raise StateIncompatible(msg, uid=uid)


def horizon_of(handle: StateHandle) -> int:
    """The horizon recorded in a handle: see :func:`moment_of`."""
    return moment_of(handle, "horizon")


def moment_of(handle: StateHandle, name: str) -> int:
    """An event time recorded in a handle's detail; NULL there is the beginning of time.

    Raises:
        CheckpointUnreadable: the detail is not what a window step writes.
    """
    detail = handle.detail
    found = detail.get(name, "absent") if isinstance(detail, dict) else "absent"
    if found is None:
        return BEGINNING
    if not isinstance(found, int) or isinstance(found, bool):
        msg = f"state of kind {handle.kind} has the detail {detail!r}, expected {name!r} in microseconds"
        raise CheckpointUnreadable(msg)
    return found


def restore_layer(
    handle: StateHandle, writer: LayerWriter, session: SparkSession, *, name: str, turn: int = 0
) -> Layer | None:
    """Read the named files into one merged layer, hashed anew: one job and one exchange. ``None`` if nothing lives.

    Args:
        handle: what the checkpoint recorded.
        writer: where files lie and what their rows look like.
        session: the user's session, which the layer will belong to.
        name: of the layer.
        turn: of the layer; 0 if all was told.

    Raises:
        LayerMissing: a named file is not there.
        CheckpointUnreadable: a file is not the one that was written.
    """
    horizon = horizon_of(handle)
    alive = live_refs(handle)
    for ref in alive:
        for file in ref.files:
            _check_file(writer.filesystem, file, writer.layers_format.uid)
    if not any(ref.files for ref in alive):
        return None
    layers_format = writer.layers_format
    rows = read_files(replace(writer, session=session), alive)
    merged = layers_format.merged(layers_format.hashed(layers_format.between(rows, horizon)))
    return build(layers_format, merged, name=name, level=1 + max(ref.level for ref in alive), epoch=0, turn=turn)


def live_refs(handle: StateHandle) -> tuple[LayerRef, ...]:
    """The durable layers that hold windows not yet closed."""
    horizon = horizon_of(handle)
    return tuple(ref for ref in handle.layers if bounds(ref)[1] > horizon)


def _check_file(filesystem: FileSystem, recorded: FileRef, uid: str) -> None:
    try:
        found = filesystem.settle(recorded.path)
    except CheckpointUnreadable as error:
        msg = f"file {recorded.path} of a layer is not there; the checkpoint recorded {recorded.length} bytes"
        raise LayerMissing(msg, uid=uid) from error
    if (found.length, found.sha256) != (recorded.length, recorded.sha256):
        msg = (
            f"file {recorded.path} of a layer has {found.length} bytes, sha256 {found.sha256}; the checkpoint "
            f"recorded {recorded.length} bytes, sha256 {recorded.sha256}"
        )
        raise CheckpointUnreadable(msg, uid=uid)
