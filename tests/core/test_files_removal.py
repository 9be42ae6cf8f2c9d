"""Files that are archived or deleted once a checkpoint holds them: none is lost, none is read twice. No Spark."""

from __future__ import annotations

import logging
import os
import shutil

import pytest

from core.files_kit import SCHEMA, SPARK, Feed, _without_a_disk, stopped_at  # noqa: F401 - a fixture
from penstock import failpoints
from penstock.clock import MonotonicTime, WallTime
from penstock.connectors.files import reader, removal, remover
from penstock.connectors.files.source import Source
from penstock.errors import GraphError, SourceChanged, SourceUnavailable
from penstock.failpoints import FailpointCrash
from penstock.interfaces.source import PlannedBatch, ReadLimit, SourceContext, Until


@pytest.fixture(params=["archive", "delete"])
def way(request):
    return request.param


@pytest.fixture
def feed(tmp_path, way):
    return Feed(tmp_path / "in", after_read=way)


@pytest.fixture
def archiving(tmp_path):
    return Feed(tmp_path / "in", after_read="archive")


def archived(feed):
    top = feed.root / "_archive"
    return sorted(path.relative_to(top).as_posix() for path in top.glob("*/**/*") if path.is_file())


def round_of(start, read, *names):
    return [f"{start:012d}-{read:012d}/{name}" for name in names]


# ---- when ------------------------------------------------------------------------------------------------------------


def test_files_stay_until_a_checkpoint_holds_them_and_then_the_position_forgets_them(feed, way):
    feed.put("a.json", "b.json")
    assert feed.start().read() == ["a.json", "b.json"]
    held = feed.position
    feed.put("c.json")
    assert feed.read() == ["c.json"]
    assert feed.present() == ["a.json", "b.json", "c.json"]

    feed.complete(held)
    assert feed.present() == ["c.json"]
    assert archived(feed) == (round_of(0, 2, "a.json", "b.json") if way == "archive" else [])
    feed.read()
    assert feed.remembered() == {"c.json"}
    feed.complete()
    feed.read()
    assert feed.present() == []
    assert feed.remembered() == set()


def test_a_late_or_repeated_notice_removes_nothing_more(feed):
    feed.put("a.json")
    feed.start().read()
    early = feed.position
    feed.put("b.json")
    feed.read()
    feed.complete()
    for _ in range(2):
        feed.complete(early)
        assert feed.present() == []
    feed.put("c.json")
    feed.read()
    feed.complete(early)
    assert feed.present() == ["c.json"]


def test_a_file_that_is_read_in_cuts_stays_until_all_of_it_is_read(feed):
    (feed.root / "a.json").write_text('{"n": 1}\n' * 20_000)
    feed.options["split_bytes"] = 64 * 1024
    feed.start().reader.poll(now=MonotonicTime(0), wall=WallTime(0), limits=ReadLimit())
    feed.complete(feed.checkpoint())
    assert feed.present() == ["a.json"]
    assert feed.read() == ["a.json", "a.json"]
    feed.complete()
    assert feed.present() == []


def test_a_file_that_comes_back_under_the_name_of_a_removed_one_is_read(feed):
    feed.start()
    for _ in range(3):
        feed.put("same.json")
        assert feed.read() == ["same.json"]
        feed.complete()
    assert feed.start().read() == []


def test_a_start_removes_what_the_checkpoint_before_a_crash_holds(feed, caplog):
    feed.put("a.json", "b.json")
    feed.start().read()
    with caplog.at_level(logging.WARNING, "penstock"):
        assert feed.start(Until.CAUGHT_UP).read() == []
    assert not caplog.records
    assert feed.present() == []
    assert feed.remembered() == set()


def test_a_source_that_gets_after_read_later_removes_what_it_has_read_before(feed, way):
    feed.options["after_read"] = None
    feed.put("a.json")
    feed.start().read()
    feed.options["after_read"] = way
    feed.start().read()
    assert feed.present() == ["a.json"], "no checkpoint has the lineage yet"
    feed.complete()
    assert feed.present() == []


