"""Job status, lag, rows put aside, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Final

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


# ----------------------------------------------------------------------------------------------------
# What the log says of each checkpoint: its size, its output, whether it can be restored. Pure; prints nothing.


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
        new_bytes: of files that no earlier checkpoint of the log names.
        bytes: of all files that it needs.
        outputs: how many its sinks handed over.
        open: how many of them the log does not know to be published.
        is_restorable: it is not condemned.
        names: of its savepoints.
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
    bytes: int
    outputs: int
    open: int
    is_restorable: bool
    names: tuple[str, ...]
    is_restore_point: bool

    @property
    def seconds(self) -> float:
        """From the trigger to the last acknowledgement."""
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


# ----------------------------------------------------------------------------------------------------
# How a job stands: what its log says, who runs it, and the numbers that its run has left. Reads; knows no command.

MAX_PARALLEL: Final = 8
"""Jobs that are looked at at the same time: an owner that is gone takes 2 s to be sure of."""


class OwnerState(str, Enum):
    """Whether a job runs, as far as can be told from its directory."""

    RUNNING = "running"
    """A process answers."""
    STOPPED = "stopped"
    """It ended in order: everything it read is published, the log says so."""
    DEAD = "dead"
    """Nobody answers, and there was no last word: the next start, or ``settle``, publishes what is open."""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """One job at one moment.

    Attributes:
        job: its name.
        history: its log.
        owner: what the process that runs it says, if one does.
        hint: the numbers that its last run left, if any; see :attr:`is_hint_of_now`.
        now: when this was looked at.
    """

    job: str
    history: History
    owner: Answer | None
    hint: StatusFile | None
    now: WallTime

    @property
    def being(self) -> OwnerState:
        """Whether it runs."""
        if self.owner is not None:
            return OwnerState.RUNNING
        return OwnerState.STOPPED if is_at_rest(self.history) else OwnerState.DEAD

    @property
    def word(self) -> str:
        """For people: what a running one says it is doing."""
        me = self.owner.me if self.owner is not None else None
        return me.state if me is not None else self.being.value

    @property
    def doing(self) -> str | None:
        """The same for documents; ``None`` if nobody runs it."""
        return self.word if self.being is OwnerState.RUNNING else None

    @property
    def claim(self) -> Claim | None:
        """Who has, or had, the job."""
        entry = self.history.claim
        return entry.body if entry is not None and isinstance(entry.body, Claim) else None

    @property
    def is_hint_of_now(self) -> bool:
        """Whether the numbers are those of the newest owner, not of a run before it."""
        return self.hint is not None and self.hint.generation == self.history.generation

    @property
    def hint_age(self) -> float | None:
        """Seconds since the numbers were written."""
        return None if self.hint is None else _seconds(self.hint.written, self.now)

    @property
    def uptime(self) -> float | None:
        """Seconds since the process that runs it began; ``None`` if nobody does."""
        me = self.owner.me if self.owner is not None else None
        return None if me is None else _seconds(me.started, self.now)

    @cached_property
    def newest(self) -> Manifest | None:
        """The newest checkpoint in the log, on any timeline."""
        manifests = list(self.history.manifests.values())
        return manifests[-1][1] if manifests else None

    @property
    def checkpoint_age(self) -> float | None:
        """Seconds since it was complete."""
        return None if self.newest is None else _seconds(self.newest.completed, self.now)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The uids of what it reads, by its log and by its numbers."""
        manifest = self.history.restore_point
        recorded = [step.uid for step in manifest.steps if step.role is StepRole.SOURCE] if manifest else []
        told = [*self.hint.report.lag, *self.hint.report.batches] if self.hint is not None else []
        return tuple(sorted({*recorded, *told}))

    @property
    def state_bytes(self) -> Mapping[str, int]:
        """Bytes of the layers of each step that keeps state, as of the restore point."""
        manifest = self.history.restore_point
        tasks = manifest.tasks if manifest is not None else ()
        return {task.task: task.state.bytes for task in tasks if task.state is not None}


def job_status(job: JobDirectory) -> JobStatus:
    """How it stands now.

    Raises:
        UnknownName: nobody has ever claimed it.
        CheckpointError: its log cannot be read, or whether anybody runs it cannot be found out.
    """
    owner = job.owner()  # first: what it then says is not younger than the log that is read
    history = job.read()
    hint = _hint(job)
    of_this_log = hint is not None and hint.log_id == history.log_id
    return JobStatus(
        job=job.job, history=history, owner=owner, hint=hint if of_this_log else None, now=job.clock.wall()
    )


def _hint(job: JobDirectory) -> StatusFile | None:
    """Numbers are for people: storage that does not give them says only that there are none."""
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
    """Every job in a folder, sorted by name; one that cannot be read hides no other."""

    def look(name: str) -> JobStatus | UnreadableJob:
        try:
            return job_status(JobDirectory(state, name, clock=clock))
        except PenstockError as error:
            return UnreadableJob(job=name, message=str(error))

    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        return list(pool.map(look, jobs_in(state)))


