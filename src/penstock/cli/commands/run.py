"""``penstock run``: its words and options."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal, TypeAlias

from cyclopts import App, Parameter

from penstock.cli.commands.shared import (
    STATE,
    Begin,
    Claim,
    Flag,
    Fresh,
    LeaveState,
    Master,
    MaxRows,
    PipelineName,
    Rename,
    State,
    epilogue,
    settings_of,
)
from penstock.cli.output import Output

HELP: Final = """\
Run a pipeline: continue its newest complete checkpoint, or start empty.

Ctrl-C or SIGTERM once: a last checkpoint, its output published, exit 0. Twice: end at once, exit 130.
A parent process watches the job and starts it again when the engine dies."""

EXAMPLES: Final = """\
Examples:
  penstock run shop:orders                             state in .penstock, all cores of this machine
  penstock run shop:orders --state s --checkpoint-every 1s
  penstock run shop:orders --until caught-up           like a batch job, again and again, only new rows
  penstock run shop:orders --fresh                     begin empty beside the state that is there
  penstock run shop:orders --from before-v2            go back to a savepoint, or a checkpoint's number
  penstock run shop:orders --from ./exports/orders     begin with a checkpoint that was exported there
  penstock run shop:orders --rename totals=sums        new code, in which the step totals is called sums
  penstock run shop:orders --master spark://host:7077  on a cluster"""


Until: TypeAlias = Annotated[
    Literal["stopped", "caught-up"], Parameter(help="caught-up ends when what is there now is read.")
]
CheckpointEvery: TypeAlias = Annotated[str | None, Parameter(help="From trigger to trigger, such as 5s.")]
Discard: TypeAlias = Annotated[
    bool, Flag, Parameter(help="Output above --from that is not published yet never will be.")
]
Plan: TypeAlias = Annotated[
    str | None, Parameter(help="What `penstock plan --out` wrote: refuse if log, code or settings moved since.")
]
TakeOver: TypeAlias = Annotated[bool, Flag, Parameter(help="Claim the job even if a living process has it.")]
StopTimeout: TypeAlias = Annotated[str | None, Parameter(help="Most time for a stop; 8s by default.")]
Retained: TypeAlias = Annotated[int | None, Parameter(help="Complete checkpoints that stay restorable.")]
HasParent: TypeAlias = Annotated[
    bool, Parameter(name="--parent", negative="--no-parent", help="Watch the job and start it again.")
]


def add(app: App, output: Output) -> None:
    """Add ``run``."""

    def run(  # noqa: PLR0913 - the options of the command
        pipeline: PipelineName,
        /,
        *,
        state: State = STATE,
        until: Until = "stopped",
        checkpoint_every: CheckpointEvery = None,
        fresh: Fresh = False,
        restore_from: Annotated[str | None, Begin] = None,
        claim: Claim = False,
        discard_unpublished: Discard = False,
        allow_non_restored_state: LeaveState = False,
        plan: Plan = None,
        rename: Rename = (),
        take_over: TakeOver = False,
        stop_timeout: StopTimeout = None,
        max_rows_per_batch: MaxRows = None,
        retained: Retained = None,
        master: Master = None,
        parent: HasParent = True,
    ) -> int:
        from penstock.cli.run import RunOptions, run_as_child, run_as_parent

        settings = settings_of(checkpoint_every, stop_timeout, max_rows_per_batch, retained)
        options = RunOptions(pipeline=pipeline, state=state, until=until, master=master, settings=settings)
        options = replace(options, restore_from=restore_from, claim=claim, fresh=fresh, plan=plan, take_over=take_over)
        options = replace(options, rename=rename, allow_non_restored_state=allow_non_restored_state)
        options = replace(options, discard_unpublished=discard_unpublished)
        return run_as_parent(options, output) if parent else run_as_child(options, output)

    app.command(run, help=HELP, help_epilogue=epilogue(EXAMPLES))