def test_a_source_that_gets_after_read_later_starts_again_after_a_failure_before_its_first_checkpoint(feed, way):
    feed.options["after_read"] = None
    feed.put("a.json", "b.json")
    feed.start().read()
    before = feed.position
    feed.options["after_read"] = way
    for _ in range(3):
        feed.position = before
        feed.source.check_rows(before)
        assert feed.start().read() == []
        assert feed.present() == ["a.json", "b.json"], "no checkpoint has the lineage yet"
    feed.complete()
    assert feed.present() == []
    feed.position = before
    with pytest.raises(SourceChanged, match="cannot be told"):
        feed.start()


def test_a_source_that_gets_after_read_later_starts_again_after_an_old_process_of_its_first_start(feed, way):
    feed.options["after_read"] = None
    feed.put("a.json")
    feed.start().read()
    before = feed.position
    feed.options["after_read"] = way
    old = feed.start().reader
    feed.start()
    old.position()
    with pytest.raises(SourceUnavailable, match="Another job"):
        feed.read()
    feed.position = before
    assert feed.start().read() == []
    feed.complete()
    assert feed.present() == []


def test_a_checkpoint_of_before_after_read_is_not_locked_out_by_a_fresh_start_that_has_removed_nothing(feed, way):
    feed.options["after_read"] = None
    feed.put("a.json")
    feed.start().read()
    before = feed.position
    feed.options["after_read"], feed.position = way, None
    fresh = feed.start().reader
    feed.position = before
    feed.start()
    fresh.position()
    feed.put("b.json")
    assert feed.start().read() == ["b.json"]


def test_a_checkpoint_of_before_after_read_does_not_go_on_without_a_file_that_an_older_one_lacks(feed, way):
    feed.options["after_read"] = None
    feed.put("a.json")
    feed.start().read()
    older = feed.position
    feed.put("b.json")
    feed.read()
    newer = feed.position
    feed.options["after_read"] = way
    feed.start().read()
    feed.position = newer
    feed.start().read()
    feed.complete()
    assert feed.present() == []
    feed.position = older
    with pytest.raises(SourceChanged, match="cannot be told"):
        feed.start()


def test_folders_below_keep_their_names_in_the_archive(archiving):
    archiving.options["recursive"] = True
    archiving.put("x/a.json", "y/a.json")
    archiving.start().read()
    archiving.complete()
    assert archived(archiving) == round_of(0, 2, "x/a.json", "y/a.json")
    assert archiving.start().read() == []


def test_positions_stay_small_however_many_files_were_read(feed):
    feed.start()
    sizes = []
    for number in range(6):
        feed.put(*(f"{number}-{each}.json" for each in range(50)))
        feed.read()
        feed.complete()
        sizes.append(len(str(feed.checkpoint().detail)))
    assert max(sizes) < 300


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_file_that_has_changed_since_it_was_read_is_never_removed(feed):
    feed.put("a.json", "b.json")
    feed.start().read()
    feed.put("a.json")
    feed.complete()
    assert feed.present() == ["a.json"]
    with pytest.raises(SourceChanged, match=r"'a\.json' was read"):
        feed.read()


def test_a_file_that_is_replaced_while_it_is_moved_is_put_back(feed, monkeypatch):
    feed.put("a.json")
    feed.start().read()
    rename = os.rename

    def replaced(source, target):
        if str(source).endswith("in/a.json"):
            feed.put("a.json")
        rename(source, target)

    monkeypatch.setattr(remover.os, "rename", replaced)
    feed.complete()
    assert feed.present() == ["a.json"]
    with pytest.raises(SourceChanged, match=r"'a\.json' was read"):
        feed.read()


def test_a_file_that_cannot_be_removed_is_warned_of_and_tried_after_the_next_checkpoint(feed, monkeypatch, caplog):
    feed.put("a.json", "b.json")
    feed.start().read()

    def refused(source, _target):
        raise PermissionError(13, "Permission denied", str(source))

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "penstock"):
        patch.setattr(remover.os, "rename", refused)
        feed.complete()
    [record] = caplog.records
    assert "2 files that were read could not be removed" in record.getMessage()
    assert "Permission denied" in record.getMessage()
    assert feed.read() == []
    assert feed.remembered() == {"a.json", "b.json"}
    feed.complete()
    assert feed.present() == []


