"""Records that the Kinesis Producer Library has packed into one: packing and unpacking, without a library.

An aggregate is four bytes, a message of protobuf, and the MD5 of that message. What is anything else is a plain record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import md5
from typing import Final, NamedTuple

MAGIC: Final = b"\xf3\x89\x9a\xc2"
"""The first bytes of an aggregate."""
_DIGEST: Final = 16
"""Bytes of the MD5 at its end."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""
_MAX_VARINT: Final = 10
"""Most bytes of a number in protobuf."""


class UserRecord(NamedTuple):
    """One record of an aggregate, as its producer has put it."""

    partition_key: str
    explicit_hash_key: str | None
    data: bytes


def unpack(data: bytes) -> list[UserRecord] | None:
    """The records of an aggregate, in order; ``None`` if ``data`` is no aggregate.

    A wrong magic number, a wrong MD5, or a message that is not exactly an aggregate makes it a plain record: that is
    never an error, for any producer may put such bytes.

    >>> unpack(pack([UserRecord("user-1", None, b"hello")]))
    [UserRecord(partition_key='user-1', explicit_hash_key=None, data=b'hello')]
    >>> unpack(b"hello") is None
    True
    """
    if len(data) <= len(MAGIC) + _DIGEST or not data.startswith(MAGIC):
        return None
    message = data[len(MAGIC) : -_DIGEST]
    if md5(message, usedforsecurity=False).digest() != data[-_DIGEST:]:
        return None
    try:
        return _parse(message)
    except (ValueError, IndexError):
        return None


def pack(records: Sequence[UserRecord]) -> bytes:
    """The aggregate of some records. Each key is written once, however many records have it."""
    keys = list(dict.fromkeys(record.partition_key for record in records))
    hashes = list(dict.fromkeys(record.explicit_hash_key for record in records if record.explicit_hash_key is not None))
    of_key = {key: index for index, key in enumerate(keys)}
    of_hash = {hash: index for index, hash in enumerate(hashes)}
    parts = [_field(1, key.encode()) for key in keys]
    parts += [_field(2, hash.encode()) for hash in hashes]
    for record in records:
        inner = _number(1, of_key[record.partition_key])
        if record.explicit_hash_key is not None:
            inner += _number(2, of_hash[record.explicit_hash_key])
        parts.append(_field(3, inner + _field(3, record.data)))
    message = b"".join(parts)
    return MAGIC + message + md5(message, usedforsecurity=False).digest()


# ---- protobuf --------------------------------------------------------------------------------------------------------


def _parse(message: bytes) -> list[UserRecord] | None:
    keys: list[str] = []
    hashes: list[str] = []
    records: list[tuple[int, int | None, bytes]] = []
    for field, value in _fields(message):
        if field == 1 and isinstance(value, bytes):
            keys.append(value.decode())
        elif field == 2 and isinstance(value, bytes):  # noqa: PLR2004 - the field's number
            hashes.append(value.decode())
        elif field == 3 and isinstance(value, bytes):  # noqa: PLR2004 - likewise
            records.append(_parse_record(value))
        elif field in (1, 2, 3):
            return None
    # Not `keys[index]` alone: an index of 2**63 is an IndexError, which `unpack` takes for no aggregate.
    return [UserRecord(keys[key], None if hash is None else hashes[hash], data) for key, hash, data in records] or None


def _parse_record(message: bytes) -> tuple[int, int | None, bytes]:
    key: int | None = None
    hash: int | None = None
    data: bytes | None = None
    for field, value in _fields(message):
        if field == 1 and isinstance(value, int):
            key = value
        elif field == 2 and isinstance(value, int):  # noqa: PLR2004 - the field's number
            hash = value
        elif field == 3 and isinstance(value, bytes):  # noqa: PLR2004 - likewise
            data = value
        elif field in (1, 2, 3):
            raise ValueError(field)
    if key is None or data is None:
        raise ValueError(message)
    return key, hash, data


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field; raises ``ValueError`` or ``IndexError`` where it is cut or malformed."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        field, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield field, value
            continue
        if wire == _BYTES:
            length, at = _varint(message, at)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(wire)
        if at + length > end:
            raise ValueError(length)
        if wire == _BYTES:
            yield field, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for index in range(at, at + _MAX_VARINT):
        byte = message[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a number
            return value, index + 1
        shift += 7
    raise ValueError(at)


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _encode(field << 3 | _VARINT) + _encode(value)


def _field(field: int, value: bytes) -> bytes:
    return _encode(field << 3 | _BYTES) + _encode(len(value)) + value
