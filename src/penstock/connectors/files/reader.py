"""The reader of ``ps.files.Source``: what it reads next, and what becomes of the files after that."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from penstock.clock import MonotonicTime
from penstock.connectors.files.directory import bytes_per_row, inode, require_readable, require_unchanged, signature
from penstock.connectors.files.listing import (
    FileLimits,
    FileSlice,
    FilesPosition,
    PlannedFiles,
    decode,
    encode,
    plan_next,
    unread_files,
)
from penstock.connectors.files.partitions import with_partitions
from penstock.connectors.files.ranges import FileFormat, frame_by_names, frame_of
from penstock.connectors.files.remover import MOST_AT_ONCE, FileRemover
from penstock.connectors.files.watched import WALL, WatchedDirectory
from penstock.facts import SourceLag
from penstock.interfaces.source import CaughtUp, Ended, NoData, PlannedBatch, Until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.clock import WallTime
    from penstock.handles import CheckpointId, Position
    from penstock.interfaces.source import PollResult, ReadLimit, SourceContext

log = logging.getLogger("penstock")

_SPARK_LISTS: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
"""Spark's setting: the most paths that it lists without running a job."""
_PAUSE_PER_FILE: Final = 20
"""Microseconds of pause for each listed file: listing it takes a few, and should not be most of the reader's work."""
_LAG_EVERY: Final = 1_000_000
"""Microseconds between two reports of the lag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReading:
    """How the files of a directory are read.

    Attributes:
        content: what is in them.
        schema: their columns.
        partitions: the columns that folders name, if there are any.
        bounded: whether only files count that were there at the first start.
        max_files_per_batch: most files of a batch.
        split_bytes: larger files are read in cuts of that size.
        poll_interval_ms: shortest time between two looks for new files.
    """

    content: FileFormat
    schema: StructType
    partitions: StructType | None
    bounded: bool
    max_files_per_batch: int | None
    split_bytes: int
    poll_interval_ms: int


class FilesReader:
    """Reads a directory from a position on. Made by ``Source.open``."""

    def __init__(
        self,
        directory: WatchedDirectory,
        reading: FileReading,
        context: SourceContext,
        position: FilesPosition,
        *,
        is_fresh: bool,
    ) -> None:
        self._directory = directory
        self._reading = reading
        self._spark = context.spark
        self._has_end = reading.bounded or context.until is Until.CAUGHT_UP
        self._interval = self._pause = reading.poll_interval_ms * 1000
        self._rescan_at: MonotonicTime | None = None
        self._wake_at: MonotonicTime | None = None
        self._to_verify: dict[str, FileSlice] = {}
        self._uid, self._report = context.uid, context.report
        self._lag_at: MonotonicTime | None = None
        removal = directory.removal
        self._remover = FileRemover(removal, context) if removal.way is not None else None
        self._resume(position, context.uid, is_fresh=is_fresh)

    def _resume(self, position: FilesPosition, uid: str, *, is_fresh: bool) -> None:
        if not self._reading.bounded:  # the position may be that of an earlier, bounded run
            position = replace(position, remaining=None)
        if self._remover is not None:
            self._directory.require_record(position, inode(self._directory.path))
            position = self._remover.resume(position, is_fresh=is_fresh)
        look = self._directory.look(position)
        for warning in look.warnings:  # while it runs none is logged: a feed may empty its folder
            log.warning("source %s: %s", uid, warning)
        self._position = look.position
        if self._reading.bounded and self._position.remaining is None:
            self._position = replace(self._position, remaining=dict(self._directory.unread(look.files, self._position)))
        remaining = self._position.remaining
        self._unread = (
            self._directory.unread(look.files, self._position)
            if remaining is None
            else unread_files(remaining, self._position)
        )

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:  # noqa: ARG002 - files have times of their own
        """The next files, or the next cut of a big one."""
        if self._remover is not None:
            self._position = self._remover.remove(self._position, most=MOST_AT_ONCE)
        answer = self._poll(now, limits)
        if self._lag_at is None or now >= self._lag_at or isinstance(answer, (CaughtUp, Ended)):
            self._report(self._lag())
            self._lag_at = MonotonicTime(now + _LAG_EVERY)
        return answer

    def _poll(self, now: MonotonicTime, limits: ReadLimit) -> PollResult:
        if not self._has_end:
            if self._wake_at is not None and now < self._wake_at:
                return NoData(wake_at=self._wake_at)
            if not self._unread or self._rescan_at is None or now >= self._rescan_at:
                self._rescan(now)
        planned = self._plan(limits)
        if not self._reading.bounded and self._has_changed(planned):
            self._rescan(now)  # a file that was listed but not yet planned may change or disappear
            planned = self._plan(limits)
        if planned.slices:
            return self._take(planned)
        if self._has_end:
            return Ended() if self._reading.bounded else CaughtUp()
        self._wake_at = MonotonicTime(now + self._pause)
        return NoData(wake_at=self._wake_at)

    def _rescan(self, now: MonotonicTime) -> None:
        look = self._directory.look(self._position)
        listing, self._position = look.files, look.position
        if self._has_end:  # no new files; one that changed before it was planned is read as it is now
            listing = {name: listing[name] for name, _ in self._unread if name in listing}
        self._unread = self._directory.unread(listing, self._position)
        self._pause = max(self._interval, _PAUSE_PER_FILE * len(listing))
        self._rescan_at = MonotonicTime(now + self._pause)
        self._wake_at = None

    def _lag(self) -> SourceLag:
        """The files that are not planned yet, and the age of the oldest one."""
        partial = self._position.partial
        signatures = [signature for _, signature in self._unread]
        oldest = min(
            (each.mtime_ns for each in [*signatures[:1], *([partial.signature] if partial else [])]), default=0
        )
        return SourceLag(
            task=self._uid,
            rows=None,
            seconds=max(0.0, (WALL.wall() * 1_000 - oldest) / 1e9) if oldest else 0.0,
            eta_seconds=None,
            partitions={},
            files=len(signatures) + (partial is not None),
            bytes=sum(each.size for each in signatures) + (partial.end - partial.start if partial else 0),
        )

    def _plan(self, limits: ReadLimit) -> PlannedFiles:
        reading, most = self._reading, limits.bytes
        if limits.rows is not None and (next_file := self._next_file()) is not None:
            row_bytes = bytes_per_row(os.path.join(self._directory.path, next_file), reading.content.format)
            if row_bytes is not None:
                estimate = int(limits.rows * row_bytes)
                most = estimate if most is None else min(estimate, most)
        spark_lists = int(self._spark.conf.get(_SPARK_LISTS, "32") or 32)
        files = min(reading.max_files_per_batch or spark_lists, spark_lists)
        file_limits = FileLimits(
            files=files, bytes=most, split_bytes=reading.split_bytes, can_cut=reading.content.can_cut
        )
        return plan_next(self._position, self._unread, file_limits)

    def _next_file(self) -> str | None:
        if self._position.partial is not None:
            return self._position.partial.name
        return self._unread[0][0] if self._unread else None

    def _has_changed(self, planned: PlannedFiles) -> bool:
        """Whether a planned file is not as it was listed. The partly read one is checked later, as an error."""
        if self._position.partial is not None:
            return False
        return any(
            signature(os.path.join(self._directory.path, part.name)) != part.signature for part in planned.slices
        )

    def _take(self, planned: PlannedFiles) -> PlannedBatch:
        slices = planned.slices
        self._position = planned.position
        taken = {part.name for part in slices}
        self._unread = [item for item in self._unread if item[0] not in taken]
        self._to_verify.update({part.name: part for part in slices})
        return PlannedBatch(
            plan=slices,
            bytes=sum(part.end - part.start for part in slices),
            verify=partial(self._require_unchanged, slices),
            takes_all=self._next_file() is None,
        )

    def _require_unchanged(self, slices: Sequence[FileSlice]) -> None:
        when = "was listed at the first start" if self._reading.bounded else "was planned"
        require_unchanged(self._directory.path, slices, when)

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of the plan's rows.

        Raises:
            SourceChanged: a file has changed since it was planned.
            SourceUnavailable: a file may not be read.
        """
        slices = cast("Sequence[FileSlice]", plan)
        self._require_unchanged(slices)
        require_readable(self._directory.path, slices)
        try:
            content, root = self._reading.content, self._directory.path
            reading = replace(content, with_file=content.with_file or self._reading.partitions is not None)
            make = frame_by_names if content.by_name else frame_of
            frame = make(self._spark, root, slices, reading, self._reading.schema)
            if self._reading.partitions is not None:
                frame = with_partitions(frame, root, self._reading.partitions, with_file=content.with_file)
        finally:
            # Spark has looked at the files in between: this check proves that it saw what was planned.
            self._require_unchanged(slices)
        return frame

    def position(self) -> Position:
        """The position after the last plan.

        Raises:
            SourceChanged: a file planned since the last call exists, but has changed.
            SourceUnavailable: another source removes files of the same directory.
        """
        root, slices = self._directory.path, self._to_verify.values()
        self._require_unchanged([part for part in slices if signature(os.path.join(root, part.name)) is not None])
        self._to_verify.clear()
        if self._remover is not None:
            self._remover.planned(self._position)
        return encode(self._position)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:  # noqa: ARG002 - the position says it all
        """Remove the files that the checkpoint holds, if the source removes files.

        Raises:
            SourceUnavailable: another source removes files of the same directory.
        """
        if self._remover is not None:
            self._remover.hold(decode(position))
            self._position = self._remover.remove(self._position, most=None if self._has_end else MOST_AT_ONCE)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
