"""What the committer of files says when the disk does not do as it is told; no Spark."""

from __future__ import annotations

import errno
import os
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.connectors.files.committer import FilesCommitter
from penstock.errors import CommitFailed, StateDirectoryRefused
from penstock.filesystem import local
from penstock.filesystem.base import UnknownOutcome
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CheckpointId, CommitOutcome, Committable, FileRef

GENERATION = ".penstock/log/out/7"


class Disk(LocalFileSystem):
    """The local disk, which fails at one call and counts listings."""

    def __init__(self, call=None, error=None):
        super().__init__("/tmp/penstock-not-used")
        self.listed = []
        if call is not None:
            setattr(self, call, lambda *_: (_ for _ in ()).throw(error))

    def list(self, prefix):
        self.listed.append(prefix)
        return super().list(prefix)


@pytest.fixture
def item(tmp_path):
    """Three staged files in two folders."""
    target = tmp_path / "out"
    refs, moves = [], {}
    for number, folder in enumerate(("0", "0", "1")):
        path = target / GENERATION / folder / f"staged-{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"row")
        refs.append(FileRef(path=str(path), length=3, sha256=sha256(b"row").hexdigest()))
        moves[str(path)] = f"{target}/part-{number}.json"
    return Committable(
        uid="out",
        kind="files/1",
        checkpoint=CheckpointId(3),
        target=str(target),
        files=tuple(refs),
        detail={"moves": moves},
    )


def act(how, item, disk=None):
    return getattr(FilesCommitter(disk or Disk()), how)(item)


def visible(item):
    return sorted(path.name for path in Path(item.target).iterdir() if path.is_file())


@pytest.mark.parametrize("how", ["commit", "void"])
def test_a_target_that_is_not_mounted_is_no_target_that_was_published(item, how):
    away = item.target + ".away"
    os.rename(item.target, away)
    for mounted_empty in (False, True):
        if mounted_empty:
            os.mkdir(item.target)
        with pytest.raises(CommitFailed, match="Mount the target again") as told:
            act(how, item)
        assert f"{item.target}/{GENERATION}" in str(told.value)
        assert told.value.uid == "out"
    os.rmdir(item.target)
    os.rename(away, item.target)
    assert act(how, item) is CommitOutcome.DONE
    assert len(visible(item)) == (3 if how == "commit" else 0)


@pytest.mark.parametrize("how", ["commit", "void"])
def test_a_target_that_goes_away_meanwhile_was_not_published(item, how):
    class Unmounted(Disk):
        def move(self, source, target):
            shutil.move(item.target, item.target + ".away")
            return super().move(source, target)

    with pytest.raises(CommitFailed, match="is not there"):
        act(how, item, Unmounted())
    os.rename(item.target + ".away", item.target)
    assert act("commit", item) is CommitOutcome.DONE


def test_the_folder_of_the_generation_stays_when_all_is_published_and_confirmed(item):
    assert act("commit", item) is CommitOutcome.DONE
    assert os.listdir(f"{item.target}/{GENERATION}") == []
    assert act("commit", item) is CommitOutcome.ALREADY_DONE
    assert act("void", item) is CommitOutcome.ALREADY_DONE


@pytest.mark.parametrize("how", ["commit", "void"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EBUSY])
def test_what_may_pass_is_to_be_tried_again_and_says_why(item, how, number):
    disk = Disk("move", OSError(number, os.strerror(number)))
    with pytest.raises(CommitFailed, match=os.strerror(number)) as told:
        act(how, item, disk)
    assert item.target in str(told.value)
    assert act("commit", item) is CommitOutcome.DONE


@pytest.mark.parametrize("died_at", [1, 3])
def test_a_rename_whose_process_died_before_it_was_durable_is_made_durable_before_it_counts_as_done(
    item, monkeypatch, died_at
):
    """After a power loss the file is staged again, and nobody looks there once the log says that it is published."""
    real, synced = local._sync_folder, []
    monkeypatch.setattr(local, "_sync_folder", lambda folder: (synced.append(folder), real(folder)))
    with failpoints.armed("local.move.renamed", "raise", hit=died_at), pytest.raises(failpoints.FailpointCrash):
        act("commit", item)

    synced.clear()
    assert act("commit", item) is (CommitOutcome.DONE if died_at == 1 else CommitOutcome.ALREADY_DONE)
    assert Path(item.target) in synced
    assert len(visible(item)) == 3

    synced.clear()
    assert act("commit", item) is CommitOutcome.ALREADY_DONE
    assert synced == [Path(item.target)], "once for all files of the folder"


def test_an_answer_that_was_lost_is_asked_for_again(item):
    with pytest.raises(CommitFailed, match="who knows"):
        act("commit", item, Disk("move", UnknownOutcome("who knows")))


@pytest.mark.parametrize("how", ["commit", "void"])
@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EACCES, "right to write"), (errno.EROFS, "Mount it"), (errno.EXDEV, "one file system")],
)
def test_what_an_operator_must_mend_is_refused_with_the_remedy(item, how, number, remedy):
    with pytest.raises(StateDirectoryRefused, match=remedy) as told:
        act(how, item, Disk("move", OSError(number, os.strerror(number))))
    assert os.strerror(number) in str(told.value)


def test_a_rename_across_file_systems_is_refused_with_the_remedy(item, monkeypatch):
    def rename(source, target):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(StateDirectoryRefused, match="one file system"):
        act("commit", item)
    assert visible(item) == []


def test_a_commit_lists_each_folder_once(item):
    disk = Disk()
    assert act("commit", item, disk) is CommitOutcome.DONE
    assert sorted(disk.listed) == [f"{item.target}/{GENERATION}/{folder}" for folder in "01"]
