"""What each aggregate must give, as Spark SQL over all rows at once; knows nothing of batches or partials.

The rows are a view with the columns ``user``, ``at`` (TIMESTAMP), ``x`` (INT), ``d`` (DOUBLE), ``f`` (FLOAT), ``m``
(DECIMAL) and ``s`` (STRING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

EXPECTED = {
    "sum_x": "sum(x)",
    "count_d": "count(d)",
    "min_d": "min(d)",
    "max_m": "max(m)",
    "avg_m": "avg(m)",
    "stddev_d": "stddev_samp(d)",
    "stddev_pop_d": "stddev_pop(d)",
    "variance_m": "var_samp(m)",
    "var_pop_x": "var_pop(x)",
    "first_d": "min_by(d, struct(at, d))",
    "first_s": "min_by(s, struct(x, s)) FILTER (WHERE x IS NOT NULL)",
    "last_m": "max_by(m, struct(at, m)) FILTER (WHERE m IS NOT NULL)",
    "last_pair": "max_by(struct(x, s), struct(at, x, s))",
    "count_distinct_d": "count(DISTINCT d)",
    "count_distinct_x_s": "count(DISTINCT x, s)",
    "count_distinct_nested": "count(DISTINCT struct(d, array(f)))",
    "approx_count_distinct_s": "count(DISTINCT s)",
    "approx_count_distinct_d_x": "count(DISTINCT d, x)",
    "percentile_d": "percentile(d, 0.3D)",
    "percentile_m": "percentile(m, array(0D, 0.25D, 0.5D, 0.99D, 1D))",
    "approx_percentile_x": "CAST(percentile_disc(0.5D) WITHIN GROUP (ORDER BY x) AS INT)",
    "approx_percentile_f": "CASE WHEN count_if(f IS NOT NULL AND NOT isnan(f)) > 0 THEN CAST(array("
    "percentile_disc(0D) WITHIN GROUP (ORDER BY f) FILTER (WHERE NOT isnan(f)), "
    "percentile_disc(0.9D) WITHIN GROUP (ORDER BY f) FILTER (WHERE NOT isnan(f))) AS ARRAY<FLOAT>) END",
    "collect_s": "transform(array_sort(collect_list(struct(at, s)) FILTER (WHERE s IS NOT NULL)), e -> e.s)",
    "collect_d": "slice(transform(array_sort(collect_list(struct(x, d)) "
    "FILTER (WHERE d IS NOT NULL AND x IS NOT NULL)), e -> e.d), 1, 3)",
    "sum_where": "sum(m) FILTER (WHERE x > 3)",
    "count_where": "count(*) FILTER (WHERE x > 3 AND d < 2)",
    "avg_where": "avg(d) FILTER (WHERE s = 'p')",
    "last_where": "max_by(x, struct(at, x)) FILTER (WHERE s = 'p')",
    "distinct_where": "count(DISTINCT s) FILTER (WHERE x > 3)",
    "collect_where": "transform(array_sort(collect_list(struct(at, x)) FILTER (WHERE x > 3)), e -> e.x)",
    "percentile_where": "percentile(x, 0.5D) FILTER (WHERE x > 3)",
    "stddev_where": "stddev(x) FILTER (WHERE x > 3)",
    "approx_where": "count(DISTINCT x) FILTER (WHERE x > 3)",
    "geometric": "exp(avg(ln(abs(x) + 1)))",
    "dot": "sum(x * f)",
}
"""By the name of the result; the type too, where an estimate is exact for few values."""


def query(view: str, names: Iterable[str] = tuple(EXPECTED), *, seconds: int = 10) -> str:
    """One row for each user and window of so many seconds, with the results named."""
    start = f"unix_seconds(at) div {seconds} * {seconds}"
    window = f"timestamp_seconds({start}) AS window_start, timestamp_seconds({start} + {seconds}) AS window_end"
    return f"SELECT user, {window}, {_columns(names)} FROM {view} GROUP BY user, {start}"


def session_query(view: str, names: Iterable[str] = tuple(EXPECTED), *, seconds: int) -> str:
    """One row for each user and session with a gap of so many seconds, with the results named."""
    gap = f"INTERVAL {seconds} SECONDS"
    by_time = "OVER (PARTITION BY user ORDER BY at)"
    begins = f"SELECT *, CASE WHEN at <= lag(at) {by_time} + {gap} THEN 0 ELSE 1 END AS begins FROM {view}"
    numbered = f"SELECT *, sum(begins) {by_time} AS session FROM ({begins})"
    window = f"min(at) AS window_start, max(at) + {gap} AS window_end"
    return f"SELECT user, {window}, {_columns(names)} FROM ({numbered}) GROUP BY user, session"


def _columns(names: Iterable[str]) -> str:
    return ", ".join(f"{sql} AS {name}" for name, sql in EXPECTED.items() if name in names)
