"""What a start does with what the log says: whole decisions, every refusal with both sides and the remedy."""

from dataclasses import replace

import pytest

from core.checkpoint_values import (
    CLAIM,
    SINK,
    SOURCE,
    STEP,
    STEPS,
    condemn,
    history,
    keyed,
    layer,
    manifest,
    output,
    pin,
    read_to,
    rewind,
    with_open,
    wrote,
)
from penstock.checkpoint.entries import StepRecord, StepRole, Stopped
from penstock.checkpoint.history import History, Unreadable
from penstock.checkpoint.recovery import Recovery, SchemaChange, decide_recovery, plan_rewind
from penstock.errors import GraphError, StateIncompatible
from penstock.handles import ColumnChange, StateColumn, StateHandle, TaskSnapshot


def decide(found, steps=STEPS, **options):
    return decide_recovery(found, steps, at=3, **options)


def snapshots(checkpoint):
    return {"in": read_to(checkpoint), "totals": keyed(layer(f"layer-{checkpoint}")), "out": wrote()}


NEW_LOG = Recovery(next_checkpoint=0, initial=True)


def test_C4_an_empty_log_begins_with_checkpoint_0():
    assert decide(History()) == NEW_LOG


def test_a_log_of_claims_only_begins_with_checkpoint_0():
    assert decide(history(CLAIM, CLAIM)) == NEW_LOG


@pytest.mark.mission("D1")
def test_the_newest_checkpoint_is_restored_by_itself():
    found = history(CLAIM, manifest(0), with_open(manifest(1, 0), output(1)), CLAIM)

    assert decide(found) == Recovery(
        commit=(output(1),), restored=1, snapshots=snapshots(1), next_checkpoint=2, initial=False
    )


def test_what_is_open_is_committed_in_order_and_after_a_stop_nothing_is():
    items = (output(1), output(2), output(2, "other"))
    found = [CLAIM, manifest(1), with_open(manifest(2, 1), *items)]

    assert decide(history(*found)).commit == items
    assert decide(history(*found, Stopped(checkpoint=2, at=1), CLAIM)).commit == ()


def test_hole_38_recorded_deletions_that_may_not_be_done_are_repeated():
    found = history(
        CLAIM,
        manifest(1),
        manifest(2, 1, condemned_files=("state/totals/0/a",)),
        condemn(files=["state/totals/0/b"]),
        manifest(3, 2, deleted=2),
        condemn(files=["state/totals/0/c"]),
    )

    assert decide(found).delete == ("state/totals/0/b", "state/totals/0/c")


# ------------------------------------------------------------------------------------------------- matching by uid


@pytest.mark.mission("D7")
def test_a_step_that_is_new_begins_empty_and_the_rest_goes_on():
    found = history(CLAIM, manifest(1))
    new = StepRecord(uid="new", role=StepRole.STEP, kind="dedup/1")

    decided = decide(found, (*STEPS, new))

    assert (decided.fresh, decided.initial, decided.restored) == (("new",), False, 1)


def test_C4_a_new_source_brings_a_checkpoint_at_once():
    decided = decide(history(CLAIM, manifest(1)), (*STEPS, replace(SOURCE, uid="second")))

    assert (decided.fresh, decided.initial) == (("second",), True)


@pytest.mark.parametrize("gone", ["in", "totals"])
def test_state_that_would_be_left_unused_refuses_with_both_sides_and_the_remedy(gone):
    steps = tuple(step for step in STEPS if step.uid != gone)
    found = history(CLAIM, manifest(1))

    with pytest.raises(StateIncompatible, match=rf"Checkpoint 1 holds state of '{gone}', .*--allow-non-restored-state"):
        decide(found, steps)
    allowed = decide(found, steps, allow_non_restored_state=True)
    assert allowed.dropped == (gone,)
    assert gone not in allowed.snapshots


