"""The body of a webhook's request as rows: decompressed within limits, cut into records, decoded as declared."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.receivers.http_admission import JSON_LINES, HttpAnswer, refused, too_large
from penstock.errors import sentence

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.formats.json_arrow import JsonDecoder


class BodyRefused(Exception):
    """A body that is not taken at all; ``answer`` says why."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(answer.document["error"])
        self.answer = answer


# ---- bytes -----------------------------------------------------------------------------------------------------------


def decompressed(body: bytes, encoding: str, most: int) -> bytes:
    """The bytes of a body, at most ``most``.

    Raises:
        BodyRefused: it is longer, or is not what its encoding says.

    >>> decompressed(zlib.compress(b"[1]"), "deflate", 3)
    b'[1]'
    """
    name = encoding.strip().lower()
    if name not in ("gzip", "deflate"):
        return body
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | (16 if name == "gzip" else 0))
    try:
        data = unpacker.decompress(body, most + 1)
    except zlib.error:
        data = None
    if data is not None and len(data) > most:
        raise BodyRefused(too_large(most))
    if data is None or not unpacker.eof or unpacker.unused_data:
        raise BodyRefused(refused(400, f"The body is not {name}. Send it as its Content-Encoding says."))
    return data


_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_ALL_BUT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def is_deeper(text: bytes, most: int) -> bool:
    """Whether JSON has more levels of objects and arrays than ``most``; found without reading it.

    >>> is_deeper(b'{"a": [1]}', 1), is_deeper(b'{"a": [1]}', 2), is_deeper(b'["[[["]', 1)
    (True, False, False)
    """
    if text.count(b"{") + text.count(b"[") <= most:
        return False
    level = 0
    for bracket in _STRING.sub(b"", text).translate(None, _ALL_BUT_BRACKETS):
        level += 1 if bracket in b"[{" else -1
        if level > most:
            return True
    return False


# ---- records ---------------------------------------------------------------------------------------------------------

_MOST_DIGITS: Final = 400
"""Longer whole numbers are refused: reading one takes time with the square of its length."""


def _whole_number(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        msg = f"a number has more than {_MOST_DIGITS} digits"
        raise ValueError(msg)
    return int(text)


def _decimal(text: str) -> Decimal:
    if len(text) > _MOST_DIGITS:
        msg = f"a number has more than {_MOST_DIGITS} digits"
        raise ValueError(msg)
    return Decimal(text)


def _no_constant(text: str) -> float:
    msg = f"{text} is no JSON"
    raise ValueError(msg)


def loads(text: bytes) -> Any:
    """JSON as the standard has it, with ``Decimal`` for numbers with a point.

    Raises:
        ValueError: it is none.
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
            BodyRefused: it is none of these.
        """
        text = body.strip(b" \t\r\n")
        if kind in JSON_LINES or _begins_with_a_line(text):
            return self._lines(text)
        if is_deeper(text, self._max_depth + 1):
            raise BodyRefused(refused(400, f"The body has more than {self._max_depth} levels. Send flatter records."))
        try:
            value = loads(text)
        except (ValueError, RecursionError) as error:
            why = "it is no UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            raise BodyRefused(refused(400, f"The body is not JSON: {sentence(why)} Nothing was stored.")) from error
        return self._values(value if isinstance(value, list) else [value])

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

    def _values(self, values: list[Any]) -> DecodedBody:
        """The rows of values of an array."""
        import pyarrow as pa

        try:
            return DecodedBody(_table(self._exactly(values)))
        except (ValueError, TypeError, OverflowError):
            pass  # one of them is bad
        parts, bad = [pa.array([], self._decoder.record)], []
        for value in values:
            try:
                parts.append(self._exactly([value]))
            except (ValueError, TypeError, OverflowError) as error:
                bad.append((json.dumps(value, default=_as_number), _reason(error)))
        return DecodedBody(_table(pa.concat_arrays(parts)), tuple(bad))

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


def _as_number(value: Decimal) -> float:
    return float(value)


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
