"""The command ``penstock doctor``: one line for each finding about this machine."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from rich.text import Text

from penstock.admin.doctor import DoctorOptions, examine
from penstock.admin.doctor_checks import Finding, Status, worst
from penstock.cli.options import STATE, AsJson, Flag, State, load_pipeline
from penstock.cli.output import CommandOutput, ExitCode, Output, ProgressLine
from penstock.cli.project_file import find_project
from penstock.cli.spark_options import NO_OPTIONS, SparkArguments
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.api.pipeline import PipelineDefinition

SCHEMA: Final = "penstock.doctor/1"  # see docs/json.md
_STYLES: Final = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}
_INDENT: Final = " " * 6


def doctor(  # noqa: PLR0913 - the options of the command
    pipeline: Annotated[
        str | None, Parameter(help="module:pipeline, whose sources and sinks are looked at too.")
    ] = None,
    /,
    *,
    state: State = STATE,
    servers: Annotated[str | None, Parameter(help="Kafka brokers, host:port, several with commas.")] = None,
    lease_table: Annotated[str | None, Parameter(help="Lease table of a KCL application, in DynamoDB.")] = None,
    spark: Annotated[
        bool, Parameter(name="--spark", negative="--no-spark", help="Make a session and run a job in it.")
    ] = True,
    warm: Annotated[
        bool, Flag, Parameter(help="Make the archive with which Spark starts sooner, if there is none.")
    ] = False,
    options: SparkArguments = NO_OPTIONS,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Examine the machine and print each finding. The exit code is 1 if a check fails."""
    configuration, project = options.use(), find_project()
    loaded = None if pipeline is None else _load_pipeline(pipeline)
    looked_at = DoctorOptions(
        state=state,
        servers=servers,
        lease_table=lease_table,
        spark=spark,
        pipeline=loaded,
        configuration=configuration,
        project=None if project is None else (str(project.path), *project.keys),
        warm=warm,
    )
    if as_json:
        findings = list(examine(looked_at, announce=lambda _: None))
        output.document(SCHEMA, **document(findings))
    else:
        findings = _print_findings(output, looked_at)
        output.result(Text(summary(findings), style="bold"))
    return ExitCode.FAILED if worst(findings) is Status.FAIL else ExitCode.ENDED


def _load_pipeline(pipeline: str) -> PipelineDefinition | PenstockError:
    try:
        return load_pipeline(pipeline)
    except PenstockError as error:
        return error


def _print_findings(output: Output, options: DoctorOptions) -> list[Finding]:
    """Print each finding as soon as it is known."""
    findings = []
    with ProgressLine(output) as progress:
        for finding in examine(options, announce=progress.on):
            progress.off()
            output.result(text_of(finding))
            findings.append(finding)
    return findings


def document(findings: Iterable[Finding]) -> dict[str, object]:
    """The fields of the JSON document."""
    found = list(findings)
    lines = [
        {"name": each.name, "verdict": each.status.value.lower(), "message": each.found, "remedy": each.fix}
        for each in found
    ]
    return {"verdict": worst(found).value.lower(), "findings": lines}


def text_of(finding: Finding) -> Text:
    """One finding for people, with its remedy on the next line."""
    text = Text()
    text.append(f"{finding.status.value:<6}", style=_STYLES[finding.status])
    text.append(f"{finding.name}: {finding.found}")
    if finding.fix is not None:
        text.append(f"\n{textwrap.indent(f'→ {finding.fix}', _INDENT)}")
    return text


def summary(findings: Iterable[Finding]) -> str:
    """The last line: how many findings of each kind, and whether jobs run here."""
    counts = dict.fromkeys(Status, 0)
    for finding in findings:
        counts[finding.status] += 1
    text = f"{counts[Status.OK]} ok"
    text += f", {counts[Status.WARN]} warnings" if counts[Status.WARN] != 1 else ", 1 warning"
    return text + f", {counts[Status.FAIL]} FAILED: " + _verdict(counts)


def _verdict(counts: dict[Status, int]) -> str:
    if counts[Status.FAIL]:
        return "a job will not run here; fix what failed, from the top"
    return "jobs run here, see the warnings" if counts[Status.WARN] else "jobs run here"
