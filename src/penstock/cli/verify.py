"""``penstock verify``: whether a job, or an export, could be restored, and output published. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.cli.exits import ExitCode
from penstock.cli.shown import output_fields
from penstock.cli.waiting import counting_bytes
from penstock.cli.words import count, size
from penstock.handles import output_names
from penstock.operate.directory import JobDirectory
from penstock.operate.files.verify import verify
from penstock.operate.files.verify_folder import verify_folder

if TYPE_CHECKING:
    from penstock.cli.output import Output
    from penstock.operate.files.checking import Problem
    from penstock.operate.files.verify import Broken, Verdict
    from penstock.operate.files.verify_folder import FolderVerdict
    from penstock.runtime.clock import Clock

SCHEMA: Final = "penstock.verify/1"
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
        output.document(SCHEMA, **document(verdict))
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


def folder_lines(verdict: FolderVerdict) -> Iterator[Text]:
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


def document(verdict: Verdict) -> dict[str, object]:
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


def folder_document(verdict: FolderVerdict) -> dict[str, object]:
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


def _fault(each: Broken | Problem) -> dict[str, object]:
    return {"path": each.path, "fault": each.fault.value, "message": each.message}


def _broken_by(each: Broken) -> dict[str, object]:
    outputs = [output_fields(item) for item in each.outputs]
    return {"needed_by": list(each.checkpoints), "names": list(each.savepoints), "outputs": outputs}


def lines(verdict: Verdict) -> Iterator[Text]:
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


def _breaks(broken: Broken) -> str:
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


def _point(verdict: Verdict) -> str:
    point = verdict.restore_point
    if point is None:
        return "; the next start begins empty"
    return f"; the next start continues {point}" + ("" if point in verdict.sound else ", which is broken")


def _numbers(checkpoints: Sequence[int]) -> str:
    return ", ".join(map(str, checkpoints)) or "none"
