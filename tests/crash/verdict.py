"""Compares what a killed job published with what another engine makes of the same input. Knows nothing of the kills."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from oracle.windows import FLUSH, rules

if TYPE_CHECKING:
    from crash.feed import Feed

PUBLISHED = {
    "out": "{user: 'VARCHAR', window_start: 'TIMESTAMP', window_end: 'TIMESTAMP', amount: 'DOUBLE', n: 'BIGINT'}",
    "late": "{id: 'BIGINT', user: 'VARCHAR', amount: 'DOUBLE', 'at': 'TIMESTAMP'}",
    "bad": "{value: 'VARCHAR'}",
}

FOLDED = f"""
CREATE VIEW folded AS
    SELECT user, window_start, sum(amount) AS amount, sum(n) AS n FROM (
        SELECT user, window_start, amount, n FROM out
        UNION ALL SELECT user, date_trunc('minute', "at"), amount, 1 FROM late
    ) WHERE user <> '{FLUSH}' GROUP BY ALL;
"""

COMPARED = """
    SELECT coalesce(sum(greatest(coalesce(e.n, 0) - coalesce(f.n, 0), 0)), 0)::BIGINT AS lost,
           coalesce(sum(greatest(coalesce(f.n, 0) - coalesce(e.n, 0), 0)), 0)::BIGINT AS repeated,
           count(*) FILTER (e.n = f.n AND e.amount <> f.amount) AS exchanged
    FROM expected e FULL JOIN folded f USING (user, window_start)
"""


@dataclass
class Verdict:
    """Counts, and in ``problems`` everything that must not be."""

    rows: int
    in_windows: int
    late: int
    bad: int
    windows: int
    lost: int
    repeated: int
    problems: list[str] = field(default_factory=list)


def judge(home: Path, feed: Feed) -> Verdict:
    """Read the input, archived files too, and the published files of a folder with DuckDB and compare."""
    with duckdb.connect() as engine:
        engine.execute(rules(str(home / "in" / "**" / "part-*.jsonl")))
        for name, columns in PUBLISHED.items():
            engine.execute(_published(home / name, name, columns))
        engine.execute(FOLDED)
        one = lambda query: engine.execute(query).fetchall()[0]  # noqa: E731 - one row of this connection
        lost, repeated, exchanged = one(COMPARED)
        (bad_lost,) = one("SELECT count(*) FROM (SELECT line FROM bad_lines EXCEPT ALL SELECT value FROM bad)")
        (bad_more,) = one("SELECT count(*) FROM (SELECT value FROM bad EXCEPT ALL SELECT line FROM bad_lines)")
        (twice,) = one("SELECT count(*) FROM (FROM out SELECT user, window_start GROUP BY ALL HAVING count(*) > 1)")
        verdict = Verdict(
            rows=one(f"SELECT count(*) FROM decoded WHERE user IS DISTINCT FROM '{FLUSH}'")[0],
            in_windows=one(f"SELECT coalesce(sum(n), 0)::BIGINT FROM out WHERE user <> '{FLUSH}'")[0],
            late=one(f"SELECT count(*) FROM late WHERE user <> '{FLUSH}'")[0],
            bad=one("SELECT count(*) FROM bad")[0],
            windows=one("SELECT count(*) FROM out")[0],
            lost=lost + bad_lost,
            repeated=repeated + bad_more,
        )
        late_ids = [row[0] for row in engine.execute(f"SELECT id FROM late WHERE user <> '{FLUSH}'").fetchall()]
    _note(verdict, feed, exchanged=exchanged, twice=twice, late_ids=late_ids)
    return verdict


def _published(folder: Path, name: str, columns: str) -> str:
    if not list(folder.glob("part-*")):
        pairs = [pair.replace("'", "").split(": ") for pair in columns.strip("{}").split(", ")]
        return f"CREATE TABLE {name} ({', '.join(f'{chr(34)}{column}{chr(34)} {kind}' for column, kind in pairs)})"
    read = f"read_json('{folder}/part-*', format = 'newline_delimited', columns = {columns})"
    return f"CREATE TABLE {name} AS FROM {read}"


def _note(verdict: Verdict, feed: Feed, *, exchanged: int, twice: int, late_ids: list[int]) -> None:
    tell = verdict.problems.append
    if verdict.rows != feed.rows:
        tell(f"the oracle reads {verdict.rows} rows, {feed.rows} were written")
    if verdict.lost or verdict.repeated:
        tell(f"{verdict.lost} rows lost, {verdict.repeated} rows repeated")
    if exchanged:
        tell(f"{exchanged} windows have the right number of rows and the wrong amount")
    if twice:
        tell(f"{twice} windows were published more than once")
    if len(late_ids) != len(set(late_ids)):
        tell(f"{len(late_ids) - len(set(late_ids))} late rows were published more than once")
    innocent = set(late_ids) - feed.delayed
    if innocent:
        tell(f"{len(innocent)} rows came in time and are called late, such as id {min(innocent)}")
    if verdict.in_windows + verdict.late + verdict.bad != verdict.rows:
        tell(f"{verdict.rows} rows in, {verdict.in_windows} in windows + {verdict.late} late + {verdict.bad} bad out")
