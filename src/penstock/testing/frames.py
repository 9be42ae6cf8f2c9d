"""Rows of tests: checked against a schema, made into frames and back, and compared."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal, InvalidOperation, localcontext
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from penstock.errors import HarnessError, SchemaMismatch, no_column
from penstock.spark.arrow import arrow_schema, frame_of_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


# ---- rows for a schema -----------------------------------------------------------------------------------------------

Row: TypeAlias = "dict[str, Any]"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)
_BITS: Final = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_FRACTION: Final = re.compile(r"(?<=:\d\d)\.(\d{1,6})(?!\d)")
"""Fraction of a second in ISO text."""  # Python 3.10 reads only three digits or six


class Unfit(Exception):
    """A value that its column cannot hold; the caller adds the column and the row."""


def time_of(value: str | datetime) -> datetime:
    """Return a time in UTC, from a ``datetime`` or ISO text; without an offset it is UTC already.

    Raises:
        ValueError: the text is no time, or the time in UTC is before year 1 or after 9999.

    >>> str(time_of("2026-01-01T02:00:00+02:00"))
    '2026-01-01 00:00:00+00:00'
    """
    if isinstance(value, str):
        value = datetime.fromisoformat(_FRACTION.sub(_six_digits, value.strip().replace("Z", "+00:00")))
    if value.tzinfo is None:
        return value.replace(tzinfo=timezone.utc)
    try:
        return value.astimezone(timezone.utc)
    except OverflowError as error:
        msg = f"{value} is out of range in UTC"
        raise ValueError(msg) from error


def _six_digits(fraction: re.Match[str]) -> str:
    return f".{fraction[1]:0<6}"


def micros_of(value: object) -> int:
    """Return microseconds since the epoch, of a ``datetime``, ISO text, or the number itself.

    Raises:
        HarnessError: it is not a time.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return (time_of(value) - _EPOCH) // _MICROSECOND  # type: ignore[arg-type]
    except (TypeError, ValueError, AttributeError) as error:
        msg = f"{value!r} is no time. Write a datetime, or text such as '2026-01-01T00:00:00Z'."
        raise HarnessError(msg) from error


def fit_rows(rows: Iterable[object], schema: StructType, what: str) -> list[Row]:
    """Return rows (mappings or Spark ``Row``) as dictionaries of values that the columns hold.

    A column that a row leaves out is ``NULL``. Times and dates may be ISO text, decimals text or whole numbers.

    Args:
        rows: in order.
        schema: of the source.
        what: begins each message, for example ``send('orders')``.

    Raises:
        SchemaMismatch: a row has another column, or a value that its column cannot hold.
    """
    return [_fit_row(row, schema, f"{what}: row {number}") for number, row in enumerate(rows, start=1)]


def _fit_row(row: object, schema: StructType, where: str) -> Row:
    values = as_mapping(row)
    if values is None:
        msg = f"{where} is {row!r}. Write rows as dictionaries by column."
        raise SchemaMismatch(msg)
    names = schema.fieldNames()
    for name in values:
        if name not in names:
            msg = f"{where}: {no_column(str(name), names)}"
            raise SchemaMismatch(msg)
    fitted = {}
    for field in schema.fields:
        value = values.get(field.name)
        try:
            if value is None and not field.nullable:
                raise Unfit
            fitted[field.name] = fit(value, field.dataType)
        except Unfit as error:
            type_text = field.dataType.simpleString().upper() + ("" if field.nullable else " NOT NULL")
            shown = "NULL" if value is None else f"{value!r} ({type(value).__name__})"
            msg = f"{where}: Column {field.name!r} is {type_text} and cannot hold {shown}."
            raise SchemaMismatch(msg) from error
    return fitted


def as_mapping(row: object) -> Mapping[str, Any] | None:
    """Return a dictionary or a Spark ``Row`` as a mapping; ``None`` for anything else."""
    if isinstance(row, Mapping):
        return row
    as_dict: Callable[[], Mapping[str, Any]] | None = getattr(row, "asDict", None)
    return as_dict() if as_dict is not None else None


def fit(value: Any, kind: DataType) -> Any:
    """Return the value in the form that Arrow takes for a type.

    Raises:
        Unfit: the type cannot hold it.
    """
    if value is None:
        return None
    name = kind.typeName()
    return _NESTED[name](value, kind) if name in _NESTED else _fit_plain(value, name)


def _fit_plain(value: Any, name: str) -> Any:
    if name in _BITS:
        bound = 2 ** (_BITS[name] - 1)
        if not isinstance(value, int) or isinstance(value, bool) or not -bound <= value < bound:
            raise Unfit
        return value
    for names, types in _PLAIN:
        if name in names:
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                raise Unfit
            return _fit_float(cast("float", value)) if name in ("float", "double") else value
    return value  # a rare type: Arrow checks it


