"""Strict JSON: canonical bytes with a checksum, fields read by name and type."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.errors import CheckpointUnreadable, InternalError
from penstock.handles import Json

if TYPE_CHECKING:
    from typing_extensions import Self


# ----------------------------------------------------------------------------------------------------
# Canonical JSON bytes with a checksum of their own. Knows nothing of what they say.
#
# One line: keys sorted, no spaces, ASCII. ``sha256`` is the digest of the same line without that field. Bytes that are
# not exactly what would be written for their content are refused, so any changed or missing bit is noticed.

MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a document. Details of positions and states are meant to be small; what is large belongs into layers."""


def dump_sealed(document: Mapping[str, object]) -> bytes:
    """The bytes of ``document`` with its checksum, the same on any machine.

    Raises:
        InternalError: it is far too large.
    """
    data = _canonical({**document, "sha256": sha256(_canonical(document)).hexdigest()})
    if len(data) > MAX_DOCUMENT_BYTES:
        msg = (
            f"an entry of {len(data)} bytes is more than {MAX_DOCUMENT_BYTES}: "
            "a connector or operator keeps rows in a detail"
        )
        raise InternalError(msg)
    return data


def load_sealed(data: bytes, where: str) -> dict[str, object]:
    """The document of these bytes, without its checksum; nothing in it is believed before that matches.

    Raises:
        CheckpointUnreadable: they are not exactly what was written.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        msg = f"{where}: {len(data)} bytes are more than an entry can have ({MAX_DOCUMENT_BYTES})"
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


# ----------------------------------------------------------------------------------------------------
# Takes fields out of parsed JSON strictly: unknown, missing and mistyped ones are named. Knows no format.

T = TypeVar("T")
E = TypeVar("E", bound=Enum)
MAX_SHOWN = 60
"""How many characters of a wrong value a message shows."""


class StrictFields:
    """One JSON object that is being read; leave by ``with``, so that a field nobody took is an error.

    Args:
        value: what was parsed.
        where: the file and the path of fields down to here, for messages.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        self._rest: dict[str, object] = dict(value)
        self.where = where

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        if kind is None and self._rest:
            name, value = next(iter(sorted(self._rest.items())))
            msg = f"{self.where}: unknown field {name!r} with value {_shown(value)}"
            raise CheckpointUnreadable(msg)

    def has(self, name: str) -> bool:
        """Whether a field is there that may be absent."""
        return name in self._rest

    def take(self, name: str) -> object:
        """The raw value of a field."""
        if name not in self._rest:
            msg = f"{self.where}: field {name!r} is missing"
            raise CheckpointUnreadable(msg)
        return self._rest.pop(name)

    def text(self, name: str) -> str:
        """A string."""
        value = self.take(name)
        if not isinstance(value, str):
            place = f"{self.where}.{name}"
            raise _wrong(place, "a string", value)
        return value

    def text_or_none(self, name: str) -> str | None:
        """A string or null."""
        return None if self._is_null(name) else self.text(name)

    def whole(self, name: str, *, least: int | None = None) -> int:
        """A whole number, not below ``least``."""
        return _whole(self.take(name), f"{self.where}.{name}", least)

    def whole_or_none(self, name: str) -> int | None:
        """A whole number or null."""
        return None if self._is_null(name) else self.whole(name)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.take(name)
        if not isinstance(value, bool):
            place = f"{self.where}.{name}"
            raise _wrong(place, "true or false", value)
        return value

    def choice(self, name: str, kinds: type[E]) -> E:
        """One of an enumeration, by its value."""
        value = self.text(name)
        for member in kinds:
            if member.value == value:
                return member
        place, known = f"{self.where}.{name}", ", ".join(repr(member.value) for member in kinds)
        raise _wrong(place, "one of " + known, value)

    def json(self, name: str) -> Json:
        """Anything that JSON can say, for whoever it belongs to."""
        return self.take(name)  # type: ignore[return-value]  # it came out of json.loads

    def items(self, name: str, read: Callable[[object, str], T]) -> tuple[T, ...]:
        """An array, each element read by ``read(value, where)``."""
        value = self.take(name)
        where = f"{self.where}.{name}"
        if not isinstance(value, list):
            raise _wrong(where, "an array", value)
        return tuple(read(item, f"{where}[{index}]") for index, item in enumerate(value))

    def one(self, name: str, read: Callable[[object, str], T]) -> T:
        """An object, read by ``read(value, where)``."""
        return read(self.take(name), f"{self.where}.{name}")

    def one_or_none(self, name: str, read: Callable[[object, str], T]) -> T | None:
        """An object or null."""
        return None if self._is_null(name) else self.one(name, read)

    def _is_null(self, name: str) -> bool:
        if name in self._rest and self._rest[name] is None:
            del self._rest[name]
            return True
        return False


def read_text(value: object, where: str) -> str:
    """An element of an array that must be a string."""
    if not isinstance(value, str):
        raise _wrong(where, "a string", value)
    return value


def read_int(value: object, where: str) -> int:
    """An element of an array that must be a whole number."""
    return _whole(value, where, None)


def read_range(value: object, where: str) -> tuple[int, int]:
    """The first whole number and the one behind the last."""
    if not isinstance(value, list) or len(value) != 2:  # noqa: PLR2004 - a pair
        raise _wrong(where, "a pair of whole numbers", value)
    return _whole(value[0], f"{where}[0]", 0), _whole(value[1], f"{where}[1]", 0)


def read_object(value: object, where: str) -> Mapping[str, Json]:
    """An object of whatever its owner keeps there."""
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    return value


def to_plain_json(value: Json, where: str) -> object:
    """``value`` as JSON will give it back, or an error that names the place where it cannot be.

    Raises:
        InternalError: whoever made the value put something else into it: a connector or an operator is wrong.
    """
    if value is None or type(value) in {bool, int, str}:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                msg = f"{where}: key {key!r} is a {type(key).__name__}, JSON has only strings"
                raise InternalError(msg)
        return {key: to_plain_json(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [to_plain_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    msg = f"{where}: {value!r} ({type(value).__name__}) cannot be written as JSON and read back the same"
    raise InternalError(msg)


def _whole(value: object, where: str, least: int | None) -> int:
    if type(value) is not int:
        raise _wrong(where, "a whole number", value)
    if least is not None and value < least:
        raise _wrong(where, f"a whole number from {least} on", value)
    return value


def _wrong(where: str, wanted: str, value: object) -> CheckpointUnreadable:
    return CheckpointUnreadable(f"{where}: must be {wanted}, is {_shown(value)} ({type(value).__name__})")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
