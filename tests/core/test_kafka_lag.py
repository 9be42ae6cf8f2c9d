"""How far behind a source is in rows and seconds, and partitions that have records waiting and give none."""

from __future__ import annotations

import pytest

from penstock.clock import MonotonicTime
from penstock.connectors.kafka.config import StallTimeouts
from penstock.connectors.kafka.monitor import LagMeter, StallAction, StallDetector, StalledPartition
from penstock.connectors.kafka.offsets import TopicPartition
from penstock.errors import SourceUnavailable
from penstock.facts import PartitionLag, SourceLag
from penstock.observability.report import ReportCollector

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
SECOND = 1_000_000


def at(seconds: float) -> MonotonicTime:
    return MonotonicTime(int(seconds * SECOND))


def test_a_partition_that_is_read_to_its_end_has_no_lag_however_long_ago_that_was():
    meter = LagMeter()
    meter.observe(at(0), {A0: 5}, {A0: 5})
    assert meter.lag("in", at(3600), {A0: 5}, {A0: 5}) == SourceLag(
        task="in",
        rows=0,
        seconds=0.0,
        eta_seconds=0.0,
        partitions={"a-0": PartitionLag(0, 0.0, position=5, end=5, rate=0.0, name="a-0")},
    )


def test_lag_in_seconds_is_how_long_ago_the_next_record_came():
    meter = LagMeter()
    for second in range(11):
        meter.observe(at(second), {A0: 0, A1: 100}, {A0: 100 * second, A1: 100})
    lag = meter.lag("in", at(10), {A0: 650, A1: 100}, {A0: 1_000, A1: 100})
    assert lag.rows == 350
    assert lag.seconds == pytest.approx(3.5)
    assert lag.partitions["a-0"].rate == pytest.approx(65), "what was read since the first look"
    assert (lag.partitions["a-1"].rows, lag.partitions["a-1"].seconds) == (0, 0.0)


def test_what_came_after_the_last_look_is_no_second_old_and_what_came_before_the_first_is_judged_by_the_rate():
    meter = LagMeter()
    meter.observe(at(0), {A0: 0}, {A0: 1_000})
    assert meter.lag("in", at(0), {A0: 0}, {A0: 1_000}).seconds is None, "nobody knows yet how fast it grows"
    assert meter.lag("in", at(9), {A0: 0}, {A0: 1_000}).seconds is None, "it does not"
    meter.observe(at(10), {A0: 500}, {A0: 1_100})
    assert meter.lag("in", at(10), {A0: 500}, {A0: 1_100}).seconds == pytest.approx(60)
    assert meter.lag("in", at(10), {A0: 1_100}, {A0: 1_110}).seconds == 0.0


@pytest.mark.parametrize(("samples", "seconds"), [(120, 0.9), (121, 0.09)])
def test_120_samples_are_kept_and_of_one_more_every_other(samples: int, seconds: float):
    meter = LagMeter()
    ends = [*range(samples - 2), 2_000, 2_100]
    for second, end in enumerate(ends):
        meter.observe(at(second), {A0: 0}, {A0: end})
    lag = meter.lag("in", at(samples - 1), {A0: 2_010}, {A0: 2_100})
    assert lag.seconds == pytest.approx(seconds, abs=0.01)


def test_one_partition_that_is_unknown_makes_the_greatest_unknown_but_not_the_rows():
    meter = LagMeter()
    for second in (0, 1):
        meter.observe(at(second), {A0: 0, A1: 0}, {A0: 10 * second, A1: 7})
    lag = meter.lag("in", at(1), {A0: 5, A1: 0}, {A0: 10, A1: 7})
    assert (lag.rows, lag.seconds) == (12, None)
    assert lag.partitions["a-0"].seconds == pytest.approx(0.5)


def test_before_anything_was_seen_and_for_a_partition_that_was_never_seen_seconds_are_not_made_up():
    assert LagMeter().lag("in", at(0), {A0: 0}, {A0: 9}).seconds is None
    meter = LagMeter()
    meter.observe(at(0), {A0: 0}, {A0: 9})
    lag = meter.lag("in", at(5), {A0: 9, A1: 0}, {A0: 9, A1: 9}, partition_name=lambda at: str(at.partition))
    assert lag.partitions["a-1"] == PartitionLag(9, None, position=0, end=9, rate=None, name="1")


