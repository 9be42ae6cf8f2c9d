"""A session whose optimiser goes without rules that had nothing to do in plans of one shape."""

from __future__ import annotations

import pytest

from penstock.spark.blocks import with_session
from penstock.spark.session import LEARNING_PLANS, RELEARN_AFTER, LeanSession

pytestmark = pytest.mark.spark

OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer."
EXCLUDED = "spark.sql.optimizer.excludedRules"


def totals(spark, number: int):
    """A plan of one shape, which pushing a filter down makes better."""
    return spark.range(100).selectExpr("id % 3 AS k", "id AS v").where(f"k <> {number % 3}").groupBy("k").sum("v")


def planned(lean: LeanSession, frame) -> str:
    """The optimised plan; numbers of columns aside."""
    mine = with_session(frame, lean.session)
    with lean.planning(mine):
        return "".join(each for each in mine._jdf.queryExecution().optimizedPlan().toString() if each != "\n")


def test_rules_that_did_nothing_are_left_out_and_the_plan_is_the_same(spark):
    lean = LeanSession(spark)
    with_all = [planned(lean, totals(spark, 0)) for _ in range(LEARNING_PLANS)]
    assert not lean.left_out

    without = planned(lean, totals(spark, 0))

    assert f"{OPTIMIZER}CostBasedJoinReorder" in lean.left_out
    assert f"{OPTIMIZER}PushDownPredicates" not in lean.left_out
    assert len(lean.left_out) > 50
    shape = [line.split("#")[0] for line in with_all[0].split(" ")]
    assert [line.split("#")[0] for line in without.split(" ")] == shape


def test_rows_are_the_same_with_rules_left_out(spark):
    lean = LeanSession(spark)
    for number in range(LEARNING_PLANS + 3):
        mine = with_session(totals(spark, number), lean.session)
        with lean.planning(mine):
            found = sorted(map(tuple, mine.collect()))
        assert found == sorted(map(tuple, totals(spark, number).collect()))
    assert lean.left_out


def test_what_spark_needs_is_never_left_out(spark):
    lean = LeanSession(spark)
    for number in range(LEARNING_PLANS + 1):
        planned(lean, totals(spark, number))
    optimizer = lean.session._jsparkSession.sessionState().optimizer()
    required = optimizer.nonExcludableRules()
    assert not lean.left_out & {required.apply(place) for place in range(required.size())}
    assert set(lean.session.conf.get(EXCLUDED).split(",")) == lean.left_out
    assert spark.conf.get(EXCLUDED, "") == "", "the user's session goes on as before"


def test_it_learns_anew_after_a_while_what_another_plan_needs(spark):
    lean = LeanSession(spark)
    for number in range(RELEARN_AFTER):
        planned(lean, spark.range(number))
    assert f"{OPTIMIZER}CollapseProject" in lean.left_out

    twice = spark.range(9).selectExpr("id + 1 AS a").selectExpr("a + 1 AS b")
    for _ in range(LEARNING_PLANS):
        planned(lean, twice)
        assert not lean.left_out
    planned(lean, twice)
    assert f"{OPTIMIZER}CollapseProject" not in lean.left_out
    assert lean.left_out


def test_what_the_user_left_out_stays_so(spark):
    users = f"{OPTIMIZER}CollapseProject"
    spark.conf.set(EXCLUDED, users)
    try:
        lean = LeanSession(spark)
    finally:
        spark.conf.unset(EXCLUDED)
    for number in range(LEARNING_PLANS + 1):
        planned(lean, totals(spark, number))
    assert lean.session.conf.get(EXCLUDED).split(",")[0] == users
    assert users not in lean.left_out
