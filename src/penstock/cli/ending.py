"""``penstock stop``, ``settle`` and ``rewind``: prints what :mod:`penstock.operate.stopping` does. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.checkpoint.names import which_checkpoint
from penstock.cli.confirm import confirm
from penstock.cli.exits import ExitCode, UsageError
from penstock.cli.shown import output_fields
from penstock.cli.words import count
from penstock.handles import output_names
from penstock.operate import stopping
from penstock.operate.directory import JobDirectory
from penstock.operate.rewinding import consequences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.output import Output
    from penstock.handles import Committable
    from penstock.ids import CheckpointId
    from penstock.operate.rewinding import Consequences

STOP_SCHEMA: Final = "penstock.stop/1"
SETTLE_SCHEMA: Final = "penstock.settle/1"
REWIND_SCHEMA: Final = "penstock.rewind/1"
"""Of the JSON documents: see docs/json.md."""


def stop(
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
    ended = stopping.stop(directory, savepoint=savepoint, drain=drain, patience=patience, seconds=seconds)
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


def settle(output: Output, *, job: str, state: str, as_json: bool) -> int:
    """Bring a dead job to rest.

    Raises:
        PenstockError: it runs, or its output cannot be published, and why.
    """
    done = stopping.settle(JobDirectory(state, job))
    for item in done.published:
        output.note(f"penstock: published {output_names(item)} → {item.target}")
    for item in done.voided:
        output.note(f"penstock: voided {output_names(item)}; it never will be published")
    output.note(f"penstock: job {job} is at rest, everything is published")
    if as_json:
        output.document(SETTLE_SCHEMA, job=job, published=_items(done.published), voided=_items(done.voided))
    return ExitCode.ENDED


def rewind(  # noqa: PLR0913 - the options of the command
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
    target = which_checkpoint(history, to) if to is not None else None
    means = consequences(history, target, discard_unpublished=discard)
    for line in told(means):
        output.note(line)
    where = "empty state" if target is None else f"checkpoint {target}"
    does = not dry and confirm(output, f"Rewind job {job} to {where}", yes=yes)
    if does:
        stopping.rewind(directory, target, discard_unpublished=discard, expect_tail=history.tail)
        output.note(f"penstock: the next start of job {job} continues {where}")
    if as_json:
        output.document(REWIND_SCHEMA, job=job, is_dry_run=dry, was_done=does, **_fields(means))
    return ExitCode.ENDED if does or dry else ExitCode.FAILED


def told(means: Consequences) -> list[str]:
    """What a rewind means, a line each.

    >>> from penstock.operate.rewinding import Consequences
    >>> told(Consequences(to=None, left=None))
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


def _fields(means: Consequences) -> dict[str, object]:
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
