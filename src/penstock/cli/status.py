"""``penstock list`` and ``penstock status``: how jobs stand, from their directories alone. Change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.cli.exits import ExitCode
from penstock.cli.late import put_aside_fields
from penstock.cli.shown import (
    UNKNOWN,
    as_of,
    number,
    output_fields,
    plain_table,
    process_fields,
    savepoint_fields,
    span,
    who,
)
from penstock.cli.words import count, size, watermark
from penstock.handles import output_names
from penstock.job.numbers import numbers
from penstock.operate.directory import JobDirectory
from penstock.operate.lateness import put_aside
from penstock.operate.savepoints import savepoints_of
from penstock.operate.standing import Being, Standing, Unclear, all_jobs, standing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.cli.output import Output
    from penstock.job.report import Report
    from penstock.runtime.clock import Clock

LIST_SCHEMA: Final = "penstock.list/1"
STATUS_SCHEMA: Final = "penstock.status/1"
"""Of the JSON documents: see docs/json.md."""


# ----------------------------------------------------------------------------------------------------------------- list


def show_jobs(output: Output, *, state: str, as_json: bool, clock: Clock | None = None) -> int:
    """Print all jobs of a folder."""
    found = all_jobs(state, clock=clock)
    if as_json:
        output.document(LIST_SCHEMA, folder=state, jobs=[_job(each) for each in found])
        return ExitCode.ENDED
    if not found:
        output.note(f"no job has any state in {state}")
        return ExitCode.ENDED
    table = plain_table(
        ("job", "left"),
        ("is", "left"),
        ("checkpoint", "right"),
        ("age", "right"),
        ("state", "right"),
        ("open", "right"),
        ("lag", "left"),
    )
    for each in found:
        if isinstance(each, Unclear):
            table.add_row(each.job, f"unreadable: {each.message}", *[UNKNOWN] * 5, style="red")
        else:
            table.add_row(*_row(each), style={Being.DEAD: "yellow", Being.STOPPED: "dim"}.get(each.being))
    output.result(table)
    return ExitCode.ENDED


def _row(now: Standing) -> tuple[str, ...]:
    return (
        now.job,
        now.word,
        UNKNOWN if now.newest is None else str(now.newest.checkpoint),
        span(now.checkpoint_age),
        size(sum(now.state_bytes.values())),
        str(len(now.history.open_committables)),
        _lag_of(now),
    )


def _lag_of(now: Standing) -> str:
    lags = now.hint.report.lag if now.hint is not None else {}
    if not lags:
        return UNKNOWN
    rows = count(sum(lag.rows for lag in lags.values()), "row")
    return rows if now.being is Being.RUNNING else f"{rows}, {as_of(now)}"


def _job(each: Standing | Unclear) -> dict[str, object]:
    if isinstance(each, Unclear):
        return {"job": each.job, "is": "unreadable", "message": each.message, **dict.fromkeys(_KNOWN)}
    lags = each.hint.report.lag if each.hint is not None else {}
    known = (
        each.doing,
        None if each.newest is None else each.newest.checkpoint,
        each.checkpoint_age,
        sum(each.state_bytes.values()),
        len(each.history.open_committables),
        sum(lag.rows for lag in lags.values()) if lags else None,
        each.hint_age,
    )
    return {"job": each.job, "is": each.being.value, "message": None, **dict(zip(_KNOWN, known, strict=True))}


_KNOWN: Final = (
    "doing",
    "checkpoint",
    "checkpoint_age_seconds",
    "state_bytes",
    "open_count",
    "behind_rows",
    "numbers_age_seconds",
)
"""What is told of a job whose log can be read."""


# --------------------------------------------------------------------------------------------------------------- status


def show_status(output: Output, *, job: str, state: str, as_json: bool, clock: Clock | None = None) -> int:
    """Print one page about a job.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        CheckpointError: its log cannot be read.
    """
    now = standing(JobDirectory(state, job, clock=clock))
    if as_json:
        output.document(STATUS_SCHEMA, **document(now))
        return ExitCode.ENDED
    output.result(Text(_headline(now), style="bold"))
    table = plain_table(("", "left"), ("", "left"))
    table.show_header = False
    for name, text in _page(now):
        table.add_row(name, Text(text))
    output.result(table)
    return ExitCode.ENDED


def document(now: Standing) -> dict[str, object]:
    """The JSON document's fields. Times are microseconds since 1970."""
    history, point = now.history, now.history.restore_point
    return {
        "job": now.job,
        "is": now.being.value,
        "doing": now.doing,
        "log_id": history.log_id,
        "generation": history.generation,
        "process": None if now.claim is None else process_fields(now.claim),
        "uptime_seconds": now.uptime,
        "checkpoint": None if now.newest is None else now.newest.checkpoint,
        "checkpoint_age_seconds": now.checkpoint_age,
        "restore_point": point.checkpoint if point else None,
        "restorable": list(history.restorable),
        "savepoints": [savepoint_fields(each) for each in savepoints_of(history)],
        "open": [output_fields(item) for item in history.open_committables],
        "state_bytes": sum(now.state_bytes.values()),
        "steps": [{"uid": uid, "bytes": length} for uid, length in sorted(now.state_bytes.items())],
        "run": _run(now),
    }


