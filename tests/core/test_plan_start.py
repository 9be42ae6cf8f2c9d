"""What a plan says of hand-made logs: verdicts, what is published and seen again, warnings; and that a start agrees."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.checkpoint_values import CLAIM, history, keyed, layer, output, pin, rewind, unpin, wrote
from core.plan_kit import NOON, SECOND, SETTINGS, STEPS, at, counted, story
from penstock.admin.reprocessing import RepublishedOutput, outputs, rewind_effects
from penstock.admin.start_plan import PipelineInfo, StartDecision, StepVerdict, plan_start, start_target
from penstock.checkpoint.entries import StepRecord, StepRole, Stopped
from penstock.checkpoint.history import History
from penstock.checkpoint.recovery import decide_recovery
from penstock.errors import GraphError, StateIncompatible, UnknownName
from penstock.handles import ColumnChange, StateColumn, StateHandle, TaskSnapshot
from penstock.interfaces.source import Backlog
from penstock.job.start import StartOptions

NEW = StepRecord(uid="new", role=StepRole.STEP, kind="dedup/1")


def plan(found, steps=STEPS, *, told=None, settings=SETTINGS, checkpoint=None, **options):
    facts = PipelineInfo(
        job="orders",
        steps=tuple(steps),
        sources={step.uid: "numbers" for step in steps if step.role is StepRole.SOURCE},
        sinks=(),
        code={},
    )
    start = StartOptions(checkpoint=None if checkpoint is None else str(checkpoint), **options)
    target = start_target(StartDecision(history=found, start=start), facts.steps)
    return plan_start(facts, target, backlogs=told or {}, settings=settings, at=NOON + 12 * SECOND)


def verdicts(found):
    return {step.uid: step.verdict.value for step in found.steps}


def test_a_new_job_begins_everything_empty():
    found = plan(History())

    assert verdicts(found) == {"in": "new", "totals": "new", "out": "new"}
    assert (found.restored, found.is_change, found.is_refused, found.changed) == (None, True, False, None)


@pytest.mark.mission("D7")
def test_the_same_pipeline_goes_on_and_nothing_changes():
    found = plan(history(*story()))

    assert verdicts(found) == {"in": "kept", "totals": "kept", "out": "kept"}
    assert (found.restored.checkpoint, found.is_change, found.is_refused) == (2, False, False)
    assert [(item.uid, item.checkpoint, item.file_count) for item in found.publish] == [("out", 2, 1)]
    assert found.counts == {"new": 0, "migrated": 0, "dropped": 0, "kept": 3, "refused": 0}


def test_a_step_keeps_rows_and_bytes_that_its_layers_hold():
    [_, totals, _] = plan(history(*story())).steps

    assert (totals.rows, totals.bytes, totals.reason) == (3, 3, "goes on from checkpoint 2")


def test_each_step_that_is_refused_is_named_with_its_reason_not_only_the_first():
    steps = (replace(STEPS[0], role=StepRole.SINK), replace(STEPS[1], kind="dedup/1"), STEPS[2])

    found = plan(history(*story()), steps)

    assert verdicts(found) == {"in": "refused", "totals": "refused", "out": "kept"}
    assert "recorded a step of kind 'window/1', and the pipeline has a step of kind 'dedup/1'" in found.steps[1].reason
    assert found.is_refused


def test_state_of_a_step_that_is_gone_is_refused_until_it_is_let_go():
    found = plan(history(*story()), (STEPS[0], NEW, STEPS[2]))
    allowed = plan(history(*story()), (STEPS[0], NEW, STEPS[2]), allow_non_restored_state=True)

    assert verdicts(found) == {"in": "kept", "new": "new", "out": "kept", "totals": "refused"}
    assert "--allow-non-restored-state" in found.steps[3].reason
    assert verdicts(allowed) == {"in": "kept", "new": "new", "out": "kept", "totals": "dropped"}
    assert not allowed.is_refused


def test_a_sink_that_is_gone_is_dropped_without_being_asked_for_and_its_open_output_is_published():
    found = plan(history(*story()), STEPS[:2])

    assert verdicts(found) == {"in": "kept", "totals": "kept", "out": "dropped"}
    assert found.steps[2].reason == "the pipeline no longer has it, and it keeps nothing"
    assert [item.uid for item in found.publish] == ["out"]
    assert not found.is_refused


def test_unions_have_no_uid_and_are_not_listed():
    union = StepRecord(uid="union@in+other", role=StepRole.STEP)

    assert verdicts(plan(history(*story()), (*STEPS, union))) == {"in": "kept", "totals": "kept", "out": "kept"}


@pytest.mark.mission("D7")
def test_a_step_that_is_renamed_goes_on_with_its_state_and_is_told_apart_from_new_ones():
    sums = replace(STEPS[1], uid="sums")

    found = plan(history(*story()), (STEPS[0], sums, STEPS[2]), rename={"totals": "sums"})

    assert verdicts(found) == {"in": "kept", "sums": "migrated", "out": "kept"}
    assert (found.steps[1].reason, found.steps[1].rows) == ("goes on with what was 'totals'", 3)
    assert not found.is_refused


def test_a_source_that_is_renamed_goes_on_at_its_position():
    found = plan(history(*story()), (replace(STEPS[0], uid="orders"), *STEPS[1:]), rename={"in": "orders"})

    assert (verdicts(found)["orders"], found.sources[0].resumes) == ("migrated", True)


def test_columns_that_move_are_a_migration_and_those_that_cannot_a_refusal():
    def judge(step, snapshot):
        if step.uid != "totals":
            return ()
        return (ColumnChange(recorded=None, declared=StateColumn("n__count", "bigint")),)

    def refuse(step, snapshot):
        msg = "no such column"
        raise StateIncompatible(msg, uid=step.uid)

    moved, refused = (
        start_target(StartDecision(history=history(*story()), resolver=each), STEPS).steps[1]
        for each in (judge, refuse)
    )

    assert (moved.verdict.value, moved.reason) == ("migrated", "adds n__count bigint, from now on")
    assert (refused.verdict.value, refused.reason) == ("refused", "Checkpoint 2: no such column")


# ----------------------------------------------------------------------------------------------------- going back


def seen(*checkpoints):
    return RepublishedOutput(
        uid="out", checkpoints=checkpoints, target="there", outputs=outputs(map(output, checkpoints))
    )


def test_a_rewind_lists_the_output_that_readers_see_again():
    found = plan(history(*story()), checkpoint=1)

    assert (found.rewind.to, found.rewind.left) == (1, 2)
    assert found.rewind.again == (seen(2),)
    assert (found.restored.checkpoint, found.restored.names) == (1, ("before-v2",))
    assert found.is_change


def test_a_fresh_start_lists_all_output_and_says_if_more_was_published_than_the_log_still_names():
    kept = plan(history(*story()), fresh=True)
    trimmed = plan(history(CLAIM, at(8), at(9, 8, open=(output(9),), floor=7), first=7), fresh=True)

    assert kept.rewind.again == (seen(1, 2),)
    assert not kept.rewind.is_more_published
    assert trimmed.rewind.is_more_published
    assert verdicts(kept) == {"in": "new", "totals": "new", "out": "new"}


def test_what_is_discarded_is_voided_and_nobody_sees_it_again():
    found = plan(history(*story()), checkpoint=1, discard_unpublished=True)

    assert found.publish == ()
    assert [item.checkpoint for item in found.void] == [2]
    assert (found.rewind.again, found.rewind.condemned) == ((), (2,))


def test_output_of_an_aborted_checkpoint_is_that_of_the_one_that_carried_it():
    found = history(CLAIM, at(0), at(1, 0), at(3, 1, open=(output(2), output(3))))

    again = plan(found, checkpoint=1).rewind.again[0]
    assert (again.checkpoints, [each.checkpoint for each in again.outputs]) == ((3,), [2, 3])
    assert plan(history(CLAIM, at(0), at(3, 0, open=(output(2),)), at(4, 3)), checkpoint=3).rewind.again == ()


def test_the_rewind_command_says_the_same():
    for target in (0, 1, None):
        planned = plan(history(*story()), fresh=target is None, checkpoint=target).rewind
        told = rewind_effects(history(*story()), target)
        assert {each.uid: each.checkpoints for each in planned.again} == dict(told.again)
        assert [each for again in planned.again for each in again.outputs] == list(outputs(told.outputs_again))


def test_output_that_is_not_of_the_timeline_that_is_left_was_seen_again_before():
    bodies = [CLAIM, at(0), at(1, 0, open=(output(1),)), rewind(0, 1), at(2, 0, open=(output(2),))]

    assert plan(history(*bodies), checkpoint=0).rewind.again[0].checkpoints == (2,)


def test_a_discard_that_would_condemn_a_savepoint_is_refused_as_a_whole():
    found = plan(history(*story(), pin("keep", 2)), checkpoint=1, discard_unpublished=True)

    assert found.is_refused
    assert "would condemn checkpoints that have names: keep" in found.refused[0]
    assert found.steps == ()


# ----------------------------------------------------------------------------------------- sources, settings, warnings


def test_what_sources_tell_is_shown_and_their_warnings_are_among_the_plans():
    told = {"in": Backlog(rows=7, warnings=("retention is near",))}

    found = plan(history(*story()), told=told)

    assert (found.sources[0].backlog.rows, found.sources[0].resumes) == (7, True)
    assert found.warnings == ("source 'in': retention is near",)


def test_a_source_that_cannot_tell_says_why():
    [source] = plan(history(*story()), told={"in": "the broker is away"}).sources

    assert (source.backlog, source.unknown) == (None, "the broker is away")


@pytest.mark.mission("D9")
def test_settings_that_the_last_run_had_otherwise_are_shown_as_a_difference():
    found = plan(history(*story()), settings={**SETTINGS, "retained": 5, "newer": 1})

    assert [(each.name, each.before, each.now) for each in found.changed] == [("retained", 3, 5)]
    assert found.is_change


def test_settings_of_a_log_that_does_not_tell_them_are_not_known():
    silent = replace(at(0), settings={})

    assert plan(history(CLAIM, silent)).changed is None


@pytest.mark.parametrize("name", ["checkpoint_timeout", "stop_timeout"])
def test_a_time_out_that_checkpoints_of_late_would_not_have_kept_is_warned_of(name):
    slow = history(CLAIM, at(0), at(1, 0, seconds=9))

    [warning] = plan(slow, settings={"checkpoint_timeout": 60 * SECOND, name: 2 * SECOND}).warnings

    assert warning.startswith(f"{name} is 2 seconds, and a recent checkpoint took 9.00 s: ")


# ---------------------------------------------------------------------------------------- a start does what is planned

uids = ["a", "b", "c", "d"]
kinds = st.sampled_from(["", "window/1", "window/2"])
records = st.builds(StepRecord, uid=st.sampled_from(uids), role=st.sampled_from(StepRole), kind=kinds)
steps = st.lists(records, max_size=4, unique_by=lambda step: step.uid).map(tuple)


@st.composite
def checkpoints(draw, number, parent):
    recorded = draw(steps)
    held = [task for task in (draw(st.sampled_from([None, *_held(step.uid)])) for step in recorded) if task]
    stray = draw(st.sampled_from([(), (TaskSnapshot(task="stray", state=_state(1)),)]))
    items = draw(st.sampled_from([(), (output(number),), (output(number, "a"), output(number, "b"))]))
    return at(number, parent, steps=recorded, tasks=(*held, *stray), open=items)


def _state(layers):
    return StateHandle(kind="window/1", schema="", layers=tuple(layer(f"l{n}") for n in range(layers)))


def _held(uid):
    yield counted(3, uid)
    yield replace(keyed(layer("x")), task=uid)
    yield TaskSnapshot(task=uid, state=_state(0))
    yield wrote(task=uid)


@st.composite
def logs(draw):
    bodies = [CLAIM]
    for number in range(draw(st.integers(0, 3))):
        bodies.append(draw(checkpoints(number, number - 1 if number else None)))
        bodies += draw(
            st.sampled_from([[], [pin("p", number), unpin("q")], [Stopped(checkpoint=number, at=1)], [CLAIM]])
        )
    return history(*bodies)


renames = st.dictionaries(st.sampled_from(uids), st.sampled_from(uids), max_size=2).filter(
    lambda found: len(set(found.values())) == len(found) and not found.keys() & set(found.values())
)
beginnings = st.one_of(
    st.builds(StartOptions, allow_non_restored_state=st.booleans(), rename=renames),
    st.builds(StartOptions, fresh=st.just(True), discard_unpublished=st.booleans()),
    st.builds(
        StartOptions,
        checkpoint=st.integers(0, 4).map(str),
        discard_unpublished=st.booleans(),
        allow_non_restored_state=st.booleans(),
    ),
)


def test_a_rename_that_cannot_be_is_told_beside_what_its_step_alone_is_refused_for():
    of_another_kind = replace(STEPS[1], kind="sessions/1")

    found = plan(history(*story()), (STEPS[0], of_another_kind, STEPS[2], NEW), rename={"new": "totals"})

    assert verdicts(found)["totals"] == "refused"
    [told] = found.refused
    assert "rename new=totals: The pipeline still has a step 'new'" in told


@given(logs(), steps, beginnings)
def test_a_start_does_what_the_plan_says(found, declared, begin):
    try:
        planned = plan(
            found,
            declared,
            fresh=begin.fresh,
            checkpoint=begin.checkpoint,
            discard_unpublished=begin.discard_unpublished,
            allow_non_restored_state=begin.allow_non_restored_state,
            rename=begin.rename,
        )
    except UnknownName:
        planned = None
    try:
        done = decide_recovery(
            found,
            declared,
            at=0,
            fresh=begin.fresh,
            rewind_to=None if begin.checkpoint is None else int(begin.checkpoint),
            discard_unpublished=begin.discard_unpublished,
            allow_non_restored_state=begin.allow_non_restored_state,
            rename=begin.rename,
        )
    except UnknownName:
        assert planned is None or planned.is_refused
        return
    except (StateIncompatible, GraphError) as error:
        refusal = error.args[0]
        done = None
    if done is None:
        if planned is None:
            return
        assert planned.is_refused
        told = [*planned.refused, *(step.reason for step in planned.steps if step.verdict is StepVerdict.REFUSED)]
        # A rename may be impossible for two reasons, of which either may be found first.
        assert any(refusal in reason or "leave the state unused" in reason or "rename" in reason for reason in told)
        return
    assert planned is not None
    by = {verdict: [step.uid for step in planned.steps if step.verdict is verdict] for verdict in StepVerdict}
    assert not planned.is_refused
    assert (planned.restored and planned.restored.checkpoint) == done.restored
    assert by[StepVerdict.NEW] == (list(done.fresh) if done.restored is not None else [step.uid for step in declared])
    assert sorted(by[StepVerdict.KEPT] + by[StepVerdict.MIGRATED]) == sorted(done.snapshots)
    assert sorted(by[StepVerdict.MIGRATED]) == sorted(done.renamed.values())
    assert set(done.dropped) <= set(by[StepVerdict.DROPPED])
    assert not set(done.snapshots) & set(by[StepVerdict.DROPPED])
    assert [(item.uid, item.checkpoint) for item in planned.publish] == [(o.uid, o.checkpoint) for o in done.commit]
    assert [(item.uid, item.checkpoint) for item in planned.void] == [(o.uid, o.checkpoint) for o in done.void]
    assert (planned.rewind is None) == (done.rewind is None)
