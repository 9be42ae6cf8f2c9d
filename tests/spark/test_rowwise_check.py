"""What a user's step may do: every refused kind is named with its remedy and line, every allowed one passes."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from pyspark.sql import Observation, Window
from pyspark.sql import functions as F

import penstock as ps
from penstock.compiler.analysis import analyze
from penstock.handles import Guarantee

pytestmark = pytest.mark.spark

SCHEMA = "id LONG, user STRING, amount DOUBLE, tags ARRAY<STRING>, at TIMESTAMP"
COUNTRIES = "SELECT * FROM VALUES ('u1', 'DE'), ('u2', 'FR') AS t(user, country)"


class _Lines:
    """A source of these columns that is never opened."""

    guarantee = Guarantee.EXACTLY_ONCE

    def schema(self, spark):
        from pyspark.sql.types import StructType

        return StructType.fromDDL(SCHEMA)

    def open(self, context, resume):
        raise NotImplementedError

    def describe(self):
        return "lines"


def analysed(spark, step):
    """The analysis of a pipeline of one step; ``step(stream, pipeline, countries)``."""
    p = ps.Pipeline("demo")
    stream = step(p.read("lines", _Lines()), p, p.table("countries", COUNTRIES))
    return analyze(p.graph(), spark).schema(stream.ref)


def refusal(spark, step, error=ps.GraphError):
    with pytest.raises(error) as caught:
        analysed(spark, step)
    assert re.match(r"tests/spark/test_rowwise_check.py:\d+$", caught.value.where or "")
    return str(caught.value)


def doubled(x):
    return None if x is None else x * 2


def per_pandas(frames):
    for frame in frames:
        yield frame.assign(amount=frame.amount * 2)


def per_arrow(batches):
    yield from batches


def rename(frame, prefix):
    for name in frame.columns:
        frame = frame.withColumnRenamed(name, prefix + name)
    return frame


ALLOWED = {
    "columns": lambda f: f.select("id", (f.amount * 2).alias("x")),
    "withColumn on itself": lambda f: f.withColumn("amount", f["amount"] + F.col("amount")),
    "filter": lambda f: f.filter("amount > 1").where(f.user.isNotNull()),
    "explode": lambda f: f.select("id", F.explode("tags").alias("tag")),
    "inline of a lateral view": lambda f: f.selectExpr("id", "posexplode(tags) AS (place, tag)"),
    "udf": lambda f: f.withColumn("x", F.udf(doubled, "double")("amount")),
    "mapInPandas": lambda f: f.select("id", "amount").mapInPandas(per_pandas, "id LONG, amount DOUBLE"),
    "mapInArrow": lambda f: f.select("id").mapInArrow(per_arrow, "id LONG"),
    "alias": lambda f: f.alias("o").select("o.id"),
    "rename": lambda f: rename(f, "x_"),
    "unpivot": lambda f: f.unpivot(["id"], ["amount"], "name", "value"),
    "hint": lambda f: f.hint("broadcast"),
    "higher order": lambda f: f.withColumn("tags", F.transform("tags", F.upper)),
    "random": lambda f: f.withColumn("r", F.rand()).withColumn("u", F.expr("uuid()")),
    "time": lambda f: f.withColumn("seen", F.current_timestamp()),
    "fillna and cast": lambda f: f.fillna(0.0, ["amount"]).withColumn("id", f.id.cast("string")),
    "Spark's own watermark, which does nothing in a batch": lambda f: f.withWatermark("at", "1 second"),
    "nested transform": lambda f: f.transform(lambda g: g.drop("tags")),
}

REFUSED = {
    "groupBy": (lambda f: f.groupBy("user").count(), "Aggregate.*Use .group_by"),
    "agg": (lambda f: f.agg(F.sum("amount")), "Aggregate"),
    "rollup": (lambda f: f.rollup("user").count(), "Aggregate"),
    "pivot": (lambda f: f.groupBy("user").pivot("id", [1]).count(), "Aggregate"),
    "aggregate in select": (lambda f: f.selectExpr("max(id)"), "Aggregate"),
    "distinct": (lambda f: f.distinct(), "Deduplicate|Distinct|Aggregate"),
    "dropDuplicates": (lambda f: f.dropDuplicates(["user"]), "Deduplicate"),
    "applyInPandas": (lambda f: f.groupBy("user").applyInPandas(lambda g: g, SCHEMA), "FlatMapGroupsInPandas"),
    "window": (lambda f: f.withColumn("n", F.row_number().over(Window.partitionBy("user").orderBy("id"))), "Window"),
    "sort": (lambda f: f.orderBy("id"), "Sort.*no order and no end"),
    "sortWithinPartitions": (lambda f: f.sortWithinPartitions("id"), "Sort"),
    "limit": (lambda f: f.limit(3), "Limit"),
    "offset": (lambda f: f.offset(1), "Offset"),
    "sample": (lambda f: f.sample(0.5), "Sample.*pmod"),
    "repartition": (lambda f: f.repartition(4), "Repartition.*Leave it out"),
    "repartition by": (lambda f: f.repartition("user"), "RepartitionByExpression"),
    "coalesce": (lambda f: f.coalesce(1), "Repartition"),
    "union": (lambda f: f.union(f), r"Union.*Use stream\.union"),
    "intersect": (lambda f: f.intersect(f), "Intersect"),
    "exceptAll": (lambda f: f.exceptAll(f), "Except"),
    "self join": (lambda f: f.join(f.select("user"), "user"), "with itself"),
    "scalar subquery of itself": (lambda f: over(f, "SELECT *, (SELECT max(id) FROM o) FROM o"), "subquery reads the"),
    "IN subquery of itself": (lambda f: over(f, "SELECT * FROM o WHERE id IN (SELECT id FROM o)"), "subquery reads"),
    "observe": (lambda f: f.observe(Observation("mine"), F.count(F.lit(1)).alias("n")), "CollectMetrics"),
    "row numbers": (lambda f: f.withColumn("n", F.monotonically_increasing_id()), "begins again in each batch"),
    "partition ids": (lambda f: f.where(F.spark_partition_id() == 0), "how a batch is cut"),
    "file name": (lambda f: f.withColumn("file", F.input_file_name()), "input_file_name"),
    "undeclared table": (lambda f: f.join(local(f), "user"), r"neither the stream nor a declared table.*p\.table"),
    "undeclared in a subquery": (lambda f: over(f, "SELECT * FROM o WHERE id IN (SELECT id FROM range(3))"), "Range"),
    "its input ignored": (lambda f: F.broadcast(local(f)), "neither the stream"),
    "lazy checkpoint": (lambda f: f.localCheckpoint(eager=False), "neither the stream"),
}

RUN_A_JOB = {
    "collect": lambda f: f.select(F.lit(len(f.collect()))),
    "count": lambda f: f.withColumn("n", F.lit(f.count())),
    "rdd": lambda f: f.sparkSession.createDataFrame(f.rdd.map(lambda r: r), f.schema) if f.rdd.count() == 0 else f,
    "localCheckpoint": lambda f: f.localCheckpoint(),
    "toPandas": lambda f: f.limit(len(f.toPandas())),
}


def over(frame, query):
    frame.createOrReplaceTempView("o")
    return frame.sparkSession.sql(query)


def local(frame):
    return frame.sparkSession.createDataFrame(pd.DataFrame({"user": ["u1"], "x": [1]}))


@pytest.mark.parametrize("name", ALLOWED)
def test_row_wise_work_is_allowed(spark, name):
    assert analysed(spark, lambda s, p, c: s.transform(ALLOWED[name])).fields


@pytest.mark.parametrize("name", REFUSED)
def test_other_work_is_refused_with_line_operator_and_remedy(spark, name):
    function, message = REFUSED[name]
    told = refusal(spark, lambda s, p, c: s.transform(function))
    assert re.search(message, told)
    assert "transform tests" in told or "transform test_rowwise" in told
    assert "py4j" not in told


@pytest.mark.parametrize("name", RUN_A_JOB)
def test_a_function_that_runs_a_job_is_refused(spark, name):
    assert "Spark job" in refusal(spark, lambda s, p, c: s.transform(RUN_A_JOB[name]))


def test_jobs_of_other_threads_do_not_count(spark):
    import threading

    def build(frame):
        other = threading.Thread(target=lambda: spark.range(10).repartition(2).count())
        other.start()
        other.join()
        return frame

    assert analysed(spark, lambda s, p, c: s.transform(build))


@pytest.mark.parametrize(
    ("query", "refused"),
    [
        ("SELECT o.*, c.country FROM {o} o LEFT JOIN {c} c USING (user)", None),
        ("SELECT o.* FROM {o} o JOIN {c} c ON o.user = c.user JOIN {c} d ON o.user = d.user", None),
        ("SELECT o.* FROM {o} o LEFT SEMI JOIN {c} c USING (user)", None),
        ("SELECT o.* FROM {o} o LEFT ANTI JOIN {c} c USING (user)", None),
        ("SELECT o.* FROM {c} c RIGHT JOIN {o} o USING (user)", None),
        ("SELECT o.*, country FROM {c} c CROSS JOIN {o} o", None),
        ("SELECT *, (SELECT count(*) FROM {c}) AS n FROM {o}", None),
        ("SELECT * FROM {o} o WHERE EXISTS (SELECT 1 FROM {c} c WHERE c.user = o.user)", None),
        ("SELECT * FROM {o} o WHERE user NOT IN (SELECT user FROM {c})", None),
        ("SELECT o.*, n FROM {o} o JOIN (SELECT user, count(*) AS n FROM {c} GROUP BY user) USING (user)", None),
        ("WITH w AS (SELECT * FROM {o} WHERE amount > 1) SELECT w.id, country FROM w JOIN {c} c USING (user)", None),
        (
            "SELECT o.*, c.country FROM {o} o RIGHT JOIN {c} c USING (user)",
            "Join RightOuter with the stream on the left",
        ),
        (
            "SELECT o.*, c.country FROM {c} c LEFT JOIN {o} o USING (user)",
            "Join LeftOuter with the stream on the right",
        ),
        ("SELECT * FROM {o} o FULL JOIN {c} c USING (user)", "Join FullOuter"),
        ("SELECT * FROM {c} c LEFT ANTI JOIN {o} o USING (user)", "Join LeftAnti with the stream on the right"),
        ("SELECT country FROM {c} WHERE (SELECT count(*) FROM {o}) > 1", "A subquery reads the stream"),
        ("SELECT user, count(*) FROM {o} JOIN {c} USING (user) GROUP BY user", "Aggregate"),
        ("SELECT * FROM {o} JOIN {c} USING (user) ORDER BY id LIMIT 3", "Sort"),
        ("SELECT DISTINCT user FROM {o} JOIN {c} USING (user)", "Aggregate|Distinct"),
    ],
)
def test_sql_may_join_declared_tables_where_the_streams_rows_stay_alone(spark, query, refused):
    def step(s, p, c):
        return p.sql(query, o=s, c=c)

    if refused is None:
        assert analysed(spark, step).fields
    else:
        assert re.search(refused, refusal(spark, step))


def test_our_own_steps_are_held_to_the_same_list(spark):
    assert "Aggregate" in refusal(spark, lambda s, p, c: s.select("count(1)"))
    assert "Range" in refusal(spark, lambda s, p, c: s.where("id IN (SELECT id FROM range(3))"))


def returns_nothing(frame):
    frame.where("id > 1")


def raises(frame):
    msg = "boom"
    raise RuntimeError(msg)


def misspells(frame):
    return frame.where("amont > 1")


def test_a_function_that_fails_is_shown_with_module_and_line(spark):
    nothing = refusal(spark, lambda s, p, c: s.transform(returns_nothing), ps.UserFunctionError)
    assert "returns_nothing() returned NoneType instead of a DataFrame. Is a return missing?" in nothing
    raised = refusal(spark, lambda s, p, c: s.transform(raises), ps.UserFunctionError)
    assert re.search(
        r"raises\(\) \(tests/spark/test_rowwise_check.py:\d+ in raises\) raised RuntimeError: boom\.", raised
    )
    misspelt = refusal(spark, lambda s, p, c: s.transform(misspells), ps.SchemaMismatch)
    assert "Column 'amont' does not exist. Did you mean 'amount'?" in misspelt
    assert "in misspells): " in misspelt


def test_columns_are_dropped_by_their_names_quoted_or_not(spark):
    for name in ("`e-mail`", "e-mail", "`E-MAIL`"):
        left = analysed(spark, lambda s, p, c, name=name: s.select("id", "user AS `e-mail`").drop(name))
        assert left.names == ["id"]


def test_errors_of_sql_have_the_line_and_the_nearest_columns_and_no_trace(spark, capfd):
    missing = refusal(spark, lambda s, p, c: s.select("usr"), ps.SchemaMismatch)
    assert (
        "select usr: Column 'usr' does not exist. Did you mean 'user'? Columns: id, user, amount, tags, at." in missing
    )
    assert "Syntax error" in refusal(spark, lambda s, p, c: s.where("amount >>> > 1"))
    assert "incompatible types" in refusal(spark, lambda s, p, c: s.where("user > array(1)"))
    assert "Column 'tgas' does not exist" in refusal(spark, lambda s, p, c: s.drop("tgas"), ps.SchemaMismatch)
    assert "does not exist" in refusal(spark, lambda s, p, c: s.drop("upper(user)"), ps.SchemaMismatch)
    assert "appears twice" in refusal(spark, lambda s, p, c: s.select("id", "amount AS ID"), ps.SchemaMismatch)
    assert "Column 'when' does not" in refusal(
        spark, lambda s, p, c: s.with_watermark("when", "1 s"), ps.SchemaMismatch
    )
    number = refusal(spark, lambda s, p, c: s.with_watermark("id", "1 s"), ps.SchemaMismatch)
    assert "Event time must be TIMESTAMP, but 'id' is bigint" in number
    differ = refusal(spark, lambda s, p, c: s.select("id").union(s), ps.SchemaMismatch)
    assert '.select("id")' in differ
    assert "no text" not in refusal(spark, lambda s, p, c: s.parse_json("user", "id LONG"), ps.SchemaMismatch)
    assert "Py4J" not in capfd.readouterr().err


def test_a_table_that_cannot_be_read_is_told_with_its_line(spark):
    def step(s, p, c):
        return p.sql("SELECT * FROM {o} JOIN {t} USING (id)", o=s, t=p.table("lost", "SELECT * FROM nowhere"))

    assert "Table 'lost' cannot be read: The table or view" in refusal(spark, step)


def test_spark_connect_is_refused():
    with pytest.raises(ps.GraphError, match="Spark Connect"):
        analyze(ps.Pipeline("demo").graph(), object())


def test_schema_and_preview_run_nothing_of_the_job(spark):
    p = ps.Pipeline("demo")
    lines = p.read("lines", ps.files.Source("nowhere/", format="text"))
    good, bad = lines.parse_json("value", "id LONG", on_error="split")
    twice = good.with_column("twice", "id * 2").where(F.col("id") > 1)
    assert twice.schema.simpleString() == "struct<id:bigint,twice:bigint>"
    rows = [{"value": '{"id": 1}'}, {"value": '{"id": 2}'}, {"value": "x"}]
    assert [row.asDict() for row in twice.preview(rows).collect()] == [{"id": 2, "twice": 4}]
    assert [row.value for row in bad.preview({"lines": rows}).collect()] == ["x"]
    with pytest.raises(ps.GraphError, match=r"preview\(\) has no rows of source 'lines'"):
        twice.preview({})
    with pytest.raises(ps.GraphError, match=r"'line', which is no source of the stream\. Did you mean 'lines'\?"):
        twice.preview({"line": rows})
    with pytest.raises(ps.GraphError, match=r"A row of preview.* Column 'key' does not exist\. Columns: value"):
        twice.preview([{"key": 1}])
    timed = p.read("n", ps.rate.Source(rows_per_second=1)).with_watermark("at", delay="1 s")
    with pytest.raises(ps.GraphError, match=r"keeps state\. Use ps\.testing\.run"):
        timed.group_by(ps.tumbling("1 s")).agg("c", ps.agg.count()).preview([])


def test_show_prints_what_the_first_rows_of_a_source_become(spark, tmp_path, capsys):
    (tmp_path / "a.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(5)))
    numbers = ps.Pipeline("p").read("in", ps.files.Source(str(tmp_path), schema="n LONG"))
    ps.show(numbers.where("n > 0").select("n * 2 AS twice"), rows=3)
    assert capsys.readouterr().out.split() == ["+-----+", "|twice|", "+-----+", "|2", "|", "|4", "|", "+-----+"]
    with pytest.raises(ps.GraphError, match="stateless steps only"):
        ps.show(numbers.group_by("n", ps.count_window(2)).agg("c", ps.agg.count().alias("c")))
    with pytest.raises(ps.GraphError, match=r"rows=0\. Write a whole number of at least 1"):
        ps.show(numbers, rows=0)


def test_show_of_a_source_without_rows_prints_its_columns(spark, tmp_path, capsys):
    ps.show(ps.Pipeline("p").read("in", ps.files.Source(str(tmp_path), schema="n LONG")))
    assert capsys.readouterr().out.split() == ["+---+", "|n", "|", "+---+", "+---+"]
