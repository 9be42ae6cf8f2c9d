"""The local disk beyond the contract: what a crash leaves, what the operating system refuses, what is durable when."""

import errno
import os
import stat
import subprocess
import sys

import pytest

from core.checkpoint_values import CLAIM, log_on, manifest
from penstock import failpoints
from penstock.errors import CheckpointUnreadable, StateDirectoryRefused, StorageFailed
from penstock.filesystem import local, resolve
from penstock.filesystem.base import Created, Moved, UnknownOutcome
from penstock.filesystem.local import LocalFileSystem


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state" / "orders"


@pytest.fixture
def filesystem(root):
    return LocalFileSystem(root)


@pytest.fixture
def calls(monkeypatch):
    """The order of syncs, links and renames."""
    seen = []
    real = {name: getattr(os, name) for name in ("fsync", "link", "rename")}

    def fsync(descriptor):
        seen.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        real["fsync"](descriptor)

    def two(name):
        def call(old, new):
            real[name](old, new)
            seen.append((name, os.path.basename(new)))

        return call

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", two("link"))
    monkeypatch.setattr(os, "rename", two("rename"))
    return seen


def shorten(calls):
    return [(what, "temporary" if name.startswith(".penstock-tmp-") else name) for what, name in calls]


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks at open files by /proc")


@needs_proc
def test_L8_a_file_is_synced_before_it_has_its_name_and_its_folders_after(filesystem, root, calls):
    root.parent.mkdir()
    filesystem.create("log/1", b"x")

    assert shorten(calls) == [
        ("fsync", "state"),  # holds the new folder orders
        ("fsync", "orders"),  # holds the new folder log
        ("fsync", "temporary"),
        ("link", "1"),
        ("fsync", "log"),
    ]


@needs_proc
def test_L8_a_name_that_is_taken_is_durable_when_that_is_told(filesystem, calls):
    filesystem.create("log/1", b"x")
    calls.clear()
    filesystem.create("log/1", b"x")

    assert calls == [("fsync", "log")]


@needs_proc
def test_settling_syncs_the_file_and_every_folder_up_to_the_root(filesystem, root, calls):
    folder = root / "state" / "totals" / "3"
    folder.mkdir(parents=True)
    (folder / "part-0").write_bytes(b"x")
    filesystem.settle("state/totals/3/part-0")

    assert [name for _, name in calls] == ["part-0", "3", "totals", "state", "orders"]


@needs_proc
def test_files_that_are_settled_together_sync_their_folders_once(filesystem, root, calls):
    for name in ("3/part-0", "3/part-1", "4/part-0"):
        path = root / "state" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    synced = set()
    for name in ("3/part-0", "3/part-1", "4/part-0"):
        filesystem.settle(f"state/{name}", synced)

    assert [name for _, name in calls] == ["part-0", "3", "state", "orders", "part-1", "part-0", "4"]


def test_a_folder_whose_sync_failed_is_synced_again(filesystem, root, monkeypatch):
    for name in ("a", "b"):
        path = root / "state" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    real, tried, synced = local._sync_folder, [], set()

    def sync(folder):
        tried.append(folder)
        if tried == [root / "state", root]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(folder)

    monkeypatch.setattr(local, "_sync_folder", sync)
    with pytest.raises(StorageFailed):
        filesystem.settle("state/a", synced)
    filesystem.settle("state/b", synced)

    assert tried == [root / "state", root] * 2


@needs_proc
def test_a_move_syncs_the_new_folder_before_the_old_one(filesystem, calls):
    filesystem.create("staged/a", b"x")
    filesystem.create("out/b", b"x")
    calls.clear()
    filesystem.move("staged/a", "out/a")

    assert calls == [("rename", "a"), ("fsync", "out"), ("fsync", "staged")]


def test_files_and_folders_are_the_owners_alone(filesystem, root):
    filesystem.create("log/1", b"x")

    assert stat.S_IMODE((root / "log" / "1").stat().st_mode) == 0o600
    assert stat.S_IMODE((root / "log").stat().st_mode) == 0o700
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_absolute_paths_and_file_addresses_are_taken_as_they_are(filesystem, tmp_path):
    outside = tmp_path / "out" / "a"
    filesystem.create(str(outside), b"x")

    assert filesystem.read(f"file://{outside}") == b"x"
    assert filesystem.list(str(tmp_path / "out")) == [str(outside)]
    assert filesystem.list(f"file://{tmp_path}/out") == [str(outside)]
    assert filesystem.url(str(outside)) == f"file://{outside}"
    assert filesystem.settle(str(outside)).path == str(outside)


@pytest.mark.parametrize("path", ["../other", "log/../../x", "s3://bucket/x"])
def test_paths_that_lead_elsewhere_are_refused(filesystem, path):
    with pytest.raises(StateDirectoryRefused, match="is not a path on a local disk"):
        filesystem.read(path)


# ------------------------------------------------------------------------------------------------------------- crashes


