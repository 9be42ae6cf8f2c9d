from __future__ import annotations

import pytest

from penstock.clock import format_duration, parse_duration
from penstock.errors import GraphError


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1 minute", 60_000_000),
        ("500 milliseconds", 500_000),
        ("5s", 5_000_000),
        (" 2 h ", 7_200_000_000),
        ("10 min", 600_000_000),
        ("3 days", 259_200_000_000),
        ("1 week", 604_800_000_000),
        ("7 us", 7),
        ("0 seconds", 0),
    ],
)
def test_reads_a_number_and_a_unit(text, micros):
    assert parse_duration("size", text) == micros


@pytest.mark.parametrize("text", ["", "1", "minute", "1.5 minutes", "1 month", "1 mins", "1 ss", "1 m", "1 Minute", 60])
def test_refuses_what_is_no_length_with_name_value_and_remedy(text):
    with pytest.raises(GraphError, match=r"size .* is not a length of time. Write a whole number") as error:
        parse_duration("size", text)
    assert repr(text) in str(error.value)


def test_refuses_what_is_too_short_or_too_long():
    with pytest.raises(GraphError, match="size '0 seconds' is too short"):
        parse_duration("size", "0 seconds", least=1)
    with pytest.raises(GraphError, match="size '999999 weeks' is too long"):
        parse_duration("size", "999999 weeks")


@pytest.mark.parametrize("micros", [0, 1, 1_000, 1_500, 60_000_000, 90_000_000, 86_400_000_000, 1_209_600_000_000])
def test_what_is_written_is_read_back(micros):
    assert parse_duration("size", format_duration(micros)) == micros