_PLAIN: Final[Sequence[tuple[tuple[str, ...], tuple[type, ...]]]] = (
    (("string", "char", "varchar"), (str,)),
    (("boolean",), (bool,)),
    (("float", "double"), (int, float)),
    (("binary",), (bytes, bytearray)),
)


def _fit_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError as error:  # of a whole number
        raise Unfit from error


_TWICE_MAX_PRECISION: Final = 76
"""Digits of a calculation with decimals: those of the largest ``DECIMAL`` before the point, and as many behind it."""


def _fit_decimal(value: Any, kind: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, str, Decimal)):
        raise Unfit
    try:
        number = Decimal(value)
        with localcontext(Context(prec=_TWICE_MAX_PRECISION)):
            fits = number.is_finite() and number == round(number, kind.scale)
            fits = fits and abs(number) < Decimal(10) ** (kind.precision - kind.scale)
    except InvalidOperation as error:
        raise Unfit from error
    if not fits:
        raise Unfit
    return number


def _fit_time(value: Any, kind: Any) -> datetime:
    if not isinstance(value, (str, datetime)):
        raise Unfit
    try:
        at = time_of(value)
    except ValueError as error:
        raise Unfit from error
    return at.replace(tzinfo=None) if kind.typeName() == "timestamp_ntz" else at


def _fit_date(value: Any, _kind: Any) -> date:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError as error:
            raise Unfit from error
    if not isinstance(value, date) or isinstance(value, datetime):
        raise Unfit
    return value


def _fit_array(value: Any, kind: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise Unfit
    return [fit(each, kind.elementType) for each in value]


def _fit_map(value: Any, kind: Any) -> list[tuple[Any, Any]]:
    if not isinstance(value, Mapping):
        raise Unfit
    return [(fit(key, kind.keyType), fit(each, kind.valueType)) for key, each in value.items()]


def _fit_struct(value: Any, kind: Any) -> Row:
    values = as_mapping(value)
    if values is None or not set(values) <= set(kind.fieldNames()):
        raise Unfit
    return {field.name: fit(values.get(field.name), field.dataType) for field in kind.fields}


_NESTED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "decimal": _fit_decimal,
    "timestamp": _fit_time,
    "timestamp_ntz": _fit_time,
    "date": _fit_date,
    "array": _fit_array,
    "map": _fit_map,
    "struct": _fit_struct,
}


def table_of(rows: Sequence[Row], schema: StructType) -> pa.Table:
    """Return fitted rows as an Arrow table. Columns are taken by name; a row need not have all."""
    import pyarrow as pa

    return pa.Table.from_pylist(list(rows), schema=arrow_schema(schema))


def frame_of(spark: SparkSession, rows: Sequence[Row], schema: StructType) -> DataFrame:
    """Return fitted rows as a frame with exactly this schema."""
    return frame_of_arrow(spark, table_of(rows, schema), schema)


def rows_of(frame: DataFrame) -> list[Row]:
    """Return the rows of a frame as dictionaries, in one job; times are in UTC."""
    return rows_in(frame.toArrow())


def rows_in(table: pa.Table) -> list[Row]:
    """Return the rows of an Arrow table as dictionaries; maps become dictionaries, too, not lists of pairs."""
    rows: list[Row] = table.to_pylist()
    for field in table.schema:
        if _has_map(field.type):
            for row in rows:
                row[field.name] = _with_maps(row[field.name], field.type)
    return rows


def _has_map(kind: pa.DataType) -> bool:
    return "map<" in str(kind)


def _with_maps(value: Any, kind: Any) -> Any:
    import pyarrow.types as is_type

    if value is None:
        return None
    if is_type.is_map(kind):
        return {_as_key(key): _with_maps(each, kind.item_type) for key, each in value}
    if is_type.is_struct(kind):
        return {kind.field(i).name: _with_maps(value[kind.field(i).name], kind.field(i).type) for i in range(len(kind))}
    if is_type.is_list(kind) or is_type.is_large_list(kind):
        return [_with_maps(each, kind.value_type) for each in value]
    return value


def _as_key(value: Any) -> Any:
    """The key of a map in a form that a dictionary takes: structs as Spark ``Row``, arrays as tuples."""
    if isinstance(value, dict):
        from pyspark.sql import Row as SparkRow

        return SparkRow(**{name: _as_key(each) for name, each in value.items()})
    return tuple(map(_as_key, value)) if isinstance(value, list) else value


# ---- comparison ------------------------------------------------------------------------------------------------------

TestRows: TypeAlias = "Iterable[object] | DataFrame"
_MAX_SHOWN: Final = 20
"""Number of differing rows that a message shows."""


def same_rows(actual: TestRows, expected: TestRows) -> bool:
    """Return whether both hold the same rows, each as often, in any order.

    Rows are dictionaries or Spark ``Row``; a DataFrame is run. Times and dates may be written as ISO text on one side.
    Floating point numbers are equal within a billionth of the larger one.

    >>> same_rows([{"n": 1}, {"n": 2}], [{"n": 2}, {"n": 1}])
    True
    """
    return not _difference(listed(actual), listed(expected))


