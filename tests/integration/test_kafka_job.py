"""Whole jobs on topics of a real broker: from Kafka to files, over restarts, with what happens to topics and groups."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions

import penstock as ps
from crash.waiting import until
from integration.topics import Record
from penstock.api.pipeline import PipelineDefinition
from penstock.facts import OffsetsCommitted, PartitionsFound
from spark.job_kit import Watch, published

pytestmark = pytest.mark.spark

PATIENCE = 120


def order(minute: int, n: int, partition: int) -> Record:
    told = {"id": minute * 1_000 + n, "user": f"u{n % 3}", "at": f"2026-01-01T00:{minute:02}:{n:02}Z"}
    return Record(json.dumps(told).encode(), partition=partition)


def orders(minutes: range, partitions: int, each: int = 10) -> list[Record]:
    """So many orders of each minute in each partition."""
    return [order(minute, n, partition) for minute in minutes for partition in range(partitions) for n in range(each)]


def shop(servers: str, topic: str, out, bad, **more) -> PipelineDefinition:
    @ps.pipeline("shop")
    def pipeline(p: ps.Pipeline) -> None:
        raw = p.read("orders", ps.kafka.Source(servers=servers, topics=[topic], group=f"{topic}-group", **more))
        parsed, rejected = raw.parse_json("value", "id LONG, user STRING, at TIMESTAMP", on_error="split")
        timed = parsed.with_watermark("at", delay="0 seconds")
        counts = timed.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        counts.write("out", ps.files.Sink(out, format="json"))
        rejected.select("partition", "offset", "_error").write("bad-out", ps.files.Sink(bad, format="json"))

    return pipeline


def windows(out) -> Counter[tuple[str, int]]:
    """Rows of each user and minute, as they were published; each window once."""
    found = [(row["user"], int(row["window_start"][14:16]), row["n"]) for row in published(out)]
    assert len({each[:2] for each in found}) == len(found), "a window was published twice"
    return Counter({(user, minute): n for user, minute, n in found})


def expected(minutes: dict[int, int]) -> Counter[tuple[str, int]]:
    """By minute, how many partitions had orders of it."""
    return Counter({(f"u{n % 3}", minute): 0 for minute in minutes for n in range(3)}) + Counter(
        (f"u{n % 3}", minute) for minute, partitions in minutes.items() for _ in range(partitions) for n in range(10)
    )


def behind(job: ps.Job) -> dict[str, int]:
    """By partition, how many rows the job says are waiting."""
    return {name: lag.rows for name, lag in job.report().lag["orders"].partitions.items()}


def committed(topics, topic: str) -> dict[int, int]:
    """The offsets that the job's group has."""
    request = [ConsumerGroupTopicPartitions(f"{topic}-group")]
    (answer,) = topics.admin.list_consumer_group_offsets(request).values()
    return {place.partition: place.offset for place in answer.result(PATIENCE).topic_partitions}


@pytest.mark.mission("D6", "F13")
def test_a_job_goes_from_topics_to_files_over_restarts_a_lost_group_and_new_partitions(spark, broker, topics, tmp_path):
    topic, out, bad = topics.create("shop", partitions=2), tmp_path / "out", tmp_path / "bad"
    settings = {"state": tmp_path / "state", "spark": spark, "checkpoint_every": "300ms"}

    watch = Watch()
    job = ps.Job(shop(broker.servers, topic, out, bad), listener=watch, **settings)
    job.start()
    topics.produce(topic, [*orders(range(3), 2), Record(b"not json", partition=0)])
    until(PATIENCE, "minutes 0 and 1 are there", lambda: len(windows(out)) == 6)
    watch.wait_for(OffsetsCommitted)
    job.stop()
    assert windows(out) == expected({0: 2, 1: 2})

    (deleted,) = topics.admin.delete_consumer_groups([f"{topic}-group"]).values()
    deleted.result(PATIENCE)
    topics.produce(topic, orders(range(3, 5), 2))

    watch = Watch()
    job = ps.Job(shop(broker.servers, topic, out, bad, start="latest"), listener=watch, **settings)
    job.start()  # at its offsets: where to start counts without a checkpoint only
    until(PATIENCE, "minutes 2 and 3 are there", lambda: len(windows(out)) == 12)
    topics.add_partitions(topic, 3)
    watch.wait_for(PartitionsFound, task="orders", partitions=(f"{topic}-2",))
    topics.produce(topic, orders(range(5, 8), 3))
    until(PATIENCE, "minutes 4 to 6 are there", lambda: len(windows(out)) == 21)
    watch.wait_for(OffsetsCommitted)
    until(PATIENCE, "no partition is behind", lambda: behind(job) == {f"{topic}-{n}": 0 for n in range(3)})
    assert job.report().lag["orders"].eta_seconds == 0.0
    job.stop()
    assert windows(out) == expected({0: 2, 1: 2, 2: 2, 3: 2, 4: 2, 5: 3, 6: 3})
    assert [(row["partition"], row["offset"]) for row in published(bad)] == [(0, 30)]
    assert committed(topics, topic) == topics.ends(topic)
    report = job.report()
    assert report.rows_read == {"orders": 2 * 20 + 3 * 30}


def test_163_transactions_empty_partitions_and_more_tasks_than_records_to_the_end_each_partition_in_its_own_time(
    spark, broker, topics, tmp_path
):
    """Partition 0 ends with what was aborted and a marker, 1 is hours behind it, 2 is empty."""
    topic, out, late = topics.create("ended", partitions=3), tmp_path / "out", tmp_path / "late"
    topics.transact(topic, orders(range(30, 34), 1)).commit()
    topics.transact(topic, [order(59, 1, 0)]).abort()
    topics.produce(topic, [Record(each.value, partition=1) for each in orders(range(4), 1)], compression="zstd")

    @ps.pipeline("ended")
    def pipeline(p: ps.Pipeline) -> None:
        source = ps.kafka.Source(servers=broker.servers, topics=[topic], stop="latest", read_in="executors")
        parsed = p.read("orders", source).parse_json("value", "id LONG, user STRING, at TIMESTAMP", on_error="fail")
        timed = parsed.with_watermark("at", delay="0 seconds")
        counts = timed.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        counts.write("out", ps.files.Sink(out, format="json"))
        counts.late.write("late", ps.files.Sink(late, format="json"))

    job = ps.Job(pipeline, state=tmp_path / "state", spark=spark, checkpoint_every="300ms", max_rows_per_batch=25)
    report = job.run()

    assert report.state == "stopped"
    assert windows(out) == expected(dict.fromkeys([*range(4), *range(30, 34)], 1))
    assert published(late) == []
    assert report.rows_read == {"orders": 80}
