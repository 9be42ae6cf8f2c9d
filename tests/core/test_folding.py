"""When rows are aggregated before they travel."""

import pytest

from penstock.operators.windows.ingest import MIN_ROWS, MIN_ROWS_PER_GROUP, SAMPLE_EVERY, PreAggregation


@pytest.mark.parametrize(
    ("rows", "groups", "worth"),
    [
        (MIN_ROWS, MIN_ROWS // MIN_ROWS_PER_GROUP, True),
        (MIN_ROWS, MIN_ROWS // MIN_ROWS_PER_GROUP + 1, False),
        (MIN_ROWS - 1, 1, False),
        (MIN_ROWS, 0, True),
    ],
)
def test_it_takes_many_rows_in_few_groups(rows, groups, worth):
    folding = PreAggregation()
    folding.told(rows=rows, groups=groups)
    assert folding.is_worth is worth


def test_the_last_batch_with_rows_decides():
    folding = PreAggregation()
    folding.told(rows=MIN_ROWS, groups=1)
    folding.told(rows=0, groups=0)
    assert folding.is_worth
    folding.told(rows=10, groups=1)
    assert not folding.is_worth


@pytest.mark.parametrize(
    ("places", "heaviest", "worth"),
    [(16, 0.53, True), (16, 1 / 16, False), (2, 0.74, False), (2, 0.8, True), (1_000, 0.05, True)],
)
def test_a_hot_key_is_aggregated_before_it_travels(places, heaviest, worth):
    folding = PreAggregation(places)
    assert not folding.asks, "a small batch is not worth the question, and nothing was told of any"
    folding.told(rows=MIN_ROWS, groups=MIN_ROWS // 2)
    assert folding.asks
    folding.told(rows=MIN_ROWS, groups=MIN_ROWS // 2, heaviest=int(MIN_ROWS * heaviest))
    assert folding.is_worth is worth


def test_how_rows_are_spread_is_asked_for_now_and_then():
    folding = PreAggregation(4)
    asked = []
    for number in range(2 * SAMPLE_EVERY + 2):
        if folding.asks:
            asked.append(number)
        folding.told(rows=MIN_ROWS, groups=MIN_ROWS, heaviest=MIN_ROWS if folding.asks else None)
        assert folding.is_worth is (number > 0)
    assert asked == [1, 1 + SAMPLE_EVERY, 1 + 2 * SAMPLE_EVERY]


def test_nothing_is_spread_over_one_place():
    folding = PreAggregation(1)
    folding.told(rows=MIN_ROWS, groups=MIN_ROWS)
    assert not folding.asks
