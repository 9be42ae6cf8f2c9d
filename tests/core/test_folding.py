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
    pre_aggregation = PreAggregation()
    pre_aggregation.record(rows=rows, groups=groups)
    assert pre_aggregation.is_worthwhile is worth


def test_the_last_batch_with_rows_decides():
    pre_aggregation = PreAggregation()
    pre_aggregation.record(rows=MIN_ROWS, groups=1)
    pre_aggregation.record(rows=0, groups=0)
    assert pre_aggregation.is_worthwhile
    pre_aggregation.record(rows=10, groups=1)
    assert not pre_aggregation.is_worthwhile


@pytest.mark.parametrize(
    ("places", "largest", "worth"),
    [(16, 0.53, True), (16, 1 / 16, False), (2, 0.74, False), (2, 0.8, True), (1_000, 0.05, True)],
)
def test_a_hot_key_is_aggregated_before_it_travels(places, largest, worth):
    pre_aggregation = PreAggregation(places)
    assert not pre_aggregation.sample_partitions, "a small batch is not worth the question, and none was recorded"
    pre_aggregation.record(rows=MIN_ROWS, groups=MIN_ROWS // 2)
    assert pre_aggregation.sample_partitions
    pre_aggregation.record(rows=MIN_ROWS, groups=MIN_ROWS // 2, largest=int(MIN_ROWS * largest))
    assert pre_aggregation.is_worthwhile is worth


def test_how_rows_are_spread_is_asked_for_now_and_then():
    pre_aggregation = PreAggregation(4)
    asked = []
    for number in range(2 * SAMPLE_EVERY + 2):
        if pre_aggregation.sample_partitions:
            asked.append(number)
        largest = MIN_ROWS if pre_aggregation.sample_partitions else None
        pre_aggregation.record(rows=MIN_ROWS, groups=MIN_ROWS, largest=largest)
        assert pre_aggregation.is_worthwhile is (number > 0)
    assert asked == [1, 1 + SAMPLE_EVERY, 1 + 2 * SAMPLE_EVERY]


def test_nothing_is_spread_over_one_place():
    pre_aggregation = PreAggregation(1)
    pre_aggregation.record(rows=MIN_ROWS, groups=MIN_ROWS)
    assert not pre_aggregation.sample_partitions
