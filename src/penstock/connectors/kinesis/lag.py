"""How far a reader is behind the ends of its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from penstock.clock import SystemClock, format_time
from penstock.connectors.kinesis.client import describe, is_of_boto, list_shards, new_client, source_error
from penstock.connectors.kinesis.shards import check_identity
from penstock.facts import THROTTLED, THROTTLED_MS, PartitionLag, SourceLag
from penstock.interfaces.source import Backlog

if TYPE_CHECKING:
    from penstock.connectors.kinesis.client import KinesisClient
    from penstock.connectors.kinesis.config import KinesisConfig
    from penstock.connectors.kinesis.fetch import ShardFetcher
    from penstock.connectors.kinesis.shards import KinesisPosition, Listing

NEAR_HORIZON: Final = 10
"""A position in the oldest tenth of the time that a stream keeps records is close to losing some."""


def report_lag(task: str, fetchers: Mapping[str, ShardFetcher]) -> SourceLag:
    """The lag of the shards that are read now.

    Seconds are those from the last record that was fetched to the end of its shard, as Kinesis says with each page
    (MillisBehindLatest). Kinesis counts no records: rows are those that were fetched and wait, and an estimate of the
    others, by the rate at which the last page's records arrived.
    """
    partitions = {
        shard: PartitionLag(
            rows=fetcher.buffered + fetcher.estimate_waiting(),
            seconds=None if fetcher.behind is None else fetcher.behind / 1_000,
            name=shard,
        )
        for shard, fetcher in sorted(fetchers.items())
    }
    seconds = [lag.seconds for lag in partitions.values()]
    known = [value for value in seconds if value is not None]
    return SourceLag(
        task=task,
        rows=sum(lag.rows for lag in partitions.values()),
        seconds=max(known, default=0.0) if len(known) == len(seconds) else None,
        eta_seconds=None,
        partitions=partitions,
    )


class ThrottleMeter:
    """Counts the requests that Kinesis has refused because there were too many, and how long they were waited for.

    Args:
        count: lets a counter of the source grow.
    """

    def __init__(self, count: Callable[[str, int], None]) -> None:
        self._count = count
        self._seen: dict[str, tuple[int, int]] = {}

    def note(self, shard: str, fetcher: ShardFetcher) -> None:
        """Count what is new since the last call for a fetcher."""
        now = fetcher.throttled, fetcher.throttled_micros
        before = self._seen.get(shard, (0, 0))
        if now != before:
            self._seen[shard] = now
            self.add(now[0] - before[0], now[1] - before[1])

    def add(self, requests: int, micros: int) -> None:
        """Count some requests."""
        if requests:
            self._count(THROTTLED, requests)
            self._count(THROTTLED_MS, -(-micros // 1_000))

    def forget(self, shard: str, fetcher: ShardFetcher) -> None:
        """Count the last of a fetcher, which is used no more."""
        self.note(shard, fetcher)
        self._seen.pop(shard, None)


# ---- without a reader ------------------------------------------------------------------------------------------------


def backlog_of(
    config: KinesisConfig,
    position: KinesisPosition | None,
    *,
    client: KinesisClient | None = None,
    wall: int | None = None,
) -> Backlog:
    """What waits for a reader of this source. Kinesis counts no records, so this says what would go wrong, and where.

    Raises:
        ConnectorError: the stream cannot be described.
        SourceChanged: it is another one than that of the position.
    """
    client = client if client is not None else new_client(config.address)
    now = SystemClock().wall() // 1_000 if wall is None else wall
    try:
        summary, listing = describe(client, config.address), list_shards(client, config.address)
    except Exception as error:
        if not is_of_boto(error):
            raise
        raise source_error(error, config.address) from error
    if position is None:
        return Backlog(warnings=())
    check_identity(position, summary.arn, summary.created)
    return Backlog(warnings=tuple(_warnings(config, position, listing, now - summary.retention, now)))


def _warnings(
    config: KinesisConfig, position: KinesisPosition, listing: Listing, horizon: int, now: int
) -> Iterator[str]:
    consequence = "they are left out and reported"
    if config.on_lost_records == "fail":
        consequence = "the start fails (on_lost_records='fail')"
    for shard in position.unfinished:
        until = position.shards[shard].read_until
        if shard not in listing:
            yield f"{shard} is gone, and was not read to its end: {consequence}"
        elif until is not None and until < horizon:
            since = format_time(until * 1_000)
            yield f"{shard}: records that arrived since {since} may be kept no longer: {consequence}"
        elif until is not None and until - horizon < (now - horizon) // NEAR_HORIZON:
            left = (until - horizon) // 60_000
            yield f"{shard}: in {left} minutes the stream deletes records that were not read"