def test_a_directory_that_cannot_be_written_fails_no_job_that_runs(feed, monkeypatch, caplog):
    feed.put("a.json")
    feed.start().read()

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "penstock"):
        patch.setattr(removal.os, "makedirs", refused)
        feed.complete()
    assert "could not be removed" in caplog.text
    feed.complete()
    assert feed.present() == []


def test_what_a_checkpoint_may_have_read_is_written_down_with_the_next_one_if_it_cannot_be(feed, monkeypatch, caplog):
    feed.put("a.json")
    feed.start()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "penstock"):
        patch.setattr(removal.os, "link", lambda *_: os.stat("/nowhere"))
        feed.read()
    assert "cannot be written" in caplog.text
    assert feed.source.removal.record() is None
    feed.checkpoint()
    assert feed.source.removal.record().seen == 1


@pytest.mark.parametrize("point", ["source.files.noted", "source.files.moved"])
def test_a_crash_while_files_are_removed_loses_and_repeats_nothing(feed, point):
    feed.put("a.json", "b.json")
    feed.start().read()
    feed.put("later.json")
    with failpoints.armed(point, "raise"), pytest.raises(FailpointCrash):
        feed.complete()
    assert feed.start().read() == ["later.json"]
    assert feed.present() == ["later.json"]
    feed.complete()
    assert feed.start().read() == []
    assert feed.present() == []


def test_a_new_file_has_the_name_of_a_removed_one_before_the_next_checkpoint_knows_and_the_job_is_killed(feed):
    feed.put("a.json", "b.json")
    feed.start().read()
    feed.complete()
    feed.put("a.json")
    assert feed.start().read() == ["a.json"]
    feed.complete()
    assert feed.present() == []
    assert feed.start().read() == []


def test_a_deleted_file_is_gone_from_the_disk_one_checkpoint_later(tmp_path):
    feed = Feed(tmp_path / "in", after_read="delete")
    feed.start()
    for _ in range(3):
        feed.put("a.json")
        feed.read()
        feed.complete()
        assert len([*feed.root.rglob("a.json")]) <= 1
    feed.read()
    feed.complete()
    assert [*feed.root.rglob("a.json")] == []


# ---- an older checkpoint ---------------------------------------------------------------------------------------------


def two_rounds(feed):
    """Two checkpoints whose files were removed; the position of the first one."""
    feed.put("a.json")
    feed.start().read()
    feed.complete()
    first = feed.checkpoint()
    feed.put("b.json", "c.json")
    feed.read()
    feed.complete()
    feed.read()
    return first


def test_a_rewind_finds_its_files_in_the_archive(archiving):
    first = two_rounds(archiving)
    later = archiving.position
    archiving.put("d.json")
    archiving.position = first

    [warning] = archiving.source.backlog(first).warnings
    assert warning.startswith("2 files that were archived after this checkpoint are moved back from")
    assert archiving.source.backlog(first).files == 3
    assert archiving.present() == ["d.json"], "a plan moves nothing"

    assert archiving.start().read() == ["b.json", "c.json", "d.json"]
    archiving.complete()
    assert archiving.present() == []
    assert archived(archiving) == round_of(0, 1, "a.json") + round_of(1, 4, "b.json", "c.json", "d.json")

    archiving.position = later  # of the history that the rewind has left
    with pytest.raises(SourceChanged, match="after a rewind that this checkpoint is not part of"):
        archiving.start()
    archiving.position = first
    assert archiving.start().read() == ["b.json", "c.json", "d.json"]


def test_a_checkpoint_that_was_never_noticed_and_was_left_by_a_rewind_does_not_count(feed):
    feed.put("z.json")
    feed.start().read()
    feed.complete()
    first = feed.checkpoint()
    feed.put("b.json")
    feed.read()
    unnoticed = feed.position
    (feed.root / "b.json").rename(feed.root / "_b.json")
    feed.put("c.json")
    feed.position = first
    assert feed.start().read() == ["c.json"]
    feed.complete()
    (feed.root / "_b.json").rename(feed.root / "b.json")

    feed.position = unnoticed  # has read b, but not c, which is removed
    with pytest.raises(SourceChanged, match="after a rewind that this checkpoint is not part of"):
        feed.start()


