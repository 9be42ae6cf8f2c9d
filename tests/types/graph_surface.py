"""Types of pipelines and streams as a user's editor sees them: read by the type checkers, never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from typing_extensions import assert_type

import penstock as ps

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def add_tax(frame: DataFrame, rate: float) -> DataFrame:
    return frame.withColumn("tax", frame.amount * rate)


def save(frame: DataFrame, epoch: int) -> None:
    frame.write.mode("overwrite").parquet(f"out/epoch={epoch}")


def _dot(a: Column, b: Column) -> Column:
    return F.sum(a * b)


@ps.pipeline("orders")
def orders(p: ps.Pipeline) -> None:
    raw = p.read("orders", ps.files.Source("in/", format="text"))
    assert_type(raw, ps.Stream)
    assert_type(raw.parse_json("value", "id LONG", on_error="split"), tuple[ps.Stream, ps.Stream])
    assert_type(raw.parse_json("value", "id LONG", on_error="null"), ps.Stream)
    assert_type(raw.parse_json("value", "id LONG"), ps.Stream)
    countries = p.table("countries", "SELECT 1 AS id", refresh="10 minutes")
    assert_type(countries, ps.TableRef)
    joined = p.sql("SELECT o.* FROM {o} o JOIN {c} c USING (id)", o=raw, c=countries)
    timed = joined.transform(add_tax, rate=0.2).with_watermark("at", delay="5 seconds")
    grouped = timed.group_by("user", ps.tumbling("1 minute"))
    assert_type(grouped, ps.GroupedStream)
    kinds = (ps.session("1 hour"), ps.session(by="gap", time="processing"), ps.count_window(10), ps.global_window())
    for window in (*kinds, ps.global_window(every_rows=10)):
        assert_type(timed.group_by("user", window), ps.GroupedStream)
    totals = grouped.agg("totals", ps.agg.sum("amount").alias("amount"), ps.agg.count())
    assert_type(totals, ps.WindowedResult)
    more = grouped.agg(
        "more",
        ps.agg.stddev("amount").where("amount > 0").alias("spread"),
        ps.agg.first("status", by="version", ignore_nulls=True),
        ps.agg.collect("page", limit=10),
        ps.agg.count_distinct("user", "device"),
        ps.agg.approx_count_distinct("user", rsd=0.01),
        ps.agg.percentile("amount", [0.5, 0.99]),
        ps.agg.approx_percentile("amount", 0.5, k=400),
        ps.agg.custom("mine", of=["a", "b"], partial={"s": _dot}, merge={"s": F.sum}, finish=F.sqrt),
    )
    assert_type(more, ps.WindowedResult)
    assert_type(totals.late, ps.Stream)
    assert_type(totals.write("out", ps.files.Sink("out/"), guarantee="exactly-once"), None)
    assert_type(totals.for_each_batch("saved", save), None)
    assert_type(totals.late.for_each_batch("late-saved", save, when="batch"), None)
    assert_type(raw.schema.names, "list[str]")


assert_type(orders, ps.PipelineDefinition)
