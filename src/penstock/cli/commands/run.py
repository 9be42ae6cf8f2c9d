"""``penstock run``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from cyclopts import App, Parameter

from penstock.cli.commands.shared import STATE, Flag, State, epilogue
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


def add(app: App, output: Output) -> None:
    """Add ``run``."""

    def run(  # noqa: PLR0913 - the options of the command
        pipeline: Annotated[str, Parameter(help="module:pipeline, also from the current folder.")],
        /,
        *,
        state: State = STATE,
        until: Annotated[
            Literal["stopped", "caught-up"], Parameter(help="caught-up ends when what is there now is read.")
        ] = "stopped",
        checkpoint_every: Annotated[str | None, Parameter(help="From trigger to trigger, such as 5s.")] = None,
        fresh: Annotated[bool, Flag, Parameter(help="Begin empty, beside the state that is there.")] = False,
        restore_from: Annotated[
            str | None,
            Parameter(name="--from", help="Savepoint or checkpoint to begin at, or an exported folder (with a slash)."),
        ] = None,
        claim: Annotated[bool, Flag, Parameter(help="Take the exported folder's files over.")] = False,
        discard_unpublished: Annotated[
            bool, Flag, Parameter(help="Output above --from that is not published yet never will be.")
        ] = False,
        allow_non_restored_state: Annotated[
            bool, Flag, Parameter(help="Leave state unused whose step the pipeline no longer has.")
        ] = False,
        plan: Annotated[
            str | None, Parameter(help="What `penstock plan --out` wrote: refuse if log, code or settings moved since.")
        ] = None,
        rename: Annotated[
            tuple[str, ...],
            Parameter(negative="", show_default=False, help="OLD=NEW: a step goes on with the state of its old uid."),
        ] = (),
        take_over: Annotated[bool, Flag, Parameter(help="Claim the job even if a living process has it.")] = False,
        stop_timeout: Annotated[str | None, Parameter(help="Most time for a stop; 8s by default.")] = None,
        max_rows_per_batch: Annotated[int | None, Parameter(help="Most rows of a batch.")] = None,
        retained: Annotated[int | None, Parameter(help="Complete checkpoints that stay restorable.")] = None,
        master: Annotated[str | None, Parameter(help="Spark master; all cores of this machine by default.")] = None,
        parent: Annotated[
            bool, Parameter(name="--parent", negative="--no-parent", help="Watch the job and start it again.")
        ] = True,
    ) -> int:
        from penstock.cli.run import RunOptions, run_as_child, run_as_parent

        options = RunOptions(
            pipeline=pipeline,
            state=state,
            until=until,
            fresh=fresh,
            restore_from=restore_from,
            claim=claim,
            discard_unpublished=discard_unpublished,
            allow_non_restored_state=allow_non_restored_state,
            rename=rename,
            take_over=take_over,
            master=master,
            plan=plan,
            settings={
                "checkpoint_every": checkpoint_every,
                "stop_timeout": stop_timeout,
                "max_rows_per_batch": max_rows_per_batch,
                "retained": retained,
            },
        )
        return run_as_parent(options, output) if parent else run_as_child(options, output)

    app.command(run, help=HELP, help_epilogue=epilogue(EXAMPLES))
