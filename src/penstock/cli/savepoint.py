"""The commands ``penstock savepoint create``, ``drop``, ``list``, ``show`` and ``export``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from cyclopts import Parameter
from rich.text import Text

from penstock.admin import savepoints
from penstock.admin.export import export_checkpoint
from penstock.cli.options import STATE, AsJson, JobName, State, Timeout, Yes, seconds_of
from penstock.cli.output import CommandOutput, ExitCode, confirm, counting_bytes
from penstock.cli.words import UNKNOWN, age, count, output_fields, plain_table, savepoint_fields, size
from penstock.clock import format_time
from penstock.control.client import JobDirectory
from penstock.handles import output_names

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.admin.export import Exported
    from penstock.admin.savepoints import Savepoint
    from penstock.clock import WallTime

CREATE_SCHEMA: Final = "penstock.savepoint.create/1"
DROP_SCHEMA: Final = "penstock.savepoint.drop/1"
LIST_SCHEMA: Final = "penstock.savepoint.list/1"
SHOW_SCHEMA: Final = "penstock.savepoint.show/1"
EXPORT_SCHEMA: Final = "penstock.savepoint.export/1"
"""The schemas of the JSON documents: see docs/json.md."""
Name: TypeAlias = Annotated[str, Parameter(help="1 to 100 letters, digits, '.', '_' and '-', beginning with a letter.")]


# ---- savepoints ------------------------------------------------------------------------------------------------------


def create(
    job: JobName,
    name: Name,
    /,
    *,
    at: Annotated[str | None, Parameter(help="An older checkpoint: its number, or another name.")] = None,
    timeout: Timeout = None,
    state: State = STATE,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Create a savepoint. Print the number of its checkpoint, or the JSON document, and nothing else to stdout.

    Raises:
        PenstockError: the savepoint could not be created.
    """
    seconds = seconds_of(timeout)
    directory = JobDirectory(state, job)
    output.note(f"penstock: asking for savepoint {name} of job {job} …")
    checkpoint = savepoints.create(directory, name, at=at, seconds=seconds)
    output.note(f"penstock: savepoint {name} is checkpoint {checkpoint}; penstock run … --from {name} restores it")
    if as_json:
        output.document(CREATE_SCHEMA, job=job, **savepoint_fields(savepoints.savepoint_of(directory.read(), name)))
    else:
        output.result(str(checkpoint))
    return ExitCode.ENDED


