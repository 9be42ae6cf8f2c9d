"""Penstock gc, verify."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter
from rich.text import Text

from penstock.admin.export import verify_folder
from penstock.admin.gc import DELETABLE, Collected, Owner, collect_garbage, inventory
from penstock.admin.verify import verify
from penstock.cli.options import STATE, AsJson, Flag, JobName, State, Yes, epilogue
from penstock.cli.output import ExitCode, Output, confirm, counting_bytes
from penstock.cli.words import UNKNOWN, count, duration_text, output_fields, plain_table, size
from penstock.control.client import JobDirectory
from penstock.errors import JobIsRunning
from penstock.handles import output_names

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.admin.export import ExportVerifyReport
    from penstock.admin.gc import Inventory, OwnedFile
    from penstock.admin.verify import BrokenItem, Problem, VerifyReport
    from penstock.clock import Clock, WallTime


# ----------------------------------------------------------------------------------------------------
# ``penstock gc``: its words and options.

GC_HELP: Final = """\
Show whose each file of a job is, or delete those that nobody needs of a job that does not run.

A running job cleans up by itself, after each checkpoint. Of a stopped one, what is condemned and what dead
generations left behind is deleted, each file after an entry in the log says so."""
GC_EXAMPLES: Final = """\
Examples:
  penstock gc orders --state ./state --dry-run         who owns each file, and sums; changes nothing
  penstock gc orders --state ./state --yes             for scripts: do not ask"""


def add_gc(app: App, output: Output) -> None:
    """Add ``gc``."""

    def gc(
        job: JobName,
        /,
        *,
        state: State = STATE,
        dry_run: Annotated[bool, Flag, Parameter(help="Delete nothing, only show; also of a running job.")] = False,
        yes: Yes = False,
        as_json: AsJson = False,
    ) -> int:

        return run_gc(output, job=job, state=state, dry_run=dry_run, yes=yes, as_json=as_json)

    app.command(gc, help=GC_HELP, help_epilogue=epilogue(GC_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# ``penstock verify``: its words and options.

VERIFY_HELP: Final = """\
Check that a job can be restored and its output published, whether it runs or not. Changes nothing.

