"""``KinesisCheckpointer``: writes how far shards were read to where other consumers look, from time to time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from random import randrange
from typing import Final, Protocol, TypeVar, final

from penstock.clock import parse_duration, sleep
from penstock.connectors.kinesis.positions import After, Finished, ShardPosition, order
from penstock.connectors.kinesis.timer import MachineTimerClock, RecurringTimer, TimerClock
from penstock.errors import PenstockError

T = TypeVar("T")
log: Final = logging.getLogger("penstock")
ATTEMPTS: Final = 4
"""Attempts of one write."""
BELOW_MS: Final = 100
"""The wait between two attempts is random, and shorter than this."""


class StoredPositions(Protocol):
    """Says what may be checkpointed: it knows which records cannot be lost any more."""

    def stored(self, shard: str) -> ShardPosition | None:
        """The last record of a shard up to which all are stored; ``Finished`` after the last one of a closed shard.

        ``None`` if no record of it is stored yet. In a job, a record is stored once it is in a completed checkpoint.
        """
        ...


class ShardCheckpointer(Protocol):
    """Writes the checkpoint of one shard. The KCL gives a record processor one, ``LeaseTable`` makes others."""

    def checkpoint(self, position: After | None = None) -> None:
        """Write ``position``; without one, that the shard is finished, so that its children may be read.

        Raises:
            LeaseThrottled: there is no capacity now.
            LeaseTableUnavailable: the table did not answer.
            LeaseTableInvalid: there is no such table.
            LeaseLost: another worker has the shard.
        """
        ...


def retry_random(
    call: Callable[[], T],
    *,
    attempts: int = ATTEMPTS,
    below_ms: int = BELOW_MS,
    pause: Callable[[float], None] = sleep,
) -> T:
    """Return what ``call`` returns; it is repeated after errors that say that a retry can help.

    Args:
        call: what to do.
        attempts: calls at most; the error of the last one is raised.
        below_ms: each wait is random, and shorter than this.
        pause: called with the seconds of each wait.
    """
    for _ in range(attempts - 1):
        try:
            return call()
        except PenstockError as error:
            if not error.retry:
                raise
        pause(randrange(below_ms) / 1_000)
    return call()


@final
class KinesisCheckpointer:
    """Checkpoints shards at regular times, each up to the last record that is stored, if that has advanced.

    It behaves as the class of the same name in Spark does, with these differences. Sequence numbers are compared as
    integers, and keep their sub-sequence number. A shard that was removed begins anew when it comes back. The end of a
    shard is written once all its records are stored: until then ``remove_checkpointer`` leaves it to a later tick.

    A failed checkpoint is a warning, and the next tick tries again with the position that the shard then has. No
    checkpoint runs beside another one.

    Args:
        receiver: says up to where records are stored.
        interval: time between ticks, at least 1 millisecond, such as ``"60 seconds"``. Ticks are at its multiples since
            the epoch; the first one comes after construction. Ticks that were missed run back to back.
        worker_id: names the thread, and stands in log lines.
        clock: the time; the machine's by default. ``ps.testing.ManualClock`` is one that only a test moves.
        prepare: called before each pass, and may set and remove shards. If it fails, the pass is left out.
        pause: called with the seconds of each wait between attempts.

    Raises:
        GraphError: ``interval`` is no such length of time.

    >>> from penstock.testing import ManualClock
    >>> class Progress:
    ...     def stored(self, shard):
    ...         return After(4960)
    >>> class Print:
    ...     def checkpoint(self, position=None):
    ...         print(position)
    >>> checkpointer = KinesisCheckpointer(Progress(), "60 seconds", "worker-1", ManualClock())
    >>> checkpointer.set_checkpointer("shardId-000000000000", Print())
    >>> checkpointer.shutdown()
    After(seq=4960, sub=0)

    Source: ``KinesisCheckpointer.scala`` and ``KinesisRecordProcessor.retryRandom`` of Spark's ``kinesis-asl``.
    """

    def __init__(
        self,
        receiver: StoredPositions,
        interval: str,
        worker_id: str,
        clock: TimerClock | None = None,
        *,
        prepare: Callable[[], None] | None = None,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._receiver = receiver
        self._prepare = prepare
        self._worker_id = worker_id
        self._pause = pause
        self._checkpointers: dict[str, ShardCheckpointer | None] = {}
        self._ends: dict[str, ShardCheckpointer] = {}  # shards that are removed, and have records that are not stored
        self._last: dict[str, After] = {}
        # Held while a shard is looked up and written: what is removed stays unwritten. A store may remove its shard.
        self._writing = threading.RLock()
        self._is_shut = False
        every = parse_duration("interval", interval, least=1_000)
        name = f"Kinesis Checkpointer - Worker {worker_id}"
        self._timer = RecurringTimer(clock or MachineTimerClock(), every, self._checkpoint_all, name)
        self._timer.start()

    def set_checkpointer(self, shard: str, checkpointer: ShardCheckpointer | None) -> None:
        """Use ``checkpointer`` for a shard from the next tick on, instead of another one; ``None`` skips it."""
        self._ends.pop(shard, None)  # the shard is read again
        self._checkpointers[shard] = checkpointer

    def remove_checkpointer(self, shard: str, checkpointer: ShardCheckpointer | None) -> bool:
        """Checkpoint a shard no more; waits for the tick that is writing it.

        Args:
            shard: its id; one that was not set is no error.
            checkpointer: marks the shard as finished. ``None`` if the lease is lost: then nothing is written.

        Returns:
            Whether the end is written. ``False`` without a checkpointer, and while records of the shard are not stored:
            the first tick after they are writes the end.

        Raises:
            Exception: what ``checkpointer`` raised, after its retries; it is logged.
        """
        with self._writing:
            self._checkpointers.pop(shard, None)
            self._ends.pop(shard, None)
            self._last.pop(shard, None)
        if checkpointer is None:
            return False
        if not isinstance(self._receiver.stored(shard), Finished):
            self._ends[shard] = checkpointer
            return False
        try:
            self._retry(checkpointer.checkpoint)
        except Exception:
            log.exception("worker %s could not checkpoint that shard %s is finished", self._worker_id, shard)
            raise
        return True

    def shutdown(self) -> None:
        """Stop the timer without interrupting a tick, checkpoint all shards a last time, and forget them.

        It does nothing the second time. Shards with records that are not stored get no end: they are read again.
        """
        self._timer.stop()
        if self._is_shut:
            return
        self._is_shut = True
        self._checkpoint_all()
        for shard in self._ends:
            log.warning("worker %s leaves shard %s open: records of it are not stored", self._worker_id, shard)
        self._checkpointers.clear()
        self._ends.clear()
        self._last.clear()
        log.info("worker %s has shut down its Kinesis checkpointer", self._worker_id)

    def _checkpoint_all(self) -> None:
        if self._prepare is not None:
            try:
                self._prepare()
            except MemoryError:
                raise
            except Exception as error:
                log.warning("worker %s checkpoints no shard now: %s", self._worker_id, error)
                return
        for shard in tuple(self._checkpointers):
            try:
                self._checkpoint(shard)
            except MemoryError:
                raise
            except Exception as error:
                log.warning("worker %s could not checkpoint shard %s: %s", self._worker_id, shard, error)
        for shard in tuple(self._ends):
            try:
                self._finish(shard)
            except MemoryError:
                raise
            except Exception:
                log.exception("worker %s could not checkpoint that shard %s is finished", self._worker_id, shard)

    def _checkpoint(self, shard: str) -> None:
        with self._writing:
            if shard not in self._checkpointers:
                return
            checkpointer = self._checkpointers[shard]
            if checkpointer is None:
                log.debug("worker %s skips shard %s, which has no checkpointer", self._worker_id, shard)
                return
            position, last = self._receiver.stored(shard), self._last.get(shard)
            if not isinstance(position, After) or (last is not None and order(position) <= order(last)):
                return
            self._retry(lambda: checkpointer.checkpoint(position))
            if shard in self._checkpointers:
                self._last[shard] = position
            log.debug("worker %s has checkpointed shard %s at %s", self._worker_id, shard, position)

    def _finish(self, shard: str) -> None:
        with self._writing:
            if shard in self._ends and isinstance(self._receiver.stored(shard), Finished):
                self._retry(self._ends[shard].checkpoint)
                self._ends.pop(shard, None)  # set_checkpointer may have done so

    def _retry(self, call: Callable[[], None]) -> None:
        retry_random(call, pause=self._pause)