CREATE_AND_DIE = """
import sys
from penstock.filesystem.local import LocalFileSystem
LocalFileSystem(sys.argv[1]).create("log/1", b"content" * 1000)
"""


@pytest.mark.crash
@pytest.mark.parametrize(
    ("place", "content"),
    [("local.create.temp_written", None), ("local.create.linked", b"content" * 1000)],
)
def test_L8_a_process_killed_while_creating_leaves_all_or_nothing(root, place, content):
    environment = os.environ | {"PENSTOCK_FAILPOINTS": f"{place}=kill"}
    done = subprocess.run([sys.executable, "-c", CREATE_AND_DIE, str(root)], env=environment, check=False)
    assert done.returncode == -9

    filesystem = LocalFileSystem(root)
    assert filesystem.read("log/1") == content
    assert filesystem.list("log") == ([] if content is None else ["log/1"])
    assert filesystem.create("log/1", b"next") is (Created.CREATED if content is None else Created.EXISTS)


def test_a_temporary_file_of_an_earlier_process_of_the_same_number_is_not_touched(filesystem, root, monkeypatch):
    filesystem.create("log/1", b"x")
    numbers = iter([7, 8])
    monkeypatch.setattr(local, "_counter", numbers)
    left = root / "log" / f".penstock-tmp-{os.getpid()}-7"
    left.write_bytes(b"theirs")

    assert filesystem.create("log/2", b"ours") is Created.CREATED
    assert left.read_bytes() == b"theirs"
    assert filesystem.list("log") == ["log/1", "log/2"]


def test_temporary_files_of_dead_processes_are_removed_and_nothing_else(filesystem, root):
    filesystem.create("wal/in/3/0", b"x")
    (root / "wal" / "in" / "3" / ".penstock-tmp-9-9").write_bytes(b"half")
    (root / "wal" / "other").mkdir()
    (root / "wal" / "other" / ".penstock-tmp-9-9").write_bytes(b"half")

    filesystem.remove_temporary("wal/in")
    filesystem.remove_temporary("wal/nothing")

    assert sorted(path.name for path in root.rglob("*") if path.is_file()) == [".penstock-tmp-9-9", "0"]


def test_L8_a_folder_whose_name_could_not_be_made_durable_is_made_again(filesystem, root, monkeypatch):
    real, failures = local._sync_folder, iter([OSError(errno.EIO, os.strerror(errno.EIO))])
    synced = []

    def sync(folder):
        synced.append(folder)
        for failure in failures:
            raise failure
        real(folder)

    root.mkdir(parents=True)
    monkeypatch.setattr(local, "_sync_folder", sync)
    with pytest.raises(StorageFailed):
        filesystem.create("log/1", b"x")

    assert filesystem.create("log/1", b"x") is Created.CREATED
    assert synced == [root, root, root / "log"]


def test_S7_a_move_that_died_before_the_rename_is_done_again_and_after_it_is_found_done(filesystem):
    filesystem.create("staged/a", b"x")
    with failpoints.armed("local.move.before", "raise"), pytest.raises(failpoints.FailpointCrash):
        filesystem.move("staged/a", "out/a")
    assert filesystem.list("out") == []
    with failpoints.armed("local.move.renamed", "raise"), pytest.raises(failpoints.FailpointCrash):
        filesystem.move("staged/a", "out/a")

    assert filesystem.move("staged/a", "out/a") == Moved(found=False)
    assert filesystem.read("out/a") == b"x"


def test_two_names_of_one_file_become_one(filesystem, root):
    filesystem.create("staged/a", b"x")
    (root / "out").mkdir()
    os.link(root / "staged" / "a", root / "out" / "a")

    assert filesystem.move("staged/a", "out/a") == Moved(found=True)
    assert filesystem.list("staged") == []
    assert filesystem.read("out/a") == b"x"


def test_a_mover_that_is_overtaken_finds_nothing(filesystem, monkeypatch):
    filesystem.create("staged/a", b"x")
    rename = os.rename

    def overtaken(old, new):
        monkeypatch.setattr(os, "rename", rename)
        rename(old, f"{new}-first")
        rename(old, new)

    monkeypatch.setattr(os, "rename", overtaken)

    assert filesystem.move("staged/a", "out/a") == Moved(found=False)


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("ENOSPC", StorageFailed, r"Cannot create .*log/1: No space left on device. Free some space"),
        ("EDQUOT", StorageFailed, r"Cannot create .*log/1: Disk quota exceeded. Raise the quota"),
        ("EIO", StorageFailed, r"Cannot create .*log/1: Input/output error"),
        ("EROFS", StateDirectoryRefused, r"Cannot create .*log/1: Read-only file system. Make the directory writable"),
        ("EACCES", StateDirectoryRefused, r"Cannot create .*log/1: Permission denied. Make the directory writable"),
    ],
)
def test_what_the_system_refuses_is_told_with_path_and_remedy_and_leaves_nothing(
    filesystem, root, name, error, message
):
    with failpoints.armed("local.create.temp_written", f"error:{name}"), pytest.raises(error, match=message):
        filesystem.create("log/1", b"x")

    assert os.listdir(root / "log") == []
    assert filesystem.create("log/1", b"x") is Created.CREATED


