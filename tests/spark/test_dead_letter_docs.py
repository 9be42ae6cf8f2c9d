"""The page about dead letters is run as it stands: its pipeline, its test, its commands, its SQL."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import duckdb
import pytest

import penstock as ps
from core.cli_kit import say
from page_kit import command_lines
from penstock.dead_letters.store import decode_replay, encode_replay
from spark.job_kit import drop, published

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "dead-letters.md"
FIRST = [
    {"user": "ann", "amount": 1, "at": "2026-01-01T00:00:10Z"},
    {"user": "ann", "amount": "2.5", "at": "2026-01-01T00:00:20Z"},
]


def blocks(kind: str) -> list[str]:
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [text for language, text in found if language == kind]


def plain(text: str) -> list[str]:
    """Lines without what differs from run to run: times, sizes, ids, folders and spaces."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME", text)
    text = re.sub(r"part-[0-9a-f]{8}-(\S+)-\d+-\d+-00", r"part-LOG-\1", text)
    text = re.sub(r"[\d.]+ kB", "SIZE", text)
    text = re.sub(r"from lines: \S+", "from lines: FILE", text)
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = next(text for text in blocks("python") if text.startswith("# shop.py"))
    module = ModuleType("shop")
    exec(compile(code, "shop.py", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "shop", module)
    return code


def version(code: str) -> ps.PipelineDefinition:
    names: dict[str, object] = {}
    exec(compile(code, "shop.py", "exec"), names)
    found = names["orders"]
    assert isinstance(found, ps.PipelineDefinition)
    return found


def test_the_commands_of_the_page_say_what_it_shows(spark, shop, tmp_path):
    shown = re.split(r"^\$ penstock (.*)$", "".join(each for each in blocks("") if each.startswith("$")), flags=re.M)
    expected = dict(zip(shown[1::2], shown[2::2], strict=True))
    assert len(expected) == 3

    drop(tmp_path / "in", "1.txt", FIRST)
    ps.Job(version(shop), state="state", spark=spark).run(until="caught-up")
    for command, text in expected.items():
        said = say(*command.split())
        assert said.code == 0, said.err
        assert plain(said.out) == plain(text.lstrip("\n")), command

    show, dropped = [line for line in command_lines("dead-letters.md") if line[len("penstock ") :] not in expected]
    said = say(*shlex.split(show)[1:], "--state", "state")
    assert (said.code, said.out.splitlines()[-1]) == (0, "1 dead letter")
    said = say(*shlex.split(dropped)[1:], "--state", "state")
    assert (said.code, said.out) == (0, "bad-lines: nothing to delete from before 2026-01-01 00:00:00 UTC\n")

    fixed = version(with_the_change(shop))
    drop(tmp_path / "in", "2.txt", [{"user": "ann", "amount": 4, "at": "2026-01-01T00:01:20Z"}])
    ps.Job(fixed, state="state", spark=spark).run(until="caught-up")
    assert [(row["user"], row["amount"]) for row in published(tmp_path / "out")] == [("ann", 3.5)]

    drop(tmp_path / "in", "3.txt", [{"user": "ann", "amount": 8, "at": "2026-01-01T00:00:01Z"}])
    ps.Job(fixed, state="state", spark=spark).run(until="caught-up")
    (query,) = blocks("sql")
    ((user, start, missing),) = duckdb.sql(query).fetchall()
    assert (user, start.isoformat()[:19], missing) == ("ann", "2026-01-01T00:00:00", 8.0)
    assert "they would be late again" in say("deadletter", "list", "orders", "--state", "state").out


def with_the_change(code: str) -> str:
    """The pipeline with the two lines that the page has for the fix."""
    (change,) = [text for text in blocks("python") if text.startswith("    parsed, bad")]
    found = re.subn(r"    parsed, bad = .*\n", lambda _: change, code)
    assert found[1] == 1
    return found[0]


def test_the_json_of_a_replay_is_what_the_page_shows():
    (shown,) = blocks("json")
    replay = decode_replay(shown.encode(), "the page")
    assert json.loads(encode_replay(replay)) == json.loads(shown)


def test_the_test_of_the_page_passes(spark, shop):
    (code,) = [text for text in blocks("python") if "def test_" in text]
    names: dict[str, object] = {}
    exec(compile(code, "test_shop.py", "exec"), names)
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    test(spark)
