"""The hint that a run leaves: its numbers come back as they were, it is paced, and it never harms the job."""

import json
from dataclasses import replace

import pytest

from core.control_kit import Driver
from core.looking_kit import NOON, REPORT, SECOND, SIDES
from penstock.checkpoint import paths
from penstock.clock import EventTime
from penstock.control.protocol import ControlFiles
from penstock.errors import StorageFailed
from penstock.facts import (
    CheckpointFailed,
    JobEnded,
    JobStarted,
    Restarting,
    RowsLate,
    SourceLag,
    SourceRests,
    WatermarkAdvanced,
    WatermarkHeld,
)
from penstock.observability.report import Report, ReportCollector
from penstock.observability.status_file import (
    HEARTBEAT_INTERVAL,
    WRITE_INTERVAL,
    StatusFile,
    StatusFileWriter,
    decode,
    encode,
    read_status_file,
)
from penstock.testing.filesystem import MemoryFileSystem

HINT = StatusFile(job="orders", log_id="log-1", generation=3, began=NOON, written=NOON + SECOND, report=REPORT)


@pytest.fixture
def disk():
    return MemoryFileSystem()


def writer(driver, report, **rest):
    return StatusFileWriter(
        driver.filesystem,
        job="orders",
        report=report,
        owned=lambda: driver.requests.owned,
        clock=driver.clock,
        **rest,
    )


def writes(disk):
    return sum(each.name == "replace" for each in disk.operations)


def test_every_number_comes_back_from_the_bytes():
    hint = replace(HINT, side_outputs=SIDES)

    assert decode(encode(hint)) == hint
    assert decode(encode(hint)).report.lag_measured == REPORT.lag_measured
    assert decode(encode(replace(hint, report=Report(state="created")))).report == Report(state="created")


def test_fields_of_a_newer_version_are_left_out_and_other_schemas_are_no_hint():
    told = json.loads(encode(HINT))
    told["run"]["mood"] = told["mood"] = "good"

    assert decode(json.dumps(told).encode()) == HINT
    assert decode(json.dumps(told | {"schema": "penstock.report/2"}).encode()) is None


def test_the_hint_of_an_older_version_does_not_say_when_a_lag_was_measured():
    told = json.loads(encode(HINT))
    for source in told["run"]["sources"]:
        for name in ("behind_measured", "is_resting", "rests_until"):
            del source[name]

    report = decode(json.dumps(told).encode()).report
    assert (report.lag, report.lag_measured, report.resting) == (REPORT.lag, {}, {})


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'"x"', b"\xff", encode(HINT)[:-30]])
def test_bytes_that_are_no_hint_say_nothing(data):
    assert decode(data) is None


def test_no_request_can_have_its_name(disk):
    disk.replace(paths.REPORT, encode(HINT))

    scan = ControlFiles(disk).scan()

    assert (scan.open, scan.answered) == ((), ())


def test_it_is_written_each_second_while_something_changes_and_seldom_while_nothing_does(disk):
    driver, told = Driver(disk).claim(), [REPORT]
    hint = writer(driver, lambda: told[-1])
    for _ in range(20):
        hint.write_if_due()
    assert writes(disk) == 1

    driver.clock.at += WRITE_INTERVAL
    hint.write_if_due()
    assert writes(disk) == 1, "nothing has changed"
    told.append(replace(REPORT, restarts=2))
    hint.write_if_due()
    assert writes(disk) == 2
    driver.clock.at += HEARTBEAT_INTERVAL
    hint.write_if_due()
    assert writes(disk) == 3, "so its age says that the job lives"
    assert read_status_file(disk).report.restarts == 2


def test_a_lag_that_is_measured_again_and_is_the_same_is_no_change(disk):
    driver = Driver(disk).claim()
    tally = ReportCollector(sources=frozenset({"in"}), sinks=frozenset(), clock=driver.clock)
    hint = writer(driver, tally.report)
    for _ in range(5):
        tally(SourceLag(task="in", rows=0, seconds=0.0, eta_seconds=None, partitions={}))
        hint.write_if_due()
        driver.clock.at += WRITE_INTERVAL

    assert writes(disk) == 1


def test_nothing_is_written_before_a_claim_and_the_end_is_written_at_once(disk):
    driver, told = Driver(disk), [REPORT]
    hint = writer(driver, lambda: told[-1], side_outputs=SIDES)
    hint.write_if_due()
    hint.finish()
    assert read_status_file(disk) is None

    driver.claim()
    hint.write_if_due()
    told.append(replace(REPORT, state="stopped"))
    hint.finish()

    found = read_status_file(disk)
    assert (found.report.state, found.generation, found.side_outputs) == ("stopped", driver.generation, SIDES)
    assert found.log_id == driver.owned.log_id


def test_a_driver_that_was_superseded_does_not_overwrite_the_numbers_of_the_next(disk):
    first = Driver(disk, "first").claim()
    zombie = writer(first, lambda: REPORT)
    second = Driver(disk, "second").claim()
    writer(second, lambda: replace(REPORT, restarts=9)).write_if_due()

    zombie.write_if_due()
    zombie.finish()

    assert read_status_file(disk).generation == second.generation


def test_storage_that_refuses_is_told_of_once_and_harms_nobody(disk, caplog):
    driver = Driver(disk).claim()
    disk.fail("replace", StorageFailed("disk full"), times=3)
    hint = writer(driver, lambda: REPORT)
    for _ in range(4):
        driver.clock.at += WRITE_INTERVAL
        hint.write_if_due()

    assert [record.getMessage() for record in caplog.records] == [
        "job orders cannot write its numbers for `penstock status`: disk full"
    ]
    assert read_status_file(disk).report == REPORT


def test_the_report_knows_which_sources_rest_until_the_attempt_fails():
    tally = ReportCollector(
        sources=frozenset({"in", "slow"}), sinks=frozenset(), clock=Driver(MemoryFileSystem()).clock
    )
    tally(SourceRests(task="in", until=None))
    tally(SourceRests(task="slow", until=NOON))
    assert tally.report().resting == {"in": None, "slow": NOON}

    tally(Restarting(cause="no broker", delay_ms=1.0, attempt=1))
    assert tally.report().resting == {}


def test_the_report_knows_what_holds_a_watermark_back_until_the_next_attempt_begins():
    tally = ReportCollector(sources=frozenset({"in"}), sinks=frozenset({"out"}))
    start = JobStarted(job="orders", generation=0, restored=None, published=0, attempt=1)
    for fact in (
        start,
        WatermarkAdvanced(task="totals", at=EventTime(5)),
        WatermarkHeld(task="totals", by="in/3", at=EventTime(5)),
        RowsLate(task="totals", partition="in/3", rows=2),
        RowsLate(task="totals", partition="in/3", rows=1),
        CheckpointFailed(checkpoint=4, reason="expired", message="'totals' is slow"),
    ):
        tally(fact)
    told = tally.report()
    assert (told.watermarks, told.held_by) == ({"totals": 5}, {"totals": "in/3"})
    assert told.late_by == {("totals", "in/3"): 3}
    assert told.last_failure == "checkpoint 4 failed: expired: 'totals' is slow"

    tally(Restarting(cause="no space", delay_ms=1.0, attempt=1))
    tally(replace(start, attempt=2))
    assert (tally.report().watermarks, tally.report().held_by) == ({}, {})
    assert tally.report().last_failure == "no space"
    tally(JobEnded(state="stopped"))
    assert tally.report().last_failure == "no space", "an orderly end is no failure"