def test_a_full_disk_while_writing_leaves_no_temporary_file(filesystem, root, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    filesystem.create("log/0", b"x")
    monkeypatch.setattr(local, "_sync", full)

    with pytest.raises(StorageFailed, match="Free some space"):
        filesystem.create("log/1", b"x")
    assert os.listdir(root / "log") == ["0"]


@pytest.mark.parametrize("place", ["link", "linked"])
def test_L3_an_error_after_which_the_file_may_be_there_is_an_unknown_outcome(filesystem, monkeypatch, place):
    if place == "link":

        def link(_old, _new):
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "link", link)
            with pytest.raises(UnknownOutcome, match="is not known"):
                filesystem.create("log/1", b"x")
        assert filesystem.create("log/1", b"x") is Created.CREATED
    else:
        with (
            failpoints.armed("local.create.linked", "error:EIO"),
            pytest.raises(UnknownOutcome, match="survive a crash"),
        ):
            filesystem.create("log/1", b"x")
        assert filesystem.create("log/1", b"x") is Created.EXISTS


def test_a_file_system_without_hard_links_is_refused(filesystem, monkeypatch):
    def link(_old, _new):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)

    with pytest.raises(StateDirectoryRefused, match="Operation not permitted"):
        filesystem.probe()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do anything")
def test_a_folder_that_may_not_be_read_is_refused(filesystem, root):
    filesystem.create("log/1", b"x")
    os.chmod(root / "log", 0)
    try:
        for act in (lambda: filesystem.read("log/1"), lambda: filesystem.list("log")):
            with pytest.raises(StateDirectoryRefused, match="Permission denied"):
                act()
    finally:
        os.chmod(root / "log", 0o700)


def test_a_listing_that_fails_is_never_a_short_listing(filesystem, root, monkeypatch):
    filesystem.create("log/1", b"x")

    def walk(folder, onerror):
        onerror(PermissionError(errno.EACCES, "Permission denied", str(folder)))
        return iter(())

    monkeypatch.setattr(os, "walk", walk)

    with pytest.raises(StateDirectoryRefused, match=r"Cannot list .*log: Permission denied"):
        filesystem.list("log")


def test_settling_what_is_below_a_file_is_unreadable(filesystem):
    filesystem.create("a", b"x")

    with pytest.raises(CheckpointUnreadable, match="a/b is missing"):
        filesystem.settle("a/b")


def test_reading_a_folder_is_an_error_with_its_path(filesystem):
    filesystem.create("log/1", b"x")

    with pytest.raises(StorageFailed, match=r"Cannot read .*log"):
        filesystem.read("log")


# --------------------------------------------------------------------------------------------------------------- start


def test_a_local_disk_passes_the_probe_and_nothing_is_left(filesystem, root):
    filesystem.probe()

    assert os.listdir(root) == []


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs"])
def test_L8_a_network_file_system_is_refused(filesystem, monkeypatch, kind):
    monkeypatch.setattr(local, "kind_of", lambda _path: kind)

    with pytest.raises(StateDirectoryRefused, match=f"lies on {kind}, where two hosts could own one job"):
        filesystem.probe()


def test_a_file_system_that_overwrites_is_refused(filesystem, monkeypatch):
    monkeypatch.setattr(LocalFileSystem, "create", lambda self, path, data: self.replace(path, data) or Created.CREATED)

    with pytest.raises(StateDirectoryRefused, match="does not refuse to create a file that exists"):
        filesystem.probe()


@needs_proc
def test_the_kind_of_a_file_system_is_that_of_the_nearest_mount():
    from pathlib import Path

    assert local.kind_of(Path("/proc/self")) == "proc"
    assert local.kind_of(Path("/no/such/place")) not in {"proc", "unknown"}


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_path_or_a_file_address_is_a_local_disk(tmp_path, prefix):
    assert repr(resolve(f"{prefix}{tmp_path}")) == repr(LocalFileSystem(tmp_path))


def test_an_unknown_scheme_is_refused_by_name():
    with pytest.raises(StateDirectoryRefused, match="of the file system 's3', which is not supported"):
        resolve("s3://bucket/state")


def test_one_directory_is_one_whatever_link_leads_there(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")

    assert repr(LocalFileSystem(tmp_path / "link")) == repr(LocalFileSystem(tmp_path / "real"))


def test_a_log_on_a_full_disk_goes_on_when_there_is_space_again(root):
    log, _ = log_on(LocalFileSystem(root))
    owner = log.claim(CLAIM)
    with failpoints.armed("local.create.temp_written", "error:ENOSPC"), pytest.raises(StorageFailed):
        owner.append(manifest(1))

    assert owner.append(manifest(1)) == 1
    assert log.read() == owner.history
