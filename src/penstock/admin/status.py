"""The status of jobs, read from their directories: checkpoints, lag of sources, rows put aside."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Final

from penstock.admin.received import ReceivedLog, read_received
from penstock.checkpoint.entries import Claim, StepRole
from penstock.clock import format_duration, parse_duration
from penstock.control.client import JobDirectory, is_at_rest, jobs_in
from penstock.errors import CheckpointError, GraphError, PenstockError, SettingsError
from penstock.observability.status_file import read_status_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.history import History
    from penstock.clock import Clock, WallTime
    from penstock.control.protocol import Answer
    from penstock.facts import SourceLag
    from penstock.graph.queries import SideOutput, SideOutputSink
    from penstock.handles import CheckpointId, EntryNumber, Generation
    from penstock.observability.report import Report
    from penstock.observability.status_file import StatusFile


# ---- checkpoints of a log --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        checkpoint: its number, which rises over the whole log.
        kind: why it was taken.
        entry: its number in the log.
        generation: the claim under which it was taken.
        parent: the checkpoint it continues.
        triggered: when it was begun.
        completed: when it was complete.
        new_bytes: size of the files that no earlier checkpoint of the log names.
        state_bytes: size of the files of state that it needs; the status of a job shows it of the restore point.
        bytes: size of all files that it needs: those of state, and of outputs that were open.
        outputs: number of outputs that its sinks handed over.
        open: how many of them are not known to be published.
        is_restorable: it is not condemned.
        names: names of its savepoints.
        is_restore_point: the next start continues it.
    """

    checkpoint: CheckpointId
    kind: str
    entry: EntryNumber
    generation: Generation
    parent: CheckpointId | None
    triggered: WallTime
    completed: WallTime
    new_bytes: int
    state_bytes: int
    bytes: int
    outputs: int
    open: int
    is_restorable: bool
    names: tuple[str, ...]
    is_restore_point: bool

    @property
    def seconds(self) -> float:
        """Time from the trigger to the last acknowledgement."""
        return (self.completed - self.triggered) / 1_000_000


def checkpoints_of(history: History) -> tuple[Checkpoint, ...]:
    """All checkpoints of the log, oldest first; condemned ones too, as long as their entries are there."""
    open_now = [item.checkpoint for item in history.open_committables]
    point = history.restore_point
    generations = {entry.number: entry.generation for entry in history.entries}
    seen: set[str] = set()
    found = []
    for key, (number, manifest) in history.manifests.items():
        files = manifest.files
        found.append(
            Checkpoint(
                checkpoint=key,
                kind=manifest.kind.value,
                entry=number,
                generation=generations[number],
                parent=manifest.parent,
                triggered=manifest.triggered,
                completed=manifest.completed,
                new_bytes=sum(file.length for file in files if file.path not in seen),
                state_bytes=manifest.state_bytes,
                bytes=sum(file.length for file in files),
                outputs=sum(item.checkpoint == key for item in manifest.open),
                open=open_now.count(key),
                is_restorable=key not in history.condemned,
                names=history.names_of(key),
                is_restore_point=point is not None and point.checkpoint == key,
            )
        )
        seen.update(file.path for file in files)
    return tuple(found)


# ---- the status of a job ---------------------------------------------------------------------------------------------

MAX_PARALLEL: Final = 8
"""Number of jobs whose status is read at the same time."""  # it takes 2 s to be sure that an owner is gone


