"""Parquet files are read as Spark reads them: whole, cut by row groups, or with a colon in the name."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.clock import MonotonicTime, WallTime
from penstock.connectors.files import ranges
from penstock.connectors.files.source import Source
from penstock.errors import DecodeError, GraphError
from penstock.interfaces.source import PlannedBatch, ReadLimit, SourceContext
from penstock.spark.session import clone_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS: Final = 300
CUT: Final = 64 * 1024
T: Final = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001 - some types have no time zone
KEYS: Final = pa.struct([("X", pa.int64())])
READ: Final[dict[str, tuple[Any, str]]] = {
    "bool": (pa.array([True, None, False]), "BOOLEAN"),
    "int8": (pa.array([1, None, -2], pa.int8()), "BYTE"),
    "int16": (pa.array([1, None, -2], pa.int16()), "SHORT"),
    "int32": (pa.array([1, None, -2], pa.int32()), "INT"),
    "int64": (pa.array([1, None, -2]), "LONG"),
    "uint8": (pa.array([1, None, 200], pa.uint8()), "SHORT"),
    "uint16": (pa.array([1, None, 60_000], pa.uint16()), "INT"),
    "uint32": (pa.array([1, None, 2**32 - 1], pa.uint32()), "LONG"),
    "uint64": (pa.array([1, None, 2**64 - 1], pa.uint64()), "DECIMAL(20, 0)"),
    "float": (pa.array([1.5, None, float("nan")], pa.float32()), "FLOAT"),
    "double": (pa.array([1.5, None, float("inf")]), "DOUBLE"),
    "int8_as_int": (pa.array([1, None, -2], pa.int8()), "INT"),
    "int32_as_long": (pa.array([1, None, -2], pa.int32()), "LONG"),
    "int32_as_double": (pa.array([1, None, -2], pa.int32()), "DOUBLE"),
    "int32_as_decimal": (pa.array([1, None, -2], pa.int32()), "DECIMAL(12, 2)"),
    "float_as_double": (pa.array([1.5, None], pa.float32()), "DOUBLE"),
    "decimal_9": (pa.array([Decimal("1.25"), None], pa.decimal128(9, 2)), "DECIMAL(9, 2)"),
    "decimal_18": (pa.array([Decimal("1.25"), None], pa.decimal128(18, 4)), "DECIMAL(18, 4)"),
    "decimal_38": (pa.array([Decimal("1.25"), None], pa.decimal128(38, 10)), "DECIMAL(38, 10)"),
    "decimal_wider": (pa.array([Decimal("1.25"), None], pa.decimal128(9, 2)), "DECIMAL(12, 3)"),
    "string": (pa.array(["a", None, "é"]), "STRING"),
    "large_string": (pa.array(["a", None], pa.large_string()), "STRING"),
    "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), "STRING"),
    "string_as_binary": (pa.array(["a", None]), "BINARY"),
    "binary": (pa.array([b"a", None]), "BINARY"),
    "binary_as_string": (pa.array([b"a", None]), "STRING"),
    "fixed_binary": (pa.array([b"0123456789abcdef", None], pa.binary(16)), "BINARY"),
    "uuid": (pa.array([b"0123456789abcdef", None], pa.uuid()), "BINARY"),
    "date": (pa.array([T.date(), None]), "DATE"),
    "date64": (pa.array([T.date(), None], pa.date64()), "DATE"),
    "date_as_ntz": (pa.array([T.date(), None]), "TIMESTAMP_NTZ"),
    "timestamp_ms": (pa.array([T.replace(microsecond=0), None], pa.timestamp("ms", "UTC")), "TIMESTAMP"),
    "timestamp_us": (pa.array([T, None], pa.timestamp("us", "UTC")), "TIMESTAMP"),
    "timestamp_ntz": (pa.array([T, None], pa.timestamp("us")), "TIMESTAMP_NTZ"),
    "timestamp_as_ntz": (pa.array([T, None], pa.timestamp("us", "UTC")), "TIMESTAMP_NTZ"),
    "ntz_as_timestamp": (pa.array([T, None], pa.timestamp("us")), "TIMESTAMP"),
    "nanoseconds_as_long": (pa.array([T, None], pa.timestamp("ns")), "LONG"),
    "time_as_long": (pa.array([T.time(), None]), "LONG"),
    "duration": (pa.array([dt.timedelta(seconds=1), None]), "INTERVAL DAY TO SECOND"),
    "null": (pa.nulls(3), "INT"),
    "list": (pa.array([[1, None], None, []], pa.list_(pa.int64())), "ARRAY<LONG>"),
    "list_wider": (pa.array([[1, None], None, []], pa.list_(pa.int32())), "ARRAY<LONG>"),
    "large_list": (pa.array([[1, None], None, []], pa.large_list(pa.int64())), "ARRAY<LONG>"),
    "fixed_list": (pa.array([[1, None], None, [2, 3]], pa.list_(pa.int64(), 2)), "ARRAY<LONG>"),
    "list_of_list": (pa.array([[[1], None], None]), "ARRAY<ARRAY<LONG>>"),
    "list_of_struct": (pa.array([[{"Id": 1, "more": 2}], None]), "ARRAY<STRUCT<id: LONG>>"),
    "map": (pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())), "MAP<STRING, LONG>"),
    "map_of_struct": (
        pa.array([[("a", {"X": 1})], None], pa.map_(pa.string(), KEYS)),
        "MAP<STRING, STRUCT<x: LONG, y: STRING>>",
    ),
    "struct": (pa.array([{"a": 1, "b": "x"}, None]), "STRUCT<a: LONG, b: STRING>"),
    "struct_of_other_case": (pa.array([{"Id": 1, "B": "x"}, None]), "STRUCT<b: STRING, id: LONG>"),
    "struct_with_more": (pa.array([{"Id": 1, "B": "x"}, None]), "STRUCT<id: LONG, c: INT>"),
}
"""By a column's name: what is in the file, and its type in the schema, where Spark reads the one as the other."""
REFUSED: Final[dict[str, tuple[Any, str]]] = {
    "half": (pa.array([1.5, None]).cast(pa.float16()), "FLOAT"),
    "int64_as_int": (pa.array([1, None]), "INT"),
    "int64_as_double": (pa.array([1, None]), "DOUBLE"),
    "int64_as_string": (pa.array([1, None]), "STRING"),
    "double_as_float": (pa.array([1.5, None]), "FLOAT"),
    "bool_as_int": (pa.array([True, None]), "INT"),
    "decimal_narrower": (pa.array([Decimal("1.25"), None], pa.decimal128(12, 2)), "DECIMAL(9, 2)"),
    "decimal_of_50": (pa.array([Decimal("1.25"), None], pa.decimal256(50, 2)), "DECIMAL(38, 2)"),
    "string_as_int": (pa.array(["1", None]), "INT"),
    "date_as_timestamp": (pa.array([T.date(), None]), "TIMESTAMP"),
    "timestamp_as_date": (pa.array([T, None], pa.timestamp("us", "UTC")), "DATE"),
    "int64_as_timestamp": (pa.array([1, None]), "TIMESTAMP"),
    "nanoseconds": (pa.array([T, None], pa.timestamp("ns", "UTC")), "TIMESTAMP"),
    "int64_as_struct": (pa.array([1, None]), "STRUCT<id: LONG>"),
    "list_as_string": (pa.array([["a"], None]), "STRING"),
    "struct_of_another_type": (pa.array([{"id": "x"}, None]), "STRUCT<id: LONG>"),
    "struct_with_id_and_ID": (pa.array([{"id": 1, "ID": 2}, None]), "STRUCT<id: LONG>"),
    "fixed_as_string": (pa.array([b"0123456789abcdef", None], pa.binary(16)), "STRING"),
}
"""The same, where Spark fails."""