def assert_rows(actual: TestRows, expected: TestRows) -> None:
    """Assert ``same_rows``; the error shows missing and unexpected rows, and where rows differ.

    Raises:
        AssertionError: the rows are not the same.

    >>> assert_rows([{"user": "a", "n": 1}, {"user": "b", "n": 2}], [{"user": "a", "n": 1}, {"user": "b", "n": 3}])
    Traceback (most recent call last):
        ...
    AssertionError: rows differ: 1 as expected, 1 missing, 1 unexpected
      differs: {'user': 'b', 'n': 3} was expected, but n is 2
    """
    found = _difference(listed(actual), listed(expected))
    if found:
        raise AssertionError(found)


def listed(rows: TestRows) -> list[Row]:
    """Return rows as a list of dictionaries.

    Raises:
        HarnessError: one is neither a dictionary nor a Spark ``Row``.
    """
    if hasattr(rows, "toArrow"):
        return rows_of(cast("DataFrame", rows))
    found = []
    for row in rows:
        values = as_mapping(row)
        if values is None:
            msg = f"{row!r} is no row to compare. Write rows as dictionaries by column."
            raise HarnessError(msg)
        found.append(dict(values))
    return found


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Return rows sorted by their columns from left to right, ``NULL`` first.

    >>> in_order([{"n": 2}, {"n": None}, {"n": 1}])
    [{'n': None}, {'n': 1}, {'n': 2}]
    """
    return sorted(rows, key=lambda row: tuple(_sortable(value) for value in row.values()))


def _sortable(value: Any) -> tuple[Any, ...]:
    """A key to sort values of a column by; values of different types are sorted by the names of their types."""
    if value is None:
        return (0,)
    if isinstance(value, (bool, int, float, Decimal)):
        is_nan = value.is_nan() if isinstance(value, Decimal) else math.isnan(value)
        return (1, "", is_nan, 0 if is_nan else value)
    return (1, type(value).__name__, False, _comparable(value))


def _comparable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [(_sortable(key), _sortable(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [_sortable(each) for each in value]
    return value if isinstance(value, (str, bytes, date, timedelta)) else repr(value)


def _difference(actual: list[Row], expected: list[Row]) -> str:
    """The difference as text; empty if there is none."""
    unexpected = list(actual)
    missing = []
    for row in expected:
        found = next((i for i, other in enumerate(unexpected) if _same(row, other)), None)
        if found is None:
            missing.append(row)
        else:
            del unexpected[found]
    if not missing and not unexpected:
        return ""
    counts = f"{len(expected) - len(missing)} as expected, {len(missing)} missing, {len(unexpected)} unexpected"
    lines = list(_lines(missing, unexpected))
    more = [f"  … and {len(lines) - _MAX_SHOWN} more"] if len(lines) > _MAX_SHOWN else []
    return "\n".join([f"rows differ: {counts}", *lines[:_MAX_SHOWN], *more])


def _lines(missing: list[Row], unexpected: list[Row]) -> Iterable[str]:
    """A missing row comes in one line with the unexpected row that is most like it."""
    left = list(unexpected)
    for row in missing:
        most_alike = max(left, key=lambda other: _likeness(row, other), default=None)
        if most_alike is None or not _likeness(row, most_alike):
            yield f"  missing: {row}"
            continue
        left.remove(most_alike)
        yield f"  differs: {row} was expected, but {', '.join(_columns(row, most_alike))}"
    for row in left:
        yield f"  unexpected: {row}"


def _columns(expected: Row, actual: Row) -> Iterable[str]:
    for name in {**expected, **actual}:
        if name not in actual:
            yield f"{name} is not there"
        elif name not in expected:
            yield f"{name} is there too: {actual[name]!r}"
        elif not _same(expected[name], actual[name]):
            yield f"{name} is {actual[name]!r}"


def _likeness(row: Row, other: Row) -> int:
    return sum(name in other and _same(value, other[name]) for name, value in row.items())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return _same_number(one, other)
    if isinstance(one, (str, datetime, date)) and isinstance(other, (str, datetime, date)):
        return _same_time(one, other)
    left, right = as_mapping(one), as_mapping(other)
    if left is not None and right is not None:
        return left.keys() == right.keys() and all(_same(value, right[name]) for name, value in left.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _same_number(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    if not isinstance(one, (int, float)) or not isinstance(other, (int, float)):
        return False
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=1e-9)


def _same_time(one: str | datetime | date, other: str | datetime | date) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    if isinstance(one, datetime) or isinstance(other, datetime):
        try:
            return time_of(cast("str | datetime", one)) == time_of(cast("str | datetime", other))
        except (ValueError, AttributeError):  # a date, or a text that is not a time
            return False
    return str(one) == str(other)
