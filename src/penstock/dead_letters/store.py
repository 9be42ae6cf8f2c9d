"""The files: sink, replays, row ranges."""

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
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

    from penstock.connectors.files.sink import FilesWriter
    from penstock.filesystem.base import FileSystem
    from penstock.interfaces.sink import SinkContext


# ----------------------------------------------------------------------------------------------------
# Places in a file as ranges: pairs of a first and the one behind the last, sorted and apart. Pure.

RowRanges: TypeAlias = tuple[tuple[int, int], ...]


def ranges_of(places: Iterable[int]) -> RowRanges:
    """Single places as ranges.

    >>> ranges_of([4, 0, 1, 2])
    ((0, 3), (4, 5))
    """
    return merge_ranges((place, place + 1) for place in places)


def merge_ranges(spans: Iterable[tuple[int, int]]) -> RowRanges:
    """Ranges that may overlap, as ranges that do not.

    >>> merge_ranges([(5, 9), (0, 2), (2, 6)])
    ((0, 9),)
    """
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif start < end:
            found.append((start, end))
    return tuple(found)


def subtract_ranges(spans: RowRanges, gone: RowRanges) -> RowRanges:
    """What is left of ranges.

    >>> subtract_ranges(((0, 10),), ((2, 4), (9, 12)))
    ((0, 2), (4, 9))
    """
    left: list[tuple[int, int]] = []
    for start, end in spans:
        at = start
        for first, last in gone:
            if last <= at or first >= end:
                continue
            if first > at:
                left.append((at, first))
            at = max(at, last)
        if at < end:
            left.append((at, end))
    return tuple(left)


def intersect_ranges(spans: RowRanges, others: RowRanges) -> RowRanges:
    """What is in both.

    >>> intersect_ranges(((0, 10),), ((2, 4), (9, 12)))
    ((2, 4), (9, 10))
    """
    return subtract_ranges(spans, subtract_ranges(spans, others))


def count_rows(spans: RowRanges) -> int:
    """How many places."""
    return sum(end - start for start, end in spans)


def take_first(spans: RowRanges, most: int) -> Iterator[tuple[RowRanges, RowRanges]]:
    """The first so many places, and the rest; again until nothing is left.

    >>> [first for first, _ in take_first(((0, 3), (7, 9)), 2)]
    [((0, 2),), ((2, 3), (7, 8)), ((8, 9),)]
    """
    while spans:
        first: list[tuple[int, int]] = []
        room = most
        for start, end in spans:
            if room == 0:
                break
            first.append((start, min(end, start + room)))
            room -= first[-1][1] - start
        spans = subtract_ranges(spans, tuple(first))
        yield tuple(first), spans


# ----------------------------------------------------------------------------------------------------
# Rows that a pipeline gives up on, kept beside the job's state: a files sink whose place the job says.


@dataclass(frozen=True, slots=True)
class DeadLetterSink:
    """Parquet files, a few for each checkpoint that has such rows. Exactly-once.

    Args:
        folder: where, once a job says it.
    """

    folder: str | None = None

    def placed(self, folder: str) -> DeadLetterSink:
        """The same at a place.

        Raises:
            GraphError: no files can be published there.
        """
        _files(folder)
        return replace(self, folder=folder)

    @property
    def guarantee(self) -> Guarantee:
        """As of any files sink."""
        return Guarantee.EXACTLY_ONCE

    @property
    def accepts_changes(self) -> bool:
        """Rows are kept as they come."""
        return True

    def check(self, schema: StructType) -> None:
        """Refuse columns that no file can hold.

        Raises:
            GraphError: with the column and the remedy.
        """
        _files(self.folder or "/").check(schema)

    def writer(self, context: SinkContext) -> FilesWriter:
        """A writer that stages beside the place, in a folder of this generation."""
        return self._placed().writer(context)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:
        """Below the place."""
        return self._placed().stages_in(log_id, uid)

    def describe(self) -> str:
        """For people."""
        return f"dead letters {self.folder}" if self.folder else "dead letters"

    def _placed(self) -> Sink:
        assert self.folder is not None  # a job says where before it opens anything
        return _files(self.folder)


def _files(folder: str) -> Sink:
    return Sink(folder, format="parquet")


