from __future__ import annotations

import pytest

from penstock.elements import Batch, ObservedMetrics
from penstock.errors import SourceChanged


def never():
    msg = "read without a job"
    raise AssertionError(msg)


def test_a_lost_measure_is_settled_without_reading_and_stays_so():
    measure, called = ObservedMetrics(never), []
    measure.when_settled(lambda: called.append(True))
    measure.lose()
    assert (measure.settled, measure.value, called) == (True, None, [True])
    measure.settle()
    assert measure.value is None


def test_losing_what_was_settled_changes_nothing():
    measure = ObservedMetrics.known({"rows": 2})
    measure.lose()
    assert measure.value == {"rows": 2}


def test_a_skipped_batch_loses_what_nobody_read():
    known, unknown = ObservedMetrics.known({"rows": 0}), ObservedMetrics(never)
    Batch(frame=None, sequence=1, metrics={"rows": known, "time:t": unknown}, verify=never).skip()
    assert known.value == {"rows": 0}
    assert unknown.settled
    assert unknown.value is None


def test_a_batch_is_verified_after_its_measures_are_settled():
    seen = []
    measure = ObservedMetrics(lambda: seen.append("measure"))

    def verify():
        seen.append("verify")
        msg = "changed"
        raise SourceChanged(msg)

    batch = Batch(frame=None, sequence=1, metrics={"rows": measure}, verify=verify)
    with pytest.raises(SourceChanged):
        batch.settle()
    assert seen == ["measure", "verify"]
    assert measure.settled
