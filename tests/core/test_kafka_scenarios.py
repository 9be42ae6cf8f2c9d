"""The Kafka source as its task drives it: snapshots, completions, what it is given to read. Numbers are Flink's."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from core.kafka_kit import Bench, FakeCluster
from core.runtime_fakes import Clock, NotingShell, drained, output_to
from penstock.connectors.kafka.offsets import TopicPartition, decode
from penstock.elements import Barrier, CheckpointKind
from penstock.errors import ConnectorError, SourceUnavailable
from penstock.facts import OffsetsCommitted
from penstock.handles import CheckpointId
from penstock.interfaces.source import Ended, NoData, PlannedBatch, ReadLimit
from penstock.runtime.channels import Channel
from penstock.runtime.source_task import SourceTask
from penstock.runtime.task import Completed

A0, A1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
EITHER = pytest.mark.parametrize("read_in", ["driver", "executors"])


class Task:
    """A source task on a fake cluster, with checkpoints as the test says."""

    def __init__(self, cluster: FakeCluster, **source: Any) -> None:
        self.cluster = cluster
        self.bench = Bench(cluster, **{"group": "g", "read_in": "driver", **source})
        self.shell, self.clock, self.channel = NotingShell(), Clock(), Channel()
        self.task = SourceTask(
            "in",
            self.bench.reader,
            output_to(self.channel),
            limits=ReadLimit,
            shell=self.shell,
            clock=self.clock,
        )

    def go_on(self, times: int = 40) -> None:
        """Let it work until it has had nothing to do for so many times."""
        while times:
            progress = self.task.step()
            drained(self.channel)
            if not progress.worked:
                times -= 1
                self.clock.at = max(self.clock.at + 1, progress.wake_at or 0)

    def snapshot(self, checkpoint: int) -> None:
        self.task.post(Barrier(checkpoint=CheckpointId(checkpoint), kind=CheckpointKind.PERIODIC))
        self.go_on()

    def completed(self, checkpoint: int) -> None:
        self.task.post(Completed(checkpoint=CheckpointId(checkpoint)))
        self.go_on()

    @property
    def pending(self) -> list[int]:
        return list(self.task._positions)


def cluster_of(*counts: int) -> FakeCluster:
    """A topic with so many records in each partition."""
    cluster = FakeCluster(orders=len(counts))
    for partition, count in enumerate(counts):
        cluster.log(partition).append(*[b"v"] * count)
    return cluster


# ------------------------------------------------------------------------------------------------------ 157, 158, 159


@pytest.mark.mission("F6", "F10")
def test_157_of_many_snapshots_the_one_that_completes_stands_for_all_before_it_with_its_own_offsets():
    job = Task(cluster_of(0, 5))
    for number in range(1, 11):
        job.cluster.log(0).append(b"v")
        job.go_on()
        job.snapshot(number)
    job.cluster.log(0).append(b"read after the snapshot")
    job.go_on()
    job.completed(10)
    assert job.cluster.commits == [{A0: 10, A1: 5}], "not where it reads by now"
    assert job.pending == []
    for late in (4, 9):
        job.completed(late)
    assert len(job.cluster.commits) == 1


@pytest.mark.mission("F10")
def test_157_a_snapshot_in_the_middle_commits_what_it_had_and_leaves_the_later_ones_pending():
    job = Task(cluster_of(0))
    for number in range(1, 6):
        job.cluster.log().append(b"v")
        job.go_on()
        job.snapshot(number)
    job.completed(3)
    assert (job.cluster.commits, job.pending) == ([{A0: 3}], [4, 5])


@pytest.mark.mission("F10")
def test_158_a_source_without_partitions_commits_nothing_and_keeps_nothing_pending():
    job = Task(FakeCluster(users=1), pattern="orders.*")
    job.snapshot(1)
    job.completed(1)
    assert (job.cluster.commits, job.pending) == ([], [])


def test_158_a_source_that_has_ended_and_is_asked_for_nothing_more_still_commits_at_once():
    job = Task(cluster_of(2), stop="latest")
    job.go_on()
    assert job.shell.done == [("in", True)]
    job.snapshot(1)
    job.completed(1)
    assert job.cluster.commits == [{A0: 2}]


@pytest.mark.parametrize(("start", "offsets"), [("earliest", {A0: 0, A1: 0}), ("latest", {A0: 7, A1: 0})])
def test_158_what_is_committed_before_anything_was_read_are_numbers_never_a_word(start, offsets):
    job = Task(cluster_of(7, 0), start=start)
    job.cluster.deaf = True
    job.snapshot(0)
    job.completed(0)
    assert job.cluster.commits == [offsets]


@pytest.mark.mission("F11")
def test_159_a_commit_that_fails_is_told_while_it_runs_and_is_no_ones_failure_then_or_at_the_end(caplog):
    job = Task(cluster_of(1))
    job.go_on()
    job.cluster.refuses = ConnectorError("the group is not yours")
    with caplog.at_level(logging.WARNING, "penstock"):
        job.snapshot(1)
        job.completed(1)
        job.snapshot(2)
        job.task.post(Completed(checkpoint=CheckpointId(2)))
        job.task.step()
        job.task.close()
    told = job.bench.of(OffsetsCommitted)
    assert [fact.error for fact in told] == ["the group is not yours"] * len(told)
    assert len(told) >= 2
    assert "source in could not commit offsets to group g: the group is not yours" in caplog.text


@pytest.mark.mission("F8")
def test_158_a_completion_that_comes_to_a_reader_that_is_closed_is_ignored():
    job = Task(cluster_of(1))
    job.go_on()
    job.snapshot(1)
    position = job.shell.snapshots[-1][2].position
    job.task.close()
    job.bench.reader.committed(CheckpointId(1), position)
    job.bench.reader.close()
    assert job.cluster.commits == []


@pytest.mark.mission("F8")
@pytest.mark.parametrize("mode", ["disabled", "periodic"])
def test_158_a_completion_commits_nothing_in_another_mode(mode):
    job = Task(cluster_of(3), commit=mode, commit_interval="1 day")
    job.go_on()
    before = list(job.cluster.commits)
    job.cluster.log().append(b"v")
    job.go_on()
    job.snapshot(1)
    job.completed(1)
    assert job.cluster.commits == before


# ------------------------------------------------------------------------------------------------------ 160: partitions


@pytest.mark.mission("F5")
@pytest.mark.parametrize(("start", "offsets"), [("earliest", {A0: 0, A1: 0}), ("latest", {A0: 7, A1: 2})])
def test_160_a_snapshot_before_anything_was_read_has_every_partition_and_where_it_begins(start, offsets):
    job = Task(cluster_of(7, 2), start=start)
    job.cluster.away = SourceUnavailable("not yet")
    job.snapshot(0)
    assert [decode(taken.position).next for _, _, taken in job.shell.snapshots] == [offsets]


@pytest.mark.mission("F5")
def test_160_a_snapshot_of_a_restored_source_that_has_read_nothing_yet_has_what_was_restored():
    before = Bench(cluster_of(7, 2), limits=ReadLimit(rows=4), read_in="driver")
    before.poll()
    position = before.reader.position()
    before.reader.close()
    before.cluster.log(0).append(*[b"v"] * 5)
    before.open(decode(position))
    assert before.reader.position() == position


@pytest.mark.mission("F4")
@EITHER
def test_160_each_snapshot_has_what_is_read_now_and_nothing_of_the_one_before(read_in):
    bench = Bench(cluster_of(2, 2), read_in=read_in, on_lost_offsets="continue", gone_after="1 second")
    bench.until_quiet()
    first = bench.reader.position()
    bench.cluster.log(0).append(b"v")
    del bench.cluster.logs[A1]
    bench.until_quiet(2_000)
    assert decode(bench.reader.position()).next == {A0: 3}, "what is gone is forgotten"
    assert decode(first).next == {A0: 2, A1: 2}, "what was taken stays as it was"


@EITHER
def test_160_what_a_failed_attempt_had_taken_is_read_again_the_same(read_in):
    bench = Bench(cluster_of(9, 4), read_in=read_in, limits=ReadLimit(rows=3))
    bench.poll()
    position = bench.reader.position()
    taken = [bench.rows(answer.plan) for _ in range(3) if isinstance(answer := bench.poll(), PlannedBatch)]
    bench.reader.close()
    bench.read.clear()
    bench.open(decode(position))
    bench.until_quiet()
    assert taken
    assert {row for rows in taken for row in rows} <= {(at, each) for at, found in bench.read.items() for each in found}
    assert all(sorted(set(found)) == found for found in bench.read.values()), "once each, in order"


@EITHER
def test_160_partitions_that_came_while_nobody_read_are_new_and_the_others_go_on_where_they_were(read_in):
    bench = Bench(cluster_of(2), read_in=read_in, start="latest")
    position = bench.reader.position()
    bench.reader.close()
    bench.cluster.log(0).append(b"v")
    bench.cluster.log(1).append(b"v", b"v")
    bench.open(decode(position))
    bench.until_quiet()
    assert (bench.offsets(0), bench.offsets(1)) == ([2], [0, 1])


# -------------------------------------------------------------------------------------------------------- 161: reading


@EITHER
def test_161_a_poll_waits_for_nobody_so_a_stop_or_a_barrier_never_waits_for_a_cluster(read_in):
    bench = Bench(cluster_of(3), read_in=read_in)
    bench.until_quiet()
    bench.cluster.slow = 10**9
    bench.cluster.deaf = True
    bench.cluster.log().append(b"v")
    answers = []
    for _ in range(20):
        before = bench.now
        answers.append(bench.poll())
        assert bench.now - before < 1_000_000, "it is asked again soon"
    assert all(isinstance(answer, NoData) for answer in answers[2:]), "a look that was under way may bring ranges"


@EITHER
def test_161_a_partition_whose_stop_is_where_it_begins_is_at_its_end_without_a_row(read_in):
    bench = Bench(cluster_of(0, 5), read_in=read_in, start="latest", stop="latest")
    assert isinstance(bench.until_quiet(), Ended)
    assert bench.plans == []
    mixed = Bench(cluster_of(0, 5), read_in=read_in, stop="latest")
    assert isinstance(mixed.until_quiet(), Ended)
    assert (mixed.offsets(0), mixed.offsets(1)) == ([], [0, 1, 2, 3, 4])


@EITHER
def test_161_a_pause_of_a_partition_that_is_not_there_changes_nothing(read_in):
    bench = Bench(cluster_of(3), read_in=read_in, limits=ReadLimit(paused=frozenset({"7", "orders-0"})))
    bench.until_quiet()
    assert bench.offsets() == [0, 1, 2]
