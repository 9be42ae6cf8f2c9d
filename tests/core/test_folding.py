"""When rows are aggregated before they travel."""

import pytest

from penstock.operators.folding import LEAST, WORTH, Folding


@pytest.mark.parametrize(
    ("rows", "groups", "worth"),
    [
        (LEAST, LEAST // WORTH, True),
        (LEAST, LEAST // WORTH + 1, False),
        (LEAST - 1, 1, False),
        (LEAST, 0, True),
    ],
)
def test_it_takes_many_rows_in_few_groups(rows, groups, worth):
    folding = Folding()
    folding.told(rows=rows, groups=groups)
    assert folding.is_worth is worth


def test_the_last_batch_with_rows_decides():
    folding = Folding()
    folding.told(rows=LEAST, groups=1)
    folding.told(rows=0, groups=0)
    assert folding.is_worth
    folding.told(rows=10, groups=1)
    assert not folding.is_worth