def starts_without_a_checkpoint(feed, position, prefix="", *, waiting=0):
    """Seven starts from one position, each with a file more than the last; ``waiting`` files are there before."""
    for number in range(7):
        feed.position = position
        feed.put(f"{prefix}{number}.json")
        assert len(feed.start().read()) == waiting + number + 1


def test_starts_without_a_checkpoint_do_not_wear_out_the_checkpoint_that_they_start_from(feed, monkeypatch):
    monkeypatch.setattr(removal, "_MOST_EARLIER", 3)
    newest = feed.start().checkpoint()
    starts_without_a_checkpoint(feed, newest)
    assert len(feed.source.removal.record().earlier) <= 3
    feed.complete()
    feed.read()
    newest = feed.position
    starts_without_a_checkpoint(feed, newest, "later-")
    feed.position = newest
    assert len(feed.start().read()) == 7


def test_starts_without_a_first_checkpoint_do_not_wear_out_the_one_of_before_after_read(feed, way, monkeypatch):
    monkeypatch.setattr(removal, "_MOST_EARLIER", 3)
    feed.options["after_read"] = None
    before = feed.start().checkpoint()
    feed.options["after_read"] = way
    starts_without_a_checkpoint(feed, before)


def test_an_outage_does_not_wear_out_older_checkpoints(archiving, monkeypatch):
    monkeypatch.setattr(removal, "_MOST_EARLIER", 3)
    savepoint = two_rounds(archiving)
    archiving.put("d.json")
    archiving.position = newest = archiving.checkpoint()
    starts_without_a_checkpoint(archiving, newest, "later-", waiting=1)
    archiving.position = savepoint
    assert archiving.start().read()[:3] == ["b.json", "c.json", "d.json"]


def test_a_rewind_is_taken_back_until_it_has_removed_files(feed):
    feed.put("a.json")
    feed.start().read()
    feed.complete()
    older = feed.checkpoint()
    feed.put("b.json")
    feed.read()
    newer = feed.position
    for _ in range(2):
        feed.position = older
        assert feed.start().read() == ["b.json"]
        feed.position = newer
        feed.source.check_rows(newer)
        feed.start().checkpoint()
        assert feed.present() == ["b.json"]
    assert feed.read() == []
    assert feed.present() == []
    feed.complete()
    assert feed.start().read() == []


def test_a_rewind_that_has_put_files_back_is_not_taken_back_though_it_has_removed_none(archiving):
    first = two_rounds(archiving)
    later = archiving.position
    archiving.position = first
    archiving.start()
    archiving.position = later  # has forgotten the files that are back
    with pytest.raises(SourceChanged, match="after a rewind that this checkpoint is not part of"):
        archiving.start()


def test_two_rewinds_one_into_the_middle_of_a_round_and_one_before_it_find_their_files(archiving):
    archiving.put("a.json")
    archiving.start().read()
    archiving.complete()
    first = archiving.checkpoint()
    archiving.put("b.json")
    archiving.read()
    middle = archiving.position
    for name in ("c.json", "d.json"):  # of middle there was no notice
        archiving.put(name)
        archiving.read()
        archiving.complete()
    archiving.position = middle
    assert archiving.start().read() == ["c.json", "d.json"]
    assert archiving.present() == ["c.json", "d.json"]
    archiving.position = first
    assert archiving.start().read() == ["b.json", "c.json", "d.json"]


def test_a_rewind_that_is_killed_while_files_are_put_back_is_carried_on(archiving):
    archiving.position = two_rounds(archiving)
    with failpoints.armed("source.files.put_back", "raise"), pytest.raises(FailpointCrash):
        archiving.start()
    assert len(archiving.present()) == 1
    assert archiving.start().read() == ["b.json", "c.json"]


