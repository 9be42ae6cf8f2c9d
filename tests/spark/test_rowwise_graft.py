"""One plan serves every batch: equal to running the functions again, without jobs, compilations or calls a column."""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import penstock as ps
from penstock.clock import MonotonicTime, WallTime
from penstock.compiler.analysis import analyze
from penstock.compiler.chain import StepChain
from penstock.compiler.steps import StepCompiler
from penstock.compiler.tables import StaticTables
from penstock.elements import Batch, ObservedMetrics
from penstock.errors import InternalError, SchemaMismatch, SourceUnavailable
from penstock.graph.nodes import BAD_PORT, ParseJson, PortSelect, Read
from penstock.handles import Guarantee
from penstock.spark.plans import Figure, PlanEditor, PlanObserver, analyzed_plan, observe_sql
from window_harness import counted, persistent

pytestmark = pytest.mark.spark

SCHEMA = "id LONG, user STRING, amount DOUBLE, at TIMESTAMP"
COUNTRIES = "SELECT * FROM VALUES ('u1', 'DE'), ('u2', 'FR'), ('u2', 'BE') AS t(user, country)"
NOW = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z"""


class _Lines:
    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, ddl=SCHEMA):
        self.ddl = ddl

    def schema(self, spark):
        from pyspark.sql.types import StructType

        return StructType.fromDDL(self.ddl)

    def open(self, context, resume):
        raise NotImplementedError

    def describe(self):
        return "lines"


@dataclass
class _Clock:
    at: int = NOW

    def now(self):
        return MonotonicTime(self.at)

    def wall(self):
        return WallTime(self.at)


def frame_of(spark, ids=(1, 2, 3), at=NOW):
    ids = list(ids)
    table = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "user": [f"u{n % 4}" for n in ids],
            "amount": [n / 2 for n in ids],
            "at": pa.array([at + n * 1_000_000 for n in ids], pa.timestamp("us", tz="UTC")),
        }
    )
    return spark.createDataFrame(table)


def batch_of(frame):
    return Batch(frame=frame, sequence=1)


def compiled(spark, describe, clock=None, ddl=SCHEMA):
    """The segment of all stateless steps that ``describe(stream, pipeline, countries)`` makes, and its graph."""
    p = ps.Pipeline("demo")
    describe(p.read("lines", _Lines(ddl)), p, p.table("countries", COUNTRIES, refresh="1 minute"))
    graph = p.graph()
    analysis = analyze(graph, spark, clock=clock or _Clock())
    return analysis.chain(graph.nodes[0], graph.nodes[1:]), graph


def rows(frame):
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def noop(batch):
    batch.frame.write.format("noop").mode("append").save()
    batch.settle()
    return {name: measure.value for name, measure in batch.metrics.items()}


STEPS = {
    "ours": lambda s, p, c: s.where("amount > 1").select("id", "amount * 2 AS twice", F.col("user")).drop("user"),
    "overwritten column": lambda s, p, c: s.with_column("id", "id + 1").with_column("id", "id * 2").where("id > 5"),
    "self reference": lambda s, p, c: s.transform(lambda f: f.withColumn("amount", f["amount"] + f.amount)),
    "udf": lambda s, p, c: s.transform(lambda f: f.withColumn("x", F.udf(lambda x: x + 1, "long")("id"))),
    "explode": lambda s, p, c: s.select("id", "explode(sequence(1, id)) AS n").where("n % 2 = 1"),
    "join": lambda s, p, c: p.sql("SELECT o.*, c.country FROM {o} o LEFT JOIN {c} c USING (user)", o=s, c=c),
    "join twice": lambda s, p, c: p.sql(
        "SELECT o.id, c.country, d.country AS other FROM {o} o JOIN {c} c USING (user) JOIN {c} d USING (user)",
        o=s,
        c=c,
    ),
    "table as argument": lambda s, p, c: s.transform(lambda f, other: f.join(other, "user", "left_anti"), other=c),
    "subquery": lambda s, p, c: p.sql("SELECT *, (SELECT count(*) FROM {c}) AS n FROM {o}", o=s, c=c),
    "correlated": lambda s, p, c: p.sql(
        "SELECT * FROM {o} o WHERE EXISTS (SELECT 1 FROM {c} c WHERE c.user = o.user)", o=s, c=c
    ),
    "with clause": lambda s, p, c: p.sql(
        "WITH w AS (SELECT * FROM {o} WHERE id > 1) SELECT w.id, country FROM w JOIN {c} USING (user)", o=s, c=c
    ),
    "fifteen": lambda s, p, c: list(
        itertools.accumulate(range(15), lambda t, n: t.with_column(f"c{n}", f"amount * {n}"), initial=s)
    )[-1],
}


@pytest.mark.parametrize("name", STEPS)
def test_grafted_batches_equal_running_the_functions_again(spark, name):
    segment, graph = compiled(spark, STEPS[name])
    tables = {table.name: spark.sql(table.query) for table in graph.tables}
    for ids in ([1, 2, 3, 4, 5], [7], [2, 2, 6]):
        expected = frame_of(spark, ids)
        for node in graph.nodes[1:]:
            expected = node.build(expected, *(tables[table.name] for table in node.tables))
        got = segment(batch_of(frame_of(spark, ids))).frame
        assert rows(got) == rows(expected)
        assert got.schema.simpleString() == expected.schema.simpleString() == segment.schema.simpleString()


def test_grafted_batches_can_be_joined_unioned_and_kept(spark):
    segment, _ = compiled(spark, STEPS["with clause"])
    first, second = (segment(batch_of(frame_of(spark, ids))).frame for ids in ([1, 2], [5, 6]))
    assert rows(first.union(second)) == sorted(rows(first) + rows(second), key=repr)
    assert first.join(second, "id", "full").count() == first.count() + second.count()
    kept = first.persist()
    assert rows(kept) == rows(first)
    kept.unpersist()


def test_functions_run_once_however_many_batches_and_segments(spark):
    calls = []

    def counts(frame):
        calls.append(1)
        return frame.withColumn("n", F.lit(len(calls)))

    p = ps.Pipeline("demo")
    p.read("lines", _Lines()).transform(counts)
    graph = p.graph()
    analysis = analyze(graph, spark)
    segments = [analysis.chain(graph.nodes[0], graph.nodes[1:]) for _ in range(2)]
    for segment in segments:
        for _ in range(3):
            assert {row.n for row in segment(batch_of(frame_of(spark))).frame.collect()} == {1}
    assert len(calls) == 1


def test_random_numbers_are_drawn_anew_for_each_batch_and_again_the_same_for_one(spark):
    segment, _ = compiled(
        spark, lambda s, p, c: s.where("id > 0").select("id", "rand() AS r", "uuid() AS u").drop("id")
    )
    one, two = (segment(batch_of(frame_of(spark))) for _ in range(2))
    assert rows(one.frame) != rows(two.frame)
    assert rows(one.frame) == rows(one.frame)


def test_a_table_is_read_again_when_due_and_freed_with_its_last_batch(spark):
    before = persistent(spark)
    spark.createDataFrame([("u1", "old")], "user string, country string").createOrReplaceTempView("lake")
    clock = _Clock()

    def describe(s, p, c):
        table = p.table("t", "SELECT * FROM lake", refresh="1 minute")
        return p.sql("SELECT id, country FROM {o} JOIN {t} USING (user)", o=s, t=table)

    segment, _ = compiled(spark, describe, clock)
    first = segment(batch_of(frame_of(spark)))
    assert rows(first.frame) == [(1, "old")]
    assert "BroadcastHashJoin" in first.frame._jdf.queryExecution().executedPlan().toString(), "it is known to be small"
    spark.createDataFrame([("u1", "new")], "user string, country string").createOrReplaceTempView("lake")
    clock.at += 59_000_000
    still = segment(batch_of(frame_of(spark)))
    assert rows(still.frame) == [(1, "old")]
    still.release()
    clock.at += 1_000_000
    second = segment(batch_of(frame_of(spark)))
    assert rows(second.frame) == [(1, "new")]
    assert rows(first.frame) == [(1, "old")]
    kept = persistent(spark) - before
    first.release()
    assert len(kept - persistent(spark)) == 1


def rewritten(spark, folder, **options):
    """A segment that joins a table of files, its clock, and what rewrites the table."""
    clock = _Clock()

    def write(country):
        frame = spark.createDataFrame([("u1", country)], "user string, country string")
        frame.coalesce(1).write.mode("overwrite").parquet(str(folder))

    def describe(s, p, c):
        table = p.table("lake", f"SELECT * FROM parquet.`{folder}`", refresh="1 minute", **options)
        return p.sql("SELECT id, country FROM {o} JOIN {t} USING (user)", o=s, t=table)

    write("old")
    segment, _ = compiled(spark, describe, clock)
    return segment, clock, write


def test_a_table_that_is_rewritten_just_now_is_a_failure_from_outside_that_names_it(spark, tmp_path):
    segment, clock, write = rewritten(spark, tmp_path / "lake")
    clock.at += 60_000_000
    shutil.rmtree(tmp_path / "lake")
    for _ in range(2):
        with pytest.raises(
            SourceUnavailable, match=r"Table 'lake' cannot be read again: Path does not exist"
        ) as caught:
            segment(batch_of(frame_of(spark)))
        assert caught.value.retry
        assert "test_rowwise_graft.py:" in str(caught.value)
    write("new")
    assert rows(segment(batch_of(frame_of(spark))).frame) == [(1, "new")]


def test_a_table_may_keep_what_was_read_last_while_it_is_rewritten(spark, tmp_path, caplog):
    segment, clock, write = rewritten(spark, tmp_path / "lake", on_error="keep")
    shutil.rmtree(tmp_path / "lake")
    for _ in range(2):
        clock.at += 60_000_000
        batch = segment(batch_of(frame_of(spark)))
        assert rows(batch.frame) == [(1, "old")]
        batch.release()
    assert [record.levelname for record in caplog.records if "Table 'lake'" in record.message] == ["WARNING"] * 2
    write("new")
    clock.at += 59_000_000
    assert rows(segment(batch_of(frame_of(spark))).frame) == [(1, "old")], "the last try was 59 seconds ago"
    clock.at += 1_000_000
    assert rows(segment(batch_of(frame_of(spark))).frame) == [(1, "new")]


@pytest.fixture
def countries(spark, tmp_path):
    """A folder of a catalog table, ``countries_of_files``, and of a temporary view over its files, ``viewed``."""
    folder = tmp_path / "countries"
    frame = spark.createDataFrame([("u1", "old")], "user string, country string").coalesce(1)
    frame.write.option("path", str(folder)).saveAsTable("countries_of_files")
    spark.read.parquet(str(folder)).createOrReplaceTempView("viewed")
    spark.sql("SELECT * FROM countries_of_files").where("user IN (SELECT user FROM viewed)").createOrReplaceTempView(
        "filtered"
    )
    yield folder
    for view in ("viewed", "filtered"):
        spark.catalog.dropTempView(view)
    spark.sql("DROP TABLE countries_of_files")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM countries_of_files",
        "SELECT * FROM viewed",
        "SELECT * FROM filtered",
        "SELECT * FROM VALUES ('u1', 'old'), ('u2', 'new') AS t(user, country) "
        "WHERE user IN (SELECT user FROM countries_of_files) AND user IN (SELECT user FROM viewed)",
    ],
    ids=["table", "view", "view of a subquery", "subquery"],
)
def test_a_table_has_the_files_that_other_processes_wrote_before_it_was_read(spark, countries, query):
    clock = _Clock()

    def describe(s, p, c):
        table = p.table("t", query, refresh="1 minute")
        return p.sql("SELECT id, country FROM {o} JOIN {t} USING (user)", o=s, t=table)

    segment, _ = compiled(spark, describe, clock)
    assert rows(segment(batch_of(frame_of(spark))).frame) == [(1, "old")]
    pq.write_table(pa.table({"user": ["u2"], "country": ["new"]}), countries / "more.parquet")
    clock.at += 60_000_000
    assert rows(segment(batch_of(frame_of(spark))).frame) == [(1, "old"), (2, "new")]
    for file in countries.glob("part-*"):  # as after an overwrite
        file.unlink()
    clock.at += 60_000_000
    assert rows(segment(batch_of(frame_of(spark))).frame) == [(2, "new")]


def recreated(spark, **options):
    """A segment that uses a table's columns by position, its clock, and what makes the table again."""
    clock = _Clock()

    def make(query):
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW lake AS {query}")

    def describe(s, p, c):
        table = p.table("lake", "SELECT * FROM lake", refresh="1 minute", **options)
        joined = p.sql("SELECT o.id, t.* FROM {o} o JOIN {t} t ON o.user = t.user", o=s, t=table)
        return joined.where("country = 'DE'")

    make("SELECT 'u1' AS user, 'DE' AS country, 'Bonn' AS city")
    segment, _ = compiled(spark, describe, clock)
    return segment, clock, make


