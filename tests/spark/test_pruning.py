"""A source is told which columns anybody looks at."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.compiler.analysis import analyze

pytestmark = pytest.mark.spark

SCHEMA = "id LONG, user STRING, at TIMESTAMP"


def wanted(spark, build, **source):
    """What the job over a topic asks its source for; ``build`` makes the stream that is written."""
    told = ps.kafka.Source(servers="localhost:1", **({"topics": ["orders"]} | source))

    @ps.pipeline("pruned")
    def pipeline(p: ps.Pipeline) -> None:
        build(p.read("orders", told))

    graph = pipeline.graph()
    analysis = analyze(graph, spark)
    found = analysis.source(graph.nodes[0])
    analysis.close()
    return found.needed_columns


def written(stream) -> None:
    stream.write("out", ps.memory.Sink())


def test_columns_that_are_dropped_are_not_asked_for(spark):
    found = wanted(spark, lambda raw: written(raw.where("offset > 7").select("key", "CAST(value AS STRING) AS text")))
    assert found == {"key", "value", "offset", "partition"}  # the last tells watermarks apart


def test_a_record_is_decoded_and_the_rest_goes_by_what_comes_after(spark):
    def build(raw):
        written(raw.parse_json("value", SCHEMA).with_watermark("at", delay="1 second").select("user", "timestamp"))

    assert wanted(spark, build) == {"_record", "value", "timestamp", "partition"}
    assert wanted(spark, build, topics=["a", "b"]) == {"_record", "value", "timestamp", "topic_partition"}


def test_an_event_time_is_asked_for_even_if_it_is_dropped(spark):
    def derived(raw):
        late = raw.with_column("at", "timestamp - INTERVAL 1 SECOND").with_watermark("at", delay="1 s")
        written(late.where("offset > 7").select("key"))

    found = wanted(spark, lambda raw: written(raw.with_watermark("timestamp", delay="1 s").select("key")))
    assert found == {"key", "timestamp", "partition"}
    assert wanted(spark, derived) == {"key", "offset", "timestamp", "partition"}


def test_what_is_passed_on_is_asked_for(spark):
    everything = {"key", "value", "headers", "topic", "partition", "offset", "timestamp"}
    assert wanted(spark, lambda raw: written(raw.where("offset > 7"))) == everything
    assert wanted(spark, written) is None


def test_what_several_look_at_is_not_pruned(spark):
    def both(raw):
        raw.select("key").write("keys", ps.memory.Sink())
        raw.select("value").write("values", ps.memory.Sink())

    def split(raw):
        good, bad = raw.parse_json("value", SCHEMA, on_error="split")
        good.select("id").write("good", ps.memory.Sink())
        bad.write("bad", ps.memory.Sink())

    assert wanted(spark, both) is None
    assert wanted(spark, split) is None
