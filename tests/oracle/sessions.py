"""What a step with sessions must send, row by row of its input and step by step of event time, by joins in DuckDB.

Knows nothing of penstock. A row covers the moments from its own to one gap later, both included, as in Spark's
``session_window`` and Flink's session windows: a session begins with a row that no earlier row covers, and ends at the
last moment that its rows cover.
"""

from __future__ import annotations

import copy
from typing import TypeAlias

import duckdb
import pyarrow as pa

Row: TypeAlias = dict[str, object]

_KEPT = pa.schema(
    [("user", pa.string()), ("at", pa.int64()), ("gap", pa.int64()), ("x", pa.int64()), ("batch", pa.int64())]
)

_SESSIONS = """
    WITH begins AS (
        SELECT DISTINCT "user", "at" AS s FROM kept k WHERE NOT EXISTS (
            SELECT 1 FROM kept r
            WHERE r."user" IS NOT DISTINCT FROM k."user" AND r."at" < k."at" AND r."at" + r.gap >= k."at"
        )
    ), ends AS (
        SELECT DISTINCT "user", "at" + gap AS e FROM kept k WHERE NOT EXISTS (
            SELECT 1 FROM kept r
            WHERE r."user" IS NOT DISTINCT FROM k."user"
            AND r."at" <= k."at" + k.gap AND r."at" + r.gap > k."at" + k.gap
        )
    ), sessions AS (
        SELECT b."user", s, min(e) AS e FROM begins b JOIN ends n ON b."user" IS NOT DISTINCT FROM n."user" AND e > s
        GROUP BY ALL
    )
    SELECT s."user", s, e, sum(x), count(*), max(batch) FROM sessions s
    JOIN kept k ON k."user" IS NOT DISTINCT FROM s."user" AND "at" >= s AND "at" < e GROUP BY ALL
"""


class Sessions:
    """The rows that sessions are made of, as they come and go. Times are microseconds.

    Attributes:
        closed: sessions that were complete, with all that came within the lateness.
    """

    def __init__(self, *, lateness: int = 0) -> None:
        self.closed: list[tuple[object, ...]] = []
        self._lateness = lateness
        self._kept: list[Row] = []
        self._fired: int | None = None
        self._batch = 0

    def batch(self, rows: list[Row], watermark: int | None) -> tuple[list[tuple[object, ...]], list[Row]]:
        """Sessions sent again since rows came to them, and the rows that are late."""
        self._batch += 1
        late = [row for row in rows if self._is_late(row, watermark)]
        self._kept += [{**row, "batch": self._batch} for row in rows if row not in late]
        again = [row[:-1] for row in self.sessions() if self._sent(row[2]) and row[-1] == self._batch]
        return again if self._lateness else [], late

    def advance(self, bound: int) -> list[tuple[object, ...]]:
        """Sessions that end now; those for which it is too late go."""
        found = self.sessions()
        due = [row[:-1] for row in found if row[2] <= bound and not self._sent(row[2])]
        gone = [row for row in found if row[2] <= bound - self._lateness]
        self.closed += [row[:-1] for row in gone]
        self._kept = [row for row in self._kept if not any(_holds(session, row) for session in gone)]
        self._fired = bound if self._fired is None else max(self._fired, bound)
        return due

    def sessions(self) -> list[tuple[object, ...]]:
        """Those that are open: user, start, end, sum and number of rows, and the newest batch that is in it."""
        database = duckdb.connect()
        database.register("kept", pa.Table.from_pylist(self._kept, schema=_KEPT))
        return database.sql(_SESSIONS).fetchall()

    def copy(self) -> Sessions:
        """As of now."""
        return copy.deepcopy(self)

    def _is_late(self, row: Row, watermark: int | None) -> bool:
        at, gap = row["at"], row["gap"]
        if at is None or gap is None or gap <= 0:
            return True
        return watermark is not None and at + gap <= watermark - self._lateness

    def _sent(self, end: object) -> bool:
        return self._fired is not None and end <= self._fired


def _holds(session: tuple[object, ...], row: Row) -> bool:
    user, start, end = session[:3]
    return row["user"] == user and start <= row["at"] < end
