from __future__ import annotations

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as t

from penstock.errors import DecodeError, GraphError, SchemaMismatch
from penstock.formats import text

pytestmark = pytest.mark.spark

VALUES = """
    (1, '{"id": 1, "at": "2026-01-01T00:00:10Z", "more": 0}'),
    (2, NULL),
    (3, '{"id": "x"}'),
    (4, ''),
    (5, '{"id": null}'),
    (6, '{"id": 2} {"id": 3}')
"""


@pytest.fixture
def frame(spark):
    return spark.sql(f"SELECT * FROM VALUES {VALUES} AS t(key, value)").cache()


@pytest.fixture
def schema(spark):
    return text.struct_type(spark, "id LONG, at TIMESTAMP")


def test_split_keeps_good_columns_on_one_side_and_whole_bad_rows_on_the_other(frame, schema):
    decoded = text.decode_json(frame, "value", schema)
    good = text.drop_malformed(decoded, "value")
    assert good.schema == text.parsed_schema(frame.schema, "value", schema)
    assert [(row.key, row.id) for row in good.orderBy("key").collect()] == [(1, 1), (5, None)]
    bad = text.malformed(decoded)
    assert bad.columns == ["key", "value", "_error"]
    told = {row.key: (row.value, row._error) for row in bad.collect()}
    assert told[2] == (None, "null value")
    assert told[3][0] == '{"id": "x"}'
    assert told[3][1] == 'field \'id\' is not of its declared type bigint: {"id": "x"}'
    assert told[4][1] == "malformed JSON: "
    assert told[6][1] == 'malformed JSON, or a field that is not of its declared type: {"id": 2} {"id": 3}'
    assert sorted(told) == [2, 3, 4, 6]


def test_a_schema_of_types_is_read_again_whatever_its_names(spark):
    inner = t.StructType().add("order-id", t.LongType()).add("a`b", t.ArrayType(t.DecimalType(10, 2)))
    schema = t.StructType().add("@type", t.StringType()).add("one", inner)
    schema.add("many", t.ArrayType(inner)).add("named", t.MapType(t.StringType(), inner)).add("none", t.StructType())
    assert text.struct_type(spark, text.to_ddl(schema)) == schema


MORE_THAN_A_RECORD = [
    '{"id": 1}}',
    '{"id": 1}} more',
    '{"id": 1}, "more": 2',
    '{"id": 1}, {"id": 2}',
    '{"id": 1}]} more',
]
"""Texts that begin with a good record."""


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ('{"id": 1, "at": "soon", "user": null}', "field 'at' is not of its declared type timestamp"),
        (
            '{"id": 1.5, "at": "soon", "more": 1}',
            "field 'id' is not of its declared type bigint, field 'at' is not of its declared type timestamp",
        ),
        ('{"id": 1, "place": {"x": "east"}}', "malformed JSON, or a nested field that is not of its declared type"),
        ('{"id": 1, "place": 7}', "field 'place' is not of its declared type struct<x:int>"),
        ('{"id": 1, "a b": "c"}', "field 'a b' is not of its declared type int"),
        ('{"id": 1', "malformed JSON"),
        ("[1]", "malformed JSON"),
        *((record, "malformed JSON, or a field that is not of its declared type") for record in MORE_THAN_A_RECORD),
    ],
)
def test_the_field_that_is_wrong_is_named(spark, record, told):
    schema = text.struct_type(spark, "id LONG, at TIMESTAMP, user STRING, place STRUCT<x: INT>, `a b` INT")
    frame = spark.createDataFrame([(record,)], "value STRING")
    (row,) = text.malformed(text.decode_json(frame, "value", schema)).collect()
    assert row._error == f"{told}: {record}"


@pytest.mark.parametrize("name", ["_penstock_records", "value"])
def test_a_record_may_have_the_names_of_its_envelope(spark, name):
    schema = text.struct_type(spark, f"id LONG, {name} STRING")
    frame = spark.createDataFrame([(f'{{"id": 1, "{name}": "x"}}',)], "value STRING")
    ((decoded, why),) = text.decode_json(frame, "value", schema).select("_parsed", "_bad").collect()
    assert (tuple(decoded), why) == ((1, "x"), None)


@pytest.mark.parametrize(
    ("options", "record", "is_good"),
    [
        ({"maxNestingDepth": 2}, '{"place": {"x": 1}}', True),
        ({"maxnestingdepth": "1"}, '{"place": {"x": 1}}', False),
        ({"allowComments": True}, '{"place": {"x": 1}} // one', True),
    ],
)
def test_options_mean_the_record_and_not_its_envelope(spark, options, record, is_good):
    schema = text.struct_type(spark, "place STRUCT<x: INT>")
    frame = spark.createDataFrame([(record,)], "value STRING")
    ((why,),) = text.decode_json(frame, "value", schema, options).select("_bad").collect()
    assert (why is None) is is_good


def test_a_null_in_place_of_a_line_of_csv_fails_with_the_ways_out_for_csv(spark):
    schema = text.struct_type(spark, "id LONG")
    decoded = text.decode_csv(spark.sql("SELECT CAST(NULL AS STRING) AS value"), "value", schema)
    with pytest.raises(Exception, match=r"penstock\.decode:") as failure:
        text.failfast(decoded, "value").count()
    told = str(text.explain(failure.value))
    assert told.startswith("A row: malformed CSV: null value.")
    assert "parse_csv(" in told
    assert "parse_json(" not in told


