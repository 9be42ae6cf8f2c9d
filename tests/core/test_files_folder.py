"""Files that are not there any more: removed, or in a folder that is not mounted. No Spark."""

from __future__ import annotations

import logging
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from core.files_kit import SCHEMA, SPARK, Feed
from penstock.admin.plan import plan
from penstock.clock import MonotonicTime, WallTime
from penstock.connectors.files.listing import (
    FileLimits,
    FileSignature,
    FilesPosition,
    has_lost_all,
    plan_next,
    reconcile,
    unread_files,
)
from penstock.connectors.files.source import Source
from penstock.errors import GraphError, SourceChanged, SourceUnavailable
from penstock.handles import Position
from penstock.interfaces.source import CaughtUp, ReadLimit, SourceContext, Until
from penstock.settings import read_settings


@pytest.fixture
def feed(tmp_path):
    return Feed(tmp_path / "in")


def test_a_start_on_an_empty_mount_point_waits_and_forgets_no_file(feed):
    feed.put("a.json", "b.json")
    assert feed.start().read() == ["a.json", "b.json"]
    feed.swap("mounted")

    words = r"none of the files .* \('a.json', 'b.json'\).*Mount it again.*may_be_emptied"
    for until in Until:
        with pytest.raises(SourceUnavailable, match=words) as waits:
            feed.start(until)
        assert waits.value.retry
    with pytest.raises(SourceUnavailable, match="Mount it again"):
        feed.source.backlog(feed.position)

    feed.swap_back("mounted")
    feed.put("c.json")
    assert feed.start().read() == ["c.json"]


def test_a_folder_that_is_unmounted_while_the_job_runs_is_waited_for(feed):
    feed.put("a.json")
    feed.start().read()
    feed.swap("mounted")
    feed.put("stray.json")  # into the mount point
    with pytest.raises(SourceUnavailable, match="Mount it again"):
        feed.read()
    feed.swap_back("mounted")
    assert feed.start().read() == []


def test_a_folder_that_is_unmounted_before_its_partly_read_file_is_read_is_waited_for(feed):
    (feed.root / "a.json").write_text('{"n": 1}\n' * 20_000)
    feed.options["split_bytes"] = 64 * 1024
    feed.start().reader.poll(now=MonotonicTime(0), wall=WallTime(0), limits=ReadLimit())
    feed.position = feed.reader.position()
    assert feed.position.detail["partial"] is not None
    feed.swap("mounted")
    with pytest.raises(SourceUnavailable, match="Mount it again"):
        feed.start()


def test_one_of_the_files_put_back_ends_the_wait(feed):
    feed.put("a.json", "b.json")
    feed.start().read()
    feed.swap("done")
    shutil.copy2(feed.root.parent / "done" / "a.json", feed.root)
    feed.put("c.json")
    assert feed.start().read() == ["c.json"]
    assert feed.remembered() == {"a.json", "c.json"}


def test_a_source_that_may_be_emptied_does_not_wait(feed):
    feed.options["may_be_emptied"] = True
    feed.put("a.json")
    feed.start().read()
    feed.swap("mounted")
    feed.put("b.json")
    assert feed.start().read() == ["b.json"]
    feed.swap_back("mounted")
    assert feed.start().read() == []


def test_a_feed_that_is_emptied_while_the_job_runs_is_nothing_to_warn_of(feed, caplog):
    feed.put("a.json")
    feed.start().read()
    (feed.root / "a.json").unlink()
    with caplog.at_level(logging.WARNING, "penstock"):
        feed.read()
    assert not caplog.records


def test_an_emptied_folder_is_said_and_its_files_are_not_read_again(feed, caplog):
    feed.put("a.json", "b.json")
    feed.start().read()
    away = feed.root.parent / "away"
    away.mkdir()
    for name in ("a.json", "b.json"):
        (feed.root / name).rename(away / name)

    assert feed.source.backlog(feed.position).warnings[0].startswith(f"Directory '{feed.root}' has none of the files")
    with caplog.at_level(logging.WARNING, "penstock"):
        assert feed.start(Until.CAUGHT_UP).read() == []
    assert isinstance(feed.reader.poll(now=MonotonicTime(0), wall=WallTime(0), limits=ReadLimit()), CaughtUp)
    assert [record.getMessage().partition(" has none")[0] for record in caplog.records] == [
        f"source in: Directory '{feed.root}'"
    ]
    assert feed.start().read() == []

    (away / "a.json").rename(feed.root / "a.json")
    assert feed.start().read() == []
    assert feed.remembered() == {"a.json"}


