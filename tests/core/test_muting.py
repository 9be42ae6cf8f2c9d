"""A pipeline is muted: its sinks write into a folder, its sources tell nobody, all else is as it was."""

from pathlib import Path

import penstock as ps
from penstock.graph.nodes import Keyed, Read, Write
from penstock.handles import Position, with_replays
from penstock.operate.shadow.muting import Muted, Muting


@ps.pipeline("orders")
def orders(p):
    """Sums of numbers."""
    numbers = p.read("in", ps.rate.Source(10)).with_watermark("at", delay="0 seconds")
    numbers.group_by("value", ps.tumbling("1 minute")).agg("totals", ps.agg.count()).write("out", ps.console.Sink())
    numbers.write("all", ps.memory.Sink(), guarantee="exactly-once")


def test_every_sink_writes_below_the_folder_and_nothing_else_is_changed(tmp_path):
    muting = Muting(folder=tmp_path, ends={})
    muted, plain = Muted(orders, muting).graph(), orders.graph()

    sinks = {node.uid: node.sink for node in muted.nodes if isinstance(node, Write)}
    assert {uid: sink.target for uid, sink in sinks.items()} == {"out": f"{tmp_path}/out", "all": f"{tmp_path}/all"}
    assert [type(node) for node in muted.nodes] == [type(node) for node in plain.nodes]
    assert [n.spec.describe() for n in muted.nodes if isinstance(n, Keyed)] == [
        n.spec.describe() for n in plain.nodes if isinstance(n, Keyed)
    ]
    assert (muted.name, muted.sources, muted.sinks) == (plain.name, plain.sources, plain.sinks)


def test_sources_end_where_they_are_told_and_those_that_cannot_are_named(tmp_path):
    end = Position(kind="rate/1", detail={"next": 7, "started": 0})
    muting = Muting(folder=Path(tmp_path), ends={"in": end})

    [read] = [node for node in muting.graph(orders.graph()).nodes if isinstance(node, Read)]
    assert read.source == ps.rate.Source(10).replayed(end)
    assert muting.unbounded(orders.graph()) == ()

    muting = Muting(folder=Path(tmp_path), ends={"in": with_replays(end, {"bad": 3})})
    [read] = [node for node in muting.graph(orders.graph()).nodes if isinstance(node, Read)]
    assert read.source == ps.rate.Source(10).replayed(end), "a source gets its own words"
    assert Muting(folder=Path(tmp_path), ends={}).unbounded(orders.graph()) == ("in",)
