"""Looking for the shards of a stream: at intervals, and at once when one of them has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.clock import MonotonicTime
from penstock.connectors.kinesis.client import (
    FailureKind,
    describe,
    failure_kind,
    is_of_boto,
    list_shards,
    source_error,
)
from penstock.connectors.kinesis.fetch import FAIL_AFTER, Backoff
from penstock.connectors.kinesis.shards import uncovered

if TYPE_CHECKING:
    from penstock.connectors.kinesis.client import KinesisClient, StreamAddress, StreamSummary
    from penstock.connectors.kinesis.shards import Listing
    from penstock.errors import ConnectorError

log: Final = logging.getLogger("penstock")


class StreamWatcher:
    """Lists the shards of a stream. Runs in a ``FetchPool``; the reader takes over what it has found.

    Args:
        client: of boto3.
        address: the stream.
        every: microseconds between two listings; a random tenth is added, so that jobs spread out.
        random: gives numbers from 0 to 1.

    Attributes:
        summary: the stream at the last listing.
        listing: its shards then.
        number: of that listing, counted from 1.
        failure: why no more are made.
    """

    def __init__(
        self, client: KinesisClient, address: StreamAddress, *, every: int, random: Callable[[], float]
    ) -> None:
        self._client = client
        self._address = address
        self._every = every
        self._random = random
        self._backoff = Backoff(random)
        self._due = MonotonicTime(-(2**62))
        self._begun = 0
        self._is_wanted = False
        self.summary: StreamSummary | None = None
        self.listing: Listing = {}
        self.number = 0
        self.failure: ConnectorError | None = None

    @property
    def due(self) -> MonotonicTime | None:
        """When the next listing is due."""
        return None if self.failure is not None else self._due

    def want(self, now: MonotonicTime) -> int:
        """Ask for a listing that begins from now on; returns the number that it or a later one will have."""
        if self._backoff.since is None:
            self._due = min(self._due, now)
        self._is_wanted = True
        return self._begun + 1

    def step(self, now: MonotonicTime) -> None:
        """List the shards."""
        self._begun += 1
        self._is_wanted = False
        self._due = MonotonicTime(now + self._every + int(self._every * self._random() / 10))
        try:
            summary, listing = describe(self._client, self._address), list_shards(self._client, self._address)
        except Exception as error:
            if not is_of_boto(error):
                raise
            self._failed(error, now)
            return
        if self._is_incomplete(listing, now):
            return
        self._backoff.succeeded()
        self.summary, self.listing, self.number = summary, listing, self._begun
        if self._is_wanted:
            self._due = now

    def _is_incomplete(self, listing: Listing, now: MonotonicTime) -> bool:
        """Whether open shards are missing: then nothing is concluded from what is not listed (for five minutes)."""
        gap = uncovered(listing)
        if gap is None:
            return False
        self._due = self._backoff.failed(now)
        if self._backoff.is_long(now):
            log.warning(
                "stream %s: no open shard has the hash keys from %d to %d; a listing seems to be incomplete",
                *(self._address.stream, *gap),
            )
        since = self._backoff.since
        return since is None or now < since + FAIL_AFTER

    def _failed(self, error: Exception, now: MonotonicTime) -> None:
        kind = failure_kind(error)
        if kind in (FailureKind.REFUSED, FailureKind.INVALID):
            self.failure = source_error(error, self._address)
            return
        self._due = self._backoff.failed(now)
        if self._backoff.is_long(now):
            log.warning("stream %s: %s", self._address.stream, source_error(error, self._address))
        since = self._backoff.since
        if kind is not FailureKind.THROTTLED and since is not None and now >= since + FAIL_AFTER:
            self.failure = source_error(error, self._address)
