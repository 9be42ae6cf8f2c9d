"""``penstock verify``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from penstock.cli.commands.shared import STATE, AsJson, Flag, State, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Check that a job can be restored and its output published, whether it runs or not. Changes nothing.

Reads the log and every file that a restorable checkpoint or an unpublished output needs: existence, length,
SHA-256, the chain of the log. Ends with 1 if something is broken, naming what that breaks and what helps."""

EXAMPLES: Final = """\
Examples:
  penstock verify orders --state ./state
  penstock verify orders --state ./state --quick       existence and lengths only, seconds for any state
  penstock verify orders --json | jq .broken
  penstock verify ./exports/orders                     an exported savepoint"""


def add(app: App, output: Output) -> None:
    """Add ``verify``."""

    def verify(
        job: Annotated[str, Parameter(help="Name of the job, or the folder of an export, as in ./exports/orders.")],
        /,
        *,
        state: State = STATE,
        quick: Annotated[bool, Flag, Parameter(help="Existence and lengths only; no content is read.")] = False,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli.verify import show_folder, show_verdict

        if "/" in job:  # no job has such a name
            return show_folder(output, folder=job, quick=quick, as_json=as_json)
        return show_verdict(output, job=job, state=state, quick=quick, as_json=as_json)

    app.command(verify, help=HELP, help_epilogue=epilogue(EXAMPLES))
