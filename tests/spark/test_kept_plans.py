"""Plans that are planned once and bound to each batch: the same rows and figures as those of plans made for each.

What may not be kept is found in the analysed plan, and planned for each batch.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors.exceptions import captured
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.formats import text
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.operators.windows.emit_strategy import EmitStrategy
from penstock.spark import kept_plans, kept_rows
from penstock.spark.blocks import free_blocks, with_size_of_blocks
from penstock.spark.bound_plans import BoundPlan, ObservedRows, PlanBuilder, plan_of
from penstock.spark.keepable import is_keepable, json_of
from penstock.spark.kept_functions import KeptFunctions
from penstock.spark.kept_plans import KeptPlans
from penstock.spark.kept_rows import missing_class
from penstock.spark.plans import AHEAD_BOUND, Figure, PlanEditor, analyzed_plan, observe_sql, plan_kind
from penstock.spark.prepared_plans import PlanPreparer
from penstock.spark.sql import variable_literal
from window_harness import Rig, compilations, counted, next_job, persistent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("d", pa.float64()), ("at", pa.timestamp("us", tz="UTC"))])
KEYS = ["a", "b", None, "c"]
DOUBLES = [0.0, -0.0, math.nan, None, 1.5]


def batch(spark: SparkSession, number: int, rows: int = 20, *, parts: int = 1) -> DataFrame:
    """Rows that no other batch has, with NULL, -0.0 and NaN among them."""
    first = number * 100
    given = [
        {"k": KEYS[n % 4], "v": n if n % 7 else None, "d": DOUBLES[n % 5], "at": n * SECOND}
        for n in range(first, first + rows)
    ]
    table = pa.Table.from_pylist(given, schema=SCHEMA)
    frame = spark.createDataFrame(table)
    return frame if parts == 1 else spark.createDataFrame(table.slice(0, rows)).repartition(parts).localCheckpoint()


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(repr(tuple(row)) for row in frame.collect())


def planned_plans(monkeypatch: pytest.MonkeyPatch) -> list[BoundPlan]:
    """The plans that Spark has planned to keep, from now on."""
    planned: list[BoundPlan] = []
    real = KeptPlans._plan_once

    def plan_once(self: KeptPlans, plan: BoundPlan, placement: Any) -> Any:
        planned.append(plan)
        return real(self, plan, placement)

    monkeypatch.setattr(KeptPlans, "_plan_once", plan_once)
    return planned


STEPS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "columns and a filter": lambda rows: rows.where("v % 3 > 0").selectExpr("upper(k) AS k", "v + 1 AS v", "-d AS d"),
    "an exchange": lambda rows: (
        rows.repartition(2, "d").groupBy("d").agg(F.sum("v").alias("s"), F.count("k").alias("n"))
    ),
    "all rows": lambda rows: rows.agg(F.sum("v").alias("s"), F.max("at").alias("at"), F.min("d").alias("d")),
    "lists": lambda rows: rows.groupBy("k").agg(F.sort_array(F.collect_list("v")).alias("l"), F.max("k").alias("m")),
    "rows of rows": lambda rows: rows.selectExpr("k", "explode(sequence(1, 2)) AS e", "v IS NULL AS gone"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_plan_is_planned_once_for_all_batches_and_their_rows_are_the_same(spark, monkeypatch, step):
    preparer, planned = PlanPreparer(spark), planned_plans(monkeypatch)
    prepared = preparer.prepare(batch(spark, 0).schema, STEPS[step])
    for number in range(3):
        plan = preparer.bind(prepared, plan_of(batch(spark, number, parts=1 + number % 2)))
        rows = preparer._kept.kept(plan)
        assert rows is not None, "it may be kept"
        assert rows_of(rows.frame()) == rows_of(preparer.frame(plan))
    assert len(planned) == 1


def test_numbers_and_figures_are_those_of_each_batch_and_nothing_is_compiled(spark):
    preparer = PlanPreparer(spark)

    def above(rows: DataFrame, least: int, more: int) -> DataFrame:
        kept = rows.where(f"v >= {variable_literal(least, column='v')}")
        return kept.selectExpr("v", f"{variable_literal(more, column='v', mark=7)} AS m").repartition(2, "v")

    prepared = preparer.prepare(batch(spark, 0).schema, above, numbers=2, figures={"n": F.count("*")})
    assert prepared.observation is not None
    for number, (least, more) in enumerate([(3, -1), (103, 2**40), (203, 0), (303, 0)]):
        plan, metrics = preparer.observe(
            preparer.bind(prepared, plan_of(batch(spark, number)), least, more), prepared.observation
        )
        with counted(spark) as cost:
            frame = preparer.checkpoint(plan)
        # the second takes the functions of tasks: its rows are copied for the node that observes them
        assert (cost.jobs, cost.compilations * (number > 1)) == (1, 0)
        found = [tuple(row) for row in frame.collect()]
        assert {m for _, m in found} == {more}
        assert min(v for v, _ in found) >= least
        assert metrics.read() == {"n": len(found)}
        free_blocks(frame)


def test_functions_of_tasks_stay_though_numbers_change(spark):
    preparer = PlanPreparer(spark)
    prepared = preparer.prepare(
        batch(spark, 0).schema, lambda rows, least: rows.where(f"v >= {variable_literal(least, column='v')}"), numbers=1
    )
    is_ahead = f"v > {variable_literal(AHEAD_BOUND, column='v')}"
    spec = observe_sql(
        preparer.editor.frame(prepared.plan), "t", {"n": Figure((f"count(CASE WHEN {is_ahead} THEN 1 END)",))}
    )
    taken = []
    for least, bound in ((10, 15), (10, 12), (11, 14), (11, 17)):
        plan = ObservedRows(preparer.bind(prepared, plan_of(batch(spark, 0)), least), spec, bound)
        rows = preparer._kept.kept(plan)
        assert rows is not None
        assert min(row.v for row in rows.frame().collect()) == least
        assert plan.metrics.read() == {"n": sum(v > bound for v in range(20) if v % 7)}
        (known,) = preparer._kept._shapes.values()
        assert known.plan is not None
        taken.append(known.plan._functions)
    assert taken[0] is None
    assert taken[1] is not None
    assert set(taken[1:]) == {taken[1]}


def least_of(rows: DataFrame, least: int) -> DataFrame:
    """The rows from a number on, in groups, with the number in the aggregates as well."""
    literal = variable_literal(least, column="v")
    kept = rows.where(f"v >= {literal}").groupBy("k")
    return kept.agg(F.expr(f"sum(v - {literal})").alias("above"), F.expr(f"min({literal})").alias("least"))


def table_of(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.createDataFrame([("a", 1, 5), ("b", 2, 205)], "k STRING, c BIGINT, v BIGINT")


def minus(least: int) -> str:
    """Values in an expression for which Spark generates no code."""
    return f"zip_with(array(v), array(1L), (x, y) -> x - y - {variable_literal(least, column='v')})"


NUMBERED: dict[str, tuple[bool, dict[str, str], Callable[[DataFrame, int], DataFrame]]] = {
    "an exchange": (False, {}, least_of),
    "a table that all tasks have": (
        False,
        {},
        lambda rows, least: least_of(rows, least).join(F.broadcast(table_of(rows)), "k"),
    ),
    "a table that all tasks have, cut by the number": (
        True,
        {},
        lambda rows, least: rows.where(f"v >= {variable_literal(least, column='v')}").join(
            F.broadcast(table_of(rows).drop("k")), "v"
        ),
    ),
    "a table that is exchanged": (
        True,
        {"spark.sql.autoBroadcastJoinThreshold": "-1"},
        lambda rows, least: least_of(rows, least).join(table_of(rows), "k"),
    ),
    "a table whose rows are kept, exchanged": (
        True,
        {"spark.sql.autoBroadcastJoinThreshold": "-1"},
        lambda rows, least: least_of(rows, least).join(table_of(rows).localCheckpoint(), "k"),
    ),
    "bytes": (
        False,
        {},
        lambda rows, least: rows.where(f"v >= {variable_literal(least, column='v')}").selectExpr(
            "coalesce(CAST(k AS BINARY), X'00') AS b"
        ),
    ),
    "groups that are sorted": (
        False,
        {},
        lambda rows, least: (
            rows.where(f"v >= {variable_literal(least, column='v')}").groupBy("d").agg(F.max("k").alias("k"))
        ),
    ),
    "an expression without generated code": (True, {}, lambda rows, least: rows.selectExpr(f"{minus(least)} AS f")),
    "an expression without generated code, below generated code": (
        True,
        {},
        lambda rows, least: (
            rows.selectExpr("k", f"explode({minus(least)}) AS f").groupBy("k").agg(F.sum("f").alias("f"))
        ),
    ),
    "more columns than code is generated for": (True, {"spark.sql.codegen.maxFields": "3"}, least_of),
    "an exchange by the number": (
        True,
        {},
        lambda rows, least: rows.repartition(3, F.expr(f"v > {variable_literal(least, column='v')}")),
    ),
    "a list of values": (
        True,
        {},
        lambda rows, least: rows.groupBy("k").agg(
            F.expr(f"sort_array(collect_list(v - {variable_literal(least, column='v')}))").alias("list")
        ),
    ),
    "methods that are too long to be run as generated": (True, {"spark.sql.codegen.hugeMethodLimit": "1"}, least_of),
    "no generated code": (True, {"spark.sql.codegen.wholeStage": "false"}, least_of),
    "no generated code and no number": (
        False,
        {"spark.sql.codegen.wholeStage": "false"},
        lambda rows, _: rows.groupBy("k").agg(F.sum("v").alias("v")),
    ),
    "methods that are too long, and no number": (
        False,
        {"spark.sql.codegen.hugeMethodLimit": "1"},
        lambda rows, _: rows.groupBy("k").agg(F.sum("v").alias("v")),
    ),
}


def kinds(stage: Any) -> set[str]:
    """Of the stages that a plan's functions are made of."""
    return {type(stage).__name__.strip("_")}.union(*map(kinds, stage.sides))


