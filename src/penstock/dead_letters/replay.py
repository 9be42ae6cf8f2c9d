"""A reader around a source's own that reads letters again."""

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
    SupportsPartitionNames,
    SupportsPartitions,
    Until,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.clock import WallTime
    from penstock.filesystem.base import FileSystem
    from penstock.handles import CheckpointId, Position
    from penstock.interfaces.source import PollResult, ReadLimit, Source, SourceContext, SourceReader


# ----------------------------------------------------------------------------------------------------
# Spark frames of dead letters as the source's own rows; knows neither replays nor positions.

STRICT_READ: Final = {"__globPaths__": "false", "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
_FEW: Final = 16
"""Ranges that are compared one by one; more are looked up as single numbers."""


def letters_frame(spark: SparkSession, filesystem: FileSystem, replay: Replay, schema: StructType) -> DataFrame:
    """A lazy frame of the letters of a replay, in the columns that their source has now.

    Args:
        spark: a session.
        filesystem: of the job's directory.
        replay: which letters.
        schema: of the source. A column that the letters do not have is ``NULL``; so is :data:`DECODED_RECORD`, since
        none of
            them could be decoded by the source.

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
    chosen = " ".join(f"WHEN '{each.file}' THEN {_chosen(each)}" for each in letters.values())
    columns = (
        F.lit(None).cast(field.dataType).alias(DECODED_RECORD)
        if field.name == DECODED_RECORD
        else F.col(RAW_ROW).getField(field.name).alias(field.name)
        for field in schema.fields
    )
    return frame.where(f"CASE _metadata.file_name {chosen} ELSE false END").select(*columns)


def letters_gone(path: str) -> SourceChanged:
    """What is said of a file of letters that went away after its replay was taken up."""
    msg = (
        f"{path} went away while its dead letters were to be read again: put it back before the next start, or "
        "they are left out (penstock deadletter drop leaves files that are yet to be read)"
    )
    return SourceChanged(msg)


def _chosen(letters: LetterRange) -> str:
    if len(letters.ranges) <= _FEW:
        return " OR ".join(
            f"(_metadata.row_index >= {start}L AND _metadata.row_index < {end}L)" for start, end in letters.ranges
        )
    numbers = itertools.chain.from_iterable(range(start, end) for start, end in letters.ranges)
    return f"_metadata.row_index IN ({', '.join(f'{number}L' for number in numbers)})"


# ----------------------------------------------------------------------------------------------------
# A source that also reads dead letters again: a reader around its own. Knows neither the log nor who wrote a replay.
#
# Letters have the source's own columns, so they take the way of its rows, and the position among the replays is in
# every checkpoint beside the source's own: each letter named by a replay is read exactly once, whatever crashes.

log = logging.getLogger("penstock")
LOOK_EVERY: Final = 1_000_000
"""Microseconds from one look for replays to the next: one file that is not there."""
LetterFrames: TypeAlias = "Callable[[Replay, StructType], DataFrame]"
"""A lazy frame of the letters of a replay, in the columns that their source has now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayInbox:
    """The dead letters that a source may be told to read again.

    Attributes:
        uids: of the places whose rows are the source's own.
        filesystem: of the job's directory.
        counts: whether letters of a checkpoint belong to what the job has done, as it stands; after a rewind, rows
            behind it are read from the source again, and their letters must not be.
        frame: how rows of a replay are read, in the columns of a schema.
        others: uids of all other sources of the pipeline: what is for them is not for this one. A source may have had
            another uid when a replay was written for it.
    """

    uids: tuple[str, ...]
    filesystem: FileSystem
    counts: Callable[[int], bool]
    frame: LetterFrames
    others: frozenset[str] = frozenset()


def open_with_replays(
    source: Source, context: SourceContext, resume: Position | None, box: ReplayInbox
) -> SourceReader:
    """The source's reader, and around it one of replays, if there may be any.

    Without dead letters that it may read again, a position keeps what it says of them: should they come back, nothing
    is read twice. A source that begins anew reads all its rows, so the replays of before are not for it.
    """
    own, read = (None, _all_of(box)) if resume is None else split_replays(resume)
    reader = source.open(context, own)
    if not box.uids and not read:
        return reader
    return ReplayingReader(reader, source, context, read, box)


def _all_of(box: ReplayInbox) -> dict[str, int]:
    return {uid: max(replay_numbers(box.filesystem, uid), default=0) for uid in box.uids}


class ReplayingReader:
    """Reads replays as soon as they are there, each as one batch, and else what the source has."""

    def __init__(
        self, reader: SourceReader, source: Source, context: SourceContext, read: Mapping[str, int], box: ReplayInbox
    ) -> None:
        self._reader = reader
        self._source = source
        self._context = context
        self._box = box
        self._read = {**dict.fromkeys(box.uids, 0), **read}
        self._look_at: MonotonicTime | None = None
        self._told: SourcePartitions | None = None
        self._end = {uid: self._newest(uid) for uid in box.uids} if context.until is Until.CAUGHT_UP else None

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
        """A replay, if one is there, or what the source has."""
        is_due = self._look_at is None or now >= self._look_at
        # A source that names partitions is asked first: a batch that names none would count as one of its own.
        looks_first = is_due and self._knows_partitions
        if looks_first and (found := self._look(now)) is not None:
            return found
        answer = self._reader.poll(now=now, wall=wall, limits=limits)
        if isinstance(answer, PlannedBatch):
            self._told = answer.partitions or self._told
            return answer
        is_left = is_due and not looks_first
        if (is_left or not isinstance(answer, NoData)) and (found := self._look(now)) is not None:
            return found
        if isinstance(answer, NoData) and self._box.uids and self._look_at is not None:
            return replace(answer, wake_at=min(answer.wake_at, self._look_at))
        return answer

    def _look(self, now: MonotonicTime) -> PlannedBatch | None:
        found = self._next()
        self._look_at = MonotonicTime(now + LOOK_EVERY) if found is None else None
        return found

    def _next(self) -> PlannedBatch | None:
        for uid in self._box.uids:
            while (found := self._following(uid)) is not None:
                self._read[uid] = found.number
                letters = self._to_read(found)
                if letters:
                    return self._rows(replace(found, letters=letters))
        return None

    def _to_read(self, found: Replay) -> tuple[LetterRange, ...]:
        """Those that count and are there; what is left out is told, for it stays where it is."""
        uid, number = found.uid, found.number
        if found.source in self._box.others:
            log.warning(
                "replay %d of '%s' is for source '%s', not for '%s'", number, uid, found.source, self._context.uid
            )
            return ()
        letters = []
        there = frozenset(self._box.filesystem.list(f"{FOLDER}/{uid}"))
        for each in found.letters:
            checkpoint = checkpoint_of(uid, each.file)
            if checkpoint is None or f"{FOLDER}/{uid}/{each.file}" not in there:
                log.warning("replay %d of '%s': %s is gone, with %d dead letters", number, uid, each.file, each.rows)
            elif not self._box.counts(checkpoint):
                log.info("replay %d of '%s': a rewind has undone the dead letters of %s", number, uid, each.file)
            else:
                letters.append(each)
        return tuple(letters)

    def _following(self, uid: str) -> Replay | None:
        number = self._read[uid] + 1
        if self._end is not None and number > self._end[uid]:
            return None
        return read_replay(self._box.filesystem, uid, number)

    def _newest(self, uid: str) -> int:
        number = self._read[uid]
        while read_replay(self._box.filesystem, uid, number + 1) is not None:
            number += 1
        return number

    def _rows(self, found: Replay) -> PlannedBatch:
        partitions = self._partitions()
        if partitions is None and self._names_partitions:
            partitions = SourcePartitions(names=())  # until it has named its own
        return PlannedBatch(plan=found, rows=found.rows, partitions=partitions)

    @property
    def _names_partitions(self) -> bool:
        return isinstance(self._source, SupportsPartitions) and self._source.partition_column is not None

    @property
    def _knows_partitions(self) -> bool:
        return not self._names_partitions or self._partitions() is not None

    def _partitions(self) -> SourcePartitions | None:
        """Those of the source: each keeps its own watermark, and letters say which they were of."""
        if isinstance(self._reader, SupportsPartitionNames):
            return self._reader.partitions()
        return replace(self._told, behind=frozenset()) if self._told is not None else None

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of the plan's rows, in the source's columns.

        Raises:
            SourceChanged: a file of the letters is gone.
        """
        if not isinstance(plan, Replay):
            return self._reader.frame(plan)
        return self._box.frame(plan, self._source.schema(self._context.spark))

    def position(self) -> Position:
        """That of the source, and beside it how many replays were read."""
        return with_replays(self._reader.position(), self._read)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """The source is told, in its own words."""
        self._reader.committed(checkpoint, split_replays(position)[0])

    def close(self) -> None:
        """Release what the source holds."""
        self._reader.close()
