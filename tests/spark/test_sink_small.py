from __future__ import annotations

import json
from dataclasses import replace

import pytest

from penstock.connectors import console, memory
from penstock.connectors.committers import committer
from penstock.elements import Batch, ObservedMetrics
from penstock.errors import GraphError
from penstock.handles import CheckpointId, CommitOutcome, Generation, Guarantee
from penstock.interfaces.sink import CommitContext, SinkContext
from window_harness import counted

pytestmark = pytest.mark.spark


def writer(spark, sink, schema, generation=1):
    return sink.writer(
        SinkContext(
            uid="out",
            spark=spark,
            schema=schema,
            log_id="log",
            job="job",
            generation=Generation(generation),
            filesystem=None,
            staging="",
            cores=2,
        )
    )


def jobs(spark, action):
    with counted(spark) as cost:
        result = action()
    return result, cost.jobs


def test_console_prints_the_first_rows_in_one_job_that_runs_over_all(spark, capfd):
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    frame = spark.range(0, 1000, 1, 4).selectExpr("id", "repeat('x', 100) AS long")
    observation = Observation("all")
    observed = frame.observe(observation, F.count(F.lit(1)).alias("n"))
    out = writer(spark, console.Sink(2, truncate=5), frame.schema)
    measure = ObservedMetrics(lambda: observation.get)
    batch = Batch(frame=observed, sequence=4, metrics={"rows": measure})
    assert jobs(spark, lambda: out.write(batch)) == (1000, 1)
    assert measure.value == {"n": 1000}
    assert capfd.readouterr().out == (
        "-- out, batch 4, 1000 rows\n"
        "+---+-----+\n| id| long|\n+---+-----+\n|  0|xx...|\n|  1|xx...|\n+---+-----+\nonly showing top 2 rows\n"
    )
    assert out.prepare(CheckpointId(1)).materialise() == ()
    assert console.Sink().guarantee is Guarantee.AT_LEAST_ONCE
    with pytest.raises(GraphError):
        console.Sink(0)


class Pipe:
    """Standard output, closed at the other end."""

    calls = 0

    def write(self, text):
        self.calls += 1

    def flush(self):
        raise BrokenPipeError(32, "Broken pipe")


def test_console_counts_on_when_nobody_reads(spark, monkeypatch, caplog):
    pipe = Pipe()
    monkeypatch.setattr("sys.stdout", pipe)
    frame = spark.range(7)
    out = writer(spark, console.Sink(2), frame.schema)
    measure = ObservedMetrics(lambda: {"rows": 7})
    assert out.write(Batch(frame=frame, sequence=1)) == 7
    assert out.write(Batch(frame=frame, sequence=2, metrics={"rows": measure})) == 7
    assert measure.settled
    assert pipe.calls == 1
    assert [record.levelname for record in caplog.records if "standard output is closed" in record.getMessage()] == [
        "WARNING"
    ]


def test_memory_shows_rows_after_the_commit_once(spark):
    sink = memory.Sink()
    frame = spark.sql("SELECT 1 AS id, 'ü' AS name")
    out = writer(spark, sink, frame.schema)
    assert jobs(spark, lambda: out.write(Batch(frame=frame, sequence=1)))[0] == 1
    assert out.write(Batch(frame=frame.where("id > 1"), sequence=2)) == 0
    (first,) = out.prepare(CheckpointId(1)).materialise()
    out.write(Batch(frame=frame.selectExpr("id + 1 AS id", "name"), sequence=3))
    (second,) = out.prepare(CheckpointId(2)).materialise()
    assert out.prepare(CheckpointId(3)).materialise() == ()
    assert sink.rows == []
    first = replace(first, detail=json.loads(json.dumps(first.detail)))
    publish = committer(first, CommitContext(filesystem=None))
    assert publish.commit(first) is CommitOutcome.DONE
    assert publish.commit(first) is CommitOutcome.ALREADY_DONE
    assert sink.rows == [{"id": 1, "name": "ü"}]
    assert publish.void(first) is CommitOutcome.ALREADY_DONE
    assert publish.void(second) is CommitOutcome.DONE
    assert publish.commit(second) is CommitOutcome.ALREADY_DONE
    assert sink.rows == [{"id": 1, "name": "ü"}]


def test_memory_sinks_of_one_name_are_one(spark):
    frame = spark.sql("SELECT 1 AS id")
    for generation in (1, 2):
        out = writer(spark, memory.Sink("shared"), frame.schema, generation)
        out.write(Batch(frame=frame, sequence=1))
        (item,) = out.prepare(CheckpointId(1)).materialise()
        committer(item, CommitContext(filesystem=None)).commit(item)
    assert memory.Sink("shared").rows == [{"id": 1}, {"id": 1}]
    memory.Sink("shared").clear()
    assert memory.Sink("shared").rows == []
