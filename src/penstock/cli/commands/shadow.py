"""``penstock shadow``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from cyclopts import App, Parameter

from penstock.cli.commands.shared import STATE, AsJson, Flag, State, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Run new code on a copy of a savepoint, its sinks muted into a folder, and compare with what the old code writes.

Nothing outside is changed: sources are only read, and the real job may run meanwhile. Both codes read to the same
end. Ends with 0 if every sink got the same rows, with 2 if not."""

EXAMPLES: Final = """\
Examples:
  penstock shadow shop_v2:orders --against shop:orders --from before-v2 --key totals-out=user,window_start
  penstock shadow shop_v2:orders --from ./exports/orders --out ./tried         count what the new code writes"""


def add(app: App, output: Output) -> None:
    """Add ``shadow``."""

    def shadow(  # noqa: PLR0913 - the options of the command
        pipeline: Annotated[str, Parameter(help="The new code: module:pipeline, also from the current folder.")],
        /,
        *,
        restore_from: Annotated[
            str,
            Parameter(name="--from", help="Savepoint or checkpoint to begin at, or an exported folder (with a slash)."),
        ],
        against: Annotated[str | None, Parameter(help="The old code: module:pipeline.")] = None,
        until: Annotated[  # noqa: ARG001 - there is one; it is written so that it reads like run
            Literal["caught-up"], Parameter(help="Both end when what is there now is read.")
        ] = "caught-up",
        key: Annotated[
            tuple[str, ...],
            Parameter(help="sink=column,…: which old and which new row are the same.", negative="", show_default=False),
        ] = (),
        rename: Annotated[
            tuple[str, ...],
            Parameter(help="OLD=NEW: the new code's uid of a step.", negative="", show_default=False),
        ] = (),
        out: Annotated[str | None, Parameter(help="New folder for all output; ./shadow-JOB by default.")] = None,
        allow_non_restored_state: Annotated[bool, Flag, Parameter(help="The new code may leave state unused.")] = False,
        without: Annotated[
            tuple[str, ...],
            Parameter(help="A source that neither code reads.", negative="", show_default=False),
        ] = (),
        max_rows_per_batch: Annotated[int | None, Parameter(help="Most rows of a batch.")] = None,
        master: Annotated[str | None, Parameter(help="Spark master; all cores of this machine by default.")] = None,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli.shadow import ShadowOptions, run_shadow

        options = ShadowOptions(
            pipeline=pipeline,
            against=against,
            restore_from=restore_from,
            state=state,
            out=out,
            key=key,
            rename=rename,
            allow_non_restored_state=allow_non_restored_state,
            without=without,
            master=master,
            settings={"max_rows_per_batch": max_rows_per_batch},
        )
        return run_shadow(output, options, as_json=as_json)

    app.command(shadow, help=HELP, help_epilogue=epilogue(EXAMPLES))
