from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.files import lines as lines_of
from penstock.connectors.files.directory import bytes_per_row, scan
from penstock.connectors.files.lines import FileSplit, read_lines
from penstock.connectors.files.listing import (
    SMALLEST_CUT,
    FileLimits,
    FileSignature,
    FileSlice,
    FilesPosition,
    decode,
    encode,
    file_changed,
    is_finished,
    plan_next,
    reconcile,
    unread_files,
)
from penstock.connectors.files.ranges import group_bound
from penstock.errors import SourceChanged, SourceUnavailable, StateIncompatible
from penstock.handles import Position


def caps(files=100, most=None, split=10**9, cuttable=True):
    return FileLimits(files=files, bytes=most, split_bytes=split, can_cut=lambda name: cuttable)


def whole(name, size, mtime=1):
    return FileSlice(name=name, signature=FileSignature(size, mtime), start=0, end=size)


def test_files_are_read_by_time_then_path_and_empty_ones_wait():
    listing = {
        "b": FileSignature(1, 5),
        "a": FileSignature(1, 5),
        "z": FileSignature(1, 1),
        "empty": FileSignature(0, 0),
    }
    assert [name for name, _ in unread_files(listing, FilesPosition())] == ["z", "a", "b"]


def test_a_file_with_an_older_time_that_arrives_late_is_read():
    progress = FilesPosition(done={"new": FileSignature(1, 100)})
    listing = {"new": FileSignature(1, 100), "old": FileSignature(1, 3)}
    assert unread_files(listing, progress) == [("old", FileSignature(1, 3))]


def test_whole_files_are_taken_while_under_the_cap_and_the_first_always():
    files = [(name, FileSignature(60, 1)) for name in "abc"]
    decision = plan_next(FilesPosition(), files, caps(most=120))
    assert decision.slices == (whole("a", 60), whole("b", 60))
    assert decision.position.done == {"a": FileSignature(60, 1), "b": FileSignature(60, 1)}
    assert [part.name for part in plan_next(FilesPosition(), files, caps(most=1)).slices] == ["a"]
    assert [part.name for part in plan_next(FilesPosition(), files, caps(files=2)).slices] == ["a", "b"]
    assert plan_next(FilesPosition(), [], caps()).slices == ()


def test_a_big_file_is_cut_alone_and_without_gap():
    size = 5 * SMALLEST_CUT + 7
    files = [("small", FileSignature(1, 1)), ("big", FileSignature(size, 2)), ("last", FileSignature(1, 3))]
    limits = caps(split=2 * SMALLEST_CUT)
    first = plan_next(FilesPosition(), files, limits)
    assert [part.name for part in first.slices] == ["small"]
    progress, cuts = first.position, []
    while True:
        decision = plan_next(progress, [item for item in files[1:] if item[0] not in progress.done], limits)
        progress = decode(Position(kind="files/1", detail=json.loads(json.dumps(encode(decision.position).detail))))
        if decision.slices[0].name == "last":
            break
        assert len(decision.slices) == 1
        cuts.append((decision.slices[0].start, decision.slices[0].end))
    step = 2 * SMALLEST_CUT
    assert cuts == [(0, step), (step, 2 * step), (2 * step, size)]
    assert progress.partial is None
    assert set(progress.done) == {"small", "big", "last"}


def test_what_cannot_be_cut_is_whole():
    assert (
        plan_next(FilesPosition(), [("a.gz", FileSignature(10**6, 1))], caps(split=1, cuttable=False)).slices[0].whole
    )


def test_gone_files_are_forgotten_once_they_are_fully_read():
    progress = FilesPosition(done={"kept": FileSignature(1, 1), "gone": FileSignature(1, 1)})
    assert reconcile({"kept": FileSignature(1, 1)}, progress).done == {"kept": FileSignature(1, 1)}


@pytest.mark.parametrize(
    ("when", "now", "remedy"),
    [
        ("was read", FileSignature(1, 2), "move it away for good"),
        ("was read", FileSignature(1, 2), "its time included"),
        ("was planned", FileSignature(2, 2), "start the job again"),
        ("was listed at the first start", None, "without bounded"),
        ("is partly read", None, "Put it back"),
    ],
)
def test_the_error_for_a_changed_file_names_the_remedy_that_repeats_nothing(when, now, remedy):
    assert remedy in str(file_changed("f", FileSignature(1, 1), now, when))


@pytest.mark.parametrize("now", [FileSignature(2, 1), FileSignature(1, 2)])
def test_a_done_file_that_changed_is_an_error_with_both_signatures(now):
    with pytest.raises(
        SourceChanged, match=r"'f' was read as 1 bytes, modified 1970-01-01 00:00:00.000000 UTC. Now it is .* rename"
    ):
        reconcile({"f": now}, FilesPosition(done={"f": FileSignature(1, 1)}))


@pytest.mark.parametrize("listing", [{}, {"f": FileSignature(10, 2)}])
def test_a_partly_read_file_that_vanished_or_changed_is_an_error(listing):
    partial = FileSlice(name="f", signature=FileSignature(10, 1), start=5, end=10)
    with pytest.raises(SourceChanged, match="'f' is partly read"):
        reconcile(listing, FilesPosition(partial=partial))


