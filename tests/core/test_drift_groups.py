"""Whose event times meet, and so wait for each other, by the graph alone."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.api.stream import Stream
from penstock.errors import GraphError
from penstock.graph.nodes import Graph, WithWatermark
from penstock.graph.queries import alignment_groups, sources_naming_partitions, upstream_sources
from penstock.graph.validate import validate
from penstock.testing.sources import ScriptedSource


class Sketch:
    """A pipeline in few words."""

    def __init__(self) -> None:
        self.p = ps.Pipeline("sketch")

    def read(self, uid: str, partition_column: str | None = None) -> Stream:
        return self.p.read(uid, ScriptedSource("k INT, at TIMESTAMP", partition_column=partition_column))

    def timed(self, stream: Stream | str, drift: str | None = "1 minute") -> Stream:
        stream = self.read(stream) if isinstance(stream, str) else stream
        return stream.with_watermark("at", delay="0 seconds", max_drift=drift)

    def counted(self, uid: str, stream: Stream) -> Stream:
        return stream.group_by("k", ps.tumbling("1 minute")).agg(uid, ps.agg.count().alias("n"))

    @property
    def graph(self) -> Graph:
        return self.p.graph()

    @property
    def groups(self) -> list[list[str]]:
        return sorted(
            sorted("+".join(sorted(each.sources)) for each in group) for group in alignment_groups(self.graph)
        )


def test_streams_that_meet_are_a_group_also_where_one_sets_nothing() -> None:
    sketch = Sketch()
    sketch.counted("n", sketch.timed("a").union(sketch.timed("b", None)))
    assert sketch.groups == [["a", "b"]]


def test_streams_that_never_meet_do_not_wait_for_each_other() -> None:
    sketch = Sketch()
    for uid in "ab":
        sketch.counted(f"n-{uid}", sketch.timed(uid))
    assert sketch.groups == [["a"], ["b"]]


def test_sources_united_before_the_watermark_are_one_stream() -> None:
    sketch = Sketch()
    sketch.counted("n", sketch.timed(sketch.read("a").where("k > 0").union(sketch.read("b"))))
    assert sketch.groups == [["a+b"]]


def test_who_meets_a_third_is_in_its_group() -> None:
    sketch = Sketch()
    a, b, c, d = (sketch.timed(uid, drift) for uid, drift in zip("abcd", (None, "1 minute", None, None), strict=True))
    sketch.counted("ab", a.union(b))
    sketch.counted("cd", c.union(d))
    sketch.counted("bc", b.union(c))
    assert sketch.groups == [["a", "b", "c", "d"]]


def test_where_nobody_sets_a_drift_there_is_no_group() -> None:
    sketch = Sketch()
    sketch.counted("n", sketch.timed("a", None).union(sketch.timed("b", None)))
    assert sketch.groups == []


def test_behind_a_keyed_step_those_before_it_meet() -> None:
    sketch = Sketch()
    results = sketch.counted("n", sketch.timed("a", None)).select("k", "window_end AS at")
    sketch.counted("m", sketch.timed(results, None).union(sketch.timed("b")))
    assert sketch.groups == [["a", "b"]]


def test_a_drift_that_nobody_could_keep_is_refused() -> None:
    sketch = Sketch()
    results = sketch.counted("n", sketch.timed("a")).select("k", "window_end AS at").union(sketch.read("b"))
    sketch.timed(results).write("out", ps.memory.Sink())
    with pytest.raises(GraphError, match=r"max_drift of with_watermark at, .*: Only sources can pause"):
        validate(sketch.graph)


@pytest.mark.parametrize("drift", ["soon", "-1 second"])
def test_a_drift_is_a_duration(drift: str) -> None:
    with pytest.raises(GraphError, match="max_drift"):
        Sketch().timed("a", drift)


def test_sources_that_name_partitions_are_expected_to_where_there_are_several() -> None:
    sketch = Sketch()
    one = sketch.timed(sketch.read("a", "k"))
    many = sketch.timed(sketch.read("b", "k").union(sketch.read("c"), sketch.read("d", "k")))
    nodes = [sketch.graph.node(each.ref.node) for each in (one, many)]
    names = [sorted(sources_naming_partitions(sketch.graph, node)) for node in nodes if isinstance(node, WithWatermark)]
    assert names == [[], ["b", "d"]]
    counts = sketch.counted("n", one.union(many))
    assert upstream_sources(sketch.graph, counts.ref) == {*"abcd"}
