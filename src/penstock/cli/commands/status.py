"""``penstock status``: its words and options."""

from __future__ import annotations

from typing import Final

from cyclopts import App

from penstock.cli.commands.shared import STATE, AsJson, JobName, State, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Show one page about a job: who runs it, its checkpoints, rows, lag, watermarks, failures, size of state.

What the log says is always of now. Numbers of a run are those that it wrote last, about a second ago while it
runs; those of a dead job stay, and are shown with their age."""

EXAMPLES: Final = """\
Examples:
  penstock status orders --state ./state
  penstock status orders --state ./state --json | jq '.run.sinks[].rows_written'"""


def add(app: App, output: Output) -> None:
    """Add ``status``."""

    def status(job: JobName, /, *, state: State = STATE, as_json: AsJson = False) -> int:
        from penstock.cli.status import show_status

        return show_status(output, job=job, state=state, as_json=as_json)

    app.command(status, help=HELP, help_epilogue=epilogue(EXAMPLES))
