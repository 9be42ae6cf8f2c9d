"""Streams of the emulators for tests: what was put into one, a reader of it, and what the reader read."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from core.kinesis_kit import FakeFrames
from integration.kinesis_server import Emulator, EmulatorUnavailable, KinesisServer, ShardedStream
from penstock.clock import SystemClock
from penstock.connectors.kinesis.aggregation import UserRecord, pack
from penstock.connectors.kinesis.client import StreamAddress
from penstock.connectors.kinesis.producer import OutgoingRecord, RecordPutter
from penstock.connectors.kinesis.reader import KinesisReader
from penstock.connectors.kinesis.shards import decode
from penstock.connectors.kinesis.source import Source
from penstock.handles import Position
from penstock.interfaces.source import CaughtUp, PlannedBatch, ReadLimit, SourceContext, Until

if TYPE_CHECKING:
    from penstock.connectors.kinesis.lease_commits import LeaseCommits

PATIENCE = 120_000_000
CLOCK = SystemClock()
STEP = threading.Event()
_NAMES = itertools.count()


def server_of(
    emulator: Emulator, servers: dict[str, KinesisServer], tmp_path_factory: pytest.TempPathFactory
) -> KinesisServer:
    if emulator not in servers:
        server = KinesisServer(emulator, tmp_path_factory.mktemp(emulator))
        try:
            server.start()
        except EmulatorUnavailable as error:
            pytest.skip(str(error))
        servers[emulator] = server
    return servers[emulator]


class Stream(ShardedStream):
    """A stream of its own, what was put into it, and a reader of it.

    Args:
        server: where it is.
        shards: how many it has at first.
        limits: of a batch.
        commits: makes the reader's part in a lease table; by default it has none.
        opens: whether to open a reader at once.
        source: further arguments of the source.
    """

    def __init__(
        self,
        server: KinesisServer,
        shards: int,
        *,
        limits: ReadLimit | None = None,
        commits: Callable[[], LeaseCommits] | None = None,
        opens: bool = True,
        **source: Any,
    ) -> None:
        super().__init__(server, f"orders-{next(_NAMES)}", shards)
        self.server = server
        self.limits = limits or ReadLimit(rows=50)
        self.put: dict[str, list[bytes]] = {}
        self.number = 0
        self.read: list[tuple[str, bytes]] = []
        self.putter = RecordPutter(
            self.client, StreamAddress(stream=self.name), keeps_order=True, aggregates=False, random=random.Random(1)
        )
        self.commits = commits
        self.source = Source(self.name, poll_every="20 milliseconds", discover_every="1 second", **source)
        if opens:
            self.open()

    def add(self, count: int, keys: int = 20, *, aggregate: bool = False) -> None:
        records = []
        for _ in range(count):
            key = f"key-{self.number % keys}"
            texts = [b"%d" % (self.number + each) for each in range(3 if aggregate else 1)]
            self.number += keys * len(texts) + 1
            self.put.setdefault(key, []).extend(texts)
            data = pack([UserRecord(key, None, text) for text in texts]) if aggregate else texts[0]
            records.append(OutgoingRecord(key, data))
        self.putter.put(records)

    def open(self, position: Position | None = None, until: Until = Until.STOPPED, threads: int = 8) -> None:
        if hasattr(self, "reader"):
            self.reader.close()
        self.reader = KinesisReader(
            self.source,
            SourceContext(uid="in", spark=None, until=until, wall=CLOCK.wall),  # type: ignore[arg-type]
            None if position is None else decode(position),
            client=self.client,
            frames=FakeFrames(),  # type: ignore[arg-type]
            threads=threads,
            leases=None if self.commits is None else self.commits(),
        )

    def poll(self) -> Any:
        answer = self.reader.poll(now=CLOCK.now(), wall=CLOCK.wall(), limits=self.limits)
        if isinstance(answer, PlannedBatch):
            self.read += [(record.partition_key, record.data) for _, record in answer.plan.table]  # type: ignore[attr-defined]
        elif not isinstance(answer, CaughtUp):
            STEP.wait(0.002)
        return answer

    def read_all(self) -> None:
        """Poll until as many rows came as were put; then for a while, in which no more may come."""
        total, until = sum(map(len, self.put.values())), CLOCK.now() + PATIENCE
        while len(self.read) < total and CLOCK.now() < until:
            self.poll()
        for _ in range(100):
            self.poll()

    def check(self) -> None:
        """Each record once, those of a key in order."""
        self.read_all()
        self.reader.close()
        self.check_read()
        self.client.delete_stream(StreamName=self.name)

    def check_read(self) -> None:
        """What was read is what was put."""
        got: dict[str, list[bytes]] = {}
        for key, data in self.read:
            got.setdefault(key, []).append(data)
        assert got == self.put
