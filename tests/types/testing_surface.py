"""`penstock.testing` as a user's editor sees it: read by pyright, never run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import penstock as ps
from penstock.testing.clock import ManualClock
from penstock.testing.frames import assert_rows
from penstock.testing.operator_harness import OperatorHarness
from penstock.testing.pipeline_run import PipelineRun
from penstock.testing.sources import End, ScriptedSource
from penstock.testing.substitute import CollectSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def a_test(pipeline: ps.PipelineDefinition, spark: SparkSession) -> None:
    with ps.testing.run(pipeline, spark, clock=ManualClock("2026-06-01"), checkpoint_every="5s") as t:
        run: PipelineRun = t
        run.send("in", [{"id": 1}, End()])
        number: int | None = run.checkpoint()
        run.crash(at="sink.published")
        run.restart()
        rows: list[dict[str, Any]] = run.rows("out", "id")
        assert_rows(rows, [{"id": 1}])
    with OperatorHarness.of(pipeline, "counts", spark, partitions=4) as step:
        step.send(spark.range(3))
        step.restore(step.snapshot())
    ps.Pipeline("p").read("in", ScriptedSource("id LONG", [{"id": 1}])).write("out", CollectSink())
