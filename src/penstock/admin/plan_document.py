"""A plan as a JSON document, for scripts and to be carried out later; and whether what it was made from has moved.

The document has no secrets: of connectors it holds what they say of themselves, of code digests only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.admin.start_plan import Beginning, FromExport, changed_settings
from penstock.checkpoint.entries import Claim, Condemn, Manifest, Pin, Rewind, Stopped, Unpin, host_of
from penstock.checkpoint.history import LogMark
from penstock.errors import PlanOutdated, SettingsError
from penstock.graph.fingerprint import changed_steps
from penstock.handles import CheckpointId, EntryNumber

if TYPE_CHECKING:
    from penstock.admin.reprocessing import ImportPlan, RewindPlan
    from penstock.admin.start_plan import Restored, SinkPlan, SourcePlan, StartPlan, StepPlan
    from penstock.checkpoint.entries import Body
    from penstock.checkpoint.history import History
    from penstock.clock import WallTime
    from penstock.handles import Json
    from penstock.interfaces.source import Backlog

SCHEMA: Final = "penstock.plan/1"
"""Of the document: see docs/json.md."""
SHOWN: Final = 5
"""How many entries a message lists."""


def document(plan: StartPlan) -> dict[str, object]:
    """The document's fields. Times are microseconds since 1970, settings' durations microseconds."""
    verdict = "refused" if plan.is_refused else "changes" if plan.is_change else "no change"
    return {
        "job": plan.job,
        "verdict": verdict,
        "at": plan.at,
        "log": asdict(plan.log),
        "beginning": _beginning(plan.beginning),
        "restore": None if plan.restored is None else _restored(plan.restored, plan.at),
        "steps": [_step(step) for step in plan.steps],
        "summary": {f"{verdict}_count": number for verdict, number in plan.counts.items()},
        "sources": [_source(source) for source in plan.sources],
        "publish": [asdict(item) for item in plan.publish],
        "rewind": None if plan.rewind is None else _rewind(plan.rewind),
        "void": [asdict(item) for item in plan.void],
        "bring": None if plan.bring is None else _bring(plan.bring),
        "sinks": [_sink(sink) for sink in plan.sinks],
        "settings": dict(plan.settings),
        "changed_settings": None if plan.changed is None else [asdict(change) for change in plan.changed],
        "warnings": list(plan.warnings),
        "refused": list(plan.refused),
        "code": dict(plan.code),
    }


def _beginning(begin: Beginning) -> dict[str, object]:
    return {
        "is_fresh": begin.fresh,
        "checkpoint": begin.checkpoint,
        "export": None if begin.export is None else _export(begin.export),
        "does_discard_unpublished": begin.discard_unpublished,
        "does_allow_non_restored_state": begin.allow_non_restored_state,
        "rename": dict(begin.rename),
    }


def _export(export: FromExport) -> dict[str, object]:
    return {"folder": export.folder, "does_claim": export.claim, "sha256": export.sha256}


def _bring(bring: ImportPlan) -> dict[str, object]:
    return {
        "folder": bring.folder,
        "job": bring.job,
        "log_id": bring.log_id,
        "is_own_log": bring.is_own,
        "checkpoint": bring.checkpoint,
        "names": list(bring.names),
        "completed": bring.completed,
        "exported": bring.exported,
        "version": bring.version,
        "sha256": bring.sha256,
        "file_count": bring.files,
        "bytes": bring.bytes,
        "does_claim": bring.claim,
        "is_brought": bring.is_brought,
        "from_checkpoint": bring.left,
        "left_open": [{**asdict(item), "file_count": None, "bytes": None} for item in bring.left_open],
        "again": [asdict(item) for each in bring.again for item in each.outputs],
        "is_more_published": bring.is_more_published,
    }


def _restored(restored: Restored, now: WallTime) -> dict[str, object]:
    age = max(0, now - restored.completed) / 1_000_000
    return {**asdict(restored), "checkpoint_age_seconds": age}


def _step(step: StepPlan) -> dict[str, object]:
    return {**asdict(step), "kind": step.kind or None}


def _source(source: SourcePlan) -> dict[str, object]:
    return {
        "uid": source.uid,
        "description": source.describe,
        "does_resume": source.resumes,
        "waiting": None if source.waiting is None else _waiting(source.waiting),
        "why_unknown": source.unknown or None,
    }


def _waiting(waiting: Backlog) -> dict[str, object]:
    return {
        "rows": waiting.rows,
        "file_count": waiting.files,
        "bytes": waiting.bytes,
        "partitions": [{"name": name, "next": at, "end": end} for name, (at, end) in waiting.partitions.items()],
        "warnings": list(waiting.warnings),
    }


def _rewind(rewind: RewindPlan) -> dict[str, object]:
    return {
        "from_checkpoint": rewind.left,
        "to_checkpoint": rewind.to,
        "condemned": list(rewind.condemned),
        "lost": list(rewind.lost),
        "again": [asdict(item) for each in rewind.again for item in each.outputs],
        "is_more_published": rewind.is_more_published,
    }


def _sink(sink: SinkPlan) -> dict[str, object]:
    return {
        "uid": sink.uid,
        "description": sink.describe,
        "guarantee": sink.guarantee,
        "because": sink.because or None,
    }


# ------------------------------------------------------------------------------------------------------ carrying it out


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """What of a saved plan counts when it is carried out."""

    job: str
    log: LogMark
    beginning: Beginning
    settings: Mapping[str, Json]
    code: Mapping[str, str]
    is_refused: bool


def read_plan(text: str, where: str) -> SavedPlan:
    """The plan of a document.

    Raises:
        SettingsError: it is none that this penstock has made.
    """
    try:
        held: Any = json.loads(text)
        if held["schema"] != SCHEMA:
            msg = f"{where} is of schema {held['schema']!r}, this penstock carries out {SCHEMA!r}: plan again"
            raise SettingsError(msg)
        log, begin = held["log"], held["beginning"]
        at, export = begin["checkpoint"], begin.get("export")  # which plans of before did not have
        return SavedPlan(
            job=str(held["job"]),
            log=LogMark(log_id=log["log_id"], tail=EntryNumber(int(log["tail"])), tail_hash=str(log["tail_hash"])),
            beginning=Beginning(
                fresh=bool(begin["is_fresh"]),
                checkpoint=None if at is None else CheckpointId(int(at)),
                export=None if export is None else _read_export(export),
                discard_unpublished=bool(begin["does_discard_unpublished"]),
                allow_non_restored_state=bool(begin["does_allow_non_restored_state"]),
                rename=dict(begin["rename"]),
            ),
            settings=dict(held["settings"]),
            code=dict(held["code"]),
            is_refused=held["verdict"] == "refused",
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        msg = f"{where} is not a plan that penstock plan --out has written ({error!r}): plan again"
        raise SettingsError(msg) from error


def _read_export(held: Mapping[str, Any]) -> FromExport:
    return FromExport(folder=str(held["folder"]), claim=bool(held["does_claim"]), sha256=str(held["sha256"]))


def require_unchanged(
    saved: SavedPlan,
    *,
    job: str,
    history: History,
    settings: Mapping[str, Json],
    code: Mapping[str, str],
    export: str | None = None,
) -> None:
    """Refuse to carry out a plan of something else than what is there now.

    The log may move until it is claimed; the claim looks again (rule L2). ``export`` says in words what has become of
    the exported checkpoint that was to be begun with, if anything has.

    Raises:
        PlanOutdated: with everything that has moved.
    """
    if saved.job != job:
        msg = f"the plan is of job {saved.job!r}, not of {job!r}: run that pipeline, or plan this one and save it anew"
        raise PlanOutdated(msg)
    if saved.is_refused:
        msg = "the plan says that a start would be refused: mend what it names, and plan again"
        raise PlanOutdated(msg)
    found = [
        *([f"the log: {entries_since(saved.log, history)}"] if saved.log != history.mark else []),
        *([] if export is None else [f"the export: {export}"]),
        *(f"the code: {what}" for what in changed_steps(saved.code, code)),
        *(
            f"the setting {change.name}: {change.before!r} was planned, it is {change.now!r}"
            for change in changed_settings(saved.settings, settings) or ()
        ),
    ]
    if found:
        msg = f"since the plan was made has moved {'; '.join(found)}; plan again"
        raise PlanOutdated(msg)


def entries_since(mark: LogMark, history: History) -> str:
    """What has come since, in words."""
    if mark.log_id is not None and mark.log_id != history.log_id:
        return "it is another one"
    came = [_entry(entry.body) for entry in history.entries if entry.number > mark.tail]
    if not came:
        return f"it ends at entry {history.tail}, it ended at {mark.tail}"
    more = f" and {len(came) - SHOWN} more" if len(came) > SHOWN else ""
    return f"entries after {mark.tail}: {', '.join(came[:SHOWN])}{more}"


def _entry(body: Body) -> str:  # noqa: PLR0911 - one for each kind of entry
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
