"""Steps with another uid, and unions, which have none: what they go on from."""

from dataclasses import replace

import pytest

from core.checkpoint_values import (
    CLAIM,
    SINK,
    SOURCE,
    STEP,
    STEPS,
    history,
    keyed,
    layer,
    manifest,
    output,
    read_to,
    with_open,
    wrote,
)
from penstock.checkpoint.entries import StepRecord, StepRole
from penstock.checkpoint.history import History
from penstock.checkpoint.recovery import check_rename, decide_recovery, restore_unions
from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import GraphError, SettingsError, StateIncompatible, UnknownName
from penstock.handles import TaskSnapshot, renamed_union, union_id, union_parts


def decide(found, steps=STEPS, **options):
    return decide_recovery(found, steps, at=3, **options)


def called(step, uid):
    return replace(step, uid=uid)


SUMS = called(STEP, "sums")

# ------------------------------------------------------------------------------------------------------------- renames


@pytest.mark.mission("D7")
def test_a_step_a_source_and_a_sink_go_on_under_their_new_uids():
    found = history(CLAIM, with_open(manifest(1), output(1)))
    steps = (called(SOURCE, "orders"), called(STEP, "sums"), called(SINK, "sums-out"))
    names = {"in": "orders", "totals": "sums", "out": "sums-out"}

    decided = decide(found, steps, rename=names)

    assert decided.snapshots == {
        "orders": read_to(1, "orders"),
        "sums": keyed(layer("layer-1"), task="sums"),
        "sums-out": wrote(task="sums-out"),
    }
    assert (decided.fresh, decided.dropped, decided.initial, decided.renamed) == ((), (), False, names)
    assert decided.commit == (output(1, "out"),), "S6: what is open keeps the identity it was recorded with"


def test_once_a_checkpoint_has_the_new_uid_a_rename_does_nothing():
    steps = (SOURCE, called(STEP, "sums"), SINK)
    tasks = (read_to(2), keyed(layer("layer-2"), task="sums"), wrote())
    found = history(CLAIM, manifest(1), CLAIM, manifest(2, 1, tasks=tasks, steps=steps))

    decided = decide(found, steps, rename={"totals": "sums"})

    assert decided == decide(found, steps)
    assert decided.snapshots["sums"] == keyed(layer("layer-2"), task="sums")


def test_a_rename_is_judged_as_what_it_becomes():
    seen = []
    decide(
        history(CLAIM, manifest(1)),
        (SOURCE, called(STEP, "sums"), SINK),
        rename={"totals": "sums"},
        resolver=lambda step, snapshot: seen.append((step.uid, snapshot.task)) or (),
    )
    assert seen == [("in", "in"), ("sums", "sums")]


@pytest.mark.parametrize(
    ("steps", "names", "error", "why"),
    [
        ((SOURCE, SUMS, SINK), {"total": "sums"}, UnknownName, "has no step 'total'. Did you mean 'totals'?"),
        ((SOURCE, SUMS, SINK), {"totals": "sum"}, UnknownName, "The pipeline has no step 'sum'. Did you mean 'sums'?"),
        ((*STEPS, SUMS), {"totals": "sums"}, StateIncompatible, "The pipeline still has a step 'totals'"),
        ((STEP, SINK), {"in": "totals"}, StateIncompatible, "Checkpoint 1 has both, and one step cannot go on from"),
        (
            (SOURCE, called(SOURCE, "sums"), SINK),
            {"totals": "sums"},
            StateIncompatible,
            "recorded a step of kind 'window/1', and the pipeline has a source of kind 'files/1'",
        ),
    ],
    ids=["unknown old", "unknown new", "old still there", "both", "role"],
)
def test_what_a_rename_cannot_mean_is_refused(steps, names, error, why):
    with pytest.raises(error) as raised:
        decide(history(CLAIM, manifest(1)), steps, rename=names)
    assert why in str(raised.value)


