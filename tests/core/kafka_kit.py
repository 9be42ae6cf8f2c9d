"""A cluster that does what a test says: logs with gaps and control records, brought in any portions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.clock import MonotonicTime, WallTime
from penstock.connectors.kafka.offsets import (
    AvailableOffsets,
    KafkaPosition,
    OffsetRange,
    Offsets,
    Topic,
    TopicPartition,
    Topics,
)
from penstock.connectors.kafka.reader import DriverBatch, ExecutorBatch, KafkaReader
from penstock.connectors.kafka.source import Source
from penstock.errors import ConnectorError
from penstock.interfaces.source import (
    CaughtUp,
    Ended,
    NoData,
    PlannedBatch,
    PollResult,
    ReadLimit,
    SourceContext,
    Until,
)

MILLISECOND = 1_000


class FakeTrouble:
    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name

    def str(self) -> str:
        return f"{self._name} was said"


@dataclass(frozen=True)
class FakeMessage:
    at: TopicPartition
    place: int
    payload: bytes | None = b"v"
    trouble: FakeTrouble | None = None

    def error(self) -> FakeTrouble | None:
        return self.trouble

    def topic(self) -> str:
        return self.at.topic

    def partition(self) -> int:
        return self.at.partition

    def offset(self) -> int:
        return self.place

    def timestamp(self) -> tuple[int, int]:
        return 1, self.place

    def key(self) -> bytes | None:
        return b"k"

    def value(self) -> bytes | None:
        return self.payload

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return None

    def __len__(self) -> int:
        return len(self.payload or b"")


@dataclass
class FakeLog:
    """One partition: which offsets hold a record, where it begins, where it ends, and up to where it is stable."""

    records: dict[int, bytes | None] = field(default_factory=dict)
    earliest: int = 0
    end: int = 0
    open: int | None = None

    @property
    def stable(self) -> int:
        return self.end if self.open is None else self.open

    def append(self, *payloads: bytes | None) -> None:
        for payload in payloads:
            self.records[self.end] = payload
            self.end += 1

    def marker(self) -> None:
        """A control record: it takes an offset and is never handed out."""
        self.end += 1


class Now:
    """An answer that comes after so many looks for it."""

    def __init__(self, made: Callable[[], Any], after: int = 0) -> None:
        self._made = made
        self._after = after
        self._value: Any = None
        self._error: ConnectorError | None = None
        self._done = False

    def ready(self) -> bool:
        if not self._done and self._after <= 0:
            self._done = True
            try:
                self._value = self._made()
            except ConnectorError as error:
                self._error = error
        self._after -= 1
        return self._done

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, seconds: float) -> bool:
        self._after = 0
        return self.ready()


class FakeCluster:
    """Topics as logs. ``away`` is what every question is answered with, if anything."""

    def __init__(self, **topics: int) -> None:
        self.ids_of = {name: f"{name}-1" for name in topics}
        self.logs = {TopicPartition(name, part): FakeLog() for name, count in topics.items() for part in range(count)}
        self.commits: list[Offsets] = []
        self.refuses: ConnectorError | None = None
        self.group: dict[TopicPartition, int] = {}
        self.away: ConnectorError | None = None
        self.slow = 0
        self.deaf = False
        self.portion = 1_000_000
        self.consumers: list[FakeConsumer] = []
        self.troubles: list[FakeTrouble] = []
        self.closed = 0

    def log(self, partition: int = 0, topic: str = "orders") -> FakeLog:
        return self.logs.setdefault(TopicPartition(topic, partition), FakeLog())

    def recreate(self, topic: str) -> None:
        self.ids_of[topic] += "'"
        for at in self.logs:
            if at.topic == topic:
                self.logs[at] = FakeLog()

    def _answer(self, made: Callable[[], Any]) -> Now:
        def checked() -> Any:
            if self.away is not None:
                raise self.away
            return made()

        return Now(checked, self.slow)

    def list_topics(self) -> Now:
        return self._answer(lambda: frozenset(self.ids_of))

    def topic_ids(self, names: Collection[str]) -> Now:
        return self._answer(lambda: {name: self.ids_of[name] for name in names if name in self.ids_of})

    def describe_topics(self, names: Collection[str], known: Topics) -> Now:
        return self._answer(lambda: {name: self._topic(name) for name in names if name in self.ids_of})

    def _topic(self, name: str) -> Topic:
        parts = {
            at.partition: AvailableOffsets(log.earliest, log.stable)
            for at, log in self.logs.items()
            if at.topic == name
        }
        return Topic(id=self.ids_of[name], partitions=parts)

    def offsets_for_time(self, millis: int, partitions: Collection[TopicPartition]) -> Now:
        return self._answer(lambda: dict.fromkeys(partitions, millis))

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Now:
        return self._answer(lambda: {at: self.group.get(at) for at in partitions})

    def commit(self, offsets: Offsets) -> Now:
        def made() -> None:
            if self.refuses is not None:
                raise self.refuses
            self.commits.append(dict(offsets))

        return self._answer(made)

    def take_errors(self) -> Sequence[FakeTrouble]:
        found, self.troubles = self.troubles, []
        return found

    def new_consumer(self) -> FakeConsumer:
        self.consumers.append(FakeConsumer(self))
        return self.consumers[-1]

    def close(self) -> None:
        self.closed += 1


class FakeConsumer:
    """Brings what is in the logs, at most ``portion`` events at a time, and says when it is at an end."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.at: dict[TopicPartition, int] = {}
        self._told: dict[TopicPartition, int] = {}
        self.events: list[FakeMessage] = []
        self.deaf = False
        self.closed = False

    def assign(self, offsets: Offsets) -> None:
        assert not set(offsets) & set(self.at)
        self.at |= offsets

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        for at in partitions:
            del self.at[at]
            self._told.pop(at, None)

    def take(self, most: int, *, wait: float = 0) -> Sequence[FakeMessage]:
        found, self.events = self.events[:most], self.events[most:]
        if self.deaf or self._cluster.deaf or self._cluster.away is not None:
            return found
        for at in sorted(self.at):
            log = self._cluster.logs.get(at)
            if log is None:
                continue
            found += self._of(at, log, min(most, self._cluster.portion) - len(found))
        return found

    def _of(self, at: TopicPartition, log: FakeLog, most: int) -> list[FakeMessage]:
        found = []
        if self.at[at] < log.earliest or self.at[at] > log.end:
            return [FakeMessage(at, self.at[at], trouble=FakeTrouble("_AUTO_OFFSET_RESET"))][: max(0, most)]
        while len(found) < most and self.at[at] < log.stable:
            if self.at[at] in log.records:
                found.append(FakeMessage(at, self.at[at], log.records[self.at[at]]))
            self.at[at] += 1
        if len(found) < most and self.at[at] == log.stable and self._told.get(at) != log.stable:
            self._told[at] = log.stable
            found.append(FakeMessage(at, log.stable, trouble=FakeTrouble("_PARTITION_EOF")))
        return found

    def close(self) -> None:
        self.closed = True


