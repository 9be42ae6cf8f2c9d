"""Idempotency keys of requests whose rows are in blocks: which are known, until when, and where they are kept (G5).

A block carries the keys of the requests whose rows it holds, so a request is stored with its key or not at all. Before
blocks are deleted, their keys are written to a file of keys. A start reads these files and the blocks that they do not
cover. No checkpoint holds keys: a rewind forgets none.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from penstock.checkpoint import paths
from penstock.checkpoint.merged_blocks import BlockFiles, BlockFolder
from penstock.errors import CheckpointUnreadable, StorageFailed
from penstock.failpoints import failpoint
from penstock.filesystem.base import Created, FileSystem, UnknownOutcome
from penstock.handles import BlockId, Generation, KeyLimits, RequestKey

# ---- the format -----------------------------------------------------------------------------------------------------

_TRAILER: Final = struct.Struct("<32sQ8s")
_MARK: Final = b"penstkey"
_HEADING: Final = b"penstock keys/1\n"
"""Beginning of a file of keys."""
_BEGINNING: Final = b'{"keys":'
"""Beginning of the text of keys."""


def with_keys(data: bytes, keys: Sequence[RequestKey], covered: BlockId | None = None) -> bytes:
    """The bytes followed by keys, and by a checksum of both; without keys the bytes alone."""
    if not keys and covered is None:
        return data
    document: dict[str, object] = {"keys": [[each.key, each.digest, each.rows, each.bad, each.at] for each in keys]}
    if covered is not None:
        document["covered"] = [covered.generation, covered.number]
    section = json.dumps(document, separators=(",", ":")).encode()
    return data + section + _TRAILER.pack(sha256(data + section).digest(), len(section), _MARK)


def split_keys(content: bytes, place: str) -> tuple[bytes, tuple[RequestKey, ...]]:
    """The bytes and the keys that ``with_keys`` has put together; ``place`` is where they lie.

    >>> split_keys(with_keys(b"rows", [RequestKey("a", "1f", 2, 0, 7)]), "here")
    (b'rows', (RequestKey(key='a', digest='1f', rows=2, bad=0, at=7),))

    Raises:
        CheckpointUnreadable: the checksum is wrong.
    """
    data, document = _split(content, place)
    return data, _keys_of(document)


def _split(content: bytes, place: str) -> tuple[bytes, dict[str, list[list[str | int]]]]:
    if content[-len(_MARK) :] != _MARK or len(content) < _TRAILER.size:
        return content, {"keys": []}
    digest, length, _ = _TRAILER.unpack(content[-_TRAILER.size :])
    whole = content[: -_TRAILER.size]
    start = whole.rfind(_BEGINNING)  # quotes within the text are escaped, so the last one is where it begins
    if sha256(whole).digest() != digest or length != len(whole) - start:  # the checksum does not have the length
        raise _damaged(place)
    return whole[:start], json.loads(whole[start:])


def _keys_of(document: dict[str, list[list[str | int]]]) -> tuple[RequestKey, ...]:
    return tuple(
        RequestKey(str(key), str(digest), int(rows), int(bad), int(at))
        for key, digest, rows, bad, at in document["keys"]
    )


def decode_key_file(content: bytes, place: str) -> tuple[BlockId, tuple[RequestKey, ...]]:
    """The first block that a file of keys does not cover, and its keys.

    Raises:
        CheckpointUnreadable: it is not what was written.
    """
    heading, document = _split(content, place)
    covered: Sequence[object] = document.get("covered", ())
    if heading != _HEADING or len(covered) != 2:  # noqa: PLR2004 - generation and number
        raise _damaged(place)
    generation, number = (int(str(each)) for each in covered)
    return BlockId(Generation(generation), number), _keys_of(document)


def key_file_content(keys: Sequence[RequestKey], *, covered: BlockId) -> bytes:
    """The bytes of a file with these keys; ``covered`` is the first block whose keys are not in files."""
    return with_keys(_HEADING, keys, covered)


def _damaged(place: str) -> CheckpointUnreadable:
    msg = (
        f"{place} is damaged: its checksum is wrong. It says which requests were stored, so that none is stored twice. "
        "Restore the file from a copy."
    )
    return CheckpointUnreadable(msg)


# ---- decisions ------------------------------------------------------------------------------------------------------


class KeyIndex:
    """The keys that are known, in memory. A key is forgotten when its horizon ends.

    >>> index = KeyIndex(KeyLimits(horizon=10, most=2))
    >>> index.add([RequestKey("a", "1f", 2, 0, at=5)])
    >>> index.find("a", 14) is None, index.find("a", 15) is None
    (False, True)
    """

    def __init__(self, limits: KeyLimits) -> None:
        self._limits = limits
        self._keys: dict[str, RequestKey] = {}  # nearly in the order of their times

    def add(self, keys: Iterable[RequestKey]) -> None:
        """Know these keys too."""
        for each in keys:
            self._keys.pop(each.key, None)
            self._keys[each.key] = each

    def find(self, key: str, now: int) -> RequestKey | None:
        """A key whose horizon has not ended."""
        found = self._keys.get(key)
        return found if found is not None and self.is_kept(found, now) else None

    def is_kept(self, key: RequestKey, now: int) -> bool:
        """Whether the horizon of a key has not ended."""
        return now < key.at + self._limits.horizon

    def has_room(self, now: int, in_flight: int = 0) -> bool:
        """Whether one more key may be taken."""
        while self._keys and not self.is_kept(first := next(iter(self._keys.values())), now):
            del self._keys[first.key]
        return len(self._keys) + in_flight < self._limits.most


def merged_with(sizes: Sequence[int], new: int) -> int:
    """How many of the newest files of keys go into one with ``new`` keys, so that there are few files and few copies.

    >>> merged_with([100, 3, 2], 1), merged_with([100, 3, 2], 60), merged_with([], 5)
    (2, 3, 0)
    """
    count = 0
    while count < len(sizes) and sizes[-1 - count] <= 2 * new:
        count += 1
        new += sizes[-count]
    return count


# ---- the keys of one source ------------------------------------------------------------------------------------------

_BLOCKS_PER_FILE: Final = 64
"""After so many blocks without a key a file is written all the same: a start does not read them again."""


@dataclass(frozen=True, slots=True)
class _KeyFile:
    """A file of keys, and what it holds."""

    id: BlockId
    keys: tuple[RequestKey, ...]


class RequestKeys:
    """The keys of one source under one claim. One thread adds keys, another writes files; any may ask.

    Args:
        uid: of the source.
        generation: of our claim.
        filesystem: rooted at the job's directory.
        limits: how long keys are known, and how many.
    """

    def __init__(self, uid: str, generation: Generation, filesystem: FileSystem, limits: KeyLimits) -> None:
        self._uid = uid
        self._generation = generation
        self._filesystem = filesystem
        self._index = KeyIndex(limits)
        self._lock = threading.Lock()
        self._files: list[_KeyFile] = []  # oldest first
        self._next_file = 0
        self._saved = self._covered = BlockId(Generation(0), 0)
        self._new_blocks = 0
        self._unsaved: list[RequestKey] = []
        self._now = 0
        self._is_tidy = False

    def rebuild(self, seal: bytes) -> None:
        """Read the files of keys, and the keys of all blocks behind them. Older generations are sealed.

        Raises:
            CheckpointUnreadable: one of them is damaged.
        """
        while not self._read_all(seal):
            pass  # a process that was paused has deleted what it had copied before: it can do so once
        self._index.add(sorted(self.known(), key=lambda key: key.at))

    def _read_all(self, seal: bytes) -> bool:
        """``False`` if a file that was listed is not there."""
        listed = self._filesystem.list(f"{paths.WAL}/{self._uid}")
        self._files, self._unsaved = [], []
        covered = BlockId(Generation(0), 0)
        for path in listed:
            if (file := paths.key_file_id(path)) is not None:
                content = self._filesystem.read(path)
                if content is None:
                    return False
                until, keys = decode_key_file(content, path)
                self._files.append(_KeyFile(file, keys))
                covered = max(covered, until)
        self._files.sort(key=lambda each: each.id)
        # An import has put a file there under our own generation.
        self._next_file = sum(each.id.generation == self._generation for each in self._files)
        blocks = sorted(block for block in BlockFolder.of(listed).blocks if block >= covered)
        files = BlockFiles(self._uid, self._filesystem)
        for block in blocks:
            content = files.read(block)
            if content is None:
                return False
            if content != seal:
                self._unsaved += split_keys(content, paths.block(self._uid, block))[1]
        self._new_blocks = len(blocks)
        self._saved = covered
        self._covered = BlockId(self._generation, 0)
        return True

    def known(self) -> list[RequestKey]:
        """All keys that were read, also those whose horizon has ended."""
        return [key for each in self._files for key in each.keys] + self._unsaved

    def add(self, block: BlockId, keys: Sequence[RequestKey]) -> None:
        """Know the keys of a block of our own, which is durable."""
        with self._lock:
            self._index.add(keys)
            self._unsaved += keys
            self._new_blocks += 1
            self._covered = BlockId(block.generation, block.number + 1)

    def find(self, key: str, now: int) -> RequestKey | None:
        """A key whose rows are in a block, unless its horizon has ended."""
        with self._lock:
            self._now = max(self._now, now)
            return self._index.find(key, now)

    def has_room(self, now: int, in_flight: int) -> bool:
        """Whether one more key may be taken."""
        with self._lock:
            self._now = max(self._now, now)
            return self._index.has_room(now, in_flight)

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self) -> BlockId:
        """Write the keys of all blocks so far into a file, if there are some; returns the first block not covered.

        Blocks before that one may be deleted.

        Raises:
            StorageFailed: it was not written, or that is not known. No block may be deleted.
        """
        with self._lock:
            unsaved, covered, blocks = list(self._unsaved), self._covered, self._new_blocks
            now = self._now
        if not unsaved and blocks < _BLOCKS_PER_FILE:
            return self._saved
        sizes = [1 + len(each.keys) for each in self._files]
        merged = self._files[len(self._files) - merged_with(sizes, 1 + len(unsaved)) :]
        keys = [*(key for each in merged for key in each.keys), *unsaved]
        kept = tuple(key for key in keys if self._index.is_kept(key, now))
        file = _KeyFile(BlockId(self._generation, self._next_file), kept)
        self._next_file += 1  # a number whose outcome is not known is not used again
        self._create(file, covered)
        failpoint("received.keys.written")
        self._files.append(file)
        self._saved, self._is_tidy = covered, False
        with self._lock:
            del self._unsaved[: len(unsaved)]
            self._new_blocks -= blocks
        return covered

    def _create(self, file: _KeyFile, covered: BlockId) -> None:
        path = paths.key_file(self._uid, file.id)
        try:
            created = self._filesystem.create(path, key_file_content(file.keys, covered=covered))
        except UnknownOutcome as error:
            msg = f"Whether {path} is durable is not known. Blocks stay until the next file of keys is written."
            raise StorageFailed(msg, uid=self._uid) from error
        if created is Created.EXISTS:
            msg = f"{path} was written by another process. Blocks stay until the next file of keys is written."
            raise StorageFailed(msg, uid=self._uid)

    def merged(self) -> list[str]:
        """The files whose keys are in the newest one too, or have ended: they may be deleted."""
        if self._is_tidy or not self._files:
            return []
        self._is_tidy = True
        *older, newest = self._files
        held = {key.key for key in newest.keys}
        doomed = [
            each
            for each in older
            if all(key.key in held or not self._index.is_kept(key, self._now) for key in each.keys)
        ]
        self._files = [each for each in older if each not in doomed] + [newest]
        return [paths.key_file(self._uid, each.id) for each in doomed]


def every_key(folder: str, filesystem: FileSystem, seal: bytes) -> list[RequestKey]:
    """The keys of all requests in a folder, oldest first, each once.

    Raises:
        CheckpointUnreadable: a file of keys or a block is damaged.
    """
    reader = RequestKeys(folder, Generation(0), filesystem, KeyLimits(horizon=0, most=0))
    reader.rebuild(seal)
    by_name = {key.key: key for key in sorted(reader.known(), key=lambda key: key.at)}
    return sorted(by_name.values(), key=lambda key: key.at)