def _run(now: Standing) -> dict[str, object] | None:
    """The numbers of the run whose they are, which is not always the newest."""
    hint = now.hint
    if hint is None:
        return None
    return {
        "generation": hint.generation,
        "began": hint.began,
        "written": hint.written,
        "numbers_age_seconds": now.hint_age,
        **numbers(hint.report),
        "put_aside": [put_aside_fields(each) for each in put_aside(now)],
    }


def _headline(now: Standing) -> str:
    up = f" · up {span(now.uptime)}" if now.uptime is not None else ""
    word = {Being.STOPPED: "stopped in order", Being.DEAD: "dead: nobody answers, no last word"}.get(
        now.being, now.word
    )
    had = "" if now.being is Being.RUNNING else "last "
    return f"{now.job}: {word} · {had}{who(now)} · generation {now.history.generation}{up}"


def _page(now: Standing) -> Iterator[tuple[str, str]]:
    yield from _page_of_log(now)
    yield "numbers", as_of(now)
    if now.hint is not None:
        yield from _page_of_run(now, now.hint.report)


def _page_of_log(now: Standing) -> Iterator[tuple[str, str]]:
    history, point = now.history, now.history.restore_point
    if now.newest is None:
        yield "checkpoint", "none yet"
    else:
        kept = ", ".join(map(str, history.restorable)) or "none"
        newest = f"{now.newest.checkpoint} ({now.newest.kind.value}), {span(now.checkpoint_age)} ago"
        yield "checkpoint", f"{newest}; can be restored: {kept}"
        next_one = f"checkpoint {point.checkpoint}" if point else "empty state"
        yield "next start", f"continues {next_one}"
    if history.pins:
        yield "savepoints", ", ".join(f"{name} ({pin.checkpoint})" for name, pin in sorted(history.pins.items()))
    waiting = output_names(*history.open_committables)
    yield "open", f"not known to be published: {waiting}" if waiting else "everything is published"
    parts = ", ".join(f"{uid} {size(length)}" for uid, length in sorted(now.state_bytes.items()))
    yield "state", size(sum(now.state_bytes.values())) + (f": {parts}" if parts else "")


def _page_of_run(now: Standing, report: Report) -> Iterator[tuple[str, str]]:
    yield "rows", f"{_total(report.rows_read, 'read')} · {_total(report.rows_written, 'written')}"
    yield "batches", _total(report.batches, "read")
    aside = [f"{number(each.rows)} {each.kind} ({each.step})" for each in put_aside(now) if each.rows]
    yield "put aside", ", ".join(aside) or "no row"
    yield "lag", "; ".join(_lags(report)) or UNKNOWN
    for task, at in sorted(report.watermarks.items()):
        held = f", held by {report.held_by[task]}" if task in report.held_by else ""
        yield "watermark", f"{task} {watermark(at)}{held}"
    failed = f", {report.failed_checkpoints} failed" if report.failed_checkpoints else ""
    yield "checkpoints", f"{report.checkpoints} complete{failed} · {count(report.restarts, 'restart')}"
    if report.last_failure:
        yield "failure", report.last_failure


def _total(by: Mapping[str, int], what: str) -> str:
    parts = ", ".join(f"{uid} {amount:,}" for uid, amount in sorted(by.items()))
    return f"{sum(by.values()):,} {what}" + (f" ({parts})" if parts else "")


def _lags(report: Report) -> Iterator[str]:
    for source, lag in sorted(report.lag.items()):
        age = f", {span(lag.seconds)}" if lag.seconds is not None else ""
        end = f", caught up in {span(lag.eta_seconds)}" if lag.rows and lag.eta_seconds is not None else ""
        yield f"{source} {count(lag.rows, 'row')}{age}{end}"
