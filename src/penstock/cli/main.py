"""The ``penstock`` application: all commands with their help, and how a command line is run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final, Literal, NoReturn

from cyclopts import App, ArgumentCollection, CycloptsError, Parameter
from cyclopts.help import PlainFormatter

from penstock.cli.output import CommandOutput, ExitCode, Output, UsageError, exit_code_table
from penstock.errors import PenstockError

# ---- the commands ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command, or a family of commands such as ``savepoint``, as ``--help`` shows it.

    Attributes:
        name: as it is typed: ``run``, or ``savepoint create`` for a command of a family.
        function: ``module:function`` to call, imported when the command is used; ``None`` for a family.
        help: a summary line; after an empty line, the details.
        examples: lines of the section "Examples" of its help.
    """

    name: str
    function: str | None = None
    help: str
    examples: str


HELP: Final = "Stream processing on Spark: pipelines with named state, checkpoints and exactly-once sinks."
EXAMPLES: Final = """\
  penstock demo                                        kill a pipeline, restart it, count its rows
  penstock init orders                                 a first pipeline with its tests, in a new folder
  penstock doctor                                      check that this machine has what a job needs
  penstock run shop:orders --state ./state             run the pipeline `orders` of shop.py
  penstock run shop:orders --until caught-up           read what is there now, publish, end
  penstock plan shop:orders --state ./state            what a start would do
  penstock checkpoints orders --state ./state          what its log says, running or dead"""
