"""``penstock init``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from penstock.cli.commands.shared import epilogue
from penstock.cli.output import Output

HELP: Final = """\
Make a first project: a pipeline, its tests with crashes in them, and sample data, in five files.

Needs no broker. Nothing that is there is overwritten."""

EXAMPLES: Final = """\
Examples:
  penstock init                                        in the current folder
  penstock init shop --name sales                      in shop/: sales.py, test_sales.py and so on"""


def add(app: App, output: Output) -> None:
    """Add ``init``."""

    def init(
        folder: Annotated[str, Parameter(help="Where to; made if absent.")] = ".",
        /,
        *,
        name: Annotated[str, Parameter(help="Of the pipeline and its module.")] = "orders",
    ) -> int:
        from penstock.cli.init import run_init

        return run_init(output, folder=folder, name=name)

    app.command(init, help=HELP, help_epilogue=epilogue(EXAMPLES))