def test_a_position_survives_json_and_another_kind_is_refused():
    progress = FilesPosition(
        done={"d": FileSignature(1, 2)},
        partial=FileSlice(name="p", signature=FileSignature(10, 3), start=4, end=10),
        remaining={"p": FileSignature(10, 3)},
        columns={"type": "struct", "fields": []},
    )
    detail = json.loads(json.dumps(encode(progress).detail))
    assert decode(Position(kind="files/1", detail=detail)) == progress
    older = {name: value for name, value in detail.items() if name != "columns"}
    assert decode(Position(kind="files/1", detail=older)) == replace(progress, columns=None)
    with pytest.raises(StateIncompatible, match="'kafka/1'"):
        decode(Position(kind="kafka/1", detail={}))
    with pytest.raises(StateIncompatible, match="another version"):
        decode(Position(kind="files/1", detail={"seen": []}))


def test_unfinished_names():
    names = ["a", "_a", ".a", "a.tmp", "a._COPYING_"]
    assert [is_finished(name) for name in names] == [True, False, False, False, False]


def test_a_scan_sees_finished_files_that_match(tmp_path: Path):
    for name in ("a.json", "b.csv", "_c.json", "d.json.tmp", "sub/e.json", ".hidden/f.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("12")
    assert list(scan(str(tmp_path), pattern="*.json", recursive=False)) == ["a.json"]
    found = scan(str(tmp_path), pattern="*.json", recursive=True)
    assert sorted(found) == ["a.json", "sub/e.json"]
    assert found["a.json"] == FileSignature(2, (tmp_path / "a.json").stat().st_mtime_ns)
    with pytest.raises(SourceUnavailable, match="create it"):
        scan(str(tmp_path / "none"), pattern="*", recursive=False)


def test_the_size_of_a_row_is_guessed_from_the_beginning(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"123\n" * 10)
    assert bytes_per_row(str(tmp_path / "a"), "text") == 4
    assert bytes_per_row(str(tmp_path / "none"), "text") is None


@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n\ufeff", exclude_categories=["Cs"]), max_size=12)),
    ended=st.booleans(),
    cuts=st.sets(st.integers(0, 200)),
    header=st.booleans(),
    block=st.sampled_from([1, 2, 3, 7, 4096]),
)
def test_any_cut_gives_the_same_lines(tmp_path_factory, lines, ended, cuts, header, block):
    content = "\n".join(lines).encode() + (b"\n" if ended and lines else b"")
    path = tmp_path_factory.mktemp("cut") / "f"
    path.write_bytes(content)
    bounds = [0, *sorted(c for c in cuts if 0 < c < len(content)), len(content)]
    pieces = [
        FileSplit(path=str(path), name="f", start=a, end=b, size=len(content), mtime_ns=0)
        for a, b in itertools.pairwise(bounds)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_of, "_READ_BLOCK", block)
        got = [line for piece in pieces for some in read_lines(piece, skip_first=header) for line in some.split(b"\n")]
    expected = content.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert got == expected[1 if header else 0 :]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be", "cp1252", "utf-8-sig"])
@pytest.mark.parametrize("block", [1, 3, 4096])
def test_lines_of_an_encoding_are_given_in_utf8(tmp_path: Path, monkeypatch, encoding, block):
    lines = ["head", "", "é" * 9, "x\r"]
    content = ("" if encoding == "cp1252" else "\ufeff") + "\n".join(lines)
    path = tmp_path / "f"
    path.write_bytes(content.encode(encoding.removesuffix("-sig")))
    piece = FileSplit(path=str(path), name="f", start=0, end=path.stat().st_size, size=0, mtime_ns=0)
    monkeypatch.setattr(lines_of, "_READ_BLOCK", block)
    monkeypatch.setattr(lines_of, "_DECOMPRESS_BLOCK", block)
    blocks = read_lines(piece, skip_first=True, encoding=encoding)
    assert b"\n".join(blocks).decode().split("\n") == lines[1:]


def test_a_line_longer_than_a_block_belongs_to_the_piece_it_begins_in(tmp_path: Path):
    path = tmp_path / "f"
    content = b"a\n" + b"x" * (10 * 1024 * 1024) + b"\nb"
    path.write_bytes(content)
    middle = len(content) // 2

    def lines(start, end):
        piece = FileSplit(path=str(path), name="f", start=start, end=end, size=len(content), mtime_ns=0)
        return [line for block in read_lines(piece, skip_first=False) for line in block.split(b"\n")]

    assert [len(line) for line in lines(0, middle)] == [1, 10 * 1024 * 1024]
    assert lines(middle, len(content)) == [b"b"]


@given(
    groups=st.lists(st.integers(1, 40), max_size=8),
    trailer=st.integers(0, 20),
    cuts=st.sets(st.integers(0, 400)),
)
def test_any_cut_has_the_row_groups_that_begin_in_it_by_their_middles(groups, trailer, cuts):
    begins = list(itertools.accumulate(groups, initial=4))
    size = begins.pop() + trailer
    bounds = [0, *sorted(cut for cut in cuts if 0 < cut < size), size]
    for start, end in itertools.pairwise(bounds):
        low, high = (group_bound(begins, at, size) for at in (start, end))
        middles = {first + length // 2: first for first, length in zip(begins, groups, strict=True)}
        read = [first for middle, first in middles.items() if low <= middle < high]
        assert read == [first for first in begins if start <= first < end]
