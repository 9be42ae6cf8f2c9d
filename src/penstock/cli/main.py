"""The application: commands registered by name, exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final, Literal, NoReturn

from cyclopts import App, CycloptsError, Parameter
from cyclopts.help import PlainFormatter

from penstock.cli import (
    checkpoints,
    deadletter,
    demo,
    doctor,
    plan,
    project,
    run,
    savepoint,
    shadow,
    state,
    status,
    stop,
    storage,
)
from penstock.cli.options import Add, epilogue
from penstock.cli.output import ExitCode, Output, UsageError
from penstock.errors import PenstockError

# ----------------------------------------------------------------------------------------------------
# ``penstock --install-completion``: its words and options.

COMPLETION_HELP: Final = """\
Let the shell complete commands, options and names of jobs when Tab is pressed."""
COMPLETION_EXAMPLES: Final = """\
Examples:
  penstock --install-completion                        for the shell that this is typed into
  penstock --install-completion --shell fish
  penstock --install-completion --shell bash --output ./penstock.bash   only the script; source it yourself"""


def add_completion(app: App, output: Output) -> None:
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

    app.command(
        install_completion,
        name="--install-completion",
        help=COMPLETION_HELP,
        help_epilogue=epilogue(COMPLETION_EXAMPLES),
    )


# ----------------------------------------------------------------------------------------------------
# The command line: what commands there are, and the exit code. Does no work itself.

HELP: Final = """\
Stream processing on Spark: pipelines with named state, checkpoints and exactly-once sinks."""
EXAMPLES: Final = """\
Examples:
  penstock demo                                        kill a pipeline, restart it, count its rows
  penstock init orders                                 a first pipeline with its tests, in a new folder
  penstock doctor                                      does this machine have what a job needs?
  penstock run shop:orders --state ./state             run the pipeline `orders` of shop.py
  penstock run shop:orders --until caught-up           read what is there now, publish, end
  penstock plan shop:orders --state ./state            what a start would do
  penstock checkpoints orders --state ./state          what its log says, running or dead"""
COMMANDS: Final[tuple[Add, ...]] = (
    run.add_run,
    plan.add_plan,
    demo.add_demo,
    checkpoints.add_checkpoints,
    savepoint.add_savepoint,
    stop.add_stop,
    checkpoints.add_checkpoint,
    status.add_list_jobs,
    status.add_status,
    status.add_lag,
    status.add_late,
    storage.add_verify,
    storage.add_gc,
    shadow.add_shadow,
    doctor.add_doctor,
    project.add_init,
    project.add_test,
    add_completion,
    state.add_state,
    deadletter.add_deadletter,
)
"""In the order of ``--help``, which sorts them."""


def make_app(output: Output) -> App:
    """All commands, writing to ``output`` and returning exit codes."""
    app = App(
        name="penstock",
        help=HELP,
        help_epilogue=epilogue(EXAMPLES),
        help_format="plaintext",
        help_formatter=PlainFormatter(),
        version=f"penstock {version('penstock')}",
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
        console=output.out,
        error_console=output.err,
    )
    for add in COMMANDS:
        add(app, output)
    return app


def dispatch(arguments: Sequence[str], output: Output) -> int:
    """Run one command line; the exit code. Never raises for what a user can do wrong."""
    app = make_app(output)
    try:
        code = app(list(arguments))
    except CycloptsError as error:
        return output.error(UsageError(f"{error}".strip() + f" See penstock {_command(arguments, app)}--help."))
    except (PenstockError, KeyboardInterrupt) as error:
        return output.error(error)
    except BrokenPipeError:  # whoever read this has seen enough, as in `| head`
        _leave_quietly()
        return ExitCode.ENDED
    except Exception as error:  # the last line of defence: no traceback unless asked for
        return output.error(error)
    return int(code or ExitCode.ENDED)


def _leave_quietly() -> None:
    """Let what is still buffered for a reader that is gone go nowhere, or Python would complain at its exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command(arguments: Sequence[str], app: App) -> str:
    """The command that was meant, and its subcommand, as far as they are known."""
    known = []
    for word in arguments[:2]:
        if word.startswith("-") or word not in set(app):
            break
        app = app[word]
        known.append(word)
    return "".join(f"{word} " for word in known)


def main() -> NoReturn:
    """The entry point of ``penstock`` and of ``python -m penstock``."""
    arguments = sys.argv[1:]
    traceback = "--traceback" in arguments
    code = dispatch([each for each in arguments if each != "--traceback"], Output(traceback=traceback))
    try:
        sys.stdout.flush()
    except OSError:
        _leave_quietly()
    sys.exit(code)
