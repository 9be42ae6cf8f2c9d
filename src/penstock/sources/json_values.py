"""Types of JSON records in Arrow: how ``pyarrow.json`` is to read each, and of which values Spark has the same idea.

Knows nothing of text and blocks. Where a type is read otherwise by Spark, it is read here as something wider and only
those values are certain for which both were found to agree; see :func:`certain`.
"""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

Array: TypeAlias = Any
"""An Arrow array; pyarrow has no types."""

Sure: TypeAlias = Any
"""A boolean array without nulls: for each value whether it is certain. ``None``: all are."""

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
    """The Arrow type that Spark has for a type; ``None`` if values of it cannot be read here with certainty."""
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
    """As what ``pyarrow.json`` is to read values of an Arrow type."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, read_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(read_type(kind.value_type))
    if pa.types.is_integer(kind):
        return pa.int64()  # one that is too big for a smaller type does not spoil the block then
    if pa.types.is_decimal(kind):
        # 128 bits overflow without a word when a number of many digits gets the scale of the type. 38 digits and a
        # scale of up to 38 always fit into 256 bits.
        return pa.decimal256(38, kind.scale)
    if pa.types.is_temporal(kind) or pa.types.is_binary(kind):
        return pa.string()
    return kind


def certain(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Sure]:
    """Values as they were read, as the type they are to have, and which of them are what Spark would give.

    Args:
        array: of the type that :func:`read_type` tells.
        kind: the Arrow type wanted.
        is_utc: whether times without a zone are meant in UTC.

    Raises:
        pyarrow.ArrowInvalid: one is of no use, no telling which: a day that a month does not have.

    >>> numbers, sure = certain(pa.array([1, 1000, None]), pa.int8(), is_utc=False)
    >>> numbers.to_pylist(), sure.to_pylist()
    ([1, None, None], [True, False, True])
    """
    for is_kind, convert in _CONVERSIONS:
        if is_kind(kind):
            return convert(array, kind, is_utc=is_utc)
    return array, None


def both(first: Sure, second: Sure) -> Sure:
    """What is certain in both."""
    if first is None or second is None:
        return second if first is None else first
    return pc.and_(first, second)


def _struct(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Sure]:
    sure = None
    children = []
    for place, field in enumerate(kind):
        child, child_sure = certain(array.field(place), field.type, is_utc=is_utc)
        children.append(child)
        sure = both(sure, child_sure)
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask), sure


def _list(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Sure]:
    values, sure = certain(array.values, kind.value_type, is_utc=is_utc)
    mask = array.is_null() if array.null_count else None
    lists = pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=mask)
    if sure is None:
        return lists, None
    unsure = pc.list_parent_indices(lists).filter(pc.invert(sure))
    return lists, pc.invert(pc.is_in(pa.array(range(len(lists)), unsure.type), value_set=unsure))


def _integers(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Sure]:
    del is_utc
    half = 2 ** (kind.bit_width - 1)
    return _within(array, kind, -half, half - 1)


def _decimals(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Sure]:
    del is_utc
    most = Decimal((0, (9,) * kind.precision, -kind.scale))
    return _within(array, kind, -most, most)


def _within(array: Array, kind: pa.DataType, least: int | Decimal, most: int | Decimal) -> tuple[Array, Sure]:
    try:
        return array.cast(kind), None
    except pa.ArrowInvalid:
        low, high = pa.scalar(least, array.type), pa.scalar(most, array.type)
        return _only(array, pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high)), kind)


def _floats(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Sure]:
    """Numbers; Spark makes a positive zero of ``-0``, but not of ``-0.0``."""
    del kind, is_utc
    minus_zero = -(2 ** (array.type.bit_width - 1))
    bits = array.view(pa.int64() if pa.types.is_float64(array.type) else pa.int32())
    usual = pc.and_(pc.is_finite(array), pc.not_equal(bits, minus_zero))
    return array, None if pc.all(usual).as_py() is not False else pc.fill_null(usual, True)


def _times(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Sure]:
    if pa.types.is_date(kind):
        return _only(array, pc.match_substring_regex(array, _IS_DATE), kind)
    if kind.tz is None:
        return _only(array, pc.match_substring_regex(array, _IS_LOCAL), kind)
    zoned = pc.match_substring_regex(array, _IS_ZONED)
    if is_utc and pc.all(zoned).as_py() is False:
        local = pc.match_substring_regex(array, _IS_LOCAL)
        array = pc.if_else(local, pc.binary_join_element_wise(array, "Z", ""), array)
        zoned = pc.or_(zoned, local)
    return _only(array, zoned, kind)


def _bytes(array: Array, kind: pa.DataType, *, is_utc: bool) -> tuple[Array, Sure]:
    del kind, is_utc
    values = [None if text is None else _decoded(text) for text in array.to_pylist()]
    found = pa.array(values, pa.binary())
    return found, None if found.null_count == array.null_count else pc.or_(found.is_valid(), array.is_null())


def _decoded(text: str) -> bytes | None:
    """Base64 in the one way that a value can be written; ``None`` otherwise."""
    try:
        value = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return value if base64.b64encode(value).decode() == text else None


def _only(array: Array, sure: Array, kind: pa.DataType) -> tuple[Array, Sure]:
    """The values that are certain, as the type wanted; nulls are."""
    if pc.all(sure).as_py() is not False:
        return array.cast(kind), None
    sure = pc.fill_null(sure, True)
    return pc.if_else(sure, array, None).cast(kind), sure


_CONVERSIONS: Final = (
    (pa.types.is_struct, _struct),
    (pa.types.is_list, _list),
    (pa.types.is_floating, _floats),
    (pa.types.is_integer, _integers),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_temporal, _times),
    (pa.types.is_binary, _bytes),
)