def fill(values: Any) -> Any:
    return pa.concat_arrays([values] * (ROWS // len(values) + 1)).slice(0, ROWS)


def write(folder: Path, columns: dict[str, Any], **options: Any) -> list[tuple[Path, int]]:
    """The file in folders of its own, by another name in one; for each, the folder and into what it is to be cut."""
    columns["pad"] = pa.array([os.urandom(1000) for _ in range(ROWS)])
    for name in ("plain/a.parquet", "colon/12:30.parquet"):
        (folder / name).parent.mkdir()
        pq.write_table(pa.table(columns), folder / name, row_group_size=50, **options)
    return [(folder / name, split) for name in ("plain", "colon") for split in (10**9, CUT)]


def rows_of(spark: SparkSession, source: Source) -> tuple[list[str], int]:
    """The rows, and in how many batches they came."""
    reader = source.open(SourceContext(uid="in", spark=spark), None)
    rows, batches = [], 0
    while isinstance(poll := reader.poll(now=MonotonicTime(0), wall=WallTime(0), limits=ReadLimit()), PlannedBatch):
        rows += [repr(row) for row in reader.frame(poll.plan).collect()]
        batches += 1
    return rows, batches


def check_alike(spark: SparkSession, forms: list[tuple[Path, int]], schema: str) -> list[str]:
    wanted = [repr(row) for row in spark.read.schema(schema).parquet(str(forms[0][0] / "a.parquet")).collect()]
    for folder, split in forms:
        rows, batches = rows_of(spark, Source(folder, format="parquet", schema=schema, split_bytes=split))
        assert rows == wanted, (folder, split)
        assert (batches > 1) == (split == CUT)
    return wanted


def test_every_type_that_spark_reads_is_read_the_same_in_every_form(spark: SparkSession, tmp_path: Path) -> None:
    forms = write(tmp_path, {name.upper(): fill(values) for name, (values, _) in READ.items()})

    rows = check_alike(spark, forms, ", ".join(f"{name} {kind}" for name, (_, kind) in READ.items()))

    assert len(READ) >= 39
    assert len(rows) == ROWS
    assert "struct_of_other_case=Row(b='x', id=1)" in rows[0]


def test_int96_is_read_the_same_in_every_form(spark: SparkSession, tmp_path: Path) -> None:
    forms = write(tmp_path, {"at": fill(pa.array([T, None], pa.timestamp("ns")))}, use_deprecated_int96_timestamps=True)

    assert "678901" in check_alike(spark, forms, "AT TIMESTAMP")[0]


@pytest.mark.parametrize("name", REFUSED)
def test_another_type_is_refused_with_its_column_in_every_form(spark: SparkSession, tmp_path: Path, name: str) -> None:
    values, kind = REFUSED[name]
    errors = set()
    for folder, split in write(tmp_path, {name: fill(values)}):
        with pytest.raises(Exception, match="FAILED_READ_FILE") as failure:
            rows_of(spark, Source(folder, format="parquet", schema=f"{name} {kind}", split_bytes=split))
        explained = ranges.explain(failure.value)
        assert isinstance(explained, DecodeError)
        errors.add(str(explained).replace("colon/12:30.parquet", "plain/a.parquet"))

    (error,) = errors
    assert error.count("a.parquet") == 1
    assert f"[{name}" in error or f" {name} " in error or "id, ID" in error


def test_a_type_that_spark_does_not_have_is_refused_with_the_file_and_the_remedy(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path, {"at": fill(pa.array([T, None], pa.timestamp("ns")))})

    with pytest.raises(
        GraphError, match=r"The columns of file '.*a\.parquet' cannot be taken from it: .*NANOS.* Give schema="
    ):
        Source(tmp_path / "plain", format="parquet").schema(spark)


def test_names_of_fields_differ_by_case_where_the_session_says_so(spark: SparkSession, tmp_path: Path) -> None:
    strict = clone_session(spark)
    strict.conf.set("spark.sql.caseSensitive", "true")
    forms = write(tmp_path, {"user": fill(pa.array([{"Id": 1, "id": 2}])), "USER": fill(pa.array([{"id": 3}]))})

    assert check_alike(strict, forms, "user STRUCT<Id: LONG, ID: LONG>")[0] == "Row(user=Row(Id=1, ID=None))"


@pytest.mark.parametrize(
    ("declared", "column"),
    [
        ("a STRUCT<b: ARRAY<INTERVAL>>", "a.b.element"),
        ("a CHAR(3)", "a"),
        ("a MAP<STRING, VARCHAR(3)>", "a.value"),
        ("a STRUCT<b: INT, B: INT>", "a"),
    ],
)
def test_a_column_that_no_parquet_file_has_is_refused_at_the_start(
    spark: SparkSession, tmp_path: Path, declared: str, column: str
) -> None:
    with pytest.raises(GraphError, match=f"^Column '{column}' "):
        Source(tmp_path, format="parquet", schema=declared).schema(spark)
