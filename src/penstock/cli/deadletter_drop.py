"""``penstock deadletter drop``: asks, deletes, says what went. Decides nothing."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.cli.confirm import confirm
from penstock.cli.exits import ExitCode, UsageError
from penstock.cli.words import count, size, when
from penstock.ids import WallTime
from penstock.operate.directory import JobDirectory
from penstock.operate.letters.listing import place_of
from penstock.operate.letters.replaying import Dropping, drop, plan_drop

if TYPE_CHECKING:
    from penstock.cli.output import Output
    from penstock.operate.letters.listing import LetterFile

SCHEMA: Final = "penstock.deadletter.drop/1"
"""Of the JSON document: see docs/json.md."""


def drop_letters(
    output: Output, *, job: str, uid: str | None, before: str, dry_run: bool, yes: bool, state: str, as_json: bool
) -> int:
    """Delete what is older than a time, once somebody has said yes.

    Raises:
        UsageError: ``before`` is no date, or nobody can be asked and ``--yes`` was not given.
        UnknownName: there are no such dead letters.
        CheckpointError: the directory cannot be read or written.
    """
    directory = JobDirectory(state, job)
    at = _time(before)
    dropping = plan_drop(directory.read(), place_of(directory, uid), at)
    does = not dry_run and bool(dropping.files) and confirm(output, _question(dropping, at), yes=yes)
    if does:
        drop(directory, dropping)
    if as_json:
        fields: dict[str, object] = {"job": job, "uid": dropping.uid, "is_dry_run": dry_run, "was_done": does}
        files, kept = ([_file(each) for each in part] for part in (dropping.files, dropping.kept))
        output.document(SCHEMA, **fields, files=files, kept=kept)
    elif does or dry_run or not dropping.files:
        output.result(Text(_told(dropping, at, dry_run=dry_run)))
    return ExitCode.FAILED if dropping.files and not does and not dry_run else ExitCode.ENDED


def _file(file: LetterFile) -> dict[str, object]:
    return {
        "path": file.path,
        "bytes": file.bytes,
        "rows": file.rows,
        "checkpoint": file.checkpoint,
        "written": file.written,
        "was_undone": not file.stands,
    }


def _time(text: str) -> WallTime:
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        msg = f"--before {text!r} is no date such as 2026-01-31, nor a time such as 2026-01-31T12:00:00Z"
        raise UsageError(msg) from error
    at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
    return WallTime(int(at.timestamp() * 1_000_000))


def _what(dropping: Dropping) -> str:
    rows, files = sum(file.rows for file in dropping.files), len(dropping.files)
    return f"{count(rows, 'row')} in {count(files, 'file')} ({size(sum(file.bytes for file in dropping.files))})"


def _question(dropping: Dropping, at: WallTime) -> str:
    return f"Delete {_what(dropping)} of {dropping.uid}, written before {when(at)}, for ever"


def _told(dropping: Dropping, at: WallTime, *, dry_run: bool) -> str:
    kept = f"; {count(len(dropping.kept), 'file')} left, which a replay may yet need" if dropping.kept else ""
    if not dropping.files:
        return f"{dropping.uid}: nothing to delete from before {when(at)}{kept}"
    return f"{dropping.uid}: {'would delete' if dry_run else 'deleted'} {_what(dropping)}{kept}"
