"""Pure decisions of the files source: what to read next of a listing, and the position after it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.clock import format_time
from penstock.errors import GraphError, SourceChanged, SourceUnavailable, StateIncompatible
from penstock.handles import Json, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

KIND: Final = "files/1"
"""Kind of the positions; also the version of their format."""
SMALLEST_CUT: Final = 64 * 1024
"""Fewest bytes of a cut of a big file: in smaller cuts the end of a long row would be searched for repeatedly."""
COMPRESSIONS: Final = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".bz2": "bz2",
    ".deflate": "deflate",
    ".lz4": "lz4",
    ".snappy": "snappy",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".xz": "xz",
}
"""Endings of compressed files, which can only be read from their beginning, and how those are compressed."""
MOST_SHOWN: Final = 3
"""Number of files that a message names."""
_UNFINISHED_START = ("_", ".")
_UNFINISHED_END = (".tmp", "._COPYING_")


def compression_of(name: str) -> str | None:
    """How the file of that name is compressed, by its ending in any case; ``None`` if it is not.

    >>> compression_of("orders.csv.GZ"), compression_of("orders.csv")
    ('gzip', None)
    """
    return next((kind for ending, kind in COMPRESSIONS.items() if name.lower().endswith(ending)), None)


@dataclass(frozen=True, slots=True, order=True)
class FileSignature:
    """Size in bytes and modification time in nanoseconds: if either differs, the file has changed."""

    size: int
    mtime_ns: int

    def __str__(self) -> str:
        return f"{self.size} bytes, modified {format_time(self.mtime_ns // 1_000, fraction=True)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """The lines or row groups of a file that *begin* in the bytes from ``start`` on, below ``end``."""

    name: str
    signature: FileSignature
    start: int
    end: int

    @property
    def whole(self) -> bool:
        """Whether the slice is the whole file."""
        return self.start == 0 and self.end == self.signature.size


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesPosition:
    """How far a directory was read.

    Attributes:
        done: files that were read wholly, without those that ``reconcile`` has forgotten.
        gone: those of them that were not in the last listing.
        partial: the file that is read in cuts: ``start`` is the next byte, ``end`` its size.
        remaining: of a bounded source, the unread files of its first listing; otherwise ``None``.
        folder: inode of the directory at the last listing; ``None`` if an older version wrote the position.
        columns: the columns that were taken from the first file, as Spark's JSON; ``None`` if they were declared.
        read: number of files that were ever read wholly, forgotten ones too; recorded with a lineage.
        lineage: of a source that removes its files, which positions have the same history; otherwise ``None``.
    """

    done: Mapping[str, FileSignature] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    partial: FileSlice | None = None
    remaining: Mapping[str, FileSignature] | None = None
    columns: Json = None
    folder: int | None = None
    read: int = 0
    lineage: str | None = None

    def has_read(self, name: str, signature: FileSignature) -> bool:
        """Whether the file was read wholly. A file that was gone and comes back changed is a new one."""
        return name in self.done and (name not in self.gone or self.done[name] == signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """How much a batch may hold, and how large files are cut.

    Attributes:
        files: most files.
        bytes: most bytes, if limited.
        split_bytes: larger files are read in cuts of that size.
        can_cut: whether the file of that name can be read in cuts.
    """

    files: int
    bytes: int | None
    split_bytes: int
    can_cut: Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFiles:
    """The next batch, empty if there is nothing to read, and the position after it."""

    slices: tuple[FileSlice, ...]
    position: FilesPosition


def is_finished(name: str) -> bool:
    """Whether a file or folder of that name is to be read: it is neither hidden nor still being written.

    >>> [is_finished(name) for name in ("a.json", "_SUCCESS", ".a.crc", "a.tmp", "a._COPYING_")]
    [True, False, False, False, False]
    """
    return not name.startswith(_UNFINISHED_START) and not name.endswith(_UNFINISHED_END)


def ordered(listing: Mapping[str, FileSignature]) -> list[tuple[str, FileSignature]]:
    """Files in the order of reading: by modification time, then by path."""
    return sorted(listing.items(), key=lambda item: (item[1].mtime_ns, item[0]))


def unread_files(
    listing: Mapping[str, FileSignature], position: FilesPosition, *, newest_ns: int | None = None
) -> list[tuple[str, FileSignature]]:
    """Files of a listing that were not begun, in the order of reading, without empty ones.

    Files that were modified after ``newest_ns`` may still be written: they are left out.
    """
    begun = position.partial.name if position.partial else None
    return ordered(
        {
            name: sig
            for name, sig in listing.items()
            if name != begun
            and sig.size > 0
            and (newest_ns is None or sig.mtime_ns <= newest_ns)
            and not position.has_read(name, sig)
        }
    )


def forget(position: FilesPosition, names: Collection[str]) -> FilesPosition:
    """The position without these done files: those that come back under their names are new ones."""
    if not names:
        return position
    forgotten = frozenset(names)
    done = {name: before for name, before in position.done.items() if name not in forgotten}
    return replace(position, done=done, gone=position.gone - forgotten)


# ---- files that are gone ---------------------------------------------------------------------------------------------
#
# A forgotten file that comes back is read again. An unmounted folder looks like an empty one, so that files which go
# away together are remembered as gone.


def files_expected(position: FilesPosition) -> Iterator[str]:
    """Names of the files that a directory must have, unless they were removed since the last listing."""
    yield from (name for name in position.done if name not in position.gone)
    if position.partial is not None:
        yield position.partial.name
    yield from position.remaining or ()


def has_lost_all(listing: Mapping[str, FileSignature], position: FilesPosition) -> bool:
    """Whether a directory had files at the listing before, and has none of them any more."""
    expected = files_expected(position)
    first = next(expected, None)
    return first is not None and first not in listing and not any(name in listing for name in expected)


def reconcile(
    listing: Mapping[str, FileSignature],
    position: FilesPosition,
    exists: Callable[[str], bool] = lambda _name: False,
) -> FilesPosition:
    """The position after a listing, once no file that it knows has changed.

    A file that is not listed is forgotten if another file of its folder is still there, or if its folder was removed
    and files near it are still there. If a folder has none of its files any more, these are *gone*: their signatures
    are kept until one of them comes back, or until those that came after them go away together too.

    Args:
        listing: the files that there are.
        position: after the listing before.
        exists: whether there is a file or folder of that name, listed or not; by default only what is listed.

    Raises:
        SourceChanged: a done file has changed, or the partly read file has changed or is gone.
    """
    for name, before in position.done.items():
        now = listing.get(name)
        if now is not None and now != before and name not in position.gone:
            raise file_changed(name, before, now, "was read")
    if position.partial is not None:
        now = listing.get(position.partial.name)
        if now != position.partial.signature:
            raise file_changed(position.partial.name, position.partial.signature, now, "is partly read")
    missing = position.done.keys() - listing.keys()
    if missing == position.gone and not any("/" in name for name in missing):
        return position
    forgotten = {name for name in _removed(listing, position, missing, exists) if not exists(name)}
    forgotten |= {name for name in position.gone - missing if position.done[name] != listing[name]}
    gone = frozenset(missing - forgotten)
    if not forgotten and gone == position.gone:
        return position
    return replace(position, done={name: s for name, s in position.done.items() if name not in forgotten}, gone=gone)


def _removed(
    listing: Mapping[str, FileSignature],
    position: FilesPosition,
    missing: AbstractSet[str],
    exists: Callable[[str], bool],
) -> Iterator[str]:
    """The missing files that must have been removed, since a folder that is not mounted would look otherwise."""
    kept = {_folder(name) for name in position.done if name not in position.gone and name in listing}
    back = {_folder(name) for name in position.gone - missing if position.done[name] == listing[name]}
    emptied = {_folder(name) for name in missing - position.gone} - kept
    by_folder: dict[str, list[str]] = {}
    for name in missing:
        by_folder.setdefault(_folder(name), []).append(name)
    for folder, names in by_folder.items():
        if _is_removed(folder, kept, exists):
            yield from names
            continue
        for name in names:
            proofs = back | emptied if name in position.gone else kept
            if folder in proofs:
                yield name


def _is_removed(folder: str, kept: AbstractSet[str], exists: Callable[[str], bool]) -> bool:
    """Whether a folder was removed: the one that held it still has files. An unmounted folder is there, and empty."""
    if not folder or not kept or exists(folder):
        return False
    while folder and not exists(folder):
        folder = _folder(folder)
    return not folder or any(f"{name}/".startswith(f"{folder}/") for name in kept)


def _folder(name: str) -> str:
    """The folder of a file; the directory itself is ``""``.

    >>> _folder("2026/01/a.json"), _folder("a.json")
    ('2026/01', '')
    """
    return name.rpartition("/")[0]


# ---- what to read next -----------------------------------------------------------------------------------------------


def backlog(
    listing: Mapping[str, FileSignature], position: FilesPosition, *, bounded: bool, newest_ns: int | None = None
) -> tuple[int, int]:
    """Number of files that wait, a partly read one included, and their unread bytes."""
    fixed = position.remaining if bounded else None  # a bounded source reads its first listing only
    files = unread_files(listing, position, newest_ns=newest_ns) if fixed is None else unread_files(fixed, position)
    partial = position.partial
    begun = 0 if partial is None else partial.end - partial.start
    return len(files) + (partial is not None), begun + sum(signature.size for _, signature in files)


def plan_next(
    position: FilesPosition, candidates: Iterable[tuple[str, FileSignature]], limits: FileLimits
) -> PlannedFiles:
    """The next batch: the next cut of the partly read file, or else whole files up to the limits.

    The first file is taken whole even if it is larger than ``limits.bytes``. A file that is larger than
    ``limits.split_bytes`` is cut, and a cut is a batch of its own.
    """
    if position.partial is not None:
        return _cut(position, position.partial, limits)
    taken: list[FileSlice] = []
    total = 0
    for name, signature in candidates:
        part = FileSlice(name=name, signature=signature, start=0, end=signature.size)
        if signature.size > limits.split_bytes and limits.can_cut(name):
            if taken:
                break
            return _cut(position, part, limits)
        if taken and limits.bytes is not None and total + signature.size > limits.bytes:
            break
        taken.append(part)
        total += signature.size
        if len(taken) >= limits.files:
            break
    return PlannedFiles(slices=tuple(taken), position=_finished(position, taken))


def _cut(position: FilesPosition, rest: FileSlice, limits: FileLimits) -> PlannedFiles:
    step = limits.split_bytes if limits.bytes is None else min(limits.split_bytes, limits.bytes)
    end = min(rest.end, rest.start + max(step, SMALLEST_CUT))
    part = replace(rest, end=end)
    if end == rest.end:
        return PlannedFiles(slices=(part,), position=_finished(replace(position, partial=None), [part]))
    return PlannedFiles(slices=(part,), position=replace(position, partial=replace(rest, start=end)))


def _finished(position: FilesPosition, slices: Sequence[FileSlice]) -> FilesPosition:
    if not slices:
        return position
    read = {part.name: part.signature for part in slices}
    remaining = position.remaining
    if remaining is not None:
        remaining = {name: s for name, s in remaining.items() if name not in read}
    done = {**position.done, **read}
    return replace(position, done=done, remaining=remaining, read=position.read + len(slices))


# ---- errors ----------------------------------------------------------------------------------------------------------


def file_changed(name: str, before: FileSignature, now: FileSignature | None, when: str) -> SourceChanged:
    """The error for a file that has changed or is gone; ``when`` is what had become of it before."""
    there, remedy = "Now it is gone" if now is None else f"Now it is {now}", "Put it back as it was"
    if now is not None and now.size == before.size:
        there += ": the same size, and another time"
        remedy += ", its time included (cp -p keeps it)"
    if when == "was listed at the first start":
        remedy += (
            ", or begin again with 'penstock run … --fresh', or read the folder without bounded: then files are read "
            "as they are"
        )
    elif when == "was planned":
        remedy += ", or start the job again: no checkpoint has the file yet, so it is read as it is then"
    elif when == "was read" and now is not None:
        remedy += (
            ". Or move it away for good, if the rows that were read of it are right: they stay, and new rows go into a "
            "file of another name. Or rewind to a checkpoint before it was read"
        )
    else:
        remedy += ", or rewind to a checkpoint before it was read"
    msg = (
        f"File {name!r} {when} as {before}. {there}. Reading on would lose or repeat rows. {remedy}. Files must arrive "
        "whole: write them under a name that begins with '_' or '.' or ends with '.tmp', then rename. Remove a file "
        "only after a checkpoint that has read it is complete, or let after_read do it."
    )
    return SourceChanged(msg)


def only_whole(name: str) -> GraphError:
    """The error for options under which a file could not be read on from its middle."""
    msg = (
        f"File {name!r} is partly read, as lines of UTF-8. With the option encoding or multiLine it could only be read "
        "from its beginning, and its rows would be repeated. Leave the option out until the file is read."
    )
    return GraphError(msg)


def file_unreadable(path: str, reason: str | None) -> SourceUnavailable:
    """The error for a file or folder that exists but cannot be read."""
    msg = (
        f"File {path!r} cannot be read ({reason or 'no reason given'}). Give this user, on all executors, the right to "
        "read it and to enter its folders, or mend the disk or mount it lies on."
    )
    return SourceUnavailable(msg)


def all_gone(path: str, position: FilesPosition) -> str:
    """What the directory at ``path`` has lost, in words."""
    names = sorted(files_expected(position))
    shown = ", ".join(repr(name) for name in names[:MOST_SHOWN])
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return f"Directory {path!r} has none of the files any more that were there before ({shown}{more})"


def folder_replaced(path: str, position: FilesPosition) -> SourceUnavailable:
    """The error for another directory than before, without any of the files that were in it."""
    msg = (
        f"{all_gone(path, position)}, and it is another directory than then. Probably it is not mounted. Mount it "
        "again, and reading goes on: nothing was forgotten. If its files were moved away and the directory was made "
        "anew, put one of them back, or give the source may_be_emptied=True."
    )
    return SourceUnavailable(msg)


# ---- positions as JSON -----------------------------------------------------------------------------------------------


def encode(position: FilesPosition) -> Position:
    """The position as a manifest holds it."""
    partial = position.partial
    part: Json = None
    if partial is not None:
        part = {"name": partial.name, "signature": _pair(partial.signature), "offset": partial.start}
    remaining = position.remaining
    detail: dict[str, Json] = {"done": {n: _pair(s) for n, s in sorted(position.done.items())}, "partial": part}
    if remaining is not None:
        detail["remaining"] = {n: _pair(s) for n, s in sorted(remaining.items())}
    # Older versions ignore what follows: to them the files that are gone are done, as they are here.
    if position.gone:
        detail["gone"] = [*sorted(position.gone)]
    if position.folder is not None:
        detail["folder"] = position.folder
    if position.columns is not None:
        detail["columns"] = position.columns
    if position.lineage is not None:
        detail["lineage"], detail["read"] = position.lineage, position.read
    return Position(kind=KIND, detail=detail)


def decode(position: Position) -> FilesPosition:
    """The inverse of ``encode``.

    Raises:
        StateIncompatible: another kind of source wrote the position, or this version cannot read it.
    """
    if position.kind != KIND:
        msg = (
            f"The position is of kind {position.kind!r}, but a files source reads {KIND!r}. Give the new source a uid "
            "of its own, or restore with the source that wrote it."
        )
        raise StateIncompatible(msg)
    detail: Any = position.detail
    try:
        part = detail["partial"]
        partial = None
        if part is not None:
            signature = FileSignature(*part["signature"])
            partial = FileSlice(name=part["name"], signature=signature, start=part["offset"], end=signature.size)
        done = {name: FileSignature(*pair) for name, pair in detail["done"].items()}
        rest = detail.get("remaining")
        remaining = None if rest is None else {name: FileSignature(*pair) for name, pair in rest.items()}
        gone, folder = frozenset(detail.get("gone", ())), detail.get("folder")
        columns = detail.get("columns")
        lineage, read = detail.get("lineage"), int(detail.get("read", 0))
    except (AttributeError, KeyError, TypeError) as error:
        msg = (
            f"The position of a files source cannot be read ({error!r}). It was written by another version of "
            "penstock. Start with that version, or rewind to another checkpoint."
        )
        raise StateIncompatible(msg) from error
    return FilesPosition(
        done=done,
        gone=gone & done.keys(),
        partial=partial,
        remaining=remaining,
        folder=folder,
        columns=columns,
        read=read,
        lineage=lineage,
    )


def _pair(signature: FileSignature) -> list[int]:
    return [signature.size, signature.mtime_ns]
