"""How blocks of JSON text are cut and read; what the records are is held against Spark elsewhere."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.json as pj
import pytest
from pyspark.sql import types as t

from penstock.formats import json_arrow
from penstock.formats.json_arrow import JsonDecoder, arrow_type, decoder_of

DECODER = JsonDecoder(pa.struct([("a", pa.int64()), ("b", pa.string())]))
BAD = (
    b"",
    b"null",
    b'{"a": "x"}',
    b'{"a": 1.5}',
    b'{"a": 1} {"a": 1}',
    b'{"a": 1, "a": 1}',
    b"{",
    b'{"b": "\xff"}',
    b"\0",
)


def good(count: int) -> list[bytes | None]:
    return [f'{{"a": {n}, "b": "user {n}"}}'.encode() for n in range(count)]


def without(values: list[bytes | None], *places: int) -> list[dict[str, object] | None]:
    return [None if n in places else {"a": n, "b": f"user {n}"} for n in range(len(values))]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each block that pyarrow was given."""
    sizes: list[int] = []
    read_json = pj.read_json

    def counted(source: pa.BufferReader, **options: object) -> pa.Table:
        sizes.append(source.size())
        return read_json(source, **options)

    monkeypatch.setattr(json_arrow.pj, "read_json", counted)
    return sizes


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_value_costs_itself_wherever_it_stands(bad: bytes) -> None:
    for place in (0, 1, 31, 62, 63):
        values = good(64)
        values[place] = bad
        decoded = DECODER.decode(values)
        assert decoded.records.to_pylist() == without(values, place)
        assert decoded.rest.to_pylist() == [value if n == place else None for n, value in enumerate(values)]
        assert decoded.missing == 1
        assert DECODER.decode_lines(b"\n".join(each for each in values if each is not None)) is None


def test_lines_that_are_all_exact_are_read_as_they_stand(reads: list[int]) -> None:
    values = good(500)
    records = DECODER.decode_lines(b"\n".join(each for each in values if each is not None))
    assert records is not None
    assert records.to_pylist() == without(values)
    assert len(reads) == 1


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1}\n',
        b'{"a": 1}\n\n{"a": 1}',
        b'{"a": 1}\r\n{"a": 1}',
        b'{"a":\n1}',
        b'{"a": 1}\n{"a": 1} {"a": 1}',
        b'{"a": NaN}',
        b'{"b": "' + b"x" * 1_000 + b'"}',
        b"\n".join([b"{}"] * 70_000),
    ],
)
def test_lines_of_which_one_is_odd_are_left_to_a_closer_look(text: bytes) -> None:
    assert DECODER.decode_lines(text) is None


def test_null_values_have_neither_record_nor_rest() -> None:
    values = [None if n % 3 == 0 else value for n, value in enumerate(good(10))]
    decoded = DECODER.decode(values)
    assert decoded.records.to_pylist() == without(values, 0, 3, 6, 9)
    assert decoded.rest.to_pylist() == [None] * 10
    assert decoded.missing == 4
    for values in ([], [None], [b"null"] * 3, [b""], [None, b" "]):
        nothing = DECODER.decode(values)
        assert nothing.records.null_count == nothing.missing == len(values)
        assert nothing.records.type == DECODER.record
        assert nothing.rest.to_pylist() == values


def test_good_values_are_read_at_once_and_many_in_blocks(reads: list[int]) -> None:
    values = good(3 * json_arrow._BLOCK_ROWS + 1)
    assert DECODER.decode(values).records.to_pylist() == without(values)
    assert len(reads) == 4
    reads.clear()
    long = [b'{"b": "' + b"x" * 20_000 + b'"}'] * 1_000
    assert DECODER.decode(long).missing == 0
    assert max(reads) <= json_arrow._BLOCK_BYTES + 1_000
    assert sum(reads) <= sum(map(len, long)) + 2_000


def test_a_few_bad_values_cost_a_few_readings_more(reads: list[int]) -> None:
    for bad in (b'{"a": "x"}', b'{"a": 1.5}'):
        values = good(4_000)
        for place in (0, 17, 2_000, 3_999):
            values[place] = bad
        reads.clear()
        assert DECODER.decode(values).records.to_pylist() == without(values, 0, 17, 2_000, 3_999)
        assert len(reads) <= 9
    values = good(4_000)
    values[1_234] = b'{"a": 1} {"a": 1}'  # which one it is nobody tells
    reads.clear()
    assert DECODER.decode(values).missing == 1
    assert len(reads) <= 26


