"""What may be deleted: the planner, rule by rule (G1 to G4), and the executor that a crash cannot hurt."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.checkpoint_values import (
    CLAIM,
    condemn,
    history,
    keyed,
    layer,
    log_on,
    manifest,
    output,
    pin,
    read_to,
    rewind,
    unpin,
    with_open,
)
from penstock import failpoints
from penstock.checkpoint.gc import DEFAULT_RETAINED, collect, delete_files, delete_recorded, needed_files, orphans_of
from penstock.errors import InternalError, StateDirectoryRefused, StorageFailed
from penstock.filesystem.local import LocalFileSystem
from penstock.job.attempt import Attempt
from penstock.testing.filesystem import MemoryFileSystem


def path_of(name, generation=0):
    return layer(name, generation).files[0].path


def holding(checkpoint, parent, *layers, **rest):
    return manifest(checkpoint, parent, tasks=(read_to(checkpoint), keyed(*map(layer, layers))), **rest)


def collected(body, *before, **options):
    found = collect(body, history(*before), **options)
    return found.condemned, found.condemned_files, found.deleted, found.floor


def test_the_newest_are_kept_and_their_elders_condemned_with_what_only_they_need():
    before = [CLAIM, holding(1, None, "a"), holding(2, 1, "a", "b"), holding(3, 2, "b", "c")]

    assert collected(holding(4, 3, "c"), *before, retained=2) == ((1, 2), (path_of("a"),), -1, 3)


def test_three_are_kept_if_nobody_says_otherwise():
    before = [CLAIM, holding(1, None, "a"), holding(2, 1, "b"), holding(3, 2, "c")]

    assert DEFAULT_RETAINED == 3
    assert collect(holding(4, 3, "d"), history(*before)).condemned == (1,)


def test_G1_layers_shared_with_a_kept_checkpoint_are_spared():
    before = [CLAIM, holding(1, None, "a", "b")]

    assert collect(holding(2, 1, "b", "c"), history(*before), retained=1).condemned_files == (path_of("a"),)


def test_G1_staged_output_of_an_open_committable_is_spared_though_its_checkpoint_is_condemned():
    before = [CLAIM, with_open(holding(1, None, "a"), output(1))]

    still = collect(with_open(holding(2, 1, "b"), output(1)), history(*before), retained=1)
    assert (still.condemned, still.condemned_files) == ((1,), (path_of("a"),))

    confirmed = collect(holding(2, 1, "b"), history(*before), retained=1)
    assert confirmed.condemned_files == (output(1).files[0].path, path_of("a"))


def test_G1_what_a_rewind_published_or_discarded_is_condemned_by_the_next_checkpoint():
    before = [
        CLAIM,
        holding(1, None, "a"),
        with_open(holding(2, 1, "a", "b"), output(1), output(2)),
        rewind(1, 2, discard=(output(2),), condemned=(2,)),
    ]

    assert path_of("b") not in needed_files(history(*before))
    assert output(2).files[0].path in needed_files(history(*before)), "its void may not be known"
    assert collect(holding(3, 1, "a"), history(*before)).condemned_files == (
        *(item.files[0].path for item in (output(1), output(2))),
        path_of("b"),
    )


def test_G1_a_restore_point_is_needed_until_a_checkpoint_follows():
    before = [CLAIM, holding(1, None, "a"), holding(2, 1, "b"), rewind(1, 2)]

    assert needed_files(history(*before)) == {path_of("a"), path_of("b")}
    assert collect(holding(3, 1, "c"), history(*before), retained=1).condemned == (1, 2)


def test_a_pinned_checkpoint_is_never_condemned_and_holds_the_floor():
    before = [CLAIM, holding(1, None, "a"), pin("keep", 1), holding(2, 1, "b"), holding(3, 2, "c")]

    assert collected(holding(4, 3, "d"), *before, retained=1, deleted=4) == (
        (2, 3),
        (path_of("b"), path_of("c")),
        4,
        1,
    )


def test_a_savepoint_is_pinned_from_the_entry_that_makes_it():
    before = [CLAIM, holding(1, None, "a", pins=(pin("keep", 1),)), holding(2, 1, "b")]

    assert collect(holding(3, 2, "c"), history(*before), retained=1).condemned == (2,)


def test_what_is_condemned_once_is_not_condemned_again():
    before = [
        CLAIM,
        holding(1, None, "a"),
        holding(2, 1, "b", condemned=(1,), condemned_files=(path_of("a"),)),
    ]

    assert collected(holding(3, 2, "b"), *before, retained=1) == ((2,), (), -1, 2)


def test_hole_38_the_floor_waits_for_recorded_deletions_to_be_done():
    before = [CLAIM, holding(1, None, "a"), holding(2, 1, "b", condemned=(1,), condemned_files=(path_of("a"),)), CLAIM]

    assert collected(holding(3, 2, "c"), *before, retained=1, deleted=-1)[2:] == (-1, 2)
    assert collected(holding(3, 2, "c"), *before, retained=1, deleted=3)[2:] == (3, 4)
    assert collected(holding(3, 2, "c"), *before, condemn(files=["staged/out/0/x"]), retained=1, deleted=3)[3] == 4


def test_hole_38_a_condemnation_of_files_alone_holds_the_floor_too():
    before = [CLAIM, holding(1, None, "a"), condemn(files=["staged/out/0/x"]), holding(2, 1, "b"), holding(3, 2, "b")]

    assert collect(holding(4, 3, "d"), history(*before), retained=1, deleted=1).floor == 2


def test_the_floor_and_the_mark_never_fall():
    before = [CLAIM, holding(1, None, "a", floor=1, deleted=1), pin("old", 1)]

    found = collect(holding(2, 1, "b"), history(*before), deleted=-1)
    assert (found.deleted, found.floor) == (1, 1)


def test_a_rewind_holds_the_floor_only_while_it_sets_the_restore_point():
    """Hole 38 says "or the last rewind": a later checkpoint overtakes it, else one rewind would end all trimming."""
    before = [CLAIM, holding(1, None, "a"), rewind(None, 1), holding(2, None, "b")]

    assert collect(holding(3, 2, "c"), history(*before), retained=1, deleted=3).floor == 4


def test_keeping_nothing_is_impossible():
    with pytest.raises(InternalError, match="retained is 0"):
        collect(manifest(1), history(CLAIM), retained=0)


def test_files_that_are_not_ours_are_never_condemned():
    """Data files of a table, and write-ahead blocks, may be named by a committable; they are not ours to delete."""
    table = replace(output(1), files=(replace(output(1).files[0], path="/lake/orders/part-0.parquet"),))
    block = replace(output(1), files=(replace(output(1).files[0], path="wal/socket/0/7"),))
    beside = replace(output(1), files=(replace(output(1).files[0], path="/lake/orders/_penstock/0/part-1"),))

    found = collect(holding(2, 1, "a"), history(CLAIM, with_open(holding(1, None, "a"), table, block, beside)))

    assert found.condemned_files == ("/lake/orders/_penstock/0/part-1",)


# ------------------------------------------------------------------------------------------------------------ orphans


def test_G2_orphans_are_of_older_generations_and_named_by_no_entry():
    found = history(CLAIM, with_open(holding(1, None, "a"), output(1)), CLAIM, condemn(files=[path_of("gone")]))
    files = [
        path_of("a"),
        path_of("gone"),
        path_of("stray"),
        path_of("mine", 2),
        path_of("younger", 3),
        output(1).files[0].path,
        "staged/out/0/9/part-1",
        "wal/socket/0/1",
        "log/00000000000000000000.json",
        "state/totals/notes.txt",
        "/lake/orders/part-0.parquet",
    ]

    assert orphans_of(found, 2, files) == ("staged/out/0/9/part-1", path_of("stray"))


def test_G2_beside_a_target_only_files_of_the_own_log_are_orphans():
    found = history(CLAIM, holding(1, None, "a"), CLAIM)
    ours, younger, theirs = (
        f"/out/.penstock/{place}/part-0" for place in ("log-1/out/0", "log-1/out/2", "log-2/out/0")
    )

    assert orphans_of(found, 2, [ours, younger, theirs]) == (ours,)


def test_G2_orphans_are_condemned_by_an_entry_before_they_are_deleted():
    found = collect(holding(1, None, "a"), history(CLAIM, CLAIM), orphans=(path_of("stray"), path_of("a"), "wal/x/0/1"))

    assert found.condemned_files == (path_of("stray"),)


def test_9_G3_an_abort_condemns_nothing_a_layer_goes_when_no_restorable_manifest_has_it():
    """A layer belongs to its step: one that was written for an aborted checkpoint serves the next."""
    before = [CLAIM, holding(1, None, "a")]
    written = [path_of("a"), path_of("b")]

    assert orphans_of(history(*before), 0, written) == (), "nothing of one's own generation is an orphan"
    assert collect(holding(3, 1, "a", "b"), history(*before), retained=1).condemned_files == ()
    merged = collect(holding(4, 3, "c"), history(*before, holding(3, 1, "a", "b")), retained=1)
    assert merged.condemned_files == tuple(written)


def test_G4_a_reader_that_pins_first_keeps_its_files_until_it_unpins():
    before = [CLAIM, holding(1, None, "a"), pin("export", 1, owner="somebody", expires=9)]

    pinned = collect(holding(2, 1, "b"), history(*before), retained=1)
    assert (pinned.condemned, pinned.condemned_files) == ((), ())
    free = collect(holding(2, 1, "b"), history(*before, unpin("export")), retained=1)
    assert (free.condemned, free.condemned_files) == ((1,), (path_of("a"),))


# ----------------------------------------------------------------------------------------------------------- executor


def full(*paths):
    filesystem = MemoryFileSystem()
    for path in paths:
        filesystem.create(path, b"x")
    return filesystem


def test_only_what_is_recorded_is_deleted_and_once_more_does_no_harm():
    filesystem = full(path_of("a"), path_of("b"))
    found = history(CLAIM, holding(1, None, "b"), condemn(files=[path_of("a"), path_of("never")]))

    assert [delete_recorded(filesystem, found) for _ in range(2)] == [2, 2]
    assert set(filesystem.files) == {path_of("b")}


def test_the_folders_of_a_layer_go_with_its_last_file(tmp_path):
    filesystem = LocalFileSystem(tmp_path)
    gone, others = "state/totals/0/a/0000/part-0", ["state/totals/0/a/0001/part-0", "state/totals/0/b/0000/part-0"]
    for path in (gone, *others):
        filesystem.create(path, b"x")
    (tmp_path / "state/totals/0/a/0000/__penstock_slice=1").mkdir()
    delete_files(filesystem, [gone, "state/totals/0/never/0000/part-0"])
    assert sorted(path.name for path in (tmp_path / "state/totals/0/a").iterdir()) == ["0001"]
    delete_files(filesystem, others)
    assert [path.name for path in (tmp_path / "state/totals").rglob("*")] == ["0"], "others may write there"


class Locked(MemoryFileSystem):
    """Folders that this user may not touch any more."""

    def __init__(self, *folders):
        super().__init__()
        self.folders = folders

    def _refuse(self, path):
        if path.startswith(self.folders):
            msg = f"Cannot use {path}: permission denied."
            raise StateDirectoryRefused(msg)

    def list(self, prefix):
        self._refuse(prefix)
        return super().list(prefix)

    def delete(self, path):
        self._refuse(path)
        super().delete(path)


def test_a_target_of_before_that_is_locked_stops_no_checkpoint(caplog):
    locked = Locked("/out-v1")
    old, new = "/out-v1/.penstock/log-1/out/0/1/part-0", path_of("a", 5)
    for path in (old, path_of("a")):
        locked.create(path, b"x")
    owned = SimpleNamespace(history=history(CLAIM, holding(1, None, "b"), condemn(files=[old])), log_id="log-1")
    attempt = SimpleNamespace(_specs=(), _env=SimpleNamespace(filesystem=locked, name="orders"))

    assert list(Attempt._leftovers(attempt, owned)) == [path_of("a")]
    delete_files(locked, [old, path_of("a")])

    assert [old] == list(locked.files)
    assert caplog.text.count("permission denied") == 2
    locked.folders = ("state",)
    with pytest.raises(StateDirectoryRefused):
        delete_files(locked, [new])


def test_deletions_known_to_be_done_are_not_repeated():
    filesystem = full()
    found = history(CLAIM, condemn(files=[path_of("a")]), holding(1, None, "b", deleted=1))

    assert delete_recorded(filesystem, found) == 2
    assert filesystem.operations == []


@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("place", ["gc.delete.before", "gc.delete.after"])
def test_a_crash_between_deletions_is_made_good_by_the_next_owner(place, hit):
    filesystem = full(path_of("a"), path_of("b"))
    found = history(CLAIM, holding(1, None, "c"), condemn(files=[path_of("a"), path_of("b")]))
    with failpoints.armed(place, "raise", hit=hit), pytest.raises(failpoints.FailpointCrash):
        delete_recorded(filesystem, found)

    delete_recorded(filesystem, found)
    assert filesystem.files == {}


def test_a_deletion_that_fails_leaves_the_mark_where_it_was():
    filesystem = full(path_of("a"))
    filesystem.fail("delete", StorageFailed("no"))

    with pytest.raises(StorageFailed):
        delete_recorded(filesystem, history(CLAIM, condemn(files=[path_of("a")])))


# ------------------------------------------------------------------------------------------------ whole lives of a log


@settings(deadline=None)
@given(st.data())
def test_whatever_happens_what_is_needed_exists_and_the_log_stays_readable(data):
    """G1 to G3, L4: checkpoints, pins, rewinds, restarts, late clean-ups and trims in any order."""
    filesystem = MemoryFileSystem()
    log, _ = log_on(filesystem)
    owner = log.claim(CLAIM)
    stack, deleted, name = [], -1, 0

    def check():
        found = log.read()
        missing = needed_files(found) - set(filesystem.files)
        assert not missing
        assert found.pinned <= set(found.restorable)
        assert found.restore_point is None or found.restore_point.checkpoint in found.restorable

    def checkpoint():
        nonlocal name
        name += 1
        new = layer(f"l{name}", owner.generation)
        kept = data.draw(st.integers(0, 2), label="layers kept")
        stack[:] = [*stack[len(stack) - kept if kept < len(stack) else 0 :], new]
        filesystem.create(new.files[0].path, b"x")
        found = owner.history
        parent = found.restore_point
        item = replace(
            output(found.next_checkpoint), files=(replace(new.files[0], path=f"staged/out/{owner.generation}/{name}"),)
        )
        filesystem.create(item.files[0].path, b"x")
        still = [old for old in found.open_committables if data.draw(st.booleans(), label="still open")]
        body = manifest(
            found.next_checkpoint, parent and parent.checkpoint, tasks=(keyed(*stack),), open=(*still, item)
        )
        orphans = orphans_of(found, owner.generation, filesystem.files)
        owner.append(collect(body, found, retained=data.draw(st.integers(1, 3)), deleted=deleted, orphans=orphans))

    def restart():
        nonlocal owner, deleted
        owner = log.claim(CLAIM)
        deleted = owner.history.deleted
        point = owner.history.restore_point
        stack[:] = point.tasks[0].state.layers if point else []

    def clean():
        nonlocal deleted
        deleted = delete_recorded(filesystem, owner.history)

    def give_a_name():
        if owner.history.restorable:
            owner.append(pin("p", data.draw(st.sampled_from(sorted(owner.history.restorable)))))

    def go_back():
        owner.append(rewind(data.draw(st.sampled_from([None, *owner.history.restorable]))))
        restart()

    acts = [checkpoint, checkpoint, restart, clean, give_a_name, go_back, lambda: owner.trim()]  # noqa: PLW0108 - the owner changes
    for act in data.draw(st.lists(st.sampled_from(acts), max_size=25)):
        act()
        check()
