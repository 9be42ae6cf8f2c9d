"""Several producers publish one checkpoint's output: each shard by itself, in its order, however often a task runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark import cloudpickle

import penstock as ps
from core.test_kafka_transactions import IDENTITY, LOG, committer, staged, values
from kafka_broker import MemoryBroker
from penstock.checkpoint.commits import CommitQueue
from penstock.checkpoint.events import Commit, CommitRetryDue, CommitReturned, WakeAt
from penstock.clock import MonotonicTime, WallTime
from penstock.connectors.kafka import transactions
from penstock.connectors.kafka.identity import Identity, Marker
from penstock.connectors.kafka.transactions import Failed, KafkaCommitter, Reaction, Step, publish_in_task
from penstock.errors import CommitFailed, GenerationFenced, GraphError, SinkIdentityConflict
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CheckpointId, CommitOutcome, Committable
from penstock.interfaces.sink import CommitContext


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def filesystem(tmp_path) -> LocalFileSystem:
    return LocalFileSystem(tmp_path)


def identity(shard: int, of: int = 2) -> Identity:
    return replace(IDENTITY, transactional_id=f"shop-{shard}", shards=of)


def part(filesystem: LocalFileSystem, checkpoint: int, shard: int, *rows: bytes, of: int = 2) -> Committable:
    item = staged(filesystem, checkpoint * 10 + shard, *rows, identity=identity(shard, of))
    return replace(item, checkpoint=CheckpointId(checkpoint), shard=shard)


class Executor:
    """A session whose tasks run here, with clients of the broker's; what goes to them and comes back is pickled."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.sparkContext = self
        self.ran = 0
        self._broker = broker

    def parallelize(self, values: list[Any], partitions: int) -> Executor:
        assert partitions == 1
        self._values = values
        return self

    def map(self, work: Callable[[Any], Any]) -> Executor:
        self._work = cloudpickle.loads(cloudpickle.dumps(work))
        return self

    def collect(self) -> list[Any]:
        self.ran += 1
        return [pickle.loads(pickle.dumps(self._work(pickle.loads(pickle.dumps(value))))) for value in self._values]


@pytest.fixture
def executor(broker, monkeypatch) -> Executor:
    monkeypatch.setattr(transactions, "Publishers", broker.publishers)
    return Executor(broker)


def driver(broker: MemoryBroker, filesystem: LocalFileSystem, executor: Executor, **more: Any) -> KafkaCommitter:
    return committer(filesystem, broker.publishers(), spark=executor, **more)


# ---- tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["sink.kafka.begun", "sink.kafka.produced", "sink.kafka.marked"])
def test_a_second_attempt_beside_a_slow_one_publishes_and_the_slow_one_can_not(broker, filesystem, place):
    broker.markers["shop-1"] = Marker(LOG, 1)
    item, outcomes = part(filesystem, 1, 1, b"a", b"b"), []

    def other(at: str) -> None:
        if at == place:
            outcomes.append(publish_in_task(item, identity(1), filesystem, broker.publishers()))

    slow = KafkaCommitter(CommitContext(filesystem=filesystem, failpoint=other), broker.publishers())
    with pytest.raises(Failed) as failed:
        slow.publish_alone(item, identity(1))
    assert failed.value.reaction is Reaction.LOOK_AT_LOG
    assert (outcomes, values(broker)) == ([CommitOutcome.DONE], [b"a", b"b"])


@pytest.mark.parametrize("applied", [False, True])
def test_an_attempt_after_one_whose_answer_was_lost_publishes_what_is_missing(broker, filesystem, applied):
    broker.markers["shop-0"] = Marker(LOG, 1)
    broker.fails(Step.COMMIT, "_TRANSPORT", applied=applied)
    item = part(filesystem, 1, 0, b"a")
    lost = publish_in_task(item, identity(0), filesystem, broker.publishers())
    assert isinstance(lost, Failed)
    again = publish_in_task(item, identity(0), filesystem, broker.publishers())
    assert again is (CommitOutcome.ALREADY_DONE if applied else CommitOutcome.DONE)
    assert values(broker) == [b"a"]


def test_what_a_task_refuses_comes_back_as_the_error_it_is(broker, filesystem, executor):
    broker.markers["shop-0"] = Marker("another", 1)
    with pytest.raises(SinkIdentityConflict, match="was written by another log"):
        driver(broker, filesystem, executor).commit(part(filesystem, 1, 0, b"a"))


