"""``penstock doctor``: one line for each check as soon as it is known. Looks at nothing itself."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.cli.exits import ExitCode
from penstock.cli.locate import locate
from penstock.cli.waiting import Waiting
from penstock.errors import PenstockError
from penstock.operate.doctor.examine import Question, examine
from penstock.operate.doctor.findings import Finding, Status, worst

if TYPE_CHECKING:
    from penstock.cli.output import Output
    from penstock.graph.pipeline import PipelineDefinition

SCHEMA: Final = "penstock.doctor/1"
"""Of the JSON document: see docs/json.md."""

_STYLES: Final = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}
_INDENT: Final = " " * 6


def run_doctor(
    output: Output, *, pipeline: str | None, state: str, servers: str | None, spark: bool, as_json: bool
) -> int:
    """Look at everything, and print it; 1 if something fails."""
    question = Question(
        state=state, servers=servers, spark=spark, pipeline=None if pipeline is None else _located(pipeline)
    )
    if as_json:
        findings = list(examine(question, tell=lambda _: None))
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
        return locate(pipeline)
    except PenstockError as error:
        return error


def _shown(output: Output, question: Question) -> list[Finding]:
    """Print each as soon as it is there."""
    findings = []
    with Waiting(output) as waiting:
        for finding in examine(question, tell=waiting.on):
            waiting.off()
            output.result(text_of(finding))
            findings.append(finding)
    return findings
