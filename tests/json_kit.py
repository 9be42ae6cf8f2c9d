"""JSON text for tests: what Spark makes of it, and texts of every kind for any schema."""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as t

from penstock.formats import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

_words = str.split

NAMES = ("a", "b", "a.b", "ü", "long name", "_record", "v", "0")
ODD_NUMBERS = _words(
    "0 -0 -0.0 1 1.0 1e3 1E+2 1e-2 0.1 -1.5 12345678901234567890 123456789012345678901234567890 1e400 1e-400 127 128 "
    "-129 255 256 32768 2147483648 9223372036854775807 9223372036854775808 16777217 1.0000000596046448 1.50 99.995 "
    "0.30000000000000004 01 1. .5 +1 - 1e 0x1 NaN Infinity -Infinity INF Inf -Inf nan 1_000 2.2250738585072011e-308 "
    "5e-324 3.4028236e38 7e-46 1e1 100 1000.00 123456789012345678.123456789012345678"
)
ODD_STRINGS = _words(
    '"" "x" "ü€😀" "\\u0000" "\\ud83d\\ude00" "\\ud83d" "\\ude00" "\\ud83d\\u0041" "\\\\ud83d\\ude00" "\\\\" "\\"" '
    '"\\/" "\\x" "\\u12" \'x\' "NaN" "Infinity" ":NaN" "Inf" "Infant" "-INF" "true" "null" "1" "1.5" "+1.5" "1." '
    '".5" "1e2" "{}" "AA==" "AAE=" "AA" "AB==" "====" "QUJD" "QU JD" "-_-_"'
)
_TIMES = _words(
    "2026-01-01T00:00:10Z 2026-01-01T00:00:10.5Z 1969-12-31T23:59:59.123456Z 9999-12-31T23:59:59.999999Z "
    "2026-01-01T00:00:10+01:00 2026-01-01T00:00:10-17:59 2026-01-01T00:00:10.1234567Z "
    "2026-01-01T00:00:10+18:00 2026-01-01T00:00:10+19:00 2026-01-01T00:00:10+0100 2026-01-01T00:00:10+01 "
    "2026-01-01T00:00:10z 2026-01-01T00:00Z 2026-01-01T10Z "
    "2026-01-01T00:00:10 2026-01-01T00:00:10.25 2026-01-01 2026-02-29T00:00:00Z 2024-02-29T00:00:00Z 2026-02-30 "
    "2026-01-01T24:00:00Z 2026-01-01T23:59:60Z 0000-01-01T00:00:00Z 0001-01-01T00:00:00Z "
    "1582-10-10 1582-10-10T00:00:00Z 1900-01-01T00:00:00 1883-11-18T12:03:58Z 12026-01-01T00:00:00Z 2026-1-1 "
    "2026-01-01T1:2:3Z 2026-01-01T00:00:10[UTC] 2026-03-29T02:30:00 1767225600 0000-00-00 yesterday"
)
TIMES = [
    *_TIMES,
    *(text.replace("T", " ") for text in _TIMES if "T" in text),
    " 2026-01-01 ",
    "2026-01-01T00:00:10 UTC",
]


def spark_says(
    spark: SparkSession, schema: t.StructType, values: Sequence[bytes | None]
) -> tuple[pa.Array, list[bool]]:
    """The records that Spark makes of values, and which of them are good."""
    table = pa.table({"n": pa.array(range(len(values)), pa.int64()), "value": pa.array(values, pa.binary())})
    decoded = text.decode_json(spark.createDataFrame(table), "value", schema).orderBy("n").toArrow()
    return decoded[text.DECODED].combine_chunks(), decoded[text.REASON].is_null().to_pylist()


def plain(array: pa.Array) -> list[Any]:
    """Values that are equal if they are the same to the last bit, and can stand outside of what Python has."""
    kind = array.type
    if pa.types.is_struct(kind):
        rows: list[Any] = list(zip(*(plain(array.field(i)) for i in range(kind.num_fields)), strict=True))
    elif pa.types.is_list(kind):
        values, offsets = plain(array.values), array.offsets.to_pylist()
        rows = [values[start:end] for start, end in itertools.pairwise(offsets)]
    elif pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        rows = array.view(f"int{kind.bit_width}").to_pylist()
    else:
        return [str(value) if pa.types.is_decimal(kind) and value is not None else value for value in array.to_pylist()]
    return [row if is_there else None for row, is_there in zip(rows, array.is_valid().to_pylist(), strict=True)]