def test_a_table_made_again_with_its_columns_elsewhere_is_read_by_their_names(spark):
    segment, clock, make = recreated(spark)
    for again in (
        "SELECT 'u1' AS user, 'Bonn' AS city, 'DE' AS country",
        "SELECT 1 AS more, 'Bonn' AS CITY, 'DE' AS Country, 'u1' AS user",
        "SELECT CAST(NULL AS string) AS user, 'DE' AS country, 'Bonn' AS city UNION ALL SELECT 'u1', 'DE', 'Bonn'",
    ):
        make(again)
        clock.at += 60_000_000
        frame = segment(batch_of(frame_of(spark))).frame
        assert frame.columns == ["id", "user", "country", "city"]
        assert rows(frame) == [(1, "u1", "DE", "Bonn")]


@pytest.mark.parametrize(
    ("again", "message"),
    [
        (
            "SELECT 'u1' AS user, 'Bonn' AS city",
            r"Table 'lake' cannot be read again: Column 'country' does not exist\. Columns: user, city\. It was string "
            r"when the table was first read\. Let the query of the table give it with that type",
        ),
        (
            "SELECT 'u1' AS user, 'DE' AS country, 53 AS city",
            r"Table 'lake' cannot be read again: Column 'city' was string when the table was first read, and is int",
        ),
    ],
    ids=["missing", "type"],
)
def test_a_table_made_again_without_a_column_fails_and_names_it(spark, caplog, again, message):
    segment, clock, make = recreated(spark)
    keeping, its_clock, _ = recreated(spark, on_error="keep")
    make(again)
    clock.at += 60_000_000
    with pytest.raises(SchemaMismatch, match=message) as caught:
        segment(batch_of(frame_of(spark)))
    assert not caught.value.retry
    assert "test_rowwise_graft.py:" in str(caught.value)
    its_clock.at += 60_000_000
    assert rows(keeping(batch_of(frame_of(spark))).frame) == [(1, "u1", "DE", "Bonn")]
    assert len([record for record in caplog.records if "Table 'lake' cannot be read again" in record.message]) == 1


