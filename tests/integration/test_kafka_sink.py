"""From Kafka through windows to Kafka on a real broker: each result once for readers of committed records."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from integration.test_kafka_job import orders
from penstock import failpoints
from penstock.api.pipeline import PipelineDefinition
from penstock.connectors.kafka.client import Connection
from penstock.connectors.kafka.features import transaction_version
from penstock.connectors.kafka.identity import Marker
from penstock.connectors.kafka.records import OutputRecord
from penstock.connectors.kafka.transactional import KafkaTransactions
from penstock.connectors.kafka.transactions import ClientFailure
from penstock.errors import SinkIdentityConflict
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
