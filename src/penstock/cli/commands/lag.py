"""``penstock lag``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from penstock.cli.commands.shared import STATE, AsJson, JobName, State, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Show how far each source of a job is behind, partition by partition, and which one holds a watermark back.

With --max-lag, ends with 4 if a source is further behind than that, or if that cannot be known: the job does not
run, or has not told its numbers for a minute."""

EXAMPLES: Final = """\
Examples:
  penstock lag orders --state ./state
  penstock lag orders --state ./state --max-lag 10000   a health check: rows
  penstock lag orders --state ./state --max-lag 30s     or time"""


def add(app: App, output: Output) -> None:
    """Add ``lag``."""

    def lag(
        job: JobName,
        /,
        *,
        state: State = STATE,
        max_lag: Annotated[str | None, Parameter(help="Rows, as in 10000, or a time, as in 30s.")] = None,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli.lag import show_lag

        return show_lag(output, job=job, state=state, max_lag=max_lag, as_json=as_json)

    app.command(lag, help=HELP, help_epilogue=epilogue(EXAMPLES))