@pytest.mark.parametrize(
    "state",
    [None, StateHandle(kind="window/1", schema="n LONG", layers=())],
    ids=["none", "no layers"],
)
def test_empty_state_may_be_left_unused(state):
    tasks = (read_to(1), TaskSnapshot(task="gone", state=state), wrote())
    gone = StepRecord(uid="gone", role=StepRole.STEP, kind="window/1", schema="n LONG")

    assert decide(history(CLAIM, manifest(1, tasks=tasks, steps=(*STEPS, gone)))).dropped == ()


def test_timers_without_layers_are_state():
    with pytest.raises(StateIncompatible, match="'gone'"):
        decide(history(CLAIM, manifest(1, tasks=(keyed(task="gone", detail={"timers": [1]}),))))


def test_S6_what_is_open_of_a_sink_that_is_gone_is_committed_all_the_same():
    found = history(CLAIM, with_open(manifest(1), output(1)))

    assert decide(found, (SOURCE, STEP)).commit == (output(1),)


@pytest.mark.parametrize(
    "step",
    [replace(STEP, kind="window/2"), StepRecord(uid="totals", role=StepRole.SOURCE, kind="window/1", schema="n LONG")],
    ids=["kind", "role"],
)
def test_another_kind_under_the_same_uid_is_refused(step):
    with pytest.raises(
        StateIncompatible,
        match=rf"step 'totals': Checkpoint 1 recorded a step of kind 'window/1', and the pipeline has a "
        rf"{step.role.value} of kind '{step.kind}'. Give the new step another uid",
    ):
        decide(history(CLAIM, manifest(1)), (SOURCE, step, SINK))


def test_another_kind_of_a_step_that_kept_nothing_is_fine():
    tasks = (read_to(1), keyed(), wrote())

    decided = decide(history(CLAIM, manifest(1, tasks=tasks)), (SOURCE, replace(STEP, kind="window/2"), SINK))

    assert decided.snapshots["totals"] == keyed()


def test_a_changed_schema_is_reported_and_judged():
    wider = replace(STEP, schema="n LONG, m LONG")
    found = history(CLAIM, manifest(1))

    assert decide(found, (SOURCE, wider, SINK)).changes == (
        SchemaChange(uid="totals", recorded="n LONG", declared="n LONG, m LONG"),
    )
    move = ColumnChange(recorded=None, declared=StateColumn("m", "LONG"))
    judged = decide(found, (SOURCE, wider, SINK), resolver=lambda step, _: (move,) if step == wider else ())
    assert [change.moves for change in judged.changes] == [(move,)]


def test_state_that_cannot_be_taken_over_is_refused_with_the_checkpoint():
    def judge(step, snapshot):
        assert (step, snapshot) in [(SOURCE, read_to(1)), (STEP, keyed(layer("layer-1")))], "not what holds nothing"
        if step == STEP:
            msg = "no"
            raise StateIncompatible(msg)
        return ()

    with pytest.raises(StateIncompatible, match="step 'totals': Checkpoint 1: no"):
        decide(history(CLAIM, manifest(1)), resolver=judge)


def test_the_schema_of_an_older_manifest_is_that_of_its_state():
    """Which recorded none with its steps."""
    steps = (SOURCE, replace(STEP, schema=""), SINK)
    found = history(CLAIM, manifest(1, steps=steps))

    assert decide(found).changes == ()
    assert decide(found, (SOURCE, replace(STEP, schema="n INT"), SINK)).changes == (
        SchemaChange(uid="totals", recorded="n LONG", declared="n INT"),
    )


def test_a_source_more_before_all_others_disturbs_none():
    """Pain 2: uids address state, never places."""
    decided = decide(history(CLAIM, manifest(1)), (replace(SOURCE, uid="first"), *STEPS))

    assert (decided.snapshots, decided.fresh) == (snapshots(1), ("first",))


def test_a_sink_that_is_gone_leaves_nothing_unused():
    assert decide(history(CLAIM, with_open(manifest(1), output(1))), (SOURCE, STEP)).dropped == ()


# ----------------------------------------------------------------------------------------------------------- rewinds


TWO = (CLAIM, manifest(1), with_open(manifest(2, 1), output(1), output(2)))


def test_R1_a_fresh_start_beside_what_is_there_is_a_rewind_to_nothing():
    decided = decide(history(*TWO), fresh=True)

    assert decided == Recovery(commit=(output(1), output(2)), rewind=rewind(None, 2), next_checkpoint=3, initial=True)


