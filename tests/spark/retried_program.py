"""A program: steps that send windows or changes, where the first attempt of each task of a batch fails.

Prints, as JSON, the windows, the changes of each batch, and what was observed: rows of layers, late rows, ends of
layers. It is run by itself, since the session of the tests does not try a task again.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from penstock.elements import Batch
from penstock.operators import aggregates as agg
from penstock.operators.windows import results
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.operators.windows.emit_strategy import EmitStrategy
from penstock.spark import kept_plans
from penstock.spark.bound_plans import note_sent, plan_of
from window_harness import Rig

SECOND = 1_000_000
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


def once_more(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows, but not in a task's first attempt, which fails after it."""
    context = TaskContext.get()
    yield from batches
    if context is not None and context.attemptNumber() == 0:
        msg = "the first attempt"
        raise RuntimeError(msg)


def failing(rows: DataFrame) -> DataFrame:
    return rows.mapInArrow(once_more, rows.schema)


def given(number: int) -> list[dict[str, object]]:
    """Rows of a batch; those of the first ten seconds are late from the third batch on."""
    return [
        {"k": [None, "a", "b", "c"][n % 4], "v": n, "at": (n % 3 * 10 + 1) * SECOND}
        for n in range(number * 50, number * 50 + 50)
    ]


def main(*, is_kept: bool, fails: bool, is_sent: bool) -> None:
    """Run four batches and print what came; with ``is_sent`` tasks keep their own rows, and fail after that."""
    builder = SparkSession.builder.master("local[2,4]").appName("retried")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.useIdInClassName": "false",
        "spark.sql.execution.arrow.localRelationThreshold": "0",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "OFF",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if is_kept:  # old rows of keys that a batch does not have are left out, however few there are
        results.MANY_OLD_ROWS, results.OLD_PER_NEW = 1, 0
    else:
        kept_plans.is_keepable = lambda _plan: False
    found = windows(spark, fails=fails, is_sent=is_sent) + changes(spark, is_kept=is_kept, fails=fails, is_sent=is_sent)
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


STEP = WindowAggregate(
    keys=(("k", "k"),),
    time="at",
    window=tumbling("10 seconds"),
    aggregates=(agg.sum("v").alias("v"), agg.count().alias("n")),
)


def windows(spark: SparkSession, *, fails: bool, is_sent: bool) -> list[object]:
    """The windows of three batches, each made by a job of its own, and the counters."""
    found: list[object] = []
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(spark, STEP, SCHEMA, Path(folder), late_read=False)
        preparer = rig.operator._preparer
        below = preparer.prepare(rig.input, failing if fails and not is_sent else lambda rows: rows)
        for number in range(3):
            rig.advance(number * 10 * SECOND)
            rows = rig.frame(given(number))
            if is_sent:
                note_sent(rows, 50)
            rig.process_frame(rig.operator._queries.frame(preparer.bind(below, plan_of(rows))))
        rig.advance(40 * SECOND)
        found.append(sorted(map(repr, sent_by(rig, fails=False))))
        found.append(rig.counts)
    return found


def changes(spark: SparkSession, *, is_kept: bool, fails: bool, is_sent: bool) -> list[object]:
    """The changes of four batches, and what was observed of them."""
    found: list[object] = []
    step = replace(STEP, emission=EmitStrategy(updates=True))
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(spark, step, SCHEMA, Path(folder), late_read=False)
        preparer = rig.operator._preparer
        below = preparer.prepare(rig.input, failing if fails and not is_sent else lambda rows: rows)
        for number in range(4):
            if number == 2:
                rig.advance(10 * SECOND)
            rows = rig.frame(given(number))
            if is_sent:
                note_sent(rows, 50)
            frame = rig.operator._queries.frame(preparer.bind(below, plan_of(rows)))
            batch = Batch(frame=frame, sequence=number)
            deferred = rig.operator.process(batch, source=0, watermark=rig.watermark, emit=rig._emit)
            found.append(sorted(map(repr, sent_by(rig, fails=fails))))
            deferred.finish()
        layers, lease = rig.operator._stack.lease_named([layer.name for layer in rig.operator._stack.sized()])
        found.append([[layer.rows, layer.first_end, layer.last_end] for layer in layers])
        lease.release()
        found.append(rig.counts)
        known = preparer._kept._shapes.values()
        found.append([sum(shape.plan is not None for shape in known), len(known)])
        in_one_stage = [shape for shape in known if shape.plan is not None and shape.plan._own is not None]
        assert len(in_one_stage) == (is_kept and is_sent)
    return found


def sent_by(rig: Rig, *, fails: bool) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for _, batch in rig.sent:
        frame = batch.frame.drop("window_start", "window_end")  # type: ignore[attr-defined]
        rows += map(tuple, (failing(frame) if fails else frame).collect())
        batch.release()
    rig.sent.clear()
    return rows


if __name__ == "__main__":
    main(is_kept="kept" in sys.argv, fails="fails" in sys.argv, is_sent="sent" in sys.argv)