class OwnerState(str, Enum):
    """Whether a process owns a job and runs it."""

    RUNNING = "running"
    """A process answers requests."""
    STOPPED = "stopped"
    """The log says that the job ended in order and published everything it read."""
    DEAD = "dead"
    """No process answers, and the job did not end in order: the next start, or ``settle``, publishes open output."""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The status of one job at one moment.

    Attributes:
        job: its name.
        history: its log.
        owner: the answer of the process that runs it, if one does.
        hint: the status file of its last run, if any; see ``is_hint_of_now``.
        now: when all this was read.
        received: the write-ahead log of the sources that are given rows.
    """

    job: str
    history: History
    owner: Answer | None
    hint: StatusFile | None
    now: WallTime
    received: ReceivedLog = field(default_factory=ReceivedLog)

    @property
    def owner_state(self) -> OwnerState:
        """Whether the job runs, stopped, or died."""
        if self.owner is not None:
            return OwnerState.RUNNING
        return OwnerState.STOPPED if is_at_rest(self.history) else OwnerState.DEAD

    @property
    def state_text(self) -> str:
        """The state as text: that which the owner reports, or else ``stopped`` or ``dead``."""
        process = self.owner.me if self.owner is not None else None
        return process.state if process is not None else self.owner_state.value

    @property
    def doing(self) -> str | None:
        """The state that the owner reports; ``None`` if the job does not run."""
        return self.state_text if self.owner_state is OwnerState.RUNNING else None

    @property
    def claim(self) -> Claim | None:
        """The newest claim of the log."""
        entry = self.history.claim
        return entry.body if entry is not None and isinstance(entry.body, Claim) else None

    @property
    def is_hint_of_now(self) -> bool:
        """Whether the newest generation wrote the status file."""
        return self.hint is not None and self.hint.generation == self.history.generation

    @property
    def hint_age(self) -> float | None:
        """Seconds since the status file was written."""
        return None if self.hint is None else _seconds_since(self.hint.written, self.now)

    @property
    def uptime(self) -> float | None:
        """Seconds since the owner process started; ``None`` if the job does not run."""
        process = self.owner.me if self.owner is not None else None
        return None if process is None else _seconds_since(process.started, self.now)

    @cached_property
    def newest(self) -> Manifest | None:
        """The newest checkpoint in the log, on any timeline."""
        manifests = list(self.history.manifests.values())
        return manifests[-1][1] if manifests else None

    @property
    def checkpoint_age(self) -> float | None:
        """Seconds since the newest checkpoint was complete."""
        return None if self.newest is None else _seconds_since(self.newest.completed, self.now)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The uids of the sources, from the restore point and the status file."""
        manifest = self.history.restore_point
        recorded = [step.uid for step in manifest.steps if step.role is StepRole.SOURCE] if manifest else []
        reported = [*self.hint.report.lag, *self.hint.report.batches] if self.hint is not None else []
        return tuple(sorted({*recorded, *reported}))

    @property
    def state_bytes(self) -> Mapping[str, int]:
        """Bytes of the layers of each step that keeps state, as of the restore point."""
        manifest = self.history.restore_point
        return manifest.state_bytes_by_step if manifest is not None else {}


def job_status(job: JobDirectory) -> JobStatus:
    """Read the status of a job.

    Raises:
        UnknownName: the job was never claimed.
        CheckpointError: the log or the owner's answer cannot be read.
    """
    owner = job.owner()  # first, so that its answer is not younger than the log
    history = job.read()
    hint = _read_hint(job)
    of_this_log = hint is not None and hint.log_id == history.log_id
    return JobStatus(
        job=job.job,
        history=history,
        owner=owner,
        hint=hint if of_this_log else None,
        now=job.clock.wall(),
        received=read_received(job.filesystem, history),
    )


def _read_hint(job: JobDirectory) -> StatusFile | None:
    """Read the status file; ``None`` also if storage fails, since it is only for people."""
    try:
        return read_status_file(job.filesystem)
    except CheckpointError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableJob:
    """A job whose log cannot be read, and why."""

    job: str
    message: str


def all_jobs(state: str | Path, *, clock: Clock | None = None) -> list[JobStatus | UnreadableJob]:
    """Read the status of every job in a folder, sorted by name; an unreadable job does not hide the others."""

    def read(name: str) -> JobStatus | UnreadableJob:
        try:
            return job_status(JobDirectory(state, name, clock=clock))
        except PenstockError as error:
            return UnreadableJob(job=name, message=str(error))

    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        return list(pool.map(read, jobs_in(state)))


def _seconds_since(then: WallTime, now: WallTime) -> float:
    """Seconds since a moment; never negative, since the clocks of two machines may differ."""
    return max(0, now - then) / 1_000_000


# ---- lag of sources --------------------------------------------------------------------------------------------------

