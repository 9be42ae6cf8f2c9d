"""What to read next from a listing of files, as pure decisions; touches no disk, no clock and no Spark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import SourceChanged, SourceUnavailable, StateIncompatible
from penstock.handles import Json, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

KIND: Final = "files/1"
SMALLEST_CUT: Final = 64 * 1024
"""A cut of a big file is never smaller, or a long row would be searched for again and again."""
COMPRESSED: Final = (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst", ".xz")
"""Endings of files that can only be read from their beginning."""
_UNFINISHED_START = ("_", ".")
_UNFINISHED_END = (".tmp", "._COPYING_")


@dataclass(frozen=True, slots=True, order=True)
class FileSignature:
    """What tells one content of a file from another: its size in bytes and its modification time in nanoseconds."""

    size: int
    mtime_ns: int

    def __str__(self) -> str:
        return f"{self.size} bytes, modified at {self.mtime_ns} ns"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """The part of a file that begins at byte ``start`` and ends before ``end``; it owns what *begins* in it."""

    name: str
    signature: FileSignature
    start: int
    end: int

    @property
    def whole(self) -> bool:
        """Whether nothing of the file is left out."""
        return self.start == 0 and self.end == self.signature.size


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesPosition:
    """What was read so far.

    Attributes:
        done: files wholly read and still there when last listed.
        partial: the file being read in cuts: ``start`` is the next byte, ``end`` its size.
        remaining: of a bounded source, what is still to be read of the listing it was started with; else ``None``.
    """

    done: Mapping[str, FileSignature] = field(default_factory=dict)
    partial: FileSlice | None = None
    remaining: Mapping[str, FileSignature] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """How much a batch may hold. ``cuttable`` says of a name whether the file can be read in cuts."""

    files: int
    bytes: int | None
    split_bytes: int
    cuttable: Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFiles:
    """The next batch, empty if there is nothing to read, and the progress after it."""

    slices: tuple[FileSlice, ...]
    progress: FilesPosition


def is_finished(name: str) -> bool:
    """Whether a file or folder of that name is meant to be read: neither hidden nor still being written.

    >>> [is_finished(name) for name in ("a.json", "_SUCCESS", ".a.crc", "a.tmp", "a._COPYING_")]
    [True, False, False, False, False]
    """
    return not name.startswith(_UNFINISHED_START) and not name.endswith(_UNFINISHED_END)


def ordered(listing: Mapping[str, FileSignature]) -> list[tuple[str, FileSignature]]:
    """Files in the order of reading: by modification time, then by path."""
    return sorted(listing.items(), key=lambda item: (item[1].mtime_ns, item[0]))


def unread_files(listing: Mapping[str, FileSignature], progress: FilesPosition) -> list[tuple[str, FileSignature]]:
    """Files of a listing that were not begun, in the order of reading. An empty file waits until it has content."""
    begun = progress.partial.name if progress.partial else None
    return ordered(
        {n: s for n, s in listing.items() if n not in progress.done and n != begun and s.size > 0},
    )


def reconcile(listing: Mapping[str, FileSignature], progress: FilesPosition) -> FilesPosition:
    """Compare what was read with what is there: done files that are gone are forgotten, changed ones are an error.

    Raises:
        SourceChanged: a done file changed; the file being read changed or is gone.
    """
    for name, before in progress.done.items():
        now = listing.get(name)
        if now is not None and now != before:
            raise file_changed(name, before, now, "was read")
    if progress.partial is not None:
        now = listing.get(progress.partial.name)
        if now != progress.partial.signature:
            raise file_changed(progress.partial.name, progress.partial.signature, now, "is partly read")
    if all(name in listing for name in progress.done):
        return progress
    return replace(progress, done={name: s for name, s in progress.done.items() if name in listing})


def backlog(listing: Mapping[str, FileSignature], progress: FilesPosition, *, bounded: bool) -> tuple[int, int]:
    """How many files wait, the one that is partly read included, and how many bytes of them.

    Raises:
        SourceChanged: what was read is no longer what it was.
    """
    progress = reconcile(listing, progress)
    fixed = progress.remaining if bounded else None  # what is there at its first start is all that a bounded one reads
    files = unread_files(listing if fixed is None else fixed, progress)
    partial = progress.partial
    begun = 0 if partial is None else partial.end - partial.start
    return len(files) + (partial is not None), begun + sum(signature.size for _, signature in files)


def plan_next(
    progress: FilesPosition, candidates: Iterable[tuple[str, FileSignature]], caps: FileLimits
) -> PlannedFiles:
    """The next batch: the next cut of the file that was begun, else whole files while under the caps.

    The first file is taken whole even if it alone is over ``caps.bytes``, unless it is larger than
    ``caps.split_bytes``: then it is cut, and a cut is a batch of its own.
    """
    if progress.partial is not None:
        return _cut(progress, progress.partial, caps)
    taken: list[FileSlice] = []
    total = 0
    for name, signature in candidates:
        part = FileSlice(name=name, signature=signature, start=0, end=signature.size)
        if signature.size > caps.split_bytes and caps.cuttable(name):
            if taken:
                break
            return _cut(progress, part, caps)
        if taken and caps.bytes is not None and total + signature.size > caps.bytes:
            break
        taken.append(part)
        total += signature.size
        if len(taken) >= caps.files:
            break
    return PlannedFiles(slices=tuple(taken), progress=_finished(progress, taken))


def _cut(progress: FilesPosition, rest: FileSlice, caps: FileLimits) -> PlannedFiles:
    step = caps.split_bytes if caps.bytes is None else min(caps.split_bytes, caps.bytes)
    end = min(rest.end, rest.start + max(step, SMALLEST_CUT))
    part = replace(rest, end=end)
    if end == rest.end:
        return PlannedFiles(slices=(part,), progress=_finished(replace(progress, partial=None), [part]))
    return PlannedFiles(slices=(part,), progress=replace(progress, partial=replace(rest, start=end)))


def _finished(progress: FilesPosition, slices: Sequence[FileSlice]) -> FilesPosition:
    if not slices:
        return progress
    read = {part.name: part.signature for part in slices}
    remaining = progress.remaining
    if remaining is not None:
        remaining = {name: s for name, s in remaining.items() if name not in read}
    return replace(progress, done={**progress.done, **read}, remaining=remaining)


def file_changed(name: str, before: FileSignature, now: FileSignature | None, when: str) -> SourceChanged:
    """The error for a file that is no longer what it was."""
    there = f"now it is {now}" if now is not None else "now it is gone"
    msg = (
        f"file {name!r} {when} as {before}; {there}. Reading on would lose or repeat rows. Put it back as it was, or "
        "rewind to a checkpoint before it was read. Files must arrive whole: write them under a name that begins with "
        "'_' or '.' or ends with '.tmp', then rename; new content goes into a new file; remove a file only after a "
        "checkpoint that has read it is complete"
    )
    return SourceChanged(msg)


def file_unreadable(path: str, reason: str | None) -> SourceUnavailable:
    """The error for a file or folder that is there and cannot be read."""
    msg = (
        f"{path!r} cannot be read ({reason or 'no reason given'}): give this user, on all executors, the right to read "
        "it and to enter its folders, or mend the disk or mount it lies on"
    )
    return SourceUnavailable(msg)


def encode(progress: FilesPosition) -> Position:
    """Progress as a position that a manifest can hold."""
    partial = progress.partial
    part: Json = None
    if partial is not None:
        part = {"name": partial.name, "signature": _pair(partial.signature), "offset": partial.start}
    remaining = progress.remaining
    detail: dict[str, Json] = {"done": {n: _pair(s) for n, s in sorted(progress.done.items())}, "partial": part}
    if remaining is not None:
        detail["remaining"] = {n: _pair(s) for n, s in sorted(remaining.items())}
    return Position(kind=KIND, detail=detail)


def decode(position: Position) -> FilesPosition:
    """The inverse of :func:`encode`.

    Raises:
        StateIncompatible: the position was made by another kind of source, or is not what this version writes.
    """
    if position.kind != KIND:
        msg = (
            f"the position is of kind {position.kind!r}, a files source reads {KIND!r}: give the new source a uid of "
            "its own, or restore with the source that wrote it"
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
    except (AttributeError, KeyError, TypeError) as error:
        msg = (
            f"the position of a files source cannot be read ({error!r}): it was written by another version of penstock"
        )
        raise StateIncompatible(msg) from error
    return FilesPosition(done=done, partial=partial, remaining=remaining)


def _pair(signature: FileSignature) -> list[int]:
    return [signature.size, signature.mtime_ns]
