"""``penstock savepoint``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter
from cyclopts.help import PlainFormatter

from penstock.cli.commands.export import add_export
from penstock.cli.commands.shared import STATE, AsJson, JobName, State, Timeout, Yes, epilogue, seconds_of
from penstock.cli.output import Output

HELP: Final = """\
Give checkpoints names that they keep: of a running job or a stopped one.

A savepoint is a checkpoint with a name: it costs no copy, and is never cleaned up while it has the name."""

EXAMPLES: Final = """\
Examples:
  penstock savepoint create orders before-v2           a new checkpoint of a running job, the newest of a stopped one
  penstock savepoint list orders
  penstock savepoint export orders before-v2 ./exports/orders
  penstock run shop:orders --from before-v2            go back to it"""

CREATE_HELP: Final = """\
Take a checkpoint of a running job now, and give it a name; of a stopped job name the newest.

Prints the checkpoint's number."""

CREATE_EXAMPLES: Final = """\
Examples:
  penstock savepoint create orders before-v2 --state ./state
  penstock savepoint create orders good --at 41        an older checkpoint that can still be restored"""

LIST_HELP: Final = """\
Show all savepoints of a job, from its directory alone."""

LIST_EXAMPLES: Final = """\
Examples:
  penstock savepoint list orders
  penstock savepoint list orders --json | jq -r '.savepoints[].savepoint'"""

SHOW_HELP: Final = """\
Show one savepoint."""

SHOW_EXAMPLES: Final = """\
Examples:
  penstock savepoint show orders before-v2
  penstock checkpoint orders before-v2                 all that it holds"""

DROP_HELP: Final = """\
Take a savepoint's name away; its checkpoint goes once newer ones take its place."""

DROP_EXAMPLES: Final = """\
Examples:
  penstock savepoint drop orders before-v2
  penstock savepoint drop orders before-v2 --yes       without being asked, for scripts"""

Name = Annotated[str, Parameter(help="1 to 100 letters, digits, '.', '_' and '-', beginning with a letter.")]


def add(app: App, output: Output) -> None:
    """Add the family."""
    family = App(
        name="savepoint",
        help=HELP,
        help_epilogue=epilogue(EXAMPLES),
        help_format="plaintext",
        help_formatter=PlainFormatter(),
        version_flags=[],
    )
    _add_naming(family, output)
    _add_looking(family, output)
    add_export(family, output)
    app.command(family)


def _add_naming(family: App, output: Output) -> None:
    def create(
        job: JobName,
        name: Name,
        /,
        *,
        at: Annotated[str | None, Parameter(help="An older checkpoint: its number, or another name.")] = None,
        timeout: Timeout = None,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli import savepoint

        seconds = seconds_of(timeout)
        return savepoint.create(output, job=job, name=name, state=state, at=at, seconds=seconds, as_json=as_json)

    def drop(
        job: JobName,
        name: Name,
        /,
        *,
        yes: Yes = False,
        timeout: Timeout = None,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli import savepoint

        seconds = seconds_of(timeout)
        return savepoint.drop(output, job=job, name=name, state=state, yes=yes, seconds=seconds, as_json=as_json)

    family.command(create, help=CREATE_HELP, help_epilogue=epilogue(CREATE_EXAMPLES))
    family.command(drop, help=DROP_HELP, help_epilogue=epilogue(DROP_EXAMPLES))


def _add_looking(family: App, output: Output) -> None:
    def show_all(job: JobName, /, *, state: State = STATE, as_json: AsJson = False) -> int:
        from penstock.cli import savepoint

        return savepoint.show_all(output, job=job, state=state, as_json=as_json)

    def show(job: JobName, name: Name, /, *, state: State = STATE, as_json: AsJson = False) -> int:
        from penstock.cli import savepoint

        return savepoint.show_one(output, job=job, name=name, state=state, as_json=as_json)

    family.command(show_all, name="list", help=LIST_HELP, help_epilogue=epilogue(LIST_EXAMPLES))
    family.command(show, help=SHOW_HELP, help_epilogue=epilogue(SHOW_EXAMPLES))
