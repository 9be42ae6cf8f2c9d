"""The tests name the behaviours that they prove, and only ones that exist."""

import ast
import re
from pathlib import Path
from textwrap import dedent

import mission

SCENARIOS = "1-3 6-9 12-19 23 25-29 32-46 52-57 71-85 88-91 95 105 123-127 130 134 136 139 140 157-168"
"""Of Flink's tests, those that are retold here; a test of each bears its number: ``test_74_76_an_ended_input_…``."""


def test_every_row_named_by_a_test_exists():
    unknown = {row: tests for row, tests in mission.proofs().items() if row not in mission.rows()}

    assert unknown == {}


def test_rows_are_complete():
    counts = {"K": 15, "F": 14, "D": 10, "S": 34, "L": 25}

    assert {*mission.rows()} == {f"{text}{n}" for text, count in counts.items() for n in range(1, count + 1)}


def test_what_is_proved_stays_proved():
    proved = "F1 F2 F3 F4 F5 F6 F7 F8 F9 F10 F11 F12 F13 F14 D1 D2 D3 D4 D5 D6 D7 D8 D9 D10"
    proved += " S1 S2 S3 S4 S5 S6 S7 S8 S9 S10 S11 S12 S13 S14 S15 S16 S17"
    proved += " S18 S19 S20 S25 S26 S27 S30 S31 S32 S33 S34"
    proved += " L1 L2 L8 L9 L10 L11 L12 L13 L14 L15 L16 L17 L18 L19 L20 L21 L22 L23 L24 L25"

    assert {*proved.split()} - {*mission.proofs()} == set()


def test_every_scenario_has_a_test_that_bears_its_number():
    demanded = set()
    for part in SCENARIOS.split():
        first, _, last = part.partition("-")
        demanded |= {*range(int(first), int(last or first) + 1)}

    assert sorted(demanded - numbered(Path(__file__).parent.parent)) == []


def test_numbers_are_read_from_the_names_of_tests_only(tmp_path):
    (tmp_path / "test_some.py").write_text(
        dedent(
            """
            def test_1_2_one(): ...
            class TestMany:
                def test_3_other(self): ...
            def test_L4_5_letters_end_the_numbers(): ...
            def test_in_6_words(): ...
            def helper_7_x(): ...
            # def test_8_commented(): ...
            """
        )
    )

    assert numbered(tmp_path) == {1, 2, 3}


def numbered(tests):
    """The numbers that names of tests begin with; read from the syntax tree, so that no text counts as a test."""
    found = set()
    for path in tests.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
            numbers = isinstance(node, ast.FunctionDef) and re.match(r"test_((?:\d+_)+)", node.name)
            found |= {int(number) for number in numbers[1].split("_") if number} if numbers else set()
    return found


def test_marks_count_for_parameters_tests_classes_and_modules(tmp_path):
    (tmp_path / "test_some.py").write_text(
        dedent(
            """
            import pytest
            pytestmark = [pytest.mark.mission("K1"), pytest.mark.spark]

            @pytest.mark.mission("D1", "D4")
            def test_one(): ...

            @pytest.mark.mission("S1")
            class TestMany:
                @pytest.mark.parametrize("case", [pytest.param(1, marks=pytest.mark.mission("S2"))])
                def test_two(self, case): ...

            @pytest.mark.mission("L1")
            def not_a_test(): ...
            """
        )
    )

    one, two = "test_some.py::test_one", "test_some.py::TestMany::test_two"
    assert mission.proofs(tmp_path) == {"K1": [one, two], "D1": [one], "D4": [one], "S1": [two], "S2": [two]}


def test_a_required_row_without_a_test_fails(capsys, monkeypatch):
    monkeypatch.setattr(mission, "proofs", lambda: {"D1": ["test_some.py::test_one"]})

    assert mission.main(["--require", "D1"]) == 0
    assert mission.main(["--require", "D1,D4"]) == 1
    assert "without a test: D4" in capsys.readouterr().out