@pytest.mark.parametrize("found", [History(), history(CLAIM), history(*TWO, rewind(None, 2))])
def test_a_fresh_start_where_nothing_would_be_restored_needs_no_rewind(found):
    assert decide(found, fresh=True).rewind is None


def test_R2_a_rewind_first_commits_everything_that_is_open():
    decided = decide(history(*TWO), rewind_to=1)

    assert decided == Recovery(
        commit=(output(1), output(2)),
        rewind=rewind(1, 2),
        restored=1,
        snapshots=snapshots(1),
        next_checkpoint=3,
        initial=False,
    )


def test_R1_once_the_rewind_is_an_entry_a_plain_start_follows_it():
    decided = decide(history(*TWO, rewind(1, 2), CLAIM))

    assert (decided.restored, decided.rewind, decided.commit) == (1, None, ())


def test_R3_a_discard_names_only_what_is_above_the_target_and_condemns_what_was_built_on_it():
    found = history(
        CLAIM,
        manifest(1, parent=None),
        with_open(manifest(2, 1), output(2)),
        with_open(manifest(3, 2), output(2), output(3)),
        with_open(manifest(4, 3), output(2), output(3), output(4)),
    )

    decided = decide(found, rewind_to=2, discard_unpublished=True)

    assert decided.commit == (output(2),)
    assert decided.rewind == rewind(2, 4, discard=(output(3), output(4)), condemned=(3, 4))
    assert decided.void == (output(3), output(4))


def test_R3_output_of_an_aborted_checkpoint_condemns_the_one_that_carried_it():
    found = history(CLAIM, manifest(1), with_open(manifest(3, 1), output(2)), manifest(4, 3))

    assert plan_rewind(found, 1, at=3, discard_unpublished=True) == rewind(1, 4)
    found = history(CLAIM, manifest(1), with_open(manifest(3, 1), output(2)), with_open(manifest(4, 3), output(2)))
    assert plan_rewind(found, 1, at=3, discard_unpublished=True).condemned == (3, 4)


def test_R3_a_fresh_start_may_discard_everything():
    decided = decide(history(*TWO), fresh=True, discard_unpublished=True)

    assert (decided.commit, decided.void) == ((), (output(1), output(2)))
    assert decided.rewind.condemned == (2,)


def test_R3_a_discard_refuses_while_a_checkpoint_it_would_condemn_is_pinned():
    found = history(*TWO, pin("keep", 2))

    with pytest.raises(GraphError, match=r"would condemn checkpoints that have names: keep. Drop the names first"):
        decide(found, rewind_to=1, discard_unpublished=True)


def test_R3_voids_of_an_earlier_rewind_are_repeated():
    found = history(*TWO, rewind(1, 2, discard=(output(2),)))

    assert decide(found).void == (output(2),)


def test_R8_a_rewind_names_the_entries_that_cannot_be_read_and_were_not_named_before():
    found = history(CLAIM, manifest(1), CLAIM, CLAIM, rewind(1, None, lost=(2,)))
    unreadable = (Unreadable(number=2, message="x"), Unreadable(number=3, message="y"))

    assert plan_rewind(replace(found, unreadable=unreadable), 1, at=3, request="r") == rewind(
        1, 1, lost=(3,), request="r"
    )


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (1, r"Checkpoint 1 is condemned, so its files may be gone. Restorable checkpoints: 2, 3"),
        (9, r"Checkpoint 9 is not in the log. Restorable checkpoints: 2, 3"),
    ],
)
def test_L5_the_target_of_a_rewind_must_be_restorable(target, message):
    found = history(CLAIM, manifest(1), manifest(2, 1), manifest(3, 2, condemned=(1,)))

    with pytest.raises(GraphError, match=message):
        decide(found, rewind_to=target)


def test_a_rewind_of_a_log_without_checkpoints_says_so():
    with pytest.raises(GraphError, match="Restorable checkpoints: none"):
        decide(history(CLAIM), rewind_to=1)
