"""Orders from Kafka, summed by user and minute. Copy this file and change it: it is a whole pipeline.

ORDERS_SERVERS=localhost:9092 penstock run kafka_orders:orders --state state
"""

import json
import os

import penstock as ps

SERVERS = os.environ["ORDERS_SERVERS"]
TOPIC = os.environ.get("ORDERS_TOPIC", "orders")
ENDS = json.loads(os.environ.get("ORDERS_ENDS", "[]"))
"""How many orders each partition will have. Without it, a pipeline goes on for ever."""
TOTALS = os.environ.get("ORDERS_TOTALS")
"""The topic of the sums, which must exist. Without it they go into files below out/."""


@ps.pipeline("orders")
def orders(p: ps.Pipeline) -> None:
    """Read a topic, decode JSON, sum each user's orders of a minute, write each sum exactly once."""
    topic = ps.kafka.Source(
        servers=SERVERS,
        topics=[TOPIC],
        group="orders",  # shows Kafka's own tools how far the job is; where it goes on is in its checkpoints
        stop={TOPIC: dict(enumerate(ENDS))} if ENDS else None,
    )
    parsed, bad = p.read("orders", topic).parse_json(
        "value", "id LONG, user STRING, amount DOUBLE, at TIMESTAMP", on_error="split"
    )
    totals = (
        parsed.select("partition", "user", "amount", "at")  # the partition stays: each has a watermark of its own
        .with_watermark("at", delay="5 seconds")
        .group_by("user", ps.tumbling("1 minute"))
        .agg("totals", ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n"))  # "totals" addresses the state
    )
    if TOTALS:  # readers see the sums of a checkpoint at once, with isolation.level=read_committed
        sums = ps.kafka.Sink(servers=SERVERS, topic=TOTALS, key="user", transactional_id_prefix=TOTALS)
        totals.write("totals-out", sums)
    else:
        totals.write("totals-out", ps.files.Sink("out", format="json"))
    totals.late.write("late-out", ps.files.Sink("late", format="json"))  # rows after their window has closed
    bad.select("partition", "offset", "CAST(value AS STRING) AS value", "_error").write(
        "bad-out", ps.files.Sink("bad", format="json")
    )