@pytest.mark.parametrize("case", NUMBERED)
def test_each_batch_has_its_numbers_in_functions_and_in_nodes_that_are_copied(spark, case):
    is_copied, settings, build = NUMBERED[case]
    session = spark.newSession()
    for name, value in settings.items():
        session.conf.set(name, value)
    preparer = PlanPreparer(session)
    prepared = preparer.prepare(batch(session, 0).schema, build, numbers=1)
    frames = [batch(session, number, parts=2) for number in range(4)]
    for number, least in enumerate((3, 107, 201, 310)):
        rows = preparer._kept.kept(preparer.bind(prepared, plan_of(frames[number]), least))
        assert rows is not None
        assert sorted(map(repr, rows.frame().collect())) == sorted(map(repr, build(frames[number], least).collect()))
    (known,) = preparer._kept._shapes.values()
    assert known.plan is not None
    assert known.plan._functions is not None
    assert ("Copied" in kinds(known.plan._functions._stage)) is is_copied
    for frame in frames:
        free_blocks(frame)


def test_a_table_is_exchanged_once_for_all_batches(spark):
    session = spark.newSession()
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    read = spark.sparkContext.accumulator(0)

    def counted_row(row: tuple[str, int]) -> tuple[str, int]:
        read.add(1)
        return row

    rows = spark.sparkContext.parallelize([("a", 1), ("b", 2), ("c", 3)], 1).map(counted_row)
    table = session.createDataFrame(rows, "k STRING, c BIGINT")
    preparer = PlanPreparer(session)
    prepared = preparer.prepare(
        batch(session, 0).schema, lambda rows, least: least_of(rows, least).join(table, "k"), numbers=1
    )
    for number, least in enumerate((3, 107, 201, 310)):
        found = preparer._kept.kept(preparer.bind(prepared, plan_of(batch(session, number)), least))
        assert found is not None
        assert {row.least for row in found.frame().collect()} == {least}
    assert read.value == 3


