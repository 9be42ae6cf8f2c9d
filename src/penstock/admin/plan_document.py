"""Plans as JSON documents, for scripts and for ``penstock run --plan``, and what has changed since one was saved.

The document has no secrets: it holds the descriptions that connectors give of themselves, and digests of the code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.admin.start_plan import changed_settings
from penstock.checkpoint.entries import Claim, Condemn, Manifest, Pin, Rewind, Stopped, Unpin, host_of
from penstock.checkpoint.history import LogMark
from penstock.errors import PlanOutdated, SettingsError, sentence
from penstock.graph.fingerprint import changed_steps
from penstock.handles import EntryNumber
from penstock.job.start import StartOptions
from penstock.settings import setting_text

if TYPE_CHECKING:
    from penstock.admin.reprocessing import ImportPlan, RewindPlan
    from penstock.admin.start_plan import Restored, SinkPlan, SourcePlan, StartPlan, StepPlan
    from penstock.checkpoint.entries import Body
    from penstock.checkpoint.history import History
    from penstock.clock import WallTime
    from penstock.handles import Json
    from penstock.interfaces.source import Backlog

SCHEMA: Final = "penstock.plan/1"
"""Schema of the document: see docs/json.md."""
MAX_SHOWN: Final = 5
"""Number of log entries that a message lists."""


# ---- plan to document ----------------------------------------------------------------------------------------------


def document(plan: StartPlan) -> dict[str, object]:
    """The fields of a plan's document. Times are microseconds since 1970; durations in settings are microseconds."""
    verdict = "refused" if plan.is_refused else "changes" if plan.is_change else "no change"
    return {
        "job": plan.job,
        "verdict": verdict,
        "at": plan.at,
        "log": asdict(plan.log),
        "beginning": _start_fields(plan.start),
        "restore": None if plan.restored is None else _restored_fields(plan.restored, plan.at),
        "steps": [_step_fields(step) for step in plan.steps],
        "summary": {f"{name}_count": number for name, number in plan.counts.items()},
        "sources": [_source_fields(source) for source in plan.sources],
        "publish": [asdict(item) for item in plan.publish],
        "rewind": None if plan.rewind is None else _rewind_fields(plan.rewind),
        "void": [asdict(item) for item in plan.void],
        "bring": None if plan.bring is None else _import_fields(plan.bring),
        "sinks": [_sink_fields(sink) for sink in plan.sinks],
        "settings": dict(plan.settings),
        "changed_settings": None if plan.changed is None else [asdict(change) for change in plan.changed],
        "warnings": list(plan.warnings),
        "refused": list(plan.refused),
        "code": dict(plan.code),
    }


def _start_fields(start: StartOptions) -> dict[str, object]:
    export = {"folder": start.folder, "does_claim": start.claim, "sha256": start.sha256}
    return {
        "is_fresh": start.fresh,
        "checkpoint": None if start.checkpoint is None else int(start.checkpoint),
        "export": None if start.folder is None else export,
        "does_discard_unpublished": start.discard_unpublished,
        "does_allow_non_restored_state": start.allow_non_restored_state,
        "rename": dict(start.rename),
    }


def _import_fields(plan: ImportPlan) -> dict[str, object]:
    return {
        "folder": plan.folder,
        "job": plan.job,
        "log_id": plan.log_id,
        "is_own_log": plan.is_own,
        "checkpoint": plan.checkpoint,
        "names": list(plan.names),
        "completed": plan.completed,
        "exported": plan.exported,
        "version": plan.version,
        "sha256": plan.sha256,
        "file_count": plan.files,
        "bytes": plan.bytes,
        "does_claim": plan.claim,
        "is_brought": plan.is_brought,
        "from_checkpoint": plan.left,
        # an export does not say how large the output is that it does not hold
        "left_open": [{**asdict(item), "file_count": None, "bytes": None} for item in plan.left_open],
        "again": [asdict(item) for each in plan.again for item in each.outputs],
        "is_more_published": plan.is_more_published,
    }


def _restored_fields(restored: Restored, now: WallTime) -> dict[str, object]:
    age = max(0, now - restored.completed) / 1_000_000
    return {**asdict(restored), "checkpoint_age_seconds": age}


def _step_fields(step: StepPlan) -> dict[str, object]:
    return {**asdict(step), "kind": step.kind or None}


def _source_fields(source: SourcePlan) -> dict[str, object]:
    return {
        "uid": source.uid,
        "description": source.describe,
        "does_resume": source.resumes,
        "waiting": None if source.backlog is None else _backlog_fields(source.backlog),
        "why_unknown": source.unknown or None,
    }


def _backlog_fields(backlog: Backlog) -> dict[str, object]:
    return {
        "rows": backlog.rows,
        "file_count": backlog.files,
        "bytes": backlog.bytes,
        "partitions": [{"name": name, "next": at, "end": end} for name, (at, end) in backlog.partitions.items()],
        "warnings": list(backlog.warnings),
    }


def _rewind_fields(rewind: RewindPlan) -> dict[str, object]:
    return {
        "from_checkpoint": rewind.left,
        "to_checkpoint": rewind.to,
        "condemned": list(rewind.condemned),
        "lost": list(rewind.lost),
        "again": [asdict(item) for each in rewind.again for item in each.outputs],
        "is_more_published": rewind.is_more_published,
    }


