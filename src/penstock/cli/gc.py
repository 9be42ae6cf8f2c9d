"""``penstock gc``: whose each file of a job is, and the end of those that nobody needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.cli.confirm import confirm
from penstock.cli.exits import ExitCode
from penstock.cli.shown import UNKNOWN, output_fields, plain_table, span
from penstock.cli.words import count, size
from penstock.errors import JobIsRunning
from penstock.handles import output_names
from penstock.operate.directory import JobDirectory
from penstock.operate.files.ownership import DELETABLE, Collected, Owner, collect_garbage, inventory

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.cli.output import Output
    from penstock.ids import WallTime
    from penstock.operate.files.ownership import Inventory, Owned
    from penstock.runtime.clock import Clock

SCHEMA: Final = "penstock.gc/1"
"""Of the JSON document: see docs/json.md."""

WORDS: Final[dict[Owner, str]] = {
    Owner.CHECKPOINT: "state of checkpoints that can be restored",
    Owner.OUTPUT: "output that waits to be published",
    Owner.WRITING: "being written by the running job",
    Owner.WRITE_AHEAD: "received rows",
    Owner.LOG: "the log",
    Owner.CONTROL: "requests, answers and numbers",
    Owner.DEAD_LETTERS: "dead letters and replays of them",
    Owner.CONDEMNED: "condemned, waiting for deletion",
    Owner.ORPHAN: "orphans: no entry names them",
    Owner.UNKNOWN: "not known to penstock, left alone",
}


def run_gc(
    output: Output, *, job: str, state: str, dry_run: bool, yes: bool, as_json: bool, clock: Clock | None = None
) -> int:
    """Show whose each file is, or delete those that nobody needs.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        JobIsRunning: it cleans up by itself.
        UsageError: nobody can be asked, and ``--yes`` was not given.
        CheckpointError: the log cannot be read or written.
    """
    directory = JobDirectory(state, job, clock=clock)
    found = inventory(directory)
    if dry_run:
        _show(output, directory, found, as_json=as_json)
        return ExitCode.ENDED
    if found.is_running:
        msg = f"job {job!r} is running and cleans up by itself, after each checkpoint; --dry-run shows what is there"
        raise JobIsRunning(msg)
    does = bool(found.deletable) and confirm(output, _question(found, directory.now()), yes=yes)
    done = collect_garbage(directory) if does else None
    if as_json:
        output.document(SCHEMA, **document(job, found, done, dry_run=False))
    elif done is not None or not found.deletable:
        output.result(Text(_told(job, done)))
    return ExitCode.FAILED if found.deletable and not does else ExitCode.ENDED


def _show(output: Output, directory: JobDirectory, found: Inventory, *, as_json: bool) -> None:
    if as_json:
        output.document(SCHEMA, **document(directory.job, found, None, dry_run=True))
        return
    now = directory.now()
    output.result(files_table(found, now))
    output.result(sums_table(found))
    output.result(Text(_summary(directory.job, found)))


def document(job: str, found: Inventory, done: Collected | None, *, dry_run: bool) -> dict[str, object]:
    """The JSON document's fields: what was there before, and what was deleted of it, if anything was."""
    return {
        "job": job,
        "is_dry_run": dry_run,
        "was_done": done is not None,
        "is_running": found.is_running,
        "sums": [
            {
                "owner": each.owner.value,
                "file_count": each.files,
                "bytes": each.bytes,
                "is_deletable": each.owner in DELETABLE,
            }
            for each in found.sums
        ],
        "files": [_file(each) for each in found.files],
        "deleted": None if done is None else _deleted(done),
    }


def _file(file: Owned) -> dict[str, object]:
    return {
        "path": file.path,
        "bytes": file.length,
        "written": file.written,
        "owner": file.owner.value,
        "needed_by": list(file.checkpoints),
        "names": list(file.savepoints),
        "outputs": [output_fields(item) for item in file.outputs],
        "generation": file.generation,
    }


def _deleted(done: Collected) -> dict[str, object]:
    condemned, orphans = list(done.condemned_before), list(done.condemned_now)
    return {"condemned_files": condemned, "orphan_files": orphans, "bytes": done.bytes}


def files_table(found: Inventory, now: WallTime) -> Table:
    """One line a file, but for the log and requests, which are many and alike."""
    table = plain_table(("file", "left"), ("size", "right"), ("age", "right"), ("owner", "left"))
    for file in found.files:
        if file.owner not in {Owner.LOG, Owner.CONTROL}:
            age = UNKNOWN if file.written is None else span(max(0, now - file.written) / 1_000_000)
            style = "yellow" if file.owner in DELETABLE else None
            table.add_row(file.path, size(file.length), age, _owner(file), style=style)
    return table


def _owner(file: Owned) -> str:
    match file.owner:
        case Owner.CHECKPOINT:
            names = f", savepoint {', '.join(file.savepoints)}" if file.savepoints else ""
            return f"checkpoint {', '.join(map(str, file.checkpoints))}{names}"
        case Owner.OUTPUT:
            return f"output {output_names(*file.outputs)}"
        case Owner.ORPHAN if file.generation is not None:
            return f"orphan of generation {file.generation}"
        case _:
            return str(file.owner.value)


def sums_table(found: Inventory) -> Table:
    """One line an owner."""
    table = plain_table(("files", "right"), ("size", "right"), ("", "left"))
    for each in found.sums:
        table.add_row(f"{each.files:,}", size(each.bytes), WORDS[each.owner])
    return table


def _summary(job: str, found: Inventory) -> str:
    if found.is_running:
        return f"{job}: running; it deletes what is condemned by itself, after each checkpoint"
    if not found.deletable:
        return f"{job}: nothing to delete"
    total = sum(file.length for file in found.deletable)
    return f"{job}: penstock gc {job} would delete {count(len(found.deletable), 'file')}, {size(total)}"


def _question(found: Inventory, now: WallTime) -> str:
    total = sum(file.length for file in found.deletable)
    written = [file.written for file in found.deletable if file.written is not None]
    age = f", the newest {span(max(0, now - max(written)) / 1_000_000)} old" if written else ""
    return f"Delete {count(len(found.deletable), 'file')}, {size(total)}{age}, that no checkpoint needs"


def _told(job: str, done: Collected | None) -> str:
    if done is None:
        return f"{job}: nothing to delete"
    files = count(len(done.condemned_before) + len(done.condemned_now), "file")
    return f"{job}: deleted {files}, {size(done.bytes)}: {len(done.condemned_now)} of them orphans"
