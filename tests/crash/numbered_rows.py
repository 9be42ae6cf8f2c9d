"""Numbered rows in order of time, some deliberately late, some unreadable; the same seed makes the same rows.

Knows nothing of where they go.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
USERS = 12
SECONDS = 0.25
"""Event time from one row to the next."""


@dataclass
class NumberedRows:
    """Makes lines of text, numbered on and on; those that are not ``delayed`` are out of order by less than 3 s."""

    rows: int = 0
    bad: int = 0
    delayed: set[int] = field(default_factory=set)

    def line(self, chance: random.Random, *, disorder: bool) -> str:
        """The next one. With ``disorder`` each eleventh is ten minutes old: it is late, unless its window is open."""
        number, self.rows = self.rows, self.rows + 1
        at = BEGIN + timedelta(seconds=number * SECONDS - chance.random() * 3)
        if number % 97 == 96:
            self.bad += 1
            return chance.choice(
                [f"not json at all {number}", f'{{"id": {number}, "user": "u1", "amou', _wrong(number)]
            )
        if disorder and number % 11 == 10:
            at -= timedelta(minutes=10)
            self.delayed.add(number)
        user, amount = f"u{chance.randrange(USERS):02d}", chance.randint(1, 400) / 4
        return json.dumps({"id": number, "user": user, "amount": amount, "at": _text(at)})

    def flush(self, user: str) -> str:
        """A row so far ahead that every window before it closes; it has no number."""
        at = BEGIN + timedelta(seconds=self.rows * SECONDS) + timedelta(days=2)
        return json.dumps({"id": -1, "user": user, "amount": 0.0, "at": _text(at)})


def _wrong(number: int) -> str:
    return json.dumps({"id": number, "user": "u1", "amount": "a lot", "at": _text(BEGIN)})


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
