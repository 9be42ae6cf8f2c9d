"""The job that ``torture-kafka-out`` kills: a topic, decoded, windows, topics.

It runs in a process of its own, by ``penstock run kafka_out_job:job``; its environment says which topics of which
broker. With ``TORTURE_BROKEN=1`` the marker is committed after the rows, in a transaction of its own: the negative
control, which must repeat rows.
"""

from __future__ import annotations

import os

import penstock as ps
from crash.kafka_job import SERVERS, SHOWN, TOPIC
from crash.torture_pipeline import SCHEMA
from penstock.connectors.kafka.transactions import Producing, Step

OUTPUTS = {"out": "totals-out", "late": "late-out", "bad": "bad-out"}
"""The ends of the topics' names, and the uid of the sink of each."""

SHARDS = "TORTURE_SHARDS"


def topic_of(output: str) -> str:
    """The topic of an output."""
    return f"{os.environ[TOPIC]}-{output}"


def sink(output: str, **more: object) -> ps.kafka.Sink:
    topic = topic_of(output)
    more |= {"shards": int(os.environ.get(SHARDS, "1")), "transactional_id_prefix": topic}
    return ps.kafka.Sink(servers=os.environ[SERVERS], topic=topic, **more)  # type: ignore[arg-type]


@ps.pipeline("torture")
def job(p: ps.Pipeline) -> None:
    source = ps.kafka.Source(
        servers=os.environ[SERVERS],
        topics=[os.environ[TOPIC]],
        discover_every="1 second",
        max_rows_per_batch=2_000,
    )
    parsed, bad = p.read("lines", source).parse_json("value", SCHEMA, on_error="split")
    totals = (
        parsed.select("partition", "id", "user", "amount", "at")
        .with_watermark("at", delay="5 seconds")
        .group_by("user", ps.tumbling("1 minute"))
        .agg("totals", ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n"))
    )
    totals.write("totals-out", sink("out", key="user"))
    totals.late.write("late-out", sink("late"))
    bad.select(f"{SHOWN} AS value").write("bad-out", sink("bad"))


def _commit_apart() -> None:
    real = Producing.publish

    def publish(self, marker, records=(), failpoint=lambda _name: None):  # type: ignore[no-untyped-def]
        client = self._publisher.client
        self.do(Step.BEGIN, client.begin)
        self.do(Step.PRODUCE, lambda: client.produce(records))
        self.do(Step.COMMIT, client.commit)
        real(self, marker, (), failpoint)

    Producing.publish = publish  # type: ignore[method-assign]


if os.environ.get("TORTURE_BROKEN"):
    _commit_apart()
