"""The commands ``penstock gc`` and ``penstock verify``: who owns the files of a job, and whether they are sound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from rich.text import Text

from penstock.admin.export import verify_folder
from penstock.admin.gc import DELETABLE, Collected, Owner, collect_garbage, inventory
from penstock.admin.received import skip_block, unreadable_block
from penstock.admin.verify import verify as verify_job
from penstock.cli.options import STATE, AsJson, Flag, JobName, State, Yes, search_current_folder
from penstock.cli.output import CommandOutput, ExitCode, Output, confirm, counting_bytes
from penstock.cli.words import UNKNOWN, count, duration_text, output_fields, plain_table, size
from penstock.control.client import JobDirectory
from penstock.errors import JobIsRunning
from penstock.handles import output_names

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.admin.export import ExportVerifyReport
    from penstock.admin.gc import Inventory, OwnedFile
    from penstock.admin.verify import BrokenItem, Problem, VerifyReport
    from penstock.clock import WallTime

# ---- penstock gc -----------------------------------------------------------------------------------------------------

GC_SCHEMA: Final = "penstock.gc/1"  # see docs/json.md
OWNER_TEXTS: Final[dict[Owner, str]] = {
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
"""What each owner is called in the table of sums."""


def gc(
    job: JobName,
    /,
    *,
    state: State = STATE,
    dry_run: Annotated[
        bool, Flag, Parameter(help="Only show what would be deleted; a running job's files too.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Show the owner of each file, or delete the files that no checkpoint needs.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        JobIsRunning: the job cleans up by itself.
        UsageError: there is no terminal to ask at, and ``--yes`` was not given.
        CheckpointError: the log cannot be read or written.
    """
    directory = JobDirectory(state, job)
    found = inventory(directory)
    if dry_run:
        _show(output, directory, found, as_json=as_json)
        return ExitCode.ENDED
    if found.is_running:
        msg = (
            f"Job {job!r} is running and cleans up by itself after each checkpoint. Use --dry-run to see what is there."
        )
        raise JobIsRunning(msg)
    does = bool(found.deletable) and confirm(output, _question(found, directory.now()), yes=yes)
    done = collect_garbage(directory) if does else None
    if as_json:
        output.document(GC_SCHEMA, **_gc_document(job, found, done, dry_run=False))
    elif done is not None or not found.deletable:
        output.result(Text(_deleted_text(job, done)))
    return ExitCode.FAILED if found.deletable and not does else ExitCode.ENDED


SKIP_SCHEMA: Final = "penstock.skip/1"  # see docs/json.md