def test_files_that_go_and_come_back_while_the_job_runs_are_not_read_again(feed):
    feed.put("a.json", "b.json")
    feed.start().read()
    content = {name: (feed.root / name) for name in ("a.json", "b.json")}
    for name, path in content.items():
        path.rename(feed.root.parent / name)
    assert feed.read() == []
    for name, path in content.items():
        (feed.root.parent / name).rename(path)
    assert feed.read() == []
    feed.put("a.json")
    with pytest.raises(SourceChanged, match=r"'a\.json' was read"):
        feed.read()


def test_a_feed_that_is_emptied_each_time_goes_on_and_does_not_grow(feed):
    feed.start()
    for number in range(5):
        feed.put("same.json", f"{number}.json")
        assert feed.read() == ["same.json", f"{number}.json"]
        for name in ("same.json", f"{number}.json"):
            (feed.root / name).unlink()
        assert feed.start().read() == []
    assert feed.remembered() == {"same.json", "4.json"}


def test_a_folder_below_that_is_not_mounted_forgets_nothing(feed):
    feed.options["recursive"] = True
    feed.put("top.json", "sub/a.json", "sub/x/b.json", "other/c.json")
    feed.start().read()
    away = feed.root.parent / "sub"
    (feed.root / "sub").rename(away)
    (feed.root / "sub").mkdir()
    feed.put("other/d.json")
    assert feed.start().read() == ["other/d.json"]
    assert feed.read() == []
    (feed.root / "sub").rmdir()
    away.rename(feed.root / "sub")
    assert feed.read() == []


def test_a_folder_below_that_was_removed_is_forgotten(feed):
    feed.options["recursive"] = True
    feed.put("2026/01/a.json", "2026/02/b.json")
    feed.start().read()
    shutil.rmtree(feed.root / "2026" / "01")
    feed.read()
    assert feed.remembered() == {"2026/02/b.json"}

    shutil.rmtree(feed.root / "2026")  # all at once
    feed.read()
    assert feed.remembered() == {"2026/02/b.json"}
    feed.put("2027/01/c.json")
    assert feed.read() == ["2027/01/c.json"]
    feed.read()
    assert feed.remembered() == {"2027/01/c.json"}


def test_another_pattern_and_back_reads_nothing_again(feed):
    feed.put("a.json", "b.txt")
    feed.start().read()
    feed.options["pattern"] = "*.json"
    feed.start().read()
    feed.read()
    feed.options["pattern"] = "*"
    assert feed.start().read() == []


def test_a_position_of_before_folders_were_known_goes_on_and_is_safe(feed):
    feed.put("a.json")
    feed.start().read()
    feed.position = Position(kind="files/1", detail={"done": feed.position.detail["done"], "partial": None})
    feed.swap("mounted")
    assert feed.start().read() == []
    feed.swap_back("mounted")
    assert feed.start().read() == []


def test_an_older_version_takes_gone_files_for_read_ones(feed):
    feed.put("a.json")
    feed.start().read()
    (feed.root / "a.json").unlink()
    feed.read()
    assert feed.position.kind == "files/1"
    assert feed.position.detail["gone"] == ["a.json"]
    assert feed.remembered() == {"a.json"}


def test_a_fresh_start_without_the_folder_is_refused_and_a_later_one_waits(feed, tmp_path):
    with pytest.raises(GraphError, match=r"'\S+/nowhere' does not exist\. Create it") as refused:
        Source(tmp_path / "nowhere", schema=SCHEMA).open(SourceContext(uid="in", spark=SPARK), None)
    assert refused.value.uid == "in"
    (tmp_path / "file").write_text("")
    with pytest.raises(GraphError, match="is a file, not a directory"):
        Source(tmp_path / "file", schema=SCHEMA).open(SourceContext(uid="in", spark=SPARK), None)

    feed.put("a.json")
    feed.start().read()
    feed.root.rename(tmp_path / "mounted")
    with pytest.raises(SourceUnavailable, match="Mount it"):
        feed.start()
    with pytest.raises(SourceUnavailable, match="Mount it"):
        feed.read()