def test_the_place_of_a_row_is_its_offset_its_shard_or_its_file(spark):
    row = (
        "'orders' AS topic, 3 AS partition, 17L AS offset, '/in/a.txt' AS _file, 'shardId-0' AS shard, "
        "'495' AS sequence_number"
    )
    told = [
        spark.sql(f"SELECT {text.place_of(names)} FROM (SELECT {row})").first()[0]
        for names in (
            ["value", "topic", "partition", "offset"],
            ["_file", "offset"],
            ["data", "shard", "sequence_number"],
        )
    ]
    assert told == ["orders/3, offset 17", "/in/a.txt", "Shard shardId-0, sequence number 495"]
    unused = f"SELECT {text.place_of(['shard', 'sequence_number'])} FROM (SELECT 's' AS shard, NULL AS sequence_number)"
    assert spark.sql(unused).first()[0] == "Shard s"
    assert text.place_of(["value", "offset"]) is None


def test_every_side_decodes_once_whatever_is_done_with_it(frame, schema):
    decoded = text.decode_json(frame, "value", schema)
    for side in (
        text.drop_malformed(decoded, "value").where("id > 0").select("at", "id"),
        text.malformed(decoded).where("_error like 'mal%'"),
        text.permissive(decoded, "value").where("id > 0"),
        text.failfast(decoded, "value").where("id > 0"),
        decoded.observe("bad", F.count_if(F.col("_bad").isNotNull())).where("_bad is null").select("_parsed.*"),
    ):
        plan = side._jdf.queryExecution().executedPlan().toString()
        assert plan.count("from_json") == 1, plan


def test_null_gives_a_row_of_nulls_for_a_bad_record(frame, schema):
    rows = text.permissive(text.decode_json(frame, "value", schema), "value").orderBy("key").collect()
    assert [(row.key, row.id) for row in rows] == [(1, 1), (2, None), (3, None), (4, None), (5, None), (6, None)]


def test_fail_names_the_place_and_the_text(frame, schema):
    decoded = text.decode_json(frame.where("key = 3"), "value", schema)
    with pytest.raises(Exception, match=r"penstock\.decode:") as failure:
        text.failfast(decoded, "value", place="concat('key ', key)").count()
    explained = text.explain(failure.value)
    assert isinstance(explained, DecodeError)
    assert str(explained).startswith("key 3: field 'id' is not of its declared type bigint: {")
    assert text.explain(ValueError("penstock.decode: no")) is None


def test_bytes_are_text(frame, schema):
    binary = frame.withColumn("value", F.col("value").cast("binary"))
    decoded = text.decode_json(binary, "value", schema).orderBy("key").collect()
    assert [(row.key, row._bad is None) for row in decoded] == [
        (1, True),
        (2, False),
        (3, False),
        (4, False),
        (5, True),
        (6, False),
    ]
    assert decoded[0]._parsed.id == 1
    good = text.drop_malformed(text.decode_json(binary, "value", schema), "value")
    assert good.count() == 2


def test_a_long_bad_record_is_clipped(spark, schema):
    frame = spark.sql("SELECT repeat('x', 1000000) AS value")
    ((_, why),) = text.malformed(text.decode_json(frame, "value", schema)).collect()
    assert len(why) < 500
    assert why.endswith("xxx…")


def test_the_reason_is_text_whatever_the_bytes(spark, schema):
    frame = spark.sql("SELECT X'7bff7d' AS value")
    (row,) = text.malformed(text.decode_json(frame, "value", schema)).toArrow().to_pylist()
    assert row["value"] == b"{\xff}"
    assert row["_error"] == "malformed JSON: {\ufffd}"


def test_names_that_would_stand_twice_are_refused(spark, frame, schema):
    with pytest.raises(SchemaMismatch, match="KEY"):
        text.parsed_schema(frame.schema, "value", text.struct_type(spark, "KEY LONG"))
    with pytest.raises(SchemaMismatch, match="Columns: key, value"):
        text.parsed_schema(frame.schema, "none", schema)
    with pytest.raises(SchemaMismatch, match="only STRING"):
        text.parsed_schema(frame.schema, "key", schema)
    with pytest.raises(GraphError, match="twice"):
        text.struct_type(spark, "a INT, A INT")
    assert text.parsed_schema(frame.schema, "value", text.struct_type(spark, "value LONG")).names == [
        "key",
        "value",
    ]


def test_odd_column_names(spark):
    schema = text.struct_type(spark, "`a.b` INT, `c``d` INT, `e f` STRUCT<`x-y`: INT>")
    frame = spark.sql("""SELECT 1 AS `k.k`, '{"a.b": 1, "c`d": 2, "e f": {"x-y": 3}}' AS `v.v`""")
    good = text.drop_malformed(text.decode_json(frame, "v.v", schema), "v.v")
    assert [tuple(row) for row in good.collect()] == [(1, 1, 2, (3,))]
    null = text.permissive(text.decode_json(frame, "v.v", schema), "v.v")
    assert null.collect() == good.collect()
    line = spark.sql("SELECT '1,2' AS value")
    csv = text.struct_type(spark, "`a.b` INT, `c``d` INT")
    assert [tuple(r) for r in text.drop_malformed(text.decode_csv(line, "value", csv), "value").collect()] == [(1, 2)]
