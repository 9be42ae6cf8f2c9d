"""Times of one form are found without a regular expression, and never others than it finds."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.json_arrow import _IS_ZONED, are_of_one_form, exact_values

TIMES = ("2026-01-31T23:59:59Z", "2026-12-01T00:00:00.5Z", "0000-10-19T19:09:09.123456Z", "2026-02-30T01:01:01Z")
EDITS = st.lists(st.tuples(st.integers(0, 27), st.sampled_from("0123456789:-+T Z.é")), max_size=3)


@given(st.lists(st.tuples(st.sampled_from(TIMES), EDITS), min_size=1, max_size=4))
def test_whatever_is_taken_for_one_form_matches_the_expression(made) -> None:
    texts = []
    for text, edits in made:
        letters = list(text)
        for at, letter in edits:
            letters[at % len(letters)] = letter
        texts.append("".join(letters))
    found = are_of_one_form(pa.array(texts))
    assert not found or all(re.match(_IS_ZONED, text) for text in texts)


@pytest.mark.parametrize("text", TIMES)
def test_each_of_these_is_of_one_form_also_in_a_slice(text: str) -> None:
    array = pa.array(["x", *[text] * 5, None]).slice(1, 5)
    assert are_of_one_form(array)
    assert not are_of_one_form(pa.array([text, None]))
    assert not are_of_one_form(pa.array([text, text + "Z"]))


def test_a_day_that_the_month_does_not_have_is_no_value() -> None:
    with pytest.raises(pa.ArrowInvalid):
        exact_values(pa.array(["2026-02-30T01:01:01Z"]), pa.timestamp("us", "UTC"), is_utc=False)
    values, exact = exact_values(pa.array(["2026-02-28T01:01:01.25Z"]), pa.timestamp("us", "UTC"), is_utc=False)
    assert (values.cast(pa.int64()).to_pylist(), exact) == ([1772240461250000], None)
