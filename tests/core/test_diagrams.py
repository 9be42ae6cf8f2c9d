"""The pages in docs/diagrams are what the tables say now."""

import pytest

import diagrams
from penstock.runtime import lifecycle
from penstock.runtime.lifecycle import JobState


@pytest.mark.parametrize("name", diagrams.pages())
def test_a_page_is_what_its_table_says(name: str) -> None:
    found = (diagrams.FOLDER / name).read_text(encoding="utf-8")
    assert found == diagrams.pages()[name], "stale: run python tools/diagrams.py"


def test_there_is_no_page_without_a_table() -> None:
    assert {path.name for path in diagrams.FOLDER.iterdir()} == {*diagrams.pages()}


def test_every_state_has_its_sentence() -> None:
    meanings = diagrams.sentences(lifecycle, JobState)
    assert meanings["running"] == "Sources are read."
    assert all(text.endswith(".") for text in meanings.values())
    for page in diagrams.pages().values():
        assert "|  |" not in page


def test_a_move_that_is_taken_from_the_table_makes_its_page_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    before = diagrams.pages()
    monkeypatch.setitem(lifecycle.TRANSITIONS, JobState.RUNNING, frozenset())
    assert {name for name, page in diagrams.pages().items() if page != before[name]} == {"lifecycle.md"}


def test_the_tool_writes_every_page(tmp_path, capsys) -> None:
    assert diagrams.main(tmp_path / "new") == 0
    assert {path.name: path.read_text() for path in (tmp_path / "new").iterdir()} == diagrams.pages()
    assert "lifecycle.md" in capsys.readouterr().out