def test_files_of_a_table_that_go_after_it_was_read_fail_no_batch(spark, tmp_path):
    segment = rewritten(spark, tmp_path / "lake")[0]
    shutil.rmtree(tmp_path / "lake")
    assert rows(segment(batch_of(frame_of(spark))).frame) == [(1, "old")]


def test_tables_are_read_again_in_the_next_attempt_since_their_blocks_may_be_lost(spark, tmp_path):
    write = rewritten(spark, tmp_path / "lake")[2]
    p = ps.Pipeline("demo")
    table = p.table("t", f"SELECT * FROM parquet.`{tmp_path / 'lake'}`")
    p.sql("SELECT id, country FROM {o} JOIN {t} USING (user)", o=p.read("lines", _Lines()), t=table)
    graph = p.graph()
    analysis = analyze(graph, spark, clock=_Clock())
    write("new")
    for expected in ("old", "new"):
        segment = analysis.chain(graph.nodes[0], graph.nodes[1:])
        assert rows(segment(batch_of(frame_of(spark))).frame) == [(1, expected)]
        analysis.read_tables_again()
    analysis.close()


def test_measures_tell_rows_bad_records_and_event_time_by_the_way(spark):
    def describe(s, p, c):
        parsed = s.parse_json("value", "id LONG, at TIMESTAMP", on_error="null")
        return parsed.where("id IS NOT NULL").with_watermark("at", delay="1 s", max_ahead="1 hour")

    segment, _ = compiled(spark, describe, ddl="value STRING")
    times = ["2025-12-31T23:00:00Z", "2026-01-01T00:59:00Z", "2026-01-01T02:00:00Z"]
    lines = [f'{{"id": 1, "at": "{at}"}}' for at in times] + ['{"id": 1}', "x", '{"id": "y"}']
    batch = segment(batch_of(spark.createDataFrame([(line,) for line in lines], "value string")))
    assert all(measure.value is None for measure in batch.metrics.values())
    told = noop(batch)
    seen = int(dt.datetime.fromisoformat("2026-01-01T00:59:00+00:00").timestamp()) * 1_000_000
    assert told == {
        "rows": {"rows": 6},
        "bad:1": {"bad": 2},
        "time:3": {"max": seen, "ahead": 1, "missing": 1},
    }


