"""The command line: what commands there are, what they say of themselves, and the exit code. Does no work itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Final, Literal, NoReturn

from cyclopts import App, CycloptsError, Parameter
from cyclopts.help import PlainFormatter

from penstock.cli.exits import ExitCode, UsageError, table
from penstock.cli.output import Output
from penstock.errors import PenstockError

STATE: Final = ".penstock"

HELP: Final = """\
Stream processing on Spark: pipelines with named state, checkpoints and exactly-once sinks."""

HELP_EXAMPLES: Final = """\
Examples:
  penstock demo                                        kill a pipeline, restart it, count its rows
  penstock run shop:orders --state ./state             run the pipeline `orders` of shop.py
  penstock run shop:orders --until caught-up           read what is there now, publish, end
  penstock checkpoints orders --state ./state          what its log says, running or dead"""

RUN_HELP: Final = """\
Run a pipeline: continue its newest complete checkpoint, or start empty.

Ctrl-C or SIGTERM once: a last checkpoint, its output published, exit 0. Twice: end at once, exit 130.
A parent process watches the job and starts it again when the engine dies."""

RUN_EXAMPLES: Final = """\
Examples:
  penstock run shop:orders                             state in .penstock, all cores of this machine
  penstock run shop:orders --state s --checkpoint-every 1s
  penstock run shop:orders --until caught-up           like a batch job, again and again, only new rows
  penstock run shop:orders --fresh                     begin empty beside the state that is there
  penstock run shop:orders --master spark://host:7077  on a cluster"""

CHECKPOINTS_HELP: Final = """\
Show the checkpoints of a job from its state directory alone, whether it runs or not."""

CHECKPOINTS_EXAMPLES: Final = """\
Examples:
  penstock checkpoints orders --state ./state
  penstock checkpoints orders --state ./state --json | jq .restore_point"""

DEMO_HELP: Final = """\
Kill a pipeline with -9 half-way, start it again, and count every row of its output.

Makes orders as JSON files, sums them by user and minute into exactly-once files, and reads the result
without penstock. Ends with 1 if a row is lost or doubled."""

DEMO_EXAMPLES: Final = """\
Examples:
  penstock demo
  penstock demo --rows 500000 --dir ./try --keep       look at the pipeline, its state and its output"""

EPILOGUE: Final = f"""\
Every command takes --traceback: show all frames of an error.

Exit codes:
{table()}"""

Flag = Parameter(negative="", show_default=False)
State = Annotated[str, Parameter(help="Folder that holds the state of jobs.")]


def make_app(output: Output) -> App:
    """All commands, writing to ``output`` and returning exit codes."""
    app = App(
        name="penstock",
        help=HELP,
        help_epilogue=_epilogue(HELP_EXAMPLES),
        help_format="plaintext",
        help_formatter=PlainFormatter(),
        version=f"penstock {version('penstock')}",
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        console=output.out,
        error_console=output.err,
    )
    _add_run(app, output)
    _add_demo(app, output)
    _add_checkpoints(app, output)
    return app


def _epilogue(examples: str) -> str:
    return f"{examples}\n\n{EPILOGUE}"


def _add_run(app: App, output: Output) -> None:
    def run(  # noqa: PLR0913 - the options of the command
        pipeline: Annotated[str, Parameter(help="module:pipeline, also from the current folder.")],
        /,
        *,
        state: State = STATE,
        until: Annotated[
            Literal["stopped", "caught-up"], Parameter(help="caught-up ends when what is there now is read.")
        ] = "stopped",
        checkpoint_every: Annotated[str | None, Parameter(help="From trigger to trigger, such as 5s.")] = None,
        fresh: Annotated[bool, Flag, Parameter(help="Begin empty, beside the state that is there.")] = False,
        allow_non_restored_state: Annotated[
            bool, Flag, Parameter(help="Leave state unused whose step the pipeline no longer has.")
        ] = False,
        take_over: Annotated[bool, Flag, Parameter(help="Claim the job even if a living process has it.")] = False,
        stop_timeout: Annotated[str | None, Parameter(help="Most time for a stop; 8s by default.")] = None,
        max_rows_per_batch: Annotated[int | None, Parameter(help="Most rows of a batch.")] = None,
        retained: Annotated[int | None, Parameter(help="Complete checkpoints that stay restorable.")] = None,
        master: Annotated[str | None, Parameter(help="Spark master; all cores of this machine by default.")] = None,
        parent: Annotated[
            bool, Parameter(name="--parent", negative="--no-parent", help="Watch the job and start it again.")
        ] = True,
    ) -> int:
        from penstock.cli.run import RunOptions, run_as_child, run_as_parent

        options = RunOptions(
            pipeline=pipeline,
            state=state,
            until=until,
            fresh=fresh,
            allow_non_restored_state=allow_non_restored_state,
            take_over=take_over,
            master=master,
            settings={
                "checkpoint_every": checkpoint_every,
                "stop_timeout": stop_timeout,
                "max_rows_per_batch": max_rows_per_batch,
                "retained": retained,
            },
        )
        return run_as_parent(options, output) if parent else run_as_child(options, output)

    app.command(run, help=RUN_HELP, help_epilogue=_epilogue(RUN_EXAMPLES))


def _add_demo(app: App, output: Output) -> None:
    def demo(
        *,
        rows: Annotated[int, Parameter(help="Orders to make.")] = 200_000,
        dir: Annotated[str | None, Parameter(help="Folder to work in; a temporary one by default.")] = None,
        keep: Annotated[bool, Flag, Parameter(help="Leave everything there to look at.")] = False,
    ) -> int:
        from penstock.cli.demo import run_demo

        return run_demo(output, rows=rows, folder=dir, keep=keep)

    app.command(demo, help=DEMO_HELP, help_epilogue=_epilogue(DEMO_EXAMPLES))


def _add_checkpoints(app: App, output: Output) -> None:
    def checkpoints(
        job: Annotated[str, Parameter(help='Name of the job, as in @ps.pipeline("orders").')],
        /,
        *,
        state: State = STATE,
        json: Annotated[bool, Flag, Parameter(help="For scripts: one document with a versioned schema.")] = False,
    ) -> int:
        from penstock.cli.checkpoints import show_checkpoints

        return show_checkpoints(output, job=job, state=state, as_json=json)

    app.command(checkpoints, help=CHECKPOINTS_HELP, help_epilogue=_epilogue(CHECKPOINTS_EXAMPLES))


def dispatch(arguments: Sequence[str], output: Output) -> int:
    """Run one command line; the exit code. Never raises for what a user can do wrong."""
    try:
        code = make_app(output)(list(arguments))
    except CycloptsError as error:
        return output.error(UsageError(f"{error}".strip() + f" See penstock {_command(arguments)}--help."))
    except (PenstockError, KeyboardInterrupt) as error:
        return output.error(error)
    except Exception as error:  # the last line of defence: no traceback unless asked for
        return output.error(error)
    return int(code or ExitCode.ENDED)


def _command(arguments: Sequence[str]) -> str:
    return f"{arguments[0]} " if arguments and arguments[0] in {"run", "demo", "checkpoints"} else ""


def main() -> NoReturn:
    """The entry point of ``penstock`` and of ``python -m penstock``."""
    arguments = sys.argv[1:]
    traceback = "--traceback" in arguments
    sys.exit(dispatch([each for each in arguments if each != "--traceback"], Output(traceback=traceback)))
