"""Results of all aggregates, against Spark's own over all rows at once."""

from __future__ import annotations

import math
import tempfile
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import oracle.aggregates
from aggregate_cases import NAMES, SCHEMA, SECOND, assert_same, expected, step
from penstock.clock import MAX_WATERMARK
from penstock.interfaces.operator import LATE_PORT, MAIN_PORT
from window_harness import Rig, persistent

pytestmark = pytest.mark.spark

LONG = "k" * 300
SPECIAL = [None, 0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.25, 1000.0, 0.1]


def row(user, at, x=None, d=None, f=None, m=None, s=None) -> dict[str, object]:
    return {"user": user, "at": round(at * SECOND), "x": x, "d": d, "f": f, "m": m, "s": s}


ROWS = [
    row("a", 1, 4, 0.5, 0.5, Decimal("1.10"), "p"),
    row("a", 1, 4, -0.0, -0.0, Decimal("1.10"), "q"),
    row("a", 1, 5, 0.0, math.nan, Decimal("-3.33"), ""),
    row("a", 2, None, math.nan, 0.0, None, "p"),
    row("a", 9.999999, -7, None, 2.5, Decimal("99999999.99"), None),
    row("a", 10, 9, 1e9, 1.0, Decimal("0.01"), "p"),
    row("a", 11, 9, 1e9 + 1, 1.0, Decimal("0.02"), "p"),
    row("a", 12, 9, 1e9 + 2, 1.0, Decimal("0.03"), "p"),
    row(None, 3, 1, 3.0, 3.0, Decimal("5.00"), "x"),
    row(LONG, 4),
    row(LONG, 5),
    row(LONG, 14, 4, math.inf, math.inf, Decimal("1.00"), LONG),
    row("", -20_000_000_000, 3, 1e-300, 1e-30, Decimal("7.00"), "p"),
]


@pytest.mark.parametrize("names", [NAMES[start::3] for start in range(3)], ids=["some", "others", "rest"])
def test_results_and_types_are_sparks_own(spark, tmp_path, names):
    rig = Rig(spark, step(names), SCHEMA, tmp_path)
    for start in range(0, len(ROWS), 3):
        rig.process(ROWS[start : start + 3])
    handle = rig.checkpoint()
    rig = rig.again(handle, partitions=3)
    rig.advance(MAX_WATERMARK)
    found = rig.sent[0][1].frame
    assert_same([tuple(row) for row in found.collect()], expected(spark, ROWS, names), names)
    types = [(field.name, field.dataType.simpleString()) for field in found.schema]
    wanted = spark.sql(oracle.aggregates.query("all_rows", names)).schema
    assert types == [(field.name, field.dataType.simpleString()) for field in wanted]
    declared = rig.spec.ports((rig.input,))[MAIN_PORT]
    assert types == [(field.name, field.dataType.simpleString()) for field in declared]
    rig.operator.close()


def test_an_approximate_percentile_of_no_values_is_null(spark, tmp_path):
    rig = Rig(spark, step(("approx_percentile_x",)), SCHEMA, tmp_path)
    rig.process([row("a", 1, 4), row("b", 1)])
    rig.advance(MAX_WATERMARK)
    assert {each[0]: each[-1] for each in rig.sent[0][1].frame.collect()} == {"a": 4, "b": None}
    rig.operator.close()


@pytest.mark.parametrize("names", [("percentile_d",), ("percentile_m",)])
def test_percentiles_have_all_digits_of_sparks(spark, tmp_path, names):
    rig = Rig(spark, step(names), SCHEMA, tmp_path)
    given = [row("a", 1, d=-math.inf), row("a", 2, d=0.0), row("b", 1, d=math.inf), row("b", 1, d=-1.0)]
    given += [row("c", 1, d=1e18 + n * 128, m=round(Decimal(n * n) / 7, 2)) for n in range(20)]
    rig.process(given)
    rig.advance(MAX_WATERMARK)
    ours = rig.take()
    theirs = expected(spark, given, names)
    assert sorted(map(repr, ours)) == sorted(map(repr, theirs))
    rig.operator.close()


rows = st.lists(
    st.builds(
        row,
        st.sampled_from([None, "", "a", LONG]),
        st.integers(0, 30),
        st.none() | st.integers(-3, 9),
        st.sampled_from(SPECIAL) | st.integers(-4000, 4000).map(lambda n: n / 16),
        st.sampled_from(SPECIAL) | st.integers(-64, 64).map(lambda n: n / 4),
        st.none() | st.decimals("-99999999.99", "99999999.99", places=2),
        st.sampled_from([None, "", "p", "q", LONG]),
    ),
    max_size=12,
)
works = st.lists(
    st.tuples(st.just("batch"), rows)
    | st.tuples(st.just("advance"), st.integers(1, 12))
    | st.tuples(st.just("restart"), st.integers(1, 3))
    | st.tuples(st.just("merge"), st.none()),
    min_size=3,
    max_size=7,
)


# No shrinking: it takes longer than a test may, and one that is cut off in a call to the JVM fails all after it.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(names=st.sets(st.sampled_from(NAMES), min_size=6, max_size=8), works=works)
def test_however_rows_come_the_results_are_those_of_sql_over_all_of_them(spark, names, works):
    """Batches of any size, late rows, merges, snapshots restored with another number of partitions."""
    before = persistent(spark)
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(spark, step(names), SCHEMA, Path(folder))
        accepted, late, found, clock = [], 0, [], 0
        for what, detail in works:
            match what:
                case "batch":
                    rig.process(detail)
                    in_time = [row for row in detail if int(str(row["at"])) // SECOND // 10 * 10 + 10 > clock]
                    accepted += in_time
                    late += len(detail) - len(in_time)
                case "advance":
                    clock += detail
                    rig.advance(clock * SECOND)
                    found += rig.take()
                case "restart":
                    rig = rig.again(rig.checkpoint(), partitions=detail)
                case "merge":
                    rig.operator._compact(rig.operator._due)
                    rig.maintain()
            assert len(rig.take(LATE_PORT)) == rig.counts.pop("late", 0)
        rig.advance(MAX_WATERMARK)
        found += rig.take()
        rig.operator.close()
        assert_same(found, expected(spark, accepted, names), names)
        assert persistent(spark) <= before
