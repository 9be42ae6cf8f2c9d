"""``penstock checkpoints``: its words and options."""

from __future__ import annotations

from typing import Final

from cyclopts import App

from penstock.cli.commands.shared import STATE, AsJson, JobName, State, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Show the checkpoints of a job from its state directory alone, whether it runs or not."""

EXAMPLES: Final = """\
Examples:
  penstock checkpoints orders --state ./state
  penstock checkpoints orders --state ./state --json | jq .restore_point"""


def add(app: App, output: Output) -> None:
    """Add ``checkpoints``."""

    def checkpoints(job: JobName, /, *, state: State = STATE, as_json: AsJson = False) -> int:
        from penstock.cli.checkpoints import show_checkpoints

        return show_checkpoints(output, job=job, state=state, as_json=as_json)

    app.command(checkpoints, help=HELP, help_epilogue=epilogue(EXAMPLES))
