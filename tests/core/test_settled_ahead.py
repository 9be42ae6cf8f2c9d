"""Files of a restore are checked while the JVM boots: each answer counts once, and a wrong one is asked for again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.checkpoint.recovery import Recovery
from penstock.errors import CheckpointUnreadable
from penstock.filesystem.ahead import SettledAhead
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CheckpointId, FileRef, LayerRef, StateHandle, TaskSnapshot
from penstock.job.start import restored_files
from penstock.runtime.lifecycle import JobState

PATIENCE = 30


class Watched(LocalFileSystem):
    """Tells by which thread each file was settled; ``gate`` holds the one ahead up after its first file."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.settled: list[tuple[str, str]] = []
        self.begun, self.gate = threading.Event(), threading.Event()

    def settle(self, path: str, synced: set[str] | None = None) -> FileRef:
        name = threading.current_thread().name
        self.settled.append((path, "ahead" if name == "settle-ahead" else "caller"))
        if name == "settle-ahead":
            self.begun.set()
            assert self.gate.wait(PATIENCE)
        return super().settle(path, synced)


@pytest.fixture
def inner(tmp_path: Path) -> Watched:
    for name in "abc":
        (tmp_path / name).write_text(name)
    return Watched(tmp_path)


def test_an_answer_that_is_on_its_way_is_waited_for_and_given_once(inner: Watched) -> None:
    ahead = SettledAhead(inner, threads=1)
    ahead.begin(["a"])
    assert inner.begun.wait(PATIENCE)
    inner.gate.set()
    assert ahead.settle("a") == LocalFileSystem(inner._root).settle("a")
    assert inner.settled == [("a", "ahead")]
    ahead.settle("a")
    assert inner.settled == [("a", "ahead"), ("a", "caller")]


def test_what_is_not_begun_is_read_by_who_asks_beside_the_other(inner: Watched) -> None:
    ahead = SettledAhead(inner, threads=1)
    ahead.begin(["a", "b"])
    assert inner.begun.wait(PATIENCE)
    ahead.settle("b")
    inner.gate.set()
    ahead.settle("a")
    assert inner.settled == [("a", "ahead"), ("b", "caller")]


def test_several_files_are_read_at_once(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name)
    both = threading.Barrier(2, timeout=PATIENCE)

    class Waiting(LocalFileSystem):
        def settle(self, path: str, synced: set[str] | None = None) -> FileRef:
            both.wait()
            return super().settle(path, synced)

    ahead = SettledAhead(Waiting(tmp_path), threads=2)
    ahead.begin("ab")
    assert [ahead.settle(name).length for name in "ab"] == [1, 1]


def test_a_file_that_was_missing_is_looked_for_again(inner: Watched, tmp_path: Path) -> None:
    ahead = SettledAhead(inner, threads=1)
    ahead.begin(["late"])
    assert inner.begun.wait(PATIENCE)
    inner.gate.set()
    for thread in threading.enumerate():
        if thread.name == "settle-ahead":
            thread.join(PATIENCE)
    with pytest.raises(CheckpointUnreadable, match="late is missing"):
        ahead.settle("late")
    ahead.begin(["later"])
    for thread in threading.enumerate():
        if thread.name == "settle-ahead":
            thread.join(PATIENCE)
    (tmp_path / "later").write_text("here")
    assert ahead.settle("later").length == 4


def test_after_the_end_nothing_that_was_read_before_counts(inner: Watched, tmp_path: Path) -> None:
    ahead = SettledAhead(inner, threads=1)
    ahead.begin(["a", "b"])
    assert inner.begun.wait(PATIENCE)
    ahead.end()
    inner.gate.set()
    (tmp_path / "a").write_text("changed")
    assert ahead.settle("a").length == 7
    assert ("b", "ahead") not in inner.settled


def test_files_of_layers_whose_windows_are_all_closed_are_not_read() -> None:
    def layer(name: str, last_end: int) -> LayerRef:
        file = FileRef(path=f"state/{name}", length=1, sha256="")
        return LayerRef(name=name, level=0, rows=1, files=(file,), detail={"first_end": 0, "last_end": last_end})

    def recovery(detail: dict[str, int]) -> Recovery:
        state = StateHandle(kind="windows", schema="k INT", layers=(layer("old", 5), layer("new", 9)), detail=detail)
        snapshots = {"totals": TaskSnapshot(task="totals", state=state), "out": TaskSnapshot(task="out")}
        return Recovery(snapshots=snapshots, next_checkpoint=CheckpointId(2), initial=False)

    assert restored_files(recovery({"horizon": 5})) == ["state/new"]
    assert restored_files(recovery({})) == [], "the restore says what is wrong with it"


@ps.pipeline("rates")
def rates(p: ps.Pipeline) -> None:
    p.read("rows", ps.rate.Source(rows_per_second=1)).write("out", ps.console.Sink())


def test_a_start_reads_the_files_of_its_restore_before_there_is_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    for file in files:
        file.write_text(file.name)
    read: list[str] = []
    ready = threading.Event()

    class Reading(LocalFileSystem):
        def settle(self, path: str, synced: set[str] | None = None) -> FileRef:
            read.append(path)
            if len(read) == len(files):
                ready.set()
            return super().settle(path, synced)

    @contextmanager
    def booting(*_: object, **__: object) -> Iterator[Any]:
        assert ready.wait(PATIENCE), "nothing is read while the JVM boots"
        job._give_up()
        yield object()

    monkeypatch.setattr("penstock.job.runner.resolve", Reading)
    monkeypatch.setattr("penstock.job.runner.restored_files", lambda recovery: [str(file) for file in files])
    monkeypatch.setattr("penstock.job.runner.borrow_session", booting)
    job = ps.Job(rates, state=tmp_path / "state")
    job.start()
    assert job.wait(PATIENCE)
    assert job.state is JobState.STOPPED
    assert sorted(read) == [str(file) for file in files]