COMMANDS: Final = (
    Command(
        name="run",
        function="penstock.cli.run:run",
        help="""\
Run a pipeline: continue its newest complete checkpoint, or start empty.

Ctrl-C or SIGTERM once: a last checkpoint, its output published, exit 0. Twice: end at once, exit 130.
A parent process watches the job and starts it again when the engine dies.""",
        examples="""\
  penstock run shop:orders                             state in .penstock, all cores of this machine
  penstock run shop:orders --state s --checkpoint-every 1s
  penstock run shop:orders --until caught-up           like a batch job, again and again, only new rows
  penstock run shop:orders --fresh                     begin empty beside the state that is there
  penstock run shop:orders --from before-v2            go back to a savepoint, or a checkpoint's number
  penstock run shop:orders --from ./exports/orders     begin with a checkpoint that was exported there
  penstock run shop:orders --rename totals=sums        new code, in which the step totals is called sums
  penstock run shop:orders --driver-memory 4g --conf spark.sql.ansi.enabled=false
  penstock run shop:orders --master spark://host:7077 --py-files dist/shop.zip
The last line runs on a cluster, with modules for its workers; the pipeline may be in the zip.
What a project always needs goes into [tool.penstock] of pyproject.toml: state = "./state", master, conf and so on.""",
    ),
    Command(
        name="plan",
        function="penstock.cli.plan:plan_start",
        help="""\
Say what a start of a pipeline would do, and change nothing.

It shows what is restored, what becomes of each step's state, where sources go on and what waits for them, what is
published before they start, and what readers see again. Ends with 0 if nothing changes, with 2 if something does. If a
start would be refused, it prints the same message and ends with the same code, which is 65 in most cases.""",
        examples="""\
  penstock plan shop:orders                            what `penstock run shop:orders` would do
  penstock plan shop:orders --from before-v2           going back to a savepoint: rows that readers see again
  penstock plan shop:orders --from ./exports/orders    beginning with a checkpoint that was exported there
  penstock plan shop:orders --out plan.json && penstock run shop:orders --plan plan.json
  penstock plan shop:orders --json | jq .summary""",
    ),
    Command(
        name="demo",
        function="penstock.cli.demo:demo",
        help="""\
Kill a pipeline with -9 half-way, start it again, and count every row of its output.

Makes orders as JSON files, sums them by user and minute into exactly-once files, and reads the result
without penstock. Ends with 1 if a row is lost or doubled.""",
        examples="""\
  penstock demo
  penstock demo --rows 500000 --dir ./try --keep       look at the pipeline, its state and its output""",
    ),
    Command(
        name="checkpoints",
        function="penstock.cli.checkpoints:checkpoints",
        help="Show the checkpoints of a job from its state directory alone, whether it runs or not.",
        examples="""\
  penstock checkpoints orders --state ./state
  penstock checkpoints orders --state ./state --json | jq .restore_point""",
    ),
    Command(
        name="savepoint",
        help="""\
Give checkpoints names that they keep: of a running job or a stopped one.

A savepoint is a checkpoint with a name: it costs no copy, and is never cleaned up while it has the name.""",
        examples="""\
  penstock savepoint create orders before-v2           a new checkpoint of a running job, the newest of a stopped one
  penstock savepoint list orders
  penstock savepoint export orders before-v2 ./exports/orders
  penstock run shop:orders --from before-v2            go back to it""",
    ),
    Command(
        name="savepoint create",
        function="penstock.cli.savepoint:create",
        help="""\
Take a checkpoint of a running job now, and give it a name; of a stopped job name the newest.

Prints the checkpoint's number.""",
        examples="""\
  penstock savepoint create orders before-v2 --state ./state
  penstock savepoint create orders good --at 41        an older checkpoint that can still be restored""",
    ),
    Command(
        name="savepoint drop",
        function="penstock.cli.savepoint:drop",
        help="Take a savepoint's name away; its checkpoint goes once newer ones take its place.",
        examples="""\
  penstock savepoint drop orders before-v2
  penstock savepoint drop orders before-v2 --yes       without being asked, for scripts""",
    ),
    Command(
        name="savepoint list",
        function="penstock.cli.savepoint:list_savepoints",
        help="Show all savepoints of a job, from its directory alone.",
        examples="""\
  penstock savepoint list orders
  penstock savepoint list orders --json | jq -r '.savepoints[].savepoint'""",
    ),
    Command(
        name="savepoint show",
        function="penstock.cli.savepoint:show",
        help="Show one savepoint.",
        examples="""\
  penstock savepoint show orders before-v2
  penstock checkpoint orders before-v2                 all that it holds""",
    ),
    Command(
        name="savepoint export",
        function="penstock.cli.savepoint:export",
        help="""\
Copy a savepoint, or any checkpoint, into a folder of its own.

The folder has all that a start needs, with checksums, and can be moved: penstock run shop:orders --from FOLDER.
A running job goes on meanwhile. Output that is not published yet is not copied; it is the job's own.""",
        examples="""\
  penstock savepoint export orders before-v2 ./exports/orders
  penstock savepoint export orders 41 /backup/orders-41 --wait 10s --json""",
    ),
    Command(
        name="stop",
        function="penstock.cli.stop:stop",
        help="""\
Stop a running job in order: a last checkpoint, its output published, the process ended.

Prints the last checkpoint's number. With --savepoint it gets a name; if it cannot have it, the job goes on.""",
        examples="""\
  penstock stop orders --state ./state
  penstock stop orders --savepoint before-v2           then deploy, and run: nothing lost, nothing twice
  penstock stop orders --drain                         the last stop: no window stays open, nothing is read after it
  penstock stop orders --patience 30s                  end without the last checkpoint if it takes longer""",
    ),
    Command(
        name="settle",
        function="penstock.cli.stop:settle",
        help="""\
Publish what a dead job left open, without starting it, and say in its log that it is at rest.

A start does the same. Needs neither the pipeline nor Spark.""",
        examples="""\
  penstock settle orders --state ./state""",
    ),
    Command(
        name="rewind",
        function="penstock.cli.stop:rewind",
        help="""\
Set where the next start of a stopped job begins: an older checkpoint, a savepoint, or empty state.

What is open is published first. Rows that are read again are published again, under new checkpoints: it says whose
readers will see which. Checkpoints that are left behind stay restorable, so a rewind can be taken back by another.""",
        examples="""\
  penstock rewind orders before-v2                     asks, having said what it means
  penstock rewind orders 41 --dry-run                  only says it
  penstock rewind orders 41 --discard-unpublished      what is not published yet never will be
  penstock rewind orders --fresh --yes                 to empty state, without being asked""",
    ),
    Command(
        name="checkpoint",
        function="penstock.cli.checkpoints:checkpoint",
        help="Show one checkpoint of a job in full: positions, layers, watermarks, outputs, and what it condemned.",
        examples="""\
  penstock checkpoint orders 42 --state ./state
  penstock checkpoint orders before-v2 --state ./state --json | jq '.steps[].position'""",
    ),
    Command(
        name="list",
        function="penstock.cli.status:list_jobs",
        help="List all jobs that have state in a folder: running, stopped in order, or dead.",
        examples="""\
  penstock list --state ./state
  penstock list --state ./state --json | jq '.jobs[] | select(.is == "dead").job'""",
    ),
    Command(
        name="status",
        function="penstock.cli.status:status",
        help="""\
Show one page about a job: who runs it, its checkpoints, rows, lag, watermarks, failures, size of state.

What comes from the log is current. The numbers of a run are the last that it wrote: about a second old while it runs.
Those of a dead job stay, and are shown with their age.""",
        examples="""\
  penstock status orders --state ./state
  penstock status orders --state ./state --json | jq '.run.sinks[].rows_written'""",
    ),
    Command(
        name="lag",
        function="penstock.cli.status:lag",
        help="""\
Show how far each source of a job is behind, partition by partition, and which one holds a watermark back.

With --max-lag, ends with 4 if a source is further behind than that, or if that cannot be known: the job does not
run, or has written no numbers for a minute.""",
        examples="""\
  penstock lag orders --state ./state
  penstock lag orders --state ./state --max-lag 10000   a health check: rows
  penstock lag orders --state ./state --max-lag 30s     or time""",
    ),
    Command(
        name="late",
        function="penstock.cli.status:late",
        help="""\
Show the late and bad rows of a job's last run: how many, by step and cause, and where they are written.""",
        examples="""\
  penstock late orders --state ./state
  penstock late orders --state ./state --json | jq '.put_aside[] | select(.kind == "late").rows'""",
    ),
    Command(
        name="verify",
        function="penstock.cli.storage:verify",
        help="""\
Check that a job can be restored and its output published, whether it runs or not. Changes nothing.

Reads the log and every file that a restorable checkpoint or an unpublished output needs: existence, length,
SHA-256, the chain of the log. Ends with 1 if something is broken, naming what that breaks and what helps.""",
        examples="""\
  penstock verify orders --state ./state
  penstock verify orders --state ./state --quick       existence and lengths only, seconds for any state
  penstock verify orders --json | jq .broken
  penstock verify ./exports/orders                     an exported savepoint""",
    ),
    Command(
        name="gc",
        function="penstock.cli.storage:gc",
        help="""\
Show what needs each file of a job, or delete the files of a stopped job that nothing needs.

A running job cleans up by itself, after each checkpoint. Of a stopped job, files that are condemned and files that dead
generations left behind are deleted, each after an entry in the log names it.""",
        examples="""\
  penstock gc orders --state ./state --dry-run         what needs each file, and sums; changes nothing
  penstock gc orders --state ./state --yes             for scripts: do not ask""",
    ),
    Command(
        name="skip",
        function="penstock.cli.storage:skip",
        help="""\
Go on without a block of received rows that is missing or damaged, in a job that does not run.

Its rows were acknowledged, and are lost: put the file back from a copy if there is one. The log records what was
done. A block that can be read is not skipped.""",
        examples="""\
  penstock verify orders                               names the blocks that cannot be read
  penstock skip orders wal/numbers/7/00000000000000000003.block""",
    ),
    Command(
        name="import",
        help="Begin where another system stands: its positions become the start of a job.",
        examples="""\
  penstock import kcl orders-app --out start.json""",
    ),
    Command(
        name="import kcl",
        function="penstock.cli.kinesis:import_kcl",
        help="""\
Read how far a KCL application has processed a Kinesis stream, as the start of a job.

The lease table is only read. Stop the application first: while a worker renews a lease, the import is refused, since
what is processed meanwhile would be processed twice. The name of a worker in a lease proves nothing, so the table is
read again after two failover times. A job with a checkpoint does not use the start any more.""",
        examples="""\
  penstock import kcl orders-app                       only says where each shard would begin
  penstock import kcl orders-app --out start.json      then start=ps.kinesis.imported("start.json")
  penstock import kcl orders-app --at 2026-01-31T00:00:00Z --out start.json
  penstock import kcl apps --stream 123456789012:orders:1700000000 --region eu-central-1
The third line is for leases that say LATEST or AT_TIMESTAMP, which are no places.""",
    ),
    Command(
        name="shadow",
        function="penstock.cli.shadow:shadow",
        help="""\
Run new code on a copy of a savepoint, its sinks muted into a folder, and compare with what the old code writes.

Nothing outside is changed: sources are only read, and the real job may run meanwhile. Both codes read up
to the same point. Ends with 0 if every sink got the same rows, with 2 if not.""",
        examples="""\
  penstock shadow shop_v2:orders --against shop:orders --from before-v2 --key totals-out=user,window_start
  penstock shadow shop_v2:orders --from ./exports/orders --out ./tried         count what the new code writes""",
    ),
    Command(
        name="doctor",
        function="penstock.cli.doctor:doctor",
        help="""\
Check that this machine has what a job needs: Java, Spark, disk, brokers. Each problem comes with its remedy.

Ends with 1 if something fails, with 0 if there are only warnings. Writes nothing that stays, but with
--warm an archive of Spark's classes in the user's cache folder, with which every later session starts sooner.""",
        examples="""\
  penstock doctor                                      about ten seconds, most of them to start Spark
  penstock doctor --no-spark --json                    for scripts, a second
  penstock doctor shop:orders --state /data/state      the pipeline too: its folders, its brokers, its session
  penstock doctor --servers localhost:9092             whether Kafka answers
  penstock doctor --lease-table orders-app             credentials, the table of a KCL application, and its workers
  penstock doctor --master spark://host:7077           whether a session comes up there
  penstock doctor --warm --no-spark                    when an image is built: half a minute, 180 MB""",
    ),
    Command(
        name="init",
        function="penstock.cli.project:init",
        help="""\
Make a first project: a pipeline, its tests with crashes in them, and sample data, in five files.

Needs no broker. Nothing that is there is overwritten.""",
        examples="""\
  penstock init                                        in the current folder
  penstock init shop --name sales                      in shop/: sales.py, test_sales.py and so on
  penstock init hook --template webhook                one that takes rows by POST""",
    ),
    Command(
        name="test",
        function="penstock.cli.project:run_tests",
        help="Run the tests of the project in this folder with pytest, and pass arguments on to it.",
        examples="""\
  penstock test
  penstock test -k dies -x                             what pytest takes
  penstock test -- --help                              all that pytest takes""",
    ),
    Command(
        name="--install-completion",
        function="penstock.cli.main:install_completion",
        help="Let the shell complete commands, options and names of jobs when Tab is pressed.",
        examples="""\
  penstock --install-completion                        for the shell that this is typed into
  penstock --install-completion --shell fish
  penstock --install-completion --shell bash --output ./penstock.bash   only the script; source it yourself""",
    ),
    Command(
        name="state",
        help="State of steps as tables: what there is, and SQL over it, of a running job or a dead one.",
        examples="""\
  penstock state show orders --state ./state
  penstock state query orders totals "SELECT * FROM totals ORDER BY n DESC" --state ./state""",
    ),
    Command(
        name="state show",
        function="penstock.cli.state:show",
        help="Show which steps hold state at a checkpoint, and how much. Reads the log alone; no Spark.",
        examples="""\
  penstock state show orders --state ./state
  penstock state show orders --at before-v2 --json | jq -r '.steps[] | select(.uid == "totals") | .files[].path'""",
    ),
    Command(
        name="state query",
        function="penstock.cli.state:query",
        help="""\
Query the state of a step: one row for each key and open window, aggregates finished.

The table is named as the step (in backticks, or with _ for what no name can have). Spark runs the query in this
process, which takes some seconds to start; nothing is claimed or changed, and the job may run.""",
        examples="""\
  penstock state query orders totals --state ./state
  penstock state query orders totals "SELECT user, n FROM totals ORDER BY n DESC LIMIT 10"
  penstock state query orders totals --at before-v2 --format csv > totals.csv
  penstock state query orders totals --diff 41 42
  penstock state query orders totals --format parquet --to totals.parquet""",
    ),
    Command(
        name="deadletter",
        help="Rows that a pipeline gave up on and kept, with why and where they came from: look, replay, drop.",
        examples="""\
  penstock deadletter list orders --state ./state
  penstock deadletter show orders bad-orders --limit 5
  penstock deadletter replay orders bad-orders --all""",
    ),
    Command(
        name="deadletter list",
        function="penstock.cli.deadletter:list_queues",
        help="List the dead letters of a job by cause and step, from its directory alone, whether it runs or not.",
        examples="""\
  penstock deadletter list orders --state ./state
  penstock deadletter list orders --json | jq '.dead_letters[].rows'""",
    ),
    Command(
        name="deadletter show",
        function="penstock.cli.deadletter:show",
        help="Show dead letters: why, where they came from, how often they failed, and their raw text; oldest first.",
        examples="""\
  penstock deadletter show orders                      of the only dead letters that there are
  penstock deadletter show orders bad-orders --limit 100 --json
  penstock deadletter show orders bad-orders --where "place.partition = 3 AND error LIKE '%double%'"
  penstock deadletter show orders totals-late --where "record.user = 'ann'"
--where takes SQL over cause, error, step, source, place, event_time, record, checkpoint and written. It starts
Spark, which takes some seconds.""",
    ),
    Command(
        name="deadletter replay",
        function="penstock.cli.deadletter:replay",
        help="""\
Have rows that could not be decoded read again by their source: at once if the job runs, else at its next start.

Change the pipeline first. Each row is read once, exactly-once, and takes the way of any other row of its source;
one that fails again is a dead letter again. What an earlier replay named is left out, unless --again.""",
        examples="""\
  penstock deadletter replay orders bad-orders --all
  penstock deadletter replay orders bad-orders --where "CAST(record.value AS STRING) LIKE '%\\"v\\":2%'"
  penstock deadletter replay orders bad-orders --all --again""",
    ),
    Command(
        name="deadletter drop",
        function="penstock.cli.deadletter:drop",
        help="""\
Delete files of dead letters that are older than a date; asks first. Those that a replay may yet need are left.""",
        examples="""\
  penstock deadletter drop orders bad-orders --before 2026-01-01 --dry-run
  penstock deadletter drop orders bad-orders --before 2026-01-01T12:00:00Z --yes""",
    ),
)
"""All commands; a family precedes its members. The message about an unknown command lists them in this order."""