def test_a_plan_refuses_a_new_source_without_its_folder(tmp_path):
    @ps.pipeline("copy")
    def copy(p):
        p.read("in", Source(tmp_path / "nowhere", format="text")).write("out", ps.console.Sink())

    found = plan(copy.graph(), state=tmp_path / "state", settings=read_settings({}))
    assert found.is_refused
    assert found.refused == (found.sources[0].unknown,)
    assert f"'{tmp_path}/nowhere' does not exist" in found.refused[0]

    (tmp_path / "nowhere").mkdir()
    assert not plan(copy.graph(), state=tmp_path / "state", settings=read_settings({})).is_refused


def test_a_file_that_may_not_be_read_is_named_before_spark_calls_it_vanished(feed, monkeypatch):
    feed.put("a.json")
    answer = feed.start().reader.poll(now=MonotonicTime(0), wall=WallTime(0), limits=ReadLimit())
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SourceUnavailable, match=r"a\.json' cannot be read \(Permission denied\)\. Give this user"):
        feed.reader.frame(answer.plan)


@pytest.mark.parametrize(
    ("format", "option", "hint"),
    [
        ("csv", "enforceSchema", "has no effect when csv is read. Did you mean|Options: "),
        ("csv", "timestampFromat", "Did you mean 'timestampFormat'"),
        ("json", "allowComment", "Did you mean 'allowComments'"),
        ("json", "sep", "no effect when json is read"),
        ("parquet", "mergeSchema", "no effect"),
        ("parquet", "mode", "has no effect when parquet is read"),
        ("csv", "mode", r"cannot be set.* read the lines as text and use parse_csv\(…, on_error='split'\)"),
        ("json", "mode", r"cannot be set.* use parse_json\("),
        ("text", "wholetext", "no effect when text is read. Leave it out."),
        ("text", "lineSep", "no effect when text is read. Leave it out."),
    ],
)
def test_an_option_without_effect_is_refused(format, option, hint):
    with pytest.raises(GraphError, match=rf"Option '{option}' .*(?:{hint})"):
        Source("in", format=format, schema=None if format == "text" else SCHEMA, options={option: "x"})


def test_options_with_effect_are_taken_in_any_case():
    options = {"header": True, "SEP": ";", "timestampformat": "yyyy", "nullValue": "-"}
    taken = Source("in", format="csv", schema=SCHEMA, options=options)
    assert taken.content.options == {"SEP": ";", "timestampformat": "yyyy", "nullValue": "-"}


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("quote", "''", "Give one character, or '' for none."),
        ("ESCAPE", r"\t", "Give one character, or '' for none."),
        ("comment", "//", "Give one character, or '' for none."),
        ("sep", "", "Give the characters between two values"),
        ("delimiter", "\\", r"a backslash as '\\'"),
        ("sep", r"\x", "Give the characters between two values"),
    ],
)
def test_characters_of_csv_that_spark_cannot_take_are_refused(name, value, remedy):
    with pytest.raises(GraphError) as failure:
        Source("in", format="csv", schema=SCHEMA, options={name: value})
    assert f"Option {name!r} is {value!r}" in str(failure.value)
    assert remedy in str(failure.value)


@pytest.mark.parametrize(
    ("format", "options", "words"),
    [
        ("json", {"multiLine": True}, "'multiLine' has no effect for format 'json'"),
        ("csv", {"multiline": "yes"}, "'multiLine' is 'yes'. Give True or False"),
        ("csv", {"encoding": "klingon"}, "'encoding' is 'klingon', which is none"),
        ("text", {"encoding": "rot13"}, "'encoding' is 'rot13', which is none"),
        ("parquet", {"encoding": "utf-8"}, "'encoding' has no effect when parquet is read"),
        ("csv", {"encoding": "cp1252", "multiLine": True}, "which Spark does not read with multiLine"),
    ],
)
def test_encodings_and_records_of_several_lines_that_cannot_be_read_are_refused(format, options, words):
    with pytest.raises(GraphError, match=words):
        Source("/in", format=format, schema=None if format == "text" else SCHEMA, options=options)


def test_a_file_that_is_partly_read_cannot_get_options_that_read_it_whole(feed):
    (feed.root / "a.csv").write_text("1\n" * 100_000)
    feed.options |= {"format": "csv", "split_bytes": 64 * 1024}
    feed.start().reader.poll(now=MonotonicTime(0), wall=WallTime(0), limits=ReadLimit())
    feed.position = feed.checkpoint()
    feed.options["options"] = {"multiLine": True}
    with pytest.raises(GraphError, match=r"'a\.csv' is partly read"):
        feed.start()


