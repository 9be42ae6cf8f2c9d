"""``ps.kafka.Source``: topics of a Kafka cluster as a source."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from penstock.clock import parse_duration
from penstock.connectors.kafka.config import (
    CommitChoice,
    CommitMode,
    CommitOption,
    Isolation,
    JsonColumn,
    KafkaConfig,
    OnLostOffsets,
    check_choice,
    check_options,
    choose_commit_mode,
    parse_group,
    parse_servers,
    parse_stall_timeouts,
    parse_topics,
)
from penstock.connectors.kafka.metadata import backlog_of
from penstock.connectors.kafka.offsets import (
    KIND,
    OFFSET_RESETS,
    OffsetReset,
    StartText,
    StopText,
    decode,
    parse_start,
    parse_stop,
)
from penstock.connectors.limits import check_limit
from penstock.handles import Guarantee

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.connectors.kafka.reader import KafkaReader
    from penstock.handles import Position
    from penstock.interfaces.source import Backlog, ReadIn, SourceContext

log = logging.getLogger("penstock")


@dataclass(frozen=True, init=False)
class Source(KafkaConfig):
    """Topics of a Kafka cluster. Exactly-once: where to read on is in the checkpoint, never taken from the broker.

    Rows have the columns ``key BINARY``, ``value BINARY``, ``headers ARRAY<STRUCT<key STRING, value BINARY>>``,
    ``topic STRING``, ``partition INT``, ``offset BIGINT`` and ``timestamp TIMESTAMP``; a source that can have several
    topics has ``topic_partition STRING`` (``orders-3``) too. Each partition has a watermark of its own. Rows of one
    partition come in its order.

    ``start`` counts once, when the source has no position: then everything goes on from the checkpoint. Partitions that
    appear later, and topics that a pattern or a longer list matches later, are read from their earliest record on.

    Args:
        servers: ``"host:port"``, several with commas or as a list.
        topics: names of topics, which must exist. Or:
        pattern: a regular expression that a topic's whole name matches. Internal ones (``__…``) never do.
        start: ``"earliest"``, so that a first start misses nothing that is still there; ``"latest"``; ``"committed"``,
            the group's offsets; a time with its zone, as text or ``datetime``: the first record of each partition that
            is not older, its end if there is none; or offsets, ``{"orders": {0: 120, 1: "latest"}}``.
        start_otherwise: where to begin in partitions that ``"committed"`` or offsets say nothing of: ``"earliest"``,
            ``"latest"``, or ``"fail"``.
        stop: read up to there and end; the watermark then goes to the end of time. ``"latest"``: what is there at the
            first start; a time: before the first record of each partition that is not older; or offsets, the first
            that are not read. It is fixed at the first start. Such a source takes no new partitions.
        group: a consumer group, to commit offsets to for monitoring and to take them from if ``start`` says so.
        commit: ``"on-checkpoints"`` (the default with a group) commits the offsets of each complete checkpoint,
            ``"periodic"`` those that are read, every ``commit_interval``, ``"disabled"`` none. A commit that fails
            fails nothing else.
        commit_interval: for ``"periodic"``.
        isolation: ``"read_committed"`` leaves out records of open and aborted transactions; ``"read_uncommitted"``.
        on_lost_offsets: what to do when records that were to be read are no longer there (expired, truncated, topic
            deleted or made again): ``"fail"``, or ``"continue"`` behind them, each range reported as a loss.
        gone_after: how long a topic or partition must be missing before it counts as gone.
        discover_every: how often to look for new partitions and topics; ``None`` looks at each start only.
        max_rows_per_batch: most rows a batch takes; the job's own setting holds too.
        max_bytes_per_batch: about how many bytes a batch takes at most, judged by the rows before.
        read_in: where records are fetched: ``"driver"``, which is quick for small batches, ``"executors"``, which is
            fast for large ones, or ``"auto"``, by size.
        warn_stalled_after: how long a partition may give nothing though records wait, before a warning is logged.
        reopen_stalled_after: before another connection is tried.
        fail_stalled_after: before the job fails and restarts.
        options: properties of the client library (librdkafka), such as ``security.protocol``. Secrets are referred to:
            ``{"sasl.password": ps.kafka.env("KAFKA_PASSWORD")}`` or ``ps.kafka.file("/run/secrets/kafka")``.

    Raises:
        GraphError: an argument is impossible, or holds a secret.

    >>> Source(servers="localhost:9092", topics=["orders"]).describe()
    'kafka orders at localhost:9092'
    """

    position_kind: ClassVar[str] = KIND

    def __init__(  # noqa: PLR0913 - the arguments of a Kafka source
        self,
        *,
        servers: str | Sequence[str],
        topics: Sequence[str] | None = None,
        pattern: str | None = None,
        start: StartText = "earliest",
        start_otherwise: OffsetReset = "fail",
        stop: StopText | None = None,
        group: str | None = None,
        commit: CommitOption | None = None,
        commit_interval: str = "5 seconds",
        isolation: Isolation = "read_committed",
        on_lost_offsets: OnLostOffsets = "fail",
        gone_after: str = "5 seconds",
        discover_every: str | None = "10 seconds",
        max_rows_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        read_in: ReadIn = "auto",
        warn_stalled_after: str = "30 seconds",
        reopen_stalled_after: str = "1 minute",
        fail_stalled_after: str = "5 minutes",
        options: Mapping[str, object] | None = None,
    ) -> None:
        check_choice("start_otherwise", start_otherwise, OFFSET_RESETS)
        check_choice("isolation", isolation, ("read_committed", "read_uncommitted"))
        check_choice("on_lost_offsets", on_lost_offsets, ("fail", "continue"))
        check_choice("read_in", read_in, ("auto", "driver", "executors"))
        check_choice("commit", commit, (None, *(mode.value for mode in CommitMode)))
        check_limit("max_rows_per_batch", max_rows_per_batch)
        check_limit("max_bytes_per_batch", max_bytes_per_batch)
        values: dict[str, object] = {
            "servers": parse_servers(servers),
            "topics": parse_topics(topics, pattern),
            "pattern": pattern,
            "start": parse_start(start),
            "start_otherwise": start_otherwise,
            "stop": None if stop is None else parse_stop(stop),
            "group": parse_group(group, start),
            "commit_choice": choose_commit_mode(None if commit is None else CommitMode(commit), group),
            "commit_interval": parse_duration("commit_interval", commit_interval, least=1_000),
            "isolation": isolation,
            "on_lost_offsets": on_lost_offsets,
            "gone_after": parse_duration("gone_after", gone_after),
            "discover_every": None if discover_every is None else parse_duration("discover_every", discover_every),
            "max_rows_per_batch": max_rows_per_batch,
            "max_bytes_per_batch": max_bytes_per_batch,
            "read_in": read_in,
            "stall_timeouts": parse_stall_timeouts(warn_stalled_after, reopen_stalled_after, fail_stalled_after),
            "options": check_options(options or {}),
            "json": None,
            "needed_columns": None,
            "replay_end": None,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def guarantee(self) -> Guarantee:
        """Replaying a position reads the same offsets again; a compacted topic may have fewer records left."""
        return Guarantee.EXACTLY_ONCE

    def decoding(self, column: str, record: StructType) -> Source | None:
        """The same source with ``key`` or ``value`` decoded from JSON while it is read, where the result is exact."""
        from penstock.formats.json_arrow import decoder_of

        decoder = decoder_of(record) if self.json is None and column in ("key", "value") else None
        if decoder is None:
            return None
        return self._with(json=JsonColumn(column, record, decoder))

    def only(self, columns: Collection[str]) -> Source:
        """The same source with ``NULL`` in all other columns, which saves making them."""
        return self._with(needed_columns=frozenset(columns))

    def replayed(self, end: Position | None) -> Source:
        """The same topics without commits to the group; a run until caught up ends at ``end``, if given."""
        replay_end = None if end is None else decode(end).next
        return self._with(commit_choice=CommitChoice(CommitMode.DISABLED), replay_end=replay_end)

    def _with(self, **changes: object) -> Source:
        """The same source with other values of some fields, which are not checked again."""
        other = object.__new__(Source)
        for field in fields(self):
            object.__setattr__(other, field.name, changes.get(field.name, getattr(self, field.name)))
        return other

    def open(self, context: SourceContext, resume: Position | None) -> KafkaReader:
        """A reader that goes on after ``resume``.

        Raises:
            StateIncompatible: the position is not one of a Kafka source.
            SettingsError: the client library is missing, or a property is none.
            ConnectorError: ``start`` or ``stop`` cannot be found in the topics.
            SourceUnavailable: the cluster cannot be reached, or a topic does not exist.
            SourceChanged: records that were to be read are gone, and ``on_lost_offsets`` is ``"fail"``.
        """
        from penstock.connectors.kafka.reader import KafkaReader

        position = None if resume is None else decode(resume)
        if self.commit_choice.warning is not None:
            log.warning("source %s: %s", context.uid, self.commit_choice.warning)
        if position is None:
            log.info("source %s has no position: it starts at %s", context.uid, self.start)
        return KafkaReader(self, context, position)

    def backlog(self, resume: Position | None) -> Backlog:
        """What waits for a reader at this position. Asks the brokers, commits nothing."""
        return backlog_of(self, resume)

    def describe(self) -> str:
        """Topics and servers, for people; none of the client's properties."""
        what = ", ".join(self.topics) if self.pattern is None else f"topics like {self.pattern}"
        return f"kafka {what} at {self.servers}"
