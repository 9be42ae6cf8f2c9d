"""The page on the command line has every command, option and setting, and no other; and what run prints."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from dataclasses import fields

import pytest
from cyclopts import App

from page_kit import DOCS, sample
from penstock.admin.start_plan import SourcePlan, StartPlan
from penstock.checkpoint.history import LogMark
from penstock.cli.live import LiveOutput
from penstock.cli.main import make_app
from penstock.cli.output import Output, ProgressLine
from penstock.cli.plan import lines
from penstock.clock import WallTime, format_duration
from penstock.facts import BatchDone as Batch
from penstock.facts import CheckpointCompleted, CheckpointFailed, Counted, JobEnded, JobStarted, RowsRead, SourceLag
from penstock.handles import EntryNumber
from penstock.interfaces.source import Backlog as Waits
from penstock.job.start import FROM_LATEST
from penstock.settings import Settings, is_duration, read_settings
from penstock.testing.clock import ManualClock

PAGE = (DOCS / "cli.md").read_text(encoding="utf-8")
ALWAYS = {"--help", "-h", "--version"}


def commands(app: App, *path: str) -> Iterator[tuple[str, list[str]]]:
    """Each with its options, under the name that changes something: ``--no-parent``, for a parent is the default."""
    for name in app:
        if name in ALWAYS:
            continue
        command, words = app[name], (*path, name)
        if any(below not in ALWAYS for below in command):
            yield from commands(command, *words)
            continue
        named = [
            [each for each in argument.names if each.startswith("--")]
            for argument in command.assemble_argument_collection()
            if argument.parse  # all but ``output``
        ]
        yield " ".join(("penstock", *words)), [names[-1] for names in named if names]


def test_the_table_of_commands_has_each_with_its_options() -> None:
    rows = re.findall(r"^\| `(penstock [^`]+)` \| [^|]+ \|([^|]*)\|$", PAGE, re.MULTILINE)
    shown = {
        re.sub(r" (\[?[A-Z:]+\]?)", "", command): re.findall(r"`(--[a-z-]+)`", options) for command, options in rows
    }
    assert shown.pop("penstock --version") == []
    assert shown == dict(commands(make_app(Output())))


def test_the_table_of_settings_has_each_with_its_default() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (?:`(--[a-z-]+)`)? ?\| ([^|]+) \| ", PAGE, re.MULTILINE)
    defaults = read_settings({}, environment={})
    found = {field.name: getattr(defaults, field.name) for field in fields(Settings)}
    assert {name: said for name, _, said in rows} == {name: written(name, value) for name, value in found.items()}
    given = next(options for command, options in commands(make_app(Output())) if command == "penstock run")
    assert {option for _, option, _ in rows if option} == {f"--{name.replace('_', '-')}" for name in found} & set(given)


def written(name: str, value: object) -> str:
    if value is None:
        return "none"
    if is_duration(name) and isinstance(value, int):
        return format_duration(value) if value else "0 seconds"
    return str(value).lower()


def test_a_plan_shows_what_waits_in_kafka_as_the_page_about_plans_has_it() -> None:
    waiting = Waits(rows=582, partitions={"orders-0": (8_120, 8_702)})
    source = SourcePlan(uid="orders", describe="kafka orders at localhost:9092", resumes=True, backlog=waiting)
    log = LogMark(log_id=None, tail=EntryNumber(-1), tail_hash="")
    found = StartPlan(job="orders", log=log, start=FROM_LATEST, at=WallTime(0), sources=(source,))
    said = [line.plain.strip() for line in lines(found)]
    assert "orders  kafka orders at localhost:9092: goes on, at most 582 rows waiting" in said
    assert "orders-0  8,120 → 8,702" in said
    assert "`orders-0  8,120 → 8,702`" in (DOCS / "plan.md").read_text(encoding="utf-8")


def test_what_the_page_shows_of_a_run_is_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    clock, stream = ManualClock("2026-01-01T12:00:05Z"), io.StringIO()
    output = Output(err=stream)
    ProgressLine(output).on("orders: starting Spark")
    live = LiveOutput("orders", output=output, clock=clock, sinks=frozenset({"out"}))
    late = "timed out after 600 s, waiting for 'totals' (batch 12)"
    for fact in (
        JobStarted(job="orders", generation=7, restored=41, published=2, attempt=1, age_ms=12_000),
        RowsRead(task="orders", rows=1_204),
        Batch(task="out", sequence=1, rows=12, duration_ms=5),
        Counted(task="totals", name="late", amount=4),
        SourceLag(task="orders", rows=1_234, seconds=None, eta_seconds=4.0, partitions={}),
        CheckpointCompleted(checkpoint=42, kind="periodic", duration_ms=310, bytes=2_100_000, committables=3),
        None,
        CheckpointFailed(checkpoint=43, reason="expired", message=late),
        JobEnded(state="stopped"),
    ):
        if fact is None:
            clock.advance("5 seconds")
        else:
            live(fact)
    live.close()
    monkeypatch.undo()
    time.tzset()
    assert stream.getvalue() == sample("cli.md", "orders: starting Spark")
