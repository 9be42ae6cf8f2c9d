"""A report as a JSON document has it, and back: lists of sources, steps and sinks. Reads and writes no file.

The names are those of all documents of the command line: docs/json.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.facts import PartitionLag, SourceLag
from penstock.ids import BEGINNING, END_OF_TIME, CheckpointId, EventTime
from penstock.job.report import Report
from penstock.job.side_outputs import Outlet, SideOutput

if TYPE_CHECKING:
    from collections.abc import Iterable


def numbers(report: Report) -> dict[str, object]:
    """A report's fields; of what is not known, ``None``.

    >>> numbers(Report(state="running", rows_read={"in": 3}))["sources"][0]["rows_read"]
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

    >>> watermark_fields(EventTime(5)), watermark_fields(BEGINNING), watermark_fields(None)["is_at_end"]
    ({'watermark': 5, 'is_at_end': False}, {'watermark': None, 'is_at_end': False}, None)
    """
    is_time = at not in {None, BEGINNING, END_OF_TIME}
    return {"watermark": at if is_time else None, "is_at_end": None if at is None else at == END_OF_TIME}


def side_output_fields(output: SideOutput) -> dict[str, object]:
    """Where the rows go that a step puts aside."""
    return {"step": output.step, "kind": output.kind, "sinks": [outlet_fields(each) for each in output.sinks]}


def outlet_fields(sink: Outlet) -> dict[str, object]:
    """A sink that gets such rows."""
    return {"uid": sink.uid, "description": sink.to, "is_direct": sink.is_direct}


# --------------------------------------------------------------------------------------------------------------- back


def read_report(told: Any) -> Report:
    """The inverse of :func:`numbers`; raises what comes of values that are none of its."""
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
        return END_OF_TIME
    return BEGINNING if told["watermark"] is None else EventTime(int(told["watermark"]))


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
        Outlet(uid=str(each["uid"]), to=str(each["description"]), is_direct=bool(each["is_direct"]))
        for each in told["sinks"]
    )
    return SideOutput(step=str(told["step"]), kind=str(told["kind"]), sinks=tuple(sinks))
