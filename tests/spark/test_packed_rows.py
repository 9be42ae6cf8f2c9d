"""Cached rows packed into blocks of columns: the same rows, of any type, in less memory."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from penstock.errors import LayerMissing
from penstock.spark.blocks import explain_lost_blocks, free_blocks, local_checkpoint
from penstock.spark.kept_rows import SparkClasses
from penstock.spark.packed_rows import RowPacker
from window_harness import exchanges, persistent

pytestmark = pytest.mark.spark

KINDS = {
    "BOOLEAN": "id % 2 = 0",
    "TINYINT": "CAST(id % 100 AS TINYINT)",
    "BIGINT": "id * 1000000007",
    "DOUBLE": "CASE id % 5 WHEN 0 THEN double('NaN') WHEN 1 THEN -0.0D WHEN 2 THEN double('-Infinity') ELSE id / 3 END",
    "FLOAT": "CASE id % 4 WHEN 0 THEN float('NaN') WHEN 1 THEN -0.0F ELSE CAST(id / 3 AS FLOAT) END",
    "DECIMAL(9, 2)": "CAST(id / 7 AS DECIMAL(9, 2))",
    "DECIMAL(38, 10)": "CAST(id * 123456789012345678BD AS DECIMAL(38, 10))",
    "STRING": "repeat('é', CAST(id % 9 AS INT))",
    "STRING COLLATE UTF8_LCASE": "CAST(id AS STRING) COLLATE UTF8_LCASE",
    "BINARY": "unhex(hex(id))",
    "DATE": "date_add(DATE'1900-01-01', CAST(id AS INT))",
    "TIMESTAMP": "timestamp_micros(id * 1000003 - 5)",
    "TIMESTAMP_NTZ": "CAST(timestamp_micros(id * 1000003) AS TIMESTAMP_NTZ)",
    "INTERVAL DAY TO SECOND": "make_dt_interval(CAST(id AS INT), 1, 2, 3.000004)",
    "ARRAY<STRING>": "transform(sequence(0, id % 4), n -> IF(n = 1, NULL, CAST(n AS STRING)))",
    "MAP<STRING, INT>": "map('a', CAST(id AS INT), 'b', NULL)",
    "STRUCT<a: INT, b: ARRAY<STRUCT<c: STRING>>>": "struct(CAST(id AS INT) AS a, array(struct(string(id) AS c)) AS b)",
}


def every_kind(spark, rows: int):
    """Rows with a column for each kind, of which some are NULL."""
    columns = [f"IF((id + {place}) % 11 = 0, NULL, {text}) AS c{place}" for place, text in enumerate(KINDS.values())]
    return spark.range(0, rows, 1, 1).selectExpr("id AS k", *columns)


@pytest.fixture
def packer(spark):
    return RowPacker(SparkClasses(spark))


@pytest.mark.parametrize("rows", [0, 1, 2_499, 6_001])
def test_rows_of_every_kind_are_the_same_in_the_same_order(spark, packer, rows):
    before = persistent(spark)
    kept = local_checkpoint(every_kind(spark, rows))
    packed = packer.pack(kept)
    assert packed is not None
    assert packed.frame.schema == kept.schema
    comparable = [f"c{place}" for place, kind in enumerate(KINDS) if not kind.startswith("MAP")]
    expected = kept.select("*", F.hash(*comparable)).collect()
    free_blocks(kept)
    found = packed.frame.select("*", F.hash(*comparable)).collect()
    assert [repr(row) for row in found] == [repr(row) for row in expected], "text: NaN is not itself"
    packed.free()
    packed.free()
    assert persistent(spark) <= before


def test_rows_stay_in_their_partitions_so_that_grouping_them_needs_no_exchange(spark, packer):
    kept = local_checkpoint(spark.range(1_000).selectExpr("id % 50 AS k", "id").repartition(3, "k"))
    packed = packer.pack(kept)
    assert packed is not None
    where = [F.spark_partition_id(), "k", "id"]
    assert packed.frame.select(*where).collect() == kept.select(*where).collect()
    totals = packed.frame.groupBy("k").sum("id")
    assert exchanges(totals) == 0
    assert sorted(totals.collect()) == sorted(kept.groupBy("k").sum("id").collect())
    free_blocks(kept)
    packed.free()


def test_rows_of_a_kind_that_cannot_be_packed_are_left_as_they_are(spark, packer):
    before = persistent(spark)
    kept = local_checkpoint(spark.sql("SELECT NULL AS nothing, 1 AS one"))
    packer._kind_of = _refuse(packer._kind_of, spark)
    assert packer.pack(kept) is None
    free_blocks(kept)
    assert persistent(spark) <= before


def _refuse(real, spark):
    """Spark's own refusal, of each kind: there is none that it refuses and that a column of a layer can have."""
    return lambda _: real(spark._jvm.org.apache.spark.sql.types.ObjectType(spark._jvm.java.lang.Object().getClass()))


@pytest.mark.parametrize("what", ["rows", "blocks"])
def test_a_lost_block_is_an_error_and_never_a_recomputation(spark, packer, what):
    kept = local_checkpoint(spark.range(10))
    if what == "rows":
        free_blocks(kept)
        with pytest.raises(LayerMissing), explain_lost_blocks("totals"):
            packer.pack(kept)
        return
    packed = packer.pack(kept)
    free_blocks(kept)
    packed.free()
    with pytest.raises(LayerMissing), explain_lost_blocks("totals"):
        packed.frame.collect()
