"""What a windowed aggregate must make of rows, as SQL for other engines: all windows are listed, then joined with rows.

Knows nothing of penstock, of panes or of batches. ``rows`` has ``user``, ``at`` (microseconds), ``x`` and ``seen``: the
moment up to which windows were closed when the row came. A window holds the rows that came before it was closed.
"""

from __future__ import annotations

WINDOWS = {
    "tumbling": """
        SELECT unnest(range({low} - {low} % {size} - 2 * {size}, {high}, {size})) + {offset} AS s, s + {size} AS e
    """,
    "sliding": """
        SELECT n * {slide} + {offset} AS s, s + {size} AS e
        FROM (SELECT unnest(range({low} // {slide} - {size} // {slide} - 2, {high} // {slide})) AS n)
    """,
    "cumulative": """
        SELECT s, s + n * {step} AS e
        FROM (SELECT unnest(range({low} - {low} % {size} - 2 * {size}, {high}, {size})) + {offset} AS s),
             (SELECT unnest(range(1, {size} // {step} + 1)) AS n)
    """,
}

RESULT = """
    WITH windows AS ({windows})
    SELECT "user", s, e, sum(x), count(*) FROM rows, windows
    WHERE "at" >= s AND "at" < e AND e > seen GROUP BY ALL
"""

LATE = """
    WITH windows AS ({windows})
    SELECT "user", "at", x FROM rows WHERE NOT EXISTS (SELECT 1 FROM windows WHERE "at" >= s AND "at" < e AND e > seen)
"""

BY_THE_CALENDAR = {
    "day": ("CAST(t AS DATE)", 1),
    "week": ("CAST(date_trunc('WEEK', t) AS DATE)", 7),
}
"""For Spark, with the zone as the session's: first day of the window of ``t``, and how many days it has."""


def windows(kind: str, *, low: int, high: int, **lengths: int) -> str:
    """All windows that may hold a time from ``low`` to ``high``, for DuckDB: columns ``s`` and ``e``."""
    return WINDOWS[kind].format(low=low, high=high, **{"offset": 0, **lengths})


def by_the_calendar(kind: str, rows: str) -> str:
    """The result for Spark over the view ``rows``, with bounds in microseconds."""
    day, days = BY_THE_CALENDAR[kind]
    start, end = (f"unix_micros(CAST({at} AS TIMESTAMP))" for at in (day, f"date_add({day}, {days})"))
    timed = f"SELECT *, timestamp_micros(at) AS t FROM {rows}"
    bounds = f"SELECT user, x, seen, {start} AS s, {end} AS e FROM ({timed})"
    return f"SELECT user, s, e, sum(x), count(*) FROM ({bounds}) WHERE e > seen GROUP BY user, s, e"
