"""How long state is remembered, and when a step has nothing to say."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.api.pipeline import PipelineDefinition
from penstock.facts import CheckpointCompleted

pytestmark = pytest.mark.spark

SCHEMA = "user STRING, n LONG, at TIMESTAMP"


def pipeline(window: object, **more: str) -> PipelineDefinition:
    @ps.pipeline("remembered")
    def remembered(p: ps.Pipeline) -> None:
        timed = p.read("in", ps.files.Source("/nowhere/at/all", schema=SCHEMA)).with_watermark("at", delay="0 seconds")
        timed.group_by("user", window).agg("sums", ps.agg.sum("n").alias("n"), **more).write("out", ps.memory.Sink())

    return remembered


def row(n: int, minute: int, second: int = 0) -> dict[str, object]:
    return {"user": "a", "n": n, "at": f"2026-01-01T00:{minute:02}:{second:02}Z"}


@pytest.mark.mission("S28")
def test_state_outlives_the_checkpoints_that_were_taken_and_the_restarts_between(spark):
    with ps.testing.run(pipeline(ps.tumbling("1 hour")), spark, checkpoint_every="5s") as t:
        for n in range(6):
            t.send("in", [row(2**n, n)])
            t.advance("12 seconds")
            if n % 2:
                t.crash()
                t.restart()
        assert len([fact for fact in t.facts if isinstance(fact, CheckpointCompleted)]) > 6
        assert t.rows("out") == []
        t.end()
        assert t.rows("out", "n") == [{"n": 63}]


@pytest.mark.mission("S28")
def test_off_its_slide_a_step_sends_nothing_however_event_time_moves(spark):
    with ps.testing.run(pipeline(ps.sliding("20 minutes", "10 minutes")), spark) as t:
        t.send("in", [row(1, 1)])
        sent = {}
        for minute in (5, 9, 10, 11, 19, 20, 29):
            t.send("in", [row(0, minute)])
            t.checkpoint()
            sent[minute] = len(t.rows("out"))
        assert sent == {5: 0, 9: 0, 10: 1, 11: 1, 19: 1, 20: 2, 29: 2}


@pytest.mark.mission("S28")
def test_changes_are_sent_at_multiples_of_their_interval_only(spark):
    with ps.testing.run(pipeline(ps.tumbling("1 hour"), emit="updates", emit_every="10 seconds"), spark) as t:
        t.advance("1 second")
        t.send("in", [row(1, 1)])
        t.advance("8 seconds")
        t.send("in", [row(2, 2)])
        assert t.staged("out") == []
        t.advance("1 second")
        assert t.staged("out", "n", "_change") == [{"n": 3, "_change": "insert"}]
