"""Makes the input of the story: plain Python, without penstock.

python sample.py monday      orders of two and a half minutes
python sample.py tuesday     orders and refunds of the next ones, and a last one of each that closes all windows
"""

import json
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

BEGIN = datetime(2026, 1, 5, tzinfo=timezone.utc)
UPGRADE, END = 150, 300  # seconds of event time: the code changes in the middle of a minute


def orders(first: int, last: int) -> list[dict[str, object]]:
    """One every five seconds."""
    return [row(second, float(second)) for second in range(first, last, 5)]


def refunds(first: int, last: int) -> list[dict[str, object]]:
    """A little of each third order."""
    return [row(second, -1.0) for second in range(first, last, 15)]


def row(second: int, amount: float) -> dict[str, object]:
    """An order, or a refund of it."""
    return {
        "id": second,
        "user": f"u{second % 3}",
        "amount": amount,
        "at": f"{BEGIN + timedelta(seconds=second):%FT%TZ}",
    }


def drop(folder: str, name: str, rows: list[dict[str, object]]) -> None:
    """A name with a dot in front is not read yet: files must arrive whole."""
    Path(folder).mkdir(exist_ok=True)
    hidden = Path(folder) / f".{name}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(Path(folder) / name)


def main(day: str) -> None:
    """Make the input of one day."""
    if day == "monday":
        drop("orders", "monday.json", orders(0, UPGRADE))
    else:
        last = {**row(3600, 0.0), "user": "end"}
        drop("orders", "tuesday.json", [*orders(UPGRADE, END), last])
        drop("refunds", "tuesday.json", [*refunds(UPGRADE, END), last])


main(sys.argv[1])