Reads the log and every file that a restorable checkpoint or an unpublished output needs: existence, length,
SHA-256, the chain of the log. Ends with 1 if something is broken, naming what that breaks and what helps."""
VERIFY_EXAMPLES: Final = """\
Examples:
  penstock verify orders --state ./state
  penstock verify orders --state ./state --quick       existence and lengths only, seconds for any state
  penstock verify orders --json | jq .broken
  penstock verify ./exports/orders                     an exported savepoint"""


def add_verify(app: App, output: Output) -> None:
    """Add ``verify``."""

    def verify(
        job: Annotated[str, Parameter(help="Name of the job, or the folder of an export, as in ./exports/orders.")],
        /,
        *,
        state: State = STATE,
        quick: Annotated[bool, Flag, Parameter(help="Existence and lengths only; no content is read.")] = False,
        as_json: AsJson = False,
    ) -> int:

        if "/" in job:  # no job has such a name
            return show_folder(output, folder=job, quick=quick, as_json=as_json)
        return show_verdict(output, job=job, state=state, quick=quick, as_json=as_json)

    app.command(verify, help=VERIFY_HELP, help_epilogue=epilogue(VERIFY_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# ``penstock gc``: whose each file of a job is, and the end of those that nobody needs.

GC_SCHEMA: Final = "penstock.gc/1"
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
        output.document(GC_SCHEMA, **gc_document(job, found, done, dry_run=False))
    elif done is not None or not found.deletable:
        output.result(Text(_told(job, done)))
    return ExitCode.FAILED if found.deletable and not does else ExitCode.ENDED


def _show(output: Output, directory: JobDirectory, found: Inventory, *, as_json: bool) -> None:
    if as_json:
        output.document(GC_SCHEMA, **gc_document(directory.job, found, None, dry_run=True))
        return
    now = directory.now()
    output.result(files_table(found, now))
    output.result(sums_table(found))
    output.result(Text(_summary(directory.job, found)))


def gc_document(job: str, found: Inventory, done: Collected | None, *, dry_run: bool) -> dict[str, object]:
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


def _file(file: OwnedFile) -> dict[str, object]:
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
            age = UNKNOWN if file.written is None else duration_text(max(0, now - file.written) / 1_000_000)
            style = "yellow" if file.owner in DELETABLE else None
            table.add_row(file.path, size(file.length), age, _owner(file), style=style)
    return table


def _owner(file: OwnedFile) -> str:
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
    age = f", the newest {duration_text(max(0, now - max(written)) / 1_000_000)} old" if written else ""
    return f"Delete {count(len(found.deletable), 'file')}, {size(total)}{age}, that no checkpoint needs"


def _told(job: str, done: Collected | None) -> str:
    if done is None:
        return f"{job}: nothing to delete"
    files = count(len(done.condemned_before) + len(done.condemned_now), "file")
    return f"{job}: deleted {files}, {size(done.bytes)}: {len(done.condemned_now)} of them orphans"


# ----------------------------------------------------------------------------------------------------
# ``penstock verify``: whether a job, or an export, could be restored, and output published. Changes nothing.

VERIFY_SCHEMA: Final = "penstock.verify/1"
FOLDER_SCHEMA: Final = "penstock.verify.export/1"
"""Of the JSON documents, of a job and of a folder: see docs/json.md."""


def show_verdict(
    output: Output, *, job: str, state: str, quick: bool, as_json: bool, clock: Clock | None = None
) -> int:
    """Verify the job and print what was found; 1 if something is broken.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        StorageFailed: a folder cannot be listed.
    """
    directory = JobDirectory(state, job, clock=clock)
    with counting_bytes(output, "verifying") as progress:
        verdict = verify(directory, quick=quick, progress=progress)
    if as_json:
        output.document(VERIFY_SCHEMA, **verify_document(verdict))
    else:
        for line in lines(verdict):
            output.result(line)
    return ExitCode.ENDED if verdict.is_sound else ExitCode.FAILED


def show_folder(output: Output, *, folder: str, quick: bool, as_json: bool) -> int:
    """Verify an exported checkpoint and print what was found; 1 if something is broken.

    Raises:
        UnknownName: there is no export.
        StateDirectoryRefused: its files were taken over by a job.
    """
    with counting_bytes(output, "verifying") as progress:
        verdict = verify_folder(folder, quick=quick, progress=progress)
    if as_json:
        output.document(FOLDER_SCHEMA, **folder_document(verdict))
    else:
        for line in folder_lines(verdict):
            output.result(line)
    return ExitCode.ENDED if verdict.is_sound else ExitCode.FAILED


def folder_lines(verdict: ExportVerifyReport) -> Iterator[Text]:
    """The report for people."""
    word = "sound" if verdict.is_sound else f"BROKEN, {count(len(verdict.broken), 'fault')}"
    names = "".join(f", savepoint {name}" for name in verdict.names)
    whose = f"checkpoint {verdict.checkpoint} of {verdict.job}{names}" if verdict.job else "no checkpoint can be read"
    checked = f"{'length' if verdict.quick else 'content'} of {count(verdict.files, 'file')}, {size(verdict.bytes)}"
    style = "bold green" if verdict.is_sound else "bold red"
    yield Text(f"{verdict.folder}: {word} · {whose} · {checked}", style=style)
    for each in verdict.broken:
        yield Text(f"  {each.path}: {each.message}")
    if verdict.others:
        yield Text(f"not part of it: {', '.join(verdict.others[:5])}{', …' if len(verdict.others) > 5 else ''}")  # noqa: PLR2004 - enough to see what they are
    for remedy in verdict.remedies:
        yield Text(f"remedy: {remedy}")


def verify_document(verdict: VerifyReport) -> dict[str, object]:
    """The JSON document's fields."""
    return {
        "job": verdict.job,
        "log_id": verdict.log_id,
        "tail": verdict.tail if verdict.log_id is not None else None,
        "is_quick": verdict.quick,
        "is_sound": verdict.is_sound,
        "file_count": verdict.files,
        "bytes": verdict.bytes,
        "broken": [{**_fault(each), **_broken_by(each)} for each in verdict.broken],
        "taken_files": list(verdict.taken),
        "restorable": list(verdict.restorable),
        "sound": list(verdict.sound),
        "restore_point": verdict.restore_point,
        "orphan_files": list(verdict.orphans),
        "condemned_files": list(verdict.condemned),
        "remedies": list(verdict.remedies),
    }


