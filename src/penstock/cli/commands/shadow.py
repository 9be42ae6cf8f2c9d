"""``penstock shadow``: its words and options."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal, TypeAlias

from cyclopts import App, Parameter

from penstock.cli.commands.shared import STATE, AsJson, Begin, Flag, Master, MaxRows, State, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Run new code on a copy of a savepoint, its sinks muted into a folder, and compare with what the old code writes.

Nothing outside is changed: sources are only read, and the real job may run meanwhile. Both codes read to the same
end. Ends with 0 if every sink got the same rows, with 2 if not."""

EXAMPLES: Final = """\
Examples:
  penstock shadow shop_v2:orders --against shop:orders --from before-v2 --key totals-out=user,window_start
  penstock shadow shop_v2:orders --from ./exports/orders --out ./tried         count what the new code writes"""


New: TypeAlias = Annotated[str, Parameter(help="The new code: module:pipeline, also from the current folder.")]
Old: TypeAlias = Annotated[str | None, Parameter(help="The old code: module:pipeline.")]
Until: TypeAlias = Annotated[Literal["caught-up"], Parameter(help="Both end when what is there now is read.")]
Several: Final = Parameter(negative="", show_default=False)
Key: TypeAlias = Annotated[
    tuple[str, ...], Several, Parameter(help="sink=column,…: which old and which new row are the same.")
]
Rename: TypeAlias = Annotated[tuple[str, ...], Several, Parameter(help="OLD=NEW: the new code's uid of a step.")]
Out: TypeAlias = Annotated[str | None, Parameter(help="New folder for all output; ./shadow-JOB by default.")]
LeaveState: TypeAlias = Annotated[bool, Flag, Parameter(help="The new code may leave state unused.")]
Without: TypeAlias = Annotated[tuple[str, ...], Several, Parameter(help="A source that neither code reads.")]


def add(app: App, output: Output) -> None:
    """Add ``shadow``."""

    def shadow(  # noqa: PLR0913 - the options of the command
        pipeline: New,
        /,
        *,
        restore_from: Annotated[str, Begin],
        against: Old = None,
        until: Until = "caught-up",  # noqa: ARG001 - there is one; it is written so that it reads like run
        key: Key = (),
        rename: Rename = (),
        out: Out = None,
        allow_non_restored_state: LeaveState = False,
        without: Without = (),
        max_rows_per_batch: MaxRows = None,
        master: Master = None,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli.shadow import ShadowOptions, run_shadow

        options = ShadowOptions(pipeline=pipeline, against=against, restore_from=restore_from, state=state, out=out)
        options = replace(options, key=key, rename=rename, allow_non_restored_state=allow_non_restored_state)
        options = replace(options, without=without, master=master, settings={"max_rows_per_batch": max_rows_per_batch})
        return run_shadow(output, options, as_json=as_json)

    app.command(shadow, help=HELP, help_epilogue=epilogue(EXAMPLES))
