"""JSON text to Arrow structs, many values at once, where Spark's ``from_json`` would give the same.

Sources that decode while they read use it: ``decoder_of`` in the driver, ``JsonDecoder.decode`` anywhere. A
value that may come out otherwise is left to Spark.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.clock import UTC, canonical_timezone

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


# ---- types -----------------------------------------------------------------------------------------------------------

# Where Spark reads a type in another way than pyarrow.json, it is read here as a wider type, and only those values are
# exact for which both were found to agree.

Array: TypeAlias = Any
"""An Arrow array; pyarrow has no types."""
Exactness: TypeAlias = Any
"""A boolean array without nulls: which values are exact, the same as Spark's. ``None``: all are."""
_SIMPLE: Final = {
    "BooleanType": pa.bool_(),
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "BinaryType": pa.binary(),
    "DateType": pa.date32(),
    "TimestampType": pa.timestamp("us", "UTC"),
    "TimestampNTZType": pa.timestamp("us"),
}
_DATE: Final = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME: Final = _DATE + r"[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_IS_DATE: Final = f"^{_DATE}$"
_IS_LOCAL: Final = f"^{_TIME}$"
# pyarrow takes offsets up to a day and leaves out minutes and seconds, Spark does not.
_IS_ZONED: Final = f"^{_TIME}(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$"


def arrow_type(kind: DataType) -> pa.DataType | None:
    """Spark's Arrow type for a type; ``None`` if its values cannot be read exactly here."""
    from pyspark.sql.types import ArrayType, DecimalType, StringType, StructType

    if isinstance(kind, StructType):
        return _struct_type(kind)
    if isinstance(kind, ArrayType):
        element = arrow_type(kind.elementType)
        return None if element is None else pa.list_(pa.field("element", element))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if kind == StringType():  # not CHAR, VARCHAR, nor one with a collation
        return pa.string()
    return _SIMPLE.get(type(kind).__name__)


def _struct_type(kind: StructType) -> pa.DataType | None:
    names = {name.lower() for name in kind.fieldNames()}
    types = [arrow_type(field.dataType) if field.nullable else None for field in kind.fields]
    if not types or None in types or len(names) < len(types):
        return None
    return pa.struct(list(zip(kind.fieldNames(), types, strict=True)))


