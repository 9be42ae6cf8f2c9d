"""The commands ``penstock stop``, ``settle`` and ``rewind``: how jobs come to rest, and where they go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from penstock.admin import savepoints
from penstock.admin.reprocessing import rewind_effects
from penstock.checkpoint.history import resolve_checkpoint
from penstock.cli.options import (
    STATE,
    AsJson,
    Flag,
    JobName,
    State,
    Timeout,
    Yes,
    search_current_folder,
    seconds_of,
)
from penstock.cli.output import CommandOutput, ExitCode, UsageError, confirm
from penstock.cli.words import count, output_fields
from penstock.control.client import JobDirectory
from penstock.handles import output_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.admin.reprocessing import RewindEffects
    from penstock.handles import CheckpointId, Committable

STOP_SCHEMA: Final = "penstock.stop/1"
SETTLE_SCHEMA: Final = "penstock.settle/1"
REWIND_SCHEMA: Final = "penstock.rewind/1"
"""The schemas of the JSON documents: see docs/json.md."""


def stop(
    job: JobName,
    /,
    *,
    savepoint: Annotated[str | None, Parameter(help="A name for the last checkpoint.")] = None,
    drain: Annotated[
        bool, Flag, Parameter(help="End the sources first, for good: all windows close and are published.")
    ] = False,
    patience: Annotated[
        str | None, Parameter(help="Maximum time for the last checkpoint and its output; no limit by default.")
    ] = None,
    timeout: Timeout = None,
    state: State = STATE,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Stop a running job; stdout gets nothing but the number of the last checkpoint, or the document.

    Raises:
        PenstockError: the job goes on, or ended in another way, and why.
    """
    longest = seconds_of(patience, "--patience")
    patience_micros = None if longest is None else int(longest * 1_000_000)
    seconds = seconds_of(timeout)
    directory = JobDirectory(state, job)
    output.note(f"penstock: asking job {job} to stop: a last checkpoint, its output published …")
    ended = savepoints.stop(directory, savepoint=savepoint, drain=drain, patience=patience_micros, seconds=seconds)
    named = f", savepoint {savepoint}" if savepoint else ""
    if ended.unpublished is not None:
        output.note(f"penstock: {ended.unpublished}", style="yellow")
        output.note(f"penstock: penstock settle {job} publishes it, as does the next start", style="yellow")
    elif ended.was_running:
        output.note(f"penstock: job {job} has stopped, everything is published{named}")
    else:
        output.note(f"penstock: job {job} does not run: there is nothing to stop{named}")
    if as_json:
        output.document(
            STOP_SCHEMA,
            job=job,
            savepoint=savepoint,
            checkpoint=ended.checkpoint,
            was_running=ended.was_running,
            message=ended.unpublished,
            open=_items(directory.read().open_committables),
        )
    elif ended.checkpoint is not None:
        output.result(str(ended.checkpoint))
    return ExitCode.ENDED if ended.unpublished is None else ExitCode.FAILED


def settle(job: JobName, /, *, state: State = STATE, as_json: AsJson = False, output: CommandOutput) -> int:
    """Bring a dead job to rest.

    Raises:
        PenstockError: the job runs, or its output cannot be published, and why.
    """
    search_current_folder()  # committers may be the user's own
    done = savepoints.settle(JobDirectory(state, job))
    for item in done.published:
        output.note(f"penstock: published {output_names(item)} → {item.target}")
    for item in done.voided:
        output.note(f"penstock: voided {output_names(item)}; it never will be published")
    output.note(f"penstock: job {job} is at rest, everything is published")
    if as_json:
        output.document(SETTLE_SCHEMA, job=job, published=_items(done.published), voided=_items(done.voided))
    return ExitCode.ENDED


def rewind(  # noqa: PLR0913 - the options of the command
    job: JobName,
    to: Annotated[str | None, Parameter(help="A checkpoint's number, or a savepoint's name.")] = None,
    /,
    *,
    fresh: Annotated[bool, Flag, Parameter(help="Go back to empty state.")] = False,
    discard_unpublished: Annotated[
        bool, Flag, Parameter(help="Never publish output above the target that is not published yet.")
    ] = False,
    dry_run: Annotated[bool, Flag, Parameter(help="Say what it would do, and change nothing.")] = False,
    yes: Yes = False,
    state: State = STATE,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Say what a rewind means, ask, and do it.

    Raises:
        PenstockError: it cannot be done, and why.
    """
    if (to is None) != fresh:
        msg = (
            "The command does not say where to go back to. Give a checkpoint's number, a savepoint's name, or --fresh "
            "for empty state."
        )
        raise UsageError(msg)
    search_current_folder()  # committers may be the user's own
    directory = JobDirectory(state, job)
    history = directory.read(past_unreadable=True)
    target = resolve_checkpoint(history, to) if to is not None else None
    effects = rewind_effects(history, target, discard_unpublished=discard_unpublished)
    for line in effects_text(effects):
        output.note(line)
    for line in savepoints.without_void(directory, effects.void):
        output.note(f"  ! {line}", style="yellow")
    where = "empty state" if target is None else f"checkpoint {target}"
    does = not dry_run and confirm(output, f"Rewind job {job} to {where}", yes=yes)
    if does:
        savepoints.rewind(directory, target, discard_unpublished=discard_unpublished, expect_tail=history.tail)
        then = "begins empty" if target is None else f"continues {where}"
        output.note(f"penstock: the next start of job {job} {then}")
    if as_json:
        output.document(REWIND_SCHEMA, job=job, is_dry_run=dry_run, was_done=does, **_fields(effects))
    return ExitCode.ENDED if does or dry_run else ExitCode.FAILED


def effects_text(effects: RewindEffects) -> list[str]:
    """What a rewind does, in lines.

    >>> from penstock.admin.reprocessing import RewindEffects
    >>> effects_text(RewindEffects(to=None, left=None))
    ['rewind from empty state to empty state']
    """
    lines = [f"rewind from {_name(effects.left)} to {_name(effects.to)}"]
    lines += [f"  ! entry {number} of the log cannot be read and is given up" for number in effects.lost]
    lines += _listed("  + published first: ", effects.publish)
    lines += _listed("  - voided, never published: ", effects.void)
    if effects.condemned:
        lines.append(f"  - never to be restored again: checkpoints {', '.join(map(str, effects.condemned))}")
    for uid, ids in effects.again.items():
        what = f"{count(len(ids), 'checkpoint')} ({_span(ids)})"
        lines.append(f"  ~ readers of '{uid}' have the output of {what}, and see its rows again")
    return lines


def _name(checkpoint: CheckpointId | None) -> str:
    return "empty state" if checkpoint is None else f"checkpoint {checkpoint}"


def _listed(lead: str, items: Sequence[Committable]) -> list[str]:
    return [f"{lead}{output_names(item)} → {item.target}" for item in items]


def _span(ids: Sequence[CheckpointId]) -> str:
    return str(ids[0]) if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"


def _fields(effects: RewindEffects) -> dict[str, object]:
    return {
        "from_checkpoint": effects.left,
        "to_checkpoint": effects.to,
        "publish": _items(effects.publish),
        "void": _items(effects.void),
        "condemned": list(effects.condemned),
        "lost": list(effects.lost),
        "again": _items(effects.outputs_again),
    }


def _items(items: Sequence[Committable]) -> list[dict[str, object]]:
    return [output_fields(item) for item in items]
