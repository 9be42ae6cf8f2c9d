"""kill -9 while a step holds rows that its sink has just staged: none is lost, and no change is published twice."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from crash.driver import Driver, all_gone

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

START = 240
FILES = 6


def given(number: int) -> list[dict[str, object]]:
    return [{"user": f"u{n % 3}", "x": number * 10 + n, "at": f"2026-01-01T00:0{n % 2}:01Z"} for n in range(8)]


def test_rows_that_were_held_when_all_was_killed_are_told_once(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        (tmp_path / "in" / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in given(number)))
    try:
        killed = Driver(
            tmp_path, 0, "--checkpoint-every", "100ms", pipeline="held_job:job", pause_at="sink.staged", hit=3
        )
        assert killed.reaches(START), killed.tail()
        killed.kill("group")
        again = Driver(tmp_path, 1, "--until", "caught-up", pipeline="held_job:job")
        assert again.wait(START) == 0, again.tail()
    finally:
        assert all_gone(tmp_path) == 0
    assert killed.hits("sink.staged") == 3
    assert left_behind(tmp_path) == expected()


def expected() -> Counter[tuple[object, object, int]]:
    """The sum of each user and minute, once."""
    sums: Counter[tuple[object, object]] = Counter()
    for number in range(FILES):
        for row in given(number):
            sums[row["user"], row["at"][15:16]] += row["x"]  # type: ignore[index, operator]
    return Counter({(*place, x): 1 for place, x in sums.items()})


def left_behind(home: Path) -> Counter[tuple[object, object, int]]:
    """What is left of what was published when what was taken back is gone."""
    left: Counter[tuple[object, object, int]] = Counter()
    for path in (home / "out").glob("part-*"):
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            sign = -1 if row["_change"] == "update_before" else 1
            left[row["user"], row["window_start"][15:16], row["x"]] += sign
    return Counter({key: count for key, count in left.items() if count})
