"""What a running job prints: golden lines off a terminal, no control codes there, one line of now on a terminal."""

import io
import logging
import time
from dataclasses import replace

import pytest

from core.cli_kit import Terminal
from penstock.cli.live import LiveOutput
from penstock.cli.output import Output
from penstock.cli.run import _ToOutput
from penstock.cli.words import size
from penstock.facts import (
    BatchDone,
    CheckpointCompleted,
    CheckpointFailed,
    Counted,
    JobEnded,
    JobStarted,
    Published,
    Restarting,
    RowsRead,
    SourceLag,
    WatermarkAdvanced,
)

NOON = 1_767_268_805_000_000


class StillClock:
    def now(self):
        return 10_000_000

    def wall(self):
        return NOON


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def started(restored=None, published=0):
    return JobStarted(job="orders", generation=7, restored=restored, published=published, attempt=1)


def completed(kind="periodic", outputs=3):
    return CheckpointCompleted(checkpoint=42, kind=kind, duration_ms=310, bytes=2_100_000, committables=outputs)


def lines_of(*facts, stream=None):
    stream = stream or io.StringIO()
    live = LiveOutput("orders", output=Output(err=stream), clock=StillClock(), sinks=frozenset({"out"}))
    for fact in facts:
        live(fact)
    live.close()
    return stream.getvalue()


def test_a_run_reads_as_plain_lines():
    said = lines_of(
        started(restored=41, published=2),
        RowsRead(task="in", rows=1_204),
        BatchDone(task="out", sequence=1, rows=12, duration_ms=5),
        BatchDone(task="totals", sequence=1, rows=99, duration_ms=5),
        Counted(task="totals", name="late", amount=4),
        completed(),
        completed(kind="final", outputs=1),
        CheckpointFailed(checkpoint=43, reason="timed_out", message="totals has not acknowledged"),
        Published(task="out", checkpoint=42, outcome="done"),
        Published(task="out", checkpoint=42, outcome="retry"),
        Restarting(cause="a Spark job failed", delay_ms=1_500, attempt=1),
        JobEnded(state="stopped"),
    )

    assert said.splitlines() == [
        "orders: restoring from checkpoint 41 · generation 7 · published 2 outputs that the log held open",
        "12:00:05 UTC checkpoint 42 ok [0.31 s, +2.1 MB, 3 outputs]",
        "12:00:05 UTC checkpoint 42 ok (final) [0.31 s, +2.1 MB, 1 output]",
        "12:00:05 UTC checkpoint 43 FAILED timed out: totals has not acknowledged",
        "12:00:05 UTC checkpoint 42 of out is not published yet: retry",
        "12:00:05 UTC restarting in 1.5 s: a Spark job failed",
        "orders: stopped · 1,204 rows read · 12 written · 4 late · 2 checkpoints",
    ]


def test_a_restart_is_printed_once_though_it_is_logged_too():
    stream = io.StringIO()
    handler = _ToOutput(Output(err=stream))
    for extra in ({"is_fact": True}, {}):
        handler.emit(logging.makeLogRecord({"msg": f"attempt failed {extra}", "levelno": logging.WARNING, **extra}))
    assert stream.getvalue() == "penstock: attempt failed {}\n"


def test_the_header_says_how_old_the_checkpoint_is_and_what_is_not_simply_taken_over():
    fact = replace(
        started(restored=41, published=2), age_ms=12_400, new=("dedup",), migrated=("totals",), dropped=("x",)
    )

    assert lines_of(fact) == (
        "orders: restoring from checkpoint 41 (12 s old) · new dedup · migrated totals · dropped x · generation 7 · "
        "published 2 outputs that the log held open\n"
    )


def test_an_empty_start_says_so():
    assert lines_of(started()) == "orders: starting empty · generation 7\n"


def test_off_a_terminal_there_are_no_control_codes():
    assert "\x1b" not in lines_of(started(), completed(), CheckpointFailed(checkpoint=1, reason="declined", message=""))


def test_on_a_terminal_there_is_a_line_of_now(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    said = lines_of(
        started(),
        RowsRead(task="in", rows=500),
        WatermarkAdvanced(task="totals", at=NOON),
        completed(),
        JobEnded(state="stopped"),
        stream=Terminal(),
    )

    assert "100 rows/s · watermark 2026-01-01 12:00:05 UTC · checkpoint 42 0 s ago" in said


def lag(task, rows, eta):
    return SourceLag(task=task, rows=rows, seconds=None, eta_seconds=eta, partitions={})


@pytest.mark.parametrize(
    ("lags", "says"),
    [
        ([lag("a", 0, 0.0)], " · 0 rows behind · "),
        ([lag("a", 9, 3.0), lag("a", 1_200, 4.4), lag("b", 34, 2.0)], " · 1,234 rows behind, caught up in 4 s · "),
        ([lag("a", 1, 3.0), lag("b", 2, None)], " · 3 rows behind · "),
    ],
)
def test_on_a_terminal_the_line_of_now_tells_how_far_the_sources_are_behind(monkeypatch, lags, says):
    monkeypatch.setenv("TERM", "xterm")
    said = lines_of(started(), *lags, completed(), JobEnded(state="stopped"), stream=Terminal())

    assert says in said


@pytest.mark.parametrize(
    ("lags", "ends"),
    [
        ([], "3 outputs]\n"),
        ([lag("a", 0, 0.0)], "3 outputs]\n"),
        ([lag("a", 1_200, 4.4), lag("b", 34, 2.0)], "3 outputs] · 1,234 rows behind, caught up in 4 s\n"),
    ],
)
def test_off_a_terminal_the_line_of_a_checkpoint_tells_how_far_the_sources_are_behind(lags, ends):
    assert lines_of(started(), *lags, completed()).endswith(ends)


def test_no_color_leaves_out_colours_on_a_terminal_too(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")

    said = lines_of(CheckpointFailed(checkpoint=1, reason="declined", message="no"), stream=Terminal())

    assert said == "12:00:05 UTC checkpoint 1 FAILED declined: no\n"


def test_a_reader_that_went_away_does_not_fail_the_job():
    gone = io.StringIO()
    live = LiveOutput("orders", output=Output(err=gone), clock=StillClock())
    gone.close()

    live(started())


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (2_100_000, "2.1 MB"), (5 * 10**12, "5.0 TB")]
)
def test_sizes_read_as_people_write_them(number, text):
    assert size(number) == text