# ---- the driver ------------------------------------------------------------------------------------------------------


def test_a_driver_whose_task_was_fenced_looks_at_the_log_before_it_sends_another(broker, filesystem, executor):
    def is_lost() -> None:
        msg = "Another process owns the log."
        raise GenerationFenced(msg)

    broker.markers["shop-0"] = Marker(LOG, 1)
    broker.fails(Step.COMMIT, "_FENCED")
    act, item = driver(broker, filesystem, executor, check_owner=is_lost), part(filesystem, 1, 0, b"a")
    publisher = act._publishers.acquire(identity(0))  # as the writer of a run does
    with pytest.raises(CommitFailed, match="Another producer took this transactional id"):
        act.commit(item)
    with pytest.raises(GenerationFenced):
        act.commit(item)
    assert executor.ran == 1, "no second task took the identity"
    assert publisher.is_old
    assert driver(broker, filesystem, executor, check_owner=lambda: None).commit(item) is CommitOutcome.DONE


def test_after_a_task_the_driver_knows_that_the_marker_is_young_and_takes_the_identity_anew(
    broker, filesystem, executor
):
    act = driver(broker, filesystem, executor)
    publisher = act._publishers.acquire(identity(0))
    broker.markers["shop-0"] = Marker(LOG, 1)
    assert act.commit(part(filesystem, 4, 0, b"a")) is CommitOutcome.DONE
    assert not publisher.is_old
    with publisher.producer(lambda: None) as producing:
        assert producing.marker == Marker(LOG, 5)


def test_a_command_without_spark_publishes_shards_itself_and_each_under_its_own_identity(broker, filesystem):
    broker.markers |= {f"shop-{shard}": Marker(LOG, 1) for shard in range(3)}
    items = [part(filesystem, 1, shard, bytes([shard]), of=3) for shard in range(3)]
    now = ps.kafka.Sink(servers="k:9092", topic="counts", transactional_id_prefix="shop")  # has one shard by now
    act = committer(filesystem, broker.publishers(), sinks={"out": now})
    assert [act.commit(item) for item in items] == [CommitOutcome.DONE] * 3
    assert broker.markers == {f"shop-{shard}": Marker(LOG, 2) for shard in range(3)}
    assert values(broker) == [b"\0", b"\1", b"\2"]


# ---- the order -------------------------------------------------------------------------------------------------------


def returned(item: Committable, outcome: CommitOutcome) -> CommitReturned:
    at = MonotonicTime(0)
    return CommitReturned(
        at=at, wall=WallTime(0), uid="out", shard=item.shard, checkpoint=item.checkpoint, outcome=outcome
    )


def test_shards_are_published_side_by_side_and_each_in_the_order_of_its_checkpoints(filesystem):
    items = {(n, shard): part(filesystem, n, shard, b"x") for n in (1, 2) for shard in (0, 1)}
    queue = CommitQueue(backoff=1, limit=8)
    first = queue.publish([items[1, 0], items[1, 1]])
    assert first == [Commit(item=items[1, shard], attempt=1) for shard in (0, 1)]
    assert queue.publish([items[2, 0], items[2, 1]]) == []
    assert queue.record_outcome(returned(items[1, 1], CommitOutcome.DONE)) == [Commit(item=items[2, 1], attempt=1)]
    timer = CommitRetryDue(uid="out", shard=0, checkpoint=CheckpointId(1), due=MonotonicTime(1))
    assert queue.record_outcome(returned(items[1, 0], CommitOutcome.UNKNOWN)) == [WakeAt(at=timer.due, timer=timer)]
    assert queue.open == (items[1, 0], items[2, 0], items[2, 1])
    assert queue.due(timer) == [Commit(item=items[1, 0], attempt=2)]


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shards": 0}, "shards=0 is not possible. Give a whole number from 1 to 64"),
        ({"shards": True}, "shards=True is not possible"),
        ({"shards": 2, "guarantee": "at-least-once"}, "only exactly-once output has shards"),
    ],
)
def test_numbers_of_shards_that_mean_nothing_are_refused(given, said):
    prefix = {} if "guarantee" in given else {"transactional_id_prefix": "shop"}
    with pytest.raises(GraphError, match=said):
        ps.kafka.Sink(servers="k:9092", topic="counts", **prefix, **given)
