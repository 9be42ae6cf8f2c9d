"""What the aggregates cost beside the simple ones, by Spark's own counters; and their state as others read it."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from aggregate_cases import SCHEMA, SECOND, step
from penstock.clock import MAX_WATERMARK
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.state.layers import union_layers
from window_harness import Rig, counted, exchanges

pytestmark = pytest.mark.spark


def rows(start: int, count: int = 40) -> list[dict[str, object]]:
    return [
        {
            "user": f"u{n % 7}",
            "at": (start + n % 30) * SECOND,
            "x": n,
            "d": n / 4,
            "f": 0.5,
            "m": None,
            "s": f"s{n % 5}",
        }
        for n in range(count)
    ]


def one_pass(rig: Rig, start: int) -> list[int]:
    """Stacks of one to three layers, fired, merged, written; the number of jobs of each batch."""
    jobs = []
    for height in range(1, 4):
        for _ in range(height):
            with counted(rig.spark) as batch:
                rig.process(rows(start))
            jobs.append(batch.jobs)
        rig.advance((start + 10) * SECOND)
        rig.take()
        rig.operator._compact(rig.operator._due)
        rig.checkpoint()
        rig.advance((start + 90) * SECOND)
        rig.take()
        start += 100
    return jobs


FEW = ("stddev_d", "first_s", "count_distinct_d", "approx_count_distinct_s", "percentile_d", "approx_percentile_x")
MORE = ("last_pair", "count_distinct_x_s", "collect_d", "collect_where", "sum_where", "geometric", "dot")


@pytest.mark.parametrize("names", [FEW, MORE], ids=["few", "more"])
def test_a_batch_is_one_job_and_nothing_is_compiled_after_one_pass(spark, tmp_path, names):
    rig = Rig(spark, step(names), SCHEMA, tmp_path)
    assert set(one_pass(rig, 1_000)) == {1}
    with counted(spark) as second:
        jobs = one_pass(rig, 2_000)
    assert set(jobs) == {1}
    assert second.compilations == 0
    rig.operator.close()


def test_no_exchange_lies_above_layers_whichever_way_spark_aggregates(spark, tmp_path):
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    for _ in range(3):
        rig.process(rows(0))
    rig.advance(10 * SECOND)
    (_, batch), *_ = rig.sent
    assert exchanges(batch.frame) == 0
    layers, lease = rig.operator._stack.lease_due(0, MAX_WATERMARK)
    frames = rig.operator._frames
    assert exchanges(frames.layers_format.merged(frames.layers_format.between(union_layers(layers), 0))) == 0
    lease.release()
    batch.release()
    rig.operator.close()


@pytest.mark.usefixtures("few_layers")
def test_sketches_keep_their_promise_over_many_batches(spark, tmp_path):
    """Beyond the few values that they count exactly: relative error of the count, rank error of the percentile."""
    chosen = (agg.approx_count_distinct("x"), agg.approx_percentile("d", [0.01, 0.5, 0.99]))
    one_window = WindowAggregate(keys=(), time="at", window=tumbling("1 hour"), aggregates=chosen)
    rig = Rig(spark, one_window, SCHEMA, tmp_path)
    size = 20_000
    for batch in range(5):
        first = batch * size // 2  # each shares half of its values with the next
        made = spark.range(first, first + size).selectExpr(
            "'a' AS user", "timestamp_seconds(1) AS at", "CAST(id AS INT) AS x", "CAST(id AS DOUBLE) AS d", "0F AS f",
            "CAST(NULL AS DECIMAL(10, 2)) AS m", "'' AS s",
        )  # fmt: skip
        rig.process_frame(made)
    rig.maintain()
    handle = rig.checkpoint()
    assert rig.bytes_written() < 50_000
    rig = rig.again(handle)
    rig.advance(MAX_WATERMARK)
    ((_, _, count, shares),) = rig.take()
    ranks = [spark.sql(rank_query(size, value)).first()[0] for value in shares]
    assert count == pytest.approx(3 * size, rel=3 * 0.02)
    assert ranks == pytest.approx([0.01, 0.5, 0.99], abs=2 * 0.014)
    rig.operator.close()


def rank_query(size: int, value: float) -> str:
    """The share of all values of the five batches above at or below one."""
    batches = f"SELECT id + b * {size // 2} AS v FROM range({size}), (SELECT explode(sequence(0, 4)) AS b)"
    return f"SELECT count_if(v <= {value}) / count(*) FROM ({batches})"


def test_a_sketch_of_another_size_goes_on_with_the_coarser(spark, tmp_path):
    def sized(rsd: float, k: int) -> WindowAggregate:
        chosen = (agg.approx_count_distinct("x", rsd=rsd), agg.approx_percentile("x", 0.5, k=k))
        return WindowAggregate(keys=(), time="at", window=tumbling("1 hour"), aggregates=chosen)

    rig = Rig(spark, sized(0.02, 200), SCHEMA, tmp_path)
    rig.process(rows(0))
    handle = rig.checkpoint()
    rig.operator.close()
    rig = Rig(spark, sized(0.1, 50), SCHEMA, tmp_path, generation=2, restored=handle)
    rig.process(rows(0))
    rig.advance(MAX_WATERMARK)
    assert rig.take()[0][2:] == (40, 19)
    rig.operator.close()


def test_duckdb_reads_the_parts_from_the_files_alone(spark, tmp_path):
    names = ("stddev_d", "first_s", "last_pair", "count_distinct_d", "collect_s", "percentile_d", "approx_percentile_x")
    rig = Rig(spark, step(names), SCHEMA, tmp_path)
    rig.process(rows(0))
    handle = rig.checkpoint()
    files = [str(tmp_path / file.path) for layer in handle.layers for file in layer.files]
    assert handle.schema == (
        "`user` string, `window_start` timestamp, `window_end` timestamp, "
        "`stddev_d__moments` struct<n:bigint,mean:double,m2:double>, "
        "`first_s__first` struct<by:int,value:string>, "
        "`last_pair__last` struct<by:timestamp,value:struct<x:int,s:string>>, "
        "`count_distinct_d__set` array<double>, `percentile_d__values` array<double>, "
        "`approx_percentile_x__kll` binary, `collect_s__values` array<struct<by:timestamp,value:string>>"
    )
    found = duckdb.sql(
        "SELECT user, len(list_distinct(flatten(list(count_distinct_d__set)))), min(first_s__first).value, "
        "max(last_pair__last).value.s, len(flatten(list(percentile_d__values))), "
        "list_transform(list_sort(flatten(list(collect_s__values))), lambda e: e.value) "
        f"FROM read_parquet({files}) WHERE window_end = make_timestamptz(10 * {SECOND}) GROUP BY user ORDER BY user"
    ).fetchall()
    rig.advance(10 * SECOND)
    wanted = [(row[0], row[6], row[4], row[5].s, row[6], row[-1]) for row in rig.take()]
    assert found == wanted
    rig.operator.close()


def test_the_parts_of_moments_give_the_deviation_in_another_engine(spark, tmp_path):
    chosen = (agg.stddev("d").alias("d"),)
    one_window = WindowAggregate(keys=(), time="at", window=tumbling("1 hour"), aggregates=chosen)
    rig = Rig(spark, one_window, SCHEMA, tmp_path)
    for batch in range(3):
        rig.process([{"user": "a", "at": 0, "d": 1e9 + (batch * 7 + n) ** 2} for n in range(7)])
        handle = rig.checkpoint()
    files = [str(tmp_path / file.path) for layer in handle.layers for file in layer.files]
    found = duckdb.sql(
        f"WITH p AS (SELECT d__moments AS p FROM read_parquet({files})), "
        "t AS (SELECT sum(p.n) AS n, sum(p.n * p.mean) / sum(p.n) AS mean FROM p) "
        "SELECT sqrt(sum(p.m2 + p.n * (p.mean - t.mean) ** 2) / (any_value(t.n) - 1)) FROM p, t"
    ).fetchall()
    rig.advance(MAX_WATERMARK)
    values = pa.array([float(n * n) for n in range(21)])
    exact = duckdb.sql("SELECT stddev_samp(v) FROM (SELECT unnest($1) AS v)", params=[values.to_pylist()]).fetchall()
    assert rig.take()[0][2] == pytest.approx(exact[0][0], rel=1e-9)
    assert found[0][0] == pytest.approx(exact[0][0], rel=1e-9)
    rig.operator.close()
