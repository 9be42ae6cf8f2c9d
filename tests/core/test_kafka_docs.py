"""The examples of the page about Kafka build: every source in them is possible, and what they say by default is so."""

from __future__ import annotations

import re
from pathlib import Path

import penstock as ps

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"


def test_the_examples_of_the_page_about_kafka_can_be_built():
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, object] = {"p": ps.Pipeline("page"), "ps": ps}
    exec("\n".join(code), names)
    sources = [value for value in names.values() if isinstance(value, ps.kafka.Source)]
    assert len(sources) == 4
    assert isinstance(names["bad"], ps.Stream)


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