def test_a_rewind_is_carried_on_when_its_files_are_back_and_the_record_cannot_be_written(archiving, monkeypatch):
    archiving.position = two_rounds(archiving)
    writes, link = [], os.link

    def full(*paths):
        writes.append(paths)
        if len(writes) == 2:
            raise OSError(28, "No space left on device")
        link(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(removal.os, "link", full)
        with pytest.raises(SourceUnavailable, match="No space left"):
            archiving.start()
    assert archiving.present() == ["b.json", "c.json"]
    assert archiving.start().read() == ["b.json", "c.json"]


def test_a_rewind_behind_files_that_were_deleted_is_refused_though_the_record_was_lost_in_between(tmp_path):
    feed = Feed(tmp_path / "in", after_read="delete")
    feed.start().read()
    first = feed.position
    two_rounds(feed)
    shutil.rmtree(feed.root / ".penstock")
    feed.start().read()
    feed.complete()
    feed.position = first
    with pytest.raises(SourceChanged, match="3 files that were read after this checkpoint"):
        feed.start()


def test_a_rewind_whose_files_were_deleted_is_refused_and_says_how_to_go_on(tmp_path):
    feed = Feed(tmp_path / "in", after_read="delete")
    feed.position = two_rounds(feed)
    feed.put("d.json")
    words = "2 files that were read after this checkpoint were archived or deleted"
    for asked in (feed.start, lambda: feed.source.backlog(feed.position)):
        with pytest.raises(SourceChanged, match=words) as refused:
            asked()
    (record,) = (feed.root / ".penstock").glob("*.json")
    assert f"{feed.root}/.penstock/{record.name.split('.')[0]}*.json" in str(refused.value)
    record.unlink()
    assert feed.start().read() == ["d.json"]


def test_a_rewind_without_some_of_its_archive_is_refused(archiving):
    first = two_rounds(archiving)
    archiving.put("d.json")
    archiving.read()
    archiving.complete()
    shutil.rmtree(archiving.root / "_archive" / round_of(1, 3, "")[0])
    archiving.position = first
    with pytest.raises(SourceChanged, match="Not all of the 3 files"):
        archiving.start()


def test_a_rewind_does_not_overwrite_a_new_file_of_the_same_name(archiving):
    archiving.position = two_rounds(archiving)
    archiving.put("b.json")
    with pytest.raises(SourceChanged, match=r"has other files of the same names, .*\('b\.json'\)"):
        archiving.start()
    (archiving.root / "b.json").rename(archiving.root / "new.json")
    assert archiving.start().read() == ["b.json", "c.json", "new.json"]


def test_a_rewind_behind_two_files_of_one_name_is_refused_until_one_is_renamed(archiving):
    first = two_rounds(archiving)
    archiving.put("b.json")
    archiving.read()
    archiving.complete()
    archiving.position = first
    with pytest.raises(SourceChanged, match=r"has several of one name \('b\.json'\)"):
        archiving.start()
    older = archiving.root / "_archive" / round_of(1, 3, "b.json")[0]
    older.rename(older.with_name("b-older.json"))
    assert archiving.start().read() == ["b-older.json", "c.json", "b.json"]


def test_a_checkpoint_of_before_files_were_removed_is_not_taken_for_a_fresh_start(feed, way):
    feed.options["after_read"] = None
    feed.put("a.json")
    feed.start().read()
    before = feed.position
    feed.options["after_read"] = way
    feed.put("b.json")
    feed.start().read()
    feed.complete()
    feed.position = before
    with pytest.raises(SourceChanged, match="cannot be told"):
        feed.start()


def test_a_source_without_after_read_does_not_go_back_behind_removed_files(archiving):
    first = two_rounds(archiving)
    archiving.options["after_read"] = None
    assert archiving.start().read() == []
    archiving.position = first
    with pytest.raises(SourceChanged, match="2 files that were read after this checkpoint"):
        archiving.start()


# ---- others who look at the directory --------------------------------------------------------------------------------


def test_a_plan_a_preview_and_a_shadow_run_move_nothing(feed, tmp_path):
    feed.put("a.json", "b.json")
    feed.start().read()
    before = sorted(feed.root.rglob("*"))

    feed.source.backlog(feed.position)
    feed.source.open(SourceContext(uid="in", spark=SPARK), None).close()
    shadow = feed.source.replayed(feed.position)
    reader = shadow.open(SourceContext(uid="in", spark=SPARK, until=Until.CAUGHT_UP), feed.position)
    while isinstance(reader.poll(now=MonotonicTime(0), wall=WallTime(0), limits=ReadLimit()), PlannedBatch):
        pass
    reader.committed(1, reader.position())
    assert sorted(feed.root.rglob("*")) == before


def test_a_shadow_run_of_files_that_were_removed_is_refused(archiving):
    first = two_rounds(archiving)
    with pytest.raises(SourceChanged, match="2 files that were read after this checkpoint"):
        archiving.source.replayed(archiving.position).open(SourceContext(uid="in", spark=SPARK), first)
    assert archiving.present() == []


def test_a_fresh_start_where_files_were_removed_says_so_and_reads_the_rest(feed, caplog):
    feed.put("a.json")
    feed.start().read()
    feed.complete()
    feed.position = None
    feed.put("b.json")
    assert "1 files in all" in feed.source.backlog(None).warnings[0]
    with caplog.at_level(logging.WARNING, "penstock"):
        assert feed.start().read() == ["b.json"]
    assert "before this fresh start" in caplog.text
    feed.complete()
    assert feed.start().read() == []


def test_a_file_that_the_newest_checkpoint_names_is_kept_by_restarts_until_the_next_one(tmp_path):
    feed = Feed(tmp_path / "in", after_read="delete")
    feed.put("a.json", "b.json")
    feed.start().read()
    feed.complete()
    newest = feed.position
    for _ in range(2):
        feed.position = newest
        feed.start().read()
    feed.position = newest
    feed.put("a.json")
    assert feed.start().read() == ["a.json"]


def test_a_fresh_start_that_finds_no_file_can_be_restarted(feed):
    feed.put("a.json")
    feed.start().read()
    feed.complete()
    feed.position = None
    assert feed.start().read() == []
    assert feed.start().read() == []
    feed.put("b.json")
    assert feed.read() == ["b.json"]
    feed.complete()
    assert feed.start().read() == []


def test_of_two_jobs_that_remove_files_of_a_directory_one_is_stopped(feed):
    feed.put("a.json")
    feed.start().read()
    feed.complete()
    other = Feed.__new__(Feed)
    other.__dict__ |= feed.__dict__ | {"position": None}
    feed.put("b.json")
    other.start().read()
    other.complete()
    before = feed.position
    feed.put("c.json")
    with pytest.raises(SourceUnavailable, match="Another job archives or deletes"):
        feed.read()
    feed.position = before
    with pytest.raises(SourceChanged, match="by another job"):
        feed.start()


def test_an_old_process_removes_nothing_after_a_new_one_has_started(feed):
    feed.put("a.json")
    feed.start().read()
    feed.complete()
    feed.put("b.json")
    before = feed.checkpoint()
    feed.read()
    old, late = feed.reader, feed.position
    feed.position = before  # a rewind
    feed.start()
    with pytest.raises(SourceUnavailable, match="Another job"):
        old.committed(2, late)
    assert feed.read() == ["b.json"]


@pytest.mark.parametrize("is_fresh", [True, False])
def test_an_old_process_that_was_stopped_before_it_opens_its_reader_does_not_lock_out_the_new_one(feed, is_fresh):
    feed.put("a", "b")
    feed.start().read()
    before = None if is_fresh else feed.position
    feed.complete()
    feed.generation += 1  # it has claimed the log, and is stopped
    feed.start().put("c", "d")
    assert feed.read() == ["c", "d"]
    feed.complete()
    with pytest.raises(SourceUnavailable, match="Another job"):
        feed.open(feed.generation - 1, before)
    for name in ("e", "f"):
        feed.put(name)
        assert feed.read() == [name]
        feed.complete()
    assert feed.start().read() == []


def test_a_job_that_begins_anew_goes_on_where_another_has_removed_files(feed):
    feed.start().put("a")
    feed.read()
    feed.complete()
    context = SourceContext(uid="in", spark=SPARK, log_id="another log", generation=1)
    feed.generation, feed.position = 7, None
    feed.start().put("b")
    assert feed.read() == ["b"]
    feed.complete()
    assert feed.source.open(context, None) is not None


def test_an_old_process_stops_in_the_middle_of_its_files_when_a_rewind_puts_them_back(archiving, monkeypatch):
    archiving.start().read()
    first = archiving.position
    archiving.put("a.json", "b.json")
    archiving.read()
    monkeypatch.setattr(reader, "MOST_AT_ONCE", 1)
    archiving.complete()
    assert archiving.present() == ["b.json"]
    old = archiving.reader
    archiving.position = first
    archiving.start()
    with pytest.raises(SourceUnavailable, match="Another job"):
        old.poll(now=MonotonicTime(10**15), wall=WallTime(0), limits=ReadLimit())
    assert archiving.read() == ["a.json", "b.json"]


@pytest.mark.parametrize("point", ["record", "noted", "moved"])
def test_an_old_process_that_is_stopped_while_it_removes_files_does_not_undo_what_a_new_one_wrote(feed, point):
    feed.put("a.json")
    feed.start().read()
    feed.put("b.json")
    feed.read()
    old, held = feed.reader, feed.position

    def take_over():
        feed.put("c.json")
        assert feed.start().read() == ["c.json"]
        feed.complete()

    def go_on():
        old.committed(1, held)
        old.poll(now=MonotonicTime(10**15), wall=WallTime(0), limits=ReadLimit())

    with stopped_at(f"source.files.{point}", take_over), pytest.raises(SourceUnavailable, match="Another job"):
        go_on()
    feed.put("d.json")
    assert feed.start().read() == ["d.json"]
    feed.complete()
    assert feed.present() == []
    assert feed.start().read() == []


@pytest.mark.parametrize("point", ["record", "put_back"])
def test_an_old_process_that_is_stopped_while_it_rewinds_does_not_undo_what_a_new_one_wrote(archiving, point):
    first = archiving.position = two_rounds(archiving)

    def take_over():
        archiving.position = first
        assert archiving.start().read() == ["b.json", "c.json"]
        archiving.complete()

    old = Feed.__new__(Feed)
    old.__dict__ |= archiving.__dict__
    with stopped_at(f"source.files.{point}", take_over), pytest.raises(SourceUnavailable):
        old.start()
    assert archiving.present() == []
    assert archiving.start().read() == []


def test_a_record_of_before_they_had_numbers_is_taken_over(feed):
    feed.put("a.json")
    feed.start().read()
    feed.complete()
    (record,) = (feed.root / ".penstock").glob("read-*.json")
    name, _number, ending = record.name.split(".")
    record.rename(record.with_name(f"{name}.{ending}"))
    feed.put("b.json")
    assert feed.start().read() == ["b.json"]
    feed.complete()
    (record,) = (feed.root / ".penstock").glob("read-*.json")
    assert record.name.startswith(f"{name}.")
    assert feed.start().read() == []


def test_an_old_process_that_has_written_no_record_does_not_lock_out_the_new_one_after_a_checkpoint_without_rows(feed):
    feed.start()
    old = feed.reader
    feed.put("a.json")
    old.poll(now=MonotonicTime(1), wall=WallTime(0), limits=ReadLimit())

    def take_over():
        feed.start()
        feed.position = feed.checkpoint()

    with stopped_at("source.files.record", take_over), pytest.raises(SourceUnavailable, match="Another job"):
        old.position()
    assert feed.start().read() == ["a.json"]


def test_an_old_process_deletes_nothing_that_the_new_one_has_moved(tmp_path):
    feed = Feed(tmp_path / "in", after_read="delete")
    feed.start().read()
    old, early = feed.reader, feed.position
    feed.put("a.json")
    feed.start().read()
    feed.complete()
    with pytest.raises(SourceUnavailable, match="Another job"):
        old.committed(1, early)
    assert len([*feed.root.rglob("a.json")]) == 1
    feed.put("a.json")
    assert feed.start().read() == ["a.json"]


def test_a_new_file_has_the_name_of_a_removed_one_and_the_record_is_lost_before_the_next_checkpoint(archiving):
    archiving.put("a.json", "b.json")
    archiving.start().read()
    archiving.complete()
    archiving.put("a.json")
    shutil.rmtree(archiving.root / ".penstock")
    assert archiving.start().read() == ["a.json"]


def test_a_directory_that_is_not_mounted_is_waited_for_though_no_file_is_remembered(feed):
    feed.put("a.json")
    feed.start().read()
    feed.complete()
    feed.read()
    assert feed.remembered() == set()
    feed.swap("mounted")
    feed.put("stray.json")
    for asked in (feed.start, feed.read, lambda: feed.source.backlog(feed.position)):
        with pytest.raises(SourceUnavailable, match="Mount it again"):
            asked()
    feed.swap_back("mounted")
    feed.put("b.json")
    assert feed.start().read() == ["b.json"]


def test_a_record_that_is_gone_stops_the_removal_and_not_the_job(feed, caplog):
    feed.put("a.json")
    feed.start().read()
    feed.complete()
    shutil.rmtree(feed.root / ".penstock")
    feed.put("b.json")
    assert feed.read() == ["b.json"]
    with caplog.at_level(logging.WARNING, "penstock"):
        feed.complete()
    assert "is gone" in caplog.text
    assert feed.present() == ["b.json"]
    assert feed.start().read() == []
    feed.complete()
    assert feed.present() == []


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"after_read": "move"}, "after_read is 'move'. Give 'archive' or 'delete'"),
        ({"archive": "/x"}, "has no effect without after_read='archive'"),
        ({"after_read": "delete", "archive": "/x"}, "has no effect without after_read='archive'"),
        ({"after_read": "archive", "archive": "/in/read"}, "its files would be read again"),
        ({"after_read": "archive", "archive": "/in"}, "its files would be read again"),
        ({"min_age": "soon"}, "'soon' is not a length of time"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments, message):
    with pytest.raises(GraphError, match=message):
        Source("/in", schema=SCHEMA, **arguments)


