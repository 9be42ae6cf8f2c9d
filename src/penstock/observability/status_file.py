"""The report of a running job as a file that commands show. Nothing is decided by it, and no job fails for it."""

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


log: Final = logging.getLogger("penstock")
SCHEMA: Final = "penstock.report/1"
"""Schema of the file: fields may be added to it, never changed or removed."""
WRITE_INTERVAL: Final = 1_000_000
"""Microseconds between two writes while numbers change."""
HEARTBEAT_INTERVAL: Final = 10_000_000
"""Microseconds between two writes while nothing changes: the file's age shows that the job lives."""
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""Size in bytes above which a file is not read."""


# ---- report to document --------------------------------------------------------------------------------------------
# The names are those of all JSON documents of the command line: docs/json.md.


def report_fields(report: Report) -> dict[str, object]:
    """A report's fields; unknown numbers are ``None``.

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
        "sources": [
            _source(report, uid) for uid in _uids(report.batches, report.rows_read, report.lag, report.resting)
        ],
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
        "behind_file_count": None if lag is None else lag.files,
        "behind_bytes": None if lag is None else lag.bytes,
        "behind_seconds": None if lag is None else lag.seconds,
        "caught_up_in_seconds": None if lag is None else lag.eta_seconds,
        "behind_measured": None if lag is None else report.lag_measured.get(uid),
        "is_resting": uid in report.resting,
        "rests_until": report.resting.get(uid),
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
    """Fields for the event time of a step: a time, the end, or none yet. A step without event time has ``None``.

    >>> watermark_fields(EventTime(5)), watermark_fields(MIN_WATERMARK), watermark_fields(None)["is_at_end"]
    ({'watermark': 5, 'is_at_end': False}, {'watermark': None, 'is_at_end': False}, None)
    """
    is_time = at not in {None, MIN_WATERMARK, MAX_WATERMARK}
    return {"watermark": at if is_time else None, "is_at_end": None if at is None else at == MAX_WATERMARK}


def side_output_fields(output: SideOutput) -> dict[str, object]:
    """Fields for a side output and the sinks that get its rows."""
    return {"step": output.step, "kind": output.kind, "sinks": [outlet_fields(each) for each in output.sinks]}


def outlet_fields(sink: SideOutputSink) -> dict[str, object]:
    """Fields for a sink that gets rows of a side output."""
    return {"uid": sink.uid, "description": sink.to, "is_direct": sink.is_direct}


# ---- document to report --------------------------------------------------------------------------------------------


def read_report(fields: Any) -> Report:
    """The report with these fields: the inverse of ``report_fields``.

    Raises:
        LookupError, TypeError, ValueError: a field is missing or has another type.
    """
    sources, steps, sinks = (_by_uid(fields[name]) for name in ("sources", "steps", "sinks"))
    restored, last, failure = fields["restored_checkpoint"], fields["checkpoint"], fields["last_failure"]
    return Report(
        state=str(fields["doing"]),
        restored=None if restored is None else CheckpointId(int(restored)),
        batches=_numbers(sources, "batch_count"),
        rows_read=_numbers(sources, "rows_read"),
        rows_written=_numbers(sinks, "rows_written"),
        counters={(uid, str(each["name"])): int(each["amount"]) for uid, each in _nested(steps, "counters")},
        checkpoints=int(fields["checkpoint_count"]),
        failed_checkpoints=int(fields["failed_checkpoint_count"]),
        last_checkpoint=None if last is None else CheckpointId(int(last)),
        published=_numbers(sinks, "published_count"),
        restarts=int(fields["restart_count"]),
        lag={uid: _read_lag(uid, each) for uid, each in sources.items() if _has_lag(each)},
        late_by={(uid, str(each["name"])): int(each["rows"]) for uid, each in _nested(steps, "late_partitions")},
        watermarks={uid: _read_watermark(each) for uid, each in steps.items() if each["is_at_end"] is not None},
        held_by={uid: str(each["held_by"]) for uid, each in steps.items() if each["held_by"] is not None},
        last_failure=None if failure is None else str(failure),
        lag_measured={
            uid: WallTime(int(each["behind_measured"]))
            for uid, each in sources.items()
            if each.get("behind_measured") is not None
        },
        resting={uid: _read_rest(each["rests_until"]) for uid, each in sources.items() if each.get("is_resting")},
    )


def _by_uid(items: Any) -> dict[str, Any]:
    return {str(each["uid"]): each for each in items}


def _numbers(by_uid: dict[str, Any], name: str) -> dict[str, int]:
    return {uid: int(each[name]) for uid, each in by_uid.items() if each[name] is not None}