@pytest.mark.parametrize("fails", ["functions_of", "over"])
def test_a_plan_is_copied_where_its_functions_cannot_be_taken_or_used(spark, monkeypatch, caplog, fails):
    def fail(*_: object) -> None:
        msg = "another Spark"
        raise AttributeError(msg)

    monkeypatch.setattr(kept_plans if fails == "functions_of" else KeptFunctions, fails, fail)
    preparer = PlanPreparer(spark)
    prepared = preparer.prepare(batch(spark, 0).schema, least_of, numbers=1)
    for number, least in enumerate((3, 107, 201, 310)):
        plan = preparer.bind(prepared, plan_of(batch(spark, number)), least)
        rows = preparer._kept.kept(plan)
        assert rows is not None
        assert rows_of(rows.frame()) == rows_of(preparer.frame(plan))
    assert [record.getMessage() for record in caplog.records] == [
        "The code of a plan cannot be kept, so each batch copies the plan, which is slower: another Spark"
    ]


def test_what_is_known_of_the_first_batch_alone_is_not_in_the_plan(spark):
    preparer = PlanPreparer(spark)
    schema = spark.range(1).selectExpr("CAST(id AS BIGINT) AS v").schema
    prepared = preparer.prepare(schema, lambda rows: rows.selectExpr("v IS NULL AS gone", "coalesce(v, -1L) AS v"))
    first = spark.range(3).toDF("v").localCheckpoint()  # its column cannot be NULL
    second = spark.createDataFrame([(None,), (5,)], "v LONG").localCheckpoint()
    for frame, expected in ((first, [(False, 0), (False, 1), (False, 2)]), (second, [(False, 5), (True, -1)])):
        rows = preparer._kept.kept(preparer.bind(prepared, plan_of(frame)))
        assert rows is not None
        assert sorted(map(tuple, rows.frame().collect())) == expected
        free_blocks(frame)


