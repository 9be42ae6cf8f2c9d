"""What users say of topics: checked before anything runs, and no secret in anything that can be seen."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import subprocess
import sys

import pytest
from pyspark.sql.types import StructType

import penstock as ps
from penstock.connectors.kafka.config import CommitMode, StallTimeouts
from penstock.connectors.kafka.offsets import AtTimestamp, KafkaPosition, TopicPartition, encode
from penstock.connectors.secrets import resolve
from penstock.errors import ConnectorError, GraphError, SettingsError, StateIncompatible
from penstock.handles import Guarantee, Position
from penstock.interfaces.source import ReadLimit, SourceContext, SupportsJsonDecoding, SupportsPartitions

CANARY = "canary-7c1f"


def source(**given) -> ps.kafka.Source:
    return ps.kafka.Source(**{"servers": "k1:9092", "topics": ["orders"], **given})


def test_a_source_says_what_it_reads_and_begins_at_the_earliest_unless_told():
    plain = source(servers=["k1:9092", " k2:9093 "], topics=["b", "a", "b"])
    assert plain.describe() == "kafka a, b at k1:9092,k2:9093"
    assert (plain.start, plain.stop, plain.guarantee) == ("earliest", None, Guarantee.EXACTLY_ONCE)
    assert (plain.commit_choice.mode, plain.isolation, plain.on_lost_offsets) == (
        CommitMode.DISABLED,
        "read_committed",
        "fail",
    )
    assert plain.stall_timeouts == StallTimeouts(warn=30_000_000, reopen=60_000_000, fail=300_000_000)
    assert source(topics=None, pattern="o.*").describe() == "kafka topics like o.* at k1:9092"
    timed = source(start="2026-01-31T00:00:00Z", stop="latest", group="shop", discover_every=None)
    assert (timed.start, timed.stop, timed.discover_every) == (AtTimestamp(1_769_817_600_000), "latest", None)
    assert timed.commit_choice.mode is CommitMode.ON_CHECKPOINTS


def test_a_partition_is_named_by_its_number_where_there_is_one_topic_and_by_both_elsewhere():
    one, two, any = source(), source(topics=["a", "b"]), source(topics=None, pattern=".*")
    at = TopicPartition("orders", 3)
    assert [(each.partition_column, each.partition_name(at)) for each in (one, two, any)] == [
        ("partition", "3"),
        ("topic_partition", "orders-3"),
        ("topic_partition", "orders-3"),
    ]
    assert isinstance(one, SupportsPartitions)
    assert isinstance(one, SupportsJsonDecoding)


def test_topics_are_those_named_or_those_whose_whole_name_matches_but_internal_ones_never():
    assert [source().subscribes(name) for name in ("orders", "orders2")] == [True, False]
    like = source(topics=None, pattern="orders.*|.*offsets")
    names = ("orders", "orders2", "my-orders", "__consumer_offsets", "offsets")
    assert [like.subscribes(name) for name in names] == [True, True, False, False, True]


def test_a_batch_is_capped_by_the_job_and_by_the_source():
    both = source(max_rows_per_batch=10, max_bytes_per_batch=100)
    paused = frozenset({"3"})
    assert both.limit_batch(ReadLimit(rows=5, bytes=None, paused=paused)) == ReadLimit(rows=5, bytes=100, paused=paused)
    assert source().limit_batch(ReadLimit(rows=5)) == ReadLimit(rows=5)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"servers": "k1"}, "one without a port"),
        ({"servers": []}, "one without a port"),
        ({"servers": 9092}, "servers=9092 is not text"),
        ({"servers": [9092]}, r"servers=\[9092\] is not text"),
        ({"topics": "orders"}, r"topics='orders' is no list of names. Write topics=\['orders'\]"),
        ({"topics": []}, "list of names"),
        ({"topics": 3}, "list of names"),
        ({"topics": ["or ders"]}, "'or ders' is not a possible name"),
        ({"topics": [".."]}, "not a possible name"),
        ({"topics": [7]}, "not a possible name"),
        ({"topics": None}, "Write one of them, as topics=.* or pattern="),
        ({"pattern": "x"}, "Write one of them, as topics=.* or pattern="),
        ({"topics": None, "pattern": "("}, "no regular expression"),
        ({"topics": None, "pattern": 3}, "no regular expression"),
        ({"start": "soon"}, "start='soon'"),
        ({"stop": "earliest"}, "stop='earliest'"),
        ({"start": "committed"}, "Name it with group="),
        ({"group": " "}, "group=' ' is no name"),
        ({"group": 3}, "group=3 is no name"),
        ({"start_otherwise": "none"}, "start_otherwise is 'none', but must be one of 'fail', 'earliest', 'latest'"),
        ({"isolation": "committed"}, "isolation is 'committed'"),
        ({"on_lost_offsets": "ignore"}, "on_lost_offsets is 'ignore'"),
        ({"read_in": "jvm"}, "read_in is 'jvm'"),
        ({"commit": "auto"}, "commit is 'auto'"),
        ({"commit_interval": "0s"}, "commit_interval '0s' is too short"),
        ({"gone_after": 5}, "gone_after 5 is not a length of time"),
        ({"discover_every": "now"}, "discover_every 'now'"),
        ({"max_rows_per_batch": 0}, "max_rows_per_batch=0 is not possible"),
        ({"max_bytes_per_batch": True}, "max_bytes_per_batch=True is not possible"),
        ({"max_bytes_per_batch": "1 MB"}, "max_bytes_per_batch='1 MB' is not possible"),
        ({"warn_stalled_after": "2 minutes"}, "Make none shorter than the previous one"),
        ({"options": {3: "x"}}, "Option 3 is not named by text"),
        (
            {"options": {"kafka.security.protocol": "SSL"}},
            "has the prefix of Spark's source. Write 'security.protocol'",
        ),
        ({"options": {"oauth_cb": print}}, "There are no callbacks"),
        ({"options": {"client.id": None}}, "a NoneType"),
        ({"options": {"group.id": "x"}}, "Write group="),
        ({"options": {"enable.auto.commit": True}}, "Write commit="),
        ({"options": {"auto.offset.reset": "earliest"}}, "Write start=, for a first start, and on_lost_offsets="),
        ({"options": {"isolation.level": "x"}}, "Write isolation="),
        ({"options": {"bootstrap.servers": "x"}}, "Write servers="),
        ({"options": {"session.timeout.ms": 1}}, "joins no group"),
        ({"options": {"ssl.truststore.location": "/x.jks"}}, "Java client's"),
    ],
)
def test_what_cannot_be_is_refused_with_the_value_and_the_remedy(given, says):
    with pytest.raises(GraphError, match=says):
        source(**given)


# ------------------------------------------------------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    "options",
    [
        {"sasl.password": CANARY},
        {"ssl.key.password": CANARY},
        {"ssl.keystore.password": CANARY},
        {"ssl.key.pem": CANARY},
        {"sasl.oauthbearer.client.secret": CANARY},
        {"sasl.oauthbearer.config": CANARY},
        {"sasl.oauthbearer.assertion.private.key.pem": CANARY},
        {"sasl.oauthbearer.assertion.private.key.passphrase": CANARY},
        {"sasl.jaas.config": CANARY},
        {"ssl.truststore.password": CANARY},
        {"ssl.certificate.pem": f"-----BEGIN PRIVATE KEY-----{CANARY}"},
        {"sasl.oauthbearer.token.endpoint.url": f"https://me:{CANARY}@login"},
        {"sasl.oauthbearer.extensions": f"Secret={CANARY}"},
        {"client.rack": [CANARY]},
        {"sasl.password": [CANARY]},
    ],
)
def test_a_secret_that_is_written_out_is_refused_and_not_repeated(options):
    with pytest.raises(GraphError) as caught:
        source(options=options)
    assert CANARY not in str(caught.value)
    assert repr(next(iter(options))) in str(caught.value)


def test_a_password_in_the_servers_or_where_a_reference_was_meant_is_refused_and_not_repeated():
    for wrong in (
        lambda: source(servers=f"me:{CANARY}@k1:9092"),
        lambda: ps.kafka.env(f"{CANARY}!"),
        lambda: ps.kafka.env(3),  # type: ignore[arg-type]
        lambda: ps.kafka.file(CANARY),
        lambda: ps.kafka.file(f"/{CANARY}\n"),
    ):
        with pytest.raises(GraphError) as caught:
            wrong()
        assert CANARY not in str(caught.value)


def test_what_is_no_secret_may_be_written_out():
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.username": "shop",
        "ssl.key.location": "/etc/kafka/key.pem",
        "ssl.certificate.pem": "-----BEGIN CERTIFICATE-----",
        "sasl.oauthbearer.token.endpoint.url": "https://login/token",
        "sasl.oauthbearer.client.id": "shop",
        "socket.timeout.ms": 5_000,
        "enable.ssl.certificate.verification": True,
    }
    assert source(options=options).options == options


def test_a_secret_is_nowhere_but_in_what_the_client_library_gets(tmp_path, monkeypatch):
    key = tmp_path / "key"
    key.write_text(f"{CANARY}-file\n")
    monkeypatch.setenv("KAFKA_PASSWORD", f"{CANARY}-env")
    options = {
        "sasl.password": ps.kafka.env("KAFKA_PASSWORD"),
        "ssl.key.password": ps.kafka.file(key),
        "client.id": "x",
    }
    described = source(options=options)
    assert resolve(described.options) == {
        "sasl.password": f"{CANARY}-env",
        "ssl.key.password": f"{CANARY}-file",
        "client.id": "x",
    }
    shown = [repr(described), str(described), described.describe(), str(dataclasses.fields(described))]
    assert not any(CANARY in text for text in [*shown, repr(described.options)])
    assert "KAFKA_PASSWORD" in repr(described.options)
    sent = pickle.dumps(described)
    assert CANARY.encode() not in sent, "executors get the reference"
    assert pickle.loads(sent) == described


def test_a_secret_that_is_not_there_is_named_by_its_reference(tmp_path, monkeypatch):
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n")
    binary.write_bytes(CANARY.encode() + b"\xff")
    for reference, says in (
        (ps.kafka.env("KAFKA_PASSWORD"), "KAFKA_PASSWORD is not set in this process.*read_in='driver'"),
        (ps.kafka.file(tmp_path / "none"), r"none cannot be read \(No such file.*read_in='driver'"),
        (ps.kafka.file(empty), "is empty, or not text"),
        (ps.kafka.file(binary), "is empty, or not text"),
    ):
        with pytest.raises(ConnectorError, match=says) as caught:
            resolve({"sasl.password": reference})
        assert CANARY not in str(caught.value)
        assert caught.value.__cause__ is None


# ----------------------------------------------------------------------------------------------------------- at opening


def test_a_position_of_another_source_is_refused_before_a_broker_is_asked():
    context = SourceContext(uid="in", spark=None)  # type: ignore[arg-type]
    with pytest.raises(StateIncompatible, match="'files/1'"):
        source().open(context, Position(kind="files/1", detail={}))


@pytest.mark.mission("F2")
def test_a_start_without_a_position_and_a_commit_without_a_group_are_told(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)  # as where it is not installed
    monkeypatch.setitem(sys.modules, "confluent_kafka.admin", None)
    context = SourceContext(uid="in", spark=None)  # type: ignore[arg-type]
    with (
        caplog.at_level(logging.INFO, "penstock"),
        pytest.raises(SettingsError, match=r"pip install .*penstock\[kafka\]"),
    ):
        source(commit="on-checkpoints").open(context, None)
    assert "source in: commit='on-checkpoints' without group=" in caplog.text
    assert "source in has no position: it starts at earliest" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "penstock"), pytest.raises(SettingsError):
        source().open(context, encode(KafkaPosition()))
    assert caplog.text == ""


def test_describing_a_source_needs_neither_a_client_library_nor_spark():
    code = (
        "import sys, penstock as ps; ps.kafka.Source(servers='k1:9092', topics=['orders'], group='g').describe(); "
        "sys.exit(any(name in sys.modules for name in ('confluent_kafka', 'pyspark', 'pyarrow')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rows_have_the_columns_that_spark_has_for_a_record_and_one_more_where_there_are_several_topics():
    one = source().schema(None)  # type: ignore[arg-type]
    assert one.simpleString() == (
        "struct<key:binary,value:binary,headers:array<struct<key:string,value:binary>>,topic:string,partition:int,"
        "offset:bigint,timestamp:timestamp>"
    )
    assert source(topics=["a", "b"]).schema(None).names == [*one.names, "topic_partition"]  # type: ignore[arg-type]


def test_keys_and_values_can_be_decoded_while_they_are_read_once_and_nothing_else_changes():
    record = StructType().add("id", "long")
    plain = source(options={"client.id": "x"})
    decoded = plain.decoding("value", record)
    assert decoded is not None
    assert decoded.schema(None).names == [*plain.schema(None).names, "_record"]  # type: ignore[arg-type]
    assert decoded.schema(None)["_record"].dataType == record  # type: ignore[arg-type]
    assert decoded.json is not None
    assert (decoded.json.name, decoded.json.record) == ("value", record)
    assert [getattr(decoded, f.name) for f in dataclasses.fields(plain) if f.name != "json"] == [
        getattr(plain, f.name) for f in dataclasses.fields(plain) if f.name != "json"
    ]
    assert plain.decoding("topic", record) is None
    assert decoded.decoding("key", record) is None
