"""All aggregates in one step, its input, and how their results are compared with the oracle's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import oracle.aggregates
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

    from penstock.operators.windows.panes import Window

SECOND = 1_000_000
SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("x", pa.int32()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("m", pa.decimal128(10, 2)),
        ("s", pa.string()),
    ]
)


def aggregates() -> tuple[agg.Aggregate, ...]:
    """As many as the oracle knows, in its order."""
    from pyspark.sql import functions as F

    return (
        agg.sum("x"),
        agg.count("d"),
        agg.min("d"),
        agg.max("m"),
        agg.avg("m"),
        agg.stddev("d"),
        agg.stddev_pop("d"),
        agg.variance("m"),
        agg.var_pop("x"),
        agg.first("d"),
        agg.first("s", by="x"),
        agg.last("m", ignore_nulls=True),
        agg.last("struct(x, s)").alias("last_pair"),
        agg.count_distinct("d"),
        agg.count_distinct("x", "s"),
        agg.count_distinct("struct(d, array(f))").alias("count_distinct_nested"),
        agg.approx_count_distinct("s"),
        agg.approx_count_distinct("d", "x"),
        agg.percentile("d", 0.3),
        agg.percentile("m", [0, 0.25, 0.5, 0.99, 1]),
        agg.approx_percentile("x", 0.5),
        agg.approx_percentile("f", (0.0, 0.9)),
        agg.collect("s"),
        agg.collect("d", limit=3, by="x"),
        agg.sum("m").where("x > 3").alias("sum_where"),
        agg.count().where("x > 3").where(F.col("d") < 2).alias("count_where"),
        agg.avg("d").where("s = 'p'").alias("avg_where"),
        agg.last("x").where("s = 'p'").alias("last_where"),
        agg.count_distinct("s").where("x > 3").alias("distinct_where"),
        agg.collect("x").where("x > 3").alias("collect_where"),
        agg.percentile("x", 0.5).where("x > 3").alias("percentile_where"),
        agg.stddev("x").where("x > 3").alias("stddev_where"),
        agg.approx_count_distinct("x").where("x > 3").alias("approx_where"),
        agg.custom(
            "geometric",
            of="x",
            partial={"logs": lambda x: F.sum(F.ln(F.abs(x) + 1)), "n": F.count},
            merge={"logs": F.sum, "n": F.sum},
            finish=lambda logs, n: F.exp(logs / n),
        ).alias("geometric"),
        agg.custom(
            "dot",
            of=["x", F.col("f")],
            partial={"total": lambda x, f: F.sum(x * f)},
            merge={"total": F.sum},
            finish=lambda total: total,
        ).alias("dot"),
    )


NAMES = tuple(oracle.aggregates.EXPECTED)


TEN: Final = tumbling("10 seconds")


def step(names: Collection[str] = NAMES, window: Window = TEN) -> WindowAggregate:
    """Those of the aggregates that are named."""
    chosen = tuple(aggregate for aggregate in aggregates() if aggregate.label in names)
    return WindowAggregate(keys=(("user", "user"),), time="at", window=window, aggregates=chosen)


def expected(
    spark: SparkSession, rows: list[dict[str, object]], names: Collection[str] = NAMES, *, gap: int | None = None
) -> list[tuple[object, ...]]:
    """The oracle's answer for rows of ``SCHEMA``; for sessions with a gap of so many seconds, if that is given."""
    spark.createDataFrame(pa.Table.from_pylist(rows, schema=SCHEMA)).createOrReplaceTempView("all_rows")
    by_windows, by_sessions = oracle.aggregates.query, oracle.aggregates.session_query
    query = by_windows("all_rows", names) if gap is None else by_sessions("all_rows", names, seconds=gap)
    return [tuple(row) for row in spark.sql(query).collect()]


def assert_same(
    found: list[tuple[object, ...]], wanted: list[tuple[object, ...]], names: Collection[str] = NAMES
) -> None:
    """Equal rows in any order; DOUBLE to ten digits, for what was added up in another order."""
    columns = ["user", "window_start", "window_end", *(name for name in NAMES if name in names)]
    assert sorted(repr(row[:3]) for row in found) == sorted(repr(row[:3]) for row in wanted)
    for ours, theirs in zip(_by_key(found), _by_key(wanted), strict=True):
        differences = [
            (name, mine, other)
            for name, mine, other in zip(columns, ours, theirs, strict=True)
            if not _same(mine, other)
        ]
        assert not differences, f"of {theirs[:3]}: {differences}"


def _by_key(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return sorted(rows, key=lambda row: repr(row[:3]))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=1e-10, abs_tol=1e-10)
    return type(one) is type(other) and one == other
