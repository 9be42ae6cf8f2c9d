"""Strict JSON: frozen dataclasses to plain values and back, and canonical bytes with a checksum of their own.

Three layers, each of use by itself:

* ``Codec`` converts a frozen dataclass to plain JSON values and back, by its fields and type hints.
* ``StrictFields`` reads one JSON object field by field, for documents that are no regular dataclass.
* ``dump_sealed`` and ``load_sealed`` are the bytes of a document that proves its own integrity.

Whatever is not exactly as it would be written is refused with the path of the field, the value and its type.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from functools import partial
from hashlib import sha256
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from penstock.errors import CheckpointUnreadable, InternalError, sentence
from penstock.handles import Json

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
E = TypeVar("E", bound=Enum)
MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a sealed document."""  # details of positions and states are small by contract; large data goes to layers
MAX_SHOWN: Final = 60
"""Characters of a wrong value that a message shows."""

# ---- sealed documents -----------------------------------------------------------------------------------------------
# One line: keys sorted, no spaces, ASCII. ``sha256`` is the digest of the same line without that field. Bytes that are
# not exactly what would be written for their content are refused, so any changed or missing bit is noticed.


def dump_sealed(document: Mapping[str, object]) -> bytes:
    """The bytes of ``document`` with its checksum, the same on any machine.

    Raises:
        InternalError: it is far too large.
    """
    data = _canonical({**document, "sha256": sha256(_canonical(document)).hexdigest()})
    if len(data) > MAX_DOCUMENT_BYTES:
        msg = (
            f"An entry of {len(data)} bytes is more than {MAX_DOCUMENT_BYTES}. A connector or operator keeps rows in "
            "a detail."
        )
        raise InternalError(msg)
    return data


def load_sealed(data: bytes, where: str) -> dict[str, object]:
    """The document of these bytes, without its checksum.

    Raises:
        CheckpointUnreadable: the bytes are not exactly what was written.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        msg = f"{where}: The file has {len(data)} bytes, and an entry can have {MAX_DOCUMENT_BYTES}."
        raise CheckpointUnreadable(msg)
    try:
        document: object = json.loads(data.decode("ascii"))
        if not isinstance(document, dict):
            msg = f"{where}: The content must be an object, and is {str(document)[:60]!r}."
            raise CheckpointUnreadable(msg)
        is_canonical = _canonical(document) == data
        recorded = document.pop("sha256", None)
        computed = sha256(_canonical(document)).hexdigest()
    except (ValueError, RecursionError) as error:
        msg = f"{where}: Its {len(data)} bytes are not an entry as it was written: {sentence(error)}"
        raise CheckpointUnreadable(msg) from error
    if recorded != computed or not is_canonical:
        msg = (
            f"{where}: The content does not match its checksum. The recorded sha256 is {recorded!r}, and that of the "
            f"content is {computed!r}."
        )
        raise CheckpointUnreadable(msg)
    return document


def _canonical(document: Mapping[str, object]) -> bytes:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


# ---- one object, field by field -------------------------------------------------------------------------------------


class StrictFields:
    """The fields of one JSON object, each taken once; the end of the ``with`` block refuses fields that are left.

    Args:
        value: what was parsed.
        where: the file and the path of fields down to this object, for messages.
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
            msg = f"{self.where}: Field {name!r} with value {_shown(value)} is unknown."
            raise CheckpointUnreadable(msg)

    def has(self, name: str) -> bool:
        """Whether an optional field is there."""
        return name in self._rest

    def take(self, name: str) -> object:
        """The raw value of a field."""
        if name not in self._rest:
            msg = f"{self.where}: Field {name!r} is missing."
            raise CheckpointUnreadable(msg)
        return self._rest.pop(name)

    def text(self, name: str) -> str:
        """A string."""
        return self.one(name, _read_text)

    def text_or_none(self, name: str) -> str | None:
        """A string or null."""
        return self.one_or_none(name, _read_text)

    def whole(self, name: str, *, least: int | None = None) -> int:
        """A whole number, not below ``least``."""
        return self.one(name, partial(_read_int, least=least))

    def whole_or_none(self, name: str) -> int | None:
        """A whole number or null."""
        return self.one_or_none(name, partial(_read_int, least=None))

    def choice(self, name: str, kinds: type[E]) -> E:
        """A member of an enumeration, by its value."""
        return self.one(name, partial(_read_member, kinds))

    def one(self, name: str, read: Callable[[object, str], T]) -> T:
        """The value that ``read(value, where)`` makes of the field."""
        return read(self.take(name), f"{self.where}.{name}")

    def one_or_none(self, name: str, read: Callable[[object, str], T]) -> T | None:
        """The value that ``read(value, where)`` makes of the field, or null."""
        return self.one(name, partial(_read_nullable, read))


