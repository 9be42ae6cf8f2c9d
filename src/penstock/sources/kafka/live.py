"""The driver's own hands on topics: a consumer that fetches what comes, followed partition by partition. No plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.sources.kafka.fetch import Intake, Run

if TYPE_CHECKING:
    from penstock.sources.kafka.client import Live
    from penstock.sources.kafka.offsets import Offsets

_STEP: Final = 1_000
"""Most records that are taken at a time."""


class Hands:
    """Follows partitions with one consumer, which is made when it is needed first.

    Args:
        made: makes a consumer.
        servers: for the message of an error.
    """

    def __init__(self, made: Callable[[], Live], *, servers: str) -> None:
        self._made = made
        self._servers = servers
        self._consumer: Live | None = None
        self._intake = Intake({}, {}, servers=servers)
        self._row = 1024  # bytes of one, by those that were taken last

    @property
    def next(self) -> Offsets:
        """Where each partition that was to be followed stands."""
        return self._intake.next

    def follow(self, at: Offsets, end: Offsets) -> None:
        """Fetch exactly these partitions from now on; those that stand there already just go on.

        Args:
            at: where each is to be read on.
            end: where they end, of those that do.
        """
        stands = self._intake.next
        gone = [part for part, offset in stands.items() if at.get(part) != offset]
        new = {part: offset for part, offset in at.items() if stands.get(part) != offset}
        if gone and self._consumer is not None:
            self._consumer.drop(gone)
        if new:
            self._consumer = self._consumer or self._made()
            self._consumer.add(new)
        self._intake = Intake(at, end, servers=self._servers)

    def take(self, *, rows: int, bytes: int | None, wait: float) -> list[Run]:
        """Records that are here by now, those of a partition in order; at most so many, and about so many bytes.

        Raises:
            FetchFailed: a partition cannot be read further.
        """
        found: list[Run] = []
        count = size = 0
        while self._consumer is not None and count < rows and (bytes is None or size < bytes):
            most = min(rows - count, _STEP, _STEP if bytes is None else max(1, (bytes - size) // self._row))
            chunk = self._consumer.take(most, wait=0 if found else wait)
            runs = self._intake.take(chunk)
            found += runs
            count += sum(len(run.messages) for run in runs)
            size += sum(sum(map(len, run.messages)) for run in runs)
            if len(chunk) < most:
                break
        if count:
            self._row = max(1, size // count)
        return found

    def rest(self) -> None:
        """Fetch nothing more."""
        if self._consumer is not None and self._intake.next:
            self._consumer.drop(list(self._intake.next))
        self._intake = Intake({}, {}, servers=self._servers)

    def reopen(self) -> None:
        """Fetch nothing more, and with another consumer next time."""
        self.close()
        self._consumer = None
        self._intake = Intake({}, {}, servers=self._servers)

    def close(self) -> None:
        """Release the connection."""
        if self._consumer is not None:
            self._consumer.close()
