"""The folder for state: what kind of file system it lies on, whether that does what the log needs, room, clocks.

Writes a few small files beside what is there, and takes them away again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError, StateDirectoryRefused
from penstock.filesystem.local import NETWORK, LocalFileSystem, kind_of
from penstock.operate.directory import root_of
from penstock.operate.doctor.findings import Finding, fail, ok, warn
from penstock.runtime.clock import Clock

NAME: Final = "state folder"
MIB: Final = 1 << 20
LITTLE: Final = 1024 * MIB
SCARCE: Final = 64 * MIB
WRITES: Final = 5
SLOW_MS: Final = 100.0
"""A durable write that takes longer: a checkpoint needs several of them, one after the other."""

SKEW_SECONDS: Final = 2.0

_PASSING: Final = {
    "tmpfs": "memory: state is gone when the machine restarts",
    "ramfs": "memory: state is gone when the machine restarts",
    "overlay": "the container's own layer: state is gone with the container",
    "overlayfs": "the container's own layer: state is gone with the container",
    "aufs": "the container's own layer: state is gone with the container",
}
"""Kinds of file systems that work and do not last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What writing durably was like: milliseconds of the middle one, and how far the files' times are ahead of ours."""

    milliseconds: float
    skew_seconds: float


def look_at_storage(state: str, clock: Clock) -> Iterator[Finding]:
    """The folder, or where it would be made."""
    root = root_of(state)
    if root is None:
        yield fail(NAME, state, "no file system here knows that address: name a folder of this machine")
        return
    if root.exists() and not root.is_dir():
        yield fail(NAME, f"{root.resolve()} is a file", "name a folder with --state, or take the file away")
        return
    folder = nearest_folder(root)
    yield kind_finding(str(root.resolve()), kind_of(folder), is_new=folder != root.resolve())
    try:
        LocalFileSystem(folder).probe()
        written = try_writing(folder, clock)
    except (PenstockError, OSError) as error:
        yield refused(error)
        return
    yield written_of(written)
    yield space_of(shutil.disk_usage(folder).free)
    yield skew_of(written.skew_seconds)


def nearest_folder(path: Path) -> Path:
    """The folder itself, or the one above it that is there."""
    path = path.resolve()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def try_writing(folder: Path, clock: Clock) -> Written:
    """Do what the log does: create, list, rename, read, delete; nothing of it is left behind.

    Raises:
        PenstockError: one of them failed.
        StateDirectoryRefused: one of them did not do what it should.
    """
    place = folder / f".penstock-doctor-{os.getpid()}"
    files = LocalFileSystem(place)
    took = []
    try:
        for number in range(WRITES):
            before = clock.now()
            files.create(f"{number}.json", b"{}")
            took.append(clock.now() - before)
        skew = (place / f"{WRITES - 1}.json").stat().st_mtime - clock.wall() / 1_000_000
        files.move("0.json", "moved.json")
        listed = files.list("")
        expected = sorted(["moved.json", *(f"{number}.json" for number in range(1, WRITES))])
        if list(listed) != expected or files.read("moved.json") != b"{}":
            msg = f"{folder} does not list what was written and renamed: {', '.join(listed) or 'nothing'}"
            raise StateDirectoryRefused(msg)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return Written(milliseconds=sorted(took)[WRITES // 2] / 1_000, skew_seconds=skew)


def kind_finding(path: str, kind: str, *, is_new: bool) -> Finding:
    """What the kind of file system means for state."""
    found = f"{path} on {kind}" + (", will be made" if is_new else "")
    if kind in NETWORK:
        return fail(NAME, found, "two hosts could own one job there: use a local disk")
    if kind in _PASSING:
        return warn(NAME, f"{found}, {_PASSING[kind]}", "for more than a try, put --state on a disk or a volume")
    return ok(NAME, found)


def refused(error: Exception) -> Finding:
    """It cannot be written as the log needs it."""
    return fail("durable writes", str(error), "name a folder that this user may write, on a local disk, with --state")


def written_of(written: Written) -> Finding:
    """Whether durable writes are quick enough for checkpoints every few seconds."""
    found = f"create, link, fsync, rename, list: fine, {written.milliseconds:.1f} ms each"
    if written.milliseconds > SLOW_MS:
        return warn("durable writes", found, "a checkpoint makes several: use a faster disk, or take them less often")
    return ok("durable writes", found)


def space_of(free: int) -> Finding:
    """Whether state has room to grow."""
    found = f"{free / MIB / 1024:.1f} GiB free"
    if free < SCARCE:
        return fail("space", found, "free some, or name another folder with --state: checkpoints will fail")
    if free < LITTLE:
        return warn("space", found, "keep more free: state, its old checkpoints and staged output all lie there")
    return ok("space", found)


def skew_of(seconds: float) -> Finding:
    """Whether the clock of the file system is that of this machine."""
    if abs(seconds) <= SKEW_SECONDS:
        return ok("clocks", "the file system's agrees with this machine's")
    where = "ahead of" if seconds > 0 else "behind"
    fix = "set both by NTP: nothing is decided by them, but times in listings and in checkpoints will not agree"
    return warn("clocks", f"the file system's is {abs(seconds):.1f} s {where} this machine's", fix)