# ---- the application -------------------------------------------------------------------------------------------------


def make_app(output: Output) -> App:
    """The application with all commands; it prints help to ``output``."""
    app = App(
        name="penstock",
        help=HELP,
        help_epilogue=_epilogue(EXAMPLES),
        help_format="plaintext",
        help_formatter=PlainFormatter(),
        version=f"penstock {version('penstock')}",
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
        config=_fill_from_project,
        console=output.out,
        error_console=output.err,
    )
    for command in COMMANDS:
        *family, name = command.name.split()
        parent = app[family[0]] if family else app
        epilogue = _epilogue(command.examples, command.name)
        if command.function is not None:
            parent.command(command.function, name=name, help=command.help, help_epilogue=epilogue)
        else:
            parent.command(
                App(
                    name=name,
                    help=command.help,
                    help_epilogue=epilogue,
                    help_format="plaintext",
                    help_formatter=PlainFormatter(),
                    version_flags=[],
                )
            )
    return app


def _fill_from_project(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give a command its options of ``[tool.penstock]``; help needs none of it."""
    from penstock.cli.project_file import fill_from_project

    fill_from_project(app, commands, arguments)


def _epilogue(examples: str, command: str | None = None) -> str:
    """The last part of a help text: examples, and what all commands have in common."""
    return f"""\
Examples:
{examples}

Every command takes --traceback: show all frames of an error.

Exit codes:
{exit_code_table(command)}"""


def install_completion(
    *,
    shell: Annotated[
        Literal["bash", "zsh", "fish"] | None, Parameter(help="The shell of this terminal by default.")
    ] = None,
    output_file: Annotated[
        Path | None, Parameter(name="--output", help="Write the script there; no start-up file is changed.")
    ] = None,
    output: CommandOutput,
) -> int:
    """Write the completion script for a shell, and have the shell load it unless ``output_file`` is given.

    Raises:
        UsageError: no shell is given, and the current one cannot be detected.
    """
    from cyclopts.completion import ShellDetectionError, detect_shell

    try:
        chosen = shell or detect_shell()
    except ShellDetectionError:
        msg = "The shell cannot be detected. Add --shell bash, --shell zsh or --shell fish."
        raise UsageError(msg) from None
    app = make_app(output)
    path = app.install_completion(shell=chosen, output=output_file, add_to_startup=output_file is None)
    output.note(f"completion for {chosen} is in {path}; it counts from the next shell on")
    return ExitCode.ENDED


# ---- one command line ------------------------------------------------------------------------------------------------


def dispatch(arguments: Sequence[str], output: Output) -> int:
    """Run one command line and return its exit code. Errors are printed, not raised."""
    app = make_app(output)
    try:
        command, bound, unparsed = app.parse_args(list(arguments))
        if "output" in unparsed:  # a command has this parameter; help and version do not
            bound.arguments["output"] = output
        code = command(*bound.args, **bound.kwargs)
    except CycloptsError as error:
        return output.error(UsageError(f"{error}".strip() + f" See penstock {_known_words(arguments, app)}--help."))
    except (PenstockError, KeyboardInterrupt) as error:
        return output.error(error)
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does
        _discard_stdout()
        return ExitCode.ENDED
    except Exception as error:  # unexpected: printed without a traceback, too, unless --traceback is given
        return output.error(error)
    return int(code or ExitCode.ENDED)


def _discard_stdout() -> None:
    """Discard what is still buffered for a closed pipe: Python would print an error about it at its exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _known_words(arguments: Sequence[str], app: App) -> str:
    """The command and subcommand that ``arguments`` begin with, as far as they exist, each followed by a space."""
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
    output = Output(traceback=traceback)
    code = dispatch([each for each in arguments if each != "--traceback"], output)
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard_stdout()
        if not isinstance(error, BrokenPipeError):
            output.unwritten = output.unwritten or error
    if output.unwritten is not None:
        why = output.unwritten.strerror or output.unwritten
        output.note(f"penstock: The result could not be written to stdout ({why}).", style="red")
        code = code or ExitCode.FAILED
    sys.exit(code)