def _seconds(then: WallTime, now: WallTime) -> float:
    """Clocks of two machines may differ: nothing is younger than now."""
    return max(0, now - then) / 1_000_000


# ----------------------------------------------------------------------------------------------------
# How far a job's sources are behind, partition by partition, and whether that is too far. Pure.

STALE_AFTER: Final = 60.0
"""Seconds after which the numbers of a running job say nothing of now; it writes them every 10 s at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBehind:
    """One partition: the next row to be read, where it ends, and how far that is apart.

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
    """One source. What is ``None`` is not known; a source that cannot tell how far it is behind knows nothing.

    ``holds``: steps whose event time the source as a whole holds back.
    """

    source: str
    rows: int | None
    seconds: float | None
    rate: float | None
    eta_seconds: float | None
    partitions: tuple[PartitionBehind, ...]
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LagLimit:
    """The most that a source may be behind: rows, or microseconds."""

    rows: int | None = None
    micros: int | None = None

    def __str__(self) -> str:
        return f"{self.rows:,} rows" if self.micros is None else format_duration(self.micros)


def source_lags(now: JobStatus) -> tuple[SourceBehind, ...]:
    """Every source of the job, sorted by uid, as it was told last."""
    report = now.hint.report if now.hint is not None else None
    held_by = report.held_by if report is not None else {}
    holds: dict[str, list[str]] = {}
    for step, by in sorted(held_by.items()):
        holds.setdefault(by, []).append(step)
    told = report.lag if report is not None else {}
    return tuple(_behind(source, told.get(source), holds) for source in now.sources)


def _behind(source: str, lag: SourceLag | None, holds: dict[str, list[str]]) -> SourceBehind:
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
    """What ``--max-lag`` says.

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
        msg = f"--max-lag is {text!r}: give rows, as in 10000, or a length of time, as in 30s"
        raise SettingsError(msg) from None


def exceeded(now: JobStatus, limit: LagLimit) -> list[str]:
    """Which sources are further behind than that, in words. A check must not pass on what nobody knows.

    A source of a kind that never tells is left out, unless there is no other.
    """
    if now.being is not OwnerState.RUNNING:
        return [f"job {now.job!r} does not run ({now.being.value}): how far it is behind now is not known"]
    if not now.is_hint_of_now or (now.hint_age or 0.0) > STALE_AFTER:
        return [f"job {now.job!r} has not told how far it is behind for more than {STALE_AFTER:g} s"]
    telling = [each for each in source_lags(now) if each.rows is not None]
    if not telling:
        return [f"no source of job {now.job!r} has told how far it is behind"]
    return [said for each in telling if (said := _over(each, limit)) is not None]


def _over(each: SourceBehind, limit: LagLimit) -> str | None:
    assert each.rows is not None  # it has told
    if each.rows == 0:
        return None
    if limit.rows is not None:
        return f"{each.source}: {each.rows:,} rows behind, more than {limit}" if each.rows > limit.rows else None
    assert limit.micros is not None  # it is one of the two
    if each.seconds is None:
        return f"{each.source}: how long it is behind is not known"
    return (
        f"{each.source}: {each.seconds:,.1f} s behind, more than {limit}"
        if each.seconds * 1_000_000 > limit.micros
        else None
    )


# ----------------------------------------------------------------------------------------------------
# Rows that a job has put aside, by step and cause, and where they went: from its counters and its graph. Pure.

LATE: Final = "late"
BAD: Final = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why rows were put aside, and how many; ``None``: they are not counted."""

    cause: str
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOutputRows:
    """What one step has put aside in the run whose numbers these are.

    Attributes:
        step: its uid, or what it does.
        kind: ``late`` or ``bad``.
        rows: in all; ``None`` where nobody has counted them.
        causes: what they add up from.
        partitions: late rows by source partition, as far as rows say which they are of.
        sinks: where they are written; none: nothing takes them, they are counted and gone.
    """

    step: str
    kind: str
    rows: int | None
    causes: tuple[Cause, ...]
    partitions: tuple[tuple[str, int], ...]
    sinks: tuple[SideOutputSink, ...]


def side_output_rows(now: JobStatus) -> tuple[SideOutputRows, ...]:
    """Every side output of the job, in the order of its steps; none if no run has left its numbers."""
    if now.hint is None:
        return ()
    return tuple(_all(now.hint.report, now.hint.side_outputs))


def _all(report: Report, outputs: tuple[SideOutput, ...]) -> Iterator[SideOutputRows]:
    known = {each.step for each in outputs if each.kind == LATE}
    for each in outputs:
        yield _late(report, each.step, each.sinks) if each.kind == LATE else _bad(report, each)
    for step, name in sorted(report.counters):
        if name == LATE and step not in known:
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
    """Bad rows have no counter of their own: a sink that gets them all, and no others, has counted them."""
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
