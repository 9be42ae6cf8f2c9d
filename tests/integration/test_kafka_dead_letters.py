"""Dead letters of a topic: kept with their offset and all bytes, and read again into windows that are still open."""

from __future__ import annotations

import pytest

import penstock as ps
from integration.test_kafka_job import expected, orders, windows
from integration.topics import Record
from penstock.admin.dead_letter_replay import replay
from penstock.admin.dead_letters import dead_letter_queue, letters_of
from penstock.control.client import JobDirectory

pytestmark = pytest.mark.spark

BAD = (b'{"id": "x7", "user": "u1", "at": "2026-01-01T00:02:05Z"}', b"\x00\xff no json")


def shop(servers: str, topic: str, out, kind: str) -> ps.PipelineDefinition:
    @ps.pipeline("letters")
    def pipeline(p: ps.Pipeline) -> None:
        raw = p.read("orders", ps.kafka.Source(servers=servers, topics=[topic]))
        parsed, bad = raw.parse_json("value", f"id {kind}, user STRING, at TIMESTAMP", on_error="split")
        timed = parsed.with_watermark("at", delay="0 seconds")
        counts = timed.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        counts.write("out", ps.files.Sink(out, format="json"))
        bad.dead_letter("bad-orders")

    return pipeline


def test_poison_in_a_topic_is_kept_by_offset_and_fixed_code_counts_it_in_its_window(spark, broker, topics, tmp_path):
    topic, out = topics.create("letters", partitions=2), tmp_path / "out"

    def run(kind: str) -> None:
        job = ps.Job(shop(broker.servers, topic, out, kind), state=tmp_path / "state", spark=spark)
        job.run(until="caught-up")

    topics.produce(topic, [*orders(range(3), 2), *(Record(value, partition=1) for value in BAD)])
    run("LONG")
    directory = JobDirectory(tmp_path / "state", "letters")
    letters, _ = letters_of(dead_letter_queue(directory, None), limit=10)
    places = sorted((each.place["topic"], each.place["partition"], each.place["offset"]) for each in letters)
    assert places == [(topic, 1, 30), (topic, 1, 31)]
    assert {bytes(each.record["value"], "latin-1")[:4] for each in letters} == {b'{"id', b"\x00\\xf"}

    assert replay(directory, "bad-orders").rows == 2
    run("STRING")  # nothing new: the replay is all that there is to read
    topics.produce(topic, orders(range(3, 4), 2))
    run("STRING")

    counted = expected({0: 2, 1: 2, 2: 2})
    counted["u1", 2] += 1
    assert windows(out) == counted
    again = {
        each.place["offset"]: each.attempts for each in letters_of(dead_letter_queue(directory, None), limit=10)[0]
    }
    assert again == {30: 1, 31: 2}, "the second is no JSON to anybody"
