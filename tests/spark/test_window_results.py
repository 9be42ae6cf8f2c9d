from __future__ import annotations

import math
from datetime import datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock import clock
from penstock.clock import MAX_WATERMARK
from penstock.errors import GraphError
from penstock.interfaces.operator import LATE_PORT, MAIN_PORT
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from window_harness import Rig

pytestmark = pytest.mark.spark

SECOND = clock.parse_duration("second", "1 second")
MINUTE = 60 * SECOND
AT = pa.timestamp("us", tz="UTC")


def at(seconds: float) -> int:
    return round(seconds * SECOND)


def time(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / SECOND, tz=timezone.utc).replace(tzinfo=None)


ROWS = [
    {"user": "a", "at": at(0), "x": 1, "d": 0.5, "m": Decimal("0.10")},
    {"user": "a", "at": at(59.999999), "x": 2, "d": math.nan, "m": Decimal("0.20")},
    {"user": "a", "at": at(60), "x": None, "d": -0.0, "m": None},
    {"user": None, "at": at(61), "x": 5, "d": None, "m": Decimal("99999999.99")},
    {"user": None, "at": at(-1), "x": 6, "d": 0.0, "m": Decimal("-3.33")},
    {"user": "b" * 300, "at": at(-60), "x": 7, "d": -1e300, "m": Decimal("1.00")},
    {"user": "b" * 300, "at": at(-60.000001), "x": 8, "d": 1e300, "m": Decimal("2.00")},
    {"user": "a", "at": at(59), "x": 9, "d": 2.25, "m": Decimal("0.07")},
    {"user": "", "at": at(-20_000_000_000), "x": -9, "d": math.inf, "m": Decimal("0.01")},
]
SCHEMA = pa.schema(
    [("user", pa.string()), ("at", AT), ("x", pa.int32()), ("d", pa.float64()), ("m", pa.decimal128(10, 2))]
)
MEASURES = [
    ("sum", "x"),
    ("count", "x"),
    ("min", "x"),
    ("max", "x"),
    ("avg", "x"),
    ("sum", "d"),
    ("min", "d"),
    ("max", "d"),
    ("avg", "d"),
    ("sum", "m"),
    ("avg", "m"),
    ("max", "user"),
]


def spec(*keys: str, size: str = "1 minute", offset: str | None = None, measures=MEASURES) -> WindowAggregate:
    chosen = [getattr(agg, function)(column).alias(f"{function}_{column}") for function, column in measures]
    return WindowAggregate(
        keys=tuple((f"k{place}", key) for place, key in enumerate(keys)),
        time="at",
        window=tumbling(size, offset=offset),
        aggregates=(*chosen, agg.count().alias("n")),
    )


def oracle(spark, frame, *keys: str, measures=MEASURES):
    """The same by Spark's own groupBy, over all rows at once."""
    frame.createOrReplaceTempView("oracle_rows")
    minute = "floor(unix_micros(at) / 60000000D)"
    columns = [f"{key} AS k{place}" for place, key in enumerate(keys)]
    columns += [f"timestamp_micros(CAST({minute} * 60000000 AS BIGINT)) AS window_start"]
    columns += [f"timestamp_micros(CAST({minute} * 60000000 + 60000000 AS BIGINT)) AS window_end"]
    columns += [f"{function}({column}) AS {function}_{column}" for function, column in measures] + ["count(*) AS n"]
    group = ", ".join([*keys, minute])
    return spark.sql(f"SELECT {', '.join(columns)} FROM oracle_rows GROUP BY {group}")


def rows_of(frame) -> list[str]:
    return sorted(repr(tuple(row)) for row in frame.collect())


@pytest.mark.parametrize(
    "keys",
    [("user",), (), ("d",), ("m",), ("x", "user"), ("named_struct('u', user, 'd', d)",), ("array(x)",), ("at",)],
    ids=["string", "none", "double", "decimal", "two", "struct", "array", "timestamp"],
)
def test_results_and_types_are_those_of_one_group_by_over_all_rows(spark, tmp_path, keys):
    rig = Rig(spark, spec(*keys), SCHEMA, tmp_path)
    for start in range(0, len(ROWS), 2):
        rig.process(ROWS[start : start + 2])
    rig.maintain()
    rig.advance(MAX_WATERMARK)
    (_, batch), *rest = rig.sent
    assert rest == []
    expected = oracle(spark, rig.frame(ROWS), *keys)
    assert rows_of(batch.frame) == rows_of(expected)
    assert [(f.name, f.dataType) for f in batch.frame.schema] == [(f.name, f.dataType) for f in expected.schema]
    ports = rig.spec.ports((rig.input,))
    assert [(f.name, f.dataType) for f in ports[MAIN_PORT]] == [(f.name, f.dataType) for f in expected.schema]
    assert ports[LATE_PORT] == rig.input
    rig.operator.close()


