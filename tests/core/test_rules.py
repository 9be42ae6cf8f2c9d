"""docs/rules.md tells the truth: every rule is kept at the place that it names, and a bug was planted against it."""

import re
from pathlib import Path

import pytest

import rules

SOURCES = Path(rules.ROOT, "src", "penstock")
NAMED = re.compile(r"\brules? ((?:[LSRGC]\d+(?:, | and | to )?)+)")

WITHOUT_A_BUG = {
    "L10": "tests/core/test_log.py plants gaps; the simulation's file system never loses an entry that was durable",
    "G3": "see the bugs 'layer-dropped' and 'G1-shared'",
    "G4": "a pin is not modelled; tests of state as a table condemn what is being read",
}
"""Why no planted bug has this rule's name."""


@pytest.mark.parametrize("name", rules.rules())
def test_a_rule_is_kept_where_it_says(name: str) -> None:
    rule = rules.rules()[name]
    assert rule["says"].endswith(".")
    assert ("where" in rule) != ("later" in rule)
    for place in rule.get("where", ()):
        assert callable(rules.follow(place)), place


@pytest.mark.parametrize("name", rules.rules())
def test_a_bug_is_planted_against_a_rule_or_the_reason_is_given(name: str) -> None:
    assert bool(rules.bugs_of(name)) != (name in WITHOUT_A_BUG)


def test_the_page_is_made_of_the_rules_as_they_are() -> None:
    assert rules.PAGE.read_text(encoding="utf-8") == rules.page(), "stale: run python tools/rules.py"


def test_every_rule_that_the_code_speaks_of_is_on_the_page() -> None:
    known = rules.rules().keys()
    spoken = {
        name
        for path in SOURCES.rglob("*.py")
        for found in NAMED.findall(path.read_text(encoding="utf-8"))
        for name in re.findall(r"[LSRGC]\d+", found)
    }
    assert spoken
    assert spoken <= known


def test_the_tool_writes_the_page(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(rules, "PAGE", tmp_path / "rules.md")
    assert rules.main() == 0
    assert (tmp_path / "rules.md").read_text() == rules.page()
    assert "rules.md" in capsys.readouterr().out
