"""``penstock demo``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from penstock.cli.commands.shared import Flag, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Kill a pipeline with -9 half-way, start it again, and count every row of its output.

Makes orders as JSON files, sums them by user and minute into exactly-once files, and reads the result
without penstock. Ends with 1 if a row is lost or doubled."""

EXAMPLES: Final = """\
Examples:
  penstock demo
  penstock demo --rows 500000 --dir ./try --keep       look at the pipeline, its state and its output"""


def add(app: App, output: Output) -> None:
    """Add ``demo``."""

    def demo(
        *,
        rows: Annotated[int, Parameter(help="Orders to make.")] = 200_000,
        dir: Annotated[str | None, Parameter(help="Folder to work in; a temporary one by default.")] = None,
        keep: Annotated[bool, Flag, Parameter(help="Leave everything there to look at.")] = False,
    ) -> int:
        from penstock.cli.demo import run_demo

        return run_demo(output, rows=rows, folder=dir, keep=keep)

    app.command(demo, help=HELP, help_epilogue=epilogue(EXAMPLES))
