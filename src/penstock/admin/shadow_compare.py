"""The rows in two folders of Parquet compared as multisets, in Spark.

Rows are compared by the columns that both have with one type. Fractions are compared by nine digits (``FLOAT``: five),
because sums of them depend on the order in which batches came.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import SettingsError
from penstock.spark.sql import STRICT_READ, has_type, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

SAMPLES: Final = 5
"""Number of differing rows of a kind that are shown."""
DIGITS: Final = {"double": 9, "float": 5}
"""Significant digits by which fractions are compared, also with other numbers; those are compared exactly."""
_OLD, _NEW, _ROW = "_penstock_old", "_penstock_new", "_penstock_row"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedColumns:
    """The columns that are compared, and those that are not.

    Attributes:
        compared: the columns by which rows are compared.
        added: only in the new rows.
        removed: only in the old ones.
        retyped: in both, with types that cannot be compared, as ``amount: bigint → string``.
        left_out: in both, of types that Spark cannot group by.
    """

    compared: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    retyped: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffSample:
    """A row that differs, by its compared columns; both sides if it has changed."""

    old: dict[str, Any] | None = None
    new: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How two multisets of rows differ: ``old = equal + changed + only_old``, and the same for ``new``.

    ``changed`` counts rows with the same key and other values; without a key it is 0.
    """

    columns: ComparedColumns
    old: int = 0
    new: int = 0
    equal: int = 0
    only_old: int = 0
    only_new: int = 0
    changed: int = 0
    samples: tuple[DiffSample, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether no row differs."""
        return self.old == self.new == self.equal


def compare(spark: SparkSession, old: Path, new: Path, *, key: Sequence[str] = ()) -> Comparison:
    """Compare the rows below two folders; a folder that does not exist has none.

    Raises:
        SettingsError: a column of the key is not compared.
    """
    before, after = _read(spark, old), _read(spark, new)
    if before is None or after is None:
        return _one_sided(before, after)
    columns = columns_of(before.schema, after.schema)
    unknown = [name for name in key if name not in columns.compared]
    if unknown:
        there = ", ".join(columns.compared) or "none"
        msg = f"key {', '.join(unknown)}: No column of that name is compared. Columns: {there}."
        raise SettingsError(msg)
    if not columns.compared:
        return Comparison(columns=columns, old=before.count(), new=after.count())
    return _compared(_counted(before, after, columns.compared), columns, key)


def columns_of(before: StructType, after: StructType) -> ComparedColumns:
    """Return which columns are compared, and why the others are not."""
    old, new = ({field.name: field.dataType for field in schema.fields} for schema in (before, after))
    both = [name for name in new if name in old]
    retyped = [name for name in both if not _is_alike(old[name], new[name])]
    left_out = [name for name in both if name not in retyped and not _is_comparable(new[name])]
    return ComparedColumns(
        compared=tuple(name for name in both if name not in retyped and name not in left_out),
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        retyped=tuple(f"{name}: {old[name].simpleString()} → {new[name].simpleString()}" for name in retyped),
        left_out=tuple(left_out),
    )


def _read(spark: SparkSession, folder: Path) -> DataFrame | None:
    if not folder.is_dir() or not any(folder.glob("*.parquet")):
        return None
    return spark.read.options(**STRICT_READ).parquet(str(folder))


def _one_sided(before: DataFrame | None, after: DataFrame | None) -> Comparison:
    """The comparison if one side wrote nothing: its columns are unknown, and taken to be those of the other."""
    frame = before if before is not None else after
    if frame is None:
        return Comparison(columns=ComparedColumns())
    comparable = [field.name for field in frame.schema.fields if _is_comparable(field.dataType)]
    columns = ComparedColumns(compared=tuple(comparable))
    rows = frame.count()
    shown = _first(frame.select(_as_json(comparable).alias(_ROW))) if comparable else []
    if before is not None:
        samples = tuple(DiffSample(old=row) for row in shown)
        return Comparison(columns=columns, old=rows, only_old=rows, samples=samples)
    return Comparison(columns=columns, new=rows, only_new=rows, samples=tuple(DiffSample(new=row) for row in shown))


def _counted(before: DataFrame, after: DataFrame, names: Sequence[str]) -> DataFrame:
    """Each row once, with the number of times it is in the old and in the new rows."""
    from pyspark.sql import functions as F

    digits = {name: _digits(before.schema[name].dataType, after.schema[name].dataType) for name in names}
    sides = []
    for frame, is_old in ((before, 1), (after, 0)):
        columns = [_normal(name, digits[name]).alias(name) for name in names]
        sides.append(frame.select(*columns, F.lit(is_old).alias(_OLD), F.lit(1 - is_old).alias(_NEW)))
    grouped = sides[0].unionByName(sides[1]).groupBy(*[F.col(quote_identifier(name)) for name in names])
    return grouped.agg(F.sum(_OLD).alias(_OLD), F.sum(_NEW).alias(_NEW))


def _compared(counted: DataFrame, columns: ComparedColumns, key: Sequence[str]) -> Comparison:
    from pyspark.sql import functions as F

    old, new = F.col(_OLD), F.col(_NEW)
    counted = counted.persist()
    try:
        sums = counted.agg(F.sum(old), F.sum(new), F.sum(F.least(old, new))).first()
        assert sums is not None  # an aggregate without groups has one row
        rows_old, rows_new, equal = (int(each or 0) for each in sums)
        row = _as_json(columns.compared).alias(_ROW)
        left = counted.where(old != new).select(
            *[F.col(quote_identifier(name)) for name in key],
            F.greatest(old - new, F.lit(0)).alias(_OLD),
            F.greatest(new - old, F.lit(0)).alias(_NEW),
            row,
        )
        changed, samples = _by_key(left, key) if key else (0, _sides(left))
    finally:
        counted.unpersist()
    return Comparison(
        columns=columns,
        old=rows_old,
        new=rows_new,
        equal=equal,
        only_old=rows_old - equal - changed,
        only_new=rows_new - equal - changed,
        changed=changed,
        samples=samples,
    )


def _sides(left: DataFrame) -> tuple[DiffSample, ...]:
    old = _first(left.where(f"{_OLD} > 0").select(_ROW))
    new = _first(left.where(f"{_NEW} > 0").select(_ROW))
    return (*(DiffSample(old=row) for row in old), *(DiffSample(new=row) for row in new))


def _by_key(left: DataFrame, key: Sequence[str]) -> tuple[int, tuple[DiffSample, ...]]:
    from pyspark.sql import functions as F

    one_of = [
        F.min(F.when(F.col(count) > 0, F.col(_ROW))).alias(name) for count, name in ((_OLD, "old"), (_NEW, "new"))
    ]
    grouped = left.groupBy(*[F.col(quote_identifier(name)) for name in key]).agg(
        *one_of, F.sum(_OLD).alias(_OLD), F.sum(_NEW).alias(_NEW)
    )
    total = grouped.agg(F.sum(F.least(_OLD, _NEW))).first()
    samples: list[DiffSample] = []
    for which in ("old IS NOT NULL AND new IS NOT NULL", "new IS NULL", "old IS NULL"):
        found = grouped.where(which).orderBy("old", "new").limit(SAMPLES).select("old", "new").collect()
        samples += [DiffSample(old=_parsed(row["old"]), new=_parsed(row["new"])) for row in found]
    return int(total[0] or 0) if total is not None else 0, tuple(samples)


def _first(rows: DataFrame) -> list[dict[str, Any]]:
    found = rows.orderBy(_ROW).limit(SAMPLES).collect()
    return [parsed for row in found if (parsed := _parsed(row[_ROW])) is not None]


def _parsed(text: str | None) -> dict[str, Any] | None:
    return None if text is None else dict(json.loads(text))


def _as_json(names: Sequence[str]) -> Any:
    from pyspark.sql import functions as F

    return F.to_json(F.struct(*[F.col(quote_identifier(name)) for name in names]), {"ignoreNullFields": "false"})


def _digits(*kinds: DataType) -> int | None:
    """The digits by which numbers of these types are compared: the fewest that one of them has."""
    return min((DIGITS[kind.typeName()] for kind in kinds if kind.typeName() in DIGITS), default=None)


def _normal(name: str, digits: int | None) -> Any:
    """The column in the form in which it is compared."""
    from pyspark.sql import functions as F

    column = F.col(quote_identifier(name))
    if digits is None:
        return column
    return F.when(column.isNotNull(), F.format_string(f"%.{digits - 1}e", column.cast("double")).cast("double"))


def _is_alike(old: DataType, new: DataType) -> bool:
    from pyspark.sql.types import NumericType

    return old.simpleString() == new.simpleString() or (isinstance(old, NumericType) and isinstance(new, NumericType))


def _is_comparable(kind: DataType) -> bool:
    """Whether columns of this type can be compared."""
    # Spark cannot group by maps and variants, and intervals have no JSON.
    return not has_type(kind, ("map", "variant", "interval", "void"))