def skip(
    job: JobName,
    block: Annotated[str, Parameter(help="The path of the block, as verify shows it.")],
    /,
    *,
    yes: Yes = False,
    state: State = STATE,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Go on without a block of received rows that cannot be read.

    Raises:
        UnknownName: there is no such job, or no such block.
        JobIsRunning: the job runs.
        StateIncompatible: the block is sound.
        UsageError: there is no terminal to ask at, and ``--yes`` was not given.
        CheckpointError: the log cannot be read or written.
    """
    directory = JobDirectory(state, job)
    directory.read()
    found = unreadable_block(directory.filesystem, block)
    question = f"penstock: lose the acknowledged rows in {block} ({size(found.bytes)}) for good"
    done = skip_block(directory, block) if confirm(output, question, yes=yes) else None
    if as_json:
        fields = {"path": block, "reason": found.reason, "bytes": found.bytes}
        output.document(SKIP_SCHEMA, job=job, was_done=done is not None, **fields)
    elif done is not None:
        output.result(Text(f"{block} is skipped: {found.reason}"))
    return ExitCode.FAILED if done is None else ExitCode.ENDED


def _show(output: Output, directory: JobDirectory, found: Inventory, *, as_json: bool) -> None:
    if as_json:
        output.document(GC_SCHEMA, **_gc_document(directory.job, found, None, dry_run=True))
        return
    now = directory.now()
    output.result(_files_table(found, now))
    output.result(_sums_table(found))
    output.result(Text(_summary(directory.job, found)))


def _gc_document(job: str, found: Inventory, done: Collected | None, *, dry_run: bool) -> dict[str, object]:
    """The fields of the JSON document: what was there before, and what was deleted of it, if anything was."""
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


def _files_table(found: Inventory, now: WallTime) -> Table:
    """One row for each file, except those of the log and of requests: they are many and alike."""
    table = plain_table(("file", "left"), ("size", "right"), ("age", "right"), ("owner", "left"))
    for file in found.files:
        if file.owner not in {Owner.LOG, Owner.CONTROL}:
            age = UNKNOWN if file.written is None else duration_text(max(0, now - file.written) / 1_000_000)
            style = "yellow" if file.owner in DELETABLE else None
            table.add_row(file.path, size(file.length), age, _owner_text(file), style=style)
    return table


def _owner_text(file: OwnedFile) -> str:
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


def _sums_table(found: Inventory) -> Table:
    """One row for each owner."""
    table = plain_table(("files", "right"), ("size", "right"), ("", "left"))
    for each in found.sums:
        table.add_row(f"{each.files:,}", size(each.bytes), OWNER_TEXTS[each.owner])
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


def _deleted_text(job: str, done: Collected | None) -> str:
    if done is None:
        return f"{job}: nothing to delete"
    files = count(len(done.condemned_before) + len(done.condemned_now), "file")
    return f"{job}: deleted {files}, {size(done.bytes)}: {len(done.condemned_now)} of them orphans"


# ---- penstock verify -------------------------------------------------------------------------------------------------

VERIFY_SCHEMA: Final = "penstock.verify/1"
FOLDER_SCHEMA: Final = "penstock.verify.export/1"
"""The schemas of the JSON documents, of a job and of an exported folder: see docs/json.md."""
OTHERS_SHOWN: Final = 5
"""Files of a folder that are not part of the export: this many are named, enough to see what they are."""


def verify(
    job: Annotated[str, Parameter(help="Name of the job, or the folder of an export, as in ./exports/orders.")],
    /,
    *,
    state: State = STATE,
    quick: Annotated[bool, Flag, Parameter(help="Check existence and lengths only, and read no content.")] = False,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Verify a job or an exported checkpoint, and print what was found; 1 if something is broken.

    Raises:
        UnknownName: there is no such job, with the nearest name; or no export.
        StateDirectoryRefused: the files of the export were taken over by a job.
        StorageFailed: a folder cannot be listed.
    """
    search_current_folder()  # committers may be the user's own
    if "/" in job:  # no job has such a name
        return _verify_folder(output, job, quick=quick, as_json=as_json)
    with counting_bytes(output, "verifying") as progress:
        report = verify_job(JobDirectory(state, job), quick=quick, progress=progress)
    if as_json:
        output.document(VERIFY_SCHEMA, **_verify_document(report))
    else:
        for line in _job_lines(report):
            output.result(line)
    return ExitCode.ENDED if report.is_sound else ExitCode.FAILED


def _verify_folder(output: Output, folder: str, *, quick: bool, as_json: bool) -> int:
    with counting_bytes(output, "verifying") as progress:
        report = verify_folder(folder, quick=quick, progress=progress)
    if as_json:
        output.document(FOLDER_SCHEMA, **_folder_document(report))
    else:
        for line in _folder_lines(report):
            output.result(line)
    return ExitCode.ENDED if report.is_sound else ExitCode.FAILED


def _verify_document(report: VerifyReport) -> dict[str, object]:
    """The fields of the JSON document of a job."""
    return {
        "job": report.job,
        "log_id": report.log_id,
        "tail": report.tail if report.log_id is not None else None,
        "is_quick": report.quick,
        "is_sound": report.is_sound,
        "file_count": report.files,
        "bytes": report.bytes,
        "broken": [{**_fault(each), **_broken_by(each)} for each in report.broken],
        "taken_files": list(report.taken),
        "restorable": list(report.restorable),
        "sound": list(report.sound),
        "restore_point": report.restore_point,
        "orphan_files": list(report.orphans),
        "condemned_files": list(report.condemned),
        "remedies": list(report.remedies),
    }


def _folder_document(report: ExportVerifyReport) -> dict[str, object]:
    """The fields of the JSON document of a folder."""
    return {
        "folder": report.folder,
        "job": report.job,
        "checkpoint": report.checkpoint,
        "names": list(report.names),
        "is_quick": report.quick,
        "is_sound": report.is_sound,
        "file_count": report.files,
        "bytes": report.bytes,
        "broken": [_fault(each) for each in report.broken],
        "other_files": list(report.others),
        "remedies": list(report.remedies),
    }


def _fault(each: BrokenItem | Problem) -> dict[str, object]:
    return {"path": each.path, "fault": each.fault.value, "message": each.message}


def _broken_by(each: BrokenItem) -> dict[str, object]:
    outputs = [output_fields(item) for item in each.outputs]
    return {"needed_by": list(each.checkpoints), "names": list(each.savepoints), "outputs": outputs}


def _job_lines(report: VerifyReport) -> Iterator[Text]:
    """The report of a job for people."""
    checked = f"{'length' if report.quick else 'content'} of {count(report.files, 'file')}, {size(report.bytes)}"
    scope = f"log to entry {report.tail}, {checked}" if report.log_id is not None else "the log cannot be read"
    word = "sound" if report.is_sound else f"BROKEN, {count(len(report.broken), 'fault')}"
    yield Text(f"{report.job}: {word} · {scope}", style="bold green" if report.is_sound else "bold red")
    for each in report.broken:
        yield Text(f"  {each.path}: {each.message}{_breaks(each)}")
    for path in report.taken:
        yield Text(f"  {path}: gone, and not published as it was; counts as published (a reader may have taken it)")
    if report.log_id is not None:
        yield Text(f"can be restored: {_numbers(report.sound)}{_point(report)}")
        lost = [key for key in report.restorable if key not in report.sound]
        if lost:
            yield Text(f"cannot be restored: {_numbers(lost)}")
        left = f"{count(len(report.orphans), 'orphan')}, {count(len(report.condemned), 'condemned file')} still there"
        yield Text(f"not needed: {left}; penstock gc {report.job} --dry-run shows them")
    for index, remedy in enumerate(report.remedies):
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


def _point(report: VerifyReport) -> str:
    point = report.restore_point
    if point is None:
        return "; the next start begins empty"
    return f"; the next start continues {point}" + ("" if point in report.sound else ", which is broken")


def _numbers(checkpoints: Sequence[int]) -> str:
    return ", ".join(map(str, checkpoints)) or "none"


def _folder_lines(report: ExportVerifyReport) -> Iterator[Text]:
    """The report of an export for people."""
    word = "sound" if report.is_sound else f"BROKEN, {count(len(report.broken), 'fault')}"
    names = "".join(f", savepoint {name}" for name in report.names)
    whose = f"checkpoint {report.checkpoint} of {report.job}{names}" if report.job else "no checkpoint can be read"
    checked = f"{'length' if report.quick else 'content'} of {count(report.files, 'file')}, {size(report.bytes)}"
    style = "bold green" if report.is_sound else "bold red"
    yield Text(f"{report.folder}: {word} · {whose} · {checked}", style=style)
    for each in report.broken:
        yield Text(f"  {each.path}: {each.message}")
    if report.others:
        more = ", …" if len(report.others) > OTHERS_SHOWN else ""
        yield Text(f"not part of it: {', '.join(report.others[:OTHERS_SHOWN])}{more}")
    for remedy in report.remedies:
        yield Text(f"remedy: {remedy}")