def test_a_kept_plan_holds_no_rows_of_a_batch(spark):
    preparer = PlanPreparer(spark)
    prepared = preparer.prepare(batch(spark, 0).schema, STEPS["an exchange"])
    assert preparer._kept.kept(preparer.bind(prepared, plan_of(batch(spark, 0)))) is not None
    (known,) = preparer._kept._shapes.values()
    assert known.plan is not None
    assert [plan_kind(scan.node.rdd()) for scan in known.plan._scans] == ["EmptyRDD"]


TABLES = {
    "of SQL": lambda spark: spark.sql("SELECT * FROM VALUES ('a', 1L), ('b', 2L) AS t (k, c)"),
    "of Python": lambda spark: spark.createDataFrame(spark.sparkContext.parallelize([("a", 1), ("b", 2)]), ["k", "c"]),
}


@pytest.mark.parametrize(("how", "table"), [("left", "of SQL"), ("inner", "of SQL"), ("inner", "of Python")])
def test_a_joined_table_is_broadcast_once_and_not_for_each_batch(spark, how, table):
    preparer = PlanPreparer(spark)
    table = with_size_of_blocks(TABLES[table](spark).localCheckpoint())
    prepared = preparer.prepare(batch(spark, 0).schema, lambda rows: rows.join(table, "k", how))
    jobs = []
    for number in range(5):
        plan, first = preparer.bind(prepared, plan_of(batch(spark, number))), next_job(spark)
        rows = preparer._kept.kept(plan)
        assert rows is not None
        found = rows_of(rows.frame())
        jobs.append(next_job(spark) - first)
        assert found == rows_of(preparer.frame(plan))
    assert jobs == [2, 1, 1, 1, 1], "the first job sends the table"
    free_blocks(table)


def test_a_plan_goes_with_the_table_that_it_was_prepared_for(spark):
    preparer = PlanPreparer(spark)
    tables = [spark.sql(f"SELECT 'a' AS k, {number}L AS c").localCheckpoint() for number in range(3)]
    for table in tables:
        prepared = preparer.prepare(batch(spark, 0).schema, lambda rows, table=table: rows.join(table, "k"))
        rows = preparer._kept.kept(preparer.bind(prepared, plan_of(batch(spark, 0))))
        assert rows is not None
        assert {row.c for row in rows.frame().collect()} == {tables.index(table)}
        gc.collect()
        assert len(preparer._kept._shapes) == 1
    del prepared, rows
    gc.collect()
    assert not preparer._kept._shapes
    for table in tables:
        free_blocks(table)


# ------------------------------------------------------------------------------------------------ what may not be kept

