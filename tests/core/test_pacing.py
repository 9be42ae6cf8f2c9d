"""When a source may be read: the metronome's rules, with wall time handed in. S rows are Spark Streaming's."""

import pytest

import penstock as ps
from penstock.clock import WallTime
from penstock.graph.nodes import DEFAULT_LINGER, Every, WhenReady
from penstock.runtime.poll_schedule import AdaptiveBatching, FixedInterval, schedule_of


def at(micros: int) -> WallTime:
    return WallTime(micros)


@pytest.mark.mission("S15")
@pytest.mark.parametrize(("now", "first"), [(0, 10), (1, 10), (9, 10), (10, 20), (11, 20)])
def test_the_first_tick_is_strictly_in_the_future_and_a_multiple_of_the_interval(now: int, first: int) -> None:
    metronome = FixedInterval(10)
    assert metronome.wait(at(now)) == first - now
    assert metronome.wait(at(first)) == 0
    assert metronome.polled(at(first)) == 0
    assert metronome.wait(at(first)) == 10


@pytest.mark.mission("S16")
@pytest.mark.parametrize("down", [1, 7, 10, 123, 1_000_003])
def test_after_a_restart_ticks_keep_their_phase(down: int) -> None:
    before = FixedInterval(10)
    before.wait(at(100))
    before.polled(at(110))
    ticks = {110 + before.wait(at(110))}
    after = FixedInterval(10)
    ticks.add(111 + down + after.wait(at(111 + down)))
    assert {tick % 10 for tick in ticks} == {0}


@pytest.mark.mission("S17")
def test_late_ticks_are_one_poll_and_the_rest_is_counted_not_made_up() -> None:
    metronome = FixedInterval(10)
    metronome.wait(at(95))
    assert metronome.wait(at(131)) == 0, "100 is due, 110 to 130 went by"
    assert metronome.polled(at(131)) == 3
    assert metronome.wait(at(131)) == 9, "no burst: the next poll is at 140"
    assert metronome.polled(at(140)) == 0


def test_a_poll_that_takes_less_than_the_interval_misses_nothing() -> None:
    metronome = FixedInterval(10)
    metronome.wait(at(0))
    assert [metronome.polled(at(now)) for now in (10, 29, 30, 45)] == [0, 0, 0, 0]


def test_ticks_at_which_there_was_nothing_to_read_are_not_missed() -> None:
    metronome = FixedInterval(10)
    metronome.wait(at(5))
    metronome.polled(at(10))
    metronome.skip_until(at(75))
    assert metronome.wait(at(75)) == 5
    assert metronome.polled(at(80)) == 0
    metronome.skip_until(at(90))
    assert metronome.wait(at(90)) == 0, "a tick right when there is something again is used"
    metronome.polled(at(90))
    metronome.skip_until(at(91))
    assert metronome.wait(at(91)) == 9


def test_a_reader_that_wants_to_be_asked_at_once_waits_for_the_next_tick_all_the_same() -> None:
    metronome = FixedInterval(10)
    metronome.wait(at(5))
    metronome.polled(at(10))
    metronome.skip_until(at(10))
    assert metronome.wait(at(11)) == 9


def test_a_rest_before_the_first_question_aims_too() -> None:
    metronome = FixedInterval(10)
    metronome.skip_until(at(25))
    assert metronome.wait(at(26)) == 4


def test_a_wall_clock_that_is_set_back_does_not_stop_the_source() -> None:
    metronome = FixedInterval(10)
    metronome.wait(at(1_000_000))
    assert metronome.wait(at(503)) == 7
    assert FixedInterval(10).polled(at(7)) == 0, "served before anybody asked"


def test_rows_gather_after_a_batch_that_took_all() -> None:
    linger = AdaptiveBatching(100)
    assert linger.wait(at(1_000)) == 0, "the first batch waits for nothing"
    assert linger.polled(at(1_000)) == 0
    linger.sent(takes_all=True)
    assert [linger.wait(at(now)) for now in (1_001, 1_099, 1_100, 5_000)] == [99, 1, 0, 0]


