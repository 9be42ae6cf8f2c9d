"""The brokers that other tests lean on keep what they were given, let the right ones in, and leave nothing behind."""

import subprocess
import sys

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from crash.waiting import until
from integration import broker as broker_module
from integration import guard
from integration.broker import QUIET, Broker
from integration.ports import free_ports
from integration.secured import MECHANISMS
from integration.topics import CODECS, Record


def _values(broker, topic, count, isolation="read_committed"):
    """The values of so many records of partition 0."""
    settings = {"bootstrap.servers": broker.servers, "group.id": "reader", "isolation.level": isolation, **QUIET}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [each.value() for each in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()


def test_what_was_produced_is_there_after_a_kill_on_the_same_ports(broker, topics):
    topic = topics.create("kept", partitions=2)
    topics.produce(topic, [Record(b"a", partition=0), Record(b"b", partition=1), Record(None, b"c", partition=1)])
    servers, pid = broker.servers, broker.pid
    broker.kill()
    assert not broker.is_running
    broker.restart()
    assert topics.ends(topic) == {0: 1, 1: 2}
    assert broker.servers == servers
    assert broker.pid != pid


def test_a_paused_broker_answers_nothing_until_it_is_resumed(broker, topics):
    topic = topics.create("paused")
    broker.pause()
    with pytest.raises(KafkaException):
        topics.admin.list_topics(timeout=0.2)
    broker.resume()
    assert topics.ends(topic) == {0: 0}


def test_every_codec_brings_back_what_was_produced(broker, topics):
    topic = topics.create("compressed")
    for codec in CODECS:
        topics.produce(topic, [Record(codec.encode() * 100)] * 3, compression=codec)
    assert _values(broker, topic, 15) == [codec.encode() * 100 for codec in CODECS for _ in range(3)]


def test_transactions_show_what_they_committed_once_they_are_over(broker, topics):
    topic = topics.create("transactions")
    kept, dropped = topics.transact(topic, [Record(b"kept")]), topics.transact(topic, [Record(b"dropped")])
    assert (topics.ends(topic), topics.ends(topic, committed=False)) == ({0: 0}, {0: 2})
    dropped.abort()
    kept.commit()
    assert topics.ends(topic) == {0: 4}
    assert _values(broker, topic, 1) == [b"kept"]


def test_a_topic_grows_forgets_and_comes_back_as_another(topics):
    topic = topics.create("changing")
    first = topics.id(topic)
    topics.produce(topic, [Record(b"a"), Record(b"b")])
    topics.delete_records(topic, {0: 1})
    assert topics.begins(topic) == {0: 1}
    topics.add_partitions(topic, 3)
    assert topics.ends(topic) == {0: 2, 1: 0, 2: 0}
    topics.recreate(topic)
    assert topics.ends(topic) == {0: 0}
    assert topics.id(topic) != first


# ---------------------------------------------------------------------------------------------------------- security


def _refusal(properties):
    """The first error that a client is told, while it tries to come in."""
    errors = []
    producer = Producer({**properties, **QUIET, "error_cb": lambda error: errors.append(error.code())})

    def is_refused():
        with pytest.raises(KafkaException):
            producer.list_topics(timeout=0.1)
        producer.poll(0)
        return errors

    until(60, "the client is refused", is_refused)
    return errors[0]


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [("TLS", ""), ("MTLS", ""), *((name, each) for name in ("SASL", "SASL_TLS") for each in MECHANISMS)],
)
def test_a_client_that_shows_who_it_is_comes_in(secured, listener, mechanism):
    client = AdminClient({**secured.client(listener, mechanism=mechanism), **QUIET})
    assert client.list_topics(timeout=60).brokers


def test_a_client_that_cannot_show_who_it_is_stays_outside(secured):
    stranger = {"bootstrap.servers": secured.broker.address("MTLS"), "security.protocol": "SSL"}
    known = {**stranger, "ssl.ca.location": str(secured.authority.certificate)}
    for mechanism in MECHANISMS:
        wrong = secured.client("SASL_TLS", mechanism=mechanism) | {"sasl.password": "guessed"}
        assert _refusal(wrong) == KafkaError._AUTHENTICATION
    for client in (stranger, known):  # the connection may be gone before its end is explained
        assert _refusal(client) in {KafkaError._SSL, KafkaError._TRANSPORT}


def test_a_user_who_is_forbidden_a_topic_may_use_others(secured):
    topic, other = secured.topics.create("forbidden"), secured.topics.create("allowed")
    secured.forbid("bob", topic)
    producer = Producer({**secured.client("SASL", user="bob"), **QUIET})
    answers = {}
    for name in (topic, other):
        producer.produce(name, b"v", on_delivery=lambda error, told: answers.update({told.topic(): error}))
    assert producer.flush(60) == 0
    assert answers[topic].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert answers[other] is None


# -------------------------------------------------------------------------------------------------- what is left behind


def test_what_a_guard_runs_ends_with_whoever_started_it_even_if_killed():
    starter = (
        "from subprocess import PIPE, Popen\n"
        "import sys\n"
        "guard = Popen(sys.argv[1:], stdin=PIPE, stdout=PIPE, text=True, start_new_session=True)\n"
        "print(guard.stdout.readline(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", starter, sys.executable, guard.__file__, "sleep", "1000"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        guarded = psutil.Process(int(process.stdout.readline()))
        assert guarded.is_running()
        process.kill()
    until(60, "it is gone", lambda: not guarded.is_running())


def test_a_broker_that_finds_its_port_taken_goes_to_another(broker, tmp_path, monkeypatch):
    answers = [[int(port) for port in (broker.servers.rpartition(":")[2], free_ports(1)[0])]]
    monkeypatch.setattr(broker_module, "free_ports", lambda count: answers.pop() if answers else free_ports(count))
    with Broker(tmp_path) as other:
        assert not answers
        assert other.servers != broker.servers
