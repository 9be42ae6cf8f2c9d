"""What goes wrong in a driver that was superseded is told as the fence that it is (rule G4)."""

from core.checkpoint_values import CLAIM, log_on
from penstock.errors import CheckpointUnreadable, GenerationFenced, LayerMissing, StorageFailed
from penstock.job.attempt import fence_behind
from penstock.testing.filesystem import MemoryFileSystem


def owned():
    filesystem = MemoryFileSystem()
    return log_on(filesystem, ids="first")[0].claim(CLAIM), filesystem


def test_a_file_that_the_new_owner_swept_is_a_fence():
    first, filesystem = owned()
    log_on(filesystem, ids="second")[0].claim(CLAIM, take_over=True)

    for error in (LayerMissing("gone"), CheckpointUnreadable("not what was written")):
        assert isinstance(fence_behind(error, first), GenerationFenced)


def test_what_goes_wrong_under_ones_own_claim_or_before_it_stays_what_it_is():
    first, _ = owned()
    error = LayerMissing("gone")

    assert fence_behind(error, first) is error
    assert fence_behind(error, None) is error


def test_a_fence_stays_the_fence_it_was_and_a_log_that_cannot_be_looked_at_hides_nothing():
    first, filesystem = owned()
    fence = GenerationFenced("taken over")
    assert fence_behind(fence, first) is fence

    filesystem.fail("list", path="*", error=StorageFailed("no answer"))
    error = LayerMissing("gone")
    assert fence_behind(error, first) is error
