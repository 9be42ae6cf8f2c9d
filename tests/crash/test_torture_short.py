"""The tortures with few kills, as the suite runs them; ``make torture-files`` and ``torture-kafka`` are the whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]


def tortured(name):
    """The figures of its short form, which must have found nothing."""
    script = Path(__file__).with_name(name)
    done = subprocess.run([sys.executable, str(script), "--short"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))


@pytest.mark.mission("D10", "S10", "L25")
def test_a_job_killed_at_five_places_loses_and_repeats_nothing_and_a_broken_one_does():
    figures = tortured("torture_files.py")

    assert figures["kills"] == 5
    assert figures["kills_in_commit"] == 2
    assert figures["kills_in_recovery"] >= 1
    assert figures["rows"] > 0
    assert (figures["lost"], figures["repeated"]) == (0, 0)


@pytest.mark.integration
@pytest.mark.mission("D6", "D10")
def test_a_kafka_job_that_is_killed_twice_and_whose_broker_is_killed_once_loses_and_repeats_nothing():
    figures = tortured("torture_kafka.py")

    assert (figures["kills"], figures["kills_in_recovery"]) == (2, 1)
    assert (figures["broker_kills"], figures["broker_pauses"], figures["partitions_added"]) == (1, 1, 1)
    assert min(figures["rows"], figures["transactions"], figures["transactions_aborted"]) > 0
    assert (figures["lost"], figures["repeated"]) == (0, 0)


@pytest.mark.integration
@pytest.mark.mission("D10")
def test_a_job_that_writes_to_kafka_and_is_killed_around_a_commit_loses_and_repeats_nothing_and_a_broken_one_does():
    figures = tortured("torture_kafka_out.py")

    assert (figures["kills"], figures["kills_in_commit"]) == (2, 2)
    assert (figures["broker_kills"], figures["broker_pauses"]) == (1, 1)
    assert figures["rows"] > 0
    assert (figures["lost"], figures["repeated"]) == (0, 0)
    assert figures["control_repeated"] > 0


@pytest.mark.integration
def test_a_kinesis_job_that_is_killed_under_reshards_loses_nothing_and_the_kcl_goes_on_where_it_was():
    figures = tortured("torture_kinesis.py")

    assert figures["kills"] == 2
    assert min(figures[name] for name in ("rows", "reshards", "aggregates", "throttled", "expired", "lease_looks")) > 0
    assert (figures["lost"], figures["repeated"], figures["lease_regressions"]) == (0, 0, 0)
    assert figures["kcl_lost"] == 0
    assert figures["kcl_repeated_intervals"] <= 1
