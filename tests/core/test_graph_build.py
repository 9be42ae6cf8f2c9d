"""What a pipeline's function makes, and all that is refused without Spark, each with its line."""

from __future__ import annotations

import copy
import inspect
import re
import subprocess
import sys

import pytest
from pyspark.sql import types as t

import penstock as ps
from penstock.graph.fingerprint import fingerprint
from penstock.graph.nodes import BAD_PORT, CallSite, Graph, ParseJson, PortRef, Union, WithWatermark, Write
from penstock.graph.validate import validate
from penstock.handles import Guarantee
from penstock.interfaces.operator import LATE_PORT


class _Sink:
    """As much of a sink as a graph looks at."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def writer(self, context):
        raise NotImplementedError

    def describe(self):
        return "somewhere"


def line() -> int:
    return inspect.stack()[1].lineno


def numbers(p: ps.Pipeline) -> ps.Stream:
    return p.read("numbers", ps.rate.Source(rows_per_second=10))


def refused(make, error=ps.GraphError) -> str:
    """The message of the refusal of a pipeline made by ``make``."""
    with pytest.raises(error) as caught:
        ps.pipeline("demo")(make).graph()
    assert caught.value.where is not None
    assert caught.value.where.startswith("tests/core/test_graph_build.py:")
    return str(caught.value)


def test_a_schema_of_types_becomes_text_that_spark_reads_again():
    inner = t.StructType().add("order-id", t.LongType()).add("a`b", t.StringType(), nullable=False, metadata={"m": 1})
    schema = (
        t.StructType()
        .add("@type", t.DecimalType(10, 2))
        .add("one", inner)
        .add("many", t.ArrayType(inner))
        .add("named", t.MapType(t.StringType(), inner))
        .add("none", t.StructType())
    )
    fields = "STRUCT<`order-id`: bigint, `a``b`: string>"
    expected = (
        f"`@type` decimal(10,2), `one` {fields}, `many` ARRAY<{fields}>, `named` MAP<string, {fields}>, `none` STRUCT<>"
    )

    def parsed(p):
        lines = p.read("lines", ps.files.Source("in/", format="text"))
        lines.parse_json("value", schema).write("json", ps.console.Sink())
        lines.parse_csv("value", schema).write("csv", ps.console.Sink())

    nodes = ps.pipeline("demo")(parsed).graph().nodes
    assert [node.schema for node in nodes if isinstance(node, ParseJson)] == [expected, expected]


def test_each_method_adds_one_frozen_node_with_the_users_line():
    lines = {}

    @ps.pipeline("orders")
    def orders(p):
        raw = p.read("orders", ps.files.Source("in/", format="text"))
        lines["read"] = line() - 1
        good, bad = raw.parse_json("value", "id LONG, at TIMESTAMP", on_error="split")
        clean = good.where("id > 0").with_watermark("at", delay="5 seconds", idle_after="1 minute", max_ahead="1 day")
        totals = clean.group_by("id", ps.tumbling("1 minute")).agg("totals", ps.agg.count().alias("n"))
        totals.write("out", _Sink())
        totals.late.write("late", _Sink())
        bad.write("bad", _Sink())

    graph = orders.graph()
    assert [type(node).__name__ for node in graph.nodes] == [
        *("Read", "ParseJson", "RowWise", "WithWatermark", "Keyed", "Write", "Write", "Write")
    ]
    assert str(graph.nodes[0].origin) == f"tests/core/test_graph_build.py:{lines['read']}"
    watermark = graph.nodes[3]
    assert isinstance(watermark, WithWatermark)
    assert (watermark.delay, watermark.idle_after, watermark.max_ahead) == (5_000_000, 60_000_000, 86_400_000_000)
    assert [node.inputs for node in graph.nodes[5:]] == [
        (PortRef(4),),
        (PortRef(4, LATE_PORT),),
        (PortRef(1, BAD_PORT),),
    ]
    assert orders.name == graph.name == "orders"


def test_a_graph_is_the_same_each_time_it_is_built():
    @ps.pipeline("demo")
    def demo(p):
        numbers(p).where("value > 1").write("out", _Sink())

    assert fingerprint(demo.graph()) == fingerprint(demo.graph())


def test_a_windowed_result_carries_its_watermark_on():
    p = ps.Pipeline("demo")
    timed = numbers(p).with_watermark("at", delay="1 second")
    minutes = timed.group_by("value", ps.tumbling("1 minute")).agg("minutes", ps.agg.count().alias("n"))
    hours = minutes.group_by("value", ps.tumbling("1 hour")).agg("hours", ps.agg.sum("n"))
    assert minutes.time == "window_end"
    assert hours.pipeline.graph().nodes[-1].spec.time == "window_end"
    assert minutes.late.time is None


def test_union_keeps_the_event_time_that_all_have():
    p = ps.Pipeline("demo")
    a, b = numbers(p), p.read("more", ps.rate.Source(rows_per_second=1))
    assert a.union(b).time is None
    timed = [stream.with_watermark("at", delay="1 second") for stream in (a, b)]
    assert timed[0].union(timed[1]).time == "at"
    assert isinstance(p.graph().nodes[-1], Union)


@pytest.mark.mission("S5")
def test_a_pipeline_without_sink_or_source_is_refused():
    assert "has no sink. End with stream.write" in refused(numbers)
    assert "has no source. Begin with p.read" in refused(lambda p: None)


@pytest.mark.mission("S5")
def test_rows_that_go_nowhere_are_refused_but_late_ones_need_no_sink():
    def forgotten(p):
        stream = numbers(p)
        stream.where("value > 1").drop("value")
        stream.write("out", _Sink())

    assert "The rows of drop value go nowhere" in refused(forgotten)

    def bad(p):
        raw = p.read("lines", ps.files.Source("in/", format="text"))
        good, _ = raw.parse_json("value", "id LONG", on_error="split")
        good.write("out", _Sink())

    assert "The bad rows of parse_json value go nowhere" in refused(bad)

    @ps.pipeline("demo")
    def late(p):
        timed = numbers(p).with_watermark("at", delay="1 second")
        timed.group_by(ps.tumbling("1 minute")).agg("n", ps.agg.count()).write("out", _Sink())

    assert late.graph()


@pytest.mark.mission("S5")
def test_a_uid_must_be_there_and_possible_and_unique():
    def twice(p):
        numbers(p).write("numbers", _Sink())

    assert "The uid is taken by read 'numbers' at tests/core/" in refused(twice, ps.DuplicateUid)
    assert "is not a valid name" in refused(lambda p: p.read("Orders!", ps.rate.Source(rows_per_second=1)))
    first = "The first argument is of type {}, but must be the step's uid."
    assert first.format("_Sink") in refused(lambda p: numbers(p).write(_Sink(), _Sink()))
    assert first.format("Aggregate") in refused(
        lambda p: numbers(p).group_by("value", ps.global_window()).agg(ps.agg.count())
    )
    assert "sink its uid first" in refused(lambda p: numbers(p).write(_Sink()))
    with pytest.raises(ps.GraphError, match="is not a valid name"):
        ps.pipeline("My Job")
    with pytest.raises(ps.GraphError, match=r'Write @ps.pipeline\("name"\).'):
        ps.pipeline(numbers)


def test_a_guarantee_above_the_sinks_or_the_sources_best_is_refused():
    asked = refused(lambda p: numbers(p).write("out", _Sink(), guarantee="exactly-once"))
    assert "exactly-once is asked for, but the best that somewhere can do is at-least-once" in asked
    assert "guarantee is 'twice'" in refused(lambda p: numbers(p).write("out", _Sink(), guarantee="twice"))

    class _Lossy:
        guarantee = Guarantee.AT_MOST_ONCE

        def open(self, context, resume):
            raise NotImplementedError

        def describe(self):
            return "a socket"

    weak = refused(lambda p: p.read("lines", _Lossy()).write("out", _Sink(), guarantee="at-least-once"))
    assert "its rows come from a socket (source 'lines'), which can be read at-most-once only" in weak


def test_what_methods_take_is_checked_where_it_is_given():
    cases = {
        "needs a watermark": lambda s: s.group_by("value", ps.tumbling("1 minute")),
        "select() needs at least one column": lambda s: s.select(),
        "where() cannot take 3 (int). Give it SQL text or a Column.": lambda s: s.where(3),
        "transform() cannot take 'f'. Give it a function": lambda s: s.transform("f"),
        "delay '5 parsecs' is not a length": lambda s: s.with_watermark("at", delay="5 parsecs"),
        "on_error is 'ignore'": lambda s: s.parse_json("value", "id LONG", on_error="ignore"),
        "union() was given one stream twice": lambda s: s.union(s),
        "Column 'at' is the event time of the watermark. Change": lambda s: s.with_watermark("at", delay="1 s").drop(
            "at"
        ),
        "write() cannot take 'files'. Give it a sink such as": lambda s: s.write("out", "files"),
        "takes exactly one window": lambda s: s.group_by("value", ps.tumbling("1 s"), ps.tumbling("2 s")),
        "group_by('value') has no window, which says when a result is complete. For one result over all rows write "
        ".group_by('value', ps.global_window()), for": lambda s: s.group_by("value"),
        "write .group_by(ps.global_window())": lambda s: s.group_by(),
        "Use one of ps.agg.": lambda s: (
            s.with_watermark("at", delay="1 s").group_by(ps.tumbling("1 h")).agg("n", "count(1)")
        ),
        "has no name. Write": lambda s: s.with_watermark("at", delay="1 s").group_by("value + 1", ps.tumbling("1 h")),
    }
    for message, use in cases.items():
        assert message in refused(lambda p, use=use: use(numbers(p)))


def test_what_a_refusal_says_to_write_is_taken():
    p = ps.Pipeline("demo")
    stream = numbers(p)

    stream.union(stream.select("*"))
    timed = stream.with_watermark("at", delay="5 seconds")
    timed.group_by("value", ps.global_window()).agg("all", ps.agg.count())
    timed.group_by("value + 1 AS next", ps.tumbling("1 minute")).agg("minutes", ps.agg.sum("value + 1").alias("sum"))
    for pace in (ps.every("1 second"), ps.linger("20 ms"), ps.when_ready):
        p.read(f"paced-{len(p.graph().nodes)}", ps.rate.Source(1), pace=pace)

    assert len(p.graph().nodes) == 9


def test_sql_takes_exactly_one_stream_and_every_part_by_name():
    table = "SELECT 1 AS value"
    cases = {
        "needs exactly one stream, got 0": lambda p: p.sql("SELECT * FROM {c}", c=p.table("c", table)),
        "needs exactly one stream, got 2": lambda p: p.sql("{a} {b}", a=numbers(p), b=numbers(p)),
        "does not have {n}. Write it in the query": lambda p: p.sql("SELECT * FROM m", n=numbers(p)),
        "has {m}, but m is not given. Add m=": lambda p: p.sql("SELECT * FROM {n} JOIN {m}", n=numbers(p)),
        "cannot take c='countries'": lambda p: p.sql("{n} {c}", n=numbers(p), c="countries"),
        "Table 'c' is declared already": lambda p: (p.table("c", table), p.table("c", table)),
        "refresh 'often'": lambda p: p.table("c", table, refresh="often"),
        "on_error is 'ignore', but must be 'fail' or 'keep'": lambda p: p.table("c", table, on_error="ignore"),
    }
    for message, make in cases.items():
        assert message in refused(make)


def test_a_brace_of_a_query_is_written_twice_as_in_sparks_own_sql():
    p = ps.Pipeline("demo")
    p.sql("SELECT {n.value}, {n[at]} FROM {n} WHERE s RLIKE '^[0-9]{{3}}$' AND t <> '{{\"a\": 1}}'", n=numbers(p))
    assert len(p.graph().nodes) == 2


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM {n} WHERE s RLIKE '^[0-9]{3}$'",
        "SELECT * FROM {n} WHERE s = '{\"a\": 1}'",
        "SELECT * FROM {n} WHERE s = '}'",
        "SELECT * FROM {n} WHERE s = '{'",
        "SELECT * FROM {n} WHERE s = '{}'",
        "SELECT * FROM {n!r}",
        "SELECT * FROM {n:>{width}}",
        "SELECT * FROM {n:{}}",
    ],
)
def test_a_brace_of_a_query_that_stands_alone_is_refused(query):
    assert "Write {{ and }} for braces that are part of the SQL" in refused(lambda p: p.sql(query, n=numbers(p)))


def test_what_is_no_source_and_no_query_is_refused():
    class Mine:
        def open(self, context, resume):
            raise NotImplementedError

    cases = {
        "read() cannot take <class 'penstock.connectors.rate.Source'>. Give it a source": ps.rate.Source,
        "read() cannot take 'orders/'. Give it a source": "orders/",
        "test_what_is_no_source_and_no_query_is_refused.<locals>.Mine'>. Give it a source": Mine,
    }
    for message, source in cases.items():
        assert message in refused(lambda p, source=source: p.read("in", source))
    ps.Pipeline("demo").read("in", Mine())
    for query in (5, None, ps.rate.Source(1)):
        told = refused(lambda p, query=query: p.table("t", query))
        assert f"table() cannot take {query!r}. Give it SQL, as in" in told
    assert "sql() cannot take 5. Give it SQL" in refused(lambda p: p.sql(5, n=numbers(p)))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ps.rate.Source(float("inf")), "rows_per_second=inf is not possible. Give a number above 0."),
        (lambda: ps.rate.Source(float("nan")), "rows_per_second=nan is not possible."),
        (lambda: ps.rate.Source(True), "rows_per_second=True is not possible."),
        (lambda: ps.rate.Source("10"), "rows_per_second='10' is not possible."),
        (lambda: ps.rate.Source(1, limit=2.5), "limit=2.5 is not possible. Give a whole number of at least 0."),
        (lambda: ps.generator.Source(id, rows_per_second=float("inf")), "rows_per_second=inf is not possible."),
        (lambda: ps.generator.Source(id, rows=2.5), "rows=2.5 is not possible. Give a whole number of at least 0."),
        (lambda: ps.generator.Source(id, rows=True), "rows=True is not possible."),
        (lambda: ps.generator.Source(id, rows=-1), "rows=-1 is not possible."),
        (lambda: ps.generator.Source(id, per_batch=1.5), "per_batch=1.5 is not possible. Give a whole number"),
    ],
)
def test_a_source_that_counts_refuses_an_impossible_number(make, told):
    with pytest.raises(ps.GraphError, match=re.escape(told)):
        make()


def test_a_source_that_counts_is_described_with_numbers_that_people_read():
    assert ps.generator.Source(id, rows=1).describe() == "generator of 1 row"
    assert ps.generator.Source(id, rows=2_000, rows_per_second=1e6).describe() == (
        "generator of 2,000 rows, 1,000,000 rows/s"
    )
    assert ps.generator.Source(id, rows_per_second=0.25).describe() == "generator of rows, 0.25 rows/s"
    assert ps.rate.Source(1_234_567).describe() == "rate 1,234,567 rows/s"


SPARKS_NAMES = {
    "filter": "where",
    "groupBy": "group_by",
    "withColumn": "with_column",
    "withColumns": "with_columns",
    "withWatermark": "with_watermark",
    "selectExpr": "select",
    "writeStream": "write",
    "unionByName": "union",
    "printSchema": "print_schema",
}


@pytest.mark.parametrize("name", SPARKS_NAMES)
def test_a_method_of_sparks_on_a_stream_is_answered_with_ours(name):
    stream = numbers(ps.Pipeline("demo"))
    ours = SPARKS_NAMES[name]

    with pytest.raises(AttributeError, match=rf"^A Stream has no '{name}'. Write \.{ours}\(.*\)") as caught:
        getattr(stream, name)

    assert callable(getattr(stream, ours))
    assert (caught.value.name, caught.value.obj) == (name, stream)
    assert not hasattr(stream, name)


def test_what_no_stream_can_do_is_answered_with_the_way_to_do_it():
    stream = numbers(ps.Pipeline("demo"))
    for name, told in (
        ("join", r"p\.table\(.*p\.sql\("),
        ("dropDuplicates", r"\.group_by\(.*ps\.agg\.first"),
        ("agg", r"\.group_by\(ps\.global_window\(\)\)\.agg\("),
        ("with_colum", "Did you mean 'with_column'"),
        ("surely_not", "^A Stream has no 'surely_not'. It has add, dead_letter, drop, for_each_batch, group_by"),
    ):
        with pytest.raises(AttributeError, match=told):
            getattr(stream, name)
    grouped = stream.with_watermark("at", delay="1 s").group_by("value", ps.tumbling("1 minute"))
    with pytest.raises(AttributeError, match=r"has no 'count'. Write \.agg\(\"a-uid\", ps\.agg\.count\(\)\)"):
        grouped.count()


def test_a_stream_is_copied_like_any_object_and_private_names_are_none_of_sparks():
    stream = numbers(ps.Pipeline("demo"))

    assert copy.copy(stream).ref == stream.ref
    assert not hasattr(stream, "__len__")
    with pytest.raises(AttributeError, match="'Stream' object has no attribute '_jdf'"):
        _ = stream._jdf


def test_a_name_of_sparks_in_a_pipeline_is_refused_with_the_line():
    told = refused(lambda p: numbers(p).filter("value > 1"), ps.UserFunctionError)
    assert "AttributeError: A Stream has no 'filter'. Write .where(" in told


def test_a_stream_of_another_pipeline_is_refused():
    other = numbers(ps.Pipeline("other"))
    assert "of pipeline 'other' is used in pipeline 'demo'" in refused(lambda p: numbers(p).union(other))
    assert "of pipeline 'other'" in refused(lambda p: p.sql("SELECT * FROM {o}", o=other))


def test_an_error_in_the_users_function_has_its_line_and_the_original():
    def broken(p):
        return 1 / 0

    with pytest.raises(ps.UserFunctionError, match="raised ZeroDivisionError: division by zero") as caught:
        ps.pipeline("demo")(broken).graph()
    assert caught.value.where == f"tests/core/test_graph_build.py:{line() - 4} in broken"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_graph_not_made_by_a_pipeline_is_checked_too():
    here = CallSite("x.py", 1)
    node = Write(id=0, origin=here, inputs=(PortRef(3),), uid="out", sink=_Sink())
    with pytest.raises(ps.PenstockError, match="out of order"):
        validate(Graph(name="demo", origin=here, nodes=(node,)))


def test_building_a_pipeline_of_strings_loads_neither_spark_nor_the_runtime():
    code = """
import sys, penstock as ps
import penstock.graph.nodes, penstock.compiler.tasks
p = ps.Pipeline("demo")
s = p.read("n", ps.rate.Source(rows_per_second=1)).where("value > 1").with_watermark("at", delay="1 s")
s.group_by("value", ps.tumbling("1 minute")).agg("t", ps.agg.count())
print(sorted({name.partition(".")[0] for name in sys.modules} & {"pyspark", "pandas", "pyarrow"}))
print("penstock.runtime.supervisor" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "False"]
