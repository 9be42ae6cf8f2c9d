"""The reader of a Kafka source against a cluster that gives every odd answer, without a broker and without Spark."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.kafka_kit import Bench, FakeCluster, FakeMessage, FakeTrouble
from penstock.connectors.kafka import metadata as kafka_start
from penstock.connectors.kafka import reader as kafka_places
from penstock.connectors.kafka.offsets import TopicPartition, decode
from penstock.connectors.kafka.reader import DriverBatch, ExecutorBatch
from penstock.errors import ConnectorError, SourceChanged, SourceUnavailable
from penstock.facts import OffsetsCommitted, OffsetsLost, PartitionsFound, PartitionStalled, SourceLag
from penstock.handles import CheckpointId
from penstock.interfaces.source import CaughtUp, Ended, NoData, PlannedBatch, ReadLimit, Until

EITHER = pytest.mark.parametrize("read_in", ["driver", "executors"])
AWAY = SourceUnavailable("the cluster is away")


def cluster_of(*counts: int) -> FakeCluster:
    """A topic with so many records in each partition."""
    cluster = FakeCluster(orders=len(counts))
    for partition, count in enumerate(counts):
        cluster.log(partition).append(*[b"v"] * count)
    return cluster


def restarted(bench: Bench) -> Bench:
    """The same, by a new reader that goes on at the position of the old one."""
    position = bench.reader.position()
    bench.reader.close()
    bench.open(decode(position))
    return bench


# ------------------------------------------------------------------------------------------------------- what is read


@EITHER
def test_everything_that_is_there_is_read_once_and_then_what_comes(read_in):
    bench = Bench(cluster_of(3, 0, 2), read_in=read_in)
    bench.until_quiet()
    bench.cluster.log(1).append(b"v")
    bench.cluster.log(0).append(b"v")
    bench.until_quiet()
    assert [bench.offsets(0), bench.offsets(1), bench.offsets(2)] == [[0, 1, 2, 3], [0], [0, 1]]


@EITHER
def test_control_records_and_gaps_are_passed_without_rows(read_in):
    cluster = cluster_of(2)
    cluster.log().marker()
    cluster.log().append(b"v")
    del cluster.log().records[1]
    cluster.log().marker()
    bench = Bench(cluster, read_in=read_in)
    bench.until_quiet()
    assert bench.offsets() == [0, 3]
    assert decode(bench.reader.position()).next == {TopicPartition("orders", 0): 5}


@EITHER
def test_records_of_an_open_transaction_wait_for_its_end(read_in):
    cluster = cluster_of(2)
    cluster.log().open = 1
    bench = Bench(cluster, read_in=read_in)
    bench.until_quiet()
    assert bench.offsets() == [0]
    cluster.log().open = None
    bench.until_quiet()
    assert bench.offsets() == [0, 1]


def test_a_batch_in_the_driver_holds_no_more_rows_or_bytes_than_allowed():
    cluster = FakeCluster(orders=2)
    for partition in (0, 1):
        cluster.log(partition).append(*[b"x" * 1_000] * 10)
    bench = Bench(cluster, read_in="driver", limits=ReadLimit(rows=3))
    bench.until_quiet()
    assert [plan.rows for plan in bench.plans] == [3] * 6 + [2]
    small = Bench(cluster, read_in="driver", limits=ReadLimit(bytes=2_000))
    small.until_quiet()
    assert max(plan.rows for plan in small.plans) == 2
    assert small.offsets(1) == list(range(10))


def test_a_plan_tells_its_rows_and_bytes_and_the_partitions_that_have_more():
    bench = Bench(cluster_of(3, 2), read_in="driver", limits=ReadLimit(rows=4))
    plan = bench.poll()
    assert isinstance(plan, PlannedBatch)
    assert plan.metrics["rows"].value == {"rows": 4, "bytes": 4}
    assert (plan.partitions.names, plan.partitions.behind, plan.partitions.column) == (("0", "1"), {"1"}, "partition")


def test_its_partitions_are_known_before_there_is_a_batch_to_tell_them_with():
    found = Bench(cluster_of(0, 0)).reader.partitions()
    assert (found.names, found.behind, found.column) == (("0", "1"), frozenset(), "partition")


@EITHER
def test_a_plan_tells_whether_it_takes_all_that_waits(read_in):
    bench = Bench(cluster_of(6, 5), read_in=read_in, limits=ReadLimit(rows=8))
    bench.until_quiet()
    assert [plan.takes_all for plan in bench.plans] == [False, True]


def test_ranges_of_executors_leave_rows_to_be_counted_and_tell_who_is_behind():
    plan = Bench(cluster_of(6, 2), read_in="executors", limits=ReadLimit(rows=4)).poll()
    assert plan.rows is None
    assert "rows" not in plan.metrics
    assert plan.partitions.behind == {"0", "1"}


@given(data=st.data())
def test_whatever_comes_and_wherever_it_is_read_every_record_comes_once_and_in_order(data):
    """Appends, markers, compaction, open transactions; limits, portions, answers that are late; restarts."""
    cluster = FakeCluster(orders=2)
    cluster.portion = data.draw(st.integers(1, 5), label="portion")
    cluster.slow = data.draw(st.integers(0, 3), label="slow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_places, "MAX_DRIVER_ROWS", 6)
        bench = Bench(cluster)
        for _ in range(data.draw(st.integers(1, 12), label="steps")):
            log = cluster.log(data.draw(st.integers(0, 1)))
            match data.draw(st.sampled_from(["append", "marker", "gap", "open", "close", "poll", "restart"])):
                case "append":
                    log.append(*[b"v"] * data.draw(st.integers(1, 20)))
                case "marker":
                    log.marker()
                case "gap":
                    log.end += 2
                case "open":
                    log.open = log.end if log.open is None else log.open
                case "close":
                    log.open = None
                case "restart":
                    restarted(bench)
                case _:
                    rows = data.draw(st.none() | st.integers(1, 9))
                    for _ in range(data.draw(st.integers(1, 10))):
                        bench.poll(ReadLimit(rows=rows))
        for partition in (0, 1):
            cluster.log(partition).open = None
        bench.until_quiet(400)
    assert [bench.offsets(0), bench.offsets(1)] == [sorted(cluster.log(partition).records) for partition in (0, 1)]


def test_a_backlog_is_read_by_executors_and_what_comes_then_in_the_driver(monkeypatch):
    monkeypatch.setattr(kafka_places, "MAX_DRIVER_ROWS", 10)
    bench = Bench(cluster_of(50))
    bench.until_quiet()
    bench.cluster.log().append(b"v")
    bench.until_quiet()
    assert [type(plan.plan) for plan in bench.plans] == [ExecutorBatch, DriverBatch]
    bench.cluster.log().append(*[b"v"] * 500)
    bench.until_quiet()
    assert ExecutorBatch in [type(plan.plan) for plan in bench.plans[2:]]
    assert bench.offsets() == list(range(551))
    assert len(bench.cluster.consumers) == 1, "the consumer is kept while executors read"


def test_of_a_backlog_each_partition_is_read_on_however_few_rows_a_batch_has(monkeypatch):
    """A consumer in the driver brings one partition after the other: a job that is killed soon never comes to some."""
    monkeypatch.setattr(kafka_places, "MAX_DRIVER_ROWS", 30)
    bench = Bench(cluster_of(40, 40, 40), limits=ReadLimit(rows=6))
    while len(bench.plans) < 4:
        bench.poll()
    assert all(bench.offsets(partition) for partition in range(3))
    bench.until_quiet()
    assert [bench.offsets(partition) for partition in range(3)] == [list(range(40))] * 3


# ------------------------------------------------------------------------------------------------ partitions and topics


@EITHER
def test_160_new_partitions_are_read_from_their_first_record(read_in):
    bench = Bench(cluster_of(1), read_in=read_in, start="latest")
    bench.until_quiet()
    bench.cluster.log(1).append(b"v", b"v")
    bench.until_quiet(400)
    assert (bench.offsets(0), bench.offsets(1)) == ([], [0, 1])
    assert [fact.partitions for fact in bench.of(PartitionsFound)] == [("orders-1",)]


def test_160_new_partitions_wait_for_a_restart_where_nobody_is_to_look():
    bench = Bench(cluster_of(1), discover_every=None)
    bench.cluster.log(1).append(b"v")
    bench.until_quiet(400)
    assert bench.offsets(1) == []
    restarted(bench).until_quiet()
    assert bench.offsets(1) == [0]


def test_160_new_topics_that_a_pattern_matches_are_read_from_their_first_record():
    cluster = FakeCluster(**{"orders.eu": 1, "users": 1})
    bench = Bench(cluster, pattern="orders[.].*", discover_every="1 second")
    cluster.ids_of["orders.us"] = "u"
    for topic in ("orders.us", "orders.eu", "users"):
        cluster.log(0, topic).append(b"v")
    bench.until_quiet(2_000)
    assert (bench.offsets(0, "orders.us"), bench.offsets(0, "orders.eu"), bench.offsets(0, "users")) == ([0], [0], [])
    assert bench.plans[-1].partitions.names == ("orders.eu-0", "orders.us-0")
    assert bench.plans[-1].partitions.column == "topic_partition"


@EITHER
def test_161_paused_partitions_keep_their_place_and_are_neither_idle_nor_caught_up(read_in):
    bench = Bench(cluster_of(3, 3), read_in=read_in, until=Until.CAUGHT_UP)
    bench.limits = ReadLimit(rows=2, paused=frozenset({"1"}))
    answer = [bench.poll() for _ in range(60)][-1]
    assert isinstance(answer, NoData)
    assert not answer.idle
    assert (bench.offsets(0), bench.offsets(1)) == ([0, 1, 2], [])
    assert bench.plans[-1].partitions.names == ("0", "1")
    assert "1" in bench.plans[-1].partitions.behind
    bench.limits = ReadLimit()
    assert isinstance(bench.until_quiet(), CaughtUp)
    assert bench.offsets(1) == [0, 1, 2]


@EITHER
def test_nobody_waits_for_a_partition_at_its_stop_while_others_are_paused_before_theirs(read_in):
    bench = Bench(cluster_of(1, 3), read_in=read_in, stop="latest")
    bench.limits = ReadLimit(paused=frozenset({"1"}))
    answer = [bench.poll() for _ in range(60)][-1]
    assert isinstance(answer, NoData)
    assert answer.ended == {"0"}
    bench.limits = ReadLimit()
    assert isinstance(bench.until_quiet(), Ended)
    assert (bench.offsets(0), bench.offsets(1)) == ([0], [0, 1, 2])


# ---------------------------------------------------------------------------------------------------- start and the end


@EITHER
def test_a_run_that_drains_ends_at_what_was_there_when_it_began(read_in):
    bench = Bench(cluster_of(3, 1), read_in=read_in, until=Until.CAUGHT_UP)
    bench.cluster.log(0).append(b"late")
    assert isinstance(bench.until_quiet(), CaughtUp)
    assert (bench.offsets(0), bench.offsets(1)) == ([0, 1, 2], [0])
    assert isinstance(restarted(bench).until_quiet(), CaughtUp)
    assert bench.offsets(0) == [0, 1, 2, 3]


@EITHER
def test_a_bounded_source_ends_at_its_stop_also_after_a_restart(read_in):
    bench = Bench(cluster_of(4, 1), read_in=read_in, stop="latest", limits=ReadLimit(rows=2))
    bench.poll()
    bench.cluster.log(0).append(b"later")
    bench.cluster.log(2).append(b"a new partition")
    assert isinstance(restarted(bench).until_quiet(), Ended)
    assert (bench.offsets(0), bench.offsets(1), bench.offsets(2)) == ([0, 1, 2, 3], [0], [])
    assert bench.of(SourceLag)[-1].rows == 0


def test_a_stop_behind_which_only_control_records_lie_is_reached():
    cluster = cluster_of(1)
    cluster.log().marker()
    bench = Bench(cluster, read_in="driver", stop="latest")
    assert isinstance(bench.until_quiet(), Ended)


def test_a_partition_that_is_read_to_the_stop_holds_nobody_back():
    bench = Bench(cluster_of(1, 5), read_in="executors", stop="latest", limits=ReadLimit(rows=2))
    bench.until_quiet()
    assert [plan.partitions.names for plan in bench.plans] == [("0", "1"), ("1",), ("1",)]


def test_a_start_at_the_groups_offsets_a_time_or_the_end_is_a_number_at_once():
    cluster = cluster_of(9)
    cluster.group = {TopicPartition("orders", 0): 4}

    def next_of(**source: object) -> int:
        return decode(Bench(cluster, **source).reader.position()).next[TopicPartition("orders", 0)]

    assert next_of(start="committed", group="g") == 4
    assert next_of(start="1970-01-01T00:00:00.007Z") == 7
    assert next_of(start="latest") == 9


def test_a_topic_that_is_not_there_is_named_and_no_retry_helps():
    with pytest.raises(ConnectorError, match=r"no topic 'orders'.*Create it") as raised:
        Bench(FakeCluster(), gone_after="200 ms")
    assert not raised.value.retry


@pytest.mark.parametrize(
    "given",
    [
        {"pattern": "ord.*"},
        {"start": "1970-01-01T00:00:01Z"},
        {"start": "committed", "group": "g", "start_otherwise": "earliest"},
    ],
)
def test_a_cluster_that_is_not_quite_back_is_asked_again(given):
    """A broker that has just started says for a moment that others know more of its partitions than it does."""
    cluster, asked = cluster_of(1), []
    answers = cluster._answer

    def each_third(made):
        asked.append(made)
        cluster.away = AWAY if len(asked) % 3 else None
        return answers(made)

    cluster._answer = each_third
    Bench(cluster, **given)
    assert len(asked) == 6, "two questions, each answered the third time"


def test_a_reader_that_cannot_begin_releases_its_connection(monkeypatch):
    monkeypatch.setattr(kafka_start, "_TRIES", 2)
    cluster = cluster_of(1)
    cluster.away = AWAY
    with pytest.raises(SourceUnavailable):
        Bench(cluster)
    assert cluster.closed == 1


# ------------------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.mission("S19")
def test_a_cluster_that_is_away_for_a_while_is_waited_for_with_a_warning(caplog):
    bench = Bench(cluster_of(1))
    bench.until_quiet()
    bench.cluster.away = AWAY
    with caplog.at_level(logging.WARNING, logger="penstock"):
        bench.until_quiet(2_000)
        bench.cluster.away = None
        bench.cluster.log().append(b"v")
        bench.until_quiet(400)
    assert bench.offsets() == [0, 1], "from where it stood"
    trouble = "source in has trouble with Kafka at k:9092"
    assert [record.getMessage() for record in caplog.records] == [
        f"{trouble}: the cluster is away",
        f"{trouble}, for 10 s now: the cluster is away",
        f"{trouble} no more; it lasted 16 s",
    ]


def test_what_clients_complain_of_is_told_once_then_seldom_then_that_it_is_over(caplog):
    bench = Bench(cluster_of(1), fail_stalled_after="1 hour")
    bench.until_quiet()
    with caplog.at_level(logging.WARNING, logger="penstock"):
        for _ in range(2_000):  # one look of each 60 succeeds meanwhile: another broker answers
            bench.cluster.troubles += [FakeTrouble("_TRANSPORT")] * 20
            bench.poll()
        for _ in range(4_000):
            bench.poll()
    trouble = "source in has trouble with Kafka at k:9092"
    assert [record.getMessage() for record in caplog.records] == [
        f"{trouble}: _TRANSPORT was said",
        f"{trouble}, for 10 s now: _TRANSPORT was said",
        f"{trouble} no more; it lasted 36 s",
    ]


def test_a_cluster_that_stays_away_fails_the_job_and_a_retry_may_help():
    bench = Bench(
        cluster_of(1), warn_stalled_after="1 second", reopen_stalled_after="1 second", fail_stalled_after="2 seconds"
    )
    bench.cluster.away = AWAY
    with pytest.raises(SourceUnavailable) as raised:
        bench.until_quiet(5_000)
    assert raised.value.retry


def test_a_cluster_that_refuses_fails_the_job_at_once():
    bench = Bench(cluster_of(1))
    bench.cluster.away = ConnectorError("not allowed")
    with pytest.raises(ConnectorError, match="not allowed"):
        bench.until_quiet(1_000)


def test_a_partition_that_gives_nothing_is_told_then_reopened_and_then_an_error():
    patience = {
        "warn_stalled_after": "2 seconds",
        "reopen_stalled_after": "4 seconds",
        "fail_stalled_after": "8 seconds",
    }
    bench = Bench(cluster_of(1), read_in="driver", **patience)
    bench.poll()
    bench.cluster.consumers[0].deaf = True
    bench.cluster.log().append(b"v")
    while len(bench.cluster.consumers) == 1:
        bench.poll()
    assert [fact.action for fact in bench.of(PartitionStalled)] == ["warn", "reopen"]
    assert bench.cluster.consumers[0].closed
    bench.until_quiet()
    assert bench.offsets() == [0, 1]
    bench.cluster.log().append(b"v")
    bench.cluster.deaf = True
    with pytest.raises(SourceUnavailable, match="orders-0 has given no record"):
        bench.until_quiet(5_000)


@EITHER
def test_records_that_expired_before_they_were_read_fail_the_job(read_in):
    bench = Bench(cluster_of(2), read_in=read_in)
    bench.until_quiet()
    bench.cluster.log().append(*[b"v"] * 5)
    bench.cluster.log().earliest = 4
    with pytest.raises(SourceChanged, match="orders-0: expired, 2 offsets from 2 on"):
        bench.until_quiet(1_000)


@EITHER
def test_records_that_expired_are_left_out_and_told_where_that_was_asked_for(read_in):
    bench = Bench(cluster_of(2, 1), read_in=read_in, on_lost_offsets="continue")
    bench.until_quiet()
    bench.cluster.log().append(*[b"v"] * 5)
    bench.cluster.log().earliest = 4
    bench.until_quiet(400)
    assert (bench.offsets(0), bench.offsets(1)) == ([0, 1, 4, 5, 6], [0])
    assert [(fact.partition, fact.reason, fact.first, fact.end) for fact in bench.of(OffsetsLost)] == [
        ("orders-0", "expired", 2, 4)
    ]


@EITHER
def test_a_topic_that_is_made_again_is_noticed_by_its_id(read_in):
    bench = Bench(cluster_of(2), read_in=read_in)
    bench.until_quiet()
    bench.cluster.recreate("orders")
    bench.cluster.log().append(*[b"v"] * 9)
    with pytest.raises(SourceChanged, match="recreated"):
        bench.until_quiet(1_000)


@EITHER
@pytest.mark.parametrize(("on_lost", "error"), [("fail", SourceChanged), ("continue", SourceUnavailable)])
def test_rows_of_a_topic_made_again_while_they_were_read_get_into_no_checkpoint(read_in, on_lost, error):
    bench = Bench(cluster_of(2), read_in=read_in, on_lost_offsets=on_lost)
    bench.cluster.slow = 1
    while not isinstance(plan := bench.poll(), PlannedBatch):
        pass
    bench.cluster.recreate("orders")
    with pytest.raises(error, match="made again while it was read"):
        plan.verify()


def test_rows_of_topics_that_are_the_same_are_verified():
    bench = Bench(cluster_of(2), read_in="executors")
    assert bench.poll().verify() is None


@EITHER
def test_a_broker_that_comes_back_and_knows_of_fewer_records_for_a_moment_has_lost_none(read_in):
    bench = Bench(cluster_of(9), read_in=read_in)
    bench.until_quiet()
    log = bench.cluster.log()
    log.end = 5
    for again in (bench, restarted(bench)):
        again.until_quiet(20)
    log.end = 9
    log.append(b"v")
    bench.until_quiet(400)
    assert bench.offsets() == list(range(10))


@EITHER
def test_records_that_stay_away_are_lost(read_in):
    bench = Bench(cluster_of(9), read_in=read_in)
    bench.until_quiet()
    bench.cluster.log().end = 5
    with pytest.raises(SourceChanged, match="orders-0: truncated, 4 offsets from 5 on"):
        bench.until_quiet(5_000)


def test_a_look_that_is_older_than_what_was_read_since_finds_no_loss():
    bench = Bench(cluster_of(0), read_in="driver")
    bench.cluster.slow = 50
    for _ in range(300):
        bench.cluster.log().append(b"v")
        bench.poll()
    assert bench.offsets() == list(range(300))


def test_a_consumer_that_may_not_read_a_topic_fails_the_job_with_the_remedy():
    bench = Bench(cluster_of(1), read_in="driver")
    bench.until_quiet()
    at = TopicPartition("orders", 0)
    bench.cluster.consumers[0].events.append(FakeMessage(at, -1, trouble=FakeTrouble("TOPIC_AUTHORIZATION_FAILED")))
    with pytest.raises(ConnectorError, match=r"k:9092, topic 'orders' partition 0.*Grant READ"):
        bench.poll()


def test_what_a_client_gets_over_by_itself_is_passed_over():
    bench = Bench(cluster_of(1), read_in="driver")
    at = TopicPartition("orders", 0)
    bench.poll()
    for name in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "NOT_LEADER_FOR_PARTITION", "GROUP_AUTHORIZATION_FAILED"):
        bench.cluster.consumers[0].events.append(FakeMessage(at, -1, trouble=FakeTrouble(name)))
    bench.cluster.log().append(b"v")
    bench.until_quiet()
    assert bench.offsets() == [0, 1]


def test_records_that_come_twice_are_an_error_and_no_rows():
    bench = Bench(cluster_of(3), read_in="driver")
    bench.until_quiet()
    bench.cluster.consumers[0].events.append(FakeMessage(TopicPartition("orders", 0), 1))
    bench.poll()
    bench.cluster.log().append(b"v")
    bench.until_quiet(400)
    assert bench.offsets() == [0, 1, 2, 3]


# ------------------------------------------------------------------------------------------------------- what is told


def test_159_offsets_are_committed_when_a_checkpoint_is_complete_and_failures_are_made_good():
    bench = Bench(cluster_of(3), group="g", read_in="driver", limits=ReadLimit(rows=2))
    bench.poll()
    first = bench.reader.position()
    bench.poll()
    bench.cluster.refuses = SourceUnavailable("the coordinator is away")
    bench.reader.committed(CheckpointId(1), first)
    bench.until_quiet(5)
    assert bench.cluster.commits == []
    bench.cluster.refuses = None
    bench.reader.committed(CheckpointId(2), bench.reader.position())
    bench.until_quiet(5)
    assert bench.cluster.commits == [{TopicPartition("orders", 0): 3}]
    told = bench.of(OffsetsCommitted)
    assert [(fact.offsets, fact.error) for fact in told] == [
        ({"orders-0": 2}, "the coordinator is away"),
        ({"orders-0": 3}, None),
    ]


def test_offsets_of_the_checkpoint_that_a_stop_takes_are_committed_though_no_poll_comes_after_it():
    bench = Bench(cluster_of(3), group="g", read_in="driver")
    bench.cluster.slow = 3
    bench.until_quiet()
    bench.reader.committed(CheckpointId(1), bench.reader.position())
    bench.poll()
    bench.cluster.log().append(b"v")
    while len(bench.offsets()) < 4:
        bench.poll()
    bench.reader.committed(CheckpointId(2), bench.reader.position())

    bench.reader.close()

    assert bench.cluster.commits == [{TopicPartition("orders", 0): 3}, {TopicPartition("orders", 0): 4}]
    assert [fact.offsets["orders-0"] for fact in bench.of(OffsetsCommitted)] == [3, 4]


def test_a_close_commits_nothing_that_the_group_has_or_that_is_still_under_way():
    bench = Bench(cluster_of(3), group="g", read_in="driver")
    bench.until_quiet()
    bench.reader.committed(CheckpointId(1), bench.reader.position())
    bench.until_quiet(5)
    bench.reader.committed(CheckpointId(2), bench.reader.position())

    bench.reader.close()

    assert bench.cluster.commits == [{TopicPartition("orders", 0): 3}]


def test_without_a_group_nothing_is_committed():
    bench = Bench(cluster_of(3))
    bench.until_quiet()
    bench.reader.committed(CheckpointId(1), bench.reader.position())
    bench.until_quiet()
    assert bench.cluster.commits == []


def test_161_the_lag_of_each_partition_is_told():
    bench = Bench(cluster_of(9, 0), read_in="driver", limits=ReadLimit(rows=2))
    for _ in range(2):
        bench.poll()
    bench.now += 3_000_000
    bench.poll()
    lag = bench.of(SourceLag)[-1]
    assert {name: each.rows for name, each in lag.partitions.items()} == {"orders-0": 5, "orders-1": 0}
    assert [(each.position, each.end, each.name) for each in lag.partitions.values()] == [(4, 9, "0"), (0, 0, "1")]


def test_closing_twice_releases_consumer_and_client_once():
    bench = Bench(cluster_of(1), read_in="driver")
    bench.until_quiet()
    bench.reader.close()
    bench.reader.close()
    assert bench.cluster.closed == 1
    assert bench.cluster.consumers[0].closed
