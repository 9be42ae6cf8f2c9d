"""Calendar windows in Python: every moment is in exactly one pane, whatever clocks do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators.windows.assigners import tumbling

HOUR = 3_600_000_000
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Africa/Cairo",
    "Pacific/Apia",
    "Antarctica/Troll",
]
MOMENTS = st.integers(min_value=-10 * 365 * 24 * HOUR, max_value=80 * 365 * 24 * HOUR)


@pytest.mark.parametrize("zone", ZONES)
@given(moment=MOMENTS, size=st.sampled_from(["1 hour", "3 hours", "1 day", "1 week"]))
@settings(max_examples=60, deadline=None)
def test_windows_follow_each_other_without_gap(zone, moment, size):
    window = tumbling(size, timezone=zone)
    closed = window.dead(moment)
    assert closed <= moment
    assert window.due(closed, moment) is None
    assert window.dead(closed) == closed
    before = window.dead(closed - 1)
    assert before < closed
    assert window.due(before, closed) is not None


def test_a_day_has_23_25_or_no_hours_when_clocks_jump():
    def length(day_end: int, zone: str) -> float:
        window = tumbling("1 day", timezone=zone)
        end = window.dead(day_end)
        return (end - window.dead(end - 1)) / HOUR

    berlin = [1_743_285_600, 1_743_372_000, 1_761_523_200]  # 2025-03-30 00:00, 24:00 in summer, 2025-10-27 00:00
    assert [length(at * 1_000_000, "Europe/Berlin") for at in berlin] == [24, 23, 25]
    assert length(1_325_239_200 * 1_000_000, "Pacific/Apia") == 24  # 2011-12-29; the 30th was left out
    assert length(1_325_239_200 * 1_000_000 + 24 * HOUR, "Pacific/Apia") == 24
