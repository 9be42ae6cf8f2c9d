"""The report of a run: numbers summed up from its facts."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from penstock.clock import MAX_WATERMARK, Clock, EventTime, SystemClock, WallTime, format_time
from penstock.facts import (
    THROTTLED,
    THROTTLED_MS,
    BatchDone,
    BatchRead,
    CheckpointCompleted,
    CheckpointFailed,
    Counted,
    Fact,
    JobEnded,
    JobStarted,
    Listener,
    Published,
    Restarting,
    RowsLate,
    RowsRead,
    SourceLag,
    SourceRests,
    WatermarkAdvanced,
    WatermarkHeld,
)
from penstock.handles import CheckpointId

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """The sums of one run, restarts included. Rows of batches that were redone after a restart count again.

    Attributes:
        state: the present state (``running`` …), or how the run ended (``stopped``, ``failed`` …).
        restored: the checkpoint that the first attempt restored; ``None`` for an empty start.
        batches: by source.
        rows_read: by source, as far as known.
        rows_written: by sink.
        counters: by step or source and name, for example ``("totals", "late")`` or ``("orders", "throttled")``.
        checkpoints: number of completed ones.
        failed_checkpoints: number of aborted ones.
        last_checkpoint: the newest completed one.
        published: by sink, the number of checkpoints whose output was made visible.
        restarts: number of failures after which the run restarted.
        lag: by source, how far it is behind and when it catches up, also by partition. Sources that do not know their
            lag are missing.
        lag_measured: when each source measured its lag: about a second ago while it is polled, longer ago while it
            hangs or rests.
        resting: sources that are not polled, as planned, and until when: by their schedule, or ``None`` if they wait
            for slower sources or have ended.
        late_by: late rows by step and source partition (``("totals", "orders/3")``), if rows name their partition.
        watermarks: event time of each step and sink.
        held_by: what holds a step's event time back: a partition of a source (``orders/3``), a source or a step.
            Missing where nothing can be held back: one input without partitions.
        last_failure: the newest restart or failed checkpoint, in words.
    """

    state: str
    restored: CheckpointId | None = None
    batches: Mapping[str, int] = field(default_factory=dict)
    rows_read: Mapping[str, int] = field(default_factory=dict)
    rows_written: Mapping[str, int] = field(default_factory=dict)
    counters: Mapping[tuple[str, str], int] = field(default_factory=dict)
    checkpoints: int = 0
    failed_checkpoints: int = 0
    last_checkpoint: CheckpointId | None = None
    published: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    lag: Mapping[str, SourceLag] = field(default_factory=dict)
    late_by: Mapping[tuple[str, str], int] = field(default_factory=dict)
    watermarks: Mapping[str, EventTime] = field(default_factory=dict)
    held_by: Mapping[str, str] = field(default_factory=dict)
    last_failure: str | None = None
    # Not compared: a number that is measured again and is the same is no change.
    lag_measured: Mapping[str, WallTime] = field(default_factory=dict, compare=False)
    resting: Mapping[str, WallTime | None] = field(default_factory=dict)

    def __str__(self) -> str:
        """A summary line, and a line for each source, step and sink."""
        rows = _rows(self)
        widths = [max((len(row[place]) for row in rows), default=0) for place in range(2)]
        lines = [f"  {kind:{widths[0]}}  {uid:{widths[1]}}  {text}".rstrip() for kind, uid, text in rows]
        return "\n".join([_summary(self), *lines])

    def __repr__(self) -> str:
        """The same as ``str(report)``: what a notebook or a prompt shows."""
        return f"Report: {self}"

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in _rows(self))
        return f"<div><b>{escape(_summary(self))}</b><table>{rows}</table></div>"


# ---- a report for people ---------------------------------------------------------------------------------------------


def _summary(report: Report) -> str:
    """One line about the run as a whole."""
    newest = f", the newest is {report.last_checkpoint}" if report.last_checkpoint is not None else ""
    parts = [report.state, f"{report.checkpoints:,} checkpoints{newest}"]
    if report.failed_checkpoints:
        parts.append(f"{report.failed_checkpoints:,} failed")
    if report.restarts:
        parts.append(f"{report.restarts:,} restarts")
    if report.restored is not None:
        parts.append(f"continued from checkpoint {report.restored}")
    return "; ".join(parts)


def _rows(report: Report) -> list[tuple[str, str, str]]:
    """Kind, uid and words for each source, step and sink, and for the last failure."""
    sources = [("source", uid, _of_source(report, uid)) for uid in sorted({*report.rows_read, *report.batches})]
    sinks = {*report.rows_written, *report.published}
    steps = sorted({*report.watermarks, *(uid for uid, _ in report.counters)} - {uid for _, uid, _ in sources} - sinks)
    rows = [*sources, *(("step", uid, _of_step(report, uid)) for uid in steps)]
    rows += [("sink", uid, _of_sink(report, uid)) for uid in sorted(sinks)]
    if report.last_failure:
        rows.append(("failure", "", report.last_failure))
    return rows


def _of_source(report: Report, uid: str) -> str:
    text = f"{report.rows_read.get(uid, 0):,} rows in {report.batches.get(uid, 0):,} batches"
    lag = report.lag.get(uid)
    if lag is not None:
        behind = "" if lag.seconds is None else f", {lag.seconds:,.1f} s behind"
        text = f"{text}; {lag.text} wait{behind}"
    refused, waited = (report.counters.get((uid, name), 0) for name in (THROTTLED, THROTTLED_MS))
    return f"{text}; throttled {refused:,} times, for {waited / 1_000:,.1f} s" if refused else text


def _of_step(report: Report, uid: str) -> str:
    at = report.watermarks.get(uid)
    words = [] if at is None else [f"event time {'at its end' if at >= MAX_WATERMARK else format_time(at)}"]
    if uid in report.held_by:
        words.append(f"held back by {report.held_by[uid]}")
    words += [f"{amount:,} {name}" for (step, name), amount in sorted(report.counters.items()) if step == uid]
    return "; ".join(words)


def _of_sink(report: Report, uid: str) -> str:
    return f"{report.rows_written.get(uid, 0):,} rows; output of {report.published.get(uid, 0):,} checkpoints published"


# ---- summing up ------------------------------------------------------------------------------------------------------


class ReportCollector:
    """A listener that sums up facts, from any thread."""

    def __init__(self, *, sources: frozenset[str], sinks: frozenset[str], clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._sources = sources
        self._sinks = sinks
        self._lock = threading.Lock()
        self._batches: Counter[str] = Counter()
        self._read: Counter[str] = Counter()
        self._written: Counter[str] = Counter()
        self._counters: Counter[tuple[str, str]] = Counter()
        self._published: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._late_by: Counter[tuple[str, str]] = Counter()
        self._lag: dict[str, SourceLag] = {}
        self._lag_measured: dict[str, WallTime] = {}
        self._resting: dict[str, WallTime | None] = {}
        self._watermarks: dict[str, EventTime] = {}
        self._held_by: dict[str, str] = {}
        self._failure: str | None = None
        self._state = "created"
        self._restored: CheckpointId | None = None
        self._last: CheckpointId | None = None

    def __call__(self, fact: Fact) -> None:
        """Add a fact to the sums."""
        with self._lock:
            self._add(fact)

    def _add(self, fact: Fact) -> None:
        match fact:
            case BatchRead():
                self._batches[fact.task] += 1
            case RowsRead():
                self._read[fact.task] += fact.rows
            case BatchDone():
                if fact.task in self._sinks:
                    self._written[fact.task] += fact.rows or 0
            case Counted():
                self._counters[fact.task, fact.name] += fact.amount
            case Published():
                self._published[fact.task] += fact.outcome in {"done", "already done"}
            case RowsLate():
                self._late_by[fact.task, fact.partition] += fact.rows
            case SourceLag():
                self._lag[fact.task] = fact
                self._lag_measured[fact.task] = self._clock.wall()
            case SourceRests():
                self._resting[fact.task] = fact.until
            case WatermarkAdvanced():
                self._watermarks[fact.task] = fact.at
            case WatermarkHeld():
                self._held_by[fact.task] = fact.by
            case _:
                self._add_of_job(fact)

    def _add_of_job(self, fact: Fact) -> None:
        match fact:
            case JobStarted():
                self._state = "running"
                self._watermarks.clear()  # of the previous attempt: this one begins at its checkpoint
                self._held_by.clear()
                self._resting.clear()
                if fact.attempt == 1:
                    self._restored = fact.restored
            case CheckpointCompleted():
                self._events["completed"] += 1
                self._last = fact.checkpoint
            case CheckpointFailed():
                self._events["failed"] += 1
                reason = f"{fact.reason.replace('_', ' ')}: {fact.message}" if fact.message else fact.reason
                self._failure = f"checkpoint {fact.checkpoint} failed: {reason}"
            case Restarting():
                self._events["restarts"] += 1
                self._resting.clear()  # until the sources are polled again, their lag is not measured
                self._failure = fact.cause
            case JobEnded():
                self._state = fact.state
                self._failure = fact.cause or self._failure
            case _:
                pass

    def report(self) -> Report:
        """The sums so far."""
        with self._lock:
            return Report(
                state=self._state,
                restored=self._restored,
                batches=dict(self._batches),
                rows_read=dict(self._read),
                rows_written=dict(self._written),
                counters=dict(self._counters),
                checkpoints=self._events["completed"],
                failed_checkpoints=self._events["failed"],
                last_checkpoint=self._last,
                published=dict(self._published),
                restarts=self._events["restarts"],
                lag=dict(self._lag),
                late_by=dict(self._late_by),
                watermarks=dict(self._watermarks),
                held_by=dict(self._held_by),
                last_failure=self._failure,
                lag_measured=dict(self._lag_measured),
                resting=dict(self._resting),
            )


def notify_listener(listener: Listener | None, fact: Fact) -> None:
    """Call a user's listener, if there is one. An exception in it is logged and does not fail the job."""
    if listener is None:
        return
    try:
        listener(fact)
    except Exception:
        log.exception("a listener raised on %s; it is ignored", type(fact).__name__)
