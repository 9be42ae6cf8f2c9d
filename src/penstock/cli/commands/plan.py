"""``penstock plan``: its words and options."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, TypeAlias

from cyclopts import App, Parameter

from penstock.cli.commands.shared import (
    STATE,
    AsJson,
    Begin,
    Claim,
    Flag,
    Fresh,
    LeaveState,
    PipelineName,
    Rename,
    State,
    epilogue,
    settings_of,
)
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


Discard: TypeAlias = Annotated[
    bool, Flag, Parameter(help="Going back: void what is open above, instead of publishing it.")
]
Schemas: TypeAlias = Annotated[
    bool, Parameter(negative="--no-schemas", help="Compare the columns of state, if any is restored: takes Spark.")
]
AsForRun: Final = Parameter(help="As for run.")
All: TypeAlias = Annotated[bool, Flag, Parameter(help="List steps that are kept as they are, too.")]
Out: TypeAlias = Annotated[str | None, Parameter(help="File to write the plan to, for `penstock run --plan`.")]


def add(app: App, output: Output) -> None:
    """Add ``plan``."""

    def plan(  # noqa: PLR0913 - the options of the command
        pipeline: PipelineName,
        /,
        *,
        state: State = STATE,
        start_at: Annotated[str | None, Begin] = None,
        claim: Claim = False,
        fresh: Fresh = False,
        discard_unpublished: Discard = False,
        allow_non_restored_state: LeaveState = False,
        rename: Rename = (),
        schemas: Schemas = True,
        checkpoint_every: Annotated[str | None, AsForRun] = None,
        stop_timeout: Annotated[str | None, AsForRun] = None,
        max_rows_per_batch: Annotated[int | None, AsForRun] = None,
        retained: Annotated[int | None, AsForRun] = None,
        all: All = False,
        as_json: AsJson = False,
        out: Out = None,
    ) -> int:
        from penstock.cli.plan import PlanOptions, show_plan

        settings = settings_of(checkpoint_every, stop_timeout, max_rows_per_batch, retained)
        options = PlanOptions(pipeline=pipeline, state=state, compares_schemas=schemas, settings=settings)
        options = replace(options, start_at=start_at, claim=claim, fresh=fresh, discard_unpublished=discard_unpublished)
        options = replace(options, rename=rename, allow_non_restored_state=allow_non_restored_state)
        return show_plan(options, output, lists_kept=all, as_json=as_json, out=out)

    app.command(plan, help=HELP, help_epilogue=epilogue(EXAMPLES))
