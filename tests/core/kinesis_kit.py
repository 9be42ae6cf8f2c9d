"""A reader of a fake Kinesis, polled again and again as the runtime does it; what it read is kept."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from core.checkpointer_kit import TickClock
from core.dynamo_fake import DynamoFake, away
from kinesis_fake import FakeKinesis
from penstock.connectors.kinesis.frames import ShardRecords
from penstock.connectors.kinesis.lease_commits import LeaseCommits
from penstock.connectors.kinesis.reader import FetchedBatch, KinesisReader
from penstock.connectors.kinesis.shards import decode
from penstock.connectors.kinesis.source import Source
from penstock.handles import CheckpointId, Position
from penstock.interfaces.source import CaughtUp, NoData, PlannedBatch, PollResult, ReadLimit, SourceContext, Until
from penstock.testing.clock import ManualClock


class Rows(list[Any]):
    """What would become a table."""

    @property
    def num_rows(self) -> int:
        return len(self)


class FakeFrames:
    def table(self, records: Sequence[ShardRecords]) -> Rows:
        return Rows((part.shard, record) for part in records for record in part.records)

    def metrics(self, table: Any) -> dict[str, Any]:
        return {}


class Line:
    """The way of one process to DynamoDB, which is cut when that process is killed."""

    def __init__(self, dynamo: DynamoFake) -> None:
        self._dynamo = dynamo
        self.is_cut = False

    def __getattr__(self, request: str) -> Any:
        def ask(**arguments: Any) -> Any:
            if self.is_cut:
                raise away()
            return getattr(self._dynamo, request)(**arguments)

        return ask


class Bench:
    """A reader on a stream, and the clock of both."""

    def __init__(
        self,
        shards: int = 1,
        *,
        until: Until = Until.STOPPED,
        limits: ReadLimit | None = None,
        stream: FakeKinesis | None = None,
        opens: bool = True,
        dynamo: DynamoFake | None = None,
        **source: Any,
    ) -> None:
        self.clock = ManualClock()
        self.stream = stream or FakeKinesis(self.clock, shards=shards)
        self.stream.clock = self.clock
        self.limits = limits or ReadLimit()
        self.facts: list[Any] = []
        self.source = Source("orders", **source)
        self.until = until
        self.random = random.Random(7).random
        self.read: list[tuple[str, str, bytes]] = []
        """Shard, key and data of each row, in order."""
        self.plans: list[PlannedBatch] = []
        self.dynamo = dynamo or DynamoFake("app")
        self.pauses: list[float] = []
        self.while_pausing = lambda: None
        self.completed = 0
        if opens:
            self.open()

    def open(self, position: Position | None = None, source: Source | None = None) -> KinesisReader:
        source = source or self.source
        self.reader = KinesisReader(
            source,
            SourceContext(
                uid="in",
                spark=None,  # type: ignore[arg-type]
                until=self.until,
                report=self.facts.append,
                wall=self.clock.wall,
            ),
            None if position is None else decode(position),
            client=self.stream,
            frames=FakeFrames(),  # type: ignore[arg-type]
            clock=self.clock,
            threads=0,
            random=self.random,
            leases=self._leases(source),
        )
        return self.reader

    def _leases(self, source: Source) -> LeaseCommits:
        """Those of a new process: with a clock and a way to the table of its own."""
        self.lease_clock, self.line = TickClock(), Line(self.dynamo)

        def pause(seconds: float) -> None:
            self.pauses.append(seconds)
            if seconds >= 1:
                self.while_pausing()

        context = SourceContext(uid="in", spark=None, report=self.facts.append)  # type: ignore[arg-type]
        return LeaseCommits(source.leases, context, client=self.line, clock=self.lease_clock, pause=pause)

    def complete(self, position: Position | None = None) -> None:
        """A checkpoint of the reader's position, or of an earlier one, has completed."""
        self.completed += 1
        self.reader.committed(CheckpointId(self.completed), position or self.reader.position())

    def kill(self) -> None:
        """The process ends, and nothing that it would still write reaches the table."""
        self.line.is_cut = True
        self.reader.close()

    def crash(self) -> None:
        """Open the reader again at its position, which is all that is left of it."""
        self.open(self.reader.position())

    def poll(self, limits: ReadLimit | None = None) -> PollResult:
        answer = self.reader.poll(now=self.clock.now(), wall=self.clock.wall(), limits=limits or self.limits)
        match answer:
            case PlannedBatch(plan=FetchedBatch(table=table)):
                self.plans.append(answer)
                self.read += [(shard, record.partition_key, record.data) for shard, record in table]
            case NoData(wake_at=wake_at):
                assert wake_at > self.clock.now()
                due = [each.due for each in self.reader._pool._steppers if each.due is not None]
                self.clock.move_to(max(wake_at, min(due, default=wake_at)))  # no poll before has anything to do
        return answer

    def until_quiet(self, polls: int = 12) -> list[bytes]:
        """Poll until nothing came for so long; returns the data of all rows so far."""
        quiet = 0
        while quiet < polls:
            answer = self.poll()
            if isinstance(answer, CaughtUp):
                break
            quiet = 0 if isinstance(answer, PlannedBatch) else quiet + 1
        return self.data

    @property
    def data(self) -> list[bytes]:
        return [data for _, _, data in self.read]

    def position(self, shard: str) -> Any:
        return decode(self.reader.position()).shards[shard].position
