"""The lease table over a DynamoDB in memory: the contract of any table, and what no emulator does."""

from __future__ import annotations

import pytest
from botocore.exceptions import NoCredentialsError

from core.dynamo_fake import DynamoFake, away, client_error, throttled
from core.lease_table_contract import ME, LeaseTableContract, shard
from penstock.connectors.kinesis.checkpointer import retry_random
from penstock.connectors.kinesis.lease_table import LeaseTable, LeaseWrite, TableAddress, lease_error, new_dynamo_client
from penstock.connectors.kinesis.positions import After, AtHorizon
from penstock.errors import LeaseTableInvalid, LeaseTableUnavailable, LeaseThrottled


class TestContract(LeaseTableContract):
    @pytest.fixture
    def client(self):
        return DynamoFake("app")

    @pytest.fixture
    def name(self):
        return "app"


@pytest.fixture
def dynamo():
    return DynamoFake("app")


@pytest.fixture
def table(dynamo):
    return LeaseTable(dynamo, "app")


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (throttled(), LeaseThrottled),
        (client_error("ThrottlingException"), LeaseThrottled),
        (client_error("RequestLimitExceeded"), LeaseThrottled),
        (client_error("InternalServerError", 500), LeaseTableUnavailable),
        (client_error("ServiceUnavailable", 503), LeaseTableUnavailable),
        (away(), LeaseTableUnavailable),
        (ConnectionResetError("reset"), LeaseTableUnavailable),
        (client_error("ResourceNotFoundException"), LeaseTableInvalid),
        (client_error("AccessDeniedException"), LeaseTableInvalid),
        (client_error("ValidationException"), LeaseTableInvalid),
        (NoCredentialsError(), LeaseTableInvalid),
    ],
    ids=str,
)
def test_what_an_error_means(dynamo, table, error, meaning):
    for request in (
        table.read,
        lambda: table.find("s"),
        lambda: table.advance("s", After(1)),
        lambda: table.insert("s", shard(), AtHorizon()),
    ):
        dynamo.faults = [error]
        with pytest.raises(meaning, match="app") as caught:
            request()
        assert caught.value.__cause__ is error


def test_an_error_of_the_code_is_no_error_of_the_table(dynamo, table):
    dynamo.faults = [TypeError("a mistake")]
    with pytest.raises(TypeError):
        table.read()
    assert lease_error(ValueError("another"), "app") is None


def test_a_lost_answer_is_repeated_without_harm(dynamo, table):
    dynamo.put("s", "5")
    dynamo.faults = ["lost"]
    assert retry_random(lambda: table.advance("s", After(6)), pause=lambda _seconds: None) is LeaseWrite.ALREADY
    lease = table.find("s")
    assert table.take(lease, ME)
    lease = table.find("s")
    dynamo.faults = ["lost"]
    retry_random(lambda: table.renew(lease, ME), pause=lambda _seconds: None)
    assert [row["leaseCounter"]["N"] for _key, row in dynamo.history] == ["1", "2", "3"]


def test_all_pages_are_read(dynamo, table):
    dynamo.page = 2
    for number in range(5):
        dynamo.put(f"s{number}", str(number))
    assert sorted(table.read()) == ["s0", "s1", "s2", "s3", "s4"]


def test_a_client_of_boto3_is_made_and_does_not_retry_by_itself():
    client = new_dynamo_client(
        TableAddress(table="app", region="eu-central-1", endpoint_url="http://localhost:1", options={"verify": False})
    )
    assert client.meta.config.retries["total_max_attempts"] == 1
    with pytest.raises(LeaseTableInvalid, match="No client can be made for lease table app"):
        new_dynamo_client(TableAddress(table="app", region="no such region", endpoint_url="nowhere"))
