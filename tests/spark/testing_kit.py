"""What tests of ps.testing.run share: clicks counted by user and minute, and a story that they all tell."""

from __future__ import annotations

import penstock as ps
from penstock.api.pipeline import PipelineDefinition
from penstock.testing.pipeline_run import PipelineRun

NOWHERE = "/nowhere/at/all"
"""Neither there nor ever made: a test of a pipeline touches nothing of its own."""

CLICKS = "user STRING, at TIMESTAMP"


def clicks(*, delay: str = "0 seconds", sources: int = 1, name: str = "clicks") -> PipelineDefinition:
    """Clicks of one source, or of several as one stream, counted by user and minute."""

    @ps.pipeline(name)
    def pipeline(p: ps.Pipeline) -> None:
        streams = [
            p.read(uid, ps.files.Source(NOWHERE, schema=CLICKS)).with_watermark(
                "at", delay=delay, idle_after="30 seconds"
            )
            for uid in ("a", "b")[:sources]
        ]
        stream = streams[0] if sources == 1 else streams[0].union(streams[1])
        counts = stream.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        counts.write("out", ps.memory.Sink())
        counts.late.write("late", ps.memory.Sink())

    return pipeline


def at(user: str, minute: int, second: int = 0) -> dict[str, object]:
    return {"user": user, "at": f"2026-01-01T00:{minute:02}:{second:02}Z"}


def counts(t: PipelineRun) -> list[tuple[str, int, int]]:
    """User, minute, clicks."""
    return [(row["user"], row["window_start"].minute, row["n"]) for row in t.rows("out")]


def story(t: PipelineRun) -> None:
    """Batches and checkpoints, whatever happens in between."""
    t.send("a", [at("u", 0), at("v", 0), at("u", 1)])
    t.checkpoint()
    t.send("a", [at("u", 1), at("u", 2)])
    t.send("a", [at("v", 0, 59), at("v", 3)])
    t.checkpoint()
    t.send("a", [at("v", 3)])
    t.end()
