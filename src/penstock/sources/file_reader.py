"""Reads a watched directory from a position on: listings into plans, plans into frames. Knows no checkpoint."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from penstock.errors import SourceUnavailable
from penstock.ids import Instant
from penstock.sources.base import CaughtUp, Ended, Nothing, Rows, Until
from penstock.sources.file_frames import frame_of
from penstock.sources.file_listing import (
    COMPRESSED,
    Caps,
    Decision,
    Progress,
    Slice,
    decide,
    encode,
    outstanding,
    reconcile,
)
from penstock.sources.file_scan import bytes_per_row, device, require_unchanged, signature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from penstock.handles import Position
    from penstock.ids import CheckpointId, WallTime
    from penstock.sources.base import Limits, Poll, SourceContext
    from penstock.sources.files import Source

_SPARK_LISTS: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_PER_FILE: Final = 20
"""Microseconds of pause for each file listed: a listing costs a few, and should not be most of what the source does."""


class FilesReader:
    """Reads one directory from one progress on. Made by :meth:`Source.open`."""

    def __init__(self, source: Source, context: SourceContext, progress: Progress) -> None:
        self._source = source
        self._spark = context.spark
        self._schema = source.schema(context.spark)
        self._device = device(source.path)
        self._fixed = source.bounded or context.until is Until.CAUGHT_UP
        self._interval = self._pause = source.poll_interval_ms * 1000
        self._rescan_at: Instant | None = None
        self._wake: Instant | None = None
        self._to_verify: dict[str, Slice] = {}
        self._resume(progress)

    def _resume(self, progress: Progress) -> None:
        listing = self._source.listing()
        if not self._source.bounded:  # what a bounded run before this one had still to read is not all there is now
            progress = replace(progress, remaining=None)
        self._progress = reconcile(listing, progress)
        if self._source.bounded and self._progress.remaining is None:
            self._progress = replace(self._progress, remaining=dict(outstanding(listing, self._progress)))
        left = listing if self._progress.remaining is None else self._progress.remaining
        self._backlog = outstanding(left, self._progress)

    def poll(self, *, now: Instant, wall: WallTime, limits: Limits) -> Poll:  # noqa: ARG002 - files have times of their own
        """The next files, or the next cut of a big one."""
        if not self._fixed:
            if self._wake is not None and now < self._wake:
                return Nothing(wake_at=self._wake)
            if not self._backlog or self._rescan_at is None or now >= self._rescan_at:
                self._rescan(now)
        decision = self._decide(limits)
        if not self._source.bounded and self._gone(decision):
            self._rescan(now)  # a file that was listed, but never planned, may go away
            decision = self._decide(limits)
        if not decision.slices:
            return self._end() if self._fixed else self._nothing(now)
        return self._planned(decision)

    def _rescan(self, now: Instant) -> None:
        if device(self._source.path) != self._device:
            msg = f"directory {self._source.path!r} is gone or lies on another file system than before: mount it again"
            raise SourceUnavailable(msg)
        listing = self._source.listing()
        self._progress = reconcile(listing, self._progress)
        if self._fixed:  # the end stays where it was; what changed before it was planned is read as it is now
            listing = {name: listing[name] for name, _ in self._backlog if name in listing}
        self._backlog = outstanding(listing, self._progress)
        self._pause = max(self._interval, _PER_FILE * len(listing))
        self._rescan_at = Instant(now + self._pause)
        self._wake = None

    def _decide(self, limits: Limits) -> Decision:
        source, most = self._source, limits.bytes
        if limits.rows is not None and (first := self._first()) is not None:
            each = bytes_per_row(os.path.join(source.path, first), source.content.format)
            if each is not None:
                most = min(int(limits.rows * each), most) if most is not None else int(limits.rows * each)
        listed_at_once = int(self._spark.conf.get(_SPARK_LISTS, "32") or 32)
        files = min(source.max_files_per_batch or listed_at_once, listed_at_once)
        caps = Caps(files=files, bytes=most, split_bytes=source.split_bytes, cuttable=self._cuttable)
        return decide(self._progress, self._backlog, caps)

    def _first(self) -> str | None:
        if self._progress.partial is not None:
            return self._progress.partial.name
        return self._backlog[0][0] if self._backlog else None

    def _cuttable(self, name: str) -> bool:
        return self._source.content.format == "parquet" or not name.endswith(COMPRESSED)

    def _gone(self, decision: Decision) -> bool:
        if self._progress.partial is not None:
            return False
        return any(signature(os.path.join(self._source.path, p.name)) != p.signature for p in decision.slices)

    def _nothing(self, now: Instant) -> Nothing:
        self._wake = Instant(now + self._pause)
        return Nothing(wake_at=self._wake)

    def _end(self) -> Ended | CaughtUp:
        return Ended() if self._source.bounded else CaughtUp()

    def _planned(self, decision: Decision) -> Rows:
        self._progress = decision.progress
        taken = {part.name for part in decision.slices}
        self._backlog = [item for item in self._backlog if item[0] not in taken]
        self._to_verify.update({part.name: part for part in decision.slices})
        slices = decision.slices
        verify = partial(require_unchanged, self._source.path, slices, "was planned")
        size = sum(part.end - part.start for part in slices)
        return Rows(plan=slices, bytes=size, verify=verify, takes_all=self._first() is None)

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of the plan's rows.

        Raises:
            SourceChanged: a file is no longer what was planned.
        """
        slices = cast("Sequence[Slice]", plan)
        require_unchanged(self._source.path, slices, "was planned")
        try:
            frame = frame_of(self._spark, self._source.path, slices, self._source.content, self._schema)
        finally:
            # Spark has looked at the files in between: only now it is sure that it saw what was planned.
            require_unchanged(self._source.path, slices, "was planned")
        return frame

    def position(self) -> Position:
        """After the last plan.

        Raises:
            SourceChanged: a file planned since the last call is there, but changed.
        """
        there = [p for p in self._to_verify.values() if signature(os.path.join(self._source.path, p.name)) is not None]
        require_unchanged(self._source.path, there, "was planned")
        self._to_verify.clear()
        return encode(self._progress)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Nothing is shown elsewhere."""

    def close(self) -> None:
        """Nothing is held."""
