"""Penstock stop, settle, rewind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from penstock.admin import savepoints
from penstock.admin.reprocessing import rewind_effects
from penstock.checkpoint.history import resolve_checkpoint
from penstock.cli.options import STATE, AsJson, Flag, JobName, State, Timeout, Yes, epilogue, seconds_of
from penstock.cli.output import ExitCode, Output, UsageError, confirm
from penstock.cli.words import count, output_fields
from penstock.control.client import JobDirectory
from penstock.handles import output_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.admin.reprocessing import RewindEffects
    from penstock.handles import CheckpointId, Committable


# ----------------------------------------------------------------------------------------------------
# ``penstock stop``, ``settle`` and ``rewind``: their words and options.

STOP_HELP: Final = """\
Stop a running job in order: a last checkpoint, its output published, the process ended.

Prints the last checkpoint's number. With --savepoint it gets a name; if it cannot have it, the job goes on."""
STOP_EXAMPLES: Final = """\
Examples:
  penstock stop orders --state ./state
  penstock stop orders --savepoint before-v2           then deploy, and run: nothing lost, nothing twice
  penstock stop orders --drain                         the last stop: no window stays open, nothing is read after it
  penstock stop orders --patience 30s                  end without the last checkpoint if it takes longer"""
SETTLE_HELP: Final = """\
Publish what a dead job left open, without starting it, and say in its log that it is at rest.

A start does the same. Needs neither the pipeline nor Spark."""
SETTLE_EXAMPLES: Final = """\
Examples:
  penstock settle orders --state ./state"""
REWIND_HELP: Final = """\
Set where the next start of a stopped job begins: an older checkpoint, a savepoint, or empty state.

What is open is published first. Rows that are read again are published again, under new checkpoints: it says whose
readers will see which. Checkpoints that are left behind stay restorable, so a rewind can be taken back by another."""
REWIND_EXAMPLES: Final = """\
Examples:
  penstock rewind orders before-v2                     asks, having said what it means
  penstock rewind orders 41 --dry-run                  only says it
  penstock rewind orders 41 --discard-unpublished      what is not published yet never will be
  penstock rewind orders --fresh --yes                 to empty state, without being asked"""
To = Annotated[str | None, Parameter(help="A checkpoint's number, or a savepoint's name.")]


def add_stop(app: App, output: Output) -> None:
    """Add ``stop``, ``settle`` and ``rewind``."""
    _add_stop_command(app, output)
    _add_settle(app, output)
    _add_rewind(app, output)


