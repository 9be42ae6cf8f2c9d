"""Sessions in whole jobs: crashes, windows of sessions, and what is refused before anything runs."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.errors import GraphError

pytestmark = pytest.mark.spark

SCHEMA = "user STRING, wait INT, at TIMESTAMP"


@ps.pipeline("visits")
def visits(p: ps.Pipeline) -> None:
    timed = p.read("clicks", ps.files.Source("/nowhere", schema=SCHEMA)).with_watermark("at", delay="0 seconds")
    made = timed.group_by("user", ps.session("33 seconds")).agg("visits", ps.agg.count().alias("n"))
    made.write("visits-out", ps.memory.Sink())
    made.late.write("late-out", ps.memory.Sink())
    minutes = made.group_by(ps.tumbling("1 second")).agg("seconds", ps.agg.sum("n").alias("n"))
    minutes.write("seconds-out", ps.memory.Sink())
    minutes.late.write("seconds-late", ps.memory.Sink())


def click(user: str, second: float) -> dict[str, object]:
    return {"user": user, "at": f"2026-01-01T00:{int(second) // 60:02}:{second % 60:06.3f}Z"}


EXPECTED = [("a", "00:01", 2), ("b", "00:01.500000", 1), ("b", "00:34.800000", 1), ("c", "01:04.400000", 3)]


@pytest.mark.parametrize(
    "point", [None, "state.layer.before_write", "checkpoint.manifest.before", "checkpoint.manifest.written"]
)
def test_sessions_and_windows_of_them_are_the_same_over_a_crash(spark, point):
    """Sessions that end at any moment, and a watermark that lies between them and the next step of event time."""
    with ps.testing.run(visits, spark) as t:
        t.send("clicks", [click("a", 1), click("b", 1.5), click("a", 30.25)])
        t.checkpoint()
        if point:
            t.crash(at=point)
            t.restart()
        t.send("clicks", [click("c", 64.4)])
        assert t.staged("visits-out", "user") == [{"user": "b"}], "that of a ends at 63.25, after the step at 62.4"
        t.checkpoint()
        t.send("clicks", [click("c", 64.9)])
        t.send("clicks", [click("c", 66.9)])
        t.send("clicks", [click("b", 34.8), click("a", 20)])
        t.checkpoint()
        t.end()
        found = sorted((row["user"], str(row["window_start"])[14:-6], row["n"]) for row in t.rows("visits-out"))
        assert found == EXPECTED
        assert t.rows("late-out", "user") == [{"user": "a"}]
        assert t.rows("seconds-late") == []
        assert [row["n"] for row in t.rows("seconds-out")] == [1, 2, 1, 3]


def test_what_cannot_be_a_gap_is_refused_with_the_line_it_stands_in():
    for arguments, told in (
        ((), r"session\(\) takes a gap, as in"),
        (("1 month",), "gap of a session '1 month' is not a length of time"),
        (("0 seconds",), "is too short"),
    ):
        with pytest.raises(GraphError, match=told):
            ps.session(*arguments)
    with pytest.raises(GraphError, match="takes a gap"):
        ps.session("1 minute", by="wait")
    with pytest.raises(GraphError, match="allowed_lateness"):
        ps.session("1 minute", allowed_lateness="soon")


@ps.pipeline("stays")
def stays(p: ps.Pipeline) -> None:
    clicks = p.read("clicks", ps.files.Source("/nowhere", schema="user STRING"))
    made = clicks.group_by("user", ps.session("30 seconds", time="processing"))
    made.agg("stays", ps.agg.count().alias("n")).write("out", ps.memory.Sink())


def test_the_clock_goes_on_for_sessions_of_processing_time_while_the_job_does_not(spark):
    """What ended meanwhile is sent at once, and what is read again arrives again."""
    with ps.testing.run(stays, spark) as t:
        t.send("clicks", [{"user": "a"}, {"user": "b"}])
        t.advance("10 seconds")
        t.send("clicks", [{"user": "a"}])
        t.checkpoint()
        t.advance("15 seconds")
        t.send("clicks", [{"user": "b"}])
        t.crash()
        t.advance("10 seconds")
        t.restart()
        t.checkpoint()
        assert told(t) == [("b", 30, 1)], "b was gone for 35 seconds, as far as the checkpoint knew"
        t.send("clicks", [{"user": "a"}])
        t.stop()
        t.advance("29 seconds")
        t.restart()
        t.send("clicks", [{"user": "a"}])
        t.advance("33 seconds")  # sent after steps of three
        t.checkpoint()
        assert told(t) == [("a", 94, 4), ("b", 30, 1), ("b", 30, 1)]
        t.end()


def told(t: ps.testing.PipelineRun) -> list[tuple[str, float, int]]:
    """User, seconds and number of rows of what was published."""
    rows = t.rows("out")
    lengths = [(row["window_end"] - row["window_start"]).total_seconds() for row in rows]
    return sorted((row["user"], length, row["n"]) for row, length in zip(rows, lengths, strict=True))


@pytest.mark.parametrize(
    ("by", "told"),
    [
        ("wait", "The gap 'wait' is int, but sessions need an INTERVAL DAY TO SECOND. Write INTERVAL 5 MINUTES"),
        ("INTERVAL 1 MONTH", "is interval month, but sessions need"),
        ("wiat", "Column 'wiat' does not exist. Did you mean 'wait'"),
        ("max(wait)", "The gap of the sessions cannot be computed from the input"),
    ],
)
def test_a_gap_of_each_row_must_be_an_interval_of_its_columns(spark, by, told):
    assert spark
    clicks = ps.Pipeline("visits").read("clicks", ps.files.Source("/nowhere", schema=SCHEMA))
    grouped = clicks.with_watermark("at", delay="0 seconds").group_by("user", ps.session(by=by))
    with pytest.raises(GraphError) as error:
        _ = grouped.agg("visits", ps.agg.count().alias("n")).schema
    assert told in str(error.value)
    assert "test_session_job.py" in str(error.value)


def test_sessions_that_may_be_sent_twice_are_not_let_into_another_step(spark):
    @ps.pipeline("again")
    def again(p: ps.Pipeline) -> None:
        timed = p.read("clicks", ps.files.Source("/nowhere", schema=SCHEMA)).with_watermark("at", delay="0 seconds")
        made = timed.group_by("user", ps.session("1 minute", allowed_lateness="1 hour")).agg("visits", ps.agg.count())
        made.group_by(ps.tumbling("1 hour")).agg("hours", ps.agg.count().alias("n")).write("out", ps.memory.Sink())

    with pytest.raises(GraphError, match=r"'visits' .* may send a window more than once"), ps.testing.run(again, spark):
        pass