def read_type(kind: pa.DataType) -> pa.DataType:
    """The type with which ``pyarrow.json`` reads values of an Arrow type."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, read_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(read_type(kind.value_type))
    if pa.types.is_integer(kind):
        return pa.int64()  # so that a number that is too big for a smaller type does not fail the whole block
    if pa.types.is_decimal(kind):
        # A number of many digits overflows 128 bits silently when it gets the scale of the type. 38 digits and a scale
        # of up to 38 always fit into 256 bits.
        return pa.decimal256(38, kind.scale)
    if pa.types.is_temporal(kind) or pa.types.is_binary(kind):
        return pa.string()
    return kind


def exact_values(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Exactness]:
    """Values with their final type, and which of them are exactly what Spark would give.

    Args:
        array: of the type ``read_type``.
        kind: the final Arrow type.
        is_utc: whether times without a zone are in UTC.

    Raises:
        pyarrow.ArrowInvalid: a value cannot be converted, such as a day that a month does not have.

    >>> numbers, exact = exact_values(pa.array([1, 1000, None]), pa.int8(), is_utc=False)
    >>> numbers.to_pylist(), exact.to_pylist()
    ([1, None, None], [True, False, True])
    """
    for is_kind, convert in _CONVERSIONS:
        if is_kind(kind):
            return convert(array, kind, is_utc=is_utc)
    return array, None


def exact_in_both(first: Exactness, second: Exactness) -> Exactness:
    """Which values are exact in both."""
    if first is None or second is None:
        return second if first is None else first
    return pc.and_(first, second)


def _struct(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Exactness]:
    exact = None
    children = []
    for index, field in enumerate(kind):
        child, child_exact = exact_values(array.field(index), field.type, is_utc=is_utc)
        children.append(child)
        exact = exact_in_both(exact, child_exact)
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask), exact


def _list(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Exactness]:
    values, exact = exact_values(array.values, kind.value_type, is_utc=is_utc)
    mask = array.is_null() if array.null_count else None
    lists = pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=mask)
    if exact is None:
        return lists, None
    inexact = pc.list_parent_indices(lists).filter(pc.invert(exact))
    return lists, pc.invert(pc.is_in(pa.array(range(len(lists)), inexact.type), value_set=inexact))


def _integers(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Exactness]:
    del is_utc
    half = 2 ** (kind.bit_width - 1)
    return _within(array, kind, -half, half - 1)


def _decimals(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Exactness]:
    del is_utc
    most = Decimal((0, (9,) * kind.precision, -kind.scale))
    return _within(array, kind, -most, most)


def _within(array: Array, kind: pa.DataType, least: int | Decimal, most: int | Decimal) -> tuple[Array, Exactness]:
    try:
        return array.cast(kind), None
    except pa.ArrowInvalid:
        low, high = pa.scalar(least, array.type), pa.scalar(most, array.type)
        return _only(array, pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high)), kind)


def _floats(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Exactness]:
    """Floating-point numbers. Spark reads ``-0`` as a positive zero, but not ``-0.0``."""
    del kind, is_utc
    minus_zero = -(2 ** (array.type.bit_width - 1))
    bits = array.view(pa.int64() if pa.types.is_float64(array.type) else pa.int32())
    exact = pc.and_(pc.is_finite(array), pc.not_equal(bits, minus_zero))
    return array, None if pc.all(exact).as_py() is not False else pc.fill_null(exact, True)


def _times(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Exactness]:
    if pa.types.is_date(kind):
        return _only(array, pc.match_substring_regex(array, _IS_DATE), kind)
    if kind.tz is not None and are_of_one_form(array):
        return array.cast(kind), None
    if kind.tz is None:
        return _only(array, pc.match_substring_regex(array, _IS_LOCAL), kind)
    zoned = pc.match_substring_regex(array, _IS_ZONED)
    if is_utc and pc.all(zoned).as_py() is False:
        local = pc.match_substring_regex(array, _IS_LOCAL)
        array = pc.if_else(local, pc.binary_join_element_wise(array, "Z", ""), array)
        zoned = pc.or_(zoned, local)
    return _only(array, zoned, kind)


_FORM: Final = b"0000-00-00T00:00:00.000000"
_MOST: Final = b"9999-19-39T29:59:59.999999"
_TO_SECONDS: Final = 19
"""Characters of a time up to its seconds."""


def are_of_one_form(array: Array) -> bool:
    """Whether all texts are ``yyyy-MM-ddTHH:mm:ssZ``, or all so with the same number of digits of a second.

    ``_IS_ZONED`` matches them too, and takes four times as long. A day that the month does not have is not noticed.

    >>> are_of_one_form(pa.array(["2026-01-31T23:59:59Z", "2026-01-31T24:00:00Z"]))
    False
    """
    if not len(array) or array.null_count:
        return False
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    size = int(offsets[1] - offsets[0])
    fraction = size - 1 - _TO_SECONDS  # with its point
    if not (fraction == 0 or 2 <= fraction <= len(_FORM) - _TO_SECONDS) or (np.diff(offsets) != size).any():  # noqa: PLR2004
        return False
    texts = np.frombuffer(array.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].reshape(-1, size)
    least, most = (np.frombuffer(each[: size - 1] + b"Z", np.uint8) for each in (_FORM, _MOST))
    if not ((texts >= least) & (texts <= most)).all():
        return False
    month, day, hour = (texts[:, at].astype(np.int16) * 10 + texts[:, at + 1] - 11 * ord("0") for at in (5, 8, 11))
    return bool(((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (hour <= 23)).all())  # noqa: PLR2004


def _bytes(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Exactness]:
    del kind, is_utc
    values = [None if text is None else _decode_base64(text) for text in array.to_pylist()]
    found = pa.array(values, pa.binary())
    return found, None if found.null_count == array.null_count else pc.or_(found.is_valid(), array.is_null())


def _decode_base64(text: str) -> bytes | None:
    """The bytes of canonical base64; ``None`` for any other text."""
    try:
        value = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return value if base64.b64encode(value).decode() == text else None


def _only(array: Array, exact: Array, kind: pa.DataType) -> tuple[Array, Exactness]:
    """The exact values with their final type; the others become null. Nulls are exact."""
    if pc.all(exact).as_py() is not False:
        return array.cast(kind), None
    exact = pc.fill_null(exact, True)
    return pc.if_else(exact, array, None).cast(kind), exact


_CONVERSIONS: Final = (
    (pa.types.is_struct, _struct),
    (pa.types.is_list, _list),
    (pa.types.is_floating, _floats),
    (pa.types.is_integer, _integers),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_temporal, _times),
    (pa.types.is_binary, _bytes),
)


# ---- decoding --------------------------------------------------------------------------------------------------------

# pyarrow.json reads blocks of text. It accepts text that Spark refuses, gives other values for some texts, and one bad
# value fails its block, or even ends the process. So values are screened before they are read and checked afterwards
# (exact_values), and a block that cannot be read is cut.

_BLOCK_ROWS: Final = 16_384
_MAX_LINES: Final = 65_536  # pyarrow takes no more than 100,000 rows
_BLOCK_BYTES: Final = 4 * 1024 * 1024
_MAX_VALUE_BYTES: Final = 32 * 1024
"""Longer values are left to Spark. So no name has more than the 50,000 characters that Jackson accepts."""
_MAX_DEPTH: Final = 900
"""Most levels of a value, and most digits of a number. Jackson accepts 1,000, and Spark's envelope is two."""
_SPACE: Final = b" \t\r\n"
_LOOK_BACK: Final = 32
"""Bytes before a bare word that are searched for the beginning of a value."""
_DIGITS: Final = bytes(48 if chr(code) in "0123456789.eE+-" else 32 for code in range(256))
# pyarrow reads more such words as numbers than Jackson does, also in fields that are not read.
_WORDS: Final = (b"NaN", b"Inf")
_BEFORE_VALUE: Final = (b":", b"[", b",", b"")
# How an error of pyarrow names the row that it cannot read, or the text that is no number.
_ROW: Final = re.compile(r" in row (\d+)$")
_NUMBER: Final = re.compile(r"(?:parse:|\d\): |string ')([-+.0-9eE]+)")
_MAX_FAILURES: Final = 16
"""Failed reads of a block, or of parts of it, after which the rest is left to Spark."""
_ROWS_PER_FAILURE: Final = 200
"""One more failure is allowed per 200 rows read: a failure costs two more reads, each as long as 200 rows take."""
_MAX_FAILED_ROWS: Final = 5
"""Most rows that failed reads may look at, in multiples of the rows of the block."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result of decoding some values, in their order.

    Attributes:
        records: a struct array (column ``DECODED_RECORD``); null where there is no record.
        rest: a binary array: the values that Spark has to decode, null elsewhere.
        missing: number of values without a record, null values included (metric ``UNDECODED_METRIC``).
    """

    records: Array
    rest: Array
    missing: int


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """Decodes JSON objects of one schema. Can be pickled.

    Attributes:
        record: Spark's Arrow type of the records.
        is_utc: whether the session's time zone is UTC, so that times without a zone can be decoded here.
    """

    record: Any
    is_utc: bool = False

    def in_zone(self, zone: str | None) -> JsonDecoder:
        """The decoder for a session of this time zone (``spark.sql.session.timeZone``)."""
        return replace(self, is_utc=zone is not None and canonical_timezone(zone) == UTC)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode the values whose result is exact.

        >>> decoder = JsonDecoder(pa.struct([("id", pa.int64())]))
        >>> decoded = decoder.decode([b'{"id": 1}', b"{", None])
        >>> decoded.records.to_pylist(), decoded.rest.to_pylist(), decoded.missing
        ([{'id': 1}, None, None], [None, b'{', None], 2)
        """
        blocks = [self._block(block) for block in _blocks(values)]
        records = blocks[0] if len(blocks) == 1 else pa.concat_arrays([pa.array([], self.record), *blocks])
        if not records.null_count:
            return Decoded(records, pa.nulls(len(values), pa.binary()), 0)
        rest = pc.if_else(records.is_null(), pa.array(values, pa.binary()), None)
        return Decoded(records, rest, records.null_count)

    def decode_lines(self, text: bytes) -> Array | None:
        r"""The records of lines of text, if all are exact; ``None`` if ``decode`` has to look at each of them.

        It takes half as long. The last line has no end; there is at least one.

        >>> decoder = JsonDecoder(pa.struct([("id", pa.int64())]))
        >>> decoder.decode_lines(b'{"id": 1}\n{"id": 2}').to_pylist(), decoder.decode_lines(b'{"id": 1}\n')
        ([{'id': 1}, {'id': 2}], None)
        """
        rows = _readable_lines(text)
        if not rows:
            return None
        try:
            records, exact = self._read_exactly(text, rows)
        except pa.ArrowInvalid:
            return None
        return records if exact is None else None

    def _block(self, values: Sequence[bytes | None]) -> Array:
        """The records of the values of a block, null where there is none."""
        indexes: Sequence[int]
        texts: Sequence[bytes]
        lines = _lines(values)
        if lines is not None:
            indexes, texts = range(len(values)), values  # type: ignore[assignment]  # none is null
        else:
            indexes, texts = _readable(values)
        parts = [pa.array([], self.record)]
        taken: list[int | None] = [None] * len(values)
        count = 0
        for start, records in self._read_parts(texts, lines):
            if len(records) == len(values):
                return records
            parts.append(records)
            for number, index in enumerate(indexes[start : start + len(records)], start=count):
                taken[index] = number
            count += len(records)
        return pa.concat_arrays(parts).take(pa.array(taken, pa.int64()))

    def _read_parts(self, texts: Sequence[bytes], lines: bytes | None) -> Iterator[tuple[int, Array]]:
        """Records of texts that were read together, and the index of the first one. ``lines``: all texts, if joined.

        Each text that cannot be read costs its block a few more reads. If there are many, that costs more than it
        saves, and the rest of the block is left to Spark.
        """
        ranges = [(0, len(texts))] if texts else []
        failures, rows = _MAX_FAILURES, _MAX_FAILED_ROWS * len(texts)
        while ranges and failures > 0 and rows > 0:
            start, end = ranges.pop()
            if lines is None or end - start < len(texts):
                lines = b"\n".join(texts[start:end])
            try:
                records = self._read(lines, end - start)
            except pa.ArrowInvalid as error:
                is_syntax, bad = _bad_row(str(error), texts[start:end])
                failures -= 1
                rows -= bad if bad is not None and is_syntax else end - start
                ranges += _cut(start, end, bad)
            else:
                yield start, records
                failures += (end - start) // _ROWS_PER_FAILURE

    def _read(self, lines: bytes, rows: int) -> Array:
        """The records of ``_lines``, null where one is not exact.

        Raises:
            pyarrow.ArrowInvalid: one of them cannot be read.
        """
        records, exact = self._read_exactly(lines, rows)
        return records if exact is None else pc.if_else(exact, records, None)

    def _read_exactly(self, lines: bytes, rows: int) -> tuple[Array, Exactness]:
        text = lines + b"\n"
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=_parse_options(self.record),
        )
        if table.num_rows != rows:
            msg = "two objects in one value"
            raise pa.ArrowInvalid(msg)
        columns = [column.combine_chunks() for column in table.columns]
        read = pa.StructArray.from_arrays(columns, names=table.column_names)
        return exact_values(read, self.record, is_utc=self.is_utc)


def decoder_of(record: StructType) -> JsonDecoder | None:
    """A decoder of a record with these fields, or ``None`` if only Spark can decode one of their types.

    Those are ``MAP``, ``VARIANT``, intervals, ``TIME``, ``CHAR``, ``VARCHAR``, collated strings, structs without
    fields, with two fields of one name (case does not count) or one that is ``NOT NULL``, and types of a user's own.
    ``BINARY`` is base64.

    Within the others, some values are left to Spark: a number or an object for a ``STRING``; anything but
    ``yyyy-MM-dd`` for a ``DATE``; anything but ``yyyy-MM-ddTHH:mm:ss[.ffffff]`` with ``Z`` or ``+hh:mm`` for a
    ``TIMESTAMP`` (without a zone too where the session is in UTC), and without a zone for a ``TIMESTAMP_NTZ``; a
    decimal that would be rounded; a negative zero; ``NaN`` and ``Infinity``; a field that appears twice; and records
    that are long (32 KiB) or deep.
    """
    kind = arrow_type(record)
    return None if kind is None else JsonDecoder(kind)


@lru_cache(maxsize=64)
def _parse_options(record: pa.DataType) -> Any:
    fields = [(field.name, read_type(field.type)) for field in record]
    return pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")


def _blocks(values: Sequence[bytes | None]) -> Iterator[Sequence[bytes | None]]:
    """The values in blocks of a size that is read at once."""
    ranges = [(start, min(start + _BLOCK_ROWS, len(values))) for start in range(0, len(values), _BLOCK_ROWS)]
    ranges.reverse()
    while ranges:
        start, end = ranges.pop()
        block = values[start:end]
        if end - start > 1 and sum(map(len, filter(None, block))) > _BLOCK_BYTES:
            ranges += _cut(start, end, None)
        else:
            yield block


def _readable(values: Sequence[bytes | None]) -> tuple[Sequence[int], Sequence[bytes]]:
    """The values that can be read together, and their indexes."""
    present = [(index, value.strip(_SPACE)) for index, value in enumerate(values) if value is not None]
    indexes, texts = [index for index, _ in present], [text for _, text in present]
    found: list[int] = []
    ranges = [(0, len(texts))] if texts else []
    while ranges:
        start, end = ranges.pop()
        if _lines(texts[start:end]) is not None:
            found += range(start, end)
        elif end - start > 1:
            ranges += _cut(start, end, None)
    return [indexes[number] for number in found], [texts[number] for number in found]


def _lines(values: Sequence[bytes | None]) -> bytes | None:
    """The values as lines of text, if they can be read together. The last line has no end."""
    texts: Sequence[bytes] = values  # type: ignore[assignment]  # a null value cannot be joined
    try:
        lines = b"\n".join(texts)
    except TypeError:
        return None
    return lines if _readable_lines(lines) == len(texts) or _can_be_read(texts, lines) else None


def _can_be_read(texts: Sequence[bytes], joined: bytes) -> bool:
    """Whether the texts, at least one, can be read together. Slower than ``_readable_lines``, for any text.

    Each must begin and end with a brace. A block of nothing but ``null`` would end the process. And two texts cannot be
    read as one: between the brace that ends one and the brace that begins the next, pyarrow accepts only the end of an
    object, so each text is one or more objects.
    """
    longest = max(map(len, texts))
    try:
        first, last = set(map(itemgetter(0), texts)), set(map(itemgetter(-1), texts))
    except IndexError:  # one is empty
        return False
    if first != {ord("{")} or last != {ord("}")} or longest > _MAX_VALUE_BYTES:
        return False
    if b"\0" in joined or _has_bare_word(joined):
        return False
    if longest > _MAX_DEPTH and (
        b"0" * _MAX_DEPTH in joined.translate(_DIGITS) or max(map(_max_levels, texts)) > _MAX_DEPTH
    ):
        return False
    return _is_utf8(joined)


def _readable_lines(text: bytes) -> int:
    """The number of lines, if each is one value, none is long, and ``_can_be_read`` would say so; 0 if not."""
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    bounds = np.concatenate(([-1], ends, [len(text)]))
    if len(bounds) > _MAX_LINES or np.diff(bounds).max() > _MAX_DEPTH:
        return 0
    if text[:1] != b"{" or text[-1:] != b"}":
        return 0
    if (data[ends - 1] != ord("}")).any() or (data[ends + 1] != ord("{")).any():
        return 0
    is_sound = b"\0" not in text and not _has_bare_word(text) and _is_utf8(text)
    return len(ends) + 1 if is_sound else 0


def _has_bare_word(text: bytes) -> bool:
    """Whether ``NaN`` or ``Inf`` may be a number: it follows the beginning of a value, not other text."""
    data = np.frombuffer(text, np.uint8)  # a search for the words takes four times as long as one for their letters
    for word in _WORDS:
        starts = np.flatnonzero(data[: 1 - len(word)] == word[0])
        for place in range(1, len(word)):
            starts = starts[data[starts + place] == word[place]]
        for start in starts.tolist():
            before = text[max(0, start - _LOOK_BACK) : start].rstrip(_SPACE + b"-")
            if before[-1:] in _BEFORE_VALUE:
                return True
    return False


def _max_levels(text: bytes) -> int:
    """An upper bound of the levels of a value."""
    return text.count(b"{") + text.count(b"[")


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _cut(start: int, end: int, bad: int | None) -> list[tuple[int, int]]:
    """What to read of a range that failed, the first part last: all but the bad row if known, or two halves."""
    if bad is None and end - start > 1:
        middle = (start + end) // 2
        return [(middle, end), (start, middle)]
    middle = start + (bad or 0)
    return [(cut, stop) for cut, stop in ((middle + 1, end), (start, middle)) if cut < stop]


def _bad_row(message: str, texts: Sequence[bytes]) -> tuple[bool, int | None]:
    """Whether a block was read only up to the bad text, and the index of that text, if the error says so.

    A wrong index is harmless: a good text is then left to Spark.
    """
    if found := _ROW.search(message):
        row = int(found[1])
        return True, row if row < len(texts) else None
    if found := _NUMBER.search(message):
        digits = found[1].encode()
        number = re.compile(rb"(?<![-+.0-9eE])" + re.escape(digits) + rb"(?![-+.0-9eE])")
        return False, next((index for index, text in enumerate(texts) if digits in text and number.search(text)), None)
    return False, None
