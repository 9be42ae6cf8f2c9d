"""The end of a windowed aggregate: a thread that is still in a job, a context that was stopped, a JVM that died."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

from penstock.errors import CheckpointAborted
from penstock.interfaces.operator import LATE_PORT
from penstock.operators import aggregates as agg
from penstock.operators.windows import operator
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.spark.blocks import free_blocks
from penstock.state import layers
from window_harness import Rig, persistent

SECOND = 1_000_000
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
STEP = WindowAggregate(
    keys=(("user", "user"),), time="at", window=tumbling("10 seconds"), aggregates=(agg.count().alias("n"),)
)


def rows(*seconds: int) -> list[dict[str, object]]:
    return [{"user": "a", "at": second * SECOND} for second in seconds]


@pytest.mark.spark
@pytest.mark.parametrize("seconds", [(1, 25), (1,)], ids=["a layer", "late rows only"])
def test_a_batch_that_ends_after_the_step_was_closed_keeps_and_sends_nothing(spark, tmp_path, monkeypatch, seconds):
    before = persistent(spark)
    rig = Rig(spark, STEP, SCHEMA, tmp_path)
    keep = layers.cache_layer

    def keep_and_close(*args, **kwargs):
        made = keep(*args, **kwargs)
        rig.operator.close()
        return made

    rig.advance(20 * SECOND)
    rig.process(rows(1, 22))
    assert len(rig.sent) == 1
    assert len(rig.take(LATE_PORT)) == 1
    monkeypatch.setattr(operator, "cache_layer", keep_and_close)
    rig.process(rows(*seconds))
    rig.advance(40 * SECOND)
    assert rig.sent == []
    assert persistent(spark) <= before


@pytest.mark.spark
def test_a_closed_step_does_not_name_a_state_that_lacks_its_layers(spark, tmp_path):
    before = persistent(spark)
    rig = Rig(spark, STEP, SCHEMA, tmp_path)
    rig.process(rows(1))
    early = rig.operator.snapshot(1)
    rig.operator.close()
    for pending in (early, rig.operator.snapshot(2)):
        with pytest.raises(CheckpointAborted, match="given up"):
            pending.materialise()
    assert persistent(spark) <= before


@pytest.mark.spark
def test_what_cannot_be_freed_though_spark_lives_is_an_error(spark):
    from py4j.protocol import Py4JError

    with pytest.raises(Py4JError):
        free_blocks(spark.range(3))


ENDS = """
import sys
from pyspark.sql import SparkSession
from penstock.spark.blocks import free_blocks, local_checkpoint, unpersist

def held():
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    persisted = spark.range(5).persist()
    persisted.count()
    return spark, local_checkpoint(spark.range(7)), persisted

def let_go(kept, persisted):
    free_blocks(kept)
    unpersist(persisted)

spark, *frames = held()
spark.stop()
let_go(*frames)

spark, *frames = held()
spark.sparkContext._jsc.sc().stop()
let_go(*frames)
spark.stop()

spark, *frames = held()
jvm = spark.sparkContext._gateway.proc
jvm.kill()
jvm.wait()
let_go(*frames)
print("let go three times", flush=True)
"""


@pytest.mark.slow
@pytest.mark.crash
def test_letting_go_is_silent_once_the_context_is_stopped_or_the_jvm_is_dead():
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-W", "ignore", "-c", ENDS]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "let go three times" in ended.stdout, ended.stderr[-3_000:]
