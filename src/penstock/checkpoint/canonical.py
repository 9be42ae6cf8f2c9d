"""Canonical JSON bytes with a checksum of their own. Knows nothing of what they say.

One line: keys sorted, no spaces, ASCII. ``sha256`` is the digest of the same line without that field. Bytes that are
not exactly what would be written for their content are refused, so any changed or missing bit is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from penstock.errors import CheckpointUnreadable, InternalError

LARGEST: Final = 64 * 1024 * 1024
"""Bytes of a document. Details of positions and states are meant to be small; what is large belongs into layers."""


def seal(document: Mapping[str, object]) -> bytes:
    """The bytes of ``document`` with its checksum, the same on any machine.

    Raises:
        InternalError: it is far too large.
    """
    data = _canonical({**document, "sha256": sha256(_canonical(document)).hexdigest()})
    if len(data) > LARGEST:
        msg = f"an entry of {len(data)} bytes is more than {LARGEST}: a connector or operator keeps rows in a detail"
        raise InternalError(msg)
    return data


def unseal(data: bytes, where: str) -> dict[str, object]:
    """The document of these bytes, without its checksum; nothing in it is believed before that matches.

    Raises:
        CheckpointUnreadable: they are not exactly what was written.
    """
    if len(data) > LARGEST:
        msg = f"{where}: {len(data)} bytes are more than an entry can have ({LARGEST})"
        raise CheckpointUnreadable(msg)
    try:
        document: object = json.loads(data.decode("ascii"))
        if not isinstance(document, dict):
            msg = f"{where}: must be an object, is {str(document)[:60]!r}"
            raise CheckpointUnreadable(msg)
        exact = _canonical(document) == data
        held = document.pop("sha256", None)
        found = sha256(_canonical(document)).hexdigest()
    except (ValueError, RecursionError) as error:
        msg = f"{where}: its {len(data)} bytes are not an entry as it was written: {error}"
        raise CheckpointUnreadable(msg) from error
    if held != found or not exact:
        msg = f"{where}: content does not match its checksum: sha256 is {held!r}, of the content it is {found!r}"
        raise CheckpointUnreadable(msg)
    return document


def _canonical(document: Mapping[str, object]) -> bytes:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")
