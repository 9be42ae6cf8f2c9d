"""Files of dead letters: their sink, ranges of their rows, and replays that name them.

::

    deadletters/<uid>/part-<log>-<uid>-<checkpoint>-<generation>-<number>.parquet  rows, published as by a files sink
    deadletters/<uid>/_replays/00000000000000000001.json                           which of them are to be read again
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.clock import WallTime
from penstock.connectors.files.sink import Sink
from penstock.errors import StateIncompatible
from penstock.handles import CheckpointId, Guarantee

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import StructType

    from penstock.connectors.files.sink import FilesWriter
    from penstock.filesystem.base import FileSystem
    from penstock.interfaces.sink import SinkContext


FOLDER: Final = "deadletters"
"""Folder below the job's directory; the garbage collector never looks into it."""
REPLAYS: Final = "_replays"
"""Folder of replays, below the folder of their dead letters."""
RAW_ROW: Final = "record"
"""The column of a letter that has the row as it was."""
MOST_LETTERS: Final = 10_000
"""Largest number of letters of one replay."""  # a replay is one batch of its source
MOST_BYTES: Final = 16 * 1024 * 1024
"""Largest size of a replay: its share of the bytes of its compressed files."""
_FORMAT: Final = 1

# ---- ranges of rows -------------------------------------------------------------------------------------------------

RowRanges: TypeAlias = tuple[tuple[int, int], ...]
"""Rows of a file as half-open ranges, sorted, without overlaps."""


def ranges_of(rows: Iterable[int]) -> RowRanges:
    """Single rows as ranges.

    >>> ranges_of([4, 0, 1, 2])
    ((0, 3), (4, 5))
    """
    return merge_ranges((row, row + 1) for row in rows)


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> RowRanges:
    """Ranges that may overlap, as ranges that do not.

    >>> merge_ranges([(5, 9), (0, 2), (2, 6)])
    ((0, 9),)
    """
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif start < end:
            found.append((start, end))
    return tuple(found)


def subtract_ranges(ranges: RowRanges, removed: RowRanges) -> RowRanges:
    """The rows of ``ranges`` that are not in ``removed``.

    >>> subtract_ranges(((0, 10),), ((2, 4), (9, 12)))
    ((0, 2), (4, 9))
    """
    left: list[tuple[int, int]] = []
    for start, end in ranges:
        at = start
        for first, last in removed:
            if last <= at or first >= end:
                continue
            if first > at:
                left.append((at, first))
            at = max(at, last)
        if at < end:
            left.append((at, end))
    return tuple(left)


def intersect_ranges(ranges: RowRanges, others: RowRanges) -> RowRanges:
    """The rows that are in both.

    >>> intersect_ranges(((0, 10),), ((2, 4), (9, 12)))
    ((2, 4), (9, 10))
    """
    return subtract_ranges(ranges, subtract_ranges(ranges, others))


def count_rows(ranges: RowRanges) -> int:
    """The number of rows."""
    return sum(end - start for start, end in ranges)


def take_first(ranges: RowRanges, most: int) -> Iterator[tuple[RowRanges, RowRanges]]:
    """Portions of at most ``most`` rows, each with the rows that are left after it.

    >>> [first for first, _ in take_first(((0, 3), (7, 9)), 2)]
    [((0, 2),), ((2, 3), (7, 8)), ((8, 9),)]
    """
    while ranges:
        first: list[tuple[int, int]] = []
        room = most
        for start, end in ranges:
            if room == 0:
                break
            first.append((start, min(end, start + room)))
            room -= first[-1][1] - start
        ranges = subtract_ranges(ranges, tuple(first))
        yield tuple(first), ranges


