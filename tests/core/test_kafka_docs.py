"""The examples of the page about Kafka build: all in them is possible, and what the page says of defaults is so."""

from __future__ import annotations

import re
from pathlib import Path

import penstock as ps
from penstock.connectors.kafka import transactional, transactions
from penstock.graph.nodes import Write
from penstock.handles import Guarantee

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"


def test_the_examples_of_the_page_about_kafka_can_be_built():
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, object] = {"p": ps.Pipeline("page"), "ps": ps}
    exec("\n".join(code), names)
    sources = [value for value in names.values() if isinstance(value, ps.kafka.Source)]
    assert len(sources) == 4
    assert isinstance(names["bad"], ps.Stream)
    p = names["p"]
    assert isinstance(p, ps.Pipeline)
    sinks = {node.uid: node.sink for node in p.graph().nodes if isinstance(node, Write)}
    assert {uid: sink.describe() for uid, sink in sinks.items()} == {
        "counts-out": "kafka counts at kafka-1:9092,kafka-2:9092",
        "live-out": "kafka live at kafka-1:9092",
    }
    assert names["quick"].guarantee is Guarantee.AT_LEAST_ONCE


def test_what_the_page_says_about_defaults_is_so():
    text = PAGE.read_text(encoding="utf-8")
    source = ps.kafka.Source(servers="k:9092", topics=["t"])
    for seconds, said in (
        (source.discover_every, "`discover_every` (10 seconds)"),
        (source.gone_after, "`gone_after` (5 seconds)"),
        (source.stall_timeouts.warn, "`warn_stalled_after` (30 seconds)"),
        (source.stall_timeouts.reopen, "`reopen_stalled_after` (1 minute)"),
    ):
        amount, unit = re.search(r"\((\d+) (second|minute)", said).groups()
        assert seconds == int(amount) * {"second": 1_000_000, "minute": 60_000_000}[unit]
        assert said in text


def test_what_the_page_says_of_a_sink_is_so():
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    sink = ps.kafka.Sink(servers="k:9092", topic="t", transactional_id_prefix="shop")
    assert sink.guarantee is Guarantee.EXACTLY_ONCE
    assert [each.transactional_id for each in sink.identities_in("log")] == ["shop-0"]
    assert transactional._DEFAULTS["transaction.timeout.ms"] == 5 * 60_000
    assert "`transaction.timeout.ms`, five minutes" in text
    assert transactions.RENEW_AFTER == 10 * 60_000_000
    assert "writes its marker again every ten minutes" in text
