"""The report as a file that commands show, replaced every second."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.checkpoint import paths
from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, EventTime, MonotonicTime, WallTime
from penstock.facts import PartitionLag, SourceLag
from penstock.graph.queries import SideOutput, SideOutputSink
from penstock.handles import CheckpointId, Generation
from penstock.observability.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.checkpoint.log import OwnedLog
    from penstock.clock import Clock
    from penstock.filesystem.base import FileSystem


# ----------------------------------------------------------------------------------------------------
# A report as a JSON document has it, and back: lists of sources, steps and sinks. Reads and writes no file.
#
# The names are those of all documents of the command line: docs/json.md.


def report_fields(report: Report) -> dict[str, object]:
    """A report's fields; of what is not known, ``None``.

    >>> report_fields(Report(state="running", rows_read={"in": 3}))["sources"][0]["rows_read"]
    3
    """
    return {
        "doing": report.state,
        "restored_checkpoint": report.restored,
        "checkpoint": report.last_checkpoint,
        "checkpoint_count": report.checkpoints,
        "failed_checkpoint_count": report.failed_checkpoints,
        "restart_count": report.restarts,
        "last_failure": report.last_failure,
        "sources": [_source(report, uid) for uid in _uids(report.batches, report.rows_read, report.lag)],
        "steps": [_step(report, uid) for uid in _steps(report)],
        "sinks": [
            {"uid": uid, "rows_written": report.rows_written.get(uid), "published_count": report.published.get(uid)}
            for uid in _uids(report.rows_written, report.published)
        ],
    }


def _uids(*named: Iterable[str]) -> list[str]:
    return sorted({uid for names in named for uid in names})


def _steps(report: Report) -> list[str]:
    counted = (uid for uid, _ in (*report.counters, *report.late_by))
    return _uids(report.watermarks, report.held_by, counted)


def _source(report: Report, uid: str) -> dict[str, object]:
    lag = report.lag.get(uid)
    return {
        "uid": uid,
        "batch_count": report.batches.get(uid),
        "rows_read": report.rows_read.get(uid),
        "behind_rows": None if lag is None else lag.rows,
        "behind_seconds": None if lag is None else lag.seconds,
        "caught_up_in_seconds": None if lag is None else lag.eta_seconds,
        "partitions": [] if lag is None else [_partition(name, each) for name, each in lag.partitions.items()],
    }


def _partition(name: str, lag: PartitionLag) -> dict[str, object]:
    return {
        "name": name,
        "mark": lag.name,
        "next": lag.position,
        "end": lag.end,
        "behind_rows": lag.rows,
        "behind_seconds": lag.seconds,
        "rows_per_second": lag.rate,
    }


def _step(report: Report, uid: str) -> dict[str, object]:
    return {
        "uid": uid,
        **watermark_fields(report.watermarks.get(uid)),
        "held_by": report.held_by.get(uid),
        "counters": [{"name": name, "amount": n} for (step, name), n in report.counters.items() if step == uid],
        "late_partitions": [{"name": name, "rows": n} for (step, name), n in report.late_by.items() if step == uid],
    }


def watermark_fields(at: EventTime | None) -> dict[str, object]:
    """Event time of a step, in a document: a moment, the end, or none yet; ``None`` where it has none at all.

    >>> watermark_fields(EventTime(5)), watermark_fields(MIN_WATERMARK), watermark_fields(None)["is_at_end"]
    ({'watermark': 5, 'is_at_end': False}, {'watermark': None, 'is_at_end': False}, None)
    """
    is_time = at not in {None, MIN_WATERMARK, MAX_WATERMARK}
    return {"watermark": at if is_time else None, "is_at_end": None if at is None else at == MAX_WATERMARK}


def side_output_fields(output: SideOutput) -> dict[str, object]:
    """Where the rows go that a step puts aside."""
    return {"step": output.step, "kind": output.kind, "sinks": [outlet_fields(each) for each in output.sinks]}


def outlet_fields(sink: SideOutputSink) -> dict[str, object]:
    """A sink that gets such rows."""
    return {"uid": sink.uid, "description": sink.to, "is_direct": sink.is_direct}


# --------------------------------------------------------------------------------------------------------------- back


def read_report(told: Any) -> Report:
    """The inverse of :func:`report_fields`; raises what comes of values that are none of its."""
    sources, steps, sinks = (_by_uid(told[name]) for name in ("sources", "steps", "sinks"))
    restored, last, failure = told["restored_checkpoint"], told["checkpoint"], told["last_failure"]
    return Report(
        state=str(told["doing"]),
        restored=None if restored is None else CheckpointId(int(restored)),
        batches=_numbers(sources, "batch_count"),
        rows_read=_numbers(sources, "rows_read"),
        rows_written=_numbers(sinks, "rows_written"),
        counters={(uid, str(each["name"])): int(each["amount"]) for uid, each in _below(steps, "counters")},
        checkpoints=int(told["checkpoint_count"]),
        failed_checkpoints=int(told["failed_checkpoint_count"]),
        last_checkpoint=None if last is None else CheckpointId(int(last)),
        published=_numbers(sinks, "published_count"),
        restarts=int(told["restart_count"]),
        lag={uid: _read_lag(uid, each) for uid, each in sources.items() if each["behind_rows"] is not None},
        late_by={(uid, str(each["name"])): int(each["rows"]) for uid, each in _below(steps, "late_partitions")},
        watermarks={uid: _read_watermark(each) for uid, each in steps.items() if each["is_at_end"] is not None},
        held_by={uid: str(each["held_by"]) for uid, each in steps.items() if each["held_by"] is not None},
        last_failure=None if failure is None else str(failure),
    )


def _by_uid(told: Any) -> dict[str, Any]:
    return {str(each["uid"]): each for each in told}


def _numbers(told: dict[str, Any], name: str) -> dict[str, int]:
    return {uid: int(each[name]) for uid, each in told.items() if each[name] is not None}


def _below(told: dict[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    return ((uid, each) for uid, above in told.items() for each in above[name])


def _read_watermark(told: Any) -> EventTime:
    if told["is_at_end"]:
        return MAX_WATERMARK
    return MIN_WATERMARK if told["watermark"] is None else EventTime(int(told["watermark"]))


def _read_lag(uid: str, told: Any) -> SourceLag:
    partitions = {
        str(each["name"]): PartitionLag(
            rows=int(each["behind_rows"]),
            seconds=each["behind_seconds"],
            position=each["next"],
            end=each["end"],
            rate=each["rows_per_second"],
            name=str(each["mark"]),
        )
        for each in told["partitions"]
    }
    return SourceLag(
        task=uid,
        rows=int(told["behind_rows"]),
        seconds=told["behind_seconds"],
        eta_seconds=told["caught_up_in_seconds"],
        partitions=partitions,
    )


def read_side_output(told: Any) -> SideOutput:
    """The inverse of :func:`side_output_fields`."""
    sinks = (
        SideOutputSink(uid=str(each["uid"]), to=str(each["description"]), is_direct=bool(each["is_direct"]))
        for each in told["sinks"]
    )
    return SideOutput(step=str(told["step"]), kind=str(told["kind"]), sinks=tuple(sinks))


# ----------------------------------------------------------------------------------------------------
# What a run has done so far, as a file that commands show: a hint, replaced every second. Nothing decides by it.
#
# It outlives its process, so that numbers of a dead job can be shown, with their age. A job never fails for it.

log: Final = logging.getLogger("penstock")
SCHEMA: Final = "penstock.report/1"
"""Of the file: fields may be added under this name, never changed or taken away."""
WRITE_INTERVAL: Final = 1_000_000
"""Microseconds from one writing to the next while something changes."""
HEARTBEAT_INTERVAL: Final = 10_000_000
"""And while nothing does: so its age says that the job lives."""
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""Bytes that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFile:
    """What was last told of a run.

    Attributes:
        job: its name.
        log_id: of the log that it had; another log's hint says nothing.
        generation: under which it was written; that of the log is newer where a run died before it wrote any.
        began: when the process took the job.
        written: when this was written.
        report: the numbers, as :meth:`penstock.Job.report` has them.
        side_outputs: where late and bad rows go.
    """

    job: str
    log_id: str
    generation: Generation
    began: WallTime
    written: WallTime
    report: Report
    side_outputs: tuple[SideOutput, ...] = ()


class StatusFileWriter:
    """Replaces the hint of a running job; called by one thread again and again, and once at its end.

    Args:
        filesystem: rooted at the job's directory.
        job: its name.
        report: the numbers so far.
        owned: the log that the job has now, if it has one.
        clock: for the pace, and for people.
        side_outputs: of the pipeline.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        *,
        job: str,
        report: Callable[[], Report],
        owned: Callable[[], OwnedLog | None],
        clock: Clock,
        side_outputs: tuple[SideOutput, ...] = (),
    ) -> None:
        self._filesystem = filesystem
        self._job = job
        self._report = report
        self._owned = owned
        self._clock = clock
        self._side_outputs = side_outputs
        self._began = clock.wall()
        self._at: MonotonicTime | None = None
        self._last: tuple[Generation, Report] | None = None
        self._is_told = False

    def look(self) -> None:
        """Write it if it is time to; never raises."""
        now = self._clock.now()
        if self._at is None or now >= self._at + WRITE_INTERVAL:
            self._write(now, at_least=HEARTBEAT_INTERVAL)

    def finish(self) -> None:
        """Write it as it is at the end; never raises."""
        self._write(self._clock.now(), at_least=0)

    def _write(self, now: MonotonicTime, *, at_least: int) -> None:
        try:
            owned, report = self._owned(), self._report()
            if owned is None:
                return
            is_news = self._last != (owned.generation, report)
            if not is_news and self._at is not None and now < self._at + at_least:
                return
            self._at = now
            if not self._is_superseded(owned):
                self._filesystem.replace(paths.REPORT, encode(self._hint(owned, report)))
            self._last = (owned.generation, report)
        except Exception as error:  # whatever it is, nobody's rows depend on it
            if not self._is_told:
                log.warning("job %s cannot write its numbers for `penstock status`: %s", self._job, error)
            self._is_told = True

    def _is_superseded(self, owned: OwnedLog) -> bool:
        """Whether a newer owner writes there: this process does not know yet that it is over."""
        data = self._filesystem.read(paths.REPORT)
        if data is None or len(data) > MAX_FILE_BYTES:
            return False
        try:
            told: Any = json.loads(data)
            return bool(told["log_id"] == owned.log_id and told["generation"] > owned.generation)
        except (KeyError, TypeError, ValueError, RecursionError):
            return False

    def _hint(self, owned: OwnedLog, report: Report) -> StatusFile:
        return StatusFile(
            job=self._job,
            log_id=owned.log_id,
            generation=owned.generation,
            began=self._began,
            written=self._clock.wall(),
            report=report,
            side_outputs=self._side_outputs,
        )