def test_bad_values_at_the_beginning_cost_little_and_do_not_give_up_the_block() -> None:
    bad = 10  # more than the share of its rows that a block may read in vain, if each cost all of it
    values = good(4_000)
    values[:bad] = [b'{"a": "x"}'] * bad
    assert DECODER.decode(values).missing == bad


def test_a_whole_number_out_of_range_is_told_by_one_reading(reads: list[int]) -> None:
    values = [b'{"a": %d}' % number for number in (-129, -128, 0, 127, 128, 129)]
    decoded = JsonDecoder(pa.struct([("a", pa.int8())])).decode(values)
    assert [row and row["a"] for row in decoded.records.to_pylist()] == [None, -128, 0, 127, None, None]
    assert len(reads) == 1


@pytest.mark.parametrize("bad", BAD)
def test_a_block_of_bad_values_is_given_up_soon(reads: list[int], bad: bytes) -> None:
    values: list[bytes | None] = [bad if n % 2 else value for n, value in enumerate(good(4_000))]
    reads.clear()
    decoded = DECODER.decode(values)
    assert decoded.missing >= 2_000
    assert decoded.rest.null_count == 4_000 - decoded.missing
    assert len(reads) <= 64
    if bad == b'{"a": 1.5}':  # it is found only after all of the block was read
        assert sum(reads) <= 7 * sum(len(value or b"") for value in values)


def test_a_number_that_stands_elsewhere_too_costs_others_their_reading_and_nothing_more() -> None:
    decoder = JsonDecoder(pa.struct([("a", pa.int64()), ("c", pa.float64())]))
    values = [b'{"a": 1, "c": 2.5}', b'{"a": 2, "c": 1.0}', b'{"a": 2.5, "c": 1.0}', b'{"a": 4, "c": 1.0}']
    decoded = decoder.decode(values)
    read = [row for row in decoded.records.to_pylist() if row is not None]
    assert {"a": 2, "c": 1.0} in read
    assert {"a": 4, "c": 1.0} in read
    assert decoded.rest[2].as_py() == values[2]


def test_a_decoder_can_be_sent_to_workers() -> None:
    again = pickle.loads(pickle.dumps(DECODER.in_zone("UTC")))
    assert again == DECODER.in_zone("Etc/UTC")
    assert again != DECODER
    assert again.decode([b'{"a": 1}']).records.to_pylist() == [{"a": 1, "b": None}]


@pytest.mark.parametrize(
    "kind",
    [
        t.MapType(t.StringType(), t.LongType()),
        t.VariantType(),
        t.DayTimeIntervalType(),
        t.YearMonthIntervalType(),
        t.CharType(3),
        t.VarcharType(3),
        t.StringType("UNICODE_CI"),
        t.NullType(),
        t.StructType(),
        t.StructType().add("x", t.LongType(), nullable=False),
        t.StructType().add("x", t.LongType()).add("X", t.LongType()),
        t.ArrayType(t.MapType(t.StringType(), t.LongType())),
    ],
    ids=str,
)
def test_types_that_are_sparks_alone_are_declined(kind: t.DataType) -> None:
    assert decoder_of(t.StructType().add("a", t.LongType()).add("b", kind)) is None


def test_arrow_types_are_those_that_spark_has() -> None:
    from pyspark.sql.pandas.types import to_arrow_type

    simple = [
        t.BooleanType(),
        t.ByteType(),
        t.ShortType(),
        t.IntegerType(),
        t.LongType(),
        t.FloatType(),
        t.DoubleType(),
    ]
    simple += [
        t.StringType(),
        t.BinaryType(),
        t.DateType(),
        t.TimestampType(),
        t.TimestampNTZType(),
        t.DecimalType(9, 2),
    ]
    for kind in (*simple, t.ArrayType(t.DateType()), t.StructType().add("a", t.ArrayType(t.TimestampType()))):
        assert arrow_type(kind) == to_arrow_type(kind, timezone="UTC")
