"""The commands ``penstock list``, ``status``, ``lag`` and ``late``: what jobs do, from their directories alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
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
from penstock.checkpoint.entries import host_of
from penstock.cli.options import STATE, AsJson, JobName, State
from penstock.cli.output import CommandOutput, ExitCode
from penstock.cli.words import (
    UNKNOWN,
    count,
    duration_text,
    number_text,
    output_fields,
    plain_table,
    process_fields,
    savepoint_fields,
    size,
    watermark,
)
from penstock.control.client import JobDirectory
from penstock.facts import THROTTLED, THROTTLED_MS
from penstock.handles import output_names
from penstock.observability.status_file import outlet_fields, report_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.table import Table

    from penstock.admin.received import KeptBlocks
    from penstock.admin.status import LagLimit, PartitionBehind, SideOutputRows, SourceBehind
    from penstock.observability.report import Report

LIST_SCHEMA: Final = "penstock.list/1"
STATUS_SCHEMA: Final = "penstock.status/1"
LAG_SCHEMA: Final = "penstock.lag/1"
LATE_SCHEMA: Final = "penstock.late/1"
"""The schemas of the JSON documents: see docs/json.md."""
_STYLES: Final = {OwnerState.DEAD: "yellow", OwnerState.STOPPED: "dim"}


# ---- penstock list ---------------------------------------------------------------------------------------------------


def list_jobs(*, state: State = STATE, as_json: AsJson = False, output: CommandOutput) -> int:
    """Print all jobs of a folder."""
    found = all_jobs(state)
    if as_json:
        output.document(LIST_SCHEMA, folder=state, jobs=[_job_fields(each) for each in found])
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
            table.add_row(*_row(each), style=_STYLES.get(each.owner_state))
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
        _lag_text(now),
    )


def _lag_text(now: JobStatus) -> str:
    lags = now.hint.report.lag if now.hint is not None else {}
    if not lags:
        return UNKNOWN
    counted = [lag.rows for lag in lags.values() if lag.rows is not None]
    files = [lag.files for lag in lags.values() if lag.files is not None]
    parts = [*([count(sum(counted), "row")] if counted else []), *([count(sum(files), "file")] if files else [])]
    rows = ", ".join(parts)
    return rows if now.owner_state is OwnerState.RUNNING else f"{rows}, {_age_text(now)}"


_KNOWN: Final = (
    "doing",
    "checkpoint",
    "checkpoint_age_seconds",
    "state_bytes",
    "open_count",
    "behind_rows",
    "numbers_age_seconds",
)
"""Fields of a job in the JSON document; all are null if its log cannot be read."""


def _job_fields(each: JobStatus | UnreadableJob) -> dict[str, object]:
    if isinstance(each, UnreadableJob):
        return {"job": each.job, "is": "unreadable", "message": each.message, **dict.fromkeys(_KNOWN)}
    lags = each.hint.report.lag if each.hint is not None else {}
    known = (
        each.doing,
        None if each.newest is None else each.newest.checkpoint,
        each.checkpoint_age,
        sum(each.state_bytes.values()),
        len(each.history.open_committables),
        sum(lag.rows or 0 for lag in lags.values()) if any(lag.rows is not None for lag in lags.values()) else None,
        each.hint_age,
    )
    return {"job": each.job, "is": each.owner_state.value, "message": None, **dict(zip(_KNOWN, known, strict=True))}


# ---- penstock status -------------------------------------------------------------------------------------------------


def status(job: JobName, /, *, state: State = STATE, as_json: AsJson = False, output: CommandOutput) -> int:
    """Print one page about a job.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        CheckpointError: its log cannot be read.
    """
    now = job_status(JobDirectory(state, job))
    if as_json:
        output.document(STATUS_SCHEMA, **_status_document(now))
        return ExitCode.ENDED
    output.result(Text(_headline(now), style="bold"))
    table = plain_table(("", "left"), ("", "left"))
    table.show_header = False
    for name, text in _page(now):
        table.add_row(name, Text(text))
    output.result(table)
    return ExitCode.ENDED


def _status_document(now: JobStatus) -> dict[str, object]:
    """The fields of the JSON document. Times are microseconds since 1970."""
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
        "received_sources": [_received_fields(each) for each in now.received.sources],
        "run": _run_fields(now),
    }


def _received_fields(each: KeptBlocks) -> dict[str, object]:
    """The fields of the blocks of one source, and of the checkpoints that hold them."""
    return {
        "uid": each.uid,
        "block_count": each.blocks,
        "bytes": each.bytes,
        "unread_bytes": each.unread_bytes,
        "held": [{"checkpoint": by.checkpoint, "names": list(by.names), "bytes": by.bytes} for by in each.held],
    }


def _run_fields(now: JobStatus) -> dict[str, object] | None:
    """The fields of the run that wrote the status file, which is not always the newest."""
    hint = now.hint
    if hint is None:
        return None
    return {
        "generation": hint.generation,
        "began": hint.began,
        "written": hint.written,
        "numbers_age_seconds": now.hint_age,
        **report_fields(hint.report),
        "put_aside": [_put_aside_fields(each) for each in side_output_rows(now)],
    }


def _headline(now: JobStatus) -> str:
    up = f" · up {duration_text(now.uptime)}" if now.uptime is not None else ""
    word = {
        OwnerState.STOPPED: "stopped in order",
        OwnerState.DEAD: "dead: no process answers, and the last one did not stop in order",
    }.get(now.owner_state, now.state_text)
    had = "" if now.owner_state is OwnerState.RUNNING else "last "
    return f"{now.job}: {word} · {had}{_owner_text(now)} · generation {now.history.generation}{up}"


def _page(now: JobStatus) -> Iterator[tuple[str, str]]:
    yield from _page_of_log(now)
    yield "numbers", _age_text(now)
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
        yield "next start", f"continues checkpoint {point.checkpoint}" if point else "begins empty"
    if history.pins:
        yield "savepoints", ", ".join(f"{name} ({pin.checkpoint})" for name, pin in sorted(history.pins.items()))
    waiting = output_names(*history.open_committables)
    yield "open", f"not known to be published: {waiting}" if waiting else "everything is published"
    parts = ", ".join(f"{uid} {size(length)}" for uid, length in sorted(now.state_bytes.items()))
    yield "state", size(sum(now.state_bytes.values())) + (f": {parts}" if parts else "")
    for each in now.received.sources:
        held = ", ".join(
            f"{' '.join((str(by.checkpoint), *by.names))} {size(by.bytes)}" for by in each.held if by.bytes
        )
        who = f"; held by {held}" if held else ""
        yield "received", f"{each.uid} {size(each.bytes)}, {size(each.unread_bytes)} not read{who}"
    if (warning := now.received.warning(now.job)) is not None:
        yield "disk", warning


def _page_of_run(now: JobStatus, report: Report) -> Iterator[tuple[str, str]]:
    yield "rows", f"{_total(report.rows_read, 'read')} · {_total(report.rows_written, 'written')}"
    yield "batches", _total(report.batches, "read")
    aside = [f"{number_text(each.rows)} {each.kind} ({each.step})" for each in side_output_rows(now) if each.rows]
    yield "put aside", ", ".join(aside) or "no row"
    yield "lag", "; ".join(_lags(now, report)) or UNKNOWN
    if throttled := "; ".join(_throttled(report)):
        yield "throttled", throttled
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


def _lags(now: JobStatus, report: Report) -> Iterator[str]:
    stale = {each.source: f", measured {duration_text(each.age)} ago" for each in source_lags(now) if each.is_stale}
    for source, lag in sorted(report.lag.items()):
        age = f", {duration_text(lag.seconds)}" if lag.seconds is not None else ""
        has_end = lag.is_behind and lag.eta_seconds is not None
        end = f", caught up in {duration_text(lag.eta_seconds)}" if has_end else ""
        yield f"{source} {lag.text}{age}{end}{stale.get(source, '')}"


def _throttled(report: Report) -> Iterator[str]:
    """How often the services of sources have refused requests, and how long the sources have waited."""
    for (source, name), amount in sorted(report.counters.items()):
        if name == THROTTLED and amount:
            waited = report.counters.get((source, THROTTLED_MS), 0) / 1_000
            yield f"{source} {count(amount, 'time')}, waited {duration_text(waited)}"


def _owner_text(now: JobStatus) -> str:
    """The process that owns the job, or owned it last."""
    claim, me = now.claim, now.owner.me if now.owner is not None else None
    if me is not None:
        return f"process {me.pid} on {host_of(me.host)}"
    if claim is None:
        return "process unknown"
    return f"process {claim.pid} on {host_of(claim.host)}"


def _age_text(now: JobStatus) -> str:
    """How old the numbers of the run are, and which run wrote them if it is not the newest."""
    if now.hint is None:
        return "no run has written its numbers"
    of = "" if now.is_hint_of_now else f", written by generation {now.hint.generation}"
    if of and now.owner_state is OwnerState.RUNNING:
        of += "; the present one has written none yet"
    return f"as of {duration_text(now.hint_age)} ago{of}"


# ---- penstock lag ----------------------------------------------------------------------------------------------------


def lag(
    job: JobName,
    /,
    *,
    state: State = STATE,
    max_lag: Annotated[str | None, Parameter(help="Rows, as in 10000, or a time, as in 30s.")] = None,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Print the lag of each source; 4 if it is over the limit.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        SettingsError: ``max_lag`` is neither a number of rows nor a time.
        CheckpointError: the log cannot be read.
    """
    limit = None if max_lag is None else parse_lag_limit(max_lag)
    now = job_status(JobDirectory(state, job))
    found = source_lags(now)
    too_far = [] if limit is None else exceeded(now, limit)
    if as_json:
        fields: dict[str, object] = {"job": job, "is": now.owner_state.value, "doing": now.doing}
        fields |= {"numbers_age_seconds": now.hint_age, "sources": [_source_fields(each) for each in found]}
        output.document(LAG_SCHEMA, **fields, **_limit_fields(limit), over=too_far)
    else:
        output.result(_lag_table(found))
        word = now.state_text if now.owner_state is OwnerState.RUNNING else f"{now.owner_state.value}: nothing is read"
        output.result(Text(f"{job}: {word} · {_age_text(now)}"))
        for each in found:
            if each.is_stale:
                output.result(Text(f"{each.source} measured its lag {duration_text(each.age)} ago", style="yellow"))
        for message in too_far:
            output.result(Text(message, style="red"))
    return ExitCode.BEHIND if too_far else ExitCode.ENDED


