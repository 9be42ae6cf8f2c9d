"""The mutants of `make mutants` fit the code: each old line is there once, and the new one can be compiled."""

from __future__ import annotations

import pytest

from mutants.mutant import PACKAGE, Mutant, read_list


def test_there_are_a_hundred() -> None:
    assert len(read_list()) == 100


@pytest.mark.parametrize("mutant", read_list().values(), ids=lambda mutant: mutant.id)
def test_its_line_is_there_once_and_the_bug_compiles(mutant: Mutant) -> None:
    text = (PACKAGE / mutant.file).read_text(encoding="utf-8")
    assert mutant.line() > 0
    compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
    assert mutant.old != mutant.new
