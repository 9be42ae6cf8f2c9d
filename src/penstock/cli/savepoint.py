"""``penstock savepoint``: prints what :mod:`penstock.operate.savepoints` does. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.cli.confirm import confirm
from penstock.cli.exits import ExitCode
from penstock.cli.shown import plain_table, savepoint_fields
from penstock.cli.words import age, size, when
from penstock.operate import savepoints
from penstock.operate.directory import JobDirectory

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.cli.output import Output
    from penstock.ids import WallTime
    from penstock.operate.savepoints import Savepoint

CREATE_SCHEMA: Final = "penstock.savepoint.create/1"
LIST_SCHEMA: Final = "penstock.savepoint.list/1"
SHOW_SCHEMA: Final = "penstock.savepoint.show/1"
DROP_SCHEMA: Final = "penstock.savepoint.drop/1"
"""Of the JSON documents: see docs/json.md."""


def create(
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


def show_all(output: Output, *, job: str, state: str, as_json: bool) -> int:
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


def drop(output: Output, *, job: str, name: str, state: str, yes: bool, seconds: float | None, as_json: bool) -> int:
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
