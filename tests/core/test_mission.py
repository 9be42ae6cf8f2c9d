"""The tests name the behaviours that they prove, and only ones that exist."""

from textwrap import dedent

import mission


def test_every_row_named_by_a_test_exists():
    unknown = {row: tests for row, tests in mission.proofs().items() if row not in mission.rows()}

    assert unknown == {}


def test_rows_are_complete():
    counts = {"K": 15, "F": 14, "D": 10, "S": 34, "L": 25}

    assert {*mission.rows()} == {f"{text}{n}" for text, count in counts.items() for n in range(1, count + 1)}


def test_what_is_proved_stays_proved():
    proved = "D1 D2 D3 D4 D5 D7 D8 D9 D10 S1 S2 S3 S4 S5 S6 S7 S9 S10 S11 S12 S13 S14 S15 S16 S17 S20 S25 S26 S33 S34"
    proved += " L1 L2 L8 L9 L13 L15 L16 L17 L18 L19 L20 L21 L22 L23 L25"

    assert {*proved.split()} - {*mission.proofs()} == set()


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
