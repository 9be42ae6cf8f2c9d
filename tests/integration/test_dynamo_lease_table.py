"""The lease table over moto's DynamoDB: the contract of any table, races, and an outage."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from core.checkpointer_kit import TickClock
from core.lease_table_contract import LeaseTableContract, Rows, shard
from integration.dynamo_server import dynamo_server
from penstock.connectors.kinesis.config import LeaseMode, LeaseOptions
from penstock.connectors.kinesis.lease_commits import LeaseCommits
from penstock.connectors.kinesis.lease_table import LeaseClaim, LeaseTable, TableAddress
from penstock.connectors.kinesis.positions import After, LeaseCheckpoint, lease_order
from penstock.interfaces.source import SourceContext

NUMBERS = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with dynamo_server(tmp_path_factory.mktemp("dynamo")) as started:
        yield started


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture
def name(client):
    name = f"app-{next(NUMBERS)}"
    LeaseTable(client, name).create()
    return name


class TestContract(LeaseTableContract):
    pass


def in_threads(work, count=8):
    found = []
    threads = [threading.Thread(target=lambda number=number: found.append(work(number))) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_of_eight_that_want_a_lease_one_gets_it(client, name):
    Rows(client, name).put("s", "5")
    table = LeaseTable(client, name)
    for _ in range(10):
        seen = table.find("s")

        def take(number, seen=seen):
            return table.take(seen, LeaseClaim(owner=f"w{number}", process="p"))

        assert sum(in_threads(take)) == 1


def test_of_eight_that_export_the_highest_stays_and_no_row_goes_back(client, name):
    rows, table = Rows(client, name), LeaseTable(client, name)
    rows.put("s", "TRIM_HORIZON")
    numbers = [9, 10, 99, 100, 101, 999, 1000, 1001]
    seen, done = [], threading.Event()

    def watch():
        while not done.is_set():
            checkpoint, sub, _counter = rows.at("s")
            seen.append(lease_order(LeaseCheckpoint(checkpoint, sub)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for start in range(5):
        in_threads(lambda number: table.advance("s", After(numbers[number], start)))  # noqa: B023 - joined before
    done.set()
    watcher.join()
    assert seen == sorted(seen)
    assert rows.at("s")[:2] == ("1001", 4)


def test_an_outage_of_the_table_does_not_touch_the_job_and_the_export_catches_up(server, client, name, caplog):
    clock, facts = TickClock(), []
    commits = LeaseCommits(
        LeaseOptions(mode=LeaseMode.EXPORT, address=TableAddress(table=name)),
        SourceContext(uid="orders", spark=None, report=facts.append),
        client=client,
        clock=clock,
        pause=lambda _seconds: None,
    )
    commits.checkpoint_completed({"a": shard(After(5))})
    clock.tick("60 seconds")
    assert Rows(client, name).at("a")[0] == "5"
    server.kill()
    try:
        commits.checkpoint_completed({"a": shard(After(6))})
        clock.tick("60 seconds")
        commits.check()
        assert facts[-1].error is not None
        assert "does not answer" in caplog.text
    finally:
        server.start()
    commits.checkpoint_completed({"a": shard(After(7))})
    LeaseTable(client, name).create()  # it was in memory
    Rows(client, name).put("a", "5")
    clock.tick("60 seconds")
    assert Rows(client, name).at("a")[0] == "7"
    commits.close()