class Texts:
    """Makes values of a schema, good ones for the most part."""

    def __init__(self, seed: int, *, hostile: float = 0.05) -> None:
        self.random = random.Random(seed)
        self.hostile = hostile

    def schema(self, depth: int = 2) -> t.StructType:
        """Any that can be decoded."""
        names = self.random.sample(NAMES, self.random.randint(1, 5))
        return t.StructType([t.StructField(name, self.kind(depth)) for name in names])

    def kind(self, depth: int) -> t.DataType:
        """Any type that can be decoded."""
        pick = self.random.choice
        if depth and self.random.random() < 0.3:
            return pick([lambda: t.ArrayType(self.kind(depth - 1)), lambda: self.schema(depth - 1)])()
        digits = self.random.randint(1, 38)
        simple = [t.BooleanType(), t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType(), t.FloatType()]
        simple += [
            t.DoubleType(),
            t.StringType(),
            t.BinaryType(),
            t.DateType(),
            t.TimestampType(),
            t.TimestampNTZType(),
        ]
        return pick([*simple, t.DecimalType(digits, self.random.randint(0, digits))])

    def value(self, schema: t.StructType) -> bytes | None:
        """A value of a topic: mostly a record."""
        text = self._object(schema).encode()
        if self.random.random() >= self.hostile:
            return text
        head, tail = text[: (cut := self.random.randint(0, len(text)))], text[cut:]
        wholes = [None, b"", b"null", b"[]", b"1", b"{}", b"{", b" " + text + b"\n", text + text, text + b"," + text]
        wholes += [b"\xff" + text, b"\xef\xbb\xbf" + text, text + b'}, "v": ' + text, head]
        between = [b"\0", b"\xed\xa0\x80", b"\n", b'"', b"\\", bytes([self.random.randint(0, 255)])]
        return self.random.choice([*wholes, *(head + each + tail for each in between)])

    def text(self, kind: t.DataType) -> str:
        """JSON of a type, now and then of another."""
        pick = self.random.choice
        if self.random.random() < self.hostile / 2:
            return pick(
                [*ODD_NUMBERS, *ODD_STRINGS, "true", "null", "[]", "{}", "[1]", '{"a":1}', json.dumps(pick(TIMES))]
            )
        if self.random.random() < 0.05:
            return "null"
        if isinstance(kind, t.StructType):
            return self._object(kind)
        if isinstance(kind, t.ArrayType):
            return "[" + ", ".join(self.text(kind.elementType) for _ in range(self.random.randint(0, 3))) + "]"
        return self._simple(kind)

    def _object(self, kind: t.StructType) -> str:
        fields = [(field.name, self.text(field.dataType)) for field in kind.fields if self.random.random() < 0.95]
        if self.random.random() < 0.3:
            extra = self.random.choice([*ODD_NUMBERS[:12], '"x"', '{"a": [1, {"b": null}]}', "[[]]", "true"])
            fields.append((self.random.choice(["more", "AA", "ä"]), extra))
        if self.random.random() < self.hostile / 2:
            fields += fields[:1]
        self.random.shuffle(fields)
        colon, comma = self.random.choice([(":", ","), (": ", ", "), (" :\t", "\n,")])
        ascii = self.random.random() < 0.5
        return "{" + comma.join(json.dumps(name, ensure_ascii=ascii) + colon + text for name, text in fields) + "}"

    def _simple(self, kind: t.DataType) -> str:
        pick, number = self.random.choice, self.random.getrandbits
        integers = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
        texts = ["", "x", "ü€😀", "Inf", "a\nb", "\\", '"', "\x7f", "longer " * number(4)]
        if isinstance(kind, t.DecimalType):
            return self._decimal(kind)
        if bits := integers.get(kind.simpleString()):
            return str(number(bits) - 2 ** (bits - 1))
        return pick(
            {
                "boolean": ["true", "false"],
                "string": [json.dumps(pick(texts), ensure_ascii=pick([True, False]))],
                "binary": ['""', '"AA=="', '"AAE="', '"QUJD"', '"+/+/"'],
                "float": [f"{self.random.uniform(-1e3, 1e3):.{number(4)}f}", f"{number(70)}e{number(5) - 40}"],
                "date": ['"2026-01-01"', '"1969-12-31"', '"0001-01-01"', '"9999-12-31"'],
                "timestamp": [json.dumps(text) for text in TIMES[:6]],
                "timestamp_ntz": ['"2026-01-01T00:00:10"', '"1969-12-31 23:59:59.999999"', '"2026-03-29T02:30:00.5"'],
                "double": [repr(self.random.random() * 10.0 ** (number(9) - 256)), str(number(70))],
            }[kind.simpleString()]
        )

    def _decimal(self, kind: t.DecimalType) -> str:
        digits = str(self.random.getrandbits(130))
        whole, part = (self.random.randint(0, most) for most in (kind.precision - kind.scale, kind.scale))
        text = (digits[:whole].lstrip("0") or "0") + (f".{digits[-part:]}" if part else "")
        return self.random.choice([text, f"-{text}", f'"{text}"'])
