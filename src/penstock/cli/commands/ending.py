"""``penstock stop``, ``settle`` and ``rewind``: their words and options."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from penstock.cli.commands.shared import STATE, AsJson, Flag, JobName, State, Timeout, Yes, epilogue, seconds_of
from penstock.cli.output import Output

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


def add(app: App, output: Output) -> None:
    """Add ``stop``, ``settle`` and ``rewind``."""
    _add_stop(app, output)
    _add_settle(app, output)
    _add_rewind(app, output)


def _add_stop(app: App, output: Output) -> None:
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
        from penstock.cli import ending

        longest = seconds_of(patience, "--patience")
        return ending.stop(
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
        from penstock.cli import ending

        return ending.settle(output, job=job, state=state, as_json=as_json)

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
        from penstock.cli import ending

        return ending.rewind(
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