def test_files_that_can_only_be_read_whole_are_not_cut():
    def can_cut(name="a", format="csv", **options):
        return Source("/in", format=format, schema=SCHEMA, options=options).content.can_cut(name)

    assert can_cut()
    assert can_cut(ENCODING="utf8")
    assert can_cut("a.gz", format="parquet")
    assert not can_cut("a.gz")
    assert not can_cut(encoding="latin-1")
    assert not can_cut(multiLine=True)


# ---- files that are still written, and how many wait -----------------------------------------------------------------


def test_a_young_file_is_not_there_yet(feed):
    feed.options["min_age"] = "1 hour"
    feed.put("old.json")
    (feed.root / "young.json").write_text('{"n": 1}\n')
    for until in Until:
        feed.position = None
        assert feed.start(until).read() == ["old.json"]
    assert feed.source.backlog(None).files == 1
    feed.options["bounded"], feed.position = True, None
    assert feed.start().read() == ["old.json"]
    assert feed.position.detail["remaining"] == {}

    feed.options["bounded"], feed.position = False, None
    feed.start().read()
    (feed.root / "young.json").write_text('{"n": 1}\n{"n": 2}\n')  # its writer goes on
    assert feed.read() == []
    os.utime(feed.root / "young.json", (9, 9))
    assert feed.read() == ["young.json"]


def test_a_run_that_is_caught_up_says_that_no_file_waits_however_soon_it_is(feed):
    feed.put("a.json", "b.json")
    feed.options |= {"max_files_per_batch": 1, "bounded": True}
    feed.start()
    for now in range(3):
        feed.reader.poll(now=MonotonicTime(now), wall=WallTime(0), limits=ReadLimit())
    assert [lag.files for lag in feed.reported] == [1, 0]


def test_the_lag_of_files_are_those_that_are_not_read_and_the_age_of_the_oldest(feed):
    feed.put("a.json", "b.json", "c.json")
    feed.options["max_files_per_batch"] = 1
    feed.start().reader.poll(now=MonotonicTime(0), wall=WallTime(0), limits=ReadLimit())
    [lag] = feed.reported
    assert (lag.task, lag.rows, lag.files, lag.bytes, lag.is_behind) == ("in", None, 2, 18, True)
    assert lag.seconds > 10**9, "since 1970"
    feed.reader.poll(now=MonotonicTime(999_999), wall=WallTime(0), limits=ReadLimit())
    assert len(feed.reported) == 1
    feed.read()
    assert (feed.reported[-1].files, feed.reported[-1].bytes, feed.reported[-1].seconds) == (0, 0, 0.0)
    assert not feed.reported[-1].is_behind


# ---- any order of mounts ---------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["add", "add below", "mount", "mount below", "write beside", "look"]), max_size=30))
def test_whatever_is_mounted_when_each_file_is_read_once(moves):
    """Of two file systems, one mounted below the other; ``mount`` mounts or unmounts, and writers write into both."""
    top, below, beside = {}, {}, {}
    is_mounted, is_below_mounted = True, True
    position, read = FilesPosition(folder=1), []
    for at, move in enumerate([*moves, "end"]):
        signature = FileSignature(1, at)
        if move == "add":
            top[f"{at}"] = signature
        elif move == "add below":
            below[f"sub/{at}"] = signature
        elif move == "write beside":
            beside[f"sub/{at}"] = signature  # into the mount point of the folder below
        elif move == "mount":
            is_mounted = not is_mounted
        elif move == "mount below":
            is_below_mounted = not is_below_mounted
        elif move == "end":
            is_mounted = is_below_mounted = True
        listing = {} if not is_mounted else {**top, **(below if is_below_mounted else beside)}
        names = set() if not is_mounted else {"sub", *listing}
        folder = 1 if is_mounted else 2
        if has_lost_all(listing, position) and folder != position.folder:
            continue
        position = reconcile(listing, position, names.__contains__)
        position = FilesPosition(done=position.done, gone=position.gone, folder=folder)
        limits = FileLimits(files=100, bytes=None, split_bytes=100, can_cut=lambda _: False)
        planned = plan_next(position, unread_files(listing, position), limits)
        position, names_read = planned.position, [part.name for part in planned.slices]
        read += names_read
    assert len(read) == len(set(read))
    assert set(read) >= top.keys() | below.keys()
