"""When results are sent, and which streams may go where; without Spark."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.elements import RefCount
from penstock.errors import GraphError
from penstock.graph.nodes import Keyed
from penstock.operators.windows.emit_strategy import ON_WINDOW_CLOSE, EmitStrategy, emit_strategy
from penstock.state.layers import Layer
from penstock.state.stack import Stack


def test_what_agg_is_told():
    assert emit_strategy("final", None, None) == ON_WINDOW_CLOSE
    assert emit_strategy("updates", None, None) == EmitStrategy(updates=True)
    assert emit_strategy("updates", "2 seconds", None) == EmitStrategy(updates=True, every=2_000_000)
    assert emit_strategy("final", None, "2 seconds") == EmitStrategy(early=True, every=2_000_000)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("all", None, None), 'Write "final" .* or "updates"'),
        (("updates", None, "1 second"), "Leave early out"),
        (("final", "1 second", None), "emit_every with"),
        (("updates", "1 ms", None), "too short"),
    ],
)
def test_refuses_what_means_nothing(given, told):
    with pytest.raises(GraphError, match=told):
        emit_strategy(*given)


class Strict:
    """A sink that knows nothing of changes."""

    guarantee: Any = ps.memory.Sink().guarantee

    def writer(self) -> None: ...

    def describe(self) -> str:
        return "a strict sink"


def graph(make):
    @ps.pipeline("demo")
    def pipeline(p: ps.Pipeline) -> None:
        make(p.read("in", ps.rate.Source(rows_per_second=1)).with_watermark("at", delay="0 seconds"))

    return pipeline.graph()


def minutes(stream, window=None, **more):
    return stream.group_by("value", window or ps.tumbling("1 minute")).agg("minutes", ps.agg.count(), **more)


def test_changes_are_written_where_they_are_understood_and_nowhere_else():
    def written(sink):
        return lambda stream: minutes(stream, emit="updates").where("count > 1").write("out", sink)

    graph(written(ps.memory.Sink()))
    graph(written(ps.files.Sink("out/", format="json")))
    graph(written(ps.console.Sink()))
    with pytest.raises(GraphError, match="a strict sink does not understand the changes of 'minutes'") as error:
        graph(written(Strict()))
    assert "test_window_emission.py:" in str(error.value.where)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"emit": "updates"}, "would add up the changes of 'minutes'"),
        ({"early": "1 second"}, "'minutes' .* may send a window more than once"),
        ({"window": ps.tumbling("1 minute", allowed_lateness="1 second")}, "may send a window more than once"),
    ],
)
def test_what_would_be_counted_twice_is_not_windowed_again(more, told):
    def again(stream):
        again = minutes(stream, **more).group_by(ps.tumbling("1 hour"))
        again.agg("hours", ps.agg.sum("count")).write("out", ps.memory.Sink())

    with pytest.raises(GraphError, match=told) as error:
        graph(again)
    assert error.value.uid == "hours"


def test_no_maker_of_a_union_hides_another():
    def both(stream):
        patient = minutes(stream, ps.tumbling("1 minute", allowed_lateness="1 second"))
        live = stream.group_by("value", ps.tumbling("1 minute")).agg("live", ps.agg.count(), emit="updates")
        patient.select("value", "count").union(live.select("value", "count")).write("out", Strict())

    with pytest.raises(GraphError, match="does not understand the changes of 'live'"):
        graph(both)


def test_approximations_that_draw_lots_send_no_changes():
    def drawn(stream):
        by_value = stream.group_by("value", ps.tumbling("1 minute"))
        by_value.agg("minutes", ps.agg.approx_percentile("value", 0.5), emit="updates")

    with pytest.raises(GraphError, match="approx_percentile takes a random sample") as error:
        graph(drawn)
    assert error.value.uid == "minutes"


def test_late_rows_of_such_steps_are_plain_rows():
    def late(stream):
        first = minutes(stream, emit="updates")
        first.write("out", ps.memory.Sink())
        timed = first.late.with_watermark("at", delay="0 seconds")
        timed.group_by(ps.tumbling("1 hour")).agg("late", ps.agg.count()).write("late-out", ps.memory.Sink())

    graph(late)


def test_results_belong_to_the_last_moment_of_their_window():
    def twice(stream):
        first = minutes(stream)
        first.where("count > 1").group_by(ps.tumbling("1 hour")).agg("a", ps.agg.count()).write("1", ps.memory.Sink())
        renamed = first.with_watermark("window_end", delay="0 seconds")
        renamed.group_by(ps.tumbling("1 hour")).agg("b", ps.agg.count()).write("2", ps.memory.Sink())

    specs = {node.uid: node.spec for node in graph(twice).nodes if isinstance(node, Keyed)}
    assert {uid: spec.shift for uid, spec in specs.items()} == {"minutes": 0, "a": -1, "b": 0}


def test_a_union_of_results_and_other_rows_is_not_windowed_without_a_time_of_its_own():
    def mixed(stream, *, again):
        first = minutes(stream)
        others = stream.select("value", "at AS window_start", "at AS window_end", "1L AS count")
        rows = first.union(others.with_watermark("window_end", delay="0 seconds"))
        rows = rows.with_watermark("window_end", delay="0 seconds") if again else rows
        rows.group_by(ps.tumbling("1 hour")).agg("hours", ps.agg.count()).write("out", ps.memory.Sink())

    graph(lambda stream: mixed(stream, again=True))
    with pytest.raises(GraphError, match="Give both one event time with with_column, and with_watermark") as error:
        graph(lambda stream: mixed(stream, again=False))
    assert error.value.uid == "hours"


def test_select_does_not_put_another_time_under_the_name_of_the_event_time():
    def selected(*columns):
        return lambda stream: stream.select(*columns).write("out", ps.memory.Sink())

    graph(selected("value", "at"))
    graph(selected("value AS at2", "at AS `at`"))
    for column in ("now() AS at", "value as `at`"):
        with pytest.raises(GraphError, match="'at' is the event time of the watermark"):
            graph(selected("value", column))


class Column:
    """As Spark's: any name is that of a field."""

    def __getattr__(self, name):
        return Column()

    def __str__(self):
        return "Column<'value'>"


