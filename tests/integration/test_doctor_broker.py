"""``penstock doctor`` and a real broker: it answers, topics are missing, a pipeline's own options are used."""

import penstock as ps
from penstock.admin.doctor_checks import Status
from penstock.admin.doctor_kafka import look_at_brokers, look_at_transactions


def test_a_broker_that_answers_is_told_with_the_versions_of_its_client(broker):
    (found,) = look_at_brokers(broker.servers)

    assert found.status is Status.OK
    assert found.name == f"kafka {broker.servers}"
    assert found.found.startswith("1 broker, ")
    assert "librdkafka" in found.found


def test_a_topic_that_is_not_there_is_named(broker, topics):
    topic = topics.create("there")

    told = list(look_at_brokers(broker.servers, topics=[topic, "not-there"]))

    assert [finding.status for finding in told] == [Status.OK, Status.WARN]
    assert told[1].found == "topics that are not there: not-there"


def test_a_broker_that_stopped_answering_fails(broker, monkeypatch):
    monkeypatch.setattr("penstock.admin.doctor_kafka.BROKER_TIMEOUT", 0.5)
    broker.pause()

    (found,) = look_at_brokers(broker.servers)

    assert found.status is Status.FAIL
    assert "no answer within 0.5 s" in found.found


def test_an_option_that_is_none_fails_before_anything_is_asked(broker):
    (found,) = look_at_brokers(broker.servers, options={"no.such.property": 1})

    assert found.status is Status.FAIL
    assert "no.such.property" in found.found


def test_a_sink_of_transactions_is_checked_and_one_without_is_not(broker, topics):
    topic = topics.create("out")
    place = {"servers": broker.servers, "topic": topic}
    (found,) = look_at_transactions(ps.kafka.Sink(**place, transactional_id_prefix=topic))
    assert (found.status, found.found) == (Status.OK, "transaction.version 2")
    long = ps.kafka.Sink(**place, transactional_id_prefix=topic, options={"transaction.timeout.ms": 3_600_000})
    assert [each.found for each in look_at_transactions(long)][1:] == [
        "transaction.timeout.ms is 3600000, and the brokers allow 900000"
    ]
    assert list(look_at_transactions(ps.kafka.Sink(**place, guarantee="at-least-once"))) == []
