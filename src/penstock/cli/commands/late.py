"""``penstock late``: its words and options."""

from __future__ import annotations

from typing import Final

from cyclopts import App

from penstock.cli.commands.shared import STATE, AsJson, JobName, State, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Show the late and bad rows of a job's last run: how many, by step and cause, and where they are written."""

EXAMPLES: Final = """\
Examples:
  penstock late orders --state ./state
  penstock late orders --state ./state --json | jq '.put_aside[] | select(.kind == "late").rows'"""


def add(app: App, output: Output) -> None:
    """Add ``late``."""

    def late(job: JobName, /, *, state: State = STATE, as_json: AsJson = False) -> int:
        from penstock.cli.late import show_late

        return show_late(output, job=job, state=state, as_json=as_json)

    app.command(late, help=HELP, help_epilogue=epilogue(EXAMPLES))