@pytest.mark.parametrize("kind", ["decimal(38,18)", "decimal(28,18)", "decimal(22,4)", "decimal(5,0)"])
def test_means_of_decimals_equal_sparks_to_the_last_digit(spark, tmp_path, kind):
    measures = [("avg", f"CAST(m AS {kind})"), ("sum", f"CAST(m AS {kind})")]
    chosen = [getattr(agg, function)(column).alias(function) for function, column in measures]
    step = WindowAggregate(keys=(("k", "user"),), time="at", window=tumbling("1 minute"), aggregates=tuple(chosen))
    rig = Rig(spark, step, SCHEMA, tmp_path)
    rows = [{"user": "a", "at": at(n / 100), "m": Decimal(n * n) / 100} for n in range(7)]
    for row in rows:
        rig.process([row])
    rig.advance(MAX_WATERMARK)
    rig.frame(rows).createOrReplaceTempView("oracle_rows")
    expected = spark.sql(f"SELECT avg(CAST(m AS {kind})) AS a, sum(CAST(m AS {kind})) AS s FROM oracle_rows")
    found = rig.sent[0][1].frame.select("avg", "sum")
    assert [f.dataType for f in found.schema] == [f.dataType for f in expected.schema]
    assert rows_of(found) == rows_of(expected)
    rig.operator.close()


