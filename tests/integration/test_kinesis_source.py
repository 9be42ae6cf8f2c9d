"""The reader and the putter against two emulators of Kinesis: "kinesis E1" and the like are numbers of scenarios."""

from __future__ import annotations

import json
import random

import pytest

from integration.kinesis_server import EmulatorUnavailable, KinesisServer, kinesis_server
from integration.kinesis_streams import STEP, Stream, server_of
from penstock.connectors.kinesis.producer import OutgoingRecord
from penstock.interfaces.source import CaughtUp, ReadLimit, Until


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