# ---- dataclasses by their type hints --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """How a field whose type is a union of dataclasses is written: a second field says which class it is.

    Attributes:
        key: key of the second field, in the same object.
        types: the class that each tag means.
    """

    key: str
    types: Mapping[str, type]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonForm:
    """How the JSON object of one dataclass differs from the regular form; keys and elements are names of its fields.

    Attributes:
        version: number in a field ``format`` in front of all others. Another number is refused before anything else.
        names: the key of a field whose key is not its name.
        at_least: the smallest number allowed in a field, or in all numbers of an array.
        optional: fields left out while they have their default. Such a field is never null.
        unwritten: fields that are never there; reading gives them their default.
        tags: how fields of a union type are written.
        label: what messages call a value that cannot be written, instead of its path.
    """

    version: int | None = None
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    at_least: Mapping[str, int] = dataclasses.field(default_factory=dict)
    optional: AbstractSet[str] = frozenset()
    unwritten: AbstractSet[str] = frozenset()
    tags: Mapping[str, Tagged] = dataclasses.field(default_factory=dict)
    label: Callable[[Any], str] | None = None


class Codec(Generic[T]):
    """Converts one frozen dataclass, and all that its fields hold, to plain JSON values and back.

    The regular form of a dataclass is an object with one key for each field, in their order. A field can be

    * ``str``, ``bool``, ``int``, ``float`` (finite), a ``NewType`` of one of them, or an enumeration (by its value);
    * another dataclass, or ``X | None`` (null);
    * ``tuple[X, ...]`` (an array), ``tuple[int, int]`` (an array of two), or ``Mapping[str, X]`` (an object);
    * ``Json``: anything that JSON can say. It is checked on writing, and kept on reading.

    Reading refuses unknown fields, missing fields and values of another type. What differs from the regular form is
    declared, class by class, in ``forms``. The modules of the classes postpone annotations
    (``from __future__ import annotations``) and import what their type hints name at run time.

    A document's module makes its codec once, and adds bytes and checks that concern several fields::

        _REQUEST: Final = Codec(Request, {Request: JsonForm(version=1, names={"log_id": "log"}, optional={"expires"})})

        def encode_request(request: Request) -> bytes:
            return dump_sealed(_REQUEST.to_json(request))

        def decode_request(data: bytes, where: str) -> Request:
            return _REQUEST.from_json(load_sealed(data, where), where)

    Args:
        kind: the dataclass.
        forms: how this class, or one of those it holds, differs from the regular form.

    >>> @dataclass(frozen=True)
    ... class Savepoint:
    ...     name: str
    ...     checkpoint: int
    ...     owner: str | None = None
    >>> codec = Codec(Savepoint, {Savepoint: JsonForm(names={"checkpoint": "id"}, at_least={"checkpoint": 0})})
    >>> codec.to_json(Savepoint("before-v2", 7))
    {'name': 'before-v2', 'id': 7, 'owner': None}
    >>> codec.from_json({"name": "before-v2", "id": 7, "owner": "me"}, "savepoint.json")
    Savepoint(name='before-v2', checkpoint=7, owner='me')
    >>> codec.from_json({"name": "before-v2", "id": -7, "owner": "me"}, "savepoint.json")
    Traceback (most recent call last):
    penstock.errors.CheckpointUnreadable: savepoint.json.id: The value must be a whole number from 0 on, and is -7 ...
    """

    def __init__(self, kind: type[T], forms: Mapping[type, JsonForm] | None = None) -> None:
        self._forms = forms or {}
        self._root = self._object(kind)

    def to_json(self, value: T) -> dict[str, object]:
        """The object of a value.

        Raises:
            InternalError: a field of type ``Json`` holds something that JSON cannot say.
        """
        document: dict[str, object] = self._root.write(value, "")
        return document

    def from_json(self, value: object, where: str) -> T:
        """The value of a parsed object; ``where`` is what messages call it: a file, or a path in one.

        Raises:
            CheckpointUnreadable: it is not exactly what ``to_json`` returns; names the field and the value.
        """
        made: T = self._root.read(value, where)
        return made

    def _object(self, kind: type) -> _Converter:
        form, hints = self._forms.get(kind, _REGULAR), get_type_hints(kind, localns={"Json": _AnyJson})
        unknown = {*form.names, *form.at_least, *form.optional, *form.unwritten, *form.tags} - hints.keys()
        if unknown:
            msg = f"The form of {kind.__name__} names fields that it does not have: {', '.join(sorted(unknown))}."
            raise InternalError(msg)
        fields = tuple(
            self._field(kind, field, hints[field.name], form)
            for field in dataclasses.fields(kind)
            if field.name not in form.unwritten
        )

        def write(value: Any, where: str) -> dict[str, object]:
            place = f"{form.label(value)}: " if form.label else f"{where}." if where else ""
            document: dict[str, object] = {} if form.version is None else {"format": form.version}
            for field in fields:
                field.put(document, getattr(value, field.name), place)
            return document

        def read(value: object, where: str) -> Any:
            with StrictFields(value, where) as rest:
                if form.version is not None:
                    _check_version(rest, form.version)
                return kind(**{field.name: field.get(rest) for field in fields})

        return _Converter(write, read)

    def _field(self, kind: type, field: dataclasses.Field[Any], hint: Any, form: JsonForm) -> _Field | _TaggedField:
        name, key = field.name, form.names.get(field.name, field.name)
        if name in form.tags:
            types = form.tags[name].types
            return _TaggedField(
                name=name,
                key=key,
                tag_key=form.tags[name].key,
                what=f"{form.tags[name].key} of {kind.__name__.lower()}",
                tags={each: tag for tag, each in types.items()},
                values={tag: self._object(each) for tag, each in types.items()},
            )
        default = None
        if name in form.optional:
            default = _default_of(field)
            hint = _without_none(hint)
        return _Field(name=name, key=key, converter=self._converter(hint, form.at_least.get(name)), default=default)

    def _converter(self, hint: Any, least: int | None) -> _Converter:
        """The converter of a type; ``least`` is the smallest number allowed in it."""
        if isinstance(hint, NewType):
            return self._converter(hint.__supertype__, least)
        if hint is int:
            return _Converter(_unchanged, partial(_read_int, least=least))
        if hint in _SCALARS:
            return _SCALARS[hint]
        if not isinstance(hint, type) or get_origin(hint) is not None:
            return self._composed(hint, least)
        return _enumeration(hint) if issubclass(hint, Enum) else self._object(hint)

    def _composed(self, hint: Any, least: int | None) -> _Converter:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in {Union, UnionType} and NoneType in arguments:
            return _nullable(self._converter(_without_none(hint), least))
        if origin is Mapping and arguments[0] is str:
            return _mapping(self._converter(arguments[1], least))
        if origin is tuple and arguments[1:] == (...,):
            return _array(self._converter(arguments[0], least))
        if origin is tuple and arguments == (int, int):
            return _Converter(lambda pair, _where: list(pair), partial(_read_pair, least=least))
        msg = f"{hint} has no form in JSON. See the types that Codec lists."
        raise InternalError(msg)


class _AnyJson:
    """Stands for ``Json`` in the type hints of a dataclass: the alias itself is recursive."""


class _Converter(NamedTuple):
    """The two directions of one type; ``where`` is for messages."""

    write: Callable[[Any, str], Any]
    read: Callable[[object, str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    key: str
    converter: _Converter
    default: Callable[[], object] | None
    """What the field has where it is left out; ``None`` if it is always there."""

    def put(self, document: dict[str, object], value: object, place: str) -> None:
        if self.default is None or value != self.default():
            document[self.key] = self.converter.write(value, place + self.key)

    def get(self, fields: StrictFields) -> object:
        if self.default is not None and not fields.has(self.key):
            return self.default()
        return fields.one(self.key, self.converter.read)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaggedField:
    name: str
    key: str
    tag_key: str
    what: str
    tags: Mapping[type, str]
    values: Mapping[str, _Converter]

    def put(self, document: dict[str, object], value: object, place: str) -> None:
        tag = self.tags[type(value)]
        document[self.tag_key] = tag
        document[self.key] = self.values[tag].write(value, place + self.key)

    def get(self, fields: StrictFields) -> object:
        tag = fields.text(self.tag_key)
        if tag not in self.values:
            known = ", ".join(sorted(self.values))
            msg = f"{fields.where}.{self.tag_key}: The {self.what} {tag!r} is unknown. Known are {known}."
            raise CheckpointUnreadable(msg)
        return fields.one(self.key, self.values[tag].read)


def _default_of(field: dataclasses.Field[Any]) -> Callable[[], object]:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    return lambda: field.default


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in {Union, UnionType}:
        return hint
    return Union[tuple(each for each in get_args(hint) if each is not NoneType)]  # noqa: UP007 - made of a tuple


def _enumeration(kinds: type[Enum]) -> _Converter:
    return _Converter(lambda member, _where: member.value, partial(_read_member, kinds))


def _nullable(inner: _Converter) -> _Converter:
    return _Converter(
        lambda value, where: None if value is None else inner.write(value, where),
        partial(_read_nullable, inner.read),
    )


def _array(inner: _Converter) -> _Converter:
    def write(values: Sequence[object], where: str) -> list[object]:
        return [inner.write(value, f"{where}[{index}]") for index, value in enumerate(values)]

    def read(values: object, where: str) -> tuple[object, ...]:
        if not isinstance(values, list):
            raise _wrong(where, "an array", values)
        return tuple(inner.read(value, f"{where}[{index}]") for index, value in enumerate(values))

    return _Converter(write, read)


def _mapping(inner: _Converter) -> _Converter:
    def write(values: Mapping[str, object], where: str) -> dict[str, object]:
        return {_string_key(key, where): inner.write(value, f"{where}.{key}") for key, value in values.items()}

    def read(values: object, where: str) -> dict[str, object]:
        if not isinstance(values, dict):
            raise _wrong(where, "an object", values)
        return {key: inner.read(value, f"{where}.{key}") for key, value in values.items()}

    return _Converter(write, read)


def to_plain_json(value: Json, where: str) -> object:
    """``value`` as JSON will give it back.

    Raises:
        InternalError: a connector or an operator has put something else into it; names the place.
    """
    if value is None or type(value) in {bool, int, str}:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, Mapping):
        return {_string_key(key, where): to_plain_json(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [to_plain_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    msg = f"{where}: {value!r} ({type(value).__name__}) cannot be written as JSON and read back the same."
    raise InternalError(msg)


def _string_key(key: object, where: str) -> str:
    if type(key) is not str:
        msg = f"{where}: Key {key!r} is a {type(key).__name__}, and JSON has only strings."
        raise InternalError(msg)
    return key


# ---- values of one type ---------------------------------------------------------------------------------------------


def _check_version(fields: StrictFields, version: int) -> None:
    found = fields.whole("format")
    if found != version:
        msg = (
            f"{fields.where}.format: The format is {found}, and this penstock reads {version}. Use the version that "
            "wrote it."
        )
        raise CheckpointUnreadable(msg)


def _unchanged(value: Any, _where: str) -> Any:
    return value


def _read_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, "a string", value)
    return value


def _read_flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(where, "true or false", value)
    return value


def _read_float(value: object, where: str) -> float:
    if type(value) not in {int, float}:
        raise _wrong(where, "a number", value)
    return value  # type: ignore[return-value]  # which is one of the two


def _read_int(value: object, where: str, least: int | None) -> int:
    if type(value) is not int:
        raise _wrong(where, "a whole number", value)
    if least is not None and value < least:
        raise _wrong(where, f"a whole number from {least} on", value)
    return value


def _read_pair(value: object, where: str, least: int | None) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:  # noqa: PLR2004 - a pair
        raise _wrong(where, "a pair of whole numbers", value)
    return _read_int(value[0], f"{where}[0]", least), _read_int(value[1], f"{where}[1]", least)


def _read_member(kinds: type[E], value: object, where: str) -> E:
    text = _read_text(value, where)
    for member in kinds:
        if member.value == text:
            return member
    raise _wrong(where, "one of " + ", ".join(repr(member.value) for member in kinds), value)


def _read_nullable(read: Callable[[object, str], T], value: object, where: str) -> T | None:
    return None if value is None else read(value, where)


def _wrong(where: str, wanted: str, value: object) -> CheckpointUnreadable:
    return CheckpointUnreadable(
        f"{where}: The value must be {wanted}, and is {_shown(value)} ({type(value).__name__})."
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


_REGULAR: Final = JsonForm()
_SCALARS: Final[Mapping[Any, _Converter]] = {
    str: _Converter(_unchanged, _read_text),
    bool: _Converter(_unchanged, _read_flag),
    float: _Converter(to_plain_json, _read_float),
    _AnyJson: _Converter(to_plain_json, _unchanged),
}
