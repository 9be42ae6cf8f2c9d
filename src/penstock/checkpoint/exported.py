"""A checkpoint as a folder of its own: what its ``export.json`` says, and who has taken it over. Pure; copies nothing.

::

    export.json                     written last and whole at once: a folder without it is no export
    state/<uid>/<generation>/…      the files of all layers, under the names that they have in the job's directory
    claimed.json                    which log has taken the files over, if one has

All paths are relative to the folder, so it can be moved. Sinks' output is not in it: what is not yet published belongs
to the log in which it was prepared (rule R7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from penstock.checkpoint import paths
from penstock.checkpoint.canonical import seal, unseal
from penstock.checkpoint.codec import read_manifest, write_manifest
from penstock.checkpoint.entries import FIRST, NOTHING, Manifest
from penstock.checkpoint.fields import Fields, read_text
from penstock.checkpoint.history import History
from penstock.errors import CheckpointUnreadable
from penstock.handles import FileRef
from penstock.ids import CheckpointId, WallTime

FORMAT: Final = 1
EXPORT: Final = "export.json"
CLAIMED: Final = "claimed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOpen:
    """Output of an exported checkpoint that its log did not know to be published; the export does not hold it."""

    uid: str
    checkpoint: CheckpointId
    kind: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """One checkpoint, taken out of its log.

    Attributes:
        log_id: of the log that it was taken in.
        job: that log's job.
        names: what the checkpoint was called there.
        manifest: the checkpoint without all that only its own log can have: nothing open, pinned or condemned.
        left_open: what was open, of this checkpoint or an earlier one.
        at: when it was exported.
        version: of penstock, which exported it.
        sha256: of the bytes of ``export.json``; empty before they are written.
    """

    log_id: str
    job: str
    names: tuple[str, ...]
    manifest: Manifest
    left_open: tuple[LeftOpen, ...]
    at: WallTime
    version: str
    sha256: str = ""

    @property
    def checkpoint(self) -> CheckpointId:
        """Its id in the log that it was taken in."""
        return self.manifest.checkpoint

    @property
    def files(self) -> tuple[FileRef, ...]:
        """Every file, once."""
        return tuple(sorted(self.manifest.state_files, key=lambda file: file.path))

    @property
    def bytes(self) -> int:
        """Of all files."""
        return self.manifest.state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Which log has taken an export's files over. The first that is written counts."""

    log_id: str
    job: str
    at: WallTime


def take_out(history: History, checkpoint: CheckpointId, *, at: WallTime, version: str) -> Export:
    """The export of a restorable checkpoint, its files still to be copied."""
    manifest = replace(
        history.restorable[checkpoint],
        open=(),
        pins=(),
        fulfils=(),
        condemned=(),
        condemned_files=(),
        deleted=NOTHING,
        floor=FIRST,
    )
    assert history.log_id is not None  # it holds a checkpoint
    assert history.job is not None
    pins = (pin for pin in history.pins.values() if pin.checkpoint == checkpoint and pin.expires is None)
    return Export(
        log_id=history.log_id,
        job=history.job,
        names=tuple(sorted(pin.name for pin in pins)),
        manifest=manifest,
        left_open=open_at(history, checkpoint),
        at=at,
        version=version,
    )


def open_at(history: History, checkpoint: CheckpointId) -> tuple[LeftOpen, ...]:
    """What the log does not know to be published, of this checkpoint and of those before it."""
    return tuple(
        LeftOpen(uid=item.uid, checkpoint=item.checkpoint, kind=item.kind, target=item.target)
        for item in history.open_committables
        if item.checkpoint <= checkpoint
    )


# ------------------------------------------------------------------------------------------------------------- as bytes


def encode_export(export: Export) -> bytes:
    """The bytes of ``export.json``, with a checksum of their own."""
    return seal(
        {
            "format": FORMAT,
            "log": export.log_id,
            "job": export.job,
            "names": list(export.names),
            "checkpoint": write_manifest(export.manifest),
            "left_open": [
                {"uid": item.uid, "checkpoint": item.checkpoint, "kind": item.kind, "target": item.target}
                for item in export.left_open
            ],
            "at": export.at,
            "version": export.version,
        }
    )


def decode_export(data: bytes, where: str) -> Export:
    """The export of these bytes.

    Raises:
        CheckpointUnreadable: they are not exactly what was written, or name a file outside of the folder.
    """
    with Fields(unseal(data, where), where) as fields:
        _check_format(fields)
        export = Export(
            log_id=fields.text("log"),
            job=fields.text("job"),
            names=fields.items("names", read_text),
            manifest=fields.one("checkpoint", read_manifest),
            left_open=fields.items("left_open", _read_left_open),
            at=WallTime(fields.whole("at")),
            version=fields.text("version"),
            sha256=sha256(data).hexdigest(),
        )
    _refuse_outside(export.files, where)
    return export


def _read_left_open(value: object, where: str) -> LeftOpen:
    with Fields(value, where) as fields:
        return LeftOpen(
            uid=fields.text("uid"),
            checkpoint=CheckpointId(fields.whole("checkpoint", least=0)),
            kind=fields.text("kind"),
            target=fields.text("target"),
        )


def _refuse_outside(files: Sequence[FileRef], where: str) -> None:
    """Nobody who hands over a folder can have other files read, or written, than those in it."""
    for file in files:
        if not file.path.startswith(f"{paths.STATE}/") or not paths.is_ours(file.path):
            msg = f"{where} names the file {file.path!r}; an export has files below {paths.STATE}/ only"
            raise CheckpointUnreadable(msg)


def _check_format(fields: Fields) -> None:
    version = fields.whole("format")
    if version != FORMAT:
        msg = f"{fields.where}.format: is {version}, this penstock reads {FORMAT}; use the version that wrote it"
        raise CheckpointUnreadable(msg)


def encode_claimed(claimed: Claimed) -> bytes:
    """The bytes of ``claimed.json``."""
    return seal({"format": FORMAT, "log": claimed.log_id, "job": claimed.job, "at": claimed.at})


def decode_claimed(data: bytes, where: str) -> Claimed:
    """Who has the files.

    Raises:
        CheckpointUnreadable: they are not exactly what was written.
    """
    with Fields(unseal(data, where), where) as fields:
        _check_format(fields)
        return Claimed(log_id=fields.text("log"), job=fields.text("job"), at=WallTime(fields.whole("at")))
