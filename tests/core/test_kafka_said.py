"""What people are told of a cluster in trouble, and what of the client library's words they are not."""

from __future__ import annotations

import logging
import socket

import pytest

from core.kafka_kit import FakeTrouble
from crash.waiting import until
from penstock.clock import MonotonicTime
from penstock.connectors.kafka.client import ClientLog, Connection
from penstock.connectors.kafka.cluster import KafkaCluster
from penstock.connectors.kafka.monitor import OutageLog

WHO = "source in has trouble with Kafka at k:9092"
REFUSED = "k:9092/1: Connect to ipv4#10.0.0.1:9092 failed: Connection refused"


def at(seconds: float) -> MonotonicTime:
    return MonotonicTime(int(seconds * 1_000_000))


def test_a_trouble_is_told_at_once_and_then_at_growing_intervals():
    outage = OutageLog(WHO)
    told = [line for tick in range(20_000) if (line := outage.on_error(at(tick / 10), REFUSED, all_brokers=True))]
    assert told == [
        f"{WHO}: {REFUSED}",
        *(f"{WHO}, for {seconds} s now: {REFUSED}" for seconds in (10, 30, 70, 150, 310, 630, 1_270)),
    ]


def test_no_interval_is_longer_than_an_hour():
    outage = OutageLog(WHO)
    told = [second for second in range(0, 90_000, 60) if outage.on_error(at(second), REFUSED, all_brokers=True)]
    assert {later - earlier for earlier, later in zip(told[-9:], told[-8:], strict=False)} == {3_600}


def test_it_is_over_when_the_cluster_answers_what_it_was_asked_since_and_the_next_is_told_at_once():
    outage = OutageLog(WHO)
    outage.on_error(at(0), REFUSED, all_brokers=False)
    outage.on_error(at(1), "1/1 brokers are down", all_brokers=True)
    assert outage.on_answer(at(2), asked=at(0.5)) is None, "asked before it was away"
    assert outage.on_answer(at(4.5), asked=at(4)) == f"{WHO} no more; it lasted 4 s"
    assert outage.on_answer(at(5), asked=at(5)) is None, "told once"
    assert outage.on_error(at(6), REFUSED, all_brokers=True) == f"{WHO}: {REFUSED}"


def test_one_broker_of_several_is_well_again_when_nothing_was_said_of_it_for_a_while():
    outage = OutageLog(WHO)
    outage.on_error(at(0), REFUSED, all_brokers=False)
    assert outage.on_answer(at(9), asked=at(9)) is None, "another one answers"
    outage.on_error(at(10), REFUSED, all_brokers=False)
    assert outage.on_answer(at(29), asked=at(29)) is None
    assert outage.on_answer(at(30), asked=at(30)) == f"{WHO} no more; it lasted 30 s"


def test_a_client_is_a_clients_logger_that_repeats_nothing(caplog):
    said = ClientLog()
    line = ("%s [%s] %s", "FAIL", "rdkafka#producer-1", f"[thrd:k:9092/1]: {REFUSED}")
    with caplog.at_level(logging.DEBUG, logger="penstock.kafka"):
        for _ in range(3):
            said.log(logging.ERROR, *line)
            said.log(logging.WARNING, "%s [%s] %s", "CONFWARN", "rdkafka#producer-1", "linger.ms is ignored")
            said.log(logging.DEBUG, "%s [%s] %s", "METADATA", "rdkafka#producer-1", "100 % of it")
    levels = [(record.levelname, record.getMessage().split(" ")[0]) for record in caplog.records]
    assert [told for told in levels if told[0] != "DEBUG"] == [("WARNING", "CONFWARN")]
    assert len(levels) == 9, "for whoever looks for it, everything is there"


def test_complaints_are_handed_out_once_and_are_no_more_than_fifty():
    said = ClientLog()
    for number in range(80):
        said.on_reported_error(FakeTrouble(f"_{number}"))
    assert [each.name() for each in said.take_errors()] == [f"_{number}" for number in range(30, 80)]
    assert said.take_errors() == []


def test_an_error_that_only_says_that_nothing_came_gets_the_words_of_what_came_before():
    said = ClientLog()
    timed_out = FakeTrouble("_TIMED_OUT")
    assert said.with_cause(timed_out) == ("_TIMED_OUT", "_TIMED_OUT was said")
    for name in ("_RESOLVE", "_ALL_BROKERS_DOWN"):
        said.on_reported_error(FakeTrouble(name))
    assert said.with_cause(timed_out) == ("_RESOLVE", "_TIMED_OUT was said; _RESOLVE was said")
    assert said.with_cause(FakeTrouble("UNKNOWN_TOPIC_ID")) == ("UNKNOWN_TOPIC_ID", "UNKNOWN_TOPIC_ID was said")
    said.on_answer()
    said.on_error(FakeTrouble("_RESOLVE"))
    assert said.with_cause(timed_out)[0] == "_TIMED_OUT", "it was reached before: this is no mistake in the options"


def test_a_client_that_finds_no_broker_complains_to_whoever_asks_and_not_to_the_log(caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]  # nobody listens there from now on
    cluster = KafkaCluster(Connection(servers=f"127.0.0.1:{port}", options={}))
    names: list[str] = []
    with caplog.at_level(logging.INFO):
        until(
            60, "it has tried twice", lambda: names.extend(each.name() for each in cluster.take_errors()) or names[2:]
        )
        cluster.close()
    assert {"_TRANSPORT", "_ALL_BROKERS_DOWN"} <= set(names)
    assert caplog.records == []


@pytest.mark.parametrize("reached", [False, True])
def test_a_login_counts_as_refused_if_it_was_so_twice_and_never_worked(reached):
    said = ClientLog()
    if reached:
        said.on_answer()
    said.on_error(FakeTrouble("_AUTHENTICATION"))
    assert said.refusal is None
    said.on_error(FakeTrouble("_AUTHENTICATION"))
    assert (said.refusal is None) == reached