def folder_document(verdict: ExportVerifyReport) -> dict[str, object]:
    """The fields of the JSON document of a folder."""
    return {
        "folder": verdict.folder,
        "job": verdict.job,
        "checkpoint": verdict.checkpoint,
        "names": list(verdict.names),
        "is_quick": verdict.quick,
        "is_sound": verdict.is_sound,
        "file_count": verdict.files,
        "bytes": verdict.bytes,
        "broken": [_fault(each) for each in verdict.broken],
        "other_files": list(verdict.others),
        "remedies": list(verdict.remedies),
    }


def _fault(each: BrokenItem | Problem) -> dict[str, object]:
    return {"path": each.path, "fault": each.fault.value, "message": each.message}


def _broken_by(each: BrokenItem) -> dict[str, object]:
    outputs = [output_fields(item) for item in each.outputs]
    return {"needed_by": list(each.checkpoints), "names": list(each.savepoints), "outputs": outputs}


def lines(verdict: VerifyReport) -> Iterator[Text]:
    """The report for people."""
    checked = f"{'length' if verdict.quick else 'content'} of {count(verdict.files, 'file')}, {size(verdict.bytes)}"
    scope = f"log to entry {verdict.tail}, {checked}" if verdict.log_id is not None else "the log cannot be read"
    word = "sound" if verdict.is_sound else f"BROKEN, {count(len(verdict.broken), 'fault')}"
    yield Text(f"{verdict.job}: {word} · {scope}", style="bold green" if verdict.is_sound else "bold red")
    for each in verdict.broken:
        yield Text(f"  {each.path}: {each.message}{_breaks(each)}")
    for path in verdict.taken:
        yield Text(f"  {path}: gone, and not published as it was; counts as published (a reader may have taken it)")
    if verdict.log_id is not None:
        yield Text(f"can be restored: {_numbers(verdict.sound)}{_point(verdict)}")
        lost = [key for key in verdict.restorable if key not in verdict.sound]
        if lost:
            yield Text(f"cannot be restored: {_numbers(lost)}")
        left = f"{count(len(verdict.orphans), 'orphan')}, {count(len(verdict.condemned), 'condemned file')} still there"
        yield Text(f"not needed: {left}; penstock gc {verdict.job} --dry-run shows them")
    for index, remedy in enumerate(verdict.remedies):
        yield Text(f"{'remedy' if index == 0 else '    or'}: {remedy}")


def _breaks(broken: BrokenItem) -> str:
    parts = []
    if broken.checkpoints:
        what = "checkpoint" if len(broken.checkpoints) == 1 else "checkpoints"
        parts.append(f"{what} {_numbers(broken.checkpoints)}")
    if broken.savepoints:
        what = "savepoint" if len(broken.savepoints) == 1 else "savepoints"
        parts.append(f"{what} {', '.join(broken.savepoints)}")
    if broken.outputs:
        parts.append(f"output {output_names(*broken.outputs)}")
    return f"; breaks {', '.join(parts)}" if parts else ""


def _point(verdict: VerifyReport) -> str:
    point = verdict.restore_point
    if point is None:
        return "; the next start begins empty"
    return f"; the next start continues {point}" + ("" if point in verdict.sound else ", which is broken")


def _numbers(checkpoints: Sequence[int]) -> str:
    return ", ".join(map(str, checkpoints)) or "none"
