"""A report and a job say what they are, at a prompt and in a notebook."""

from __future__ import annotations

import penstock as ps
from penstock.clock import MAX_WATERMARK, EventTime
from penstock.facts import SourceLag
from penstock.handles import CheckpointId
from penstock.observability.status_file import read_report, report_fields

REPORT = ps.Report(
    state="running",
    restored=CheckpointId(4),
    batches={"orders": 10},
    rows_read={"orders": 1_234},
    rows_written={"totals-out": 56},
    counters={("totals", "late"): 3},
    checkpoints=7,
    failed_checkpoints=1,
    last_checkpoint=CheckpointId(12),
    published={"totals-out": 6},
    restarts=2,
    lag={"orders": SourceLag(task="orders", rows=40, seconds=2.5, eta_seconds=None, partitions={})},
    watermarks={"totals": EventTime(1_767_225_900_000_000)},
    held_by={"totals": "orders/3"},
    last_failure="disk full: /data <1 MB>",
)


def test_a_report_reads_as_a_line_for_each_source_step_and_sink() -> None:
    assert str(REPORT).splitlines() == [
        "running; 7 checkpoints, the newest is 12; 1 failed; 2 restarts; continued from checkpoint 4",
        "  source   orders      1,234 rows in 10 batches; 40 rows wait, 2.5 s behind",
        "  step     totals      event time 2026-01-01 00:05:00 UTC; held back by orders/3; 3 late",
        "  sink     totals-out  56 rows; output of 6 checkpoints published",
        "  failure              disk full: /data <1 MB>",
    ]
    assert repr(REPORT) == f"Report: {REPORT}"


def test_times_that_no_calendar_has_are_said_in_words() -> None:
    ended = ps.Report(state="stopped", watermarks={"totals": MAX_WATERMARK})
    assert str(ended).endswith("event time at its end")


def test_in_a_notebook_it_is_a_table_whose_words_are_not_markup() -> None:
    html = REPORT._repr_html_()
    assert "<td>orders</td><td>1,234 rows in 10 batches; 40 rows wait, 2.5 s behind</td>" in html
    assert "disk full: /data &lt;1 MB&gt;" in html


def test_a_job_says_its_name_its_state_directory_and_its_numbers() -> None:
    @ps.pipeline("orders")
    def orders(p: ps.Pipeline) -> None:
        p.read("n", ps.rate.Source(rows_per_second=1)).write("out", ps.memory.Sink("x"))

    job = ps.Job(orders, state="s")
    assert repr(job) == "<Job orders on s: created; 0 checkpoints>"
    assert "<b>Job orders</b> on s" in job._repr_html_()


def test_a_source_of_files_says_how_many_wait_and_a_status_file_keeps_it() -> None:
    lag = SourceLag(task="in", rows=None, seconds=7.5, eta_seconds=None, partitions={}, files=3, bytes=1_200)
    report = ps.Report(state="running", batches={"in": 1}, rows_read={"in": 5}, lag={"in": lag})

    assert str(report).splitlines()[1] == "  source  in  5 rows in 1 batches; 3 files (1,200 bytes) wait, 7.5 s behind"
    assert read_report(report_fields(report)).lag == {"in": lag}
