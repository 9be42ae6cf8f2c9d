"""What tests of the Kinesis checkpointer share: a clock to tick with, and stores that take notes."""

from __future__ import annotations

import threading

from penstock.connectors.kinesis.checkpointer import KinesisCheckpointer
from penstock.connectors.kinesis.positions import After
from penstock.testing import ManualClock


class Patience:
    """Seconds after which a thread that does not come to rest fails its test."""

    seconds = 20.0


class TickClock(ManualClock):
    """A clock that is moved by hand, and knows when all threads that wait for it have done what was due."""

    def __init__(self, wall="2026-01-01T00:00:00Z"):
        super().__init__(wall)
        self._resting = threading.Condition()
        self._until = {}

    def wait(self, changed, until):
        with self._resting:
            self._until[threading.current_thread()] = until
            self._resting.notify_all()
        super().wait(changed, until)

    def next_ticks(self):
        """How long the threads still wait, in microseconds."""
        return sorted(until - self.now() for thread, until in self._until.items() if thread.is_alive())

    def settle(self, threads=1):
        """Return when all threads wait for a later time."""

        def is_at_rest():
            ticks = self.next_ticks()
            return len(ticks) >= threads and all(tick > 0 for tick in ticks)

        with self._resting:
            assert self._resting.wait_for(is_at_rest, Patience.seconds), f"threads are not at rest: {self._until}"

    def tick(self, duration, threads=1):
        """Move the clock, and return when all that is due then is done."""
        self.settle(threads)
        self.advance(duration)
        self.settle(threads)


class Progress:
    """The receiver: what it says is what a test puts into ``at``."""

    def __init__(self, **at):
        self.at = dict(at)
        self.asked = 0

    def stored(self, shard):
        self.asked += 1
        position = self.at.get(shard)
        if isinstance(position, BaseException):
            raise position
        return After(position) if isinstance(position, int) else position


class Store:
    """The checkpointer of a shard: takes notes, and raises what ``fails`` has for the next call."""

    def __init__(self, *fails):
        self.calls = []
        self.tried = []
        self.fails = list(fails)

    def checkpoint(self, position=None):
        self.tried.append(position)
        failure = self.fails.pop(0) if self.fails else None
        if failure is not None:
            raise failure
        self.calls.append("END" if position is None else (position.seq, position.sub))


class Bench:
    """A checkpointer with its clock and its receiver; it ticks each minute."""

    def __init__(self, **at):
        self.clock = TickClock()
        self.progress = Progress(**at)
        self.pauses = []
        self.checkpointer = KinesisCheckpointer(self.progress, "60 seconds", "w1", self.clock, pause=self.pauses.append)
        self.clock.settle()

    def set(self, shard, *fails):
        store = Store(*fails)
        self.checkpointer.set_checkpointer(shard, store)
        return store

    def tick(self, times=1):
        self.clock.tick(f"{60 * times} seconds")
