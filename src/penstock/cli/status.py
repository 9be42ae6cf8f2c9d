"""Penstock list, status, lag, late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter
from rich.text import Text

from penstock.admin.savepoints import savepoints_of
from penstock.admin.status import (
    JobStatus,
    OwnerState,
    UnreadableJob,
    all_jobs,
    exceeded,
    job_status,
    parse_lag_limit,
    side_output_rows,
    source_lags,
)
from penstock.cli.options import STATE, AsJson, JobName, State, epilogue
from penstock.cli.output import ExitCode, Output
from penstock.cli.words import (
    UNKNOWN,
    age_text,
    count,
    duration_text,
    number_text,
    output_fields,
    owner_text,
    plain_table,
    process_fields,
    savepoint_fields,
    size,
    watermark,
)
from penstock.control.client import JobDirectory
from penstock.handles import output_names
from penstock.observability.status_file import outlet_fields, report_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.table import Table

    from penstock.admin.status import LagLimit, PartitionBehind, SideOutputRows, SourceBehind
    from penstock.clock import Clock
    from penstock.observability.report import Report


# ----------------------------------------------------------------------------------------------------
# ``penstock lag``: its words and options.

LAG_HELP: Final = """\
Show how far each source of a job is behind, partition by partition, and which one holds a watermark back.

With --max-lag, ends with 4 if a source is further behind than that, or if that cannot be known: the job does not
run, or has not told its numbers for a minute."""
LAG_EXAMPLES: Final = """\
Examples:
  penstock lag orders --state ./state
  penstock lag orders --state ./state --max-lag 10000   a health check: rows
  penstock lag orders --state ./state --max-lag 30s     or time"""


def add_lag(app: App, output: Output) -> None:
    """Add ``lag``."""

    def lag(
        job: JobName,
        /,
        *,
        state: State = STATE,
        max_lag: Annotated[str | None, Parameter(help="Rows, as in 10000, or a time, as in 30s.")] = None,
        as_json: AsJson = False,
    ) -> int:

        return show_lag(output, job=job, state=state, max_lag=max_lag, as_json=as_json)

    app.command(lag, help=LAG_HELP, help_epilogue=epilogue(LAG_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# ``penstock late``: its words and options.

LATE_HELP: Final = """\
Show the late and bad rows of a job's last run: how many, by step and cause, and where they are written."""
LATE_EXAMPLES: Final = """\
Examples:
  penstock late orders --state ./state
  penstock late orders --state ./state --json | jq '.put_aside[] | select(.kind == "late").rows'"""


