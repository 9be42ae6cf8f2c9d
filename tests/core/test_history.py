"""What follows from the entries of a log; rule ids are those of the protocol."""

import pytest

from core.checkpoint_values import CLAIM, condemn, history, manifest, output, pin, rewind, unpin, with_open
from penstock.checkpoint.entries import Stopped
from penstock.checkpoint.history import ID_JUMP, History, Unreadable
from penstock.errors import CheckpointUnreadable


def test_an_empty_log_says_nothing():
    empty = History()

    assert empty.is_empty
    assert (empty.log_id, empty.job, empty.generation, empty.claim) == (None, None, None, None)
    assert (empty.restore_point, empty.open_committables, empty.to_void) == (None, (), ())
    assert (empty.next_checkpoint, empty.floor, empty.deleted) == (0, 0, -1)


def test_a_claim_alone_names_log_job_and_owner():
    found = history(CLAIM, CLAIM)

    assert (found.log_id, found.job, found.generation, found.claim.number) == ("log-1", "orders", 1, 1)
    assert found.restore_point is None


def test_R1_the_restore_point_is_what_the_last_checkpoint_or_rewind_says():
    bodies = [CLAIM, manifest(1), manifest(2, 1)]

    assert history(*bodies).restore_point.checkpoint == 2
    assert history(*bodies, CLAIM, rewind(1, 2)).restore_point.checkpoint == 1
    assert history(*bodies, CLAIM, rewind(1, 2), CLAIM, rewind(2, 1)).restore_point.checkpoint == 2
    assert history(*bodies, CLAIM, rewind(1, 2), manifest(3, 1)).restore_point.checkpoint == 3
    assert history(*bodies, CLAIM, rewind(None, 2)).restore_point is None


def test_R1_a_rewind_to_what_is_not_there_is_an_error():
    with pytest.raises(CheckpointUnreadable, match=r"0002\.json rewinds to checkpoint 9"):
        _ = history(CLAIM, manifest(1), rewind(9, 1)).restore_point


@pytest.mark.parametrize("last", [pin("p", 2), unpin("p"), condemn(1), CLAIM, Stopped(checkpoint=2, at=1)])
def test_other_entries_do_not_move_the_restore_point(last):
    assert history(CLAIM, manifest(1), manifest(2, 1), last).restore_point.checkpoint == 2


def test_R5_open_is_what_the_newest_checkpoint_lists_never_the_restored_one():
    bodies = [CLAIM, with_open(manifest(1), output(1)), with_open(manifest(2, 1), output(2))]

    assert history(*bodies).open_committables == (output(2),)
    assert history(*bodies, CLAIM).open_committables == (output(2),)
    assert history(*bodies, rewind(1, 2)).open_committables == ()
    assert history(*bodies, rewind(1, 2), with_open(manifest(3, 1), output(3))).open_committables == (output(3),)
    assert history(*bodies, Stopped(checkpoint=2, at=1)).open_committables == ()


def test_R3_what_rewinds_discard_is_voided_until_a_checkpoint_follows():
    bodies = [CLAIM, manifest(1), with_open(manifest(2, 1), output(2)), rewind(1, 2, discard=(output(2),))]

    assert history(*bodies).to_void == (output(2),)
    assert history(*bodies, CLAIM, rewind(None, 1, discard=(output(3),))).to_void == (output(2), output(3))
    assert history(*bodies, manifest(3, 1)).to_void == ()


def test_R4_ids_rise_above_every_id_on_any_timeline():
    assert history(CLAIM, manifest(1), manifest(7, 1), rewind(1, 7)).next_checkpoint == 8
    assert history(CLAIM, manifest(1), manifest(7, 1), rewind(None, 7)).next_checkpoint == 8


def test_R8_ids_jump_over_an_entry_that_was_lost():
    found = history(CLAIM, manifest(4), CLAIM, CLAIM, rewind(4, None, lost=(2,)))

    assert found.next_checkpoint == 4 + ID_JUMP + 1
    assert found.lost == {2}


def test_R8_ids_after_the_jump_go_on_from_there():
    found = history(CLAIM, manifest(4), CLAIM, CLAIM, rewind(4, None, lost=(2,)), manifest(2_000_000, 4))

    assert found.next_checkpoint == 2_000_001


def test_R6_condemnations_count_wherever_they_stand():
    found = history(
        CLAIM,
        manifest(1),
        manifest(2, 1),
        manifest(3, 2, condemned=(1,)),
        rewind(2, 3, condemned=(3,)),
        manifest(4, 2),
        condemn(4),
        manifest(5, 4),
    )

    assert found.condemned == {1, 3, 4}
    assert list(found.restorable) == [2, 5]


def test_R6_pins_and_unpins_count_wherever_they_stand():
    found = history(
        CLAIM,
        manifest(1, pins=(pin("a", 1),)),
        manifest(2, 1),
        pin("b", 2),
        rewind(1, 2),
        pin("c", 1),
        unpin("a"),
        unpin("never"),
    )

    assert {name: held.checkpoint for name, held in found.pins.items()} == {"b": 2, "c": 1}
    assert found.pinned == {1, 2}


def test_abandoned_checkpoints_stay_restorable():
    assert list(history(CLAIM, manifest(1), manifest(2, 1), rewind(1, 2), manifest(3, 1)).restorable) == [1, 2, 3]


def test_files_are_condemned_by_entry_in_order():
    found = history(CLAIM, manifest(1), manifest(2, 1, condemned_files=("b", "a")), condemn(files=["c"]), CLAIM)

    assert found.condemned_files() == ("b", "a", "c")
    assert found.condemned_files(after=2) == ("c",)
    assert list(found.condemnations()) == [(2, ("b", "a")), (3, ("c",))]


def test_floor_and_finished_deletions_are_those_of_the_newest_manifest():
    found = history(CLAIM, manifest(1, floor=0, deleted=0), manifest(2, 1, floor=1, deleted=1), CLAIM)

    assert (found.floor, found.deleted) == (1, 1)


@pytest.mark.parametrize(
    "body",
    [
        manifest(1, fulfils=("r",)),
        Stopped(checkpoint=1, at=1, fulfils=("q", "r")),
        pin("p", 0, request="r"),
        unpin("p", request="r"),
        rewind(0, 1, request="r"),
    ],
    ids=lambda body: type(body).__name__,
)
def test_C3_a_request_is_fulfilled_by_the_entry_that_holds_its_id(body):
    found = history(CLAIM, manifest(0), body, CLAIM)

    assert found.entry_that_fulfils("r").number == 2
    assert found.entry_that_fulfils("other") is None


def test_what_is_built_on_a_checkpoint_is_found_along_parents():
    found = history(CLAIM, manifest(1), manifest(2, 1), manifest(3, 2), rewind(1, 3), manifest(4, 1), manifest(5, 4))

    assert found.built_on(frozenset({2})) == {2, 3}
    assert found.built_on(frozenset({4})) == {4, 5}


def test_entries_that_cannot_be_read_are_kept_beside():
    bad = Unreadable(number=1, message="x")

    assert History(unreadable=(bad,), tail=1).log_id is None
