"""New code on a copy of a job's state, read from a real topic: the group's offsets stay, and outputs are compared."""

from __future__ import annotations

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions

import penstock as ps
from integration.test_kafka_job import PATIENCE, committed, orders, windows
from integration.topics import Topics
from penstock.admin import savepoints
from penstock.control.client import JobDirectory
from penstock.facts import OffsetsCommitted
from spark.job_kit import Watch

pytestmark = pytest.mark.spark


def shop(servers: str, topic: str, out, *, counted: str = "user IS NOT NULL") -> ps.PipelineDefinition:
    """Orders by user and minute; ``counted`` is what new code may change."""

    @ps.pipeline("shop")
    def pipeline(p: ps.Pipeline) -> None:
        raw = p.read("orders", ps.kafka.Source(servers=servers, topics=[topic], group=f"{topic}-group"))
        parsed = raw.parse_json("value", "id LONG, user STRING, at TIMESTAMP", on_error="fail")
        timed = parsed.where(counted).with_watermark("at", delay="0 seconds")
        counts = timed.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        counts.write("out", ps.files.Sink(out, format="json"))

    return pipeline


def groups(topics: Topics, topic: str) -> set[str]:
    """All groups that have offsets of the topic, of whichever name."""
    known = topics.admin.list_consumer_groups().result(PATIENCE).valid
    found = set()
    for group in {each.group_id for each in known}:
        (answer,) = topics.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        if any(place.topic == topic and place.offset >= 0 for place in answer.result(PATIENCE).topic_partitions):
            found.add(group)
    return found


@pytest.mark.mission("D7")
def test_a_shadow_of_a_topic_leaves_the_group_where_it_was_and_shows_what_new_code_would_write(
    spark, broker, topics, tmp_path
):
    topic, out = topics.create("shadowed", partitions=2), tmp_path / "out"
    settings = {"state": tmp_path / "state", "spark": spark}
    topics.produce(topic, orders(range(3), 2))
    watch = Watch()
    ps.Job(shop(broker.servers, topic, out), listener=watch, **settings).run(until="caught-up")
    watch.wait_for(OffsetsCommitted)
    savepoints.create(JobDirectory(tmp_path / "state", "shop"), "before-v2")
    topics.produce(topic, orders(range(3, 6), 2))
    before, known, had = committed(topics, topic), groups(topics, topic), windows(out)
    assert (before, known) == ({0: 30, 1: 30}, {f"{topic}-group"})

    result = ps.shadow(
        shop(broker.servers, topic, tmp_path / "never", counted="user <> 'u1'"),
        against=shop(broker.servers, topic, out),
        restore_from="before-v2",
        out=tmp_path / "shadow",
        key={"out": ["user", "window_start"]},
        **settings,
    )

    assert (committed(topics, topic), groups(topics, topic)) == (before, known), "nobody in the group could notice"
    assert windows(out) == had, "nothing was published"
    assert not (tmp_path / "never").exists()
    assert [dict(report.rows_read) for report in result.reports.values()] == [{"orders": 60}, {"orders": 60}]
    [sink] = result.sinks
    assert sink.comparison is not None
    # Minutes 2 to 4; the first of them was counted by the old code before the savepoint, for all users.
    assert (sink.comparison.old, sink.comparison.new) == (9, 7)
    assert (sink.comparison.equal, sink.comparison.only_old, sink.comparison.changed) == (7, 2, 0)

    ps.Job(shop(broker.servers, topic, out), **settings).run(until="caught-up")
    tried = spark.read.parquet(str(tmp_path / "shadow" / "old" / "out")).collect()
    wrote = {(row["user"], row["window_start"].minute): row["n"] for row in tried}
    assert wrote == dict(windows(out) - had), "the job itself writes what the shadow of its code has written"
