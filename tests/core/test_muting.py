"""A pipeline is muted: its sinks write into a folder, its sources tell nobody, all else is as it was."""

import re
from pathlib import Path

import pytest

import penstock as ps
from penstock.admin.shadow_pipeline import EmptySource, MutedPipeline, PipelineMuter
from penstock.errors import GraphError, SettingsError
from penstock.graph.nodes import Keyed, Read, Write
from penstock.handles import Position, with_replays
from penstock.interfaces.source import CaughtUp, NoData, ReadLimit, SourceContext, Until
from penstock.testing.sources import ScriptedSource


@ps.pipeline("orders")
def orders(p):
    """Sums of numbers."""
    numbers = p.read("in", ps.rate.Source(10)).with_watermark("at", delay="0 seconds")
    numbers.group_by("value", ps.tumbling("1 minute")).agg("totals", ps.agg.count()).write("out", ps.console.Sink())
    numbers.write("all", ps.memory.Sink(), guarantee="exactly-once")


def test_every_sink_writes_below_the_folder_and_nothing_else_is_changed(tmp_path):
    muting = PipelineMuter(folder=tmp_path, ends={})
    muted, plain = MutedPipeline(orders, muting).graph(), orders.graph()

    sinks = {node.uid: node.sink for node in muted.nodes if isinstance(node, Write)}
    assert {uid: sink.target for uid, sink in sinks.items()} == {"out": f"{tmp_path}/out", "all": f"{tmp_path}/all"}
    assert [type(node) for node in muted.nodes] == [type(node) for node in plain.nodes]
    assert [n.spec.describe() for n in muted.nodes if isinstance(n, Keyed)] == [
        n.spec.describe() for n in plain.nodes if isinstance(n, Keyed)
    ]
    assert (muted.name, muted.sources, muted.sinks) == (plain.name, plain.sources, plain.sinks)


def test_sources_end_where_they_are_told_and_those_that_cannot_are_named(tmp_path):
    end = Position(kind="rate/1", detail={"next": 7, "started": 0})
    muting = PipelineMuter(folder=Path(tmp_path), ends={"in": end})

    [read] = [node for node in muting.graph(orders.graph()).nodes if isinstance(node, Read)]
    assert read.source == ps.rate.Source(10).replayed(end)
    assert muting.unbounded(orders.graph()) == ()

    muting = PipelineMuter(folder=Path(tmp_path), ends={"in": with_replays(end, {"bad": 3})})
    [read] = [node for node in muting.graph(orders.graph()).nodes if isinstance(node, Read)]
    assert read.source == ps.rate.Source(10).replayed(end), "a source gets its own words"
    assert PipelineMuter(folder=Path(tmp_path), ends={}).unbounded(orders.graph()) == ("in",)


# ----------------------------------------------------------------------------------------- sources that cannot be muted


@ps.pipeline("orders")
def queued(p):
    """A source of which nobody knows who notices that it is read."""
    p.read("in", ps.rate.Source(10)).write("out", ps.console.Sink())
    p.read("queue", ScriptedSource("id LONG")).write("ids", ps.console.Sink())


def test_a_source_that_others_may_notice_is_refused_with_its_name_its_place_and_what_to_do(tmp_path):
    with pytest.raises(GraphError) as refused:
        PipelineMuter(folder=tmp_path, ends={}).graph(queued.graph())

    said = str(refused.value)
    assert re.match(r"step 'queue' at \S*test_muting\.py:\d+: a script", said)
    assert "a script of 0 items cannot be read by a shadow run, because it has no replayed()" in said
    assert "Leave it out with --without queue (without=['queue'])" in said


def test_a_source_that_is_left_out_has_its_columns_and_no_rows_and_neither_holds_back_nor_ends(tmp_path):
    muting = PipelineMuter(folder=tmp_path, ends={}, without=frozenset({"queue"}))
    nodes = muting.graph(queued.graph()).nodes
    read = next(node for node in nodes if getattr(node, "uid", "") == "queue")
    was = Position(kind="scripted/1", detail={"next": 3})

    def polls(until, resume=None):
        reader = read.source.open(SourceContext(uid="queue", spark=None, until=until), resume)
        return [reader.poll(now=5, wall=5, limits=ReadLimit()) for _ in range(3)], reader.position()

    assert isinstance(read.source, EmptySource)
    assert read.source.describe() == "left out: a script of 0 items"
    assert polls(Until.CAUGHT_UP, was) == ([NoData(wake_at=5, idle=True), CaughtUp(), CaughtUp()], was)
    assert polls(Until.STOPPED)[0] == [NoData(wake_at=1_000_005, idle=True)] * 3
    assert muting.unbounded(queued.graph()) == ("in",), "it has no end to be told"


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({}, GraphError, "step 'queue' at .*cannot be read by a shadow run"),
        ({"without": ["queu"]}, SettingsError, "without names the source 'queu', .*Did you mean 'queue'"),
        ({"key": {"uot": ["id"]}}, SettingsError, "key names the sink 'uot', .*Did you mean 'out'"),
    ],
)
def test_what_is_refused_is_refused_before_a_session_or_a_folder_is_made(tmp_path, options, error, says):
    with pytest.raises(error, match=says):
        ps.shadow(queued, restore_from="before-v2", state=tmp_path / "state", out=tmp_path / "out", **options)

    assert not list(tmp_path.iterdir())