# ----------------------------------------------------------------------------------------------------
# Where dead letters lie below a job's directory, and replays of them as write-once files; knows no Spark and no log.
#
# ::
#
#     deadletters/<uid>/part-<log>-<uid>-<checkpoint>-<generation>-<number>.parquet  rows, published as by a files sink
#     deadletters/<uid>/_replays/00000000000000000001.json                           which of them are to be read again
#
# A dead letter has no identity but its file, whose name is never used again, and its place in it. A replay names
# letters and holds none. Replays of a place are numbered from 1 without gaps, created if absent and never changed: so
# two commands cannot both name a letter, and a source's position among them is a number.

FOLDER: Final = "deadletters"
"""Below the job's directory; the collector never looks into it."""
REPLAYS: Final = "_replays"
RAW_ROW: Final = "record"
"""The column of a letter that has the row as it was."""
MOST_LETTERS: Final = 10_000
"""Letters of one replay: they are one batch of the source."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""Of the compressed files that these are in, by their share."""
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterRange:
    """Some letters of one file.

    Attributes:
        file: its name.
        ranges: places in the file, as pairs of the first and the one behind the last; sorted, apart.
    """

    file: str
    ranges: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> int:
        """How many letters these are."""
        return sum(end - start for start, end in self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Letters that a source is to read again, once.

    Attributes:
        number: its place among the replays of its dead letters, from 1.
        command: random, the same in all replays that one command wrote.
        uid: of the dead letters.
        source: which reads them.
        after: the newest checkpoint when it was written: a letter that it leads to is of a later one.
        at: when, in microseconds since 1970; for people.
        by: who; for people.
        letters: which.
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
        """How many letters these are."""
        return sum(each.rows for each in self.letters)


def replay_path(uid: str, number: int) -> str:
    """Where a replay lies below the job's directory.

    >>> replay_path("bad-orders", 1)
    'deadletters/bad-orders/_replays/00000000000000000001.json'
    """
    return f"{FOLDER}/{uid}/{REPLAYS}/{number:020d}.json"


def checkpoint_of(uid: str, file: str) -> CheckpointId | None:
    """The checkpoint that a file of letters was prepared for; ``None`` if the name is not one of such a file.

    >>> checkpoint_of("bad-orders", "part-5f1c3a7e-bad-orders-42-7-00.parquet")
    42
    """
    found = _name(uid).fullmatch(file)
    return CheckpointId(int(found[2])) if found else None


def log_of(uid: str, file: str) -> str:
    """The beginning of the id of the log that a file of letters belongs to; empty if it is no such file.

    >>> log_of("bad-orders", "part-5f1c3a7e-bad-orders-42-7-00.parquet")
    '5f1c3a7e'
    """
    found = _name(uid).fullmatch(file)
    return found[1] if found else ""


def _name(uid: str) -> re.Pattern[str]:
    return re.compile(rf"part-(.+?)-{re.escape(uid)}-(\d+)-\d+-\d+\..*parquet")


# ---------------------------------------------------------------------------------------------------------- as files


def read_replay(filesystem: FileSystem, uid: str, number: int) -> Replay | None:
    """The replay of this number, or ``None`` if there is none yet.

    Raises:
        StateIncompatible: it is none that this version writes.
    """
    data = filesystem.read(replay_path(uid, number))
    return None if data is None else decode_replay(data, replay_path(uid, number))


def replay_numbers(filesystem: FileSystem, uid: str) -> tuple[int, ...]:
    """Of the replays that there are, sorted."""
    names = (path.rpartition("/")[2].partition(".") for path in filesystem.list(f"{FOLDER}/{uid}/{REPLAYS}"))
    return tuple(sorted(int(name) for name, _, end in names if end == "json" and name.isdecimal()))


def encode_replay(replay: Replay) -> bytes:
    """A replay as it is written."""
    told = {
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
    return (json.dumps(told, indent=1) + "\n").encode()


def decode_replay(data: bytes, path: str) -> Replay:
    """The inverse of :func:`encode_replay`.

    Raises:
        StateIncompatible: it is none that this version writes.
    """
    try:
        told: Any = json.loads(data)
        if told["format"] != _FORMAT:
            msg = f"{path} is of format {told['format']}, this penstock knows {_FORMAT}: use the version that wrote it"
            raise StateIncompatible(msg)
        letters = tuple(
            LetterRange(file=file, ranges=tuple((int(start), int(end)) for start, end in ranges))
            for file, ranges in told["letters"].items()
        )
        return Replay(
            number=told["number"],
            command=told["command"],
            uid=told["uid"],
            source=told["source"],
            after=CheckpointId(told["after"]),
            at=WallTime(told["at"]),
            by=told["by"],
            letters=letters,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{path} is no replay of dead letters ({error!r}): put it back as it was written"
        raise StateIncompatible(msg) from error
