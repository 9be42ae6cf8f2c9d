"""From Kafka through windows to Kafka on a real broker: each result once for readers of committed records."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from integration.test_kafka_job import orders
from penstock import failpoints
from penstock.api.pipeline import PipelineDefinition
from penstock.checkpoint.log import read_history
from penstock.connectors.kafka.client import Connection
from penstock.connectors.kafka.features import transaction_version
from penstock.connectors.kafka.identity import Identity, Marker
from penstock.connectors.kafka.producer import ClientFailure
from penstock.connectors.kafka.records import OutputRecord
from penstock.connectors.kafka.transactional import KafkaTransactions
from penstock.errors import InternalError, SinkIdentityConflict
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CommitOutcome
from penstock.testing.contracts import SinkContract
from penstock.testing.frames import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"


class TestContract(SinkContract):
    """The sink keeps what the runtime relies on. A void of an epoch settles those before it as well."""

    @pytest.fixture
    def sink(self, broker, topics) -> ps.kafka.Sink:
        self.topics = topics
        self.topic = topics.create("contract", partitions=2)
        return ps.kafka.Sink(servers=broker.servers, topic=self.topic, transactional_id_prefix=self.topic, key="id")

    def visible(self, sink: ps.kafka.Sink, spark: SparkSession) -> Sequence[Row]:  # type: ignore[override]
        return [json.loads(each.value or b"") for each in self.topics.read(self.topic)]

    def test_what_is_voided_is_never_published(
        self, sink: Any, spark: SparkSession, filesystem: LocalFileSystem
    ) -> None:
        writer = self.open(sink, spark, filesystem)
        writer.write(self.batch(spark, 1))
        first = self.handed_over(writer, 1)
        writer.write(self.batch(spark, 2))
        second = self.handed_over(writer, 2)
        self.commit(first, filesystem)  # a rewind publishes what it does not discard, before it voids
        assert self.void(second, filesystem) == [CommitOutcome.DONE]
        assert self.void(second, filesystem) == [CommitOutcome.ALREADY_DONE]
        assert self.commit(second, filesystem) == [CommitOutcome.ALREADY_DONE]
        self.expect(sink, spark, 1)


def test_the_client_does_what_the_committer_relies_on(broker, topics):
    """A marker is seen with its rows or not at all; a fenced producer can do nothing more."""
    assert transaction_version(Connection(servers=broker.servers, options={})) == 2
    topic = topics.create("fenced", partitions=2)

    def client() -> KafkaTransactions:
        return KafkaTransactions(Connection(servers=broker.servers, options={}), topic, topic)

    def record(value: bytes) -> OutputRecord:
        return OutputRecord(topic, None, value, None, None, None)

    old, new = client(), client()
    old.fence()
    assert old.marker() is None
    old.begin()
    old.produce([record(b"a")])
    old.mark(Marker("log", 4))
    assert set(topics.ends(topic).values()) == {0}
    old.commit()
    assert old.marker() == Marker("log", 4)
    old.begin()
    old.produce([record(b"lost")])
    old.mark(Marker("log", 5))
    new.fence()
    assert new.marker() == Marker("log", 4)
    with pytest.raises(ClientFailure, match="_FENCED"):
        old.commit()
    old.close()
    new.begin()
    new.produce([record(b"b"), record(b"c")])
    new.mark(Marker("log", 5))
    new.commit()
    new.close()
    found = sorted(each.value for each in topics.read(topic) if each.value is not None)
    assert found == [b"a", b"b", b"c"]


def shop(servers: str, topic: str, out: str, copy: str) -> PipelineDefinition:
    """Counts, exactly once; and each record as it is, at least once."""

    @ps.pipeline("shop")
    def pipeline(p: ps.Pipeline) -> None:
        raw = p.read("orders", ps.kafka.Source(servers=servers, topics=[topic]))
        copies = ps.kafka.Sink(servers=servers, topic=copy, guarantee="at-least-once", format="raw")
        raw.select("value").write("copy", copies)
        parsed = raw.parse_json("value", "id LONG, user STRING, at TIMESTAMP", on_error="fail")
        timed = parsed.with_watermark("at", delay="0 seconds")
        counts = timed.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        place = {"servers": servers, "topic": out, "transactional_id_prefix": out}
        counts.write("out", ps.kafka.Sink(**place, key="user", timestamp="window_end"))

    return pipeline


def results(topics, topic: str) -> Counter[tuple[str, str, int]]:
    """What a reader of committed records sees: user, minute, count, each with how often."""
    found = [json.loads(each.value or b"") for each in topics.read(topic)]
    return Counter((row["user"], row["window_start"][14:16], row["n"]) for row in found)


def expected(minutes: range, partitions: int) -> Counter[tuple[str, str, int]]:
    """Of ten orders each minute and partition the users have 4, 3 and 3."""
    return Counter((f"u{n}", f"{minute:02}", (4, 3, 3)[n] * partitions) for minute in minutes for n in range(3))


@pytest.mark.mission("D10")
def test_147_a_result_is_there_once_after_a_failure_before_and_after_a_commit_and_a_copy_at_least_once(
    spark, broker, topics, tmp_path
):
    topic, copy = topics.create("in", partitions=2), topics.create("copy")
    out = topics.create("out", partitions=3, retention_ms=-1)
    definition = shop(broker.servers, topic, out, copy)
    settings = {"state": tmp_path / "state", "spark": spark, "checkpoint_every": "200ms"}
    for number, place in enumerate(("marked", "committed")):
        topics.produce(topic, orders(range(number * 2, number * 2 + 2), 2))
        with failpoints.armed(f"sink.kafka.{place}", "error:EIO", hit=1):  # and the job restarts
            assert ps.Job(definition, **settings).run(until="caught-up").restarts == 1
    topics.produce(topic, orders(range(4, 5), 2))
    ps.Job(definition, **settings).run(until="caught-up")
    assert results(topics, out) == expected(range(4), 2)
    sent = Counter(each.value for each in orders(range(5), 2))
    assert sent - Counter(each.value for each in topics.read(copy)) == Counter()

    # Another job with this prefix: it has another log.
    with pytest.raises(SinkIdentityConflict, match="Another job has the same transactional_id_prefix"):
        ps.Job(definition, state=tmp_path / "another", spark=spark).run(until="caught-up")
    assert results(topics, out) == expected(range(4), 2)


def test_the_pipeline_of_the_page_about_kafka_goes_from_kafka_to_kafka(spark, broker, topics, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    code = "\n".join(block for block in blocks if "p.read(" in block or ".write(" in block)
    for name in ("orders", "counts", "live"):
        topics.make(name, 2)
    topics.produce("orders", orders(range(3), 2))

    @ps.pipeline("page")
    def pipeline(p: ps.Pipeline) -> None:
        names: dict[str, Any] = {"p": p, "ps": ps}
        exec(re.sub(r"kafka-1:9092(,kafka-2:9092)?", broker.servers, code), names)
        names["bad"].write("bad-out", ps.memory.Sink())

    ps.Job(pipeline, state=tmp_path / "state", spark=spark).run(until="caught-up")
    counts = [json.loads(each.value or b"") for each in topics.read("counts")]
    assert sorted((row["user"], row["n"]) for row in counts) == sorted([("u0", 8), ("u1", 6), ("u2", 6)] * 2)
    assert {each.key for each in topics.read("counts")} == {b"u0", b"u1", b"u2"}
    newest = {each.key: json.loads(each.value or b"")["n"] for each in topics.read("live")}
    assert sorted(newest.values()) == sorted([8, 6, 6] * 3)


ATTEMPT = """
import pickle, sys
from penstock.connectors.kafka.transactions import publish_in_task
from penstock.filesystem.local import LocalFileSystem
item, identity, root = pickle.loads(sys.stdin.buffer.read())
print(publish_in_task(item, identity, LocalFileSystem(root)))
"""
"""An attempt of a task: a process of its own, as a worker of an executor is."""


def test_shards_publish_side_by_side_however_often_their_tasks_run(spark, broker, topics, tmp_path):
    topic, out = topics.create("in", partitions=2), topics.create("out", partitions=3)

    @ps.pipeline("shards")
    def pipeline(p: ps.Pipeline) -> None:
        raw = p.read("orders", ps.kafka.Source(servers=broker.servers, topics=[topic]))
        parsed = raw.parse_json("value", "id LONG, user STRING, at TIMESTAMP", on_error="fail")
        sink = ps.kafka.Sink(servers=broker.servers, topic=out, key="user", transactional_id_prefix=out, shards=2)
        parsed.select("id", "user").write("out", sink)

    topics.produce(topic, orders(range(3), 2))
    settings = {"state": tmp_path / "state", "spark": spark}
    with failpoints.armed("sink.commit.before", "raise"), pytest.raises(InternalError, match="FailpointCrash"):
        ps.Job(pipeline, **settings).run(until="caught-up")
    directory = LocalFileSystem(tmp_path / "state" / "shards")
    waiting = read_history(directory, "shards").open_committables
    assert {item.shard for item in waiting} == {0, 1}, "users are in both"

    # A worker dies in the middle of a transaction; two attempts at once, as speculation runs them, take the id in turn.
    item = waiting[-1]
    given = pickle.dumps((item, Identity.of(item), str(tmp_path / "state" / "shards")))

    def attempt(**environment: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-c", ATTEMPT]
        return subprocess.run(command, input=given, capture_output=True, check=False, env={**os.environ, **environment})

    assert attempt(PENSTOCK_FAILPOINTS="sink.kafka.marked=kill").returncode == -signal.SIGKILL
    assert topics.read(out) == []
    with ThreadPoolExecutor(2) as threads:
        both = [each.result() for each in [threads.submit(attempt), threads.submit(attempt)]]
    assert sum(b"CommitOutcome.DONE" in each.stdout for each in both) <= 1, both

    # The job goes on: what waits is published as it was prepared, and nothing twice.
    topics.produce(topic, orders(range(3, 4), 2))
    ps.Job(pipeline, **settings).run(until="caught-up")
    found = [json.loads(each.value or b"") for each in topics.read(out)]
    sent = [json.loads(each.value or b"") for each in orders(range(4), 2)]
    assert Counter((row["id"], row["user"]) for row in found) == Counter((row["id"], row["user"]) for row in sent)


def test_23_24_a_marker_that_expired_stops_only_what_is_open_and_a_changed_prefix_publishes_under_the_old_one(
    spark, broker, topics, tmp_path
):
    topic, out = topics.create("in"), topics.create("out")

    def start(prefix: str, **more: Any) -> None:
        @ps.pipeline("copy")
        def pipeline(p: ps.Pipeline) -> None:
            place = {"servers": broker.servers, "topic": out, "transactional_id_prefix": prefix}
            raw = p.read("orders", ps.kafka.Source(servers=broker.servers, topics=[topic]))
            raw.select("value").write("out", ps.kafka.Sink(**place, format="raw", **more))

        topics.produce(topic, orders(range(1), 1))
        ps.Job(pipeline, state=tmp_path / "state", spark=spark).run(until="caught-up")

    def crash(prefix: str) -> None:
        with failpoints.armed("sink.commit.before", "raise"), pytest.raises(InternalError, match="FailpointCrash"):
            start(prefix)

    def forget(prefix: str) -> None:
        """As the brokers do after ``offsets.retention.minutes``."""
        topics.admin.delete_consumer_groups([f"{out}-{prefix}-0"])[f"{out}-{prefix}-0"].result()

    def seen() -> int:
        return len(topics.read(out))

    start(f"{out}-a")
    forget("a")
    start(f"{out}-a")  # nothing is open: the log is the proof
    assert seen() == 20
    crash(f"{out}-a")
    forget("a")
    with pytest.raises(SinkIdentityConflict, match=r"on_lost_marker='publish' if they are not"):
        start(f"{out}-a")
    assert seen() == 20
    start(f"{out}-a", on_lost_marker="publish")
    rows = seen()
    assert rows >= 30, "what was open, and what came meanwhile"
    crash(f"{out}-a")
    start(f"{out}-b")
    old, new = (
        KafkaTransactions(Connection(servers=broker.servers, options={}), f"{out}-{name}-0", out) for name in "ab"
    )
    try:
        marks = old.marker(), new.marker()
    finally:
        old.close()
        new.close()
    assert marks[0] is not None
    assert marks[1] is not None
    assert marks[0].next < marks[1].next, "the last output under the old name, then the new one's"
    assert Counter(each.value for each in topics.read(out)) == Counter(
        {each.value: seen() // 10 for each in orders(range(1), 1)}
    ), "nothing is there twice or missing"