def drop(
    job: JobName,
    name: Name,
    /,
    *,
    yes: Yes = False,
    timeout: Timeout = None,
    state: State = STATE,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Drop a savepoint, once the user has confirmed it.

    Raises:
        PenstockError: there is no such savepoint, or it could not be dropped.
    """
    seconds = seconds_of(timeout)
    directory = JobDirectory(state, job)
    savepoint = savepoints.savepoint_of(directory.read(), name)
    checkpoint = savepoint.checkpoint
    if savepoint.taken is None or savepoint.bytes is None:
        what, then = "which is lost", "is lost"
    else:
        what = f"{age(directory.now() - savepoint.taken)} old, {size(savepoint.bytes)}"
        then = "stays until newer ones take its place"
    question = f"Drop savepoint {name} of job {job}: checkpoint {checkpoint}, {what}"
    is_confirmed = confirm(output, question, yes=yes)
    if is_confirmed:
        savepoints.drop(directory, name, seconds=seconds)
        output.note(f"penstock: {name} is gone; checkpoint {checkpoint} {then}")
    if as_json:
        output.document(DROP_SCHEMA, job=job, was_done=is_confirmed, **savepoint_fields(savepoint))
    return ExitCode.ENDED if is_confirmed else ExitCode.FAILED


def list_savepoints(job: JobName, /, *, state: State = STATE, as_json: AsJson = False, output: CommandOutput) -> int:
    """Print all savepoints of a job.

    Raises:
        PenstockError: the log cannot be read.
    """
    directory = JobDirectory(state, job)
    found = savepoints.savepoints_of(directory.read())
    if as_json:
        output.document(LIST_SCHEMA, job=job, savepoints=[savepoint_fields(each) for each in found])
        return ExitCode.ENDED
    if found:
        output.result(_table(found, directory.now()))
    else:
        output.note(f"penstock: job {job} has no savepoints; penstock savepoint create {job} NAME makes one")
    return ExitCode.ENDED


def show(job: JobName, name: Name, /, *, state: State = STATE, as_json: AsJson = False, output: CommandOutput) -> int:
    """Print one savepoint.

    Raises:
        UnknownName: there is no savepoint of this name.
    """
    directory = JobDirectory(state, job)
    savepoint = savepoints.savepoint_of(directory.read(), name)
    if as_json:
        output.document(SHOW_SCHEMA, job=job, **savepoint_fields(savepoint))
    else:
        output.result(_table((savepoint,), directory.now()))
    return ExitCode.ENDED


def _table(found: tuple[Savepoint, ...], now: WallTime) -> Table:
    table = plain_table(
        ("", "left"),
        ("name", "left"),
        ("checkpoint", "right"),
        ("taken", "left"),
        ("age", "right"),
        ("size", "right"),
        ("by", "left"),
    )
    for savepoint in found:
        table.add_row(
            "→" if savepoint.is_restore_point else "",
            savepoint.name,
            str(savepoint.checkpoint),
            "lost" if savepoint.taken is None else format_time(savepoint.taken),
            UNKNOWN if savepoint.taken is None else age(now - savepoint.taken),
            UNKNOWN if savepoint.bytes is None else size(savepoint.bytes),
            savepoint.owner,
        )
    return table


# ---- exports ---------------------------------------------------------------------------------------------------------


def export(
    job: JobName,
    checkpoint: Annotated[str, Parameter(help="Name of the savepoint, or number of the checkpoint.")],
    folder: Annotated[str, Parameter(help="A folder that is not there yet, or empty.")],
    /,
    *,
    wait: Annotated[str, Parameter(help="How long to wait until its output is published, such as 10s.")] = "0s",
    state: State = STATE,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Export a checkpoint into a folder, and print a summary of the export.

    Raises:
        UnknownName: there is no such job or checkpoint; the message names the nearest.
        PenstockError: the checkpoint could not be exported. Then the folder holds no export.
    """
    seconds = seconds_of(wait, "--wait") or 0.0
    with counting_bytes(output, "copying") as progress:
        exported = export_checkpoint(JobDirectory(state, job), checkpoint, folder, wait=seconds, progress=progress)
    if as_json:
        output.document(EXPORT_SCHEMA, **document(exported))
        return ExitCode.ENDED
    output.result(Text(summary(exported)))
    for line in warnings(exported):
        output.note(f"penstock: {line}", style="yellow")
    return ExitCode.ENDED


def document(exported: Exported) -> dict[str, object]:
    """The fields of an export's JSON document. Times are microseconds since 1970."""
    export = exported.export
    return {
        "job": export.job,
        "folder": exported.folder,
        "log_id": export.log_id,
        "checkpoint": export.checkpoint,
        "names": list(export.names),
        "exported": export.at,
        "file_count": len(export.files),
        "bytes": export.bytes,
        "sha256": export.sha256,
        "left_open": [output_fields(item) for item in export.left_open],
    }


def summary(exported: Exported) -> str:
    """The line that is printed: what was copied, and where to."""
    export = exported.export
    names = f" ({', '.join(export.names)})" if export.names else ""
    return (
        f"{export.job}: checkpoint {export.checkpoint}{names} is in {exported.folder} · "
        f"{count(len(export.files), 'file')}, {size(export.bytes)} · sha256 {export.sha256[:12]}"
    )


def warnings(exported: Exported) -> list[str]:
    """The warning that output is missing from the export, if any is."""
    job, left_open = exported.export.job, exported.export.left_open
    if not left_open:
        return []
    named = output_names(*left_open)
    return [
        f"the log does not know {count(len(left_open), 'output')} of it to be published: {named}. The export does not "
        f"hold them, job {job!r} publishes them: by itself if it runs, else by penstock settle {job}"
    ]
