"""A reader of Kinesis against all that the service may do.

"kinesis F1" and the like are the numbers of a scenario, "kinesis P1" of what others suffered from.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from itertools import pairwise

import pytest

from core.checkpointer_kit import Patience
from core.kinesis_kit import Bench
from kinesis_fake import EPOCH, HOUR, refusal, throttled
from penstock.clock import MonotonicTime
from penstock.connectors.kinesis import fetch
from penstock.connectors.kinesis.aggregation import MAGIC, UserRecord, pack
from penstock.connectors.kinesis.positions import AtTime, Finished
from penstock.connectors.kinesis.reader import FetchedBatch
from penstock.connectors.kinesis.shards import decode
from penstock.errors import ConnectorError, SourceChanged, SourceUnavailable
from penstock.facts import OffsetsLost, PartitionsFound, SourceLag
from penstock.interfaces.source import CaughtUp, NoData, PlannedBatch, ReadLimit, Until
from penstock.observability.report import Report
from penstock.testing.clock import ManualClock

ZERO, ONE, TWO, THREE = (f"shardId-{number:012d}" for number in range(4))


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def put(bench: Bench, first: int, last: int, key: str | None = None) -> None:
    for number in range(first, last):
        bench.stream.put(key or f"k{number}", b"%d" % number)


# ---- requests that fail ----------------------------------------------------------------------------------------------


def test_throttled_reads_are_repeated_and_lose_nothing():
    """kinesis F1."""
    bench = Bench(2, limits=ReadLimit(rows=3))
    bench.stream.refuses_first = 3
    put(bench, 0, 20)
    assert sorted(bench.until_quiet(400)) == sorted(numbers(0, 20))


def test_throttled_reads_are_counted_with_the_time_they_waited():
    bench = Bench(2, poll_every="200 milliseconds")
    bench.until_quiet(40)
    counted = lambda name: sum(fact.amount for fact in bench.facts if getattr(fact, "name", "") == name)  # noqa: E731
    assert counted("throttled") == 0
    bench.stream.errors["GetRecords"] = [throttled() for _ in range(7)]
    bench.until_quiet(400)
    assert counted("throttled") == 7
    assert 7 <= counted("throttled_ms") <= 5_000 * 7
    [*_, text] = str(Report(state="running", batches={"in": 1}, counters={("in", "throttled"): 7})).splitlines()
    assert text.endswith("throttled 7 times, for 0.0 s")


def test_the_pace_that_kinesis_allows_is_kept():
    """kinesis F9: after a page of 10 MB a shard gives nothing for five seconds; no read is refused."""
    bench = Bench(poll_every="200 milliseconds")
    for number in range(50):
        bench.stream.put("k", bytes([number]) * 1_000_000)
    started = bench.clock.now()
    while len(bench.read) < 50:
        bench.poll()
    assert 20_000_000 <= bench.clock.now() - started <= 26_000_000
    bench.until_quiet(100)
    assert bench.reader._fetchers[ZERO].throttled == 0


def test_backoff_grows_with_failures_and_is_random_within_them():
    times = iter([1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0])
    backoff = fetch.Backoff(lambda: next(times))
    waits = [backoff.failed(fetch.MonotonicTime(0)) for _ in range(7)]
    assert waits == [200_000, 200_000, 800_000, 1_600_000, 3_200_000, 5_000_000, 5_000_000]


def test_long_throttling_is_a_warning_and_never_a_failure(caplog):
    bench = Bench()
    bench.stream.errors["GetRecords"] = [throttled() for _ in range(400)]
    put(bench, 0, 3)
    with caplog.at_level(logging.WARNING, "penstock"):
        while not bench.read:
            bench.poll()
    assert bench.clock.now() > fetch.FAIL_AFTER
    assert bench.data == numbers(0, 3)
    assert len([each for each in caplog.messages if "ProvisionedThroughputExceeded" in each]) == 1


def test_an_expired_iterator_goes_on_after_the_last_record():
    """kinesis F2, P11: at each page in turn, also before the first record."""
    for page in range(1, 6):
        bench = Bench(limits=ReadLimit(rows=2))
        bench.stream.page_size = 3
        bench.stream.expired_pages = {page}
        put(bench, 0, 10)
        assert bench.until_quiet(60) == numbers(0, 10)


def test_a_reader_that_was_not_polled_for_long_gets_another_iterator():
    """kinesis P11: backpressure for six minutes."""
    bench = Bench(limits=ReadLimit(rows=1))
    put(bench, 0, 3)
    bench.until_quiet()
    bench.clock.advance("6 minutes")
    put(bench, 3, 6)
    assert bench.until_quiet() == numbers(0, 6)


def test_an_outage_is_waited_for_and_then_restarts_the_job():
    bench = Bench()
    bench.stream.errors["GetRecords"] = [refusal("InternalFailure", "GetRecords") for _ in range(20)]
    put(bench, 0, 2)
    assert bench.until_quiet(400) == numbers(0, 2)
    bench.stream.errors["GetRecords"] = [refusal("InternalFailure", "GetRecords") for _ in range(10_000)]
    with pytest.raises(SourceUnavailable, match="does not answer") as raised:
        bench.until_quiet(5_000)
    assert raised.value.retry


def test_missing_rights_end_the_job_at_once():
    bench = Bench()
    bench.stream.errors["GetShardIterator"] = [refusal("AccessDeniedException", "GetShardIterator")]
    with pytest.raises(ConnectorError, match="Not allowed to use stream orders at AWS") as raised:
        bench.until_quiet()
    assert not raised.value.retry


def test_a_stream_that_does_not_exist_is_named():
    bench = Bench(opens=False)
    bench.stream.name = "others"
    with pytest.raises(ConnectorError, match="There is no stream orders at AWS"):
        bench.open()


# ---- gaps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends_late", [False, True])
def test_empty_pages_with_records_behind_them_are_followed(ends_late):
    """kinesis F3, P12: also in a closed shard, whose children wait for it."""
    bench = Bench()
    bench.stream.gap, bench.stream.ends_late = 4, ends_late
    put(bench, 0, 5)
    bench.stream.split(ZERO)
    put(bench, 5, 10)
    assert bench.until_quiet(60)[:5] == numbers(0, 5)
    assert sorted(bench.data) == numbers(0, 10)
    bench.crash()
    put(bench, 10, 12)
    assert sorted(bench.until_quiet(60)) == sorted(numbers(0, 12))


def test_a_shard_that_is_behind_and_comes_no_further_gets_another_iterator_and_then_fails(caplog):
    """kinesis P9."""
    bench = Bench()
    put(bench, 0, 1)
    bench.stream.gap = 10**6
    bench.stream._page = frozen(bench.stream._page)
    with caplog.at_level(logging.WARNING, "penstock"), pytest.raises(SourceUnavailable, match="given no record"):
        bench.until_quiet(10_000)
    assert bench.stream.calls["GetShardIterator"] == 2
    assert any("trying another iterator" in each for each in caplog.messages)


def frozen(page):
    def always_as_far_behind(*arguments):
        return page(*arguments) | {"MillisBehindLatest": 4_000}

    return always_as_far_behind


# ---- lost records ----------------------------------------------------------------------------------------------------


def down_for_longer_than_records_are_kept(**source) -> Bench:
    bench = Bench(**source)
    put(bench, 0, 5)
    bench.until_quiet()
    position = bench.reader.position()
    put(bench, 5, 8)
    bench.clock._elapsed += 25 * HOUR
    put(bench, 8, 10)
    bench.open(position)
    return bench


def test_records_that_are_kept_no_longer_fail_the_job_which_names_the_gap():
    """kinesis F4, P16. The start fails before a row is read."""
    bench = down_for_longer_than_records_are_kept()
    with pytest.raises(SourceChanged, match=r"from 2026-01-01 00:00:0\d UTC to 2026-01-01 01:00:0\d UTC are kept no"):
        bench.until_quiet()
    assert bench.data == numbers(0, 5)


def test_the_job_may_go_on_behind_a_gap_and_reports_it(caplog):
    bench = down_for_longer_than_records_are_kept(on_lost_records="continue")
    with caplog.at_level(logging.WARNING, "penstock"):
        assert bench.until_quiet() == numbers(0, 5) + numbers(8, 10)
    (lost,) = [fact for fact in bench.facts if isinstance(fact, OffsetsLost)]
    assert (lost.partition, lost.reason) == (ZERO, "expired")
    assert any("goes on without what is lost" in each for each in caplog.messages)


def test_a_pause_shorter_than_the_retention_is_no_loss():
    bench = Bench()
    put(bench, 0, 5)
    bench.until_quiet()
    position = bench.reader.position()
    bench.clock._elapsed += 23 * HOUR
    put(bench, 5, 8)
    bench.open(position)
    assert bench.until_quiet() == numbers(0, 8)


def test_a_shard_without_records_for_longer_than_they_are_kept_has_lost_none():
    bench = Bench(2)
    put(bench, 0, 5, key="k0")
    for _ in range(30):
        bench.clock._elapsed += HOUR
        put(bench, 5, 6, key="k0")
        bench.until_quiet(40)
    bench.crash()
    bench.until_quiet()
    assert len(bench.data) == 35


def test_a_wall_clock_that_jumps_does_not_look_like_a_loss():
    """kinesis F12: the machine's clock is set two days ahead, and back, while the stream's own goes on."""
    bench = Bench()
    put(bench, 0, 5)
    bench.until_quiet()
    for jump in (48 * HOUR, -96 * HOUR):
        bench.clock._began += jump
        bench.stream._wall = lambda wall=bench.stream._wall, jump=jump: wall() - jump
        bench.until_quiet()
    put(bench, 5, 8)
    assert bench.until_quiet() == numbers(0, 8)


def test_a_shard_that_vanishes_unread_fails_and_one_that_was_read_is_forgotten():
    """kinesis F5, P6: down while the stream is resharded and the parents expire."""
    bench = Bench()
    put(bench, 0, 5)
    bench.until_quiet()
    unread = bench.reader.position()
    bench.stream.split(ZERO)
    bench.until_quiet(60)
    finished = bench.reader.position()
    bench.clock._elapsed += 23 * HOUR
    put(bench, 5, 8)
    bench.open(finished)
    bench.until_quiet(60)
    finished = bench.reader.position()
    bench.clock._elapsed += 2 * HOUR
    put(bench, 8, 10)
    bench.open(finished)
    assert sorted(bench.until_quiet(60)) == sorted(numbers(0, 10))
    bench.clock.advance("30 seconds")
    bench.until_quiet(60)
    bench.clock.advance("30 seconds")
    bench.until_quiet(60)
    assert ZERO not in decode(bench.reader.position()).shards, "finished and gone"
    bench.open(unread)
    with pytest.raises(SourceChanged, match="no such shard any more"):
        bench.until_quiet(60)


def test_a_vanished_shard_may_be_gone_over_and_its_children_are_read():
    bench = Bench(on_lost_records="continue")
    put(bench, 0, 2)
    bench.until_quiet()
    position = bench.reader.position()
    bench.stream.split(ZERO)
    bench.clock._elapsed += 25 * HOUR
    put(bench, 2, 6)
    bench.open(position)
    assert sorted(bench.until_quiet(60)) == numbers(0, 6)
    assert "shard gone" in [fact.reason for fact in bench.facts if isinstance(fact, OffsetsLost)]


def test_a_stream_that_was_made_again_is_refused():
    """kinesis F6, P17: at a start, and while it is read."""
    bench = Bench()
    put(bench, 0, 5)
    bench.until_quiet()
    position = bench.reader.position()
    bench.clock.advance("1 minute")
    bench.stream.create(1)
    put(bench, 0, 5)
    with pytest.raises(SourceChanged, match="was deleted and made again"):
        bench.open(position)
    with pytest.raises((SourceChanged, ConnectorError)):
        bench.until_quiet(400)
    assert bench.data == numbers(0, 5)


# ---- the end of a shard ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends_late", [False, True])
@pytest.mark.parametrize("names_children", [False, True])
def test_a_split_shard_is_read_to_its_end_before_its_children(ends_late, names_children):
    """kinesis F7, E1, P4, P5: the tail that was put before the split, and the records put before it was discovered."""
    bench = Bench(limits=ReadLimit(rows=2), start="latest")
    bench.stream.ends_late, bench.stream.names_children = ends_late, names_children
    bench.until_quiet(30)
    put(bench, 0, 9)
    bench.stream.split(ZERO)
    put(bench, 9, 30)
    bench.until_quiet(60)
    assert [shard for shard, *_ in bench.read][:9] == [ZERO] * 9
    assert sorted(bench.data) == sorted(numbers(0, 30))
    assert bench.position(ZERO) == Finished()


def test_a_merged_shard_waits_for_both_parents():
    """kinesis E2."""
    bench = Bench(2, limits=ReadLimit(rows=1))
    put(bench, 0, 12)
    bench.stream.merge(ZERO, ONE)
    put(bench, 12, 20)
    bench.until_quiet(60)
    shards = [shard for shard, *_ in bench.read]
    assert shards.index(TWO) == 12
    assert sorted(bench.data) == sorted(numbers(0, 20))


def test_a_child_that_is_split_before_its_parent_was_read_waits_for_it():
    """kinesis E3."""
    bench = Bench(opens=False)
    put(bench, 0, 4)
    child, _ = bench.stream.split(ZERO)
    put(bench, 4, 20)
    bench.stream.split(child)
    put(bench, 20, 40)
    bench.open()
    bench.until_quiet(60)
    for key in {key for _, key, _ in bench.read}:
        of_key = [int(data) for _, each, data in bench.read if each == key]
        assert of_key == sorted(of_key)
    assert [shard for shard, *_ in bench.read][:4] == [ZERO] * 4
    assert sorted(bench.data) == sorted(numbers(0, 40))


def test_the_end_of_a_shard_and_its_children_come_into_a_position_together():
    """kinesis P1: at every position, a shard that is finished has its children beside it."""
    bench = Bench()
    put(bench, 0, 3)
    bench.stream.split(ZERO)
    while bench.position(ZERO) != Finished():
        bench.poll()
        shards = decode(bench.reader.position()).shards
        assert shards[ZERO].position != Finished() or {ONE, TWO} <= shards.keys()
    assert set(bench.reader.partitions().names) == {ONE, TWO}


def test_event_time_stays_with_an_ended_shard_until_its_children_are_known():
    bench = Bench()
    put(bench, 0, 1)
    bench.until_quiet(20)
    bench.stream.split(ZERO)
    bench.stream.errors["ListShards"] = [refusal("InternalFailure", "ListShards") for _ in range(10)]
    seen = []
    while TWO not in bench.reader.partitions().names:
        bench.poll()
        seen.append(bench.reader.partitions().names)
    assert set(seen) == {(ZERO,), (ONE, TWO)}


def test_an_end_that_no_listing_confirms_was_no_end():
    """kinesis F7: a null iterator of an open shard."""
    bench = Bench()
    bench.stream.spurious_ends = {2, 3}
    put(bench, 0, 3)
    bench.until_quiet(60)
    put(bench, 3, 6)
    assert bench.until_quiet(60) == numbers(0, 6)
    assert bench.position(ZERO) != Finished()


def test_a_parent_that_a_listing_shows_as_open_is_finished_once_it_shows_it_as_closed():
    """kinesis F8."""
    bench = Bench()
    put(bench, 0, 3)
    bench.until_quiet()
    bench.stream.split(ZERO)
    bench.stream.unclosed = {ZERO: 3}
    put(bench, 3, 9)
    assert sorted(bench.until_quiet(400)) == numbers(0, 9)
    assert bench.position(ZERO) == Finished()


def test_a_listing_without_the_parent_does_not_let_its_child_go_first():
    """kinesis F8: the first listing misses a closed shard; it is read before its children all the same."""
    bench = Bench(opens=False)
    put(bench, 0, 3)
    bench.stream.split(ZERO)
    put(bench, 3, 9)
    bench.stream.hidden = {ZERO: 1}
    bench.open()
    bench.until_quiet(400)
    assert bench.data[:3] == numbers(0, 3)
    assert sorted(bench.data) == numbers(0, 9)


def test_a_listing_without_an_open_shard_is_not_believed():
    """kinesis F8, P8, P19: a page of the listing is missing; all pages are asked for."""
    bench = Bench(7)
    put(bench, 0, 40)
    bench.until_quiet()
    bench.stream.hidden = {THREE: 2}
    bench.clock.advance("30 seconds")
    bench.until_quiet(60)
    put(bench, 40, 80)
    assert sorted(bench.until_quiet(60)) == sorted(numbers(0, 80))
    assert not bench.stream.hidden[THREE]


def test_a_finished_shard_that_is_listed_late_again_is_not_read_again():
    """kinesis P2, P3: it was missing for long enough to be forgotten."""
    bench = Bench()
    put(bench, 0, 3)
    bench.stream.split(ZERO)
    put(bench, 3, 9)
    bench.until_quiet(60)
    bench.stream.hidden = {ZERO: 2}
    while bench.stream.hidden[ZERO]:
        bench.clock.advance("10 seconds")
        bench.until_quiet()
    assert ZERO not in decode(bench.reader.position()).shards
    bench.crash()
    bench.clock.advance("20 seconds")
    assert sorted(bench.until_quiet(60)) == numbers(0, 9)


def test_resharding_while_the_job_is_down():
    """kinesis E4: from two shards to four and back to two."""
    bench = Bench(2)
    put(bench, 0, 10)
    bench.until_quiet()
    position = bench.reader.position()
    for target, last in ((4, 30), (2, 60)):
        bench.stream.update_shard_count(StreamName="orders", TargetShardCount=target, ScalingType="UNIFORM_SCALING")
        put(bench, last - 20, last)
    put(bench, 30, 40)
    bench.open(position)
    bench.until_quiet(60)
    assert sorted(bench.data) == sorted(numbers(0, 30) + numbers(30, 40) + numbers(40, 60))


# ---- the start -------------------------------------------------------------------------------------------------------


def test_latest_is_a_time_so_that_a_crash_before_the_first_record_skips_nothing():
    """kinesis F11."""
    bench = Bench(opens=False, start="latest")
    put(bench, 0, 5)
    bench.clock.advance("1 second")
    bench.open()
    assert isinstance(bench.position(ZERO), AtTime)
    position = bench.reader.position()
    bench.clock.advance("1 minute")
    put(bench, 5, 8)
    bench.stream.split(ZERO)
    put(bench, 8, 12)
    bench.open(position)
    assert sorted(bench.until_quiet(60)) == sorted(numbers(5, 12))


def test_a_start_at_a_time_reads_what_arrived_then_or_later():
    bench = Bench(opens=False)
    put(bench, 0, 5)
    bench.clock.advance("1 minute")
    at = EPOCH + timedelta(microseconds=int(bench.clock.wall()))
    put(bench, 5, 8)
    bench = Bench(stream=bench.stream, start=at, opens=False)
    bench.clock.advance("2 minutes")
    bench.open()
    assert bench.until_quiet() == numbers(5, 8)


def test_a_time_before_all_that_is_kept_is_the_earliest_record():
    bench = Bench(opens=False, start="2020-01-01T00:00:00Z")
    put(bench, 0, 5)
    bench.open()
    assert bench.until_quiet() == numbers(0, 5)


def test_a_service_whose_clock_is_behind_is_waited_for():
    bench = Bench(opens=False, start="latest")
    bench.stream._wall = lambda wall=bench.stream._wall: wall() - 3_000_000
    bench.open()
    bench.until_quiet(60)
    put(bench, 0, 3)
    assert bench.until_quiet() == numbers(0, 3)


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_sequence_numbers_are_compared_as_numbers():
    """kinesis 8: those of the fake get one digit more while records are put."""
    bench = Bench(limits=ReadLimit(rows=500))
    put(bench, 0, 3_000, key="k")
    bench.until_quiet()
    digits = {len(str(record.seq)) for plan in bench.plans for _, record in plan.plan.table}
    assert digits == {55, 56}
    bench.crash()
    put(bench, 3_000, 3_010, key="k")
    assert bench.until_quiet() == numbers(0, 3_010)


def test_a_batch_takes_the_same_number_of_rows_of_each_shard_and_no_more_than_is_allowed():
    bench = Bench(3)
    for number in range(90):
        bench.stream.put(f"k{number}", b"x" * 100)
    while not isinstance(bench.poll(ReadLimit(rows=9)), PlannedBatch):
        pass
    assert [part.count for part in bench.plans[0].plan.ranges] == [3, 3, 3]
    while not isinstance(bench.poll(ReadLimit(bytes=600)), PlannedBatch):
        pass
    assert bench.plans[1].bytes <= 600
    assert bench.plans[1].partitions.behind == {ZERO, ONE, TWO}


def test_the_position_is_that_of_the_batches_and_not_of_what_was_fetched():
    bench = Bench(limits=ReadLimit(rows=2))
    put(bench, 0, 10)
    while len(bench.read) < 4:
        bench.poll()
    assert bench.reader._fetchers[ZERO].buffered == 6
    bench.crash()
    assert bench.until_quiet() == numbers(0, 10)


def test_ranges_join_and_their_counts_are_those_of_the_rows():
    """kinesis 10: what a batch reads is fixed before a job reads it."""
    bench = Bench(limits=ReadLimit(rows=3))
    put(bench, 0, 10)
    bench.until_quiet()
    ranges = [part for plan in bench.plans for part in plan.plan.ranges]
    assert [part.count for part in ranges] == [3, 3, 3, 1]
    assert all(one.to == two.after for one, two in pairwise(ranges))
    assert all(plan.rows == len(plan.plan.table) for plan in bench.plans if isinstance(plan.plan, FetchedBatch))


def test_a_paused_shard_keeps_its_place_and_is_not_fetched_without_end():
    bench = Bench(2, max_bytes_per_batch=5_000_000)
    for number in range(100):
        bench.stream.put("k", b"x" * 1_000_000, hash_key=number % 2 * (2**128 - 1))
    for _ in range(3_000):
        bench.poll(ReadLimit(paused=frozenset({ONE})))
    assert {shard for shard, *_ in bench.read} == {ZERO}
    assert bench.reader._fetchers[ONE]._bytes < 50_000_000
    assert ONE in bench.reader.partitions().behind
    bench.until_quiet(400)
    assert len(bench.read) == 100


def test_a_run_until_caught_up_reads_what_was_there_and_ends():
    bench = Bench(2, until=Until.CAUGHT_UP, opens=False, limits=ReadLimit(rows=4))
    put(bench, 0, 10)
    bench.stream.split(ZERO)
    put(bench, 10, 20)
    bench.open()
    for _ in range(2_000):
        if isinstance(bench.poll(), CaughtUp):
            break
    assert sorted(bench.data) == sorted(numbers(0, 20))
    assert isinstance(bench.poll(), CaughtUp)


def test_a_replay_ends_where_another_run_was():
    bench = Bench(2, limits=ReadLimit(rows=5))
    put(bench, 0, 12)
    bench.stream.split(ZERO)
    put(bench, 12, 30)
    while len(bench.read) < 20:
        bench.poll()
    end, expected = bench.reader.position(), sorted(bench.data)
    put(bench, 30, 40)
    bench.stream.split(ONE)
    put(bench, 40, 50)
    bench.read, bench.until = [], Until.CAUGHT_UP
    bench.open(source=bench.source.replayed(end))
    for _ in range(5_000):
        if isinstance(bench.poll(), CaughtUp):
            break
    assert isinstance(bench.poll(), CaughtUp)
    assert sorted(bench.data) == expected


def test_lag_and_new_shards_are_reported():
    bench = Bench(limits=ReadLimit(rows=2))
    bench.stream.page_size = 5
    for _ in range(20):
        bench.stream.put("k", b"x")
        bench.clock.advance("1 second")
    while not bench.read:
        bench.poll()
    bench.clock.advance("2 seconds")
    bench.poll()
    lag = [fact for fact in bench.facts if isinstance(fact, SourceLag)][-1]
    assert lag.is_behind
    assert lag.rows == pytest.approx(18, abs=8)
    assert lag.seconds is not None
    assert lag.seconds > 5
    bench.stream.split(ZERO)
    bench.until_quiet(60)
    assert [fact.partitions for fact in bench.facts if isinstance(fact, PartitionsFound)] == [(ONE, TWO)]
    assert not [fact for fact in bench.facts if isinstance(fact, SourceLag)][-1].is_behind


# ---- aggregated records ----------------------------------------------------------------------------------------------


def aggregate(first: int, last: int, key: str = "k") -> bytes:
    return pack([UserRecord(key, None, b"%d" % number) for number in range(first, last)])


@pytest.mark.parametrize("rows", range(1, 7))
def test_an_aggregate_may_be_cut_at_any_record_and_a_crash_there_loses_and_repeats_none(rows):
    """kinesis F10, P14, 60: the position has the number within the aggregate."""
    bench = Bench(limits=ReadLimit(rows=rows))
    bench.stream.put("k", aggregate(0, 5))
    bench.stream.put("k", b"5")
    bench.stream.put("k", aggregate(6, 9))
    for _ in range(200):
        if isinstance(bench.poll(), PlannedBatch):
            bench.crash()
    assert bench.data == numbers(0, 9)


def test_what_is_no_aggregate_is_a_plain_record():
    """kinesis F10: a wrong MD5, a wrong magic number, a message that is cut."""
    whole = aggregate(0, 3)
    odd = [MAGIC, MAGIC + b"x" * 30, whole[:-1] + b"!", b"\xf3" + whole, whole[:-20]]
    bench = Bench()
    for data in odd:
        bench.stream.put("k", data)
    assert bench.until_quiet() == odd


def test_records_of_an_aggregate_outside_of_the_shard_are_kept():
    """kinesis P15: explicit hash keys of another shard; KCL drops them and all that follow."""
    bench = Bench(2)
    data = pack([UserRecord("a", "1", b"0"), UserRecord("b", str(2**128 - 1), b"1"), UserRecord("c", None, b"2")])
    bench.stream.put("k", data)
    assert bench.until_quiet() == numbers(0, 3)
    (plan,) = bench.plans
    assert [record.explicit_hash_key for _, record in plan.plan.table] == ["1", str(2**128 - 1), None]
    assert [record.sub for _, record in plan.plan.table] == [0, 1, 2]


def test_nothing_to_read_is_no_data():
    assert isinstance(Bench().poll(), NoData)


class BrokenStepper:
    """A fetcher with a bug."""

    def __init__(self, broken: str) -> None:
        self._broken = broken

    @property
    def due(self) -> MonotonicTime:
        if self._broken == "due":
            raise IndexError(self._broken)
        return MonotonicTime(0)

    def step(self, now: MonotonicTime) -> None:
        raise IndexError(self._broken)


@pytest.mark.parametrize("broken", ["due", "step"])
def test_an_error_in_a_thread_of_fetchers_is_raised_in_the_readers(broken):
    pool = fetch.FetchPool(ManualClock(), threads=2)
    try:
        pool.add(BrokenStepper(broken))
        (thread,) = pool._threads
        thread.join(Patience.seconds)
        with pytest.raises(IndexError, match=broken):
            pool.run_due(MonotonicTime(0))
    finally:
        pool.close()
