"""``penstock list``: its words and options."""

from __future__ import annotations

from typing import Final

from cyclopts import App

from penstock.cli.commands.shared import STATE, AsJson, State, epilogue
from penstock.cli.output import Output

HELP: Final = """\
List all jobs that have state in a folder: running, stopped in order, or dead."""

EXAMPLES: Final = """\
Examples:
  penstock list --state ./state
  penstock list --state ./state --json | jq '.jobs[] | select(.is == "dead").job'"""


def add(app: App, output: Output) -> None:
    """Add ``list``."""

    def list_jobs(*, state: State = STATE, as_json: AsJson = False) -> int:
        from penstock.cli.status import show_jobs

        return show_jobs(output, state=state, as_json=as_json)

    app.command(list_jobs, name="list", help=HELP, help_epilogue=epilogue(EXAMPLES))
