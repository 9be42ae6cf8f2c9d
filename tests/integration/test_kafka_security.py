"""The Kafka source with clusters that ask who it is: who comes in, who does not, and that no secret is told."""

from __future__ import annotations

import logging
import pickle

import pytest

from integration.kafka_kit import next_batch, open_reader, read_all
from integration.secured import PASSWORDS
from integration.topics import Record
from penstock.connectors.kafka import source as kafka
from penstock.connectors.secrets import file
from penstock.errors import ConnectorError
from penstock.job.failures import to_penstock_error

pytestmark = pytest.mark.spark


def source_of(secured, folder, topic, listener="SASL_TLS", *, password=None, **more):
    """A source that comes in as alice, its secrets in files."""
    client = secured.client(listener, mechanism="SCRAM-SHA-512")
    servers = client.pop("bootstrap.servers")
    for name in ("sasl.password", "ssl.key.password"):
        if name in client:
            (folder / name).write_text(password or str(client[name]))
            client[name] = file(folder / name)
    return kafka.Source(servers=servers, topics=[topic], options=client, **more)


@pytest.mark.parametrize("listener", ["SASL_TLS", "MTLS"])
def test_whoever_shows_who_it_is_reads_from_either_place(spark, secured, tmp_path, listener):
    topic = secured.topics.create("secret")
    secured.topics.produce(topic, [Record(b"v")] * 3)
    for place in ("driver", "executors"):
        source = source_of(secured, tmp_path, topic, listener, read_in=place)
        assert len(read_all(open_reader(source, spark))) == 3


def test_a_wrong_password_is_an_error_that_no_retry_helps_and_that_does_not_tell_it(spark, secured, tmp_path, caplog):
    topic = secured.topics.create("secret")
    source = source_of(secured, tmp_path, topic, password="a-guess-91")
    with caplog.at_level(logging.DEBUG), pytest.raises(ConnectorError, match="sasl") as raised:
        open_reader(source, spark)
    assert not raised.value.retry
    assert "a-guess-91" not in caplog.text + str(raised.value)


def test_a_topic_that_is_forbidden_is_an_error_with_the_remedy(spark, secured, tmp_path):
    topic = secured.topics.create("forbidden")
    secured.forbid("alice", topic)
    with pytest.raises(ConnectorError, match="Grant") as raised:
        open_reader(source_of(secured, tmp_path, topic, gone_after="200 ms"), spark)
    assert not raised.value.retry


def test_what_goes_to_workers_refers_to_secrets_and_one_that_is_missing_there_is_named(spark, secured, tmp_path):
    topic = secured.topics.create("secret")
    secured.topics.produce(topic, [Record(b"v")] * 3)
    reader = open_reader(source_of(secured, tmp_path, topic, read_in="executors"), spark)
    frame = reader.frame(next_batch(reader).plan)
    sent = pickle.dumps(reader._frames._reader)
    assert PASSWORDS["alice"].encode() not in sent
    (tmp_path / "sasl.password").unlink()
    with pytest.raises(Exception, match="cannot be read") as raised:
        frame.count()
    told = to_penstock_error(raised.value)
    assert isinstance(told, ConnectorError)
    assert str(tmp_path / "sasl.password") in str(told)
    reader.close()
