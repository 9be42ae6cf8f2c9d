"""The last step of ``avg``: a sum divided by a count exactly as Spark's own ``avg`` does it; knows nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.state.sessions import active_session

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_DIGITS = 38


def quotient(total: Column, count: Column, input_type: DataType) -> Column:
    """``total / count``, NULL if ``count`` is 0: DOUBLE, or for decimals of (p, s) a decimal of (p + 4, s + 4).

    Spark's plain division of decimals rounds to another scale first, so the mean of many digits would differ in the
    last; the division inside ``avg`` has no SQL name and is called by its class.
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
    edge = jvm.org.apache.spark.sql.classic.ExpressionUtils
    left, right = (edge.expression(_java(column)) for column in (total, count))
    kind = jvm.org.apache.spark.sql.types.DecimalType(result.precision, result.scale)
    lenient = session.conf.get("spark.sql.ansi.enabled") != "true"
    division = jvm.org.apache.spark.sql.catalyst.expressions.DecimalDivideWithOverflowCheck(
        left, right, kind, None, lenient
    )
    return ClassicColumn(edge.column(division))


def _java(column: Any) -> Any:
    return column._jc  # noqa: SLF001