NOT_KEPT = {
    "the time": "unix_micros(current_timestamp()) AS t",
    "the day": "current_date() AS t",
    "now": "now() AS t",
    "local time": "localtimestamp() AS t",
    "unix time": "unix_timestamp() AS t",
    "a text that is a time": "CAST('now' AS TIMESTAMP) AS t",
    "a text that is a time of today": "CAST('06:00:00' AS TIMESTAMP) AS t",
    "a text that is compared with a time": "TIMESTAMP'2026-01-01 00:00:00' >= ' T06:00' AS t",
    "a function of a text that is a time": "to_timestamp('now') AS t",
    "a function of a text that is a day": "to_date('now') AS t",
    "a function of a text that is tried": "try_to_timestamp('today') AS t",
    "a text in an array that is a time of today": "CAST(array('06:00:00') AS ARRAY<TIMESTAMP>) AS t",
    "a text in JSON that is a time of today": "from_json('{\"a\":\"06:00:00\"}', 'a TIMESTAMP') AS t",
    "one of two times of today": "to_timestamp(if(v > 0, '06:00:00', '07:00:00')) AS t",
    "a time of today beside a column": "CAST(named_struct('a', v, 'b', '06:00:00').b AS TIMESTAMP) AS t",
    "a text that is made a day": "CAST(concat('to', 'day') AS DATE) AS t",
    "the user": "current_user() AS t",
    "the database": "current_database() AS t",
    "random numbers": "rand() AS t",
    "a seed": "rand(3) AS t",
    "ids": "uuid() AS t",
    "a call into the JVM": "java_method('java.lang.String', 'valueOf', v) AS t",
    "the file": "input_file_name() AS t",
    "a subquery": "(SELECT max(id) FROM range(3)) AS t",
    "a subquery that is looked up": "v IN (SELECT id FROM range(3)) AS t",
    "a time of day": "CAST(TIME'10:00:00' AS TIMESTAMP) AS t",
    "a time of day of a text": "CAST(to_time(CAST(v AS STRING)) AS TIMESTAMP) AS t",
    "a time of day that is tried": "CAST(try_to_time(CAST(v AS STRING)) AS TIMESTAMP) AS t",
    "a time of day of seconds": "CAST(time_from_seconds(v) AS TIMESTAMP) AS t",
    "a time of day of milliseconds": "CAST(time_from_millis(v) AS TIMESTAMP_NTZ) AS t",
    "a time of day of its parts": "to_date(CAST(make_time(CAST(v AS INT), 0, 0) AS TIMESTAMP)) AS t",
}


def test_what_depends_on_more_than_its_rows_is_planned_for_each_batch(spark, request):
    spark.conf.set("spark.sql.timeType.enabled", "true")
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.timeType.enabled"))
    preparer, schema, kept = PlanPreparer(spark), batch(spark, 0).schema, []
    for what, column in NOT_KEPT.items():
        if what.startswith("a time of day") and spark.version < "4.3":
            continue  # it cannot be a point in time there
        prepared = preparer.prepare(schema, lambda rows, column=column: rows.selectExpr("v", column))
        if preparer._kept.kept(preparer.bind(prepared, plan_of(batch(spark, 0)))) is not None:
            kept.append(what)
    assert kept == []


@pytest.mark.parametrize("done", [None, "done"], ids=["by Spark", "by the source"])
@pytest.mark.parametrize("on_error", ["fail", "drop", "split"])
def test_records_with_points_in_time_are_decoded_by_a_kept_plan(spark, done, on_error):
    record = text.struct_type(spark, "user STRING, at TIMESTAMP, day DATE, parts ARRAY<STRUCT<at: TIMESTAMP>>")
    columns = StructType().add("value", "string").add("partition", "integer")
    schema = columns.add(done, record) if done else columns

    def decoded(rows):
        found = text.decode_json(rows, "value", record, done=done)
        if on_error == "fail":
            return text.failfast(found, "value", place="NULL")
        return text.drop_malformed(found, "value") if on_error == "drop" else text.permissive(found, "value")

    assert is_keepable(json_of(analyzed_plan(decoded(PlanEditor(spark).new_leaf(schema).frame))))


