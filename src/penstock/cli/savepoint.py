"""Penstock savepoint create, list, show, drop, export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter
from cyclopts.help import PlainFormatter
from rich.text import Text

from penstock.admin import savepoints
from penstock.admin.export import export_checkpoint
from penstock.cli.options import STATE, AsJson, JobName, State, Timeout, Yes, epilogue, seconds_of
from penstock.cli.output import ExitCode, Output, confirm, counting_bytes
from penstock.cli.words import age, count, output_fields, plain_table, savepoint_fields, size, when
from penstock.control.client import JobDirectory
from penstock.handles import output_names

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.admin.export import Exported
    from penstock.admin.savepoints import Savepoint
    from penstock.clock import WallTime


# ----------------------------------------------------------------------------------------------------
# ``penstock savepoint export``: its words and options.

EXPORT_HELP: Final = """\
Copy a savepoint, or any checkpoint, into a folder of its own.

The folder has all that a start needs, with checksums, and can be moved: penstock run shop:orders --from FOLDER.
A running job goes on meanwhile. Output that is not published yet is not copied; it is the job's own."""
EXPORT_EXAMPLES: Final = """\
Examples:
  penstock savepoint export orders before-v2 ./exports/orders
  penstock savepoint export orders 41 /backup/orders-41 --wait 10s --json"""


