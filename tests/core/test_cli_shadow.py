"""What ``penstock shadow`` shows of a result, as text and as a document; and what it refuses before anything runs."""

import io
import json
import os
from pathlib import Path

import pytest

from core.cli_kit import say
from penstock.admin.shadow import ShadowResult, SinkShadow
from penstock.admin.shadow_compare import ComparedColumns, Comparison, DiffSample
from penstock.cli.output import Output
from penstock.cli.shadow import SCHEMA, document, report_text
from penstock.observability.report import Report

GOLDEN = Path(__file__).parent / "cli_golden"


def result(*sinks, old=True, notes=()):
    run = Report(state="stopped", rows_read={"in": 1204}, rows_written={"totals-out": 30})
    return ShadowResult(
        job="orders",
        checkpoint=41,
        folder="/data/shadow-orders",
        reports={"old": run, "new": run} if old else {"new": run},
        sinks=sinks,
        notes=notes,
    )


ALIKE = Comparison(columns=ComparedColumns(compared=("id",)), old=2, new=2, equal=2)
SAME = SinkShadow(uid="late-out", rows={"old": 2, "new": 2}, comparison=ALIKE)
CHANGED = SinkShadow(
    uid="totals-out",
    rows={"old": 31, "new": 30},
    key=("user",),
    comparison=Comparison(
        columns=ComparedColumns(compared=("user", "amount"), added=("n",), retyped=("at: timestamp → string",)),
        old=31,
        new=30,
        equal=28,
        only_old=2,
        only_new=1,
        changed=1,
        samples=(
            DiffSample(old={"user": "u1", "amount": 3.0}, new={"user": "u1", "amount": 4.0}),
            DiffSample(old={"user": "zoë", "amount": None}),
            DiffSample(new={"user": "u9", "amount": 1.0}),
        ),
    ),
)
DROPPED = SinkShadow(uid="bad-out", rows={"old": 1200})
ALL = result(DROPPED, SAME, CHANGED, notes=("source 'in' cannot be made to end where the old code has ended: …",))


def shown(found):
    out = io.StringIO()
    output = Output(out=out, err=io.StringIO())
    for part in report_text(found):
        output.result(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def golden(name, text):
    if os.environ.get("WRITE_GOLDEN"):
        (GOLDEN / name).write_text(text)
    return (GOLDEN / name).read_text()


def test_the_story_of_a_shadow_run():
    assert shown(ALL) == golden("shadow_result.txt", shown(ALL))


def test_the_document_has_a_versioned_schema():
    text = json.dumps({"schema": SCHEMA, **document(ALL)}, indent=2, ensure_ascii=False) + "\n"

    assert text == golden("shadow_result.json", text)


def test_the_same_rows_everywhere_is_said_in_one_line():
    assert shown(result(SAME)).splitlines()[-1] == "the same rows in every sink; they are in /data/shadow-orders"
    assert result(SAME).is_same


def test_without_old_code_rows_are_counted_and_nothing_is_called_the_same():
    alone = result(SinkShadow(uid="totals-out", rows={"new": 30}), old=False)

    assert not alone.is_same
    assert shown(alone).splitlines()[-2:] == [
        "totals-out    -   30      -         -         -        -",
        "nothing to compare with (--against); what the new code wrote is in /data/shadow-orders",
    ]


def test_a_sink_that_only_one_code_has_makes_a_difference():
    assert not result(DROPPED, SAME).is_same


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["shop:orders"], 64, "--from"),
        (["shop:orders", "--from", "x", "--key", "totals"], 64, "--key 'totals' is not sink=column,column"),
        (["shop", "--from", "x"], 64, "'shop' is not module:pipeline"),
        (["shop:orders", "--from", "x", "--until", "stopped"], 64, "caught-up"),
    ],
)
def test_what_is_wrong_in_a_command_line_is_named(arguments, code, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = say("shadow", *arguments)

    assert (said.code, "Traceback" in said.err) == (code, False)
    assert expected in said.err
    assert not list(tmp_path.iterdir())
