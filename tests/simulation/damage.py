"""What may become of an entry on a disk: flipped bits, a lost end, another's bytes, the words of another version."""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.checkpoint.entry_codec import decode
from penstock.codec import dump_sealed, load_sealed
from penstock.errors import CheckpointUnreadable
from penstock.handles import EntryNumber


def damaged(data: bytes, other: bytes, number: int, chance: Random) -> bytes:
    """Bytes that are not those of the entry, and that no reader may take for an entry."""
    while True:
        found = _damaged(data, other, chance)
        try:
            decode(found, EntryNumber(number))
        except CheckpointUnreadable:
            return found


def _damaged(data: bytes, other: bytes, chance: Random) -> bytes:
    kind = chance.random()
    if kind < 0.2:
        at = chance.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << chance.randrange(7))]) + data[at + 1 :]
    if kind < 0.35:
        return data[: chance.randrange(len(data))]
    if kind < 0.45:
        return b"[]"
    if kind < 0.55 and other != data:
        return other
    return _reworded(data, chance)


def _reworded(data: bytes, chance: Random) -> bytes:
    """Sealed as it should be, and yet not what this version writes."""
    document: dict[str, Any] = load_sealed(data, "entry")
    kind = chance.random()
    if kind < 0.15:
        document["format"] = 2
    elif kind < 0.3:
        document["kind"] = "future"
    else:
        _twist(document, chance)
    return dump_sealed(document)


def _twist(document: dict[str, Any], chance: Random) -> None:
    """One field, at any depth, is gone, new, or of another type."""
    place = document
    while True:
        deeper = [value for value in place.values() if isinstance(value, dict) and value]
        lists = [value for value in place.values() if isinstance(value, list)]
        deeper += [item for found in lists for item in found if isinstance(item, dict)]
        if not deeper or chance.random() < 0.25:
            break
        place = chance.choice(deeper)
    name = chance.choice(sorted(place))
    kind = chance.random()
    if kind < 0.2:
        del place[name]
    elif kind < 0.4:
        place[f"{name}2"] = 1
    else:
        place[name] = _otherwise(place[name], chance)


def _otherwise(value: Any, chance: Random) -> Any:
    if isinstance(value, str):
        return chance.choice((7, value.upper() + "?"))
    if isinstance(value, list):
        return [*value, [1.5]]
    if isinstance(value, dict):
        return "".join(value)
    return chance.choice(("x", -7, [value]))
