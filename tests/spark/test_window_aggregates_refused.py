"""What ``ps.agg`` refuses, when and in which words; and aggregates that users write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import penstock as ps
from penstock.errors import GraphError, UserFunctionError
from penstock.operators import aggregates as agg
from penstock.operators.aggregates import base
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling

pytestmark = pytest.mark.spark

DDL = "user STRING, at TIMESTAMP, x INT, tags MAP<STRING, INT>, v VARIANT, folded STRING COLLATE UTF8_LCASE, ok BOOLEAN"
SUMS = {"partial": {"s": F.sum}, "merge": {"s": F.sum}, "finish": lambda s: s}


def refusal(aggregate, error: type[Exception] = GraphError) -> str:
    step = WindowAggregate(
        keys=(("user", "user"),), time="at", window=tumbling("1 minute"), aggregates=(aggregate.alias("result"),)
    )
    with pytest.raises(error) as caught:
        step.ports((StructType.fromDDL(DDL),))
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "use"),
    [
        (lambda: F.stddev("x"), "ps.agg.stddev(…)"),
        (lambda: F.stddev_samp("x"), "ps.agg.stddev(…)"),
        (lambda: F.var_samp("x").alias("y"), "ps.agg.variance(…)"),
        (lambda: F.first("x"), "ps.agg.first(…)"),
        (lambda: F.min_by("x", "y"), "ps.agg.first(…, by=…)"),
        (lambda: F.collect_list("x"), "ps.agg.collect(…)"),
        (lambda: F.approx_count_distinct("x"), "ps.agg.approx_count_distinct(…)"),
        (lambda: F.median("x"), "ps.agg.percentile(…, 0.5)"),
        (lambda: F.percentile_approx("x", 0.5), "ps.agg.approx_percentile(…, 0.5)"),
        (lambda: F.count_if("x"), 'ps.agg.count().where("…")'),
        (lambda: F.mode("x"), "ps.agg.variance, or ps.agg.custom for one of your own"),
    ],
)
def test_sparks_own_aggregates_are_refused_with_the_name_to_use(spark, given, use):
    with pytest.raises(GraphError, match=rf"cannot be merged over batches\. Use .*{re.escape(use)}\.$"):
        agg.check_aggregate(given())


def test_every_function_is_known_by_name():
    given = {name for name in agg.__all__ if name.islower()} - {"check_aggregate", "custom"}
    assert given == set(base.FUNCTIONS)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: agg.collect("x", limit=0), "limit of ps.agg.collect must be a whole number above zero, got 0"),
        (lambda: agg.percentile("x", 1.5), "takes shares from 0.0 to 1.0, such as 0.99, got 1.5"),
        (lambda: agg.percentile("x", "0.5"), "takes shares from 0.0 to 1.0, such as 0.99, got '0'"),
        (lambda: agg.approx_percentile("x", []), "was given an empty list of shares"),
        (lambda: agg.approx_percentile("x", 0.5, k=7), "k of ps.agg.approx_percentile must be a whole number from 8"),
        (lambda: agg.approx_count_distinct("x", rsd=0), "rsd of ps.agg.approx_count_distinct must be a number of at"),
        (lambda: agg.custom("my sum", of="x", **SUMS), "needs a name of letters, digits and underscores, got 'my sum'"),
        (lambda: agg.custom("mine", of="x", **{**SUMS, "merge": {"t": F.sum}}), "has the parts ['s'], merge has ['t']"),
        (
            lambda: agg.custom("mine", of="x", **{**SUMS, "partial": {"_s": F.sum}}),
            "Part '_s' of ps.agg.custom('mine') begins with an underscore",
        ),
        (lambda: agg.custom("mine", of="x", partial={}, merge={}, finish=lambda: 1), "custom('mine') has no part"),
        (lambda: agg.custom("mine", of="x", **{**SUMS, "finish": 1}), "finish of ps.agg.custom('mine') must be a fun"),
        (lambda: agg.stddev("x + 1").label, "ps.agg.stddev('x + 1') has no name"),
    ],
)
def test_impossible_arguments_are_refused_at_once(make, says):
    with pytest.raises(GraphError, match=re.escape(says)):
        make()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: agg.stddev("at"), "ps.agg.stddev cannot take timestamp, which is no number"),
        (lambda: agg.percentile("tags", 0.5), "ps.agg.percentile cannot take map<string,int>, which is no number"),
        (lambda: agg.first("tags"), "which has no order. Give it a field of the value, or its text"),
        (lambda: agg.last("x", by="v"), "ps.agg.last cannot take struct<by:variant,value:int>, which has no order"),
        (lambda: agg.collect("v"), "ps.agg.collect cannot take struct<by:timestamp,value:variant>"),
        (lambda: agg.count_distinct("tags"), "ps.agg.count_distinct cannot take map<string,int>"),
        (lambda: agg.approx_count_distinct("folded"), "whose collation a hash does not see. Give it lower(…)"),
        (lambda: agg.sum("x").where("y > 1"), "Column 'y' does not exist. Columns: user, at, x,"),
        (lambda: agg.first("x", by="version"), "Column 'version' does not exist"),
    ],
)
def test_impossible_inputs_are_refused_when_the_pipeline_is_checked(spark, make, says):
    assert says in refusal(make())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"partial": {"s": lambda x: x + 1}}, "partial 's' of ps.agg.custom('mine') (HERE) gives Column<'+("),
        ({"partial": {"s": lambda x: F.lit(1)}}, "which is not an aggregate over its rows, such as F.sum(…)"),
        ({"partial": {"s": lambda x: F.explode(F.collect_list(x))}}, "which is not an aggregate over its rows"),
        ({"partial": {"s": lambda x: F.sum(x).over(Window.partitionBy(x))}}, "which is not an aggregate over its rows"),
        ({"partial": {"s": lambda x: F.sum(F.col("y"))}}, "partial 's' of ps.agg.custom('mine') (HERE) cannot be com"),
        ({"merge": {"s": lambda s: s}}, "merge 's' of ps.agg.custom('mine') (HERE) gives Column<'"),
        ({"merge": {"s": F.avg}}, "merge 's' of ps.agg.custom('mine') makes double of bigint. Cast the partial"),
        (
            {"finish": lambda s: F.sum(s + 1)},
            "finish of ps.agg.custom('mine') (HERE) gives Column<'sum(+(s, 1))'>, which is not",
        ),
        ({"finish": lambda s: s + F.rand()}, "which is not computed from one row of parts"),
        ({"finish": lambda s: 7}, "finish of ps.agg.custom('mine') (HERE) returned 7. Let it return a Column"),
    ],
)
def test_a_custom_aggregate_is_checked_function_by_function(spark, changes, says):
    message = re.sub(
        r"\([^()]*test_window_aggregates_refused\.py:\d+\)",
        "(HERE)",
        refusal(agg.custom("mine", of="x", **{**SUMS, **changes})),
    )
    assert says in message


def test_what_a_custom_function_raises_is_told_with_its_line(spark):
    for changes in ({"finish": lambda t: t}, {"partial": {"s": lambda: F.lit(1)}}):
        told = refusal(agg.custom("mine", of="x", **{**SUMS, **changes}), UserFunctionError)
        assert re.search(
            r"of ps\.agg\.custom\('mine'\) \(.*test_window_aggregates_refused\.py:\d+\) raised TypeErr", told
        )


def test_the_message_of_a_pipeline_has_the_users_line_and_step(spark):
    rows = ps.Pipeline("p").read("rows", ps.rate.Source(rows_per_second=1)).with_watermark("at", delay="1 second")
    bad = agg.custom("mine", of="value", **{**SUMS, "finish": lambda s: F.sum(s + 1)})
    line = (
        Path(__file__)
        .read_text()
        .splitlines()
        .index('    made = rows.group_by(ps.tumbling("1 minute")).agg("totals", bad)')
        + 1
    )
    made = rows.group_by(ps.tumbling("1 minute")).agg("totals", bad)
    with pytest.raises(
        GraphError, match=rf"^step 'totals' at .*refused\.py:{line}: finish of ps\.agg\.custom\('mine'\)"
    ):
        _ = made.schema


def test_sums_of_decimals_without_room_are_refused_where_overflow_is_no_error(spark):
    wide, roomy = "CAST(x AS DECIMAL(29, 2))", "CAST(x AS DECIMAL(28, 2))"
    ansi = spark.conf.get("spark.sql.ansi.enabled")
    try:
        spark.conf.set("spark.sql.ansi.enabled", "false")
        assert "ps.agg.sum cannot take decimal(29,2), whose sum may overflow" in refusal(agg.sum(wide))
        assert "ps.agg.avg cannot take decimal(29,2)" in refusal(agg.avg(wide))
        assert kind(agg.sum(roomy)) == "decimal(38,2)"
        spark.conf.set("spark.sql.ansi.enabled", "true")
        assert kind(agg.sum(wide)) == "decimal(38,2)"
    finally:
        spark.conf.set("spark.sql.ansi.enabled", ansi)


def kind(aggregate) -> str:
    step = WindowAggregate(keys=(), time="at", window=tumbling("1 minute"), aggregates=(aggregate.alias("result"),))
    return step.ports((StructType.fromDDL(DDL),))["out"]["result"].dataType.simpleString()


def test_decimals_may_be_summed_in_a_custom_aggregate(spark):
    step = WindowAggregate(
        keys=(),
        time="at",
        window=tumbling("1 minute"),
        aggregates=(agg.custom("mine", of="CAST(x AS DECIMAL(9, 2))", **SUMS).alias("mine"),),
    )
    assert step.ports((StructType.fromDDL(DDL),))["out"]["mine"].dataType.simpleString() == "decimal(19,2)"
