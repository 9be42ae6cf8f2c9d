"""``penstock plan``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from penstock.cli.commands.shared import STATE, AsJson, Flag, State, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Say what a start of a pipeline would do, and change nothing.

What it restores, what becomes of each step's state, where sources go on and what waits for them, what is published
before they start, what readers see again. Ends with 0 if all goes on as before, 2 if something changes, 65 if a start
would be refused."""

EXAMPLES: Final = """\
Examples:
  penstock plan shop:orders                            what `penstock run shop:orders` would do
  penstock plan shop:orders --from before-v2           going back to a savepoint: rows that readers see again
  penstock plan shop:orders --from ./exports/orders    beginning with a checkpoint that was exported there
  penstock plan shop:orders --out plan.json && penstock run shop:orders --plan plan.json
  penstock plan shop:orders --json | jq .summary"""


def add(app: App, output: Output) -> None:
    """Add ``plan``."""

    def plan(  # noqa: PLR0913 - the options of the command
        pipeline: Annotated[str, Parameter(help="module:pipeline, also from the current folder.")],
        /,
        *,
        state: State = STATE,
        start_at: Annotated[
            str | None,
            Parameter(name="--from", help="Savepoint or checkpoint to begin at, or an exported folder (with a slash)."),
        ] = None,
        claim: Annotated[bool, Flag, Parameter(help="Take the exported folder's files over.")] = False,
        fresh: Annotated[bool, Flag, Parameter(help="Begin empty, beside the state that is there.")] = False,
        discard_unpublished: Annotated[
            bool, Flag, Parameter(help="Going back: void what is open above, instead of publishing it.")
        ] = False,
        allow_non_restored_state: Annotated[
            bool, Flag, Parameter(help="Leave state unused whose step the pipeline no longer has.")
        ] = False,
        rename: Annotated[
            tuple[str, ...],
            Parameter(negative="", show_default=False, help="OLD=NEW: a step goes on with the state of its old uid."),
        ] = (),
        schemas: Annotated[
            bool,
            Parameter(negative="--no-schemas", help="Compare the columns of state, if any is restored: takes Spark."),
        ] = True,
        checkpoint_every: Annotated[str | None, Parameter(help="As for run.")] = None,
        stop_timeout: Annotated[str | None, Parameter(help="As for run.")] = None,
        max_rows_per_batch: Annotated[int | None, Parameter(help="As for run.")] = None,
        retained: Annotated[int | None, Parameter(help="As for run.")] = None,
        all: Annotated[bool, Flag, Parameter(help="List steps that are kept as they are, too.")] = False,
        as_json: AsJson = False,
        out: Annotated[str | None, Parameter(help="File to write the plan to, for `penstock run --plan`.")] = None,
    ) -> int:
        from penstock.cli.plan import PlanOptions, show_plan

        options = PlanOptions(
            pipeline=pipeline,
            state=state,
            start_at=start_at,
            fresh=fresh,
            claim=claim,
            discard_unpublished=discard_unpublished,
            allow_non_restored_state=allow_non_restored_state,
            rename=rename,
            compares_schemas=schemas,
            settings={
                "checkpoint_every": checkpoint_every,
                "stop_timeout": stop_timeout,
                "max_rows_per_batch": max_rows_per_batch,
                "retained": retained,
            },
        )
        return show_plan(options, output, lists_kept=all, as_json=as_json, out=out)

    app.command(plan, help=HELP, help_epilogue=epilogue(EXAMPLES))