def test_rows_are_not_counted_again_where_the_reader_knows_them(spark):
    segment, _ = compiled(spark, STEPS["ours"])
    known = ObservedMetrics.known({"rows": 3, "bytes": 10})
    batch = segment(Batch(frame=frame_of(spark), sequence=1, rows=3, metrics={"rows": known}))
    assert batch.metrics["rows"] is known
    assert "CollectMetrics" not in analyzed_plan(batch.frame).toString()
    assert batch.rows is None


def test_a_split_is_decoded_once_and_its_bad_branch_waits_for_the_count(spark):
    p = ps.Pipeline("demo")
    raw = p.read("lines", _Lines("value STRING"))
    raw.parse_json("value", "id LONG", on_error="split")
    graph = p.graph()
    node = graph.nodes[1]
    assert isinstance(node, ParseJson)
    analysis = analyze(graph, spark)
    root = analysis.chain(graph.nodes[0], [node])
    good = analysis.chain(graph.nodes[0], [PortSelect(node, "out")], is_root=False)
    bad = analysis.chain(graph.nodes[0], [PortSelect(node, BAD_PORT)], is_root=False)
    wide = root(batch_of(spark.createDataFrame([('{"id": 1}',), ("x",)], "value string")))
    ports = good(wide), bad(wide)
    assert rows(ports[0].frame) == [(1,)]
    ports[0].settle()
    assert ports[1].metrics["bad:1"].value == {"bad": 1}
    assert ports[1].only_if == ("bad:1", "bad")
    assert rows(ports[1].frame)[0][0] == "x"
    assert ports[0].only_if is None


