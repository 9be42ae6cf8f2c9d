"""``penstock state``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from cyclopts import App, Parameter

from penstock.cli.commands.shared import STATE, AsJson, JobName, State, epilogue
from penstock.cli.output import Output

HELP: Final = """\
State of steps as tables: what there is, and SQL over it, of a running job or a dead one."""

SHOW: Final = """\
Show which steps hold state at a checkpoint, and how much. Reads the log alone; no Spark."""

QUERY: Final = """\
Query the state of a step: one row for each key and open window, aggregates finished.

The table is named as the step (in backticks, or with _ for what no name can have). Spark runs the query in this
process, which takes some seconds to start; nothing is claimed or changed, and the job may run."""

EXAMPLES: Final = """\
Examples:
  penstock state show orders --state ./state
  penstock state query orders totals "SELECT * FROM totals ORDER BY n DESC" --state ./state"""

SHOW_EXAMPLES: Final = """\
Examples:
  penstock state show orders --state ./state
  penstock state show orders --at before-v2 --json | jq -r '.steps[] | select(.uid == "totals") | .files[].path'"""

QUERY_EXAMPLES: Final = """\
Examples:
  penstock state query orders totals --state ./state
  penstock state query orders totals "SELECT user, n FROM totals ORDER BY n DESC LIMIT 10"
  penstock state query orders totals --at before-v2 --format csv > totals.csv
  penstock state query orders totals --diff 41 42
  penstock state query orders totals --format parquet --to totals.parquet"""

At: TypeAlias = Annotated[
    str | None, Parameter(help="A checkpoint's number or a savepoint's name; what the next start continues if absent.")
]


def add(app: App, output: Output) -> None:
    """Add ``state`` with ``show`` and ``query``."""
    family = App(name="state", help=HELP, help_epilogue=epilogue(EXAMPLES), version_flags=[])
    app.command(family)

    def show(job: JobName, /, *, at: At = None, state: State = STATE, as_json: AsJson = False) -> int:
        from penstock.cli.state_show import show_state

        return show_state(output, job=job, state=state, at=at, as_json=as_json)

    def query(  # noqa: PLR0913 - the options of the command
        job: JobName,
        uid: Annotated[str, Parameter(help="The step.")],
        sql: Annotated[str | None, Parameter(help="A SELECT; all rows, sorted, if absent.")] = None,
        /,
        *,
        at: At = None,
        diff: Annotated[
            tuple[str, str] | None,
            Parameter(negative="", help="Two checkpoints: rows that came, went or changed in between, with _change."),
        ] = None,
        format: Annotated[Literal["table", "csv", "json", "parquet"], Parameter(help="Of the result.")] = "table",
        limit: Annotated[
            int | None, Parameter(help="Most rows; 0 is all. 20 in a table, all in other formats, if absent.")
        ] = None,
        to: Annotated[str | None, Parameter(help="File to write to, instead of stdout; parquet needs one.")] = None,
        state: State = STATE,
    ) -> int:
        from penstock.cli.state_query import Question, query_state

        question = Question(job=job, uid=uid, sql=sql, at=at, diff=diff, format=format, limit=limit, to=to, state=state)
        return query_state(output, question)

    family.command(show, help=SHOW, help_epilogue=epilogue(SHOW_EXAMPLES))
    family.command(query, help=QUERY, help_epilogue=epilogue(QUERY_EXAMPLES))