# ---- the sink -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadLetterSink:
    """Parquet files next to the job's state, a few for each checkpoint that has dead letters. Exactly-once.

    Args:
        folder: address of the files; ``None`` until a job sets it.
    """

    folder: str | None = None

    def placed(self, folder: str) -> DeadLetterSink:
        """The same sink with files in ``folder``.

        Raises:
            GraphError: no files can be published there.
        """
        _files(folder)
        return replace(self, folder=folder)

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once, as of any files sink."""
        return Guarantee.EXACTLY_ONCE

    @property
    def accepts_changes(self) -> bool:
        """Rows are kept as they come."""
        return True

    @property
    def committers(self) -> Mapping[str, str]:
        """Those of any files sink."""
        return _files("/").committers

    def check(self, schema: StructType) -> None:
        """Refuse columns that no file can hold.

        Raises:
            GraphError: with the column and the remedy.
        """
        _files(self.folder or "/").check(schema)

    def check_log(self, log_id: str | None, uid: str) -> None:
        """Check that no job of another log has kept dead letters there.

        Raises:
            SinkIdentityConflict: one has.
        """
        self._placed().check_log(log_id, uid)

    def writer(self, context: SinkContext) -> FilesWriter:
        """A writer that stages next to the folder, in a folder of its generation."""
        return self._placed().writer(context)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:
        """The staging folder next to the files."""
        return self._placed().stages_in(log_id, uid)

    def describe(self) -> str:
        """The sink, for people."""
        return f"dead letters {self.folder}" if self.folder else "dead letters"

    def _placed(self) -> Sink:
        assert self.folder is not None  # a job sets it before it opens anything
        return _files(self.folder)


def _files(folder: str) -> Sink:
    return Sink(folder, format="parquet")


# ---- replays --------------------------------------------------------------------------------------------------------
# A dead letter is identified by its file, whose name is never used again, and its row in it. A replay names letters
# and holds none. Replays of a dead letter queue are numbered from 1 without gaps, created if absent and never changed.
# So two commands cannot both name a letter, and a source's position among the replays is a number.


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterRange:
    """Some letters of one file.

    Attributes:
        file: name of the file.
        ranges: rows of the file.
    """

    file: str
    ranges: RowRanges

    @property
    def rows(self) -> int:
        """The number of letters."""
        return count_rows(self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Letters that a source is to read again, once.

    Attributes:
        number: its number among the replays of its dead letters, from 1.
        command: random, the same in all replays that one command wrote.
        uid: of the dead letters.
        source: uid of the source that reads them.
        after: the newest checkpoint when it was written. Letters that come of it belong to a later one.
        at: when it was written, for people.
        by: who wrote it, for people.
        letters: the letters.
    """

    number: int
    command: str
    uid: str
    source: str
    after: CheckpointId
    at: WallTime
    by: str
    letters: tuple[LetterRange, ...]

    @property
    def rows(self) -> int:
        """The number of letters."""
        return sum(each.rows for each in self.letters)


def replay_path(uid: str, number: int) -> str:
    """The path of a replay below the job's directory.

    >>> replay_path("bad-orders", 1)
    'deadletters/bad-orders/_replays/00000000000000000001.json'
    """
    return f"{FOLDER}/{uid}/{REPLAYS}/{number:020d}.json"


def checkpoint_of(uid: str, file: str) -> CheckpointId | None:
    """The checkpoint that a file of letters was prepared for; ``None`` if the name is not that of a letter file.

    >>> checkpoint_of("bad-orders", "part-5f1c3a7e-bad-orders-42-7-00.parquet")
    42
    """
    found = _name(uid).fullmatch(file)
    return CheckpointId(int(found[2])) if found else None


def log_of(uid: str, file: str) -> str:
    """The first characters of the id of a letter file's log; empty if the name is not that of a letter file.

    >>> log_of("bad-orders", "part-5f1c3a7e-bad-orders-42-7-00.parquet")
    '5f1c3a7e'
    """
    found = _name(uid).fullmatch(file)
    return found[1] if found else ""


def _name(uid: str) -> re.Pattern[str]:
    return re.compile(rf"part-(.+?)-{re.escape(uid)}-(\d+)-\d+-\d+\..*parquet")


def read_replay(filesystem: FileSystem, uid: str, number: int) -> Replay | None:
    """The replay of this number, or ``None`` if there is none yet.

    Raises:
        StateIncompatible: the file is no replay of this version.
    """
    data = filesystem.read(replay_path(uid, number))
    return None if data is None else decode_replay(data, replay_path(uid, number))


def replay_numbers(filesystem: FileSystem, uid: str) -> tuple[int, ...]:
    """The numbers of all replays, sorted."""
    names = (path.rpartition("/")[2].partition(".") for path in filesystem.list(f"{FOLDER}/{uid}/{REPLAYS}"))
    return tuple(sorted(int(name) for name, _, end in names if end == "json" and name.isdecimal()))


def encode_replay(replay: Replay) -> bytes:
    """The bytes of a replay's file."""
    document = {
        "format": _FORMAT,
        "number": replay.number,
        "command": replay.command,
        "uid": replay.uid,
        "source": replay.source,
        "after": replay.after,
        "at": replay.at,
        "by": replay.by,
        "rows": replay.rows,
        "letters": {each.file: [list(pair) for pair in each.ranges] for each in replay.letters},
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def decode_replay(data: bytes, path: str) -> Replay:
    """The replay of these bytes; fields that this version does not know are ignored.

    Raises:
        StateIncompatible: they are no replay of this version.
    """
    try:
        document: Any = json.loads(data)
        version = document["format"]
        if version != _FORMAT:
            msg = f"{path} is of format {version}, but this penstock knows {_FORMAT}. Use the version that wrote it."
            raise StateIncompatible(msg)
        letters = tuple(
            LetterRange(file=file, ranges=tuple((int(start), int(end)) for start, end in ranges))
            for file, ranges in document["letters"].items()
        )
        return Replay(
            number=document["number"],
            command=document["command"],
            uid=document["uid"],
            source=document["source"],
            after=CheckpointId(document["after"]),
            at=WallTime(document["at"]),
            by=document["by"],
            letters=letters,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{path} is no replay of dead letters ({error!r}). Put it back as it was written."
        raise StateIncompatible(msg) from error
