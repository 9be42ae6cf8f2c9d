"""What pyarrow reads of JSON is what Spark makes of it, to the last bit; what is not certain is left to Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from json_kit import ODD_NUMBERS, ODD_STRINGS, TIMES, Texts, plain, spark_says
from penstock.formats.json_arrow import Decoded, decoder_of
from penstock.formats.text import struct_type

pytestmark = pytest.mark.spark


def check(spark, schema: StructType, values, *, alone: bool = False) -> list[bool]:
    """Whatever is decoded is what Spark says; returns what was. ``alone``: each value in a block of its own."""
    decoder = decoder_of(schema)
    assert decoder is not None
    decoder = decoder.in_zone(spark.conf.get("spark.sql.session.timeZone"))
    decoded = decoder.decode(values)
    if alone:
        each = [decoder.decode([value]) for value in values]
        rest = pa.concat_arrays([one.rest for one in each])
        decoded = Decoded(pa.concat_arrays([one.records for one in each]), rest, sum(one.missing for one in each))
    records, goods = spark_says(spark, schema, values)
    assert decoded.records.type == decoder.record
    is_there = decoded.records.is_valid().to_pylist()
    ours, theirs = plain(decoded.records), plain(records)
    for place, value in enumerate(values):
        if is_there[place]:
            assert goods[place], value
            assert ours[place] == theirs[place], value
    assert decoded.rest.to_pylist() == [None if there else value for there, value in zip(is_there, values, strict=True)]
    assert decoded.missing == is_there.count(False)
    lines = [value for value in values if value is not None and b"\n" not in value] or [b""]
    together = decoder.decode_lines(b"\n".join(lines))
    assert together is None or together.equals(decoder.decode(lines).records)
    return is_there


def ddl(spark, text: str) -> StructType:
    return struct_type(spark, text)


GOOD = {
    "a BOOLEAN": ["true", "false", "null"],
    "a BYTE": ["-128", "127", "-0"],
    "a SHORT": ["-32768", "32767"],
    "a INT": ["-2147483648", "2147483647"],
    "a LONG": ["-9223372036854775808", "9223372036854775807"],
    "a FLOAT": ["1", "1.5", "16777217", "1.0000000596046448", "1e-46", "0.0", "0e5"],
    "a DOUBLE": ["1", "1.5e300", "5e-324", "12345678901234567890", "0.30000000000000004", "1E+2"],
    "a DECIMAL(5,2)": ["1", "1.5", "-999.99", '"1.50"', "1.500", "1e2", "0.00"],
    "a DECIMAL(38,18)": ["12345678901234567890.123456789012345678", "-1e-18"],
    "a STRING": ['""', '"ü\\n\\u00fc\\ud83d\\ude00\\u0000\\\\"', '"Inf NaN"'],
    "a BINARY": ['""', '"AA=="', '"AAE="', '"QUJD"'],
    "a DATE": ['"2026-01-01"', '"0001-01-01"', '"1582-10-10"'],
    "a TIMESTAMP": ['"2026-01-01T00:00:10Z"', '"2026-01-01 00:00:10.123456+01:00"', '"0001-01-01T00:00:00Z"'],
    "a TIMESTAMP_NTZ": ['"2026-01-01T00:00:10"', '"2026-01-01 00:00:10.5"'],
    "a ARRAY<INT>": ["[]", "[1, null]", "null"],
    "a STRUCT<b: STRING, c: ARRAY<STRUCT<d: DATE>>>": ["{}", '{"b": "x", "c": [{"d": "2026-01-01"}, {}, null]}'],
}


def test_good_records_of_every_type_are_decoded(spark):
    for schema, texts in GOOD.items():
        values = [f'{{"a": {text}, "x": [{{"a": {text}}}]}}'.encode() for text in texts]
        assert all(check(spark, ddl(spark, schema), values)), schema


def test_whatever_stands_in_a_field_is_what_spark_says_or_left_to_it(spark):
    odd = [*ODD_NUMBERS, *ODD_STRINGS, "true", "[]", "{}", "[1.5]", *(f'"{text}"' for text in TIMES)]
    for schema in GOOD:
        wrap = "[%s]" if "ARRAY<INT>" in schema else '{"b": "", "c": [{"d": %s}]}' if "STRUCT" in schema else "%s"
        values = [b'{"a": ' + (wrap % text).encode() + b"}" for text in odd]
        assert not all(check(spark, ddl(spark, schema), values, alone=True)), schema


RECORD = '{"a": 1, "b": "x"}'
ODD_VALUES = {
    "a null value": None,
    "nothing": "",
    "space": " ",
    "null": "null",
    "a list": "[]",
    "a list of records": f"[{RECORD}]",
    "two records": RECORD * 2,
    "two records on two lines": f"{RECORD}\n{RECORD}",
    "a record and a comma": f"{RECORD},{RECORD}",
    "a record and a null": f"{RECORD} null {RECORD}",
    "the envelope closed": f'{RECORD}], "c": [{RECORD}',
    "the envelope closed, and text": f"{RECORD}]}} {RECORD}",
    "a brace too many": f"{RECORD}}}",
    "another field": f'{RECORD}, "c": {RECORD}',
    "a record cut off": RECORD[:-1],
    "a record that ends like one": '{"a": {}',
    "a byte order mark": "\ufeff" + RECORD,
    "a NUL behind": f"{RECORD}\0}}",
    "a NUL within": '{"a": 1, "b": "\0"}',
    "a control character": '{"a": 1, "b": "\t"}',
    "no UTF-8": b'{"a": 1, "b": "\xff"}',
    "no UTF-8 in a name": b'{"a": 1, "\xff": 2}',
    "a surrogate in UTF-8": b'{"a": 1, "b": "\xed\xa0\x80"}',
    "a lone surrogate": '{"a": 1, "b": "\\ud800"}',
    "a number for a text": '{"a": 1, "b": 2}',
    "a text for a number": '{"a": "1", "b": ""}',
    "a broken number": '{"a": 1.0}',
    "a field twice": '{"a": 1, "a": 2}',
    "a field twice, of which one is wrong": '{"a": "x", "a": 2}',
    "a bare word": '{"a": 1, "c": Inf}',
    "another bare word": '{"a": 1, "c": [-NaN]}',
    "a bare word behind much space": '{"a": 1, "c":' + " " * 100 + "NaN}",
    "too deep for Jackson": '{"a": 1, "c": ' + "[" * 999 + "]" * 999 + "}",
    "far too deep": '{"a": 1, "c": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "too many digits": '{"a": 1, "c": ' + "9" * 1_001 + "}",
    "too long a name": '{"a": 1, "' + "c" * 50_001 + '": 1}',
    "single quotes": "{'a': 1}",
    "a comment": '{"a": 1 /* one */}',
    "a comma too many": '{"a": 1,}',
}
CERTAIN_VALUES = {
    "space around": f" \r\n{RECORD}\t",
    "lines": '{\n "a":\n1,\r\n"b"\t: "x"\n}',
    "no fields": "{}",
    "other fields only": '{"A": 1, "B": [{"a": "x"}]}',
    "a field that is not wanted twice": '{"a": 1, "c": 1, "c": "x"}',
    "a deep field that is not wanted": '{"a": 1, "c": ' + "[" * 800 + "]" * 800 + "}",
    "words in a text": '{"a": 1, "b": "NaN Inf -Infinity: null"}',
    "an escaped name": '{"\\u0061": 1}',
    "long": '{"a": 1, "b": "' + "x" * 30_000 + '"}',
}


def as_bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def test_odd_values_are_left_to_spark_and_leave_others_alone(spark):
    schema = ddl(spark, "a LONG, b STRING")
    good = [f'{{"a": {n}, "b": "{n}"}}'.encode() for n in range(50)]
    for odds, is_certain in ((ODD_VALUES, False), (CERTAIN_VALUES, True)):
        for name, text in odds.items():
            values = [*good[:20], as_bytes(text), *good[20:]]
            found = decoder_of(schema).decode(values).records.is_valid().to_pylist()
            assert found == [True] * 20 + [is_certain] + [True] * 30, name
    everything = [as_bytes(text) for text in (*ODD_VALUES.values(), *CERTAIN_VALUES.values())]
    check(spark, schema, [value for pair in zip(everything, good, strict=False) for value in pair])


def test_ten_megabytes_are_left_to_spark(spark):
    schema = ddl(spark, "a LONG, b STRING")
    long = b'{"a": 1, "b": "' + b"x" * 10_000_000 + b'"}'
    assert check(spark, schema, [RECORD.encode(), long, RECORD.encode()]) == [True, False, True]


def test_times_without_a_zone_are_left_to_spark_unless_the_session_is_in_utc(spark):
    values = [b'{"a": "2026-01-01T00:00:10"}', b'{"a": "2026-01-01T00:00:10Z"}', b'{"a": "2026-01-01"}']
    schema = ddl(spark, "a TIMESTAMP")
    usual = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone, certain in (("UTC", True), ("Etc/UTC", True), ("Asia/Tokyo", False), ("Europe/London", False)):
            spark.conf.set("spark.sql.session.timeZone", zone)
            assert check(spark, schema, values) == [certain, True, False]
    finally:
        spark.conf.set("spark.sql.session.timeZone", usual)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), hostile=st.sampled_from([0.0, 0.02, 0.3]))
def test_any_records_of_any_schema(spark, seed, hostile):
    texts = Texts(seed, hostile=hostile)
    schema = texts.schema()
    found = check(spark, schema, [texts.value(schema) for _ in range(400)])
    assert sum(found) > 0.9 * len(found) or hostile
