"""The pipeline of `make demo-kafka` on orders that its shop appends live; killing one is the torture's."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

import penstock as ps
from penstock.cli.demo import read_published
from penstock.control.client import JobDirectory

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = 10_000
"""One of them cannot be read."""


def example(name):
    """An example as a module; its folder is none of packages."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_demos_pipeline_counts_every_order_that_its_shop_appends(spark, broker, topics, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the demo extends it
    demo = example("demo_kafka")
    topic = topics.create("orders", demo.PARTITIONS)
    ends = [len(range(partition, ROWS, demo.PARTITIONS)) for partition in range(demo.PARTITIONS)]
    monkeypatch.setenv("ORDERS_SERVERS", broker.servers)
    monkeypatch.setenv("ORDERS_TOPIC", topic)
    monkeypatch.setenv("ORDERS_ENDS", json.dumps(ends))
    totals = topics.create("totals", 2)
    monkeypatch.setenv("ORDERS_TOTALS", totals)
    monkeypatch.chdir(tmp_path)
    shop = demo._Shop(broker.servers, topic, ROWS, per_second=100_000)
    shop.was_killed.set()
    shop.start()

    report = ps.Job(example("kafka_orders").orders, state="state", spark=spark, checkpoint_every="300ms").run()

    shop.join()
    (tmp_path / "out").mkdir()
    demo.keep_totals(topics, totals, tmp_path / "out")
    found = read_published(tmp_path / "out", tmp_path / "bad")
    assert report.state == "stopped"
    assert shop.totals.differs(found) == []
    assert (found.total, found.bad) == (ROWS - 1, 1)
    assert demo._orders_read(JobDirectory("state", "orders").read().restore_point) == ROWS