def _add_stop_command(app: App, output: Output) -> None:
    def stop(
        job: JobName,
        /,
        *,
        savepoint: Annotated[str | None, Parameter(help="A name for the last checkpoint.")] = None,
        drain: Annotated[
            bool, Flag, Parameter(help="End the sources first, for good: all windows close and are published.")
        ] = False,
        patience: Annotated[
            str | None, Parameter(help="Most time for the last checkpoint and its output; for ever by default.")
        ] = None,
        timeout: Timeout = None,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:

        longest = seconds_of(patience, "--patience")
        return run_stop(
            output,
            job=job,
            state=state,
            savepoint=savepoint,
            drain=drain,
            patience=None if longest is None else int(longest * 1_000_000),
            seconds=seconds_of(timeout),
            as_json=as_json,
        )

    app.command(stop, help=STOP_HELP, help_epilogue=epilogue(STOP_EXAMPLES))


def _add_settle(app: App, output: Output) -> None:
    def settle(job: JobName, /, *, state: State = STATE, as_json: AsJson = False) -> int:

        return run_settle(output, job=job, state=state, as_json=as_json)

    app.command(settle, help=SETTLE_HELP, help_epilogue=epilogue(SETTLE_EXAMPLES))


def _add_rewind(app: App, output: Output) -> None:
    def rewind(
        job: JobName,
        to: To = None,
        /,
        *,
        fresh: Annotated[bool, Flag, Parameter(help="To empty state.")] = False,
        discard_unpublished: Annotated[
            bool, Flag, Parameter(help="Void what is open above the target instead of publishing it.")
        ] = False,
        dry_run: Annotated[bool, Flag, Parameter(help="Say what it means, change nothing.")] = False,
        yes: Yes = False,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:

        return run_rewind(
            output,
            job=job,
            to=to,
            fresh=fresh,
            state=state,
            discard=discard_unpublished,
            yes=yes,
            as_json=as_json,
            dry=dry_run,
        )

    app.command(rewind, help=REWIND_HELP, help_epilogue=epilogue(REWIND_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# ``penstock stop``, ``settle`` and ``rewind``: prints what :mod:`penstock.operate.stopping` does. Decides nothing.

STOP_SCHEMA: Final = "penstock.stop/1"
SETTLE_SCHEMA: Final = "penstock.settle/1"
REWIND_SCHEMA: Final = "penstock.rewind/1"
"""Of the JSON documents: see docs/json.md."""


def run_stop(
    output: Output,
    *,
    job: str,
    state: str,
    savepoint: str | None,
    drain: bool,
    patience: int | None,
    seconds: float | None,
    as_json: bool,
) -> int:
    """Stop it; the last checkpoint's number, or the document, is all there is on stdout.

    Raises:
        PenstockError: it goes on, or ended otherwise, and why.
    """
    directory = JobDirectory(state, job)
    output.note(f"penstock: asking job {job} to stop: a last checkpoint, its output published …")
    ended = savepoints.stop(directory, savepoint=savepoint, drain=drain, patience=patience, seconds=seconds)
    named = f", savepoint {savepoint}" if savepoint else ""
    if ended.unpublished is not None:
        output.note(f"penstock: {ended.unpublished}", style="yellow")
        output.note(f"penstock: penstock settle {job} publishes it, as does the next start", style="yellow")
    elif ended.was_running:
        output.note(f"penstock: job {job} has stopped, everything is published{named}")
    else:
        output.note(f"penstock: nobody runs job {job}{named}")
    if as_json:
        waiting = directory.read().open_committables
        output.document(
            STOP_SCHEMA,
            job=job,
            savepoint=savepoint,
            checkpoint=ended.checkpoint,
            was_running=ended.was_running,
            message=ended.unpublished,
            open=_items(waiting),
        )
    elif ended.checkpoint is not None:
        output.result(str(ended.checkpoint))
    return ExitCode.ENDED if ended.unpublished is None else ExitCode.FAILED


def run_settle(output: Output, *, job: str, state: str, as_json: bool) -> int:
    """Bring a dead job to rest.

    Raises:
        PenstockError: it runs, or its output cannot be published, and why.
    """
    done = savepoints.settle(JobDirectory(state, job))
    for item in done.published:
        output.note(f"penstock: published {output_names(item)} → {item.target}")
    for item in done.voided:
        output.note(f"penstock: voided {output_names(item)}; it never will be published")
    output.note(f"penstock: job {job} is at rest, everything is published")
    if as_json:
        output.document(SETTLE_SCHEMA, job=job, published=_items(done.published), voided=_items(done.voided))
    return ExitCode.ENDED


def run_rewind(  # noqa: PLR0913 - the options of the command
    output: Output,
    *,
    job: str,
    to: str | None,
    fresh: bool,
    state: str,
    discard: bool,
    yes: bool,
    as_json: bool,
    dry: bool,
) -> int:
    """Say what it means, ask, do it.

    Raises:
        PenstockError: it cannot be done, and why.
    """
    if (to is None) != fresh:
        msg = "say where to: a checkpoint's number, a savepoint's name, or --fresh for empty state"
        raise UsageError(msg)
    directory = JobDirectory(state, job)
    history = directory.read(past_unreadable=True)
    target = resolve_checkpoint(history, to) if to is not None else None
    means = rewind_effects(history, target, discard_unpublished=discard)
    for line in told(means):
        output.note(line)
    where = "empty state" if target is None else f"checkpoint {target}"
    does = not dry and confirm(output, f"Rewind job {job} to {where}", yes=yes)
    if does:
        savepoints.rewind(directory, target, discard_unpublished=discard, expect_tail=history.tail)
        output.note(f"penstock: the next start of job {job} continues {where}")
    if as_json:
        output.document(REWIND_SCHEMA, job=job, is_dry_run=dry, was_done=does, **_fields(means))
    return ExitCode.ENDED if does or dry else ExitCode.FAILED


def told(means: RewindEffects) -> list[str]:
    """What a rewind means, a line each.

    >>> from penstock.admin.reprocessing import RewindEffects
    >>> told(RewindEffects(to=None, left=None))
    ['rewind from empty state to empty state']
    """
    lines = [f"rewind from {_name(means.left)} to {_name(means.to)}"]
    lines += [f"  ! entry {number} of the log cannot be read and is given up" for number in means.lost]
    lines += _listed("  + published first: ", means.publish)
    lines += _listed("  - voided, never published: ", means.void)
    if means.condemned:
        lines.append(f"  - never to be restored again: checkpoints {', '.join(map(str, means.condemned))}")
    for uid, ids in means.again.items():
        what = f"{count(len(ids), 'checkpoint')} ({_span(ids)})"
        lines.append(f"  ~ readers of '{uid}' have the output of {what}, and see its rows again")
    return lines


def _name(checkpoint: CheckpointId | None) -> str:
    return "empty state" if checkpoint is None else f"checkpoint {checkpoint}"


def _listed(lead: str, items: Sequence[Committable]) -> list[str]:
    return [f"{lead}{output_names(item)} → {item.target}" for item in items]


def _span(ids: Sequence[CheckpointId]) -> str:
    return str(ids[0]) if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"


def _fields(means: RewindEffects) -> dict[str, object]:
    return {
        "from_checkpoint": means.left,
        "to_checkpoint": means.to,
        "publish": _items(means.publish),
        "void": _items(means.void),
        "condemned": list(means.condemned),
        "lost": list(means.lost),
        "again": _items(means.outputs_again),
    }


def _items(items: Sequence[Committable]) -> list[dict[str, object]]:
    return [output_fields(item) for item in items]
