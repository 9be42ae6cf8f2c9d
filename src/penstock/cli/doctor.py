"""Penstock doctor."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter
from rich.text import Text

from penstock.admin.doctor import DoctorOptions, examine
from penstock.admin.doctor_checks import Finding, Status, worst
from penstock.cli.options import STATE, AsJson, State, epilogue, load_pipeline
from penstock.cli.output import ExitCode, Output, ProgressLine
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.api.pipeline import PipelineDefinition


# ----------------------------------------------------------------------------------------------------
# ``penstock doctor``: its words and options.

DOCTOR_HELP: Final = """\
Look whether this machine has what a job needs: Java, Spark, disk, brokers; each lack with its remedy.

Ends with 1 if something fails, with 0 if there are only warnings. Writes nothing that stays."""
DOCTOR_EXAMPLES: Final = """\
Examples:
  penstock doctor                                      about ten seconds, most of them to start Spark
  penstock doctor --no-spark --json                    for scripts, a second
  penstock doctor shop:orders --state /data/state      the pipeline, its brokers, and its session if it makes one
  penstock doctor --servers localhost:9092             does Kafka answer?"""


def add_doctor(app: App, output: Output) -> None:
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

        return run_doctor(output, pipeline=pipeline, state=state, servers=servers, spark=spark, as_json=as_json)

    app.command(doctor, help=DOCTOR_HELP, help_epilogue=epilogue(DOCTOR_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# ``penstock doctor``: one line for each check as soon as it is known. Looks at nothing itself.

SCHEMA: Final = "penstock.doctor/1"
"""Of the JSON document: see docs/json.md."""
_STYLES: Final = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}
_INDENT: Final = " " * 6


def run_doctor(
    output: Output, *, pipeline: str | None, state: str, servers: str | None, spark: bool, as_json: bool
) -> int:
    """Look at everything, and print it; 1 if something fails."""
    question = DoctorOptions(
        state=state, servers=servers, spark=spark, pipeline=None if pipeline is None else _located(pipeline)
    )
    if as_json:
        findings = list(examine(question, announce=lambda _: None))
        output.document(SCHEMA, **document(findings))
    else:
        findings = _shown(output, question)
        output.result(Text(summary(findings), style="bold"))
    return ExitCode.FAILED if worst(findings) is Status.FAIL else ExitCode.ENDED


def document(findings: Iterable[Finding]) -> dict[str, object]:
    """The JSON document, without its schema."""
    found = list(findings)
    lines = [
        {"name": each.name, "verdict": each.status.value.lower(), "message": each.found, "remedy": each.fix}
        for each in found
    ]
    return {"verdict": worst(found).value.lower(), "findings": lines}


def text_of(finding: Finding) -> Text:
    """One finding for people, with its remedy below."""
    text = Text()
    text.append(f"{finding.status.value:<6}", style=_STYLES[finding.status])
    text.append(f"{finding.name}: {finding.found}")
    if finding.fix is not None:
        text.append(f"\n{textwrap.indent(f'→ {finding.fix}', _INDENT)}")
    return text


def summary(findings: Iterable[Finding]) -> str:
    """The last line."""
    counts = dict.fromkeys(Status, 0)
    for finding in findings:
        counts[finding.status] += 1
    text = f"{counts[Status.OK]} ok"
    text += f", {counts[Status.WARN]} warnings" if counts[Status.WARN] != 1 else ", 1 warning"
    return text + f", {counts[Status.FAIL]} FAILED: " + _verdict(counts)


def _verdict(counts: dict[Status, int]) -> str:
    if counts[Status.FAIL]:
        return "a job will not run here; mend what failed, from the top"
    return "jobs run here, see the warnings" if counts[Status.WARN] else "jobs run here"


def _located(pipeline: str) -> PipelineDefinition | PenstockError:
    try:
        return load_pipeline(pipeline)
    except PenstockError as error:
        return error


def _shown(output: Output, question: DoctorOptions) -> list[Finding]:
    """Print each as soon as it is there."""
    findings = []
    with ProgressLine(output) as waiting:
        for finding in examine(question, announce=waiting.on):
            waiting.off()
            output.result(text_of(finding))
            findings.append(finding)
    return findings
