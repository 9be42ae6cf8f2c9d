"""When rows are aggregated before they travel."""

import pytest

from penstock.operators.folding import ASKED, LEAST, WORTH, Folding


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


@pytest.mark.parametrize(
    ("places", "heaviest", "worth"),
    [(16, 0.53, True), (16, 1 / 16, False), (2, 0.74, False), (2, 0.8, True), (1_000, 0.05, True)],
)
def test_a_hot_key_is_aggregated_before_it_travels(places, heaviest, worth):
    folding = Folding(places)
    assert not folding.asks, "a small batch is not worth the question, and nothing was told of any"
    folding.told(rows=LEAST, groups=LEAST // 2)
    assert folding.asks
    folding.told(rows=LEAST, groups=LEAST // 2, heaviest=int(LEAST * heaviest))
    assert folding.is_worth is worth


def test_how_rows_are_spread_is_asked_for_now_and_then():
    folding = Folding(4)
    asked = []
    for number in range(2 * ASKED + 2):
        if folding.asks:
            asked.append(number)
        folding.told(rows=LEAST, groups=LEAST, heaviest=LEAST if folding.asks else None)
        assert folding.is_worth is (number > 0)
    assert asked == [1, 1 + ASKED, 1 + 2 * ASKED]


def test_nothing_is_spread_over_one_place():
    folding = Folding(1)
    folding.told(rows=LEAST, groups=LEAST)
    assert not folding.asks
