"""Rows that tests write down: made fit for a schema, sorted, compared."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import GraphError, HarnessError, SchemaMismatch
from penstock.testing.clock import ManualClock
from penstock.testing.frames import assert_rows, fit_rows, in_order, micros_of, rows_in, same_rows, table_of

UTC = timezone.utc
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

SCHEMA = (
    StructType()
    .add("id", LongType(), nullable=False)
    .add("user", StringType())
    .add("amount", DoubleType())
    .add("at", TimestampType())
    .add("price", DecimalType(5, 2))
    .add("day", DateType())
    .add("tags", ArrayType(ByteType()))
    .add("more", MapType(StringType(), StructType().add("ok", BooleanType()).add("local", TimestampNTZType())))
)


def test_rows_may_be_written_as_text_and_numbers_and_leave_columns_out() -> None:
    first, second = fit_rows(
        [
            {
                "id": 1,
                "amount": 3,
                "at": "2026-01-01T13:00:00+01:00",
                "price": "1.50",
                "day": "2026-01-02",
                "tags": [1, -128],
                "more": {"a": {"ok": True, "local": "2026-01-01T12:00:00"}},
            },
            Row(id=2, user="u", at=NOON.replace(tzinfo=None), price=Decimal(7)),
        ],
        SCHEMA,
        "send('in')",
    )
    assert (first["amount"], first["at"], first["price"]) == (3.0, NOON, Decimal("1.50"))
    assert (first["user"], first["day"]) == (None, date(2026, 1, 2))
    assert (second["at"], second["price"], second["tags"]) == (NOON, Decimal(7), None)
    back = rows_in(table_of([first, second], SCHEMA))
    assert back[0]["more"] == {"a": {"ok": True, "local": datetime(2026, 1, 1, 12)}}  # noqa: DTZ001 - it has no zone
    assert back[1]["more"] is None


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"id": "1"}, r"row 1: Column 'id' is BIGINT NOT NULL and cannot hold '1' \(str\)"),
        ({}, r"Column 'id' is BIGINT NOT NULL and cannot hold NULL"),
        ({"id": 2**63}, r"Column 'id' is BIGINT NOT NULL and cannot hold 9223372036854775808 \(int\)"),
        ({"id": True}, r"cannot hold True \(bool\)"),
        ({"id": 1, "amount": "3.0"}, r"Column 'amount' is DOUBLE and cannot hold '3.0' \(str\)"),
        ({"id": 1, "amount": True}, r"Column 'amount' is DOUBLE"),
        ({"id": 1, "amount": 10**400}, r"Column 'amount' is DOUBLE and cannot hold 1000"),
        ({"id": 1, "user": 5}, r"Column 'user' is STRING and cannot hold 5 \(int\)"),
        ({"id": 1, "at": "noon"}, r"Column 'at' is TIMESTAMP and cannot hold 'noon' \(str\)"),
        ({"id": 1, "at": 5}, r"Column 'at' is TIMESTAMP and cannot hold 5 \(int\)"),
        ({"id": 1, "at": "0001-01-01T00:00:00+02:00"}, r"Column 'at' is TIMESTAMP and cannot hold '0001-01-01T00"),
        ({"id": 1, "more": {"a": {"local": "9999-12-31T23:00:00-02:00"}}}, r"Column 'more'"),
        ({"id": 1, "price": "1.505"}, r"Column 'price' is DECIMAL\(5,2\) and cannot hold '1.505'"),
        ({"id": 1, "price": "1000"}, r"Column 'price' is DECIMAL\(5,2\) and cannot hold '1000'"),
        ({"id": 1, "price": "dear"}, r"Column 'price' .* cannot hold 'dear'"),
        ({"id": 1, "price": "1e999999"}, r"Column 'price' .* cannot hold '1e999999'"),
        ({"id": 1, "price": "NaN"}, r"Column 'price' .* cannot hold 'NaN'"),
        ({"id": 1, "price": 1.5}, r"Column 'price' .* cannot hold 1.5 \(float\)"),
        ({"id": 1, "day": NOON}, r"Column 'day' is DATE"),
        ({"id": 1, "day": "01.02.2026"}, r"Column 'day' is DATE and cannot hold '01.02.2026'"),
        ({"id": 1, "tags": [128]}, r"Column 'tags' is ARRAY<TINYINT> and cannot hold \[128\]"),
        ({"id": 1, "tags": 1}, r"Column 'tags'"),
        ({"id": 1, "more": []}, r"Column 'more'"),
        ({"id": 1, "more": {"a": 1}}, r"Column 'more'"),
        ({"id": 1, "more": {"a": {"wrong": 1}}}, r"Column 'more'"),
        ({"id": 1, "usr": "u"}, r"row 1: Column 'usr' does not exist. Did you mean 'user'\? Columns: id, user"),
        ({"id": 1, "zzz": "u"}, r"Column 'zzz' does not exist. Columns: id, user, amount"),
        (5, r"row 1 is 5. Write rows as dictionaries by column"),
    ],
)
def test_what_does_not_fit_is_told_by_column_and_value(row: object, told: str) -> None:
    with pytest.raises(SchemaMismatch, match=told):
        fit_rows([row], SCHEMA, "send('in')")


@pytest.mark.parametrize("value", ["12345678901", "99999999999999999999.999999999999999999", "-0.000000000000000001"])
def test_a_decimal_may_have_all_digits_of_its_column(value: str) -> None:
    schema = StructType().add("n", DecimalType(38, 18))
    rows = fit_rows([{"n": value}], schema, "send('in')")
    assert rows_in(table_of(rows, schema)) == [{"n": Decimal(value)}]
    for wrong in ("100000000000000000000", "0.0000000000000000001", "1234567890.12345678901234567890"):
        with pytest.raises(SchemaMismatch, match=f"cannot hold '{wrong}'"):
            fit_rows([{"n": wrong}], schema, "send('in')")


def test_rows_are_compared_without_their_order_and_as_often_as_they_come() -> None:
    assert same_rows([{"n": 1}, {"n": 2}, {"n": 1}], [{"n": 1}, {"n": 1}, {"n": 2}])
    assert not same_rows([{"n": 1}, {"n": 1}], [{"n": 1}])
    assert not same_rows([{"n": 1}], [{"n": 1}, {"n": 1}])
    assert same_rows([Row(n=1, m=None)], [{"m": None, "n": 1}])
    assert same_rows([], [])


def test_times_may_be_text_and_floats_are_nearly_equal() -> None:
    actual = [{"at": NOON, "x": 0.1 + 0.2, "in": {"days": [date(2026, 1, 1)]}, "nan": float("nan")}]
    assert same_rows(
        actual, [{"at": "2026-01-01T12:00:00Z", "x": 0.3, "in": {"days": ["2026-01-01"]}, "nan": float("nan")}]
    )
    assert not same_rows([{"at": NOON}], [{"at": "noon"}])
    assert not same_rows([{"at": NOON}], [{"at": "0001-01-01T00:00:00+02:00"}])
    assert not same_rows([{"at": NOON}], [{"at": date(2026, 1, 1)}])
    assert not same_rows([{"n": 1}], [{"n": True}])
    assert not same_rows([{"x": 1.0}], [{"x": True}])
    assert not same_rows([{"x": 1.0}], [{"x": "1.0"}])
    assert not same_rows([{"x": float("nan")}], [{"x": 1.0}])
    assert same_rows([{"x": 1.0}], [{"x": 1}])


def test_a_difference_names_rows_and_columns() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_rows(
            [{"user": "a", "n": 1}, {"user": "b", "n": 2}, {"user": "c", "n": 3}],
            [{"user": "a", "n": 1}, {"user": "b", "n": 5}, {"user": "z", "k": 9}],
        )
    assert str(caught.value) == (
        "rows differ: 1 as expected, 2 missing, 2 unexpected\n"
        "  differs: {'user': 'b', 'n': 5} was expected, but n is 2\n"
        "  missing: {'user': 'z', 'k': 9}\n"
        "  unexpected: {'user': 'c', 'n': 3}"
    )
    with pytest.raises(AssertionError, match="but k is not there, m is there too: 2"):
        assert_rows([{"n": 1, "m": 2}], [{"n": 1, "k": 2}])
    with pytest.raises(AssertionError, match="… and 80 more"):
        assert_rows([{"n": n} for n in range(100)], [])
    with pytest.raises(HarnessError, match="5 is no row to compare"):
        assert_rows([5], [])


def test_sorted_rows_come_in_an_order_that_a_test_can_write_down() -> None:
    rows = [
        {"user": "b", "n": 1, "at": None},
        {"user": "a", "n": None, "at": NOON},
        {"user": "a", "n": 2, "at": NOON},
        {"user": "a", "n": 2, "at": NOON - timedelta(1)},
        {"user": None, "n": 9, "at": NOON},
    ]
    assert [rows.index(row) for row in in_order(rows)] == [4, 1, 3, 2, 0]
    assert in_order([{"x": [2]}, {"x": [1]}]) == [{"x": [1]}, {"x": [2]}]


@pytest.mark.parametrize(
    "values",
    [
        [None, date(2026, 9, 1), date(2026, 10, 1)],
        [None, Decimal(-1), Decimal(9), Decimal(10), Decimal("NaN")],
        [None, -1.5, 9, Decimal(10), float("nan")],
        [None, timedelta(9), timedelta(10)],
        [[None], [9], [9, 1], [10]],
        [{"day": date(2026, 9, 1), "n": 1}, {"day": date(2026, 10, 1), "n": 0}],
    ],
)
def test_values_are_sorted_by_what_they_are_and_not_by_their_text(values: list[object]) -> None:
    assert [str(row["x"]) for row in in_order([{"x": value} for value in reversed(values)])] == list(map(str, values))


def test_a_column_of_several_types_can_be_sorted() -> None:
    values = [NOON, date(2026, 9, 1), NOON.replace(tzinfo=None).time(), "text", b"bytes", None, Row(a=1), {"a": 1}, [1]]
    assert in_order([{"x": value} for value in values]) == in_order([{"x": value} for value in reversed(values)])


def test_keys_of_maps_may_be_structs_and_arrays() -> None:
    keys = ArrayType(StructType().add("day", DateType()).add("n", LongType()))
    schema = StructType().add("m", MapType(keys, LongType()))
    key = (Row(day=date(2026, 1, 1), n=1),)
    rows = [{"m": {key: 1}}, {"m": {(): 2}}]

    found = rows_in(table_of(fit_rows(rows, schema, "send('in')"), schema))

    assert found == rows
    assert same_rows(found, rows)
    assert in_order(found) == list(reversed(rows))


def test_maps_are_dictionaries_at_any_depth() -> None:
    kind = pa.struct([("l", pa.list_(pa.map_(pa.string(), pa.int64())))])
    table = pa.table({"s": pa.array([{"l": [[("a", 1)], None]}, None], type=kind), "n": [1, 2]})
    assert rows_in(table) == [{"s": {"l": [{"a": 1}, None]}, "n": 1}, {"s": None, "n": 2}]


def test_the_clock_stands_still_until_it_is_moved_and_never_goes_back() -> None:
    clock = ManualClock()
    assert (clock.now(), str(clock.time)) == (0, "2026-01-01 00:00:00+00:00")
    clock.advance("1 minute")
    assert (clock.now(), clock.wall() - ManualClock().wall()) == (60_000_000, 60_000_000)
    clock.move_to(clock.now())
    with pytest.raises(HarnessError, match="The clock stands 60 s later, and never goes back"):
        clock.move_to(1)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="'soon' is not a length of time"):
        clock.advance("soon")
    for text in ("noon", "0001-01-01T00:00:00+02:00"):
        with pytest.raises(HarnessError, match=f"'{re.escape(text)}' is no time"):
            ManualClock(text)
    assert ManualClock(NOON).time == NOON
    assert micros_of("1970-01-01T00:00:01Z") == micros_of(1_000_000) == 1_000_000


@pytest.mark.parametrize(("text", "micros"), [(".5", 500_000), (".123456", 123_456), (".1230", 123_000), ("", 0)])
def test_a_time_may_have_a_fraction_of_any_length_on_every_python(text, micros):
    assert micros_of(f"1970-01-01T00:00:00{text}Z") == micros
    assert micros_of(f"1970-01-01 02:00:00{text}+02:00") == micros
