"""What goes wrong in a driver that was superseded is told as the fence that it is (rule G4)."""

import pytest

from core.checkpoint_values import CLAIM, log_on, manifest
from penstock.checkpoint import paths
from penstock.errors import CheckpointUnreadable, GenerationFenced, LayerMissing, StateDirectoryRefused, StorageFailed
from penstock.filesystem.base import UnknownOutcome
from penstock.job.attempt import as_fence_if_superseded
from penstock.testing.filesystem import MemoryFileSystem


class GivenUp(Exception):
    pass


def owned(filesystem=None, pause=None):
    filesystem = filesystem or MemoryFileSystem()
    log = log_on(filesystem, ids="first")[0]
    if pause is not None:
        log._writer._pause = pause
    return log.claim(CLAIM), filesystem


@pytest.mark.parametrize("error", [LayerMissing("gone"), CheckpointUnreadable("not what was written")])
def test_a_file_that_the_new_owner_swept_is_a_fence(error):
    first, filesystem = owned()
    second = log_on(filesystem, ids="second")[0].claim(CLAIM, take_over=True)
    second.append(manifest(1))

    assert isinstance(as_fence_if_superseded(error, first), GenerationFenced)


def test_what_goes_wrong_under_ones_own_claim_or_before_it_stays_what_it_is():
    first, _ = owned()
    error = LayerMissing("gone")

    assert as_fence_if_superseded(error, first) is error
    assert as_fence_if_superseded(error, None) is error
    fence = GenerationFenced("taken over")
    assert as_fence_if_superseded(fence, first) is fence


@pytest.mark.parametrize("refusal", [StorageFailed("no answer"), StateDirectoryRefused("not allowed")])
def test_a_log_that_cannot_be_looked_at_hides_nothing_and_is_not_waited_for(refusal):
    waited = []
    first, filesystem = owned(pause=waited.append)
    filesystem.fail("list", refusal, times=1_000)

    error = LayerMissing("gone")
    assert as_fence_if_superseded(error, first) is error
    assert waited == []


def test_an_entry_of_our_own_that_landed_after_all_fences_nobody():
    def give_up(_seconds):
        raise GivenUp

    first, filesystem = owned(pause=give_up)
    filesystem.lose_answer("create", path="log/*")
    with pytest.raises(GivenUp):
        first.append(manifest(1))
    assert paths.entry(1) in filesystem.files

    error = LayerMissing("gone")
    assert as_fence_if_superseded(error, first) is error


def test_a_log_that_is_gone_is_no_take_over():
    first, filesystem = owned()
    for path in filesystem.files:
        filesystem.remove(path)

    error = LayerMissing("gone")
    assert as_fence_if_superseded(error, first) is error
    with pytest.raises(StateDirectoryRefused, match="log of this job is gone"):
        first.check()


def test_a_look_does_not_wait_for_a_write_that_is_under_way():
    looked = []

    def look(_seconds):
        looked.append(first.superseded())
        raise GivenUp

    first, filesystem = owned(pause=look)
    filesystem.fail("create", UnknownOutcome("no answer"), path="log/*")
    with pytest.raises(GivenUp):
        first.append(manifest(1))
    assert looked == [None]


def test_an_entry_above_ours_that_nobody_can_read_is_not_ours():
    first, filesystem = owned()
    log_on(filesystem, ids="second")[0].claim(CLAIM, take_over=True)
    filesystem.corrupt(paths.entry(1), b"rotten")

    assert isinstance(first.superseded(), GenerationFenced)


def test_a_fence_that_was_seen_is_kept_and_nothing_is_deleted_after_it():
    first, filesystem = owned()
    log_on(filesystem, ids="second")[0].claim(CLAIM, take_over=True)
    assert isinstance(first.look(), GenerationFenced)
    filesystem.fail("list", StorageFailed("no answer"), times=1_000)
    assert isinstance(first.look(), GenerationFenced), "it does not have to be seen again"
    with pytest.raises(GenerationFenced):
        first.trim()
    with pytest.raises(GenerationFenced):
        first.append(manifest(1))
