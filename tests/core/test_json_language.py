"""All JSON documents speak one language: what docs/json.md says of schemas and names holds in every golden document."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from core.cli_kit import say
from core.looking_kit import WEB, a_job, leave_numbers
from page_kit import sample
from penstock.control.client import mark_released

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
GOLDEN = {
    path.name: json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "cli_golden").glob("*.json"))
}

FOLDER_OF = {"penstock.verify.export/1": ("verify",), "penstock.report/1": ()}
"""Schemas that are not named after a command: of a folder that a command is given, and of a file."""

OUTPUTS = {"open", "outputs", "published", "voided", "left_open", "publish", "void", "again"}

TYPES = {
    "Text": "text",
    "Numbers": "number",
    "Moments": "number",
    "Lengths of time": "number",
    "Yes or no": "bool",
    "Lists of texts": "list of text",
    "Lists of numbers": "list of number",
    "Lists of objects": "list of object",
    "Objects": "object",
    "Not penstock's to name": "free",
}
"""By heading of the page, the JSON type of the names below it."""


def _names() -> dict[str, str]:
    """The heading under which each name stands on the page."""
    found: dict[str, str] = {}
    for section in PAGE.split("\n### ")[1:]:
        heading, _, body = section.partition("\n")
        for name in re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE):
            assert name not in found, f"{name} stands on the page twice"
            found[name] = heading
    return found


NAMES = _names()
FREE = {name for name, heading in NAMES.items() if TYPES[heading] == "free"}


def _kind(value: object) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str():
            return "text"
        case dict():
            return "object"
        case list():
            kinds = {_kind(item) for item in value}
            assert len(kinds) < 2, f"a list of {kinds}"
            return f"list of {kinds.pop()}" if kinds else "list"
    raise AssertionError(value)


def _pairs(value: object) -> list[tuple[str, object]]:
    """Every name at any depth, with its value; below what is not penstock's to name, none."""
    if isinstance(value, list):
        return [pair for item in value for pair in _pairs(item)]
    if not isinstance(value, dict):
        return []
    below = [pair for name, each in value.items() if name not in FREE for pair in _pairs(each)]
    return [*value.items(), *below]


# ------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("document", GOLDEN)
def test_each_name_has_the_type_that_the_page_gives_it(document: str) -> None:
    for name, value in _pairs(GOLDEN[document]):
        assert name in NAMES, f"docs/json.md does not know {name!r}"
        expected, kind = TYPES[NAMES[name]], _kind(value)
        if expected != "free" and kind is not None:
            assert expected.startswith(kind), f"{name} is {kind}, docs/json.md says {expected}"


def test_each_name_of_the_page_is_somewhere_with_a_value() -> None:
    seen = {name for document in GOLDEN.values() for name, value in _pairs(document) if value is not None}

    assert NAMES.keys() - seen == set()


def test_names_say_what_they_are() -> None:
    for name, heading in NAMES.items():
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name), name
        assert name.startswith(("is_", "was_", "does_")) == (heading == "Yes or no"), name
        assert name.endswith("_seconds") == (heading == "Lengths of time"), name
        assert not re.search(r"(^|_)(ms|micros|duration|length|size|id)$", name) or name == "log_id", name
        if name.endswith(("_count", "_rows", "_bytes")):
            assert heading == "Numbers", name
        if name.endswith("_files"):
            assert heading == "Lists of texts", name


def test_every_list_of_outputs_has_the_same_items() -> None:
    items = [item for told in GOLDEN.values() for name, value in _pairs(told) if name in OUTPUTS for item in value]  # type: ignore[attr-defined]

    assert {tuple(item) for item in items} == {("uid", "checkpoint", "kind", "target", "file_count", "bytes")}


# ----------------------------------------------------------------------------------------------------------- schemas


