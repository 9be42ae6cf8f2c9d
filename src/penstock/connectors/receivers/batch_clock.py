"""The ticks of a source that receives rows: which one a block is labelled with, and which blocks a poll takes.

A tick is a wall time in microseconds, at a multiple of the interval of ``ps.every``. Blocks and polls get theirs here,
so that neither falls, also when the wall clock is set back.
"""

from __future__ import annotations

import threading
from typing import Final

from penstock.interfaces.source import BatchTicks

_ALL: Final = 1 << 62
"""A tick later than all others."""


class BatchClock:
    """Labels the blocks of one source with ticks, and allocates them to polls. Safe to use from several threads.

    A block belongs to the first tick after it was written. A poll serves the newest tick, and takes the blocks of it
    and of all before it. The first poll may find blocks of ticks that passed since the checkpoint, while the job was
    down or did what it lost. They are read as ``BatchTicks.catch_up`` says.

    Args:
        ticks: when the source is read; ``None`` if whenever it is ready. Then each poll takes all blocks.
        served: the last tick that was served, by the position; 0 is none.
        floor: no block is labelled with a smaller tick.
        receives: whether rows still come; otherwise all blocks that there are belong to ticks that have passed.

    >>> clock = BatchClock(BatchTicks(interval=10), served=20)
    >>> clock.label(33), clock.poll(34, None), clock.takes(40)
    (40, 1, False)
    >>> clock.poll(40, 40), clock.takes(40), clock.label(39)
    (0, True, 50)
    """

    def __init__(self, ticks: BatchTicks | None, *, served: int = 0, floor: int = 0, receives: bool = True) -> None:
        self._lock = threading.Lock()
        self._interval = 1 if ticks is None else ticks.interval
        self._most = 1 if ticks is None else ticks.catch_up
        self._is_ticking = ticks is not None
        self._receives = receives
        self._served = served
        self._floor = max(floor, served)
        self._tick = 0  # the poll under way takes blocks up to this tick
        self._until: int | None = None  # while catching up: the newest tick at the start
        self._passed = 0  # ticks from the last one served to that one
        self._run = 0  # those of them that had a batch
        self._is_first = self._is_ticking

    @property
    def is_catching_up(self) -> bool:
        """Whether the next poll has to know the tick of the first block that is not read."""
        return self._is_first or self._until is not None

    @property
    def served(self) -> int:
        """The last tick whose blocks were read; 0 is none."""
        return self._served

    # ---- blocks --------------------------------------------------------------------------------------------------

    def label(self, wall: int) -> int:
        """The tick of a block that is written now."""
        with self._lock:
            self._floor = max(self._after(wall), self._after(self._served), self._floor)
            return self._floor

    def took(self, tick: int) -> None:
        """Note that a block with this tick was read, in part or to its end."""
        with self._lock:
            self._floor = max(self._floor, tick)
            self._served = max(self._served, self._multiple(tick))

    # ---- polls ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let the polls that follow take all blocks: no other tick will come."""
        with self._lock:
            self._is_ticking = self._is_first = False
            self._until = None

    def poll(self, wall: int, waiting: int | None) -> int:
        """Choose the tick that a poll serves; returns how many ticks that passed before the start have had no batch.

        Args:
            wall: the present time.
            waiting: the tick of the first block that is not read, while catching up; ``None`` if there is none.
        """
        with self._lock:
            if not self._is_ticking:
                self._tick = _ALL
                return 0
            newest = wall // self._interval * self._interval
            if self._is_first:
                self._is_first = False
                self._begin(newest, waiting)
            if self._until is None:
                self._serve(newest)
                return 0
            return self._catch_up(newest, waiting)

    def _begin(self, newest: int, waiting: int | None) -> None:
        """Count the ticks that passed; those of waiting blocks come first."""
        self._until = newest
        if self._served:
            self._passed = max(0, (newest - self._served) // self._interval)
        elif waiting is not None:
            self._passed = max(0, (newest - self._multiple(waiting)) // self._interval + 1)

    def _catch_up(self, newest: int, waiting: int | None) -> int:
        assert self._until is not None  # the caller has seen it
        if waiting is None or not self._has_passed(waiting):
            missed = self._passed - self._run
            self._until = None
            self._serve(newest)
            return max(0, missed)
        # The oldest ticks are one batch, so that there are no more batches than allowed.
        tick = max(self._multiple(waiting), self._until - (self._most - 1) * self._interval)
        self._run += tick > self._tick
        self._tick = self._served = max(tick, self._served)
        if self._most == 1:
            if not self._receives:
                self._tick = _ALL
                return 0
            self._until = None  # what this batch has no room for waits for the next tick
            return max(0, self._passed - 1)
        return 0

    def _has_passed(self, tick: int) -> bool:
        """Whether a tick is one that passed before the start, or will not come."""
        return self._until is not None and (not self._receives or self._multiple(tick) <= self._until)

    def _serve(self, newest: int) -> None:
        if newest != self._served:  # nothing more is allocated to a tick that was served
            # A clock that was set back: ticks go on from the last one.
            self._served = newest if newest > self._served else self._after(self._served)
            self._tick = self._served
        else:
            self._tick = 0

    def takes(self, tick: int) -> bool:
        """Whether the poll under way takes a block with this tick."""
        with self._lock:
            at = self._multiple(tick)
            # A block of a far later tick was labelled by a clock that was ahead: its time would not come.
            return at <= self._tick or (self._until is None and at > max(self._tick, self._served) + self._interval)

    def is_behind(self, waiting: int | None) -> bool:
        """Whether a block with this tick, the first that waits, is to be read at once."""
        with self._lock:
            return waiting is not None and self._has_passed(waiting)

    # ---- arithmetic ----------------------------------------------------------------------------------------------

    def _after(self, time: int) -> int:
        return (time // self._interval + 1) * self._interval

    def _multiple(self, tick: int) -> int:
        """The tick, rounded up to the interval of now: another may have been in force when the block was written."""
        return -(-tick // self._interval) * self._interval
