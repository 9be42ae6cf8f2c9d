"""Makes the demo's orders and adds up, in plain Python, what must come out; knows nothing of pipelines."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

USERS: Final = ("ada", "alan", "barbara", "dennis", "edsger", "grace", "ken", "margaret")
BEGIN: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
MINUTES: Final = 20
FILES: Final = 24
BAD_EVERY: Final = 9_973
"""Each so-manieth line is cut short: it goes to the pipeline's second output."""

Window = tuple[str, str]
"""A user and the minute at which the window begins."""


@dataclass(slots=True)
class Totals:
    """Orders and amounts by window, and the lines that cannot be read."""

    orders: Counter[Window] = field(default_factory=Counter)
    amount: dict[Window, float] = field(default_factory=lambda: defaultdict(float))
    bad: int = 0

    @property
    def total(self) -> int:
        """All orders in windows."""
        return sum(self.orders.values())

    def differs(self, other: Totals) -> list[Window]:
        """Windows that are not alike in both."""
        every = {*self.orders, *other.orders}
        return sorted(w for w in every if self._of(w) != other._of(w))

    def _of(self, window: Window) -> tuple[int, float]:
        return self.orders[window], self.amount[window]


def make_orders(folder: Path, rows: int) -> Totals:
    """Write the files in order of time; what a pipeline must make of them."""
    folder.mkdir(parents=True)
    chance, totals = random.Random(42), Totals()  # the same orders each time
    for number in range(FILES):
        begin, end = number * rows // FILES, (number + 1) * rows // FILES
        lines = [order_line(each, rows, chance, totals) for each in range(begin, end)]
        (folder / f"orders-{number:03d}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return totals


def order_line(number: int, rows: int, chance: random.Random, totals: Totals) -> str:
    """One of so many orders, which ``totals`` then counts too."""
    at = BEGIN + timedelta(seconds=int(number / rows * MINUTES * 60))
    user, amount = chance.choice(USERS), chance.randint(1, 400) / 4
    line = json.dumps({"id": number, "user": user, "amount": amount, "at": at.strftime("%Y-%m-%dT%H:%M:%SZ")})
    if number % BAD_EVERY == BAD_EVERY - 1:
        totals.bad += 1
        return line[:-12]
    window = (user, at.strftime("%H:%M"))
    totals.orders[window] += 1
    totals.amount[window] += amount
    return line


def read_published(out: Path, bad: Path) -> Totals:
    """What a reader of the output finds, without penstock and without Spark. A window seen twice counts twice."""
    totals = Totals()
    for row in _rows(out):
        window = (str(row["user"]), str(row["window_start"])[11:16])
        totals.orders[window] += int(str(row["n"]))
        totals.amount[window] += float(str(row["amount"]))
    totals.bad = sum(1 for _ in _rows(bad))
    return totals


def _rows(folder: Path) -> Iterable[dict[str, object]]:
    for path in sorted(folder.glob("part-*")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)