def read_status_file(filesystem: FileSystem) -> StatusFile | None:
    """What lies there, if this version understands it.

    Raises:
        StorageFailed: the file cannot be read.
    """
    data = filesystem.read(paths.REPORT)
    return None if data is None or len(data) > MAX_FILE_BYTES else decode(data)


def encode(hint: StatusFile) -> bytes:
    """As JSON; times are microseconds since 1970."""
    plain = {
        "schema": SCHEMA,
        "job": hint.job,
        "log_id": hint.log_id,
        "generation": hint.generation,
        "began": hint.began,
        "written": hint.written,
        "run": report_fields(hint.report),
        "side_outputs": [side_output_fields(each) for each in hint.side_outputs],
    }
    return json.dumps(plain).encode()


def decode(data: bytes) -> StatusFile | None:
    """The inverse; ``None`` where these bytes are no hint of this version. Fields that it does not know are left out.

    >>> decode(b"torn") is None
    True
    """
    try:
        told: Any = json.loads(data)
        if told["schema"] != SCHEMA:
            return None
        return StatusFile(
            job=str(told["job"]),
            log_id=str(told["log_id"]),
            generation=Generation(int(told["generation"])),
            began=WallTime(int(told["began"])),
            written=WallTime(int(told["written"])),
            report=read_report(told["run"]),
            side_outputs=tuple(read_side_output(each) for each in told["side_outputs"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