def test_an_archive_beside_the_directory_or_below_a_name_that_is_not_read_is_taken():
    for archive in ("/in-read", "/in/_read", "/in/_read/deep", "/in/.read", "/"):
        assert Source("/in", schema=SCHEMA, after_read="archive", archive=archive).archive == archive


def test_an_archive_on_another_file_system_is_refused(archiving, monkeypatch):
    stat = os.stat
    archiving.options["archive"] = archiving.root.parent / "other" / "deep"
    (archiving.root.parent / "other").mkdir()

    def other_device(path, *args, **more):
        found = stat(path, *args, **more)
        return os.stat_result((*found[:2], 7_777, *found[3:])) if str(path).endswith("other") else found

    monkeypatch.setattr(removal.os, "stat", other_device)
    for asked in (archiving.start, lambda: archiving.source.backlog(None)):
        with pytest.raises(GraphError, match="on another file system"):
            asked()


def test_an_archive_of_another_directory_is_refused(tmp_path):
    first = Feed(tmp_path / "in", after_read="archive", archive=tmp_path / "read")
    first.put("a.json")
    first.start().read()
    first.complete()
    other = Feed(tmp_path / "other", after_read="archive", archive=tmp_path / "read")
    with pytest.raises(GraphError, match="has files of another directory"):
        other.start()
    assert first.start().read() == []


def test_two_patterns_of_a_directory_do_not_share_an_archive(archiving):
    other = Feed.__new__(Feed)
    other.__dict__ |= archiving.__dict__ | {"options": archiving.options | {"pattern": "*.jsonl"}}
    archiving.options["pattern"] = "*.json"
    archiving.put("a.json", "a.jsonl")
    other.start().read()
    archiving.start().read()
    archiving.complete()
    with pytest.raises(GraphError, match="Give each source an archive= of its own"):
        other.complete()
    assert archiving.present() == ["a.jsonl"]


def test_of_two_sources_that_mark_one_archive_at_once_one_goes_on(tmp_path, monkeypatch):
    first, other = (
        removal.Removal(root=str(tmp_path / name), way="archive", archive=str(tmp_path / "read"), key="")
        for name in "ab"
    )
    for each in (first, other):
        os.mkdir(each.root)

    def open_late(*args, **more):
        monkeypatch.undo()
        other.claim_archive()
        return open(*args, **more)

    monkeypatch.setattr(removal, "open", open_late, raising=False)
    with pytest.raises(GraphError, match="Give each source an archive= of its own"):
        first.claim_archive()
    other.check()
