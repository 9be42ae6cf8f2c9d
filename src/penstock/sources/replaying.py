"""A source that also reads dead letters again: a reader around its own. Knows neither the log nor who wrote a replay.

Letters have the source's own columns, so they take the way of its rows, and the position among the replays is in every
checkpoint beside the source's own: each letter named by a replay is read exactly once, whatever crashes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.elements import Partitions
from penstock.handles import apart, with_replays
from penstock.ids import Instant
from penstock.sources.base import NamesPartitions, Nothing, Partitioned, Rows, Until
from penstock.sources.dead_letters import FOLDER, Letters, Replay, checkpoint_of, numbers, read_replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.filesystem.base import FileSystem
    from penstock.handles import Position
    from penstock.ids import CheckpointId, WallTime
    from penstock.sources.base import Limits, Poll, Reader, Source, SourceContext

log = logging.getLogger("penstock")

LOOK_EVERY: Final = 1_000_000
"""Microseconds from one look for replays to the next: one file that is not there."""


LettersFrame: TypeAlias = "Callable[[Replay, StructType], DataFrame]"
"""A lazy frame of the letters of a replay, in the columns that their source has now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letterbox:
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
    frame: LettersFrame
    others: frozenset[str] = frozenset()


def open_replaying(source: Source, context: SourceContext, resume: Position | None, box: Letterbox) -> Reader:
    """The source's reader, and around it one of replays, if there may be any.

    Without dead letters that it may read again, a position keeps what it says of them: should they come back, nothing
    is read twice. A source that begins anew reads all its rows, so the replays of before are not for it.
    """
    own, read = (None, _all_of(box)) if resume is None else apart(resume)
    reader = source.open(context, own)
    if not box.uids and not read:
        return reader
    return ReplayingReader(reader, source, context, read, box)


def _all_of(box: Letterbox) -> dict[str, int]:
    return {uid: max(numbers(box.filesystem, uid), default=0) for uid in box.uids}


class ReplayingReader:
    """Reads replays as soon as they are there, each as one batch, and else what the source has."""

    def __init__(
        self, reader: Reader, source: Source, context: SourceContext, read: Mapping[str, int], box: Letterbox
    ) -> None:
        self._reader = reader
        self._source = source
        self._context = context
        self._box = box
        self._read = {**dict.fromkeys(box.uids, 0), **read}
        self._look_at: Instant | None = None
        self._told: Partitions | None = None
        self._end = {uid: self._newest(uid) for uid in box.uids} if context.until is Until.CAUGHT_UP else None

    def poll(self, *, now: Instant, wall: WallTime, limits: Limits) -> Poll:
        """A replay, if one is there, or what the source has."""
        is_due = self._look_at is None or now >= self._look_at
        # A source that names partitions is asked first: a batch that names none would count as one of its own.
        looks_first = is_due and self._knows_partitions
        if looks_first and (found := self._look(now)) is not None:
            return found
        answer = self._reader.poll(now=now, wall=wall, limits=limits)
        if isinstance(answer, Rows):
            self._told = answer.partitions or self._told
            return answer
        is_left = is_due and not looks_first
        if (is_left or not isinstance(answer, Nothing)) and (found := self._look(now)) is not None:
            return found
        if isinstance(answer, Nothing) and self._box.uids and self._look_at is not None:
            return replace(answer, wake_at=min(answer.wake_at, self._look_at))
        return answer

    def _look(self, now: Instant) -> Rows | None:
        found = self._next()
        self._look_at = Instant(now + LOOK_EVERY) if found is None else None
        return found

    def _next(self) -> Rows | None:
        for uid in self._box.uids:
            while (found := self._following(uid)) is not None:
                self._read[uid] = found.number
                letters = self._to_read(found)
                if letters:
                    return self._rows(replace(found, letters=letters))
        return None

    def _to_read(self, found: Replay) -> tuple[Letters, ...]:
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

    def _rows(self, found: Replay) -> Rows:
        partitions = self._partitions()
        if partitions is None and self._names_partitions:
            partitions = Partitions(names=())  # until it has named its own
        return Rows(plan=found, rows=found.rows, partitions=partitions)

    @property
    def _names_partitions(self) -> bool:
        return isinstance(self._source, Partitioned) and self._source.partition_column is not None

    @property
    def _knows_partitions(self) -> bool:
        return not self._names_partitions or self._partitions() is not None

    def _partitions(self) -> Partitions | None:
        """Those of the source: each keeps its own watermark, and letters say which they were of."""
        if isinstance(self._reader, NamesPartitions):
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
        self._reader.committed(checkpoint, apart(position)[0])

    def close(self) -> None:
        """Release what the source holds."""
        self._reader.close()