def _in_source() -> set[str]:
    folders = [ROOT / "src" / "penstock" / name for name in ("admin", "cli", "control", "job", "observability")]
    found = (
        re.findall(r'"(penstock\.[a-z._-]+/\d+)"', path.read_text())
        for place in folders
        for path in place.rglob("*.py")
    )
    return {schema for schemas in found for schema in schemas}


def test_each_schema_in_the_source_is_on_the_page_and_has_a_golden_document() -> None:
    golden = {document["schema"] for document in GOLDEN.values()}

    assert golden == _in_source() == set(_shapes())


@pytest.mark.parametrize("schema", sorted(_in_source()))
def test_a_schema_is_named_after_its_command(schema: str) -> None:
    words = FOLDER_OF.get(schema, tuple(schema.removeprefix("penstock.").removesuffix("/1").split(".")))

    said = say(*words, "--help")

    assert said.code == 0
    assert not words or said.out.startswith(f"Usage: penstock {' '.join(words)} ")


@pytest.mark.parametrize("document", GOLDEN)
def test_a_document_opens_with_its_schema(document: str) -> None:
    assert next(iter(GOLDEN[document])) == "schema"


# ------------------------------------------------------------------------------------------------------------ shapes


def _shapes() -> dict[str, dict[str, Any]]:
    """Of each schema, its fields as the page has them: nested, ``None`` where nothing is said of what is inside."""
    rows = re.findall(r"^\| (?:`(penstock[\w./]+)`|\*(\w+)\*) \|[^|]*\| (.*) \|$", PAGE, re.MULTILINE)
    shared = {word: fields for _, word, fields in rows if word}
    found = {}
    for schema, _, told in rows:
        fields = told
        while "*" in fields:
            fields = re.sub(r"\*(\w+)\*", lambda word: shared[word[1]], fields)
        if schema:
            found[schema] = _parse(re.findall(r"\w+|[()]", fields))
    return found


def _parse(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    name = ""
    while words:
        word = words.pop(0)
        if word == ")":
            break
        if word == "(":
            found[name] = _parse(words)
        else:
            name = word
            found[name] = None
    return found


def _places(value: object, place: str = "") -> dict[str, list[list[str]]]:
    """Of each place in a document, the fields of the objects that are there."""
    found: dict[str, list[list[str]]] = defaultdict(list)
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            found[place].append(list(item))
            for name, each in item.items():
                if name not in FREE:
                    for at, fields in _places(each, f"{place}.{name}").items():
                        found[at] += fields
    return found


@pytest.mark.parametrize("document", GOLDEN)
def test_a_document_has_the_fields_that_the_page_gives_its_schema(document: str) -> None:
    told = dict(GOLDEN[document])
    shape = _shapes()[told.pop("schema")]

    for place, objects in _places(told).items():
        inside = shape
        for name in place.split(".")[1:]:
            inside = inside[name]
        for fields in objects:
            assert fields == list(inside), place


def test_the_lines_of_the_page_are_run_and_what_they_pick_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jq is not penstock's: where it is not installed, only what it would be given is made."""
    monkeypatch.chdir(tmp_path)
    leave_numbers(a_job(tmp_path / ".penstock", claim=WEB))
    mark_released("log-1", 0)  # nobody is asked
    picked = []
    for line in sample("json.md", "penstock list --json | jq").splitlines():
        asked, pick = line.split(" | ", 1)
        said = say(*shlex.split(asked)[1:])
        assert said.code == 0, line
        assert json.loads(said.out)["schema"] == f"penstock.{asked.split()[1]}/1"
        if shutil.which("jq"):
            done = subprocess.run(shlex.split(pick), input=said.out, capture_output=True, text=True, check=False)
            picked.append(done.stdout.split())
    sinks = ["{", '"uid":', '"bad-out",', '"rows_written":', "2", "}"]
    assert picked in ([], [["orders"], [*sinks, "{", '"uid":', '"out",', '"rows_written":', "3000", "}"], ["true"]])
