"""Dead letters read again: a reader around the source's own, and the frames of letters."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.clock import MonotonicTime
from penstock.dead_letters.store import FOLDER, RAW_ROW, LetterRange, Replay, checkpoint_of, read_replay, replay_numbers
from penstock.elements import SourcePartitions
from penstock.errors import SourceChanged
from penstock.handles import split_replays, with_replays
from penstock.interfaces.source import (
    DECODED_RECORD,
    NoData,
    PlannedBatch,
    SupportsLastBatches,
    SupportsPartitionNames,
    SupportsPartitions,
    Until,
)
from penstock.spark.sql import STRICT_READ

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.clock import WallTime
    from penstock.filesystem.base import FileSystem
    from penstock.handles import CheckpointId, Position
    from penstock.interfaces.source import PollResult, ReadLimit, Source, SourceContext, SourceReader


log = logging.getLogger("penstock")
POLL_INTERVAL: Final = 1_000_000
"""Microseconds between two looks for a new replay; each look reads one file, which is usually missing."""
MAX_COMPARED_RANGES: Final = 16
"""Ranges of a file that the filter compares one by one; more ranges become a list of row numbers."""

# ---- letters as rows of their source --------------------------------------------------------------------------------

LetterFrames: TypeAlias = "Callable[[Replay, StructType], DataFrame]"
"""Returns a lazy frame of the letters of a replay, in the columns that their source has now."""


def letters_frame(spark: SparkSession, filesystem: FileSystem, replay: Replay, schema: StructType) -> DataFrame:
    """A lazy frame of the letters of a replay, in the columns that their source has now.

    Args:
        spark: a session.
        filesystem: rooted at the job's directory.
        replay: names the letters.
        schema: of the source. A column that the letters do not have is ``NULL``. So is ``DECODED_RECORD``, since
            the source could decode none of them.

    Raises:
        SourceChanged: a file is gone.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField, StructType

    letters = {filesystem.url(f"{FOLDER}/{replay.uid}/{each.file}"): each for each in replay.letters}
    for address in letters:
        path = address.removeprefix("file://")
        if "://" not in path and not os.path.exists(path):
            raise letters_gone(path)
    whole = StructType([field for field in schema.fields if field.name != DECODED_RECORD])
    wanted = StructType([StructField(RAW_ROW, whole)])
    frame = spark.read.schema(wanted).options(**STRICT_READ).parquet(*letters)
    chosen = " ".join(f"WHEN '{each.file}' THEN {_is_named_by(each)}" for each in letters.values())
    columns = (
        F.lit(None).cast(field.dataType).alias(DECODED_RECORD)
        if field.name == DECODED_RECORD
        else F.col(RAW_ROW).getField(field.name).alias(field.name)
        for field in schema.fields
    )
    return frame.where(f"CASE _metadata.file_name {chosen} ELSE false END").select(*columns)


def letters_gone(path: str) -> SourceChanged:
    """The error of a letter file that went away after a source had begun to read its replay."""
    msg = (
        f"{path} went away while its dead letters were to be read again. Put it back before the next start, or they "
        "are left out (penstock deadletter drop leaves files that are yet to be read)."
    )
    return SourceChanged(msg)


def _is_named_by(letters: LetterRange) -> str:
    if len(letters.ranges) <= MAX_COMPARED_RANGES:
        return " OR ".join(
            f"(_metadata.row_index >= {start}L AND _metadata.row_index < {end}L)" for start, end in letters.ranges
        )
    numbers = itertools.chain.from_iterable(range(start, end) for start, end in letters.ranges)
    return f"_metadata.row_index IN ({', '.join(f'{number}L' for number in numbers)})"


# ---- reading replays ------------------------------------------------------------------------------------------------
# Letters have the source's own columns, so they are processed like its rows. Every checkpoint has the number of replays
# that were read, next to the source's own position. So each letter named by a replay is read exactly once after any
# crash.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayInbox:
    """The dead letters that a source may read again.

    Attributes:
        uids: of the dead letters whose rows are the source's own.
        filesystem: rooted at the job's directory.
        on_timeline: whether output of a checkpoint is on the job's timeline. After a rewind the source reads rows
            behind it again, and their letters must not be read as well.
        frame: returns the rows of a replay in the columns of a schema.
        others: uids of all other sources of the pipeline, whose replays are not for this one. The source itself may
            have had another uid when a replay was written for it.
    """

    uids: tuple[str, ...]
    filesystem: FileSystem
    on_timeline: Callable[[int], bool]
    frame: LetterFrames
    others: frozenset[str] = frozenset()


def open_with_replays(
    source: Source, context: SourceContext, resume: Position | None, inbox: ReplayInbox
) -> SourceReader:
    """The source's reader, wrapped in a ``ReplayingReader`` if there may be replays for it.

    Without dead letters that it may read again, the position keeps the numbers of replays that were read. If the dead
    letters come back, none is read twice. A source without a position reads all its rows, so existing replays are not
    for it.
    """
    own, read = (None, _newest_replays(inbox)) if resume is None else split_replays(resume)
    reader = source.open(context, own)
    if not inbox.uids and not read:
        return reader
    return ReplayingReader(reader, source, context, read, inbox)


