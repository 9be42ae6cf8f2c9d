"""Bounds of calendar windows, in Spark and in Python: the same moments, in every zone, around every jump of clocks."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from penstock.operators.windows.assigners import sliding, tumbling

pytestmark = pytest.mark.spark

SECOND = 1_000_000
HOUR = 3_600 * SECOND
SIZES = ("1 hour", "2 hours", "6 hours", "1 day", "3 days", "1 week")
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # midnight itself is left out
    "America/St_Johns",  # clocks jumped a minute after midnight
    "Australia/Lord_Howe",  # by half an hour
    "Asia/Kathmandu",  # an offset of 5:45
    "Pacific/Apia",  # a whole day is left out
    "Antarctica/Troll",  # by two hours
    "UTC",
]


def jumps(zone: str) -> list[int]:
    """The hours, since 1960, in which a zone's clocks jump, in microseconds."""
    found, hour = [], datetime(1960, 1, 1, tzinfo=timezone.utc)
    known = ZoneInfo(zone)
    while hour.year < 2030:
        later = hour + timedelta(days=20)
        if hour.astimezone(known).utcoffset() != later.astimezone(known).utcoffset():
            step = hour
            while step.astimezone(known).utcoffset() == (step + timedelta(hours=1)).astimezone(known).utcoffset():
                step += timedelta(hours=1)
            found.append(int(step.timestamp()) * SECOND)
        hour = later
    return found


@pytest.mark.parametrize("offset", [None, "30 minutes", "150 minutes"])
@pytest.mark.parametrize("zone", ZONES)
def test_spark_and_python_agree_on_the_bounds_of_panes(spark, zone, offset):
    chance = random.Random(zone)
    moments = [chance.randrange(-10 * 365 * 24, 60 * 365 * 24) * HOUR + chance.randrange(HOUR) for _ in range(200)]
    for jump in chance.sample(jumps(zone), min(25, len(jumps(zone)))):
        near = [jump + n * HOUR // 4 + late for n in range(-6, 14) for late in (-1, 0)]
        moments += chance.sample(near, 16)
    frame = spark.createDataFrame([(moment,) for moment in moments], "at BIGINT")
    sizes = SIZES[3:] if offset and zone == "Pacific/Apia" else SIZES  # shorter than the day left out: docs/windows.md
    windows = [tumbling(size, timezone=zone, offset=offset) for size in sizes]
    panes = [f"{window.pane('at')} AS pane{place}" for place, window in enumerate(windows)]
    starts = [f"{window.pane_start(f'pane{place}')}" for place, window in enumerate(windows)]
    for at, *rest in frame.selectExpr("at", *panes).selectExpr("*", *starts).collect():
        ends, begins = rest[: len(windows)], rest[len(windows) :]
        for window, end, begin in zip(windows, ends, begins, strict=True):
            told = (zone, window.describe(), at, begin, end)
            assert at < end, told
            assert window.dead(end) == end, told
            assert window.dead(at) == window.dead(end - 1) <= at, told
            assert begin == window.dead(at), told


def test_a_moment_is_in_as_many_sliding_windows_as_overlap_whatever_clocks_do(spark):
    window = sliding("3 hours", "1 hour", timezone="Europe/Berlin")
    spring, autumn = 1_743_296_400 * SECOND, 1_761_440_400 * SECOND
    query = window.windows(window.pane("at"), f"{-(2**62)}L", f"{2**62}L")
    rows = [(spring - 1,), (spring,), (autumn - 1,), (autumn + HOUR,)]
    found = spark.createDataFrame(rows, "at BIGINT").selectExpr("at", f"{query} AS w").collect()
    lengths = [[(w.end - w.start) // HOUR for w in row.w] for row in found]
    assert all(w.start <= row.at < w.end for row in found for w in row.w)
    assert lengths == [[3, 2, 2], [2, 2, 3], [4, 4, 4], [4, 4, 3]], "hours of a clock that jumps"


@pytest.mark.parametrize("offset", ["30 minutes", "150 minutes"])
@pytest.mark.parametrize("window", [("2 days", "1 day"), ("3 hours", "1 hour"), ("6 hours", "2 hours")])
def test_sliding_windows_that_end_where_clocks_were_put_forward_hold_all_their_rows(spark, window, offset):
    shape = sliding(*window, timezone="Europe/Berlin", offset=offset)
    spring = 1_743_296_400 * SECOND
    moments = [spring + n * HOUR // 4 - late for n in range(-12, 24) for late in (0, 1)]
    query = shape.windows("pane", f"{-(2**62)}L", f"{2**62}L")
    frame = spark.createDataFrame([(moment,) for moment in moments], "at BIGINT")
    found = frame.selectExpr("at", f"{shape.pane('at')} AS pane").selectExpr("at", f"{query} AS w").collect()
    assert all(w.start <= row.at < w.end for row in found for w in row.w)
    windows = {(w.start, w.end) for row in found for w in row.w}
    held = {row.at: {(w.start, w.end) for w in row.w} for row in found}
    missing = [(at, w) for at, into in held.items() for w in windows - into if w[0] <= at < w[1]]
    assert missing == []
