"""``penstock deadletter``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from cyclopts import App, Parameter
from cyclopts.help import PlainFormatter

from penstock.cli.commands.shared import STATE, AsJson, Flag, JobName, State, Yes, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Rows that a pipeline gave up on and kept, with why and where they came from: look, replay, drop."""

LIST: Final = """\
List the dead letters of a job by cause and step, from its directory alone, whether it runs or not."""

SHOW: Final = """\
Show dead letters: why, where they came from, how often they failed, and their raw text; oldest first."""

REPLAY: Final = """\
Have rows that could not be decoded read again by their source: at once if the job runs, else at its next start.

Change the pipeline first. Each row is read once, exactly-once, and takes the way of any other row of its source;
one that fails again is a dead letter again. What an earlier replay named is left out, unless --again."""

DROP: Final = """\
Delete files of dead letters that are older than a date; asks first. Those that a replay may yet need are left."""

EXAMPLES: Final = """\
Examples:
  penstock deadletter list orders --state ./state
  penstock deadletter show orders bad-orders --limit 5
  penstock deadletter replay orders bad-orders --all"""

LIST_EXAMPLES: Final = """\
Examples:
  penstock deadletter list orders --state ./state
  penstock deadletter list orders --json | jq '.dead_letters[].rows'"""

SHOW_EXAMPLES: Final = """\
Examples:
  penstock deadletter show orders                      of the only dead letters that there are
  penstock deadletter show orders bad-orders --limit 100 --json
  penstock deadletter show orders bad-orders --where "place.partition = 3 AND error LIKE '%double%'"
  penstock deadletter show orders totals-late --where "record.user = 'ann'"
--where takes SQL over cause, error, step, source, place, event_time, record, checkpoint and written. It starts
Spark, which takes some seconds."""

REPLAY_EXAMPLES: Final = """\
Examples:
  penstock deadletter replay orders bad-orders --all
  penstock deadletter replay orders bad-orders --where "CAST(record.value AS STRING) LIKE '%\\"v\\":2%'"
  penstock deadletter replay orders bad-orders --all --again"""

DROP_EXAMPLES: Final = """\
Examples:
  penstock deadletter drop orders bad-orders --before 2026-01-01 --dry-run
  penstock deadletter drop orders bad-orders --before 2026-01-01T12:00:00Z --yes"""

Uid: TypeAlias = Annotated[
    str | None, Parameter(help="Of stream.dead_letter(uid); may be left out if the job has one only.")
]
Where: TypeAlias = Annotated[str | None, Parameter(help="SQL: only dead letters for which it holds.")]


def add(app: App, output: Output) -> None:
    """Add ``deadletter`` with ``list``, ``show``, ``replay`` and ``drop``."""
    family = App(
        name="deadletter",
        help=HELP,
        help_epilogue=epilogue(EXAMPLES),
        help_format="plaintext",
        help_formatter=PlainFormatter(),
        version_flags=[],
    )
    app.command(family)
    _add_looking(family, output)
    _add_acting(family, output)


def _add_looking(family: App, output: Output) -> None:
    def list_letters(job: JobName, /, *, state: State = STATE, as_json: AsJson = False) -> int:
        from penstock.cli.deadletter import list_places

        return list_places(output, job=job, state=state, as_json=as_json)

    def show(
        job: JobName,
        uid: Uid = None,
        /,
        *,
        where: Where = None,
        limit: Annotated[int, Parameter(help="Most dead letters.")] = 20,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli.deadletter_show import show_letters

        return show_letters(output, job=job, uid=uid, where=where, limit=limit, state=state, as_json=as_json)

    family.command(list_letters, name="list", help=LIST, help_epilogue=epilogue(LIST_EXAMPLES))
    family.command(show, help=SHOW, help_epilogue=epilogue(SHOW_EXAMPLES))


def _add_acting(family: App, output: Output) -> None:
    def replay(
        job: JobName,
        uid: Uid = None,
        /,
        *,
        all: Annotated[bool, Flag, Parameter(help="All that were not replayed yet.")] = False,
        where: Where = None,
        again: Annotated[bool, Flag, Parameter(help="Also those that an earlier replay names.")] = False,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli.deadletter import replay_letters

        return replay_letters(
            output, job=job, uid=uid, everything=all, where=where, again=again, state=state, as_json=as_json
        )

    def drop(
        job: JobName,
        uid: Uid = None,
        /,
        *,
        before: Annotated[str, Parameter(help="A date, or a date and time; UTC unless it says otherwise.")],
        dry_run: Annotated[bool, Flag, Parameter(help="Only say what would go.")] = False,
        yes: Yes = False,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli.deadletter_drop import drop_letters

        return drop_letters(
            output, job=job, uid=uid, before=before, dry_run=dry_run, yes=yes, state=state, as_json=as_json
        )

    family.command(replay, help=REPLAY, help_epilogue=epilogue(REPLAY_EXAMPLES))
    family.command(drop, help=DROP, help_epilogue=epilogue(DROP_EXAMPLES))
