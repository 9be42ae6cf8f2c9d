"""The table of tiers: each row moves tests outward that exist, and names tests further in that are in `make test`."""

import re
from pathlib import Path

import pytest

import tiers

TESTS = Path(__file__).resolve().parents[1]
CONTRACTS = TESTS.parent / "src" / "penstock" / "testing" / "contracts.py"
TABLE = tiers.read_table()
FUNCTION = r"^\s*def (test_\w+)"
CLASS = r"^class (Test\w+)"


def defined(file: Path, what: str = FUNCTION) -> set[str]:
    return set(re.findall(what, file.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("row", TABLE, ids=[row.tests for row in TABLE])
def test_a_row_moves_tests_that_are_there_and_what_keeps_their_claim_stays_further_in(row: tiers.Outward) -> None:
    assert row.tier in tiers.TIERS
    for test in (row.tests, *row.but):
        file, _, name = test.partition("::")
        *classes, function = name.partition("[")[0].split("::")
        assert set(classes) <= defined(TESTS / file, CLASS)
        functions = defined(TESTS / file) | (defined(CONTRACTS) if classes else set())  # a class inherits a contract's
        assert any(each.startswith(function) for each in functions)
    assert row.kept_by
    for test in row.kept_by:
        file, _, name = test.partition("::")
        assert not name or name in defined(TESTS / file)
        is_within = any(each.startswith(test) for each in row.but)
        assert is_within or tiers.tier_of(test, TABLE) is None, "it is not in `make test` itself"


def test_the_last_row_that_has_a_test_counts() -> None:
    table = [tiers.Outward("a.py", "long", (), but=("a.py::x",)), tiers.Outward("a.py::y", "nightly", ())]

    assert [tiers.tier_of(test, table) for test in ("a.py::x1", "a.py::y[1]", "a.py::z", "b.py::x")] == [
        None,
        "nightly",
        "long",
        None,
    ]