def _nested(by_uid: dict[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    return ((uid, each) for uid, fields in by_uid.items() for each in fields[name])


def _read_watermark(fields: Any) -> EventTime:
    if fields["is_at_end"]:
        return MAX_WATERMARK
    return MIN_WATERMARK if fields["watermark"] is None else EventTime(int(fields["watermark"]))


def _read_rest(until: Any) -> WallTime | None:
    return None if until is None else WallTime(int(until))


def _has_lag(fields: Any) -> bool:
    return fields["behind_rows"] is not None or fields.get("behind_file_count") is not None


def _read_lag(uid: str, fields: Any) -> SourceLag:
    partitions = {
        str(each["name"]): PartitionLag(
            rows=int(each["behind_rows"]),
            seconds=each["behind_seconds"],
            position=each["next"],
            end=each["end"],
            rate=each["rows_per_second"],
            name=str(each["mark"]),
        )
        for each in fields["partitions"]
    }
    return SourceLag(
        task=uid,
        rows=fields["behind_rows"],
        seconds=fields["behind_seconds"],
        eta_seconds=fields["caught_up_in_seconds"],
        partitions=partitions,
        files=fields.get("behind_file_count"),
        bytes=fields.get("behind_bytes"),
    )


def read_side_output(fields: Any) -> SideOutput:
    """The inverse of ``side_output_fields``."""
    sinks = (
        SideOutputSink(uid=str(each["uid"]), to=str(each["description"]), is_direct=bool(each["is_direct"]))
        for each in fields["sinks"]
    )
    return SideOutput(step=str(fields["step"]), kind=str(fields["kind"]), sinks=tuple(sinks))


# ---- the file ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFile:
    """The content of a status file. It outlives its process: the numbers of a dead job are shown with their age.

    Attributes:
        job: its name.
        log_id: of the job's log; a status file of another log says nothing.
        generation: that wrote the file. The log's is newer if a run died before it wrote.
        began: when the process took the job.
        written: when the file was written.
        report: as ``penstock.Job.report`` returns it.
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
    """Writes the status file of a running job; used by one thread.

    Args:
        filesystem: rooted at the job's directory.
        job: its name.
        report: returns the report so far.
        owned: returns the log that the job has claimed, if any.
        clock: for intervals and times.
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
        self._written_at: MonotonicTime | None = None
        self._last: tuple[Generation, Report] | None = None
        self._has_warned = False

    def write_if_due(self) -> None:
        """Write the file if the interval has passed; never raises."""
        now = self._clock.now()
        if self._written_at is None or now >= self._written_at + WRITE_INTERVAL:
            self._write(now, interval=HEARTBEAT_INTERVAL)

    def finish(self) -> None:
        """Write the final numbers; never raises."""
        self._write(self._clock.now(), interval=0)

    def _write(self, now: MonotonicTime, *, interval: int) -> None:
        try:
            owned, report = self._owned(), self._report()
            if owned is None:
                return
            has_changed = self._last != (owned.generation, report)
            if not has_changed and self._written_at is not None and now < self._written_at + interval:
                return
            self._written_at = now
            if not self._is_superseded(owned):
                self._filesystem.replace(paths.REPORT, encode(self._status(owned, report)))
            self._last = (owned.generation, report)
        except Exception as error:  # no row depends on this file
            if not self._has_warned:
                log.warning("job %s cannot write its numbers for `penstock status`: %s", self._job, error)
            self._has_warned = True

    def _is_superseded(self, owned: OwnedLog) -> bool:
        """Whether a newer owner writes the file: this process does not know yet that it is fenced."""
        data = self._filesystem.read(paths.REPORT)
        if data is None or len(data) > MAX_FILE_BYTES:
            return False
        try:
            fields: Any = json.loads(data)
            return bool(fields["log_id"] == owned.log_id and fields["generation"] > owned.generation)
        except (KeyError, TypeError, ValueError, RecursionError):
            return False

    def _status(self, owned: OwnedLog, report: Report) -> StatusFile:
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
    """The status file; ``None`` if there is none, or none that this version understands.

    Raises:
        StorageFailed: the file cannot be read.
    """
    data = filesystem.read(paths.REPORT)
    return None if data is None or len(data) > MAX_FILE_BYTES else decode(data)


def encode(status: StatusFile) -> bytes:
    """The content as JSON; times are microseconds since 1970."""
    fields = {
        "schema": SCHEMA,
        "job": status.job,
        "log_id": status.log_id,
        "generation": status.generation,
        "began": status.began,
        "written": status.written,
        "run": report_fields(status.report),
        "side_outputs": [side_output_fields(each) for each in status.side_outputs],
    }
    return json.dumps(fields).encode()


def decode(data: bytes) -> StatusFile | None:
    """The inverse of ``encode``; ``None`` for other bytes. Unknown fields are ignored.

    >>> decode(b"torn") is None
    True
    """
    try:
        fields: Any = json.loads(data)
        if fields["schema"] != SCHEMA:
            return None
        return StatusFile(
            job=str(fields["job"]),
            log_id=str(fields["log_id"]),
            generation=Generation(int(fields["generation"])),
            began=WallTime(int(fields["began"])),
            written=WallTime(int(fields["written"])),
            report=read_report(fields["run"]),
            side_outputs=tuple(read_side_output(each) for each in fields["side_outputs"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