def add_export(app: App, output: Output) -> None:
    """Add ``export`` to the family of ``savepoint``."""

    def export(
        job: JobName,
        checkpoint: Annotated[str, Parameter(help="Name of the savepoint, or number of the checkpoint.")],
        folder: Annotated[str, Parameter(help="A folder that is not there yet, or empty.")],
        /,
        *,
        wait: Annotated[str, Parameter(help="For output that is not known to be published.")] = "0s",
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:

        seconds = seconds_of(wait, "--wait") or 0.0
        return run_export(
            output, job=job, checkpoint=checkpoint, folder=folder, state=state, wait=seconds, as_json=as_json
        )

    app.command(export, help=EXPORT_HELP, help_epilogue=epilogue(EXPORT_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# ``penstock savepoint``: its words and options.

SAVEPOINT_HELP: Final = """\
Give checkpoints names that they keep: of a running job or a stopped one.

A savepoint is a checkpoint with a name: it costs no copy, and is never cleaned up while it has the name."""
SAVEPOINT_EXAMPLES: Final = """\
Examples:
  penstock savepoint create orders before-v2           a new checkpoint of a running job, the newest of a stopped one
  penstock savepoint list orders
  penstock savepoint export orders before-v2 ./exports/orders
  penstock run shop:orders --from before-v2            go back to it"""
CREATE_HELP: Final = """\
Take a checkpoint of a running job now, and give it a name; of a stopped job name the newest.

Prints the checkpoint's number."""
CREATE_EXAMPLES: Final = """\
Examples:
  penstock savepoint create orders before-v2 --state ./state
  penstock savepoint create orders good --at 41        an older checkpoint that can still be restored"""
LIST_HELP: Final = """\
Show all savepoints of a job, from its directory alone."""
LIST_EXAMPLES: Final = """\
Examples:
  penstock savepoint list orders
  penstock savepoint list orders --json | jq -r '.savepoints[].savepoint'"""
SHOW_HELP: Final = """\
Show one savepoint."""
SHOW_EXAMPLES: Final = """\
Examples:
  penstock savepoint show orders before-v2
  penstock checkpoint orders before-v2                 all that it holds"""
DROP_HELP: Final = """\
Take a savepoint's name away; its checkpoint goes once newer ones take its place."""
DROP_EXAMPLES: Final = """\
Examples:
  penstock savepoint drop orders before-v2
  penstock savepoint drop orders before-v2 --yes       without being asked, for scripts"""
Name = Annotated[str, Parameter(help="1 to 100 letters, digits, '.', '_' and '-', beginning with a letter.")]


def add_savepoint(app: App, output: Output) -> None:
    """Add the family."""
    family = App(
        name="savepoint",
        help=SAVEPOINT_HELP,
        help_epilogue=epilogue(SAVEPOINT_EXAMPLES),
        help_format="plaintext",
        help_formatter=PlainFormatter(),
        version_flags=[],
    )
    _add_naming(family, output)
    _add_looking(family, output)
    add_export(family, output)
    app.command(family)


def _add_naming(family: App, output: Output) -> None:
    def create(
        job: JobName,
        name: Name,
        /,
        *,
        at: Annotated[str | None, Parameter(help="An older checkpoint: its number, or another name.")] = None,
        timeout: Timeout = None,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:

        seconds = seconds_of(timeout)
        return run_create(output, job=job, name=name, state=state, at=at, seconds=seconds, as_json=as_json)

    def drop(
        job: JobName,
        name: Name,
        /,
        *,
        yes: Yes = False,
        timeout: Timeout = None,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:

        seconds = seconds_of(timeout)
        return run_drop(output, job=job, name=name, state=state, yes=yes, seconds=seconds, as_json=as_json)

    family.command(create, help=CREATE_HELP, help_epilogue=epilogue(CREATE_EXAMPLES))
    family.command(drop, help=DROP_HELP, help_epilogue=epilogue(DROP_EXAMPLES))


def _add_looking(family: App, output: Output) -> None:
    def show_all(job: JobName, /, *, state: State = STATE, as_json: AsJson = False) -> int:

        return run_list(output, job=job, state=state, as_json=as_json)

    def show(job: JobName, name: Name, /, *, state: State = STATE, as_json: AsJson = False) -> int:

        return show_one(output, job=job, name=name, state=state, as_json=as_json)

    family.command(show_all, name="list", help=LIST_HELP, help_epilogue=epilogue(LIST_EXAMPLES))
    family.command(show, help=SHOW_HELP, help_epilogue=epilogue(SHOW_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# ``penstock savepoint export``: says what was copied where. No Spark, no pipeline.

SCHEMA: Final = "penstock.savepoint.export/1"
"""Of the JSON document: see docs/json.md."""


def run_export(
    output: Output, *, job: str, checkpoint: str, folder: str, state: str, wait: float, as_json: bool
) -> int:
    """Export, and print what is in the folder.

    Raises:
        UnknownName: there is no such job or checkpoint; with the nearest name.
        PenstockError: it could not be exported; the folder holds no export.
    """
    with counting_bytes(output, "copying") as progress:
        made = export_checkpoint(JobDirectory(state, job), checkpoint, folder, wait=wait, progress=progress)
    if as_json:
        output.document(SCHEMA, **document(made))
        return ExitCode.ENDED
    output.result(Text(summary(made)))
    for line in warnings(made):
        output.note(f"penstock: {line}", style="yellow")
    return ExitCode.ENDED


def document(made: Exported) -> dict[str, object]:
    """The JSON document's fields. Times are microseconds since 1970."""
    export = made.export
    return {
        "job": export.job,
        "folder": made.folder,
        "log_id": export.log_id,
        "checkpoint": export.checkpoint,
        "names": list(export.names),
        "exported": export.at,
        "file_count": len(export.files),
        "bytes": export.bytes,
        "sha256": export.sha256,
        "left_open": [output_fields(item) for item in export.left_open],
    }


def summary(made: Exported) -> str:
    """In one line."""
    export = made.export
    called = f" ({', '.join(export.names)})" if export.names else ""
    return (
        f"{export.job}: checkpoint {export.checkpoint}{called} is in {made.folder} · {count(len(export.files), 'file')}"
        f", {size(export.bytes)} · sha256 {export.sha256[:12]}"
    )


def warnings(made: Exported) -> list[str]:
    """What the reader has to know of output that is not in it."""
    left = made.export.left_open
    if not left:
        return []
    named = output_names(*left)
    job = made.export.job
    return [
        f"the log does not know {count(len(left), 'output')} of it to be published: {named}. The export does not hold "
        f"them, job {job!r} publishes them: by itself if it runs, else by penstock settle {job}"
    ]


# ----------------------------------------------------------------------------------------------------
# ``penstock savepoint``: prints what :mod:`penstock.operate.savepoints` does. Decides nothing.

CREATE_SCHEMA: Final = "penstock.savepoint.create/1"
LIST_SCHEMA: Final = "penstock.savepoint.list/1"
SHOW_SCHEMA: Final = "penstock.savepoint.show/1"
DROP_SCHEMA: Final = "penstock.savepoint.drop/1"
"""Of the JSON documents: see docs/json.md."""


def run_create(
    output: Output, *, job: str, name: str, state: str, at: str | None, seconds: float | None, as_json: bool
) -> int:
    """Give the name; its checkpoint's number, or the document, is all there is on stdout.

    Raises:
        PenstockError: it could not be given, and why.
    """
    directory = JobDirectory(state, job)
    output.note(f"penstock: asking for savepoint {name} of job {job} …")
    checkpoint = savepoints.create(directory, name, at=at, seconds=seconds)
    output.note(f"penstock: savepoint {name} is checkpoint {checkpoint}; penstock run … --from {name} restores it")
    if as_json:
        output.document(CREATE_SCHEMA, job=job, **savepoint_fields(savepoints.savepoint_of(directory.read(), name)))
    else:
        output.result(str(checkpoint))
    return ExitCode.ENDED


def run_list(output: Output, *, job: str, state: str, as_json: bool) -> int:
    """Print all of a job.

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


def show_one(output: Output, *, job: str, name: str, state: str, as_json: bool) -> int:
    """Print one.

    Raises:
        UnknownName: there is none of this name.
    """
    directory = JobDirectory(state, job)
    found = savepoints.savepoint_of(directory.read(), name)
    if as_json:
        output.document(SHOW_SCHEMA, job=job, **savepoint_fields(found))
    else:
        output.result(_table((found,), directory.now()))
    return ExitCode.ENDED


def run_drop(
    output: Output, *, job: str, name: str, state: str, yes: bool, seconds: float | None, as_json: bool
) -> int:
    """Take the name away, having asked.

    Raises:
        PenstockError: there is none, or it could not be done.
    """
    directory = JobDirectory(state, job)
    found = savepoints.savepoint_of(directory.read(), name)
    taken = age(directory.now() - found.taken)
    question = f"Drop savepoint {name} of job {job}: checkpoint {found.checkpoint}, {taken} old, {size(found.bytes)}"
    does = confirm(output, question, yes=yes)
    if does:
        savepoints.drop(directory, name, seconds=seconds)
        output.note(f"penstock: {name} is gone; checkpoint {found.checkpoint} stays until newer ones take its place")
    if as_json:
        output.document(DROP_SCHEMA, job=job, was_done=does, **savepoint_fields(found))
    return ExitCode.ENDED if does else ExitCode.FAILED


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
    for each in found:
        table.add_row(
            "→" if each.is_restore_point else "",
            each.name,
            str(each.checkpoint),
            when(each.taken),
            age(now - each.taken),
            size(each.bytes),
            each.owner,
        )
    return table