STALE_AFTER: Final = 60.0
"""Seconds after which a lag, or a status file, is too old to check by."""
# A running job writes the file at least every 10 s, and a source that is polled measures its lag every second.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBehind:
    """One partition: the next row to be read, its end, and the distance between them.

    ``holds``: steps whose event time this partition holds back.
    """

    partition: str
    position: int | None
    end: int | None
    rows: int
    seconds: float | None
    rate: float | None
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBehind:
    """One source. ``None`` is unknown; of a source that cannot report its lag everything is.

    A source of files knows ``files`` and ``bytes`` that it has not read instead of ``rows``.

    ``holds``: steps whose event time the source as a whole holds back. ``age``: seconds since the lag was measured.
    ``is_stale``: that is too long ago for a check, and the source does not rest as planned.
    """

    source: str
    rows: int | None
    seconds: float | None
    rate: float | None
    eta_seconds: float | None
    partitions: tuple[PartitionBehind, ...]
    holds: tuple[str, ...]
    files: int | None = None
    bytes: int | None = None
    age: float | None = None
    is_stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LagLimit:
    """The most that a source may be behind: rows, or microseconds."""

    rows: int | None = None
    micros: int | None = None

    def __str__(self) -> str:
        return f"{self.rows:,} rows" if self.micros is None else format_duration(self.micros)


def source_lags(status: JobStatus) -> tuple[SourceBehind, ...]:
    """Return every source of the job with the lag that it reported last, sorted by uid."""
    report = status.hint.report if status.hint is not None else None
    held_by = report.held_by if report is not None else {}
    holds: dict[str, list[str]] = {}
    for step, by in sorted(held_by.items()):
        holds.setdefault(by, []).append(step)
    lags = report.lag if report is not None else {}
    return tuple(_behind(source, lags.get(source), holds, _lag_age(status, source)) for source in status.sources)


def _lag_age(status: JobStatus, source: str) -> tuple[float | None, bool]:
    """Seconds since a source measured its lag, if known, and whether it should have measured it again since."""
    # A job of an older penstock does not say when: then its numbers are as old as the file.
    measured = status.hint.report.lag_measured.get(source) if status.hint is not None else None
    if status.hint is None or measured is None:
        return status.hint_age, False
    age, resting = _seconds_since(measured, status.now), status.hint.report.resting
    if status.owner_state is not OwnerState.RUNNING:
        return age, False
    until = resting.get(source, measured)
    return age, until is not None and min(age, _seconds_since(until, status.now)) > STALE_AFTER


def _behind(
    source: str, lag: SourceLag | None, holds: dict[str, list[str]], age: tuple[float | None, bool]
) -> SourceBehind:
    partitions = tuple(_partitions(source, lag, holds)) if lag is not None else ()
    rates = [each.rate for each in partitions if each.rate is not None]
    return SourceBehind(
        source=source,
        rows=lag.rows if lag is not None else None,
        seconds=lag.seconds if lag is not None else None,
        rate=sum(rates) if rates else None,
        eta_seconds=lag.eta_seconds if lag is not None else None,
        partitions=partitions,
        holds=tuple(holds.get(source, ())),
        files=lag.files if lag is not None else None,
        bytes=lag.bytes if lag is not None else None,
        age=age[0] if lag is not None else None,
        is_stale=lag is not None and age[1],
    )


def _partitions(source: str, lag: SourceLag, holds: dict[str, list[str]]) -> Iterator[PartitionBehind]:
    for name, each in lag.partitions.items():
        yield PartitionBehind(
            partition=name,
            position=each.position,
            end=each.end,
            rows=each.rows,
            seconds=each.seconds,
            rate=each.rate,
            holds=tuple(holds.get(f"{source}/{each.name or name}", ())),
        )


def parse_lag_limit(text: str) -> LagLimit:
    """Parse the value of ``--max-lag``.

    Raises:
        SettingsError: it is neither a number of rows nor a length of time.

    >>> str(parse_lag_limit("10000")), str(parse_lag_limit("90s"))
    ('10,000 rows', '90 seconds')
    """
    plain = text.replace("_", "").replace(",", "").strip()
    if plain.isascii() and plain.isdecimal():
        return LagLimit(rows=int(plain))
    try:
        return LagLimit(micros=parse_duration("--max-lag", text))
    except GraphError:
        msg = f"--max-lag is {text!r}. Give rows, as in 10000, or a length of time, as in 30s."
        raise SettingsError(msg) from None


