"""``penstock import kcl``: reads a lease table, refuses a running application, and writes a start for a source."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import penstock as ps
from core.cli_kit import say
from core.dynamo_fake import DynamoFake
from penstock.cli import kinesis
from penstock.cli.output import ExitCode
from penstock.connectors.kinesis.positions import After, AtHorizon, AtTime, Finished
from penstock.errors import CheckpointUnreadable

GOLDEN = Path(__file__).parent / "cli_golden"
AS_FAST_AS_POSSIBLE = ("--failover", "1ms")


class Running(DynamoFake):
    """Its worker renews the lease of shard a whenever somebody looks."""

    def scan(self, **arguments):
        row = self.tables["app"]["a"]
        row["leaseCounter"] = {"N": str(int(row["leaseCounter"]["N"]) + 1)}
        return super().scan(**arguments)


@pytest.fixture
def dynamo(monkeypatch):
    def use(made):
        monkeypatch.setattr(kinesis, "new_dynamo_client", lambda address: made.addresses.append(address) or made)
        made.addresses = []
        return made

    return use


def test_positions_are_shown_and_written_for_a_source(dynamo, tmp_path):
    table = dynamo(DynamoFake("app"))
    table.put("a", "SHARD_END", leaseOwner="w1")
    table.put("b", "120", sub=3, leaseOwner="w1")
    table.put("c", "TRIM_HORIZON")
    out = tmp_path / "start.json"
    said = say("import", "kcl", "app", "--out", str(out), "--region", "eu-central-1", *AS_FAST_AS_POSSIBLE)
    assert said.code == ExitCode.ENDED, said.err
    assert [line.strip().split(maxsplit=1) for line in said.out.splitlines()][1:] == [
        ["a", "not: it is finished"],
        ["b", "after 120, sub-sequence 3"],
        ["c", "at its first record"],
    ]
    assert f"start=ps.kinesis.imported({str(out)!r})" in said.err
    assert ps.kinesis.imported(out).positions == {"a": Finished(), "b": After(120, 3), "c": AtHorizon()}
    assert table.addresses[0].region == "eu-central-1"
    assert {"put", "update", "create"}.isdisjoint(table.requests), "the table is only read"


def test_a_document_for_scripts(dynamo):
    table = dynamo(DynamoFake("app"))
    stream = "123456789012:orders:1700000000"
    table.put(f"{stream}:a", "LATEST")
    table.put("a", "LATEST")
    said = say("import", "kcl", "app", "--at", "2026-01-31T00:00:00Z", "--json", "--stream", stream)
    assert said.code == ExitCode.ENDED, said.err
    document = json.loads(said.out)
    assert document == {
        "schema": "penstock.import.kcl/1",
        "table": "app",
        "stream": stream,
        "path": None,
        "shards": [{"shard": "a", "position": {"at": "time", "ms": 1769817600000}}],
        "warnings": ["a has LATEST, and begins where you said."],
    }
    golden = GOLDEN / "import-kcl.json"
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(said.out)
    assert said.out == golden.read_text()
    said = say("import", "kcl", "app", "--at", "TRIM_HORIZON")
    assert "at its first record" in said.out


def test_an_application_that_runs_is_refused(dynamo, tmp_path):
    dynamo(Running("app")).put("a", "120", leaseOwner="w1")
    out = tmp_path / "start.json"
    said = say("import", "kcl", "app", "--out", str(out), *AS_FAST_AS_POSSIBLE)
    assert said.code == ExitCode.FAILED
    assert "Worker 'w1' has written the lease of shard a in table app just now" in said.err
    assert not out.exists()
    assert say("import", "kcl", "app", "--out", str(out), "--force").code == ExitCode.ENDED
    assert out.exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--at", "LATEST"], "--at LATEST is no place in a shard"),
        (["--at", "2026-01-31T00:00:00"], "--at 2026-01-31T00:00:00 is no place in a shard"),
        (["--failover", "soon"], "--failover 'soon' is not a length of time"),
        (["--out", "/no/such/folder/start.json"], "cannot be written"),
    ],
)
def test_options_that_are_impossible_are_usage_errors(dynamo, arguments, told):
    dynamo(DynamoFake("app")).put("a", "120")
    said = say("import", "kcl", "app", *arguments)
    assert said.code == ExitCode.USAGE
    assert told in said.err


def test_a_table_that_is_none(dynamo):
    dynamo(DynamoFake())
    said = say("import", "kcl", "app")
    assert said.code != ExitCode.ENDED
    assert "There is no lease table app" in said.err


def test_a_start_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(CheckpointUnreadable, match="cannot be read"):
        ps.kinesis.imported(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(CheckpointUnreadable):
        ps.kinesis.imported(tmp_path / "other.json")


def test_a_time_is_that_moment(dynamo):
    dynamo(DynamoFake("app")).put("a", "AT_TIMESTAMP")
    said = say("import", "kcl", "app", "--at", "1970-01-01T00:00:17Z")
    assert "at 1970-01-01 00:00:17 UTC" in said.out
    assert kinesis._place("1970-01-01T01:00:17+01:00") == AtTime(17_000)
