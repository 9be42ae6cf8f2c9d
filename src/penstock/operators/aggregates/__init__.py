"""Mergeable aggregates, ``ps.agg``: triples of partial, merge and finish.

An aggregate over a batch is kept as one or more *partial* columns. Partials of the same key and window from many
batches are *merged* column by column. The result is *finished* from them when it is due. NULL, NaN, -0.0, overflow and
result types are those of Spark's own function over all rows at once. Where a result depends on the order of rows (the
last digits of a sum of DOUBLE, which zero ``min`` gives for 0.0 and -0.0), it does so here too. Where Spark's own
function would give the value of whatever row came first, the one here says which value it takes.

Any of them can be named, with ``.alias("name")``, and restricted to some rows, with ``.where("amount > 0")``.
"""

from __future__ import annotations

from penstock.operators.aggregates.base import Aggregate, Part, check_aggregate
from penstock.operators.aggregates.basic import avg, count, max, min, stddev, stddev_pop, sum, var_pop, variance  # noqa: A004 - Spark's words; users write ps.agg.sum
from penstock.operators.aggregates.custom import custom
from penstock.operators.aggregates.values import (
    approx_count_distinct,
    approx_percentile,
    collect,
    count_distinct,
    first,
    last,
    percentile,
)

__all__ = [
    "Aggregate",
    "Part",
    "approx_count_distinct",
    "approx_percentile",
    "avg",
    "check_aggregate",
    "collect",
    "count",
    "count_distinct",
    "custom",
    "first",
    "last",
    "max",
    "min",
    "percentile",
    "stddev",
    "stddev_pop",
    "sum",
    "var_pop",
    "variance",
]