def test_time_goes_on_in_a_plan_that_is_not_kept(spark):
    preparer = PlanPreparer(spark)
    prepared = preparer.prepare(batch(spark, 0).schema, lambda rows: rows.selectExpr("unix_micros(now()) AS t"))
    found = []
    for number in range(2):
        rows = preparer.checkpoint_later(preparer.bind(prepared, plan_of(batch(spark, number))))
        rows.finish()
        found.append(rows.frame.first()[0])
        free_blocks(rows.frame)
    assert found[0] < found[1]


def test_files_and_rows_that_others_keep_are_not_input_of_a_kept_plan(spark, tmp_path):
    preparer = PlanPreparer(spark)
    batch(spark, 0).write.parquet(str(tmp_path / "in"))
    files, persisted = spark.read.parquet(str(tmp_path / "in")), batch(spark, 0).persist()
    prepared = preparer.prepare(files.schema, STEPS["columns and a filter"])
    for frame in (files, persisted):
        plan = preparer.bind(prepared, plan_of(frame))
        assert preparer._kept.kept(plan) is None
        assert rows_of(preparer.result(plan)) == rows_of(STEPS["columns and a filter"](frame))
    joined = preparer.prepare(files.schema, lambda rows: rows.join(files.select("k").distinct(), "k", "left_semi"))
    assert preparer._kept.kept(preparer.bind(joined, plan_of(batch(spark, 0)))) is None
    persisted.unpersist()


# ------------------------------------------------------------------------------------------------------------ settings


@pytest.fixture
def set_to(spark) -> Iterator[Callable[[str, str | None], None]]:
    before: dict[str, str | None] = {}

    def change(name: str, value: str | None) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value) if value is not None else spark.conf.unset(name)

    yield change
    for name, value in before.items():
        spark.conf.set(name, value) if value is not None else spark.conf.unset(name)


def test_a_changed_setting_holds_from_the_next_batch_on(spark, monkeypatch, set_to):
    preparer, planned = PlanPreparer(spark), planned_plans(monkeypatch)
    prepared = preparer.prepare(
        batch(spark, 0).schema, lambda rows: rows.selectExpr("CAST(at AS STRING) AS s").repartition(2, "s")
    )

    def first() -> str:
        rows = preparer._kept.kept(preparer.bind(prepared, plan_of(batch(spark, 0, rows=1))))
        assert rows is not None
        return rows.frame().first()[0]

    assert first() == "1970-01-01 00:00:00"
    assert len(planned) == 1
    set_to("spark.sql.jsonGenerator.ignoreNullFields", "false")
    first()
    assert len(planned) == 2


def test_settings_that_expressions_ask_for_reach_the_tasks_and_leave_the_thread(spark, set_to):
    preparer, name = PlanPreparer(spark), "spark.sql.jsonGenerator.ignoreNullFields"
    context = spark.sparkContext
    prepared = preparer.prepare(
        batch(spark, 0).schema,
        lambda rows: rows.repartition(2, "k").selectExpr(
            "to_json(named_struct('a', CAST(NULL AS INT), 'v', length(coalesce(k, 'x')))) AS j"
        ),
    )
    context.setLocalProperty("spark.sql.of.another", "1")
    for value, expected in ((None, '{"v":1}'), ("false", '{"a":null,"v":1}'), (None, '{"v":1}')):
        set_to(name, value)
        frame = preparer.checkpoint(preparer.bind(prepared, plan_of(batch(spark, 0))))
        assert {row.j for row in frame.collect()} == {expected}
        free_blocks(frame)
        assert context.getLocalProperty(name) is None
    assert context.getLocalProperty("spark.sql.of.another") == "1"
    context.setLocalProperty("spark.sql.of.another", None)


# ------------------------------------------------------------------------------------------------- a Spark without it