def test_windows_do_not_depend_on_the_session_time_zone_and_offsets_shift_them(spark, tmp_path):
    step = spec("user", size="1 day", offset="-2 hours", measures=[])
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        rig = Rig(spark, step, SCHEMA, tmp_path)
        rig.process([{"user": "a", "at": at(21.9 * 3600)}, {"user": "a", "at": at(22 * 3600)}])
        rig.advance(MAX_WATERMARK)
        found = rig.sent[0][1].frame.selectExpr("unix_seconds(window_start)", "unix_seconds(window_end)", "n")
        assert rows_of(found) == rows_of(
            spark.createDataFrame([(-7200, 79200, 1), (79200, 165600, 1)], "a long, b long, n long")
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    rig.operator.close()


def test_late_rows_are_kept_as_they_came_and_counted(spark, tmp_path):
    rig = Rig(spark, spec("user", measures=[("sum", "x")]), SCHEMA, tmp_path)
    rig.process([{"user": "a", "at": at(30), "x": 1}])
    rig.advance(at(60))
    late = {"user": "a", "at": at(59.5), "x": 2, "d": 0.5, "m": Decimal("1.00")}
    missing = {"user": "b", "at": None, "x": 3, "d": None, "m": None}
    rig.process([late, missing, {"user": "a", "at": at(60), "x": 4}])
    assert rig.counts == {"fired": 1, "late": 2, "missing_time": 1}
    assert [port for port, _ in rig.sent] == [MAIN_PORT, LATE_PORT]
    assert rig.sent[1][1].rows == 2
    assert rig.take(LATE_PORT) == [("a", time(at(59.5)), 2, 0.5, Decimal("1.00")), ("b", None, 3, None, None)]
    rig.advance(MAX_WATERMARK)
    assert rig.take() == [("a", time(0), time(MINUTE), 1, 1), ("a", time(MINUTE), time(2 * MINUTE), 4, 1)]
    rig.operator.close()


def test_late_rows_nobody_reads_are_only_counted(spark, tmp_path):
    rig = Rig(spark, spec("user", measures=[]), SCHEMA, tmp_path, late_read=False, watermark=at(60))
    rig.process([{"user": "a", "at": at(1)}, {"user": "a", "at": None}])
    assert rig.sent == []
    assert rig.counts == {"late": 2, "missing_time": 1}
    assert rig.operator._stack.height == 0
    rig.operator.close()


def test_rows_of_a_later_batch_with_the_same_time_are_not_late(spark, tmp_path):
    rig = Rig(spark, spec("user", measures=[("sum", "x")]), SCHEMA, tmp_path)
    rig.process([{"user": "a", "at": at(59), "x": 1}])
    rig.advance(at(59))
    rig.process([{"user": "a", "at": at(59), "x": 2}])
    rig.advance(at(59.9))
    assert rig.sent == []
    rig.advance(at(60))
    assert rig.take() == [("a", time(0), time(MINUTE), 3, 2)]
    assert "late" not in rig.counts
    rig.operator.close()


def test_each_window_fires_once_and_only_when_due(spark, tmp_path):
    rig = Rig(spark, spec("user", measures=[]), SCHEMA, tmp_path)
    rig.process([{"user": "a", "at": at(60 * n)} for n in range(-3, 5)])
    fired = []
    for watermark in (at(-60), at(-60), at(0), at(59), at(150), MAX_WATERMARK, MAX_WATERMARK):
        rig.advance(watermark)
        fired.append([row[2] for row in rig.take()])
    ends = [time(n * MINUTE) for n in range(-2, 6)]
    assert fired == [ends[:2], [], ends[2:3], [], ends[3:5], ends[5:], []]
    rig.operator.close()


def test_results_can_be_windowed_again(spark, tmp_path):
    first = Rig(spark, spec("user", measures=[("sum", "x")]), SCHEMA, tmp_path / "first")
    first.process([{"user": "a", "at": at(n), "x": 1} for n in range(0, 600, 30)])
    first.advance(MAX_WATERMARK)
    schema = first.spec.ports((first.input,))[MAIN_PORT]
    hours = WindowAggregate(
        keys=(("user", "k0"),),
        time="window_start",
        window=tumbling("5 minutes"),
        aggregates=(agg.sum("sum_x").alias("x"), agg.max("window_end").alias("until")),
    )
    assert hours.ports((schema,))[MAIN_PORT].names == ["user", "window_start", "window_end", "x", "until"]
    arrow = pa.schema([("k0", pa.string()), ("window_start", AT), ("window_end", AT), ("sum_x", pa.int64())])
    second = Rig(spark, hours, arrow, tmp_path / "second")
    second.process_frame(first.sent[0][1].frame.drop("n"))
    second.advance(MAX_WATERMARK)
    assert second.take() == [
        ("a", time(0), time(5 * MINUTE), 10, time(5 * MINUTE)),
        ("a", time(5 * MINUTE), time(10 * MINUTE), 10, time(10 * MINUTE)),
    ]
    first.operator.close()
    second.operator.close()


def refusal(spark, step: WindowAggregate, ddl: str = "user STRING, at TIMESTAMP, x INT, tags MAP<STRING, INT>") -> str:
    from pyspark.sql.types import StructType

    with pytest.raises(GraphError) as error:
        step.ports((StructType.fromDDL(ddl),))
    return str(error.value)


def step(keys=(("user", "user"),), time="at", aggregates=()) -> WindowAggregate:
    return WindowAggregate(keys=keys, time=time, window=tumbling("1 minute"), aggregates=aggregates or (agg.count(),))


def test_refuses_an_unknown_column_with_the_nearest_names(spark):
    assert "Column 'usr' does not exist. Did you mean 'user'?" in refusal(spark, step(keys=(("u", "usr"),)))
    assert "Column 'att' does not exist. Did you mean 'at'?" in refusal(spark, step(time="att"))
    assert "Column 'y' does not exist. Columns: user, at, x," in refusal(spark, step(aggregates=(agg.sum("y"),)))


def test_refuses_a_time_that_is_no_timestamp_and_keys_that_cannot_be_grouped(spark):
    assert "'x' is int, but the event time of windows is a TIMESTAMP" in refusal(spark, step(time="x"))
    assert "Key 'tags' is map<string,int>" in refusal(spark, step(keys=(("tags", "tags"),)))
    assert "array<map<string,int>>" in refusal(spark, step(keys=(("tags", "array(tags)"),)))


def test_refuses_two_columns_of_one_name(spark):
    assert "Two columns of the result would be called 'USER'" in refusal(
        spark, step(aggregates=(agg.count().alias("USER"),))
    )
    assert "Two columns of the result would be called 'window_end'" in refusal(spark, step(keys=(("window_end", "x"),)))
    clash = step(keys=(("n__count", "x"),), aggregates=(agg.count().alias("n"),))
    assert "Two columns of the state would be called 'n__count'" in refusal(spark, clash)


def test_refuses_plain_spark_aggregates_with_the_name_to_use(spark):
    from pyspark.sql import functions as F

    for given, use in [
        (F.sum("x"), "ps.agg.sum"),
        (F.mean("x"), "ps.agg.avg"),
        (F.mode("x"), "one of ps.agg.approx_count_distinct, ps"),
        ("x", "one of"),
    ]:
        with pytest.raises(GraphError, match=rf"cannot be merged over batches\. Use {use}"):
            agg.check_aggregate(given)
    with pytest.raises(GraphError, match=r"has no name. Add \.alias"):
        _ = agg.sum("x + 1").label