@pytest.mark.parametrize(
    ("took", "apart"), [(20, 100), (60, 100), (80, 112), (200, 280), (400, 560), (800, 1_000), (1_200, 1_200)]
)
def test_a_batch_is_followed_by_a_pause_in_proportion_within_bounds(took: int, apart: int) -> None:
    linger = AdaptiveBatching(100)
    linger.polled(at(1_000))
    linger.sent(takes_all=True)
    through = 1_000 + took
    assert through + linger.wait(at(through)) == 1_000 + apart
    assert linger.wait(at(1_000 + apart)) == 0


def test_the_pause_is_by_how_long_batches_take_as_a_rule() -> None:
    linger, begun, apart = AdaptiveBatching(100), 1_000, []
    for took in (200, 200, 450, 200, 40, 200, 240, 300, 300, 300, 300):
        linger.polled(at(begun))
        linger.sent(takes_all=True)
        through = begun + took
        next = through + linger.wait(at(through))
        apart.append(next - begun)
        begun = next
    assert apart == [280, 280, 450, 280, 280, 280, 280, 300, 336, 336, 420], "slow ones are followed at once"


@pytest.mark.parametrize("took", [0, 5, 10_000])
def test_who_is_not_to_linger_never_does(took: int) -> None:
    linger = AdaptiveBatching(0)
    linger.polled(at(1_000))
    linger.sent(takes_all=True)
    assert linger.wait(at(1_000 + took)) == 0


def test_who_lags_behind_does_not_linger() -> None:
    linger = AdaptiveBatching(100)
    linger.polled(at(1_000))
    linger.sent(takes_all=False)
    assert linger.wait(at(1_001)) == 0


def test_polls_that_bring_nothing_do_not_hold_up_the_first_rows_after_them() -> None:
    linger = AdaptiveBatching(100)
    linger.polled(at(1_000))
    linger.sent(takes_all=True)
    linger.polled(at(1_100))
    linger.skip_until(at(1_150))
    assert linger.wait(at(1_101)) == 0


def test_a_wall_clock_that_is_set_back_ends_the_wait() -> None:
    linger = AdaptiveBatching(100)
    linger.polled(at(1_000_000))
    linger.sent(takes_all=True)
    assert linger.wait(at(5)) == 0
    linger.polled(at(1_000_000))
    linger.sent(takes_all=True)
    assert linger.wait(at(1_000_020)) == 80
    assert linger.wait(at(999_800)) == 0, "that is more than it chose to wait"


def test_paces_by_name() -> None:
    assert WhenReady() == ps.when_ready == ps.linger("50 ms")
    assert str(ps.linger("20 ms")) == "when ready, lingering 20 milliseconds"
    pace = schedule_of(ps.when_ready)
    assert isinstance(pace, AdaptiveBatching)
    pace.polled(at(7))
    pace.sent(takes_all=True)
    assert pace.wait(at(7)) == DEFAULT_LINGER
    with pytest.raises(ps.GraphError, match="linger 'soon' is not a length of time"):
        ps.linger("soon")


def test_a_pipeline_says_the_pace_of_a_source() -> None:
    p = ps.Pipeline("demo")
    p.read("a", ps.rate.Source(1), pace=ps.every("2 seconds"))
    p.read("b", ps.rate.Source(1))
    paces = [node.pace for node in p.graph().nodes]  # type: ignore[union-attr]
    assert paces == [Every(2_000_000), ps.when_ready]
    assert [str(pace) for pace in paces] == ["every 2 seconds", "when ready"]
    assert isinstance(schedule_of(ps.every("2 seconds")), FixedInterval)


@pytest.mark.parametrize("wrong", ["1 second", 5, None])
def test_what_is_no_pace_is_refused_with_the_line(wrong: object) -> None:
    with pytest.raises(ps.GraphError, match=r"test_pacing.py:\d+: read\(\) cannot take pace=.* Write ps.every"):
        ps.Pipeline("demo").read("a", ps.rate.Source(1), pace=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("wrong", "why"), [("5 ms", "too short"), ("soon", "not a length of time")])
def test_an_impossible_interval_is_refused(wrong: str, why: str) -> None:
    with pytest.raises(ps.GraphError, match=why):
        ps.every(wrong)
