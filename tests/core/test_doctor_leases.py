"""What doctor says about a lease table: credentials, the table, and who has its leases."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import penstock as ps
from core.dynamo_fake import DynamoFake, away, client_error
from penstock.admin import doctor
from penstock.admin.doctor_checks import Status
from penstock.admin.doctor_kinesis import credentials_of, look_at_leases
from penstock.connectors.kinesis.config import LeaseMode, LeaseOptions
from penstock.connectors.kinesis.lease_table import TableAddress


def look(dynamo, mode):
    options = LeaseOptions(mode=mode, address=TableAddress(table="app"))
    return [(each.status, each.found) for each in look_at_leases(options, client=dynamo)]


@pytest.mark.parametrize("mode", [LeaseMode.EXPORT, LeaseMode.OWN, LeaseMode.IMPORT])
def test_a_table_with_leases_is_fine_and_one_with_workers_is_a_warning(mode):
    dynamo = DynamoFake("app")
    dynamo.put("a", "5")
    dynamo.put("b", "5", leaseOwner="penstock-orders", penstockClaim="p")
    assert look(dynamo, mode) == [(Status.OK, "2 leases")]
    for number in range(5):
        dynamo.put(f"c{number}", "5", leaseOwner=f"w{number}")
    ((status, found),) = look(dynamo, mode)
    assert (status, found) == (Status.WARN, "7 leases, 5 of them with a worker of the KCL: w0, w1, w2 and 2 more")
    assert {"put", "update", "create"}.isdisjoint(dynamo.requests)


def test_a_missing_table_is_created_by_an_export_and_has_to_be_there_for_an_import():
    assert look(DynamoFake(), LeaseMode.EXPORT) == [(Status.WARN, "is not there")]
    assert look(DynamoFake(), LeaseMode.IMPORT) == [(Status.FAIL, "is not there")]
    assert look(DynamoFake("app"), LeaseMode.IMPORT) == [(Status.FAIL, "has no leases of this stream")]
    assert look(DynamoFake("app"), LeaseMode.EXPORT) == [(Status.OK, "0 leases")]


@pytest.mark.parametrize("fault", [away(), client_error("AccessDeniedException")], ids=["away", "denied"])
def test_a_table_that_does_not_answer_fails(fault):
    dynamo = DynamoFake("app")
    dynamo.faults = [fault]
    ((status, found),) = look(dynamo, LeaseMode.EXPORT)
    assert status is Status.FAIL
    assert "Lease table app" in found


def test_credentials_are_told_by_their_place_and_never_shown():
    finding, was_found = credentials_of(SimpleNamespace(method="env", access_key="AKIA", secret_key="secret"))
    assert was_found
    assert (finding.status, finding.found) == (Status.OK, "found by env")
    finding, was_found = credentials_of(None)
    assert not was_found
    assert finding.status is Status.FAIL


def test_without_credentials_nothing_is_asked(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    options = LeaseOptions(mode=LeaseMode.EXPORT, address=TableAddress(table="app", region="eu-central-1"))
    assert [each.found for each in look_at_leases(options)] == ["boto3 finds none"]


def test_a_source_without_a_table_has_no_line():
    assert list(look_at_leases(LeaseOptions())) == []


def test_doctor_asks_for_the_tables_of_sources_that_have_one(monkeypatch):
    p = ps.Pipeline("orders")
    for mode in ("none", "own"):
        leases = ps.kinesis.leases(f"{mode}-app", mode=mode)
        p.read(mode, ps.kinesis.Source("orders", region="eu-central-1", leases=leases))
    p.read("without", ps.kinesis.Source("orders"))
    asked, announced = [], []
    monkeypatch.setattr(doctor, "look_at_leases", lambda options: asked.append(options.address) or [])
    assert list(doctor._lease_tables(None, p.graph(), announced.append)) == []
    assert [(address.table, address.region) for address in asked] == [("own-app", "eu-central-1")]
    assert announced == ["asking DynamoDB"]
