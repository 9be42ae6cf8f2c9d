"""``penstock gc``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from penstock.cli.commands.shared import STATE, AsJson, Flag, JobName, State, Yes, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Show whose each file of a job is, or delete those that nobody needs of a job that does not run.

A running job cleans up by itself, after each checkpoint. Of a stopped one, what is condemned and what dead
generations left behind is deleted, each file after an entry in the log says so."""

EXAMPLES: Final = """\
Examples:
  penstock gc orders --state ./state --dry-run         who owns each file, and sums; changes nothing
  penstock gc orders --state ./state --yes             for scripts: do not ask"""


def add(app: App, output: Output) -> None:
    """Add ``gc``."""

    def gc(
        job: JobName,
        /,
        *,
        state: State = STATE,
        dry_run: Annotated[bool, Flag, Parameter(help="Delete nothing, only show; also of a running job.")] = False,
        yes: Yes = False,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli.gc import run_gc

        return run_gc(output, job=job, state=state, dry_run=dry_run, yes=yes, as_json=as_json)

    app.command(gc, help=HELP, help_epilogue=epilogue(EXAMPLES))
