"""What users say of a Kafka sink, checked before anything runs; records of rows; deliveries that are waited for."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql import types as t

import penstock as ps
from penstock.connectors.kafka.producer import sink_error
from penstock.connectors.kafka.records import OutputRecord, RecordParts, read_records
from penstock.connectors.kafka.sink import DirectWriter
from penstock.elements import Batch
from penstock.errors import ConnectorError, GraphError, SinkUnavailable
from penstock.handles import CheckpointId, Guarantee

CANARY = "canary-51f0"
COUNTS = t.StructType().add("user", t.StringType()).add("at", t.TimestampType()).add("n", t.LongType())


def sink(**given) -> ps.kafka.Sink:
    return ps.kafka.Sink(**{"servers": "k1:9092", "topic": "counts", "guarantee": "at-least-once", **given})


def test_a_sink_says_where_its_rows_go_and_how_often():
    made = sink(servers=["k1:9092", "k2:9093"], key="user", options={"compression.type": "zstd"})
    assert made.describe() == "kafka counts at k1:9092,k2:9093"
    assert made.guarantee is Guarantee.AT_LEAST_ONCE
    assert sink(guarantee="none").guarantee is Guarantee.NONE
    assert made.columns == RecordParts(format="json", topic="counts", key=("user",))
    assert sink(format="raw").columns.value == ("value",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "a b"}, "Topic 'a b' is not a possible name"),
        ({"servers": "k1"}, "servers='k1' has no host, or one without a port"),
        ({"guarantee": "sometimes"}, "guarantee is 'sometimes', but must be one of"),
        ({"format": "avro"}, "format is 'avro', but must be one of 'json', 'raw'"),
        ({"key": ["user", "user"]}, "names a column twice. Name each once."),
        ({"key": 3}, "key=3 does not name columns. Write a name, or a list of names."),
        ({"headers": 3}, "headers=3 is no name of a column. Write the name as text."),
        ({"format": "raw", "value": ["a", "b"]}, "A raw value is one column, and value has 2."),
        (
            {"options": {"acks": 1}},
            "Option 'acks' cannot be set in options. Leave it out: a record counts as written when",
        ),
        ({"options": {"transactional.id": "x"}}, "Write transactional_id_prefix= instead."),
        ({"options": {"kafka.linger.ms": 1}}, "Write 'linger.ms'."),
        ({"options": {"sasl.password": CANARY}}, "Option 'sasl.password' holds a secret"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy_and_without_a_secret(given, said):
    with pytest.raises(GraphError) as refused:
        sink(**given)
    assert said in str(refused.value)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "schema", "said"),
    [
        ({"key": "usr"}, COUNTS, "Column 'usr' does not exist. Did you mean 'user'?"),
        ({"timestamp": "user"}, COUNTS, "timestamp='user' is a column of string, and must be TIMESTAMP. Cast it."),
        ({"partition": "n"}, COUNTS, "partition='n' is a column of long, and must be INT. Cast it."),
        ({"topic_column": "n"}, COUNTS, "topic_column='n' is a column of long, and must be STRING. Cast it."),
        ({"headers": "user"}, COUNTS, "headers='user' is a column of string. It must be MAP<STRING, STRING>"),
        ({"format": "raw"}, COUNTS, "Column 'value' does not exist"),
        ({"format": "raw", "value": "n"}, COUNTS, "Column 'n' is long, and a raw value is BINARY or STRING."),
        ({"format": "raw", "value": "user", "timestamp": "at"}, COUNTS, "Columns n go nowhere"),
        (
            {},
            t.StructType([*COUNTS.fields, t.StructField("_change", t.StringType())]),
            "Name the columns that identify",
        ),
        ({"topic_column": "user"}, t.StructType().add("user", "string"), "nothing is left for its value"),
        ({}, t.StructType().add("a", t.NullType()), "Column 'a' is void, which no record can hold. Cast or drop it."),
        ({}, t.StructType().add("a", "long").add("A", "long"), "Columns 'a', 'A': A name appears twice"),
    ],
)
def test_rows_of_which_no_records_can_be_made_are_refused(given, schema, said):
    with pytest.raises(GraphError) as refused:
        sink(**given).check(schema)
    assert said in str(refused.value)


def test_rows_of_which_records_can_be_made_are_accepted():
    record = t.StructType().add("key", t.StringType()).add("value", t.BinaryType())
    whole = t.StructType().add("key", t.BinaryType()).add("value", t.BinaryType())
    whole = whole.add("headers", t.ArrayType(record)).add("topic", t.StringType()).add("partition", t.IntegerType())
    whole = whole.add("timestamp", t.TimestampType())
    sink().check(COUNTS)
    sink(key=["user", "at"], timestamp="at", value="n").check(COUNTS)
    named = {name: name for name in ("key", "headers", "timestamp", "partition")}
    sink(format="raw", topic_column="topic", **named).check(whole)
    assert sink(key="user", partition="at").columns.value_columns(COUNTS) == ("user", "n")


def test_a_table_of_records_is_read_row_by_row_and_what_it_lacks_is_not_given():
    table = pa.table({"value": pa.array([b"1", None], pa.binary()), "topic": ["other", None]})
    assert list(read_records(table, "counts")) == [
        OutputRecord("other", None, b"1", None, None, None),
        OutputRecord("counts", None, None, None, None, None),
    ]
    headers = [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None]
    table = pa.table({"value": [b"1", b"2"], "key": [b"k", None], "headers": headers, "timestamp_ms": [7, None]})
    assert list(read_records(table, "counts")) == [
        OutputRecord("counts", b"k", b"1", None, 7, [("a", b"1"), ("a", None)]),
        OutputRecord("counts", None, b"2", None, None, None),
    ]


class Sent:
    """A broker that takes records until it is told to fail; they are delivered when they are waited for."""

    def __init__(self) -> None:
        self.sent: list[bytes | None] = []
        self.delivered: list[bytes | None] = []
        self.failure: ConnectorError | None = None
        self.closed = 0

    def send(self, records) -> None:
        if self.failure is not None:
            raise self.failure
        self.sent += [record.value for record in records]

    def flush(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.delivered = list(self.sent)

    def close(self) -> None:
        self.closed += 1


class Columns(RecordParts):
    """Columns of rows that are records already."""

    def records(self, frame):
        return frame


def batch(*values: bytes) -> Batch:
    table = pa.table({"value": pa.array(values, pa.binary())})
    return Batch(frame=SimpleNamespace(toArrow=lambda: table), sequence=1)


def writer(producer: Sent, *, waits: bool) -> DirectWriter:
    return DirectWriter(Columns(format="raw", topic="counts"), producer, uid="out", waits=waits)


def test_a_checkpoint_is_complete_when_all_records_before_it_are_delivered():
    producer = Sent()
    out = writer(producer, waits=True)
    assert out.write(batch(b"1", b"2")) == 2
    prepared = out.prepare(CheckpointId(1))
    assert producer.delivered == []
    assert prepared.materialise() == ()
    assert producer.delivered == [b"1", b"2"]


def test_a_record_that_was_not_delivered_fails_its_checkpoint_and_all_that_follows():
    producer = Sent()
    out = writer(producer, waits=True)
    out.write(batch(b"1"))
    producer.failure = sink_error("_MSG_TIMED_OUT", "timed out", servers="k:9092", what="topic 'counts'")
    with pytest.raises(SinkUnavailable, match="step 'out': Kafka at k:9092, topic 'counts': Not delivered"):
        out.prepare(CheckpointId(1)).materialise()
    with pytest.raises(SinkUnavailable):
        out.write(batch(b"2"))
    with pytest.raises(SinkUnavailable):
        out.prepare(CheckpointId(2)).materialise()


def test_without_a_guarantee_deliveries_are_waited_for_at_the_end_only(caplog):
    producer = Sent()
    out = writer(producer, waits=False)
    out.write(batch(b"1"))
    assert out.prepare(CheckpointId(1)).materialise() == ()
    assert producer.delivered == []
    out.close()
    out.close()
    assert (producer.delivered, producer.closed) == ([b"1"], 1)


def test_a_sink_that_waits_drops_what_no_checkpoint_has_when_it_is_closed():
    producer = Sent()
    out = writer(producer, waits=True)
    out.write(batch(b"1"))
    out.close()
    assert (producer.delivered, producer.closed) == ([], 1)


@pytest.mark.parametrize(
    ("code", "retry", "said"),
    [
        ("_TRANSPORT", True, "See that a broker runs there"),
        ("_MSG_TIMED_OUT", True, "Not delivered"),
        ("NOT_ENOUGH_REPLICAS", True, "Not delivered"),
        ("TOPIC_AUTHORIZATION_FAILED", False, "Grant WRITE and DESCRIBE on the topic"),
        ("UNKNOWN_TOPIC_OR_PART", False, "Create it, or correct the name."),
        ("_UNKNOWN_PARTITION", False, "Create it, or correct the name."),
        ("MSG_SIZE_TOO_LARGE", False, "Raise message.max.bytes in options"),
        ("SASL_AUTHENTICATION_FAILED", False, "Check security.protocol"),
        ("INVALID_RECORD", False, "A compacted topic needs keys"),
    ],
)
def test_an_error_of_a_producer_says_whether_a_retry_helps_and_what_does(code, retry, said):
    error = sink_error(code, "it said", servers="k:9092", what="topic 'counts'")
    assert error.retry is retry
    assert said in str(error)
    assert f"{code}: it said" in str(error)
