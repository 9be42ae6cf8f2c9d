"""``penstock checkpoint``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from penstock.cli.commands.shared import STATE, AsJson, JobName, State, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Show one checkpoint of a job in full: positions, layers, watermarks, outputs, and what it condemned."""

EXAMPLES: Final = """\
Examples:
  penstock checkpoint orders 42 --state ./state
  penstock checkpoint orders before-v2 --state ./state --json | jq '.steps[].position'"""


def add(app: App, output: Output) -> None:
    """Add ``checkpoint``."""

    def checkpoint(
        job: JobName,
        which: Annotated[str, Parameter(help="Its number, or the name of a savepoint.")],
        /,
        *,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli.checkpoint import show_checkpoint

        return show_checkpoint(output, job=job, which=which, state=state, as_json=as_json)

    app.command(checkpoint, help=HELP, help_epilogue=epilogue(EXAMPLES))