def add_late(app: App, output: Output) -> None:
    """Add ``late``."""

    def late(job: JobName, /, *, state: State = STATE, as_json: AsJson = False) -> int:

        return show_late(output, job=job, state=state, as_json=as_json)

    app.command(late, help=LATE_HELP, help_epilogue=epilogue(LATE_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# ``penstock list``: its words and options.

LIST_JOBS_HELP: Final = """\
List all jobs that have state in a folder: running, stopped in order, or dead."""
LIST_JOBS_EXAMPLES: Final = """\
Examples:
  penstock list --state ./state
  penstock list --state ./state --json | jq '.jobs[] | select(.is == "dead").job'"""


def add_list_jobs(app: App, output: Output) -> None:
    """Add ``list``."""

    def list_jobs(*, state: State = STATE, as_json: AsJson = False) -> int:

        return show_jobs(output, state=state, as_json=as_json)

    app.command(list_jobs, name="list", help=LIST_JOBS_HELP, help_epilogue=epilogue(LIST_JOBS_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# ``penstock status``: its words and options.

STATUS_HELP: Final = """\
Show one page about a job: who runs it, its checkpoints, rows, lag, watermarks, failures, size of state.

What the log says is always of now. Numbers of a run are those that it wrote last, about a second ago while it
runs; those of a dead job stay, and are shown with their age."""
STATUS_EXAMPLES: Final = """\
Examples:
  penstock status orders --state ./state
  penstock status orders --state ./state --json | jq '.run.sinks[].rows_written'"""


def add_status(app: App, output: Output) -> None:
    """Add ``status``."""

    def status(job: JobName, /, *, state: State = STATE, as_json: AsJson = False) -> int:

        return show_status(output, job=job, state=state, as_json=as_json)

    app.command(status, help=STATUS_HELP, help_epilogue=epilogue(STATUS_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# ``penstock lag``: how far sources are behind, and whether that is too far. Changes nothing.

LAG_SCHEMA: Final = "penstock.lag/1"
"""Of the JSON document: see docs/json.md."""


def show_lag(
    output: Output, *, job: str, state: str, max_lag: str | None, as_json: bool, clock: Clock | None = None
) -> int:
    """Print the lag of every source; 4 if it is over the limit.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        SettingsError: the limit is none.
        CheckpointError: the log cannot be read.
    """
    limit = None if max_lag is None else parse_lag_limit(max_lag)
    now = job_status(JobDirectory(state, job, clock=clock))
    found = source_lags(now)
    too_far = [] if limit is None else exceeded(now, limit)
    if as_json:
        fields: dict[str, object] = {"job": job, "is": now.owner_state.value, "doing": now.doing}
        fields |= {"numbers_age_seconds": now.hint_age, "sources": [_source(each) for each in found]}
        output.document(LAG_SCHEMA, **fields, **_limit(limit), over=too_far)
    else:
        output.result(lag_table(found))
        word = now.state_text if now.owner_state is OwnerState.RUNNING else f"{now.owner_state.value}: nothing is read"
        output.result(Text(f"{job}: {word} · {age_text(now)}"))
        for said in too_far:
            output.result(Text(said, style="red"))
    return ExitCode.BEHIND if too_far else ExitCode.ENDED


def _source(each: SourceBehind) -> dict[str, object]:
    return {
        "uid": each.source,
        "behind_rows": each.rows,
        "behind_seconds": each.seconds,
        "rows_per_second": each.rate,
        "caught_up_in_seconds": each.eta_seconds,
        "partitions": [_partition(part) for part in each.partitions],
        "holds": list(each.holds),
    }


def _partition(each: PartitionBehind) -> dict[str, object]:
    return {
        "name": each.partition,
        "next": each.position,
        "end": each.end,
        "behind_rows": each.rows,
        "behind_seconds": each.seconds,
        "rows_per_second": each.rate,
        "holds": list(each.holds),
    }


def _limit(limit: LagLimit | None) -> dict[str, object]:
    micros = limit.micros if limit is not None else None
    return {
        "limit_rows": limit.rows if limit is not None else None,
        "limit_seconds": None if micros is None else micros / 1_000_000,
    }


def lag_table(found: Sequence[SourceBehind]) -> Table:
    """One line a partition, and one a source; ``◀`` marks what holds the event time of a step back."""
    table = plain_table(
        ("source", "left"),
        ("partition", "left"),
        ("position", "right"),
        ("end", "right"),
        ("lag", "right"),
        ("behind", "right"),
        ("rows/s", "right"),
        ("caught up in", "right"),
        ("", "left"),
    )
    for source in found:
        for each in source.partitions:
            place = (source.source, each.partition, number_text(each.position), number_text(each.end))
            table.add_row(
                *place,
                number_text(each.rows),
                duration_text(each.seconds),
                number_text(each.rate),
                "",
                _holds(each.holds),
            )
        whole = (
            number_text(source.rows),
            duration_text(source.seconds),
            number_text(source.rate),
            duration_text(source.eta_seconds),
        )
        table.add_row(source.source, "all", "", "", *whole, _holds(source.holds), style="bold")
    return table


def _holds(steps: Sequence[str]) -> str:
    return f"◀ holds {', '.join(steps)}" if steps else ""


# ----------------------------------------------------------------------------------------------------
# ``penstock late``: rows that the last run put aside, and where they went. Changes nothing.

LATE_SCHEMA: Final = "penstock.late/1"
"""Of the JSON document: see docs/json.md."""


def show_late(output: Output, *, job: str, state: str, as_json: bool, clock: Clock | None = None) -> int:
    """Print them.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        CheckpointError: the log cannot be read.
    """
    now = job_status(JobDirectory(state, job, clock=clock))
    found = side_output_rows(now)
    if as_json:
        fields: dict[str, object] = {"job": job, "is": now.owner_state.value, "doing": now.doing}
        aside = [put_aside_fields(each) for each in found]
        output.document(LATE_SCHEMA, **fields, numbers_age_seconds=now.hint_age, put_aside=aside)
        return ExitCode.ENDED
    if found:
        output.result(late_table(found))
    elif now.hint is not None:
        output.result(Text(f"{job} puts no rows aside: it has no step that could"))
    output.result(Text(f"{job}: {now.state_text} · {age_text(now)}"))
    return ExitCode.ENDED


def put_aside_fields(each: SideOutputRows) -> dict[str, object]:
    """What a step has put aside, in a document."""
    return {
        "step": each.step,
        "kind": each.kind,
        "rows": each.rows,
        "causes": [{"cause": cause.cause, "rows": cause.rows} for cause in each.causes],
        "partitions": [{"name": name, "rows": rows} for name, rows in each.partitions],
        "sinks": [outlet_fields(sink) for sink in each.sinks],
    }


def late_table(found: Sequence[SideOutputRows]) -> Table:
    """One line a cause, then one a source partition, where rows say which they are of."""
    table = plain_table(("step", "left"), ("rows", "right"), ("why", "left"), ("written to", "left"))
    for each in found:
        sinks = "; ".join(f"{sink.uid} ({sink.to})" for sink in each.sinks) or "nowhere: counted and dropped"
        for index, cause in enumerate(each.causes):
            table.add_row(each.step if not index else "", number_text(cause.rows), f"{each.kind}: {cause.cause}", sinks)
            sinks = ""
        for partition, rows in each.partitions:
            table.add_row("", number_text(rows), f"late, of {partition}", "", style="dim")
    return table


# ----------------------------------------------------------------------------------------------------
# ``penstock list`` and ``penstock status``: how jobs stand, from their directories alone. Change nothing.

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
        if isinstance(each, UnreadableJob):
            table.add_row(each.job, f"unreadable: {each.message}", *[UNKNOWN] * 5, style="red")
        else:
            table.add_row(
                *_row(each), style={OwnerState.DEAD: "yellow", OwnerState.STOPPED: "dim"}.get(each.owner_state)
            )
    output.result(table)
    return ExitCode.ENDED


def _row(now: JobStatus) -> tuple[str, ...]:
    return (
        now.job,
        now.state_text,
        UNKNOWN if now.newest is None else str(now.newest.checkpoint),
        duration_text(now.checkpoint_age),
        size(sum(now.state_bytes.values())),
        str(len(now.history.open_committables)),
        _lag_of(now),
    )


def _lag_of(now: JobStatus) -> str:
    lags = now.hint.report.lag if now.hint is not None else {}
    if not lags:
        return UNKNOWN
    rows = count(sum(lag.rows for lag in lags.values()), "row")
    return rows if now.owner_state is OwnerState.RUNNING else f"{rows}, {age_text(now)}"


def _job(each: JobStatus | UnreadableJob) -> dict[str, object]:
    if isinstance(each, UnreadableJob):
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
    return {"job": each.job, "is": each.owner_state.value, "message": None, **dict(zip(_KNOWN, known, strict=True))}


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
    now = job_status(JobDirectory(state, job, clock=clock))
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


def document(now: JobStatus) -> dict[str, object]:
    """The JSON document's fields. Times are microseconds since 1970."""
    history, point = now.history, now.history.restore_point
    return {
        "job": now.job,
        "is": now.owner_state.value,
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


def _run(now: JobStatus) -> dict[str, object] | None:
    """The numbers of the run whose they are, which is not always the newest."""
    hint = now.hint
    if hint is None:
        return None
    return {
        "generation": hint.generation,
        "began": hint.began,
        "written": hint.written,
        "numbers_age_seconds": now.hint_age,
        **report_fields(hint.report),
        "put_aside": [put_aside_fields(each) for each in side_output_rows(now)],
    }


def _headline(now: JobStatus) -> str:
    up = f" · up {duration_text(now.uptime)}" if now.uptime is not None else ""
    word = {OwnerState.STOPPED: "stopped in order", OwnerState.DEAD: "dead: nobody answers, no last word"}.get(
        now.owner_state, now.state_text
    )
    had = "" if now.owner_state is OwnerState.RUNNING else "last "
    return f"{now.job}: {word} · {had}{owner_text(now)} · generation {now.history.generation}{up}"


def _page(now: JobStatus) -> Iterator[tuple[str, str]]:
    yield from _page_of_log(now)
    yield "numbers", age_text(now)
    if now.hint is not None:
        yield from _page_of_run(now, now.hint.report)


def _page_of_log(now: JobStatus) -> Iterator[tuple[str, str]]:
    history, point = now.history, now.history.restore_point
    if now.newest is None:
        yield "checkpoint", "none yet"
    else:
        kept = ", ".join(map(str, history.restorable)) or "none"
        newest = f"{now.newest.checkpoint} ({now.newest.kind.value}), {duration_text(now.checkpoint_age)} ago"
        yield "checkpoint", f"{newest}; can be restored: {kept}"
        next_one = f"checkpoint {point.checkpoint}" if point else "empty state"
        yield "next start", f"continues {next_one}"
    if history.pins:
        yield "savepoints", ", ".join(f"{name} ({pin.checkpoint})" for name, pin in sorted(history.pins.items()))
    waiting = output_names(*history.open_committables)
    yield "open", f"not known to be published: {waiting}" if waiting else "everything is published"
    parts = ", ".join(f"{uid} {size(length)}" for uid, length in sorted(now.state_bytes.items()))
    yield "state", size(sum(now.state_bytes.values())) + (f": {parts}" if parts else "")


def _page_of_run(now: JobStatus, report: Report) -> Iterator[tuple[str, str]]:
    yield "rows", f"{_total(report.rows_read, 'read')} · {_total(report.rows_written, 'written')}"
    yield "batches", _total(report.batches, "read")
    aside = [f"{number_text(each.rows)} {each.kind} ({each.step})" for each in side_output_rows(now) if each.rows]
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
        age = f", {duration_text(lag.seconds)}" if lag.seconds is not None else ""
        end = f", caught up in {duration_text(lag.eta_seconds)}" if lag.rows and lag.eta_seconds is not None else ""
        yield f"{source} {count(lag.rows, 'row')}{age}{end}"
