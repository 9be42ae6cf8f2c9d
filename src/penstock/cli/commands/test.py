"""``penstock test``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from penstock.cli.commands.shared import epilogue
from penstock.cli.output import Output

HELP: Final = """\
Run the tests of the project in this folder with pytest, and pass arguments on to it."""

EXAMPLES: Final = """\
Examples:
  penstock test
  penstock test -k dies -x                             what pytest takes
  penstock test -- --help                              what that is"""


def add(app: App, output: Output) -> None:
    """Add ``test``."""

    def test(
        *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, help="For pytest, as they are.")],
    ) -> int:
        from penstock.cli.test import run_tests

        return run_tests(output, arguments)

    app.command(test, help=HELP, help_epilogue=epilogue(EXAMPLES))
