"""``penstock doctor``: its words and options."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from penstock.cli.commands.shared import STATE, AsJson, State, epilogue
from penstock.cli.output import Output

HELP: Final = """\
Look whether this machine has what a job needs: Java, Spark, disk, brokers; each lack with its remedy.

Ends with 1 if something fails, with 0 if there are only warnings. Writes nothing that stays."""

EXAMPLES: Final = """\
Examples:
  penstock doctor                                      about ten seconds, most of them to start Spark
  penstock doctor --no-spark --json                    for scripts, a second
  penstock doctor shop:orders --state /data/state      the pipeline, its brokers, and its session if it makes one
  penstock doctor --servers localhost:9092             does Kafka answer?"""


def add(app: App, output: Output) -> None:
    """Add ``doctor``."""

    def doctor(
        pipeline: Annotated[str | None, Parameter(help="module:pipeline, whose sources are looked at too.")] = None,
        /,
        *,
        state: State = STATE,
        servers: Annotated[str | None, Parameter(help="Kafka brokers, host:port, several with commas.")] = None,
        spark: Annotated[
            bool, Parameter(name="--spark", negative="--no-spark", help="Make a session and run a job in it.")
        ] = True,
        as_json: AsJson = False,
    ) -> int:
        from penstock.cli.doctor import run_doctor

        return run_doctor(output, pipeline=pipeline, state=state, servers=servers, spark=spark, as_json=as_json)

    app.command(doctor, help=HELP, help_epilogue=epilogue(EXAMPLES))
