"""Ranges that executors read: fixed by the driver before a task reads them, and the same rows in each attempt."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from core.kinesis_kit import Bench
from kinesis_fake import refusal, throttled
from penstock.connectors.kinesis.aggregation import UserRecord, pack
from penstock.connectors.kinesis.client import StreamAddress
from penstock.connectors.kinesis.fetch import FetchedRecord
from penstock.connectors.kinesis.frames import ShardRangeReader
from penstock.connectors.kinesis.positions import After
from penstock.connectors.kinesis.probe import ShardProber
from penstock.connectors.kinesis.ranges import RangeFailed, explain, read_range, row_count
from penstock.connectors.kinesis.reader import RangesBatch
from penstock.connectors.secrets import env
from penstock.errors import ConnectorError, SourceUnavailable
from penstock.interfaces.source import NoData, PlannedBatch
from planted import of_kinesis  # noqa: F401
from planted.bug import planted


class Executors(Bench):
    """A reader whose batches are read as a task reads them, each twice after an attempt that dies."""

    def task_rows(self, task, *, dies_after=None):
        rows = []
        for portion in read_range(task, self.stream, self.source.address, clock=self.clock, pause=self.wait):
            rows += portion
            if dies_after is not None and len(rows) >= dies_after:
                break
        return rows

    def wait(self, seconds):
        self.clock.advance(f"{max(1, int(seconds * 1_000))} milliseconds")

    def next_plan(self):
        for _ in range(200):
            answer = self.reader.poll(now=self.clock.now(), wall=self.clock.wall(), limits=self.limits)
            if isinstance(answer, PlannedBatch):
                return answer
            self.clock.advance("50 milliseconds")
        raise AssertionError

    def run(self, polls=60):
        quiet = 0
        while quiet < polls:
            answer = self.reader.poll(now=self.clock.now(), wall=self.clock.wall(), limits=self.limits)
            if not isinstance(answer, PlannedBatch):
                assert isinstance(answer, NoData)
                self.clock.advance("50 milliseconds")
                quiet += 1
                continue
            quiet = 0
            assert isinstance(answer.plan, RangesBatch)
            self.plans.append(answer)
            for task in answer.plan.ranges:
                self.task_rows(task, dies_after=1)
                first, again = self.task_rows(task), self.task_rows(task)
                assert first == again, "a retried task reads the same rows"
                self.read += [(task.part.shard, each.partition_key, each.data) for each in first]
        return self.data


def executors(shards=1, **more):
    more = {"read_in": "executors", "poll_every": "200 milliseconds"} | more
    return Executors(shards, **more)


def put_over_time(bench, first, last, step="100 milliseconds"):
    for number in range(first, last):
        bench.stream.put(f"key-{number % 7}", b"%d" % number)
        bench.clock.advance(step)


def numbers(first, last):
    return [b"%d" % number for number in range(first, last)]


def test_a_backlog_is_read_by_ranges_of_which_the_driver_fetches_the_ends_alone():
    bench = executors()
    put_over_time(bench, 0, 600)
    assert bench.run() == numbers(0, 600)
    widest = max(len(bench.task_rows(task)) for plan in bench.plans for task in plan.plan.ranges)
    assert widest > 50
    assert all(task.part.count is None for plan in bench.plans for task in plan.plan.ranges)


def test_splits_merges_and_restarts_leave_each_record_once_and_keys_in_order():
    bench = executors(2)
    put_over_time(bench, 0, 200)
    one, _two = bench.stream.split(min(bench.stream.shards))
    put_over_time(bench, 200, 400)
    bench.run(5)
    bench.crash()
    bench.stream.split(one)
    put_over_time(bench, 400, 500)
    bench.run()
    assert sorted(bench.data, key=int) == numbers(0, 500)
    for key in range(7):
        of_key = [int(data) for _, name, data in bench.read if name == f"key-{key}"]
        assert of_key == sorted(of_key)


def test_aggregates_are_whole_at_the_ends_of_ranges():
    bench = executors(max_rows_per_batch=4)
    for number in range(0, 90, 3):
        inner = [UserRecord("k", None, b"%d" % each) for each in range(number, number + 3)]
        bench.stream.put("k", pack(inner))
        bench.clock.advance("700 milliseconds")
    assert bench.run() == numbers(0, 90)


def test_throttled_and_expired_requests_of_a_task_are_repeated():
    bench = executors()
    put_over_time(bench, 0, 50, "1 millisecond")
    while not isinstance(
        answer := bench.reader.poll(now=bench.clock.now(), wall=bench.clock.wall(), limits=bench.limits), PlannedBatch
    ):
        bench.clock.advance("50 milliseconds")
    [task] = answer.plan.ranges
    expected = bench.task_rows(task)
    bench.stream.errors["GetRecords"] = [throttled() for _ in range(4)]
    bench.stream.expired_pages = {bench.stream.calls["GetRecords"] + 6}
    assert bench.task_rows(task) == expected


def planned_range(bench):
    """A range behind the first, whose records the driver has not read."""
    put_over_time(bench, 0, 600)
    bench.next_plan()
    [task] = bench.next_plan().plan.ranges
    assert isinstance(task.part.after, After)
    assert len(bench.task_rows(task)) > 50
    return task


def test_records_that_were_deleted_before_a_task_read_them_fail_it_and_the_job_restarts():
    bench = executors()
    task = planned_range(bench)
    bench.clock.advance("25 hours")
    bench.stream.put("k", b"new")
    with pytest.raises(RangeFailed) as failed:
        bench.task_rows(task)
    error = explain(failed.value)
    assert isinstance(error, SourceUnavailable)
    assert error.retry
    assert "may be kept no longer" in str(error)


def test_a_right_that_a_task_lacks_fails_the_job_for_good():
    bench = executors()
    task = planned_range(bench)
    bench.stream.errors["GetRecords"] = [refusal("AccessDeniedException", "GetRecords")]
    with pytest.raises(RangeFailed) as failed:
        bench.task_rows(task)
    error = explain(failed.value)
    assert type(error) is ConnectorError
    assert not error.retry
    assert "Not allowed to use stream orders" in str(error)


def test_a_secret_that_executors_lack_fails_the_job_for_good(monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    address = StreamAddress(stream="orders", region="eu-west-1", options={"aws_secret_access_key": env("NOT_SET")})
    unused: Any = None
    reader = ShardRangeReader(batch=1, columns=unused, address=address, counts=unused)
    with pytest.raises(RangeFailed) as failed:
        next(reader.read([planned_range(executors())]))
    error = explain(failed.value)
    assert error is not None
    assert not error.retry
    assert "Environment variable NOT_SET is not set" in str(error)


def test_a_range_whose_last_record_is_missing_fails():
    bench = executors()
    task = planned_range(bench)
    [shard] = bench.stream.shards.values()
    shard.records = [each for each in shard.records if each.number != task.part.to.seq]
    with pytest.raises(RangeFailed, match="in the place of the last one"):
        bench.task_rows(task)


def check_what_arrives_between_two_attempts():
    bench = executors()
    put_over_time(bench, 0, 20)
    [task] = bench.next_plan().plan.ranges
    first = bench.task_rows(task)
    put_over_time(bench, 20, 40)
    assert bench.task_rows(task) == first


def test_records_that_arrive_after_a_failed_attempt_are_not_in_the_next():
    check_what_arrives_between_two_attempts()


def test_a_range_that_is_not_cut_at_its_end_is_found():
    with planted("range-uncut"), pytest.raises(AssertionError):
        check_what_arrives_between_two_attempts()


def test_two_reads_of_a_range_that_count_other_rows_fail_the_batch():
    assert row_count((5, 5), "s") == 5
    assert row_count((), "s") is None
    with pytest.raises(SourceUnavailable, match="had 4 and 5 records"):
        row_count((5, 4), "s")


class TakenMeanwhile(deque):
    """A buffer that a thread of the reader empties as soon as somebody has seen that it is not empty."""

    def __init__(self, records, prober):
        super().__init__(records)
        self._taker = threading.Thread(target=prober.take, args=(len(records),))

    def __bool__(self):
        self._taker.start()
        self._taker.join(0.2)
        return True

    def wait(self):
        self._taker.join()


def test_when_a_prober_is_due_does_not_depend_on_when_its_buffer_is_emptied():
    bench = executors()
    put_over_time(bench, 0, 600)
    bench.next_plan()
    (prober,) = (each for each in bench.reader._pool._steppers if isinstance(each, ShardProber))
    buffer = prober._buffer = TakenMeanwhile([FetchedRecord(7, 0, b"", "k", None, 0)], prober)
    prober._jumped = (7, 0)
    assert prober.due is None, "it waits for its records to be taken"
    buffer.wait()
    assert not len(buffer)


def test_executors_read_while_there_are_many_shards():
    bench = Executors(40)
    bench.poll()
    assert bench.reader._in_executors
    few = Executors(3)
    few.poll()
    assert not few.reader._in_executors
