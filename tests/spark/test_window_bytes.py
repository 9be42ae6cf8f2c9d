"""What checkpoints write over what changed, and what lies there over what counts: in bytes of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.clock import MAX_WATERMARK
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.state import parquet
from window_harness import Rig

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.handles import StateHandle

pytestmark = pytest.mark.spark

KEYS, PARTS = 40_000, 20
"""Each checkpoint interval changes one of so many equal parts of all keys, drawn anew each time."""

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])


def step() -> WindowAggregate:
    aggregates = (agg.sum("x").alias("x"), agg.count().alias("n"))
    return WindowAggregate(keys=(("user", "user"),), time="at", window=tumbling("1 hour"), aggregates=aggregates)


def rows(spark: Any, number: int | None = None) -> Any:
    """A row of each key, or of those keys that change in an interval."""
    some = "true" if number is None else f"pmod(xxhash64(id, {number}L), {PARTS}) = 0"
    return spark.sql(
        "SELECT concat('user-', id) AS user, timestamp_micros(xxhash64(id) % 1000000000 + 1000000000) AS at, "
        f"xxhash64(id, {number or 0}L) % 1000000 AS x FROM range({KEYS}) WHERE {some}"
    )


def changed_bytes(rig: Rig, number: int, folder: Path) -> int:
    """Bytes of the rows of state that an interval changes, as one Parquet file of their own, with Spark's own sums."""
    rows(rig.spark, number).groupBy("user").agg({"x": "sum", "at": "min", "*": "count"}).selectExpr(
        "user",
        "date_trunc('hour', `min(at)`) AS window_start",
        "date_trunc('hour', `min(at)`) + INTERVAL 1 HOUR AS window_end",
        "`sum(x)` AS x__sum",
        "`count(1)` AS n__count",
    ).coalesce(1).write.option("compression", "zstd").parquet(str(folder / str(number)))
    return sum(path.stat().st_size for path in (folder / str(number)).glob("*.parquet"))


def referred(handle: StateHandle) -> int:
    return sum(file.length for layer in handle.layers for file in layer.files)


def everything(spark: Any, intervals: int) -> Any:
    """All rows at once."""
    return spark.sql(
        "SELECT concat('user-', id) AS user, timestamp_micros(xxhash64(id) % 1000000000 + 1000000000) AS at, "
        f"xxhash64(id, number) % 1000000 AS x FROM range({KEYS}) LATERAL VIEW explode(sequence(0L, {intervals}L)) AS "
        f"number WHERE number = 0 OR pmod(xxhash64(id, number), {PARTS}) = 0"
    )


@pytest.mark.slow
def test_half_as_much_again_is_written_as_changes_and_what_lies_there_settles_near_what_counts(
    spark, tmp_path, monkeypatch
):
    """One part in twenty of a window's keys changes between two checkpoints, until merges have come round."""
    monkeypatch.setattr(parquet, "ROWS_A_MERGE", 30_000)  # several slices a merge, as large state has
    rig = Rig(spark, step(), SCHEMA, tmp_path / "state")
    rig.process_frame(rows(spark))
    rig.checkpoint()
    before, intervals, merged = rig.bytes_written(), 50, 0
    for number in range(1, intervals + 1):
        rig.process_frame(rows(spark, number))
        handle = rig.checkpoint()
        merged = max(merged, *(layer.level for layer in handle.layers))
        rig.maintain()
    written = rig.bytes_written() - before
    sample = [changed_bytes(rig, number, tmp_path / "changed") for number in (1, 25)]
    assert merged > 0, "no merge came round"
    assert written <= 1.5 * sum(sample) / len(sample) * intervals

    for _ in range(4):  # nothing changes any more
        rig.checkpoint()
        rig.maintain()
    handle = rig.checkpoint()
    alone = Rig(spark, step(), SCHEMA, tmp_path / "alone")
    alone.process_frame(everything(spark, intervals))
    assert referred(handle) <= 1.3 * referred(alone.checkpoint())
    again = rig.again(handle)
    for each in (again, alone):
        each.advance(MAX_WATERMARK)
    assert again.take() == alone.take() != []
    again.operator.close()
    alone.operator.close()