def _newest_replays(inbox: ReplayInbox) -> dict[str, int]:
    return {uid: max(replay_numbers(inbox.filesystem, uid), default=0) for uid in inbox.uids}


class ReplayingReader:
    """Reads each replay as one batch as soon as it is there, otherwise what the source has."""

    def __init__(
        self, reader: SourceReader, source: Source, context: SourceContext, read: Mapping[str, int], inbox: ReplayInbox
    ) -> None:
        self._reader = reader
        self._source = source
        self._context = context
        self._inbox = inbox
        self._read = {**dict.fromkeys(inbox.uids, 0), **read}
        self._look_at: MonotonicTime | None = None
        self._batch_partitions: SourcePartitions | None = None  # of the source's newest batch that named any
        self._end = {uid: self._newest(uid) for uid in inbox.uids} if context.until is Until.CAUGHT_UP else None

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
        """A replay, if one is there, or what the source has."""
        is_due = self._look_at is None or now >= self._look_at
        # A source that names partitions is polled first: a batch that names none would count as one of its own.
        looks_first = is_due and self._knows_partitions
        if looks_first and (found := self._look(now)) is not None:
            return found
        result = self._reader.poll(now=now, wall=wall, limits=limits)
        if isinstance(result, PlannedBatch):
            self._batch_partitions = result.partitions or self._batch_partitions
            return result
        is_left = is_due and not looks_first
        if (is_left or not isinstance(result, NoData)) and (found := self._look(now)) is not None:
            return found
        if isinstance(result, NoData) and self._inbox.uids and self._look_at is not None:
            return replace(result, wake_at=min(result.wake_at, self._look_at))
        return result

    def take_no_more(self) -> None:
        """Pass it on to the source's reader."""
        if isinstance(self._reader, SupportsLastBatches):
            self._reader.take_no_more()

    def _look(self, now: MonotonicTime) -> PlannedBatch | None:
        found = self._next()
        self._look_at = MonotonicTime(now + POLL_INTERVAL) if found is None else None
        return found

    def _next(self) -> PlannedBatch | None:
        for uid in self._inbox.uids:
            while (found := self._following(uid)) is not None:
                self._read[uid] = found.number
                letters = self._to_read(found)
                if letters:
                    return self._planned(replace(found, letters=letters))
        return None

    def _to_read(self, found: Replay) -> tuple[LetterRange, ...]:
        """The letters of a replay that are on the timeline and exist; logs those that are left out and stay there."""
        uid, number = found.uid, found.number
        if found.source in self._inbox.others:
            log.warning(
                "replay %d of '%s' is for source '%s', not for '%s'", number, uid, found.source, self._context.uid
            )
            return ()
        letters = []
        existing = frozenset(self._inbox.filesystem.list(f"{FOLDER}/{uid}"))
        for each in found.letters:
            checkpoint = checkpoint_of(uid, each.file)
            if checkpoint is None or f"{FOLDER}/{uid}/{each.file}" not in existing:
                log.warning("replay %d of '%s': %s is gone, with %d dead letters", number, uid, each.file, each.rows)
            elif not self._inbox.on_timeline(checkpoint):
                log.info("replay %d of '%s': a rewind has undone the dead letters of %s", number, uid, each.file)
            else:
                letters.append(each)
        return tuple(letters)

    def _following(self, uid: str) -> Replay | None:
        number = self._read[uid] + 1
        if self._end is not None and number > self._end[uid]:
            return None
        return read_replay(self._inbox.filesystem, uid, number)

    def _newest(self, uid: str) -> int:
        number = self._read[uid]
        while read_replay(self._inbox.filesystem, uid, number + 1) is not None:
            number += 1
        return number

    def _planned(self, found: Replay) -> PlannedBatch:
        partitions = self._partitions()
        if partitions is None and self._names_partitions:
            partitions = SourcePartitions(names=())  # until the source has named its own
        return PlannedBatch(plan=found, rows=found.rows, partitions=partitions)

    @property
    def _names_partitions(self) -> bool:
        return isinstance(self._source, SupportsPartitions) and self._source.partition_column is not None

    @property
    def _knows_partitions(self) -> bool:
        return not self._names_partitions or self._partitions() is not None

    def _partitions(self) -> SourcePartitions | None:
        """The source's partitions: each has its own watermark, and letters say of which partition they were."""
        if isinstance(self._reader, SupportsPartitionNames):
            return self._reader.partitions()
        return replace(self._batch_partitions, behind=frozenset()) if self._batch_partitions is not None else None

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of the rows of a planned batch, in the source's columns.

        Raises:
            SourceChanged: a file of the letters is gone.
        """
        if not isinstance(plan, Replay):
            return self._reader.frame(plan)
        return self._inbox.frame(plan, self._source.schema(self._context.spark))

    def position(self) -> Position:
        """The source's position, with how many replays were read."""
        return with_replays(self._reader.position(), self._read)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Notify the source with its own position."""
        self._reader.committed(checkpoint, split_replays(position)[0])

    def close(self) -> None:
        """Close the source's reader."""
        self._reader.close()
