"""What doctor says of a cluster in which a sink is to publish exactly once."""

from __future__ import annotations

import pytest

from penstock.admin.doctor_checks import Status
from penstock.admin.doctor_kafka import permissions_missing, times_found, version_found


@pytest.mark.parametrize(
    ("version", "least", "status", "said"),
    [
        (2, 2, Status.OK, "transaction.version 2"),
        (1, 2, Status.FAIL, "transaction.version is 1, and the sink needs 2"),
        (0, 0, Status.OK, "transaction.version 0"),
        (None, 2, Status.WARN, "no broker tells its transaction.version"),
    ],
)
def test_the_version_of_transactions_is_held_against_what_the_sink_takes(version, least, status, said):
    found = version_found("t", version, least)
    assert (found.status, found.found) == (status, said)


@pytest.mark.parametrize(
    ("brokers", "said"),
    [
        ({}, []),
        ({"transaction.max.timeout.ms": "900000", "offsets.retention.minutes": "10080"}, []),
        (
            {"transaction.max.timeout.ms": "60000"},
            [(Status.FAIL, "transaction.timeout.ms is 300000, and the brokers allow 60000")],
        ),
        ({"offsets.retention.minutes": "15"}, [(Status.WARN, "the brokers forget a marker after 15 minutes")]),
        ({"offsets.retention.minutes": "600"}, [(Status.WARN, "the brokers forget a marker after 600 minutes")]),
    ],
)
def test_times_of_the_brokers_that_are_too_short_are_told(brokers, said):
    assert [(each.status, each.found) for each in times_found("t", brokers, asked_ms=300_000)] == said


def test_what_the_user_may_not_do_is_named_with_what_to_grant():
    allowed = {"topic": {"WRITE", "READ"}, "group": frozenset()}
    told = list(permissions_missing("t", allowed))
    assert [each.found for each in told] == [
        "DESCRIBE is not allowed on its topic",
        "READ is not allowed on its consumer group, which has the marker",
    ]
    assert told[0].fix == "grant DESCRIBE on the sink's topic to the job's user"
    assert list(permissions_missing("t", {"topic": None, "group": None})) == []