def test_a_bad_record_fails_the_job_where_that_was_asked_for(spark):
    segment, _ = compiled(spark, lambda s, p, c: s.parse_json("value", "id LONG"), ddl="value STRING")
    batch = segment(batch_of(spark.createDataFrame([("x",)], "value string")))
    with pytest.raises(Exception, match=r"penstock\.decode"):
        batch.frame.select(F.lit(1)).collect()


def test_batches_cost_one_job_each_and_compile_nothing_once_warm(spark):
    def describe(s, p, c):
        joined = p.sql("SELECT o.*, c.country FROM {o} o LEFT JOIN {c} c USING (user)", o=s, c=c)
        return joined.where("amount > 0").with_watermark("at", delay="1 s", max_ahead="1 hour")

    clock = _Clock()
    segment, _ = compiled(spark, describe, clock)
    for _ in range(2):
        noop(segment(batch_of(frame_of(spark))))
    with counted(spark) as built:
        batches = []
        for n in range(3):
            clock.at += 1_000_000
            batches.append(segment(batch_of(frame_of(spark, range(n, n + 5), at=NOW + n))))
    assert (built.jobs, built.compilations) == (0, 0)
    with counted(spark) as run:
        told = [noop(batch) for batch in batches]
    assert run.compilations == 0
    assert run.jobs <= 2 * len(batches)  # one is Spark's broadcast of the joined table
    assert all(figures["rows"] == {"rows": 5} for figures in told)


def test_a_figure_that_no_job_brings_is_lost_not_waited_for(spark):
    editor = PlanEditor(spark)
    frame = spark.range(3)
    node, measure = PlanObserver(editor).observe(
        analyzed_plan(frame), observe_sql(frame, "n", {"n": Figure(("count(1)",))})
    )
    editor.frame(node).where("false").write.format("noop").mode("append").save()
    measure.settle()
    assert measure.value is None


def test_a_batch_of_other_columns_is_an_internal_error(spark):
    segment, _ = compiled(spark, STEPS["ours"])
    with pytest.raises(InternalError, match="A batch has the columns struct<other:bigint>"):
        segment(batch_of(spark.range(3).toDF("other")))


def test_steps_can_be_compiled_without_an_analysis(spark):
    p = ps.Pipeline("demo")
    p.read("lines", _Lines()).where("id > 1")
    graph = p.graph()
    assert isinstance(graph.nodes[0], Read)
    pieces = StepCompiler(spark, StaticTables(spark))
    segment = StepChain(pieces, graph.nodes[1:], _Lines().schema(spark))
    assert [row.id for row in segment(batch_of(frame_of(spark))).frame.collect()] == [2, 3]