def _source_fields(each: SourceBehind) -> dict[str, object]:
    return {
        "uid": each.source,
        "behind_rows": each.rows,
        "behind_file_count": each.files,
        "behind_bytes": each.bytes,
        "behind_seconds": each.seconds,
        "rows_per_second": each.rate,
        "caught_up_in_seconds": each.eta_seconds,
        "behind_age_seconds": each.age,
        "partitions": [_partition_fields(part) for part in each.partitions],
        "holds": list(each.holds),
    }


def _partition_fields(each: PartitionBehind) -> dict[str, object]:
    return {
        "name": each.partition,
        "next": each.position,
        "end": each.end,
        "behind_rows": each.rows,
        "behind_seconds": each.seconds,
        "rows_per_second": each.rate,
        "holds": list(each.holds),
    }


def _limit_fields(limit: LagLimit | None) -> dict[str, object]:
    micros = limit.micros if limit is not None else None
    return {
        "limit_rows": limit.rows if limit is not None else None,
        "limit_seconds": None if micros is None else micros / 1_000_000,
    }


def _lag_table(found: Sequence[SourceBehind]) -> Table:
    """One row for each partition and each source; ``◀`` marks what holds back the event time of a step."""
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
        files = None if source.files is None else f"{count(source.files, 'file')}, {size(source.bytes or 0)}"
        whole = (
            files or number_text(source.rows),
            duration_text(source.seconds),
            number_text(source.rate),
            duration_text(source.eta_seconds),
        )
        table.add_row(source.source, "all", "", "", *whole, _holds(source.holds), style="bold")
    return table