def _sink_fields(sink: SinkPlan) -> dict[str, object]:
    return {
        "uid": sink.uid,
        "description": sink.describe,
        "guarantee": sink.guarantee,
        "because": sink.because or None,
    }


# ---- document to plan ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """The part of a saved plan that ``penstock run --plan`` uses."""

    job: str
    log: LogMark
    start: StartOptions
    settings: Mapping[str, Json]
    code: Mapping[str, str]
    is_refused: bool


def read_plan(text: str, where: str) -> SavedPlan:
    """Parse a plan's document; ``where`` names it in messages.

    Raises:
        SettingsError: the document is not a plan, or not one of this schema.
    """
    try:
        document: Any = json.loads(text)
        if document["schema"] != SCHEMA:
            msg = f"{where} has schema {document['schema']!r}, and this penstock needs {SCHEMA!r}. Plan again."
            raise SettingsError(msg)
        log = document["log"]
        return SavedPlan(
            job=str(document["job"]),
            log=LogMark(log_id=log["log_id"], tail=EntryNumber(int(log["tail"])), tail_hash=str(log["tail_hash"])),
            start=_parse_start(document["beginning"]),
            settings=dict(document["settings"]),
            code=dict(document["code"]),
            is_refused=document["verdict"] == "refused",
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        msg = f"{where} is not a plan that penstock plan --out has written ({error!r}). Plan again."
        raise SettingsError(msg) from error


def _parse_start(fields: Mapping[str, Any]) -> StartOptions:
    checkpoint, export = fields["checkpoint"], fields.get("export")  # older plans have no field "export"
    return StartOptions(
        fresh=bool(fields["is_fresh"]),
        checkpoint=None if checkpoint is None else str(int(checkpoint)),
        folder=None if export is None else str(export["folder"]),
        sha256=None if export is None else str(export["sha256"]),
        claim=export is not None and bool(export["does_claim"]),
        discard_unpublished=bool(fields["does_discard_unpublished"]),
        allow_non_restored_state=bool(fields["does_allow_non_restored_state"]),
        rename=dict(fields["rename"]),
    )


# ---- changes since a plan was saved --------------------------------------------------------------------------------


def require_unchanged(
    saved: SavedPlan,
    *,
    job: str,
    history: History,
    settings: Mapping[str, Json],
    code: Mapping[str, str],
    export: str | None = None,
) -> None:
    """Refuse a saved plan that no longer fits the job, the log, the code, the settings or the export.

    The log may still move until it is claimed; the claim compares it again (rule L2).

    Args:
        saved: the plan.
        job: the name of the job that is to start.
        history: of that job's log.
        settings: of the start.
        code: a digest of each step, as the pipeline has it now.
        export: how the exported checkpoint has changed, in words; ``None`` if it has not.

    Raises:
        PlanOutdated: something has changed; the message lists all of it.
    """
    if saved.job != job:
        msg = (
            f"The plan is of job {saved.job!r}, not of {job!r}. Run that pipeline, or plan this one and save it again."
        )
        raise PlanOutdated(msg)
    if saved.is_refused:
        msg = "The plan says that a start would be refused. Fix what it names, and plan again."
        raise PlanOutdated(msg)
    changes = [
        *([f"The log has moved: {entries_since(saved.log, history)}"] if saved.log != history.mark else []),
        *([] if export is None else [f"The export has moved: {export}"]),
        *(f"The code has moved: {what}" for what in changed_steps(saved.code, code)),
        *(
            f"Setting {change.name}: {setting_text(change.name, change.before)} was planned, it is "
            f"{setting_text(change.name, change.now)}"
            for change in changed_settings(saved.settings, settings) or ()
        ),
    ]
    if changes:
        msg = f"The plan is outdated. {' '.join(map(sentence, changes))} Plan again."
        raise PlanOutdated(msg)


def entries_since(mark: LogMark, history: History) -> str:
    """What the log has after a mark, in words; says so if the mark is of another log."""
    if mark.log_id is not None and mark.log_id != history.log_id:
        return "it is another one"
    added = [_describe_entry(entry.body) for entry in history.entries if entry.number > mark.tail]
    if not added:
        return f"it ends at entry {history.tail}, it ended at {mark.tail}"
    more = f" and {len(added) - MAX_SHOWN} more" if len(added) > MAX_SHOWN else ""
    return f"entries after {mark.tail}: {', '.join(added[:MAX_SHOWN])}{more}"


def _describe_entry(body: Body) -> str:  # noqa: PLR0911 - one for each kind of entry
    match body:
        case Claim():
            return f"a claim of process {body.pid} on {host_of(body.host)}"
        case Manifest():
            return f"checkpoint {body.checkpoint}"
        case Rewind():
            return "a rewind to empty state" if body.to is None else f"a rewind to checkpoint {body.to}"
        case Pin():
            return f"savepoint {body.name}"
        case Unpin():
            return f"savepoint {body.name} dropped"
        case Condemn():
            return "a condemnation"
        case Stopped():
            return "a stop"