def test_a_column_as_a_key_is_no_window(monkeypatch):
    monkeypatch.setattr(Column, "__module__", "pyspark.sql")

    def grouped(stream):
        stream.group_by(Column(), ps.tumbling("1 minute")).agg("a", ps.agg.count()).write("out", ps.memory.Sink())

    (spec,) = [node.spec for node in graph(grouped).nodes if isinstance(node, Keyed)]
    assert [name for name, _ in spec.keys] == ["value"]


def layer(name: str, *, emission_number: int, end: int = 10) -> Layer:
    frame: Any = None
    return Layer(
        name=name,
        level=0,
        epoch=1,
        rows=1,
        first_end=end,
        last_end=end,
        frame=frame,
        lease=RefCount(lambda: None),
        emission_number=emission_number,
    )


def test_an_emission_tells_old_from_new_and_makes_all_old():
    stack = Stack()
    stack.add(layer("a", emission_number=stack.emission_number))
    assert stack.has_unsent(0, 20)
    assert not stack.has_unsent(11, 20)
    first = stack.begin_emission(0, 20)
    stack.add(layer("b", emission_number=stack.emission_number))
    stack.add(layer("far", emission_number=stack.emission_number, end=99))
    second = stack.begin_emission(0, 20)
    assert [[x.name for x in told.old] + ["|"] + [x.name for x in told.new] for told in (first, second)] == [
        ["|", "a"],
        ["a", "|", "b"],
    ]
    assert not stack.has_unsent(0, 100)


def test_what_is_new_is_not_merged_with_what_was_told():
    stack = Stack()
    stack.add(layer("a", emission_number=stack.emission_number))
    stack.add(layer("b", emission_number=stack.emission_number))
    stack.begin_emission(0, 20).lease.release()
    stack.add(layer("c", emission_number=stack.emission_number))
    stack.begin_snapshot().lease.release()
    stack.add(layer("d", emission_number=stack.emission_number))
    groups = {sized.name: sized.group for sized in stack.sized()}
    assert groups["a"] == groups["b"] != groups["c"]


def test_windows_of_processing_time_need_no_watermark_and_their_results_have_none():
    source = ps.Pipeline("demo").read("in", ps.rate.Source(rows_per_second=1))
    counted = source.group_by(ps.tumbling("1 minute", time="processing")).agg("minutes", ps.agg.count())
    with pytest.raises(GraphError, match="needs a watermark"):
        counted.group_by(ps.tumbling("1 hour"))
    for kind in (ps.tumbling, ps.session):
        with pytest.raises(GraphError, match="makes no row late, so allowed_lateness has no effect"):
            kind("1 minute", time="processing", allowed_lateness="1 second")
        with pytest.raises(GraphError, match=r"time='wall' is not possible\. Write"):
            kind("1 minute", time="wall")
