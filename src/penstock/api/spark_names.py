"""What Spark's names are called here: the answer to ``stream.filter(…)`` and the like."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, NoReturn

from penstock.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

_RENAME: Final = '.select("old AS new", …)'
_WRITE: Final = '.write("a-uid", ps.files.Sink("out/"))'
_JOIN: Final = 'table = p.table("t", "SELECT …"), and p.sql("SELECT * FROM {s} JOIN {t} USING (id)", s=stream, t=table)'
_UNIQUE: Final = '.group_by("key", ps.tumbling("1 hour")).agg("a-uid", ps.agg.first("column"))'
_ORDERED: Final = '.group_by(ps.tumbling("1 minute")).agg("a-uid", ps.agg.collect("column")), since a stream has no end'
_ROWS: Final = "ps.show(stream), which prints what the first rows become, or .preview([{…}]) for given rows"

STREAM: Final[Mapping[str, str]] = {
    "filter": '.where("amount > 0")',
    "groupBy": '.group_by("key", ps.tumbling("1 minute"))',
    "groupby": '.group_by("key", ps.tumbling("1 minute"))',
    "agg": '.group_by(ps.global_window()).agg("a-uid", ps.agg.count())',
    "count": '.group_by(ps.global_window()).agg("a-uid", ps.agg.count())',
    "withColumn": '.with_column("name", "amount * 2")',
    "withColumns": '.with_columns({"name": "amount * 2"})',
    "withColumnRenamed": _RENAME,
    "withColumnsRenamed": _RENAME,
    "toDF": _RENAME,
    "withWatermark": '.with_watermark("at", delay="5 seconds")',
    "selectExpr": '.select("amount * 2 AS twice")',
    "unionAll": ".union(other)",
    "unionByName": '.union(other.select("a", "b")), with the columns in the same order',
    "join": _JOIN,
    "crossJoin": _JOIN,
    "distinct": _UNIQUE,
    "dropDuplicates": _UNIQUE,
    "drop_duplicates": _UNIQUE,
    "dropDuplicatesWithinWatermark": _UNIQUE,
    "orderBy": _ORDERED,
    "sort": _ORDERED,
    "mapInPandas": ".transform(function)",
    "mapInArrow": ".transform(function)",
    "writeStream": _WRITE,
    "writeTo": _WRITE,
    "foreachBatch": '.for_each_batch("a-uid", function)',
    "printSchema": ".print_schema()",
    "columns": ".schema.names",
    "dtypes": ".schema",
    "show": _ROWS,
    "collect": _ROWS,
    "take": _ROWS,
    "head": _ROWS,
    "toPandas": _ROWS,
}
"""What to write for the name of one of Spark's DataFrames."""

GROUPED: Final[Mapping[str, str]] = {
    "count": '.agg("a-uid", ps.agg.count())',
    **{name: f'.agg("a-uid", ps.agg.{name}("amount"))' for name in ("sum", "min", "max", "avg")},
    "mean": '.agg("a-uid", ps.agg.avg("amount"))',
}
"""What to write for the name of one of Spark's grouped DataFrames."""


class AnswersSparkNames:
    """A class whose unknown attributes are answered with what to write instead."""

    _spark_names: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a type checker would take any name for one that exists

        def __getattr__(self, name: str) -> NoReturn:
            """Refuse an unknown name."""
            if hasattr(type(self), name):  # a property that raised: once more, for its own error
                object.__getattribute__(self, name)
            raise AttributeError(_refusal(self, name), name=name, obj=self)


def _refusal(of: AnswersSparkNames, name: str) -> str:
    kind = type(of).__name__
    if name.startswith("_"):
        return f"{kind!r} object has no attribute {name!r}"
    remedy = of._spark_names.get(name)  # noqa: SLF001 - of this module
    if remedy is not None:
        return f"A {kind} has no {name!r}. Write {remedy}."
    ours = [each for each in dir(type(of)) if not each.startswith("_")]
    return f"A {kind} has no {name!r}" + did_you_mean(name, ours, otherwise=f"It has {', '.join(ours)}.")