def test_the_time_until_nothing_waits_is_by_what_is_gained_or_unknown_if_nothing_is():
    meter = LagMeter()
    assert meter.lag("in", at(0), {A0: 0}, {A0: 10}).eta_seconds is None
    meter.observe(at(0), {A0: 0}, {A0: 1_000})
    assert meter.lag("in", at(0), {A0: 0}, {A0: 1_000}).eta_seconds is None
    lag = meter.lag("in", at(10), {A0: 500, A1: 0}, {A0: 1_100, A1: 100})
    assert lag.eta_seconds == pytest.approx(700 / 40), "50 a second read, 10 a second come; a new partition aside"
    assert meter.lag("in", at(10), {A0: 50}, {A0: 1_100}).eta_seconds is None


def test_the_table_stays_small_and_reaches_back_to_the_beginning():
    meter, now, end = LagMeter(), 0, 0
    for wait, came in [(1, 7), (5, 0), (2, 100)] * 300:
        meter.observe(at(now), {A0: 0}, {A0: end})
        now, end = now + wait, end + came
    assert len(meter._samples) <= 120
    assert meter._samples[0].at == 0
    lag = meter.lag("in", at(now), {A0: end // 2}, {A0: end})
    assert lag.seconds == pytest.approx(now / 2, rel=0.05)


def test_a_report_has_what_each_source_told_last_of_its_lag():
    tally, meter = ReportCollector(sources=frozenset({"in"}), sinks=frozenset()), LagMeter()
    assert tally.report().lag == {}
    for second, read in ((0, 0), (10, 90)):
        meter.observe(at(second), {A0: read}, {A0: 100})
        tally(meter.lag("in", at(second), {A0: read}, {A0: 100}))
    lag = tally.report().lag["in"]
    assert (lag.rows, lag.partitions["a-0"].rows) == (10, 10)
    assert lag.eta_seconds == pytest.approx(10 / 9)


# -------------------------------------------------------------------------------------------------------------- stalls

PATIENCE = StallTimeouts(warn=3 * SECOND, reopen=6 * SECOND, fail=9 * SECOND)


def told(watch: StallDetector, second: float, next: int = 5, end: int = 9, **more) -> list[str]:
    return [stall.action.value for stall in watch.check(at(second), {A0: next}, {A0: end}, **more)]


def test_a_partition_that_gives_nothing_though_records_wait_is_told_then_mended_then_an_error_each_once():
    watch = StallDetector(PATIENCE)
    assert [told(watch, second) for second in range(11)] == [
        *([[]] * 3),
        ["warn"],
        *([[]] * 2),
        ["reopen"],
        *([[]] * 2),
        ["fail"],
        [],
    ]


def test_whoever_moves_or_has_nothing_waiting_or_is_paused_or_gone_begins_again():
    for other in ({"next": 6}, {"end": 5}, {"paused": {A0}}):
        watch = StallDetector(PATIENCE)
        for second in range(3):
            told(watch, second)
        assert told(watch, 3, **other) == []
        assert told(watch, 4) == []
    watch = StallDetector(PATIENCE)
    told(watch, 0)
    assert watch.check(at(1), {}, {A0: 9}) == ()
    assert told(watch, 9) == []


def test_time_in_which_nobody_looked_is_not_time_in_which_nothing_came():
    watch = StallDetector(PATIENCE)
    assert [told(watch, second) for second in (0, 100, 200, 300)] == [[], [], [], ["warn"]]


def test_a_stall_says_where_it_stands_and_a_restart_may_help():
    stall = StalledPartition(at=A0, action=StallAction.FAIL, waited=9 * SECOND, next=5, end=9)
    error = stall.error()
    assert isinstance(error, SourceUnavailable)
    assert error.retry
    assert "Partition a-0 has given no record for 9 s, though offset 5 is next and it ends at 9" in str(error)


def test_patience_of_one_look_tells_all_at_once():
    watch = StallDetector(StallTimeouts(warn=1, reopen=1, fail=1))
    told(watch, 0)
    assert told(watch, 1) == ["warn", "reopen", "fail"]
