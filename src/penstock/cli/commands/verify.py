"""``penstock verify``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from penstock.cli.commands.shared import STATE, AsJson, Flag, JobName, State, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Check that a job can be restored and its output published, whether it runs or not. Changes nothing.

Reads the log and every file that a restorable checkpoint or an unpublished output needs: existence, length,
SHA-256, the chain of the log. Ends with 1 if something is broken, naming what that breaks and what helps."""

EXAMPLES: Final = """\
Examples:
  penstock verify orders --state ./state
  penstock verify orders --state ./state --quick       existence and lengths only, seconds for any state
  penstock verify orders --json | jq .broken"""


def add(app: App, output: Output) -> None:
    """Add ``verify``."""

    def verify(
        job: JobName,
        /,
        *,
        state: State = STATE,
        quick: Annotated[bool, Flag, Parameter(help="Existence and lengths only; no content is read.")] = False,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli.verify import show_verdict

        return show_verdict(output, job=job, state=state, quick=quick, as_json=as_json)

    app.command(verify, help=HELP, help_epilogue=epilogue(EXAMPLES))
