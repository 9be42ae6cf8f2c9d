"""Any puts, splits, merges and crashes: each record once, those of a key in order ("kinesis E5", "kinesis P1")."""

from __future__ import annotations

import random
import threading

import pytest

from core.kinesis_kit import Bench, FakeFrames
from kinesis_fake import FakeKinesis
from penstock.clock import SystemClock
from penstock.connectors.kinesis.aggregation import UserRecord, pack
from penstock.connectors.kinesis.reader import KinesisReader
from penstock.connectors.kinesis.source import Source
from penstock.interfaces.source import PlannedBatch, ReadLimit, SourceContext


class Story:
    """One stream and its reader, to which a seed says what happens."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = Bench(self.random.randint(1, 3), discover_every="5 seconds")
        self.bench.random = self.random.random
        stream = self.bench.stream
        stream.ends_late = self.random.random() < 0.5
        stream.names_children = self.random.random() < 0.5
        stream.gap = self.random.choice([0, 0, 1, 3])
        stream.refuses_first = self.random.choice([0, 0, 1])
        stream.page_size = self.random.choice([1, 3, 10_000])
        self.put: dict[str, list[bytes]] = {}
        self.number = 0
        self.saved = self.bench.reader.position(), 0
        self.crashes = self.reshards = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice(
                [self.put_some, self.put_some, self.poll, self.poll, self.poll, self.poll, self.reshard]
            )()
            if self.random.random() < 0.2:
                self.checkpoint()
            if self.random.random() < 0.06:
                self.crash()
        self.bench.until_quiet(40)

    def put_some(self) -> None:
        for _ in range(self.random.randint(1, 8)):
            key = f"key-{self.random.randint(0, 5)}"
            texts = [b"%d" % (self.number + each) for each in range(self.random.choice([1, 1, 1, 4]))]
            self.number += len(texts)
            self.put.setdefault(key, []).extend(texts)
            data = texts[0] if len(texts) == 1 else pack([UserRecord(key, None, each) for each in texts])
            self.bench.stream.put(key, data)

    def reshard(self) -> None:
        stream = self.bench.stream
        open = sorted(stream.open_shards(), key=lambda each: each.first)
        self.reshards += 1
        if len(open) < 2 or (len(open) < 6 and self.random.random() < 0.5):
            stream.split(self.random.choice(open).id)
        else:
            at = self.random.randrange(len(open) - 1)
            stream.merge(open[at].id, open[at + 1].id)

    def poll(self) -> None:
        self.bench.poll(ReadLimit(rows=self.random.choice([1, 2, 5, None])))

    def checkpoint(self) -> None:
        self.saved = self.bench.reader.position(), len(self.bench.read)

    def crash(self) -> None:
        """What was read after the last checkpoint never happened."""
        position, rows = self.saved
        del self.bench.read[rows:]
        self.crashes += 1
        self.bench.open(position)


@pytest.mark.parametrize("seed", range(40))
def test_each_record_comes_once_and_those_of_a_key_in_order(seed):
    story = Story(seed)
    story.run(150)
    got: dict[str, list[bytes]] = {}
    for _, key, data in story.bench.read:
        got.setdefault(key, []).append(data)
    assert got == story.put, f"seed {seed}: {story.crashes} crashes, {story.reshards} reshards"
    assert story.reshards > 5


def test_threads_read_what_one_thread_reads():
    """All shards at once, on the machine's clock, while records are put and shards are split."""
    clock = SystemClock()
    stream = FakeKinesis(clock, shards=4)
    stream.enforces, stream.page_size = False, 7
    source = Source("orders", poll_every="1 milliseconds", discover_every="1 second")
    context = SourceContext(uid="in", spark=None, wall=clock.wall)  # type: ignore[arg-type]
    reader = KinesisReader(source, context, None, client=stream, frames=FakeFrames(), threads=6)  # type: ignore[arg-type]

    def produce() -> None:
        for number in range(2_000):
            stream.put(f"key-{number % 10}", b"%d" % number)
            if number in (500, 1_000):
                stream.split(stream.open_shards()[0].id)

    producer = threading.Thread(target=produce)
    producer.start()
    got: dict[str, list[int]] = {}
    try:
        until = clock.now() + 60_000_000
        while sum(map(len, got.values())) < 2_000 and clock.now() < until:
            poll = reader.poll(now=clock.now(), wall=clock.wall(), limits=ReadLimit(rows=100))
            if isinstance(poll, PlannedBatch):
                for _, record in poll.plan.table:  # type: ignore[attr-defined]
                    got.setdefault(record.partition_key, []).append(int(record.data))
    finally:
        producer.join()
        reader.close()
        reader.close()
    assert got == {f"key-{key}": list(range(key, 2_000, 10)) for key in range(10)}
