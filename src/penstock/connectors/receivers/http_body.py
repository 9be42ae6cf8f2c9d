"""The body of a webhook's request as rows: decompressed within limits, cut into records, decoded as declared."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.receivers.http_admission import JSON_LINES, HttpAnswer, refused, too_large
from penstock.errors import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.formats.json_arrow import JsonDecoder


class BodyRefused(Exception):
    """A body that is not taken at all; ``answer`` says why."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(answer.document["error"])
        self.answer = answer


# ---- bytes -----------------------------------------------------------------------------------------------------------


_PART: Final = 4096
"""Bytes given to zlib at a time."""  # it copies what follows a gzip member


def decompressed(body: bytes, encoding: str, most: int) -> bytes:
    """The decompressed body, of at most ``most`` bytes. A body in neither encoding is returned as it is.

    A gzip body may have several members; their contents are joined.

    Raises:
        BodyRefused: it is longer, or is not what its encoding says.

    >>> decompressed(zlib.compress(b"[1]"), "deflate", 3)
    b'[1]'
    """
    name = encoding.strip().lower()
    if name not in ("gzip", "deflate"):
        return body
    window = zlib.MAX_WBITS | (16 if name == "gzip" else 0)
    data, at, unpacker = bytearray(), 0, zlib.decompressobj(window)
    try:
        while at < len(body) and len(data) <= most and (name == "gzip" or not unpacker.eof):
            if unpacker.eof:  # the next member begins
                unpacker = zlib.decompressobj(window)
            part = body[at : at + _PART]
            data += unpacker.decompress(part, most + 1 - len(data))
            at += len(part) - len(unpacker.unused_data)
        is_whole = unpacker.eof and at == len(body)
    except zlib.error:
        is_whole = False
    if len(data) > most:
        raise BodyRefused(too_large(most))
    if not is_whole:
        raise BodyRefused(refused(400, f"The body is not {name}. Send it as its Content-Encoding says."))
    return bytes(data)


_STRING: Final = re.compile(rb'"[^"]*"?')
"""A string without escaped characters."""  # a pattern with alternatives takes 100 bytes of memory per character
_ALL_BUT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_BRACKET: Final = re.compile(rb"[\[{]")


def is_deeper(text: bytes, most: int) -> bool:
    """Whether JSON has more levels of objects and arrays than ``most``; found without reading it.

    >>> is_deeper(b'{"a": [1]}', 1), is_deeper(b'{"a": [1]}', 2), is_deeper(b'["[[["]', 1)
    (True, False, False)
    """
    if text.count(b"{") + text.count(b"[") <= most:
        return False
    level = 0
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    for bracket in _STRING.sub(b"", unescaped).translate(None, _ALL_BUT_BRACKETS):
        level += 1 if bracket in b"[{" else -1
        if level > most:
            return True
    return False


# ---- records ---------------------------------------------------------------------------------------------------------

_MOST_DIGITS: Final = 400
"""Most characters of a number. Reading a whole number takes time with the square of its length."""


def _whole_number(text: str) -> int:
    return int(_checked(text))


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(_checked(text))
    except InvalidOperation as error:
        msg = "a number has an exponent that is too large"
        raise ValueError(msg) from error


def _checked(text: str) -> str:
    if len(text) > _MOST_DIGITS:
        msg = f"a number has more than {_MOST_DIGITS} digits"
        raise ValueError(msg)
    return text


def _no_constant(text: str) -> float:
    msg = f"{text} is no JSON"
    raise ValueError(msg)


def loads(text: bytes) -> Any:
    """The value of a JSON text, without ``NaN`` and ``Infinity``. Numbers with a point or an exponent are ``Decimal``.

    Raises:
        ValueError: the text is not JSON, or a number has too many digits or too large an exponent.
        RecursionError: it has too many levels.
    """
    return json.loads(text, parse_int=_whole_number, parse_float=_decimal, parse_constant=_no_constant)


def as_declared(value: Any, kind: pa.DataType, name: str = "it") -> Any:
    """A value of JSON as Arrow takes it for a type; fields that are not declared are left out.

    Raises:
        TypeError: it has another type.

    >>> import pyarrow as pa
    >>> as_declared({"id": 1, "more": []}, pa.struct([("id", pa.int64())]))
    {'id': 1}
    """
    import pyarrow as pa

    types, wanted = _expected(kind)
    if value is None:
        return None
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        msg = f"{name} is not {wanted}"
        raise TypeError(msg)
    if isinstance(value, dict):
        return {each.name: as_declared(value.get(each.name), each.type, each.name) for each in kind}
    if isinstance(value, list):
        return [as_declared(each, kind.value_type, name) for each in value]
    given: Any = value
    if pa.types.is_floating(kind):
        return float(given) + 0.0  # no negative zero
    return Decimal(given) if pa.types.is_decimal(kind) else given


@lru_cache(maxsize=256)
def _expected(kind: pa.DataType) -> tuple[tuple[type, ...], str]:
    """The Python types of JSON values for an Arrow type, and what to call them."""
    import pyarrow as pa

    for fits, types, wanted in (
        (pa.types.is_struct, (dict,), "an object"),
        (pa.types.is_list, (list,), "an array"),
        (pa.types.is_boolean, (bool,), "true or false"),
        (pa.types.is_integer, (int,), "a whole number"),
        (pa.types.is_floating, (int, Decimal), "a number"),
        (pa.types.is_decimal, (int, Decimal), "a number"),
    ):
        if fits(kind):
            return types, wanted
    return (str,), "a text"


