"""Converts entries and handles to bytes and back.

The format is stable: entries of every earlier version can be read, and are encoded to the same bytes again.
"""

from __future__ import annotations

from typing import Final

from penstock.checkpoint import paths
from penstock.checkpoint.entries import Claim, Condemn, Entry, Manifest, Origin, Pin, Rewind, Stopped, Unpin
from penstock.codec import Codec, JsonForm, Tagged, dump_sealed, load_sealed
from penstock.errors import CheckpointUnreadable
from penstock.handles import Committable, EntryNumber, FileRef, LayerRef, TaskSnapshot

FORMAT: Final = 1
"""Version of the entry format."""
_BODIES: Final = {
    "claim": Claim,
    "checkpoint": Manifest,
    "rewind": Rewind,
    "pin": Pin,
    "unpin": Unpin,
    "condemn": Condemn,
    "stopped": Stopped,
}
FORMS: Final = {
    Entry: JsonForm(
        version=FORMAT,
        names={"log_id": "log"},
        at_least={"generation": 0},
        tags={"body": Tagged(key="kind", types=_BODIES)},
    ),
    Manifest: JsonForm(
        at_least={"checkpoint": 0, "deleted": -1, "floor": 0, "undone": 0},
        optional={"settings", "origin", "undone"},  # added later: older manifests do not have them
    ),
    Origin: JsonForm(names={"log_id": "log"}, at_least={"checkpoint": 0}),
    Pin: JsonForm(at_least={"checkpoint": 0}),
    TaskSnapshot: JsonForm(
        unwritten={"committables"},  # they are in Manifest.open, with all others that are open
        label=lambda snapshot: f"snapshot of '{snapshot.task}'",
    ),
    LayerRef: JsonForm(at_least={"level": 0, "rows": 0}),
    Committable: JsonForm(
        at_least={"checkpoint": 0, "shard": 0},
        optional={"committer", "shard"},  # added later: most committables do not have them
        label=lambda item: f"committable of '{item.uid}'",
    ),
    FileRef: JsonForm(at_least={"length": 0}),
}
"""How the JSON of entries and handles differs from the regular form of their dataclasses."""
COMMITTABLES: Final = Codec(Committable, FORMS)
"""Codec of single committables: the contract tests of sinks use it."""
_ENTRIES: Final = Codec(Entry, FORMS)


def encode(entry: Entry) -> bytes:
    """The bytes of an entry, the same for the same entry on any machine.

    Raises:
        InternalError: a detail cannot be written as JSON, or the entry is far too large.
    """
    return dump_sealed(_ENTRIES.to_json(entry))


def decode(data: bytes, number: EntryNumber) -> Entry:
    """The entry that ``data`` encodes, which was read from the file of entry ``number``.

    Raises:
        CheckpointUnreadable: the data is not exactly what was written. The message names the file, field and value.
    """
    where = paths.entry(number)
    entry = _ENTRIES.from_json(load_sealed(data, where), where)
    if entry.number != number:
        msg = f"{where}.number: The entry has number {entry.number}, and the file's name says {number}."
        raise CheckpointUnreadable(msg)
    return entry
