"""Which aggregates there are, and what to use instead of Spark's own; knows nothing of how they work."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import GraphError
from penstock.operators.aggregates.base import Aggregate

FUNCTIONS: Final = (
    "approx_count_distinct",
    "approx_percentile",
    "avg",
    "collect",
    "count",
    "count_distinct",
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
)
"""What ``ps.agg`` has, besides ``custom``."""

_INSTEAD: Final = {
    "any_value": "first(…, ignore_nulls=…)",
    "array_agg": "collect(…)",
    "collect_list": "collect(…)",
    "collect_set": "collect(…), and array_distinct on the result",
    "count_if": 'count().where("…")',
    "first_value": "first(…)",
    "hll_sketch_agg": "approx_count_distinct(…)",
    "last_value": "last(…)",
    "max_by": "last(…, by=…)",
    "mean": "avg(…)",
    "median": "percentile(…, 0.5)",
    "min_by": "first(…, by=…)",
    "percentile_approx": "approx_percentile(…, 0.5)",
    "std": "stddev(…)",
    "stddev_samp": "stddev(…)",
    "var_samp": "variance(…)",
}


def check_aggregate(value: object) -> Aggregate:
    """``value`` if it is one of ``ps.agg``.

    Raises:
        GraphError: it is not; the message has the name to use.
    """
    if isinstance(value, Aggregate):
        return value
    found = re.search(r"'(\w+)\(", str(value))
    name = found[1].lower() if found else ""
    if name in FUNCTIONS:
        use = f"ps.agg.{name}(…)"
    elif name in _INSTEAD:
        use = f"ps.agg.{_INSTEAD[name]}"
    else:
        use = "one of " + ", ".join(f"ps.agg.{word}" for word in FUNCTIONS) + ", or ps.agg.custom for one of your own"
    msg = f"agg() was given {value!r} ({type(value).__name__}), which cannot be merged over batches: use {use}"
    raise GraphError(msg)