@dataclass(frozen=True, slots=True)
class DecodedBody:
    """The rows of a request.

    Attributes:
        rows: the good rows, in Arrow's types of the declared columns.
        bad: the text of each bad record, and what is wrong with it.
    """

    rows: pa.Table
    bad: tuple[tuple[str, str], ...] = ()


class BodyReader:
    """Reads bodies as rows.

    Args:
        decoder: of the declared columns.
        max_depth: most levels of a record.
    """

    def __init__(self, decoder: JsonDecoder, max_depth: int) -> None:
        self._decoder = decoder
        self._max_depth = max_depth

    def read(self, body: bytes, kind: str) -> DecodedBody:
        """The rows of a body: JSON lines, an array, or one object.

        Raises:
            BodyRefused: it is none of these, or has too many levels.
        """
        text = body.strip(b" \t\r\n")
        if kind in JSON_LINES or _begins_with_a_line(text):
            return self._lines(text)
        first = _BRACKET.search(text)
        is_array = first is not None and first[0] == b"["
        if is_deeper(text, self._max_depth + is_array):  # the array itself is a level
            raise BodyRefused(refused(400, f"The body has more than {self._max_depth} levels. Send flatter records."))
        try:
            value = loads(text)
        except (ValueError, RecursionError) as error:
            why = "it is no UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            raise BodyRefused(refused(400, f"The body is not JSON: {sentence(why)} Nothing was stored.")) from error
        return self._values(value, text)

    def _lines(self, text: bytes) -> DecodedBody:
        import pyarrow as pa

        lines = [line for line in text.split(b"\n") if line.strip()]
        deep = [is_deeper(line, self._max_depth) for line in lines]
        if lines and not any(deep):
            found = self._decoder.decode_lines(text)
            if found is not None:
                return DecodedBody(_table(found))
        taken = [line for line, is_deep in zip(lines, deep, strict=True) if not is_deep]
        records = self._decoder.decode(taken).records if taken else pa.array([], self._decoder.record)
        bad = [
            (_shown(line), f"more than {self._max_depth} levels")
            for line, is_deep in zip(lines, deep, strict=True)
            if is_deep
        ]
        if not records.null_count:
            return DecodedBody(_table(records), tuple(bad))
        parts: list[Any] = []
        start = 0
        for at, is_valid in enumerate(records.is_valid().to_pylist()):
            if not is_valid:  # where the quick decoder is not sure
                parts.append(records.slice(start, at - start))
                start = at + 1
                try:
                    parts.append(self._exactly([loads(taken[at])]))
                except (ValueError, RecursionError, TypeError, OverflowError) as error:
                    bad.append((_shown(taken[at]), _reason(error)))
        parts.append(records.slice(start))
        return DecodedBody(_table(pa.concat_arrays(parts)), tuple(bad))

    def _values(self, value: Any, text: bytes) -> DecodedBody:
        """The rows of an array or of one object, whose text is only read for bad records."""
        import pyarrow as pa

        values = value if isinstance(value, list) else [value]
        parts, reasons = [pa.array([], self._decoder.record)], {}
        ranges = [(0, len(values))]
        while ranges:
            start, end = ranges.pop()
            try:
                parts.append(self._exactly(values[start:end]))
            except (ValueError, TypeError, OverflowError) as error:
                if end - start == 1:
                    reasons[start] = _reason(error)
                    continue
                middle = (start + end) // 2  # one of them is bad: look at each half
                ranges += [(middle, end), (start, middle)]
        rows = _table(pa.concat_arrays(parts))
        if not reasons:
            return DecodedBody(rows)
        source = text.decode(json.detect_encoding(text), "surrogatepass")  # as json.loads does
        texts = _elements(source) if isinstance(value, list) else [source]
        bad = [
            (_shown(each.encode("utf-8", "surrogatepass")), reasons[at])
            for at, each in enumerate(texts)
            if at in reasons
        ]
        return DecodedBody(rows, tuple(bad))

    def _exactly(self, values: list[Any]) -> Any:
        """Values as records.

        Raises:
            ValueError: one is no object, or a field does not have the type of its column.
            TypeError: likewise.
            OverflowError: a number is too large.
        """
        import pyarrow as pa

        from penstock.formats.json_arrow import exact_values, read_type

        kind = self._decoder.record
        if None in values:
            msg = "it is not an object"
            raise TypeError(msg)
        read = pa.array([as_declared(value, kind) for value in values], read_type(kind))
        records, exact = exact_values(read, kind, is_utc=self._decoder.is_utc)
        if exact is not None and not all(exact.to_pylist()):
            msg = "a value does not have the type of its column"
            raise ValueError(msg)
        return records


_JSON: Final = json.JSONDecoder()
_NEXT: Final = re.compile(r"[^ \t\r\n,]")


def _elements(array: str) -> Iterator[str]:
    """The text of each element of a JSON array.

    >>> list(_elements('[1.50, {"a": "]"}]'))
    ['1.50', '{"a": "]"}']
    """
    at = array.index("[") + 1
    while (found := _NEXT.search(array, at)) and found[0] != "]":
        _, at = _JSON.raw_decode(array, found.start())
        yield array[found.start() : at]


def _begins_with_a_line(text: bytes) -> bool:
    """Whether the first line of several is a record by itself."""
    line, newline, _ = text.partition(b"\n")
    if not newline or not line.rstrip().endswith(b"}") or not line.startswith(b"{"):
        return False
    try:
        loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _table(records: Any) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(records)])


def _shown(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