def exceeded(status: JobStatus, limit: LagLimit) -> list[str]:
    """Return a message for each source that is further behind than the limit.

    An unknown lag exceeds every limit, except that of a source that never reports one next to a source that does.
    """
    if status.owner_state is not OwnerState.RUNNING:
        return [f"job {status.job!r} does not run ({status.owner_state.value}): how far it is behind now is not known"]
    if not status.is_hint_of_now or (status.hint_age or 0.0) > STALE_AFTER:
        return [f"job {status.job!r} has not reported how far it is behind for more than {STALE_AFTER:g} s"]
    reporting = [each for each in source_lags(status) if each.rows is not None or each.files is not None]
    if not reporting:
        return [f"no source of job {status.job!r} has reported how far it is behind"]
    return [message for each in reporting if (message := _over(each, limit)) is not None]


def _over(each: SourceBehind, limit: LagLimit) -> str | None:
    if each.is_stale:
        return _over_if_stale(each, limit)
    if not each.rows and not each.files:  # only sources with a known lag are compared
        return None
    if limit.rows is not None and each.rows is None:
        return f"{each.source}: {each.files:,} files are not read yet; how many rows they have is not known"
    if limit.rows is not None:
        assert each.rows is not None  # see above
        return f"{each.source}: {each.rows:,} rows behind, more than {limit}" if each.rows > limit.rows else None
    assert limit.micros is not None  # a limit has one of the two
    if each.seconds is None:
        return f"{each.source}: how long it is behind is not known"
    return (
        f"{each.source}: {each.seconds:,.1f} s behind, more than {limit}"
        if each.seconds * 1_000_000 > limit.micros
        else None
    )


def _over_if_stale(each: SourceBehind, limit: LagLimit) -> str | None:
    """As ``_over``, for a lag of long ago. Rows that came since then wait for as long at most; how many is unknown."""
    assert each.age is not None  # it is too old
    if limit.micros is not None and each.seconds is not None and (each.seconds + each.age) * 1_000_000 <= limit.micros:
        return None
    return f"{each.source}: has not reported how far it is behind for {each.age:,.0f} s"


# ---- rows put aside --------------------------------------------------------------------------------------------------

LATE: Final = "late"
BAD: Final = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why rows were put aside, and their number; ``None`` if they are not counted."""

    cause: str
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOutputRows:
    """The rows that one step put aside in the run that wrote the status file.

    Attributes:
        step: its uid, or what it does.
        kind: ``late`` or ``bad``.
        rows: their number; ``None`` if they are not counted.
        causes: the rows by cause.
        partitions: late rows by source partition, where rows have one.
        sinks: where they are written; without one they are counted and dropped.
    """

    step: str
    kind: str
    rows: int | None
    causes: tuple[Cause, ...]
    partitions: tuple[tuple[str, int], ...]
    sinks: tuple[SideOutputSink, ...]


def side_output_rows(status: JobStatus) -> tuple[SideOutputRows, ...]:
    """Return every side output of the job, in the order of its steps; none if there is no status file."""
    if status.hint is None:
        return ()
    return tuple(_side_outputs(status.hint.report, status.hint.side_outputs))


def _side_outputs(report: Report, outputs: tuple[SideOutput, ...]) -> Iterator[SideOutputRows]:
    with_late_output = {each.step for each in outputs if each.kind == LATE}
    for each in outputs:
        yield _late(report, each.step, each.sinks) if each.kind == LATE else _bad(report, each)
    for step, name in sorted(report.counters):
        if name == LATE and step not in with_late_output:
            yield _late(report, step, ())


def _late(report: Report, step: str, sinks: tuple[SideOutputSink, ...]) -> SideOutputRows:
    rows = report.counters.get((step, "late"), 0)
    missing = report.counters.get((step, "missing_time"), 0)
    causes = (Cause(cause="below the watermark", rows=rows - missing), Cause(cause="no event time", rows=missing))
    return SideOutputRows(
        step=step,
        kind=LATE,
        rows=rows,
        causes=causes,
        partitions=tuple(sorted((by, n) for (of, by), n in report.late_by.items() if of == step)),
        sinks=sinks,
    )


def _bad(report: Report, output: SideOutput) -> SideOutputRows:
    """The bad rows of a step, which have no counter: a sink that gets all of them, and no others, counts them."""
    direct = [sink.uid for sink in output.sinks if sink.is_direct]
    rows = report.rows_written.get(direct[0], 0) if direct else None
    return SideOutputRows(
        step=output.step,
        kind=BAD,
        rows=rows,
        causes=(Cause(cause="cannot be decoded", rows=rows),),
        partitions=(),
        sinks=output.sinks,
    )
