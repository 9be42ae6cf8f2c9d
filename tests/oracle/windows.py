"""What the torture job must publish, as SQL for another engine (DuckDB) over its input files as they are.

Knows nothing of penstock: it reads the raw lines, decodes them by itself, and adds up all rows, late or not.
"""

from __future__ import annotations

FLUSH = "~flush"
"""The user of rows that are there only to close windows; their own window stays open, so they are not counted."""

RULES = """
CREATE OR REPLACE VIEW raw AS
    SELECT line FROM (SELECT unnest(string_split(content, chr(10))) AS line FROM read_text('{input}')) WHERE line <> '';

CREATE OR REPLACE VIEW decoded AS
    SELECT line,
           CASE WHEN json_valid(line) THEN TRY_CAST(line ->> '$.id' AS BIGINT) END AS id,
           CASE WHEN json_valid(line) THEN line ->> '$.user' END AS user,
           CASE WHEN json_valid(line) THEN TRY_CAST(line ->> '$.amount' AS DOUBLE) END AS amount,
           CASE WHEN json_valid(line) THEN TRY_CAST(line ->> '$.at' AS TIMESTAMP) END AS "at"
    FROM raw;

CREATE OR REPLACE VIEW bad_lines AS
    SELECT line FROM decoded WHERE id IS NULL OR user IS NULL OR amount IS NULL OR "at" IS NULL;

CREATE OR REPLACE VIEW good AS
    SELECT id, user, amount, "at" FROM decoded
    WHERE id IS NOT NULL AND user IS NOT NULL AND amount IS NOT NULL AND "at" IS NOT NULL AND user <> '{flush}';

CREATE OR REPLACE VIEW expected AS
    SELECT user, date_trunc('minute', "at") AS window_start, sum(amount) AS amount, count(*) AS n
    FROM good GROUP BY ALL;
"""


def rules(input_glob: str) -> str:
    """Views ``raw``, ``bad_lines``, ``good`` and ``expected`` over the input files."""
    return RULES.format(input=input_glob, flush=FLUSH)