@pytest.mark.parametrize("found", [History(), history(CLAIM)])
def test_where_nothing_is_restored_there_is_nothing_to_rename(found):
    with pytest.raises(UnknownName, match="rename totals=sums: There is no checkpoint to restore"):
        decide(found, (SOURCE, called(STEP, "sums"), SINK), rename={"totals": "sums"})


@pytest.mark.parametrize(
    ("names", "error", "why"),
    [
        ({"a": "a"}, SettingsError, "rename has 'a' for itself"),
        ({"a": "c", "b": "c"}, SettingsError, "rename has 'c' for both 'a' and 'b'"),
        ({"a": "C"}, GraphError, "uid 'C' is not a valid name"),
    ],
)
def test_renames_that_nobody_can_mean_are_refused_before_anything_is_read(names, error, why):
    with pytest.raises(error, match=why):
        check_rename(names)


# -------------------------------------------------------------------------------------------------------------- unions


def union(id, *watermarks):
    return TaskSnapshot(task=id, watermarks=watermarks)


def restored(id, *recorded):
    found = restore_unions([id], recorded)
    return found[id].watermarks if id in found else None


def test_the_name_of_a_union_is_that_of_what_it_unites():
    assert union_parts(union_id(["a", "b.late"])) == ("a", "b.late")
    assert renamed_union("union@a+ab+a.late#2", {"a": "x"}) == "union@x+ab+x.late#2"
    assert renamed_union("a", {"a": "x"}) == "a", "whoever has a uid is renamed by it"


def test_an_unchanged_union_goes_on_where_it_was():
    assert restored("union@a+b", union("union@a+b", 7, MAX_WATERMARK)) == (7, MAX_WATERMARK)


def test_inputs_in_another_order_keep_their_own_watermarks():
    assert restored("union@b+a", union("union@a+b", 7, 9)) == (9, 7)


def test_a_new_input_begins_at_the_beginning_and_the_others_go_on():
    assert restored("union@c+a+b", union("union@a+b", 7, 9)) == (MIN_WATERMARK, 7, 9)
    assert restored("union@b", union("union@a+b", 7, 9), union("union@c+d", 1, 2)) == (9,)
    assert restored("union@x+y", union("union@a+b", 7, 9)) is None


def test_of_inputs_that_nobody_can_tell_apart_all_go_on_from_the_least():
    assert restored("union@a+a", union("union@a+a", 7, 9)) == (7, 7)
    twins = union("union@a+b", 7, 9), union("union@a+b#2", 8, 3)
    assert restored("union@a+b#2", *twins) == (7, 3)


def test_a_union_of_unions_whose_name_says_too_little_begins_anew():
    assert restored("union@union@a+b+c", union("union@union@a+b+c", 7, 9)) is None


@pytest.mark.mission("D7")
def test_a_renamed_source_and_its_place_in_a_union_go_together():
    sources = (called(SOURCE, "a"), called(SOURCE, "b"))
    recorded = StepRecord(uid="union@a+b", role=StepRole.STEP)
    tasks = (read_to(1, "a"), read_to(2, "b"), union("union@a+b", 7, 9))
    found = history(CLAIM, manifest(1, tasks=tasks, steps=(*sources, recorded)))
    steps = (called(SOURCE, "first"), called(SOURCE, "c"), called(SOURCE, "b"), called(recorded, "union@first+c+b"))

    decided = decide(found, steps, rename={"a": "c"})

    assert decided.snapshots["union@first+c+b"].watermarks == (MIN_WATERMARK, 7, 9)
    assert (decided.fresh, decided.initial) == (("first",), True)


def test_unions_of_unions_go_on_where_they_were_though_their_names_do_not_tell_their_inputs():
    outer, inner = union("union@union@a+b+c", 7, 9), union("union@a+b", 8, 7)

    decided = decide(
        history(CLAIM, manifest(1, tasks=(read_to(1), keyed(), wrote(), inner, outer))),
        (*STEPS, StepRecord(uid=inner.task, role=StepRole.STEP), StepRecord(uid=outer.task, role=StepRole.STEP)),
    )

    assert decided.snapshots[outer.task].watermarks == (7, 9)
    assert decided.snapshots[inner.task].watermarks == (8, 7)