def test_a_spark_without_a_class_plans_each_batch_and_says_so_once(spark, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(kept_rows.INTERNALS, "mapped", "org.apache.spark.rdd.NoSuchRDD")
    monkeypatch.setattr(kept_plans, "_said", set())
    assert missing_class(spark) == "org.apache.spark.rdd.NoSuchRDD"
    before = persistent(spark)
    with caplog.at_level(logging.WARNING, "penstock"):
        rig = Rig(spark, updates(), SCHEMA, tmp_path, late_read=False)
        for number in range(2):
            assert rig.operator._deferred._queries.can_defer is False
            rig.process_frame(batch(spark, 0))
            assert len(rig.take()) == [4, 8][number]
        KeptPlans(PlanBuilder(spark))
    assert [record.args for record in caplog.records] == [("org.apache.spark.rdd.NoSuchRDD",)]
    rig.operator.close()
    assert persistent(spark) <= before


def updates() -> WindowAggregate:
    aggregates = (agg.sum("v").alias("v"), agg.max("d").alias("d"), agg.count().alias("n"))
    window = tumbling("1 hour")
    return WindowAggregate(
        keys=(("k", "k"),), time="at", window=window, aggregates=aggregates, emission=EmitStrategy(updates=True)
    )


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "planned for each batch"])
def test_a_step_that_sends_changes_keeps_the_plans_of_its_layers_and_its_results(spark, tmp_path, monkeypatch, is_kept):
    planned = planned_plans(monkeypatch)
    if not is_kept:
        monkeypatch.setattr(kept_plans, "is_keepable", lambda _plan: False)
    rig, found = Rig(spark, updates(), SCHEMA, tmp_path, late_read=False), []
    for number in range(4):
        rig.process_frame(batch(spark, number))
        found.append(rig.take())
    shapes, raised, converted = len(planned), list[object](), captured.convert_exception
    monkeypatch.setattr(captured, "convert_exception", lambda error: raised.append(error) or converted(error))
    rig.process_frame(batch(spark, 4))
    found.append(rig.take())
    assert raised == []  # not even the end of a loop over something of Java's: PySpark asks the JVM of each what it is
    # a layer's (grouped, then exchanged first), the first result's, and that of results over older layers
    assert len(planned) == shapes == 4 - is_kept
    known = rig.operator._preparer._kept._shapes.values()
    assert {shape.plan is not None for shape in known} == {is_kept}
    rig.operator.close()
    counts = {row[0]: row[5] for row in found[-1] if row[-1] == "update_after"}
    assert counts == dict.fromkeys(KEYS, 25)


# ----------------------------------------------------------------------------------------------------- failed attempts


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rows_and_figures_are_the_same_though_the_first_attempt_of_each_task_fails():
    found = {}
    for words in ((), ("kept", "fails"), ("kept", "sent", "fails")):
        program = Path(__file__).with_name("retried_program.py")
        path = os.pathsep.join([str(program.parent.parent), os.environ.get("PYTHONPATH", "")])
        ran = subprocess.run(
            [sys.executable, str(program), *words],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        found[words] = json.loads(ran.stdout.splitlines()[-1])
    *expected, (kept, _) = found[()]
    assert kept == 0
    *_, layers, _ = expected
    for words, (*told, (kept, shapes)) in found.items():
        if words == ("kept", "sent", "fails"):  # figures were lost with the first attempts, so layers are counted
            assert [ends for _, *ends in told[-2]] == [ends for _, *ends in layers]
            assert [rows for rows, *_ in told[-2]] == [12, 12, 8, 8]
            told[-2] = layers
        assert told == expected, words
        assert kept == (shapes if "kept" in words else 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_batches_leave_nothing_in_the_jvm(spark, tmp_path):
    rig = Rig(spark, updates(), SCHEMA, tmp_path, late_read=False)
    frames = [batch(spark, number, rows=5) for number in range(4)]
    told = []
    for number in range(300):
        rig.process_frame(frames[number % 4])
        rig.take()
        rig.maintain()
        if number in (99, 299):
            gc.collect()
            jvm: Any = spark._jvm
            jvm.java.lang.System.gc()
            loaded = jvm.java.lang.management.ManagementFactory.getClassLoadingMXBean().getLoadedClassCount()
            told.append((len(persistent(spark)), compilations(spark), loaded))
    rig.operator.close()
    (blocks, compiled, loaded), (blocks_later, compiled_later, loaded_later) = told
    assert (compiled_later, blocks_later <= blocks + 20) == (compiled, True)
    assert loaded_later <= loaded + 200
