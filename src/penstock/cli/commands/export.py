"""``penstock savepoint export``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from penstock.cli.commands.shared import STATE, AsJson, JobName, State, epilogue, seconds_of
from penstock.cli.output import Output

HELP: Final = """\
Copy a savepoint, or any checkpoint, into a folder of its own.

The folder has all that a start needs, with checksums, and can be moved: penstock run shop:orders --from FOLDER.
A running job goes on meanwhile. Output that is not published yet is not copied; it is the job's own."""

EXAMPLES: Final = """\
Examples:
  penstock savepoint export orders before-v2 ./exports/orders
  penstock savepoint export orders 41 /backup/orders-41 --wait 10s --json"""


def add_export(app: App, output: Output) -> None:
    """Add ``export`` to the family of ``savepoint``."""

    def export(
        job: JobName,
        checkpoint: Annotated[str, Parameter(help="Name of the savepoint, or number of the checkpoint.")],
        folder: Annotated[str, Parameter(help="A folder that is not there yet, or empty.")],
        /,
        *,
        wait: Annotated[str, Parameter(help="For output that is not known to be published.")] = "0s",
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli.export import export as run_export

        seconds = seconds_of(wait, "--wait") or 0.0
        return run_export(
            output, job=job, checkpoint=checkpoint, folder=folder, state=state, wait=seconds, as_json=as_json
        )

    app.command(export, help=HELP, help_epilogue=epilogue(EXAMPLES))
