"""``penstock --install-completion``: its words and options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import App, Parameter

from penstock.cli.commands.shared import epilogue
from penstock.cli.exits import ExitCode, UsageError
from penstock.cli.output import Output

HELP: Final = """\
Let the shell complete commands, options and names of jobs when Tab is pressed."""

EXAMPLES: Final = """\
Examples:
  penstock --install-completion                        for the shell that this is typed into
  penstock --install-completion --shell fish
  penstock --install-completion --shell bash --output ./penstock.bash   only the script; source it yourself"""


def add(app: App, output: Output) -> None:
    """Add ``--install-completion``."""

    def install_completion(
        *,
        shell: Annotated[Literal["bash", "zsh", "fish"] | None, Parameter(help="This one, if not given.")] = None,
        output_file: Annotated[
            Path | None, Parameter(name="--output", help="Write the script there; no start-up file is changed.")
        ] = None,
    ) -> int:
        from cyclopts.completion import ShellDetectionError, detect_shell

        try:
            chosen = shell or detect_shell()
        except ShellDetectionError:
            msg = "cannot tell which shell this is: add --shell bash, --shell zsh or --shell fish"
            raise UsageError(msg) from None
        path = app.install_completion(shell=chosen, output=output_file, add_to_startup=output_file is None)
        output.note(f"completion for {chosen} is in {path}; it counts from the next shell on")
        return ExitCode.ENDED

    app.command(install_completion, name="--install-completion", help=HELP, help_epilogue=epilogue(EXAMPLES))
