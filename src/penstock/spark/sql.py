"""SQL text: names, literals that compile nothing, column types."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.handles import StateColumn
from penstock.spark.session import active_session

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType


# ---- the division of avg ---------------------------------------------------------------------------------------------

_DIGITS = 38


def quotient(total: Column, count: Column, input_type: DataType) -> Column:
    """``total / count``, NULL if ``count`` is 0: DOUBLE, or for decimals of (p, s) a decimal of (p + 4, s + 4).

    Spark's plain division of decimals rounds to another scale first, so that a mean of many digits would differ in the
    last. The division inside ``avg`` has no SQL name and is called by its class.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import DecimalType

    if isinstance(input_type, DecimalType):
        result = DecimalType(min(input_type.precision + 4, _DIGITS), min(input_type.scale + 4, _DIGITS))
        divided = _divide(total, count.cast(DecimalType(20, 0)), result)
    else:
        divided = total / count.cast("double")
    return F.when(count > 0, divided)


def _divide(total: Column, count: Column, result: Any) -> Column:
    from pyspark.sql.classic.column import Column as ClassicColumn

    session: Any = active_session()
    jvm = session.sparkContext._jvm  # noqa: SLF001
    edge = getattr(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    left, right = (edge.expression(_java(column)) for column in (total, count))
    kind = getattr(jvm, "org.apache.spark.sql.types.DecimalType")(result.precision, result.scale)
    lenient = session.conf.get("spark.sql.ansi.enabled") != "true"
    divide = getattr(jvm, "org.apache.spark.sql.catalyst.expressions.DecimalDivideWithOverflowCheck")
    return ClassicColumn(edge.column(divide(left, right, kind, None, lenient)))


def _java(column: Any) -> Any:
    return column._jc  # noqa: SLF001


# ---- schemas ---------------------------------------------------------------------------------------------------------


def nullable(schema: StructType) -> StructType:
    """The same columns, nullable at every depth, as Spark takes all columns that it reads back from files.

    >>> from pyspark.sql.types import ArrayType, IntegerType, StructType
    >>> nullable(StructType().add("a", ArrayType(IntegerType(), containsNull=False), nullable=False))
    StructType([StructField('a', ArrayType(IntegerType(), True), True)])
    """
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, _nullable(field.dataType), nullable=True) for field in schema.fields])


def nullable_columns(schema: StructType) -> StructType:
    """The same columns with their metadata, nullable at the top only: what is below a leaf may then be either."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f.name, f.dataType, True, f.metadata) for f in schema.fields])


def _nullable(data_type: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, StructType):
        return nullable(data_type)
    if isinstance(data_type, ArrayType):
        return ArrayType(_nullable(data_type.elementType), containsNull=True)
    if isinstance(data_type, MapType):
        return MapType(_nullable(data_type.keyType), _nullable(data_type.valueType), valueContainsNull=True)
    return data_type


def has_type(data_type: DataType, kinds: Collection[str]) -> bool:
    """Whether the type, or one within it, is of these kinds: ``map``, ``variant``, ``void``, any ``interval``.

    >>> from pyspark.sql.types import MapType, StringType, StructType
    >>> has_type(StructType().add("variant", "string"), ["map", "variant"])
    False
    >>> has_type(StructType().add("a", MapType(StringType(), StringType())), ["map", "variant"])
    True
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    within: list[DataType] = []
    if isinstance(data_type, StructType):
        within = [field.dataType for field in data_type.fields]
    elif isinstance(data_type, MapType):
        within = [data_type.keyType, data_type.valueType]
    elif isinstance(data_type, ArrayType):
        within = [data_type.elementType]
    return data_type.typeName().endswith(tuple(kinds)) or any(has_type(each, kinds) for each in within)


# ---- text for Spark to read ------------------------------------------------------------------------------------------


