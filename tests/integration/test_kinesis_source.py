"""The reader and the putter against two emulators of Kinesis: "kinesis E1" and the like are numbers of scenarios."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from core.kinesis_kit import FakeFrames
from integration.kinesis_server import Emulator, EmulatorUnavailable, KinesisServer, ShardedStream, kinesis_server
from penstock.clock import SystemClock
from penstock.connectors.kinesis.aggregation import UserRecord, pack
from penstock.connectors.kinesis.client import StreamAddress
from penstock.connectors.kinesis.producer import OutgoingRecord, RecordPutter
from penstock.connectors.kinesis.reader import KinesisReader
from penstock.connectors.kinesis.shards import decode
from penstock.connectors.kinesis.source import Source
from penstock.handles import Position
from penstock.interfaces.source import CaughtUp, PlannedBatch, ReadLimit, SourceContext, Until

PATIENCE = 120_000_000
CLOCK = SystemClock()
STEP = threading.Event()
_NAMES = itertools.count()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, KinesisServer]]:
    """Emulators of the run, each started by the first test that asks for it."""
    started: dict[str, KinesisServer] = {}
    yield started
    for server in started.values():
        server.kill()


@pytest.fixture(params=["kinesis-local", "kinesalite"])
def server(request: pytest.FixtureRequest, servers, tmp_path_factory) -> KinesisServer:
    return server_of(request.param, servers, tmp_path_factory)


@pytest.fixture
def lineage_server(servers, tmp_path_factory) -> KinesisServer:
    return server_of("kinesis-local", servers, tmp_path_factory)


def server_of(emulator: Emulator, servers: dict[str, KinesisServer], tmp_path_factory) -> KinesisServer:
    if emulator not in servers:
        server = KinesisServer(emulator, tmp_path_factory.mktemp(emulator))
        try:
            server.start()
        except EmulatorUnavailable as error:
            pytest.skip(str(error))
        servers[emulator] = server
    return servers[emulator]


class Stream(ShardedStream):
    """A stream of its own, what was put into it, and a reader of it."""

    def __init__(self, server: KinesisServer, shards: int, *, limits: ReadLimit | None = None) -> None:
        super().__init__(server, f"orders-{next(_NAMES)}", shards)
        self.server = server
        self.limits = limits or ReadLimit(rows=50)
        self.put: dict[str, list[bytes]] = {}
        self.number = 0
        self.read: list[tuple[str, bytes]] = []
        self.putter = RecordPutter(
            self.client, StreamAddress(stream=self.name), keeps_order=True, aggregates=False, random=random.Random(1)
        )
        self.source = Source(self.name, poll_every="20 milliseconds", discover_every="1 second")
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
        got: dict[str, list[bytes]] = {}
        for key, data in self.read:
            got.setdefault(key, []).append(data)
        assert got == self.put
        self.client.delete_stream(StreamName=self.name)


def test_split_merge_and_a_child_that_is_split_before_its_parent_was_read(server: KinesisServer) -> None:
    """kinesis E1, E2, E3, V2: with both ways in which a closed shard ends."""
    stream = Stream(server, 2)
    stream.add(60)
    stream.add(5, aggregate=True)
    stream.read_all()
    stream.split()
    stream.add(60)
    stream.split()
    stream.add(60)
    stream.read_all()
    stream.merge(1)
    stream.add(60)
    stream.check()


def test_the_number_of_shards_changes_under_load(lineage_server: KinesisServer) -> None:
    """kinesis E4: from two to four and back."""
    stream = Stream(lineage_server, 2)
    for target in (4, 2):
        stream.add(50)
        stream.client.update_shard_count(StreamName=stream.name, TargetShardCount=target, ScalingType="UNIFORM_SCALING")
        stream.add(50)
        stream.await_active()
        stream.add(50)
        for _ in range(20):
            stream.poll()
    stream.check()


@pytest.mark.parametrize("seed", range(6))
def test_crashes_after_any_step(server: KinesisServer, seed: int) -> None:
    """kinesis E5: puts, splits, merges and restarts at an old checkpoint, in any order."""
    rng = random.Random(seed)
    stream = Stream(server, rng.randint(1, 2), limits=ReadLimit(rows=rng.choice([1, 4, 50])))
    saved = stream.reader.position(), 0
    for _ in range(25):
        stream.add(rng.randint(1, 10), aggregate=rng.random() < 0.3)
        if rng.random() < 0.3:
            count = len(stream.open_shards())
            stream.split(rng.randrange(count)) if count < 4 else stream.merge(rng.randrange(count - 1))
        for _ in range(rng.randint(0, 30)):
            stream.poll()
        if rng.random() < 0.4:
            saved = stream.reader.position(), len(stream.read)
        if rng.random() < 0.2:
            del stream.read[saved[1] :]
            stream.open(saved[0])
    stream.check()


def test_a_service_that_dies_and_comes_back_is_waited_for(tmp_path) -> None:
    """kinesis E10."""
    try:
        with kinesis_server("kinesis-local", tmp_path / "server", keeps=True) as server:
            stream = Stream(server, 2)
            stream.add(40)
            stream.read_all()
            STEP.wait(0.6)  # it writes its streams down every 0.2 s
            server.kill()
            for _ in range(100):
                stream.poll()
            server.start()
            stream.add(40)
            stream.check()
    except EmulatorUnavailable as error:
        pytest.skip(str(error))


def test_volume_order_and_count(servers, tmp_path_factory) -> None:
    """kinesis V1, of a size that a night has time for."""
    stream = Stream(server_of("kinesalite", servers, tmp_path_factory), 8, limits=ReadLimit(rows=20_000))
    for _ in range(10):
        keys = range(5_000)
        for key in keys:
            stream.put.setdefault(f"key-{key}", []).append(json.dumps({"n": stream.number}).encode())
            stream.number += 1
        stream.putter.put(OutgoingRecord(f"key-{key}", stream.put[f"key-{key}"][-1]) for key in keys)
    stream.open(until=Until.CAUGHT_UP)
    while not isinstance(stream.poll(), CaughtUp):
        pass
    assert len(stream.read) == 50_000
    stream.check()


@pytest.mark.timeout(900)
def test_an_iterator_that_has_really_expired_is_replaced(servers, tmp_path_factory) -> None:
    """kinesis V3: the emulator keeps to five minutes as the service does, so this waits for them."""
    stream = Stream(server_of("kinesalite", servers, tmp_path_factory), 1)
    stream.open(threads=0)  # nothing is asked for between polls
    stream.add(20)
    stream.read_all()
    STEP.wait(304)
    stream.add(20)
    stream.check()
