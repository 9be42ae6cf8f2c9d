"""Whether a job was drained is derived from its last checkpoint, and whoever asked for it in vain is told so."""

import pytest

import penstock as ps
from core.attempt_kit import Attempt
from penstock.checkpoint.history import History
from penstock.errors import RequestFailed, RequestRefused
from penstock.job.job import is_drained, require_drained
from penstock.runtime.lifecycle import JobState
from penstock.testing.filesystem import MemoryFileSystem


def ended(*, ends=False, **stop):
    """A whole attempt, to its end."""
    attempt = Attempt(MemoryFileSystem(), total=2, ends=ends).settle()
    if not ends:
        attempt.stop("s", **stop)
    return attempt


def test_127_a_job_is_drained_if_its_last_checkpoint_says_that_every_source_has_ended():
    drained, plain, by_itself = ended(drain=True), ended(), ended(ends=True)

    assert is_drained(drained.owned.history, {"in"})
    assert is_drained(by_itself.owned.history, {"in"}), "nothing can be read after this either"
    assert not is_drained(plain.owned.history, {"in"})
    assert not is_drained(drained.owned.history, {"in", "other"}), "of that one nothing is said"
    assert not is_drained(History(), {"in"})


def test_127_a_drain_that_came_too_late_is_refused_and_one_whose_checkpoint_never_came_has_failed():
    owned = ended().owned

    require_drained("orders", {"in"}, ended(drain=True).owned, is_cut_short=False)
    with pytest.raises(RequestRefused, match="Its last checkpoint was begun before the drain was requested"):
        require_drained("orders", {"in"}, owned, is_cut_short=False)
    with pytest.raises(RequestFailed, match="It has ended without its last checkpoint"):
        require_drained("orders", {"in"}, owned, is_cut_short=True)
    with pytest.raises(RequestRefused, match="Start it again, then stop it with drain alone"):
        require_drained("orders", {"in"}, None, is_cut_short=False)


def test_a_job_that_has_not_begun_cannot_be_drained_and_stays_as_it_is(tmp_path):
    @ps.pipeline("rates")
    def rates(p):
        p.read("in", ps.rate.Source(rows_per_second=1)).write("out", ps.memory.Sink())

    job = ps.Job(rates, state=tmp_path)

    with pytest.raises(RequestRefused, match="Job 'rates' has not begun, and only a running job can be drained"):
        job.stop(drain=True)
    assert job.state is JobState.CREATED