def _holds(steps: Sequence[str]) -> str:
    return f"◀ holds {', '.join(steps)}" if steps else ""


# ---- penstock late ---------------------------------------------------------------------------------------------------


def late(job: JobName, /, *, state: State = STATE, as_json: AsJson = False, output: CommandOutput) -> int:
    """Print the rows that the last run put aside, and where they went.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        CheckpointError: the log cannot be read.
    """
    now = job_status(JobDirectory(state, job))
    found = side_output_rows(now)
    if as_json:
        fields: dict[str, object] = {"job": job, "is": now.owner_state.value, "doing": now.doing}
        aside = [_put_aside_fields(each) for each in found]
        output.document(LATE_SCHEMA, **fields, numbers_age_seconds=now.hint_age, put_aside=aside)
        return ExitCode.ENDED
    if found:
        output.result(_late_table(found))
    elif now.hint is not None:
        output.result(Text(f"{job} puts no rows aside: it has no step that could"))
    output.result(Text(f"{job}: {now.state_text} · {_age_text(now)}"))
    return ExitCode.ENDED


def _put_aside_fields(each: SideOutputRows) -> dict[str, object]:
    """The fields of the rows that a step put aside."""
    return {
        "step": each.step,
        "kind": each.kind,
        "rows": each.rows,
        "causes": [{"cause": cause.cause, "rows": cause.rows} for cause in each.causes],
        "partitions": [{"name": name, "rows": rows} for name, rows in each.partitions],
        "sinks": [outlet_fields(sink) for sink in each.sinks],
    }


def _late_table(found: Sequence[SideOutputRows]) -> Table:
    """One row for each cause, then one for each source partition if the rows name theirs."""
    table = plain_table(("step", "left"), ("rows", "right"), ("why", "left"), ("written to", "left"))
    for each in found:
        sinks = "; ".join(f"{sink.uid} ({sink.to})" for sink in each.sinks) or "nowhere: counted and dropped"
        for index, cause in enumerate(each.causes):
            table.add_row(each.step if not index else "", number_text(cause.rows), f"{each.kind}: {cause.cause}", sinks)
            sinks = ""
        for partition, rows in each.partitions:
            table.add_row("", number_text(rows), f"late, of {partition}", "", style="dim")
    return table