class FakeFrames:
    """Keeps what would become a frame."""

    def new_sizes(self) -> Mapping[str, tuple[int, int]]:
        return {}

    def table(self, records: Sequence[Any]) -> Any:
        return [(part.at, message.offset()) for part in records for message in part.messages]

    def metrics(self, table: Any) -> dict[str, Any]:
        return {}

    def of_table(self, table: Any) -> Any:
        return table

    def of_ranges(self, ranges: Sequence[OffsetRange]) -> Any:
        return ranges


class Bench:
    """A reader on a cluster, asked again and again as the runtime does it; what it read is kept."""

    def __init__(
        self, cluster: FakeCluster, *, until: Until = Until.STOPPED, limits: ReadLimit | None = None, **source: Any
    ) -> None:
        self.cluster = cluster
        self.limits = limits or ReadLimit()
        self.facts: list[Any] = []
        given = {"servers": "k:9092", **({"topics": ["orders"]} if "pattern" not in source else {}), **source}
        self.source = Source(**given)
        self._context = SourceContext(uid="in", spark=None, until=until, report=self.facts.append)  # type: ignore[arg-type]
        self.now = MonotonicTime(0)
        self.read: dict[TopicPartition, list[int]] = {}
        self.plans: list[PlannedBatch] = []
        self.open()

    def open(self, position: KafkaPosition | None = None) -> None:
        self.reader = KafkaReader(
            self.source,
            self._context,
            position,
            cluster=self.cluster,
            frames=FakeFrames(),  # type: ignore[arg-type]
        )

    def poll(self, limits: ReadLimit | None = None) -> PollResult:
        answer = self.reader.poll(now=self.now, wall=WallTime(0), limits=limits or self.limits)
        match answer:
            case PlannedBatch():
                self.plans.append(answer)
                for at, offset in self.rows(answer.plan):
                    self.read.setdefault(at, []).append(offset)
            case NoData(wake_at=wake_at):
                assert wake_at > self.now
                self.now = wake_at
        return answer

    def rows(self, plan: object) -> list[tuple[TopicPartition, int]]:
        if isinstance(plan, DriverBatch):
            return plan.table
        assert isinstance(plan, ExecutorBatch)
        return [(part.at, offset) for part in plan.ranges for offset in self._of(part)]

    def _of(self, part: OffsetRange) -> list[int]:
        return [offset for offset in sorted(self.cluster.logs[part.at].records) if part.start <= offset < part.end]

    def until_quiet(self, polls: int = 40) -> PollResult:
        """Poll until there was nothing for so long, or the end."""
        quiet = 0
        while True:
            answer = self.poll()
            quiet = quiet + 1 if isinstance(answer, NoData) else 0
            if quiet == polls or isinstance(answer, (CaughtUp, Ended)):
                return answer

    def offsets(self, partition: int = 0, topic: str = "orders") -> list[int]:
        return self.read.get(TopicPartition(topic, partition), [])

    def of(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]