def escape_glob(url: str) -> str:
    r"""``url`` with all escaped that Spark's readers would take for a pattern.

    The reader's option ``__globPaths__`` is no way around it: with it off, Spark 4.3 lists *all* given paths once for
    each that looks like a pattern, and without ``recursiveFileLookup`` their rows come as often.

    >>> print(escape_glob("file:///plain/a-b_c%20"), escape_glob("file:///a[b]{c}*?"))
    file:///plain/a-b_c%20 file:///a\[b\]\{c\}\*\?
    """
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", url)


STRICT_READ: Final = {
    "__globPaths__": "false",  # a file's name is a name, not a pattern
    "recursiveFileLookup": "true",  # else see ``escape_glob``; and no columns from folders called name=value
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}
"""Options of Spark's readers of files that are named one by one: a missing or corrupt one fails the read."""


def quote_identifier(name: str) -> str:
    """A column's name as SQL.

    >>> quote_identifier("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def string_literal(text: str) -> str:
    """A string literal of SQL that means the same whatever the parser makes of backslashes and quotes."""
    if re.fullmatch(r"[^'\\]*", text) and text.isprintable():
        return f"'{text}'"
    return f"decode(X'{text.encode().hex()}', 'UTF-8')"


# ---- literals that compile nothing -----------------------------------------------------------------------------------
# Values that change with every batch. A plain literal is part of the generated Java, so a watermark or a horizon in a
# predicate would have the whole stage compiled for each batch (``:param`` and scalar subqueries too). An *array*
# literal goes into generated code by reference. So the value is put into an array twice and taken out by an index that
# the optimiser cannot fold: ``array(v, v)[pmod(hash(column), 2)]``.
#
# A range predicate also tells Spark that its column is not NULL. A union of layers then no longer has the partitioning
# of its children: an exchange. ``(predicate) <=> true`` says nothing about the column. Tests count both.


def variable_literal(value: int, *, column: str | None = None, mark: int | None = None) -> str:
    """SQL for the BIGINT ``value`` that is not part of generated code.

    Args:
        value: fits 64 bits.
        column: any column of the frame it is used in; only its hash's parity counts. Without one, for frames whose
            columns are not known, the partition's number serves, which Spark does not move across other steps.
        mark: a number that makes two otherwise equal plans differ. Spark keeps one cache entry for equal plans, and
            the first to free it frees it for all.
    """
    more = "" if mark is None else f", {mark}L"
    index = f"hash({quote_identifier(column)})" if column is not None else "spark_partition_id()"
    return f"array({value}L, {value}L{more})[pmod({index}, 2)]"


def filter_text(predicate: str) -> str:
    """SQL for ``predicate`` as a filter that leaves no not-null constraint behind; unknown counts as false."""
    return f"({predicate}) <=> true"


# ---- column types as Spark writes them -------------------------------------------------------------------------------
# Names within a ``struct`` are written without quotes, so a name with ``:``, ``,`` or ``<`` in it may not be
# understood; then a type is equal to itself and to nothing else.

_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_COLUMN: Final = re.compile(r"`((?:[^`]|``)*)` (.+)")
_OPENS, _CLOSES = "<(", ">)"


def parse_columns(ddl: str) -> tuple[StateColumn, ...]:
    """The columns of a state handle's schema.

    Raises:
        ValueError: it is no list of columns.

    >>> parse_columns("`a b` bigint, `x` struct<by:timestamp,value:decimal(10,2)>")[1].type
    'struct<by:timestamp,value:decimal(10,2)>'
    """
    return tuple(_column(part.strip()) for part in _parts(ddl))


def format_columns(columns: Iterable[StateColumn]) -> str:
    """The inverse of ``parse_columns``."""
    return ", ".join(f"{quote_identifier(column.name)} {column.type}" for column in columns)


def widens(before: str, now: str) -> bool:
    """Whether each value of the type ``before`` is one of the type ``now``, unchanged, and types are of one family.

    >>> widens("int", "bigint"), widens("bigint", "int"), widens("float", "double"), widens("bigint", "double")
    (True, False, True, False)
    >>> widens("decimal(10,2)", "decimal(12,2)"), widens("decimal(10,2)", "decimal(10,4)")
    (True, False)
    >>> widens("array<struct<by:timestamp,value:int>>", "array<struct<by:timestamp,value:bigint>>")
    True
    """
    if before == now:
        return True
    try:
        return _widens(_parsed(before), _parsed(now))
    except ValueError:
        return False


def spark_type(text: str) -> str:
    """The type with the names within it quoted, for Spark to parse.

    >>> spark_type("array<struct<by:timestamp,a-b:int>>")
    'array<struct<`by`:timestamp,`a-b`:int>>'
    """
    try:
        return _written(_parsed(text), quote_identifier)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class _Plain:
    name: str


@dataclass(frozen=True, slots=True)
class _Nested:
    """``array``, ``map`` or ``struct``; only the last has names."""

    outer: str
    names: tuple[str, ...]
    types: tuple[_Type, ...]


_Type: TypeAlias = "_Plain | _Nested"


def _widens(before: _Type, now: _Type) -> bool:
    if isinstance(before, _Nested) and isinstance(now, _Nested):
        alike = (before.outer, before.names, len(before.types)) == (now.outer, now.names, len(now.types))
        if before.outer == "map" and before.types[0] != now.types[0]:
            return False
        return alike and all(map(_widens, before.types, now.types))
    if isinstance(before, _Nested) or isinstance(now, _Nested):
        return False
    return before == now or _plain_widens(before.name, now.name)


def _plain_widens(before: str, now: str) -> bool:
    if before in _WHOLE and now in _WHOLE:
        return _WHOLE.index(before) < _WHOLE.index(now)
    if (before, now) == ("float", "double"):
        return True
    old, new = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(now)
    if not old or not new:
        return False
    (digits, scale), (more_digits, more_scale) = ((int(found[1]), int(found[2])) for found in (old, new))
    return more_scale >= scale and more_digits - more_scale >= digits - scale


def _parsed(text: str) -> _Type:
    """The tree of a type.

    Raises:
        ValueError: it was not understood: written again it would not be the same.
    """
    made = _tree(text)
    if _written(made, str) != text:
        msg = f"type {text!r} is not understood"
        raise ValueError(msg)
    return made


def _tree(text: str) -> _Type:
    outer, opens, rest = text.partition("<")
    if not opens or outer not in ("array", "map", "struct"):
        return _Plain(text)
    if not rest.endswith(">"):
        msg = f"type {text!r} does not end"
        raise ValueError(msg)
    parts = tuple(_parts(rest[:-1]))
    if outer != "struct":
        return _Nested(outer, (), tuple(map(_tree, parts)))
    pairs = [part.partition(":") for part in parts]
    return _Nested(outer, tuple(name for name, _, _ in pairs), tuple(_tree(kind) for _, _, kind in pairs))


def _written(kind: _Type, name_of: Callable[[str], str]) -> str:
    if isinstance(kind, _Plain):
        return kind.name
    inner = [_written(each, name_of) for each in kind.types]
    if kind.names:
        inner = [f"{name_of(name)}:{each}" for name, each in zip(kind.names, inner, strict=True)]
    return f"{kind.outer}<{','.join(inner)}>"


def _column(text: str) -> StateColumn:
    found = _COLUMN.fullmatch(text)
    if found is None:
        msg = f"{text!r} is no column"
        raise ValueError(msg)
    return StateColumn(found[1].replace("``", "`"), found[2])


def _parts(text: str) -> Iterator[str]:
    """The parts of ``text`` between commas that are in no brackets and no quotes.

    Raises:
        ValueError: a bracket or quote is not closed.
    """
    depth, is_quoted, places = 0, False, [-1]
    for place, sign in enumerate(text):
        if sign == "`":
            is_quoted = not is_quoted
        elif is_quoted:
            continue
        elif sign == "," and depth == 0:
            places.append(place)
        else:
            depth += (sign in _OPENS) - (sign in _CLOSES)
    if depth or is_quoted:
        msg = f"{text!r} does not end"
        raise ValueError(msg)
    for before, after in pairwise([*places, len(text)]):
        yield text[before + 1 : after]
