"""The page kinesis-leases.md: its Python is run, and its commands, over a lease table in memory."""

from __future__ import annotations

import shlex

from core.cli_kit import say
from core.dynamo_fake import DynamoFake
from page_kit import blocks, command_lines
from penstock.cli import kinesis
from penstock.cli.output import ExitCode
from penstock.connectors.kinesis.config import LeaseMode
from penstock.connectors.kinesis.lease_import import ImportedStart, encode_start
from penstock.connectors.kinesis.positions import After

PAGE = "kinesis-leases.md"


def test_the_commands_of_the_page_are_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    dynamo = DynamoFake("orders-app")
    dynamo.put("shardId-0", "4960", table="orders-app")
    monkeypatch.setattr(kinesis, "new_dynamo_client", lambda _address: dynamo)
    lines = command_lines(PAGE)
    assert len(lines) == 2
    for line in lines:
        said = say(*shlex.split(line)[1:])
        assert (said.code, said.out.split()[-1]) == (ExitCode.ENDED, "4960"), said.err
    assert (tmp_path / "start.json").exists()


def test_the_python_of_the_page_is_run(capsys, monkeypatch, tmp_path):
    source, from_kcl, checkpointer = blocks(PAGE, "python")
    names = {}
    exec(source, names)
    assert names["orders"].leases.mode is LeaseMode.EXPORT
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        positions = {"shardId-000000000000": After(4960)}
        (tmp_path / "start.json").write_bytes(encode_start(ImportedStart(table="orders-app", positions=positions)))
        exec(from_kcl, names)
    assert names["from_file"].start.positions == positions
    assert names["from_table"].leases.mode is LeaseMode.IMPORT
    exec(checkpointer, {})
    assert capsys.readouterr().out == "After(seq=4960, sub=0)\n"
