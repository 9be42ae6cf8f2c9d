"""What the mission says of received data, by sources as users write them; and that the old way fails each test.

A test whose row ends in "→ D" shows what penstock does. What it does instead of that is planted, and the same test is
run again: it loses rows.
"""

import inspect
from itertools import pairwise

import pytest

import penstock as ps
from core import receivers_kit
from core.receivers_kit import Job, Server, ask, attempts, numbered, read, rows
from core.runtime_fakes import Clock, NotingShell, drained, output_to
from penstock.checkpoint.received import SEAL
from penstock.clock import SystemClock
from penstock.elements import Barrier, CheckpointKind
from penstock.errors import PenstockError, StorageFailed
from penstock.facts import SourceLag
from penstock.interfaces.source import BatchTicks, Ended, NoData, PlannedBatch, ReadLimit, Until
from penstock.runtime.channels import Channel
from penstock.runtime.source_task import SourceTask
from penstock.testing.filesystem import MemoryFileSystem
from planted import of_received  # noqa: F401
from planted.bug import BUGS, planted

SECOND = 1_000_000
ONCE = BatchTicks(interval=SECOND)
EACH = BatchTicks(interval=SECOND, catch_up=100)


@pytest.fixture
def job():
    job = Job(MemoryFileSystem())
    yield job
    job.close()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def seconds(time):
    return int(time * SECOND)


# ------------------------------------------------------------------------------------------------------------- sockets


def connect(job, server, **options):
    """A reader of a socket's text; its receiver runs. Returns the records that were there before."""
    options = {"block_interval_ms": 0, "retry_delay_ms": 0, **options}
    job.open(source=ps.socket.Source("127.0.0.1", server.port, **options))
    return [text for (text,) in job.read()]


def texts(job, *, until=None):
    """The records that come until there are so many; without a number, until the source ends."""
    found = []
    for _ in attempts():
        poll = ask(job.reader)
        found += [text for (text,) in rows(poll)] if isinstance(poll, PlannedBatch) else []
        if isinstance(poll, Ended) or (until is not None and len(found) >= until):
            break
    return found


@pytest.mark.mission("L3")
def test_L3(job, server):
    connect(job, server, delimiter="||", max_attempts=1)
    with server.accept() as connection:
        connection.sendall(b"zero||one\r|")
        assert texts(job, until=1) == ["zero"], "the beginning of a delimiter was read with it"
        connection.sendall(b"|" + b"x" * 20_000 + b"||||two\r\r|")
        assert texts(job, until=3) == ["one\r", "x" * 20_000, ""]
        connection.sendall(b"|three||")
    assert texts(job) == ["two\r\r", "three"]

    with_lines = Job(MemoryFileSystem())
    connect(with_lines, server, max_attempts=1)
    server.send(b"one\r\n\n\r\ntwo\r\r\n")
    assert texts(with_lines) == ["one", "", "", "two\r"]
    with_lines.close()


@pytest.mark.mission("L4")
def test_L4(job, server):
    connect(job, server, max_attempts=3, retry_delay_ms=30)
    clock, waits = SystemClock(), []
    for text in (b"0\n", b"", b"1\n", b"", b"2\n", b"", b""):
        server.send(text)
        waits.append(clock.now())

    assert texts(job) == ["0", "1", "2"], "data resets the attempts, and the third without any ends the source"
    assert min(after - before for before, after in pairwise(waits)) >= 20_000


@pytest.mark.mission("L5")
def test_L5(job, server):
    connect(job, server, max_attempts=3)
    server.send(b"one\n")
    server.close()
    with pytest.raises(PenstockError, match=r"it cannot be connected.* 3 times in a row"):
        texts(job)
    job.reader.close()

    assert connect(job, server) == ["one"], "a refusal is tried again, and the record before it is there"


@pytest.mark.mission("L6")
def test_L6(job, server):
    connect(job, server, max_attempts=1_000)
    server.send(b"one\ntw")
    assert texts(job, until=2) == ["one", "tw"], "an orderly end ends the record too"
    server.send(b"o\nthree\n")

    assert texts(job, until=2) == ["o", "three"]


@pytest.mark.mission("L7")
def test_L7(job, server):
    connect(job, server)
    with server.accept() as logged:
        logged.sendall(b"one\n")
        assert texts(job, until=1) == ["one"]
        logged.settimeout(1)
        job.reader.close()
        assert logged.recv(1) == b"", "the stop has freed the reader"

    connect(job, server, block_interval_ms=3_600_000)
    with server.accept() as in_flight:
        in_flight.sendall(b"two\n")
        for now, _ in enumerate(attempts()):
            ask(job.reader, now=now * SECOND)
            if isinstance(job.facts[-1], SourceLag) and job.facts[-1].rows:
                break
        # Another process takes over: what was in flight is not sent again.
        assert connect(job, server) == ["one"]
        with server.accept() as again:
            again.sendall(b"three\n")
            assert texts(job, until=1) == ["three"]
            job.reader.close()


# --------------------------------------------------------------------------------------------------- batches and ticks


def batches(job, wall):
    """The rows of each batch that is there at a time, without waiting for the next tick."""
    found = []
    while True:
        poll = job.ask(wall)
        if not isinstance(poll, PlannedBatch):
            return found
        found.append([id for id, *_ in rows(poll)])
        if not poll.is_behind:
            return found


def live(job, *steps):
    """Store rows, a block at a time, and poll at the tick after; returns the batches and the position before each."""
    positions, found = [], []
    store = None
    for wall, *ids in steps:
        if store is None:
            job.wall = seconds(wall)
            store = job.store()
            positions.append(job.reader.position())
        job.wall = seconds(wall)
        for id in ids:
            store.store_reliably(numbered(id))
        found += batches(job, seconds(int(wall) + 1.01))
        positions.append(job.reader.position())
    return found, positions


@pytest.mark.mission("S19")
def test_S19(job):
    job.open()
    store = job.store()
    for id in range(3):
        store.store_reliably(numbered(id))
    start = job.reader.position()
    job.filesystem.fail("read", StorageFailed("The disk does not answer."), path="wal/in/0/*1.block")

    try:
        found = read(job.reader)
    except StorageFailed:  # the job restarts from the same position
        job.reader.close()
        found = read(job.open(start))

    assert found == numbered(0, 1, 2), "nothing is skipped"


@pytest.mark.mission("S21")
def test_S21(job):
    job.open(ticks=EACH)
    before, positions = live(job, (100.2, 1), (102.2, 2), (103.5, 3, 4))
    job.wall = seconds(104.5)
    job.receiver.stores[-1].store_reliably(numbered(5))  # pending when the job dies
    job.reader.close()

    job.open(positions[1], ticks=EACH)
    again = batches(job, seconds(110.4))
    job.ask(seconds(111.1))

    assert before == [[1], [2], [3, 4]]
    assert again == [[2], [3, 4], [5]], "as they were allocated"
    assert job.counted("ticks_missed") == 9 - 3, "ticks from 102 to 110 that had no rows are counted, not run"


@pytest.mark.mission("S22")
def test_S22(job):
    job.open(ticks=ONCE)
    job.wall = seconds(100.1)
    store = job.store()
    start = job.reader.position()
    for tick in range(5):
        job.wall = seconds(100.5 + tick)
        store.store_reliably(numbered(*range(10 * tick, 10 * tick + 10)))
    job.reader.close()

    job.open(start, ticks=ONCE)
    first = job.ask(seconds(3_700.5), rows=15)
    assert isinstance(job.ask(seconds(3_700.6), rows=15), NoData)
    found = rows(first)
    for tick in range(3):
        found += job.read(seconds(3_701 + tick), rows=15)

    assert (first.rows, first.is_behind) == (15, False)
    assert found == numbered(*range(50))
    assert job.counted("ticks_missed") == 3_600 - 1


@pytest.mark.mission("S23")
def test_S23(job):
    job.open(ticks=ONCE)
    job.wall = seconds(100.1)
    store = job.store()
    for id in range(3):
        store.store_reliably(numbered(id))

    assert job.read(seconds(101.0)) == numbered(0, 1, 2), "all that waits moves to the tick"
    store.store_reliably(numbered(3))
    assert isinstance(job.ask(seconds(101.1)), NoData), "a tick that was served is allocated nothing"
    assert job.read(seconds(102.0)) == numbered(3)


@pytest.mark.mission("S24")
def test_S24(job):
    job.open(ticks=EACH)
    found, positions = live(job, (100.2, 1, 2), (101.2, 3), (98.5, 4), (99.5, 5, 6), (107.5, 7))
    assert found == [[1, 2], [3], [4], [5, 6], [7]]
    for number, position in enumerate(positions):
        job.reader.close()
        job.open(position, ticks=EACH)
        assert batches(job, seconds(150)) == found[number:], "the queues and allocations of before"

    other = Job(MemoryFileSystem())
    other.open()
    other.store().store_reliably(numbered(*range(7)))
    positions = [other.reader.position()]
    while other.read(rows=2):
        positions.append(other.reader.position())
    for number, position in enumerate(positions):
        other.reader.close()
        assert read(other.open(position)) == numbered(*range(min(2 * number, 7), 7))
    kept = [path for path in other.blocks if other.filesystem.read(path) != SEAL]
    other.filesystem.fail("create", StorageFailed("The disk is full."), path="log/*")
    with pytest.raises(StorageFailed):
        other.checkpoint(0)
    assert set(kept) <= set(other.blocks), "what could not be recorded as read is kept"
    other.reader.close()
    assert read(other.open()) == numbered(*range(7))
    other.close()


@pytest.mark.mission("S27")
def test_S27(job):
    job.open()
    store = job.store()
    for id in range(4):
        store.store_reliably(numbered(id))
    start = job.reader.position()
    read(job.reader)
    job.reader.close()

    assert read(job.open(start)) == numbered(*range(4)), "no checkpoint holds them yet"
    job.checkpoint(0, retained=1)
    assert len(job.blocks) == 1, "the seal of the first generation stays"


def stopped(job):
    """The rows that a task sends between the request to stop and the final barrier."""
    channel, found = Channel(capacity=100), []
    job.reader.frame = lambda plan: plan.table
    task = SourceTask(
        "in",
        job.reader,
        output_to(channel),
        limits=ReadLimit,
        reads_last=True,
        shell=NotingShell(),
        clock=Clock(),
    )
    task.post(Barrier(checkpoint=0, kind=CheckpointKind.FINAL))
    for _ in attempts():
        task.step()
        for element in drained(channel):
            if isinstance(element, Barrier):
                return found
            found += [tuple(row.values()) for row in element.to_pylist()]


@pytest.mark.mission("S29")
def test_S29(job):
    job.open(block_interval_ms=3_600_000)
    job.store().store(numbered(1))
    assert stopped(job) == numbered(1), "what was received is drained before the final checkpoint"
    job.reader.close()

    job.open(block_interval_ms=3_600_000)
    job.store().store(numbered(2))
    job.reader.close()  # without a last batch: it is written, and read by the next start
    job.open(block_interval_ms=3_600_000)
    store = job.store()
    assert job.early == numbered(1, 2)
    store.store(numbered(3))

    job.open(until=Until.CAUGHT_UP)  # as after a kill: nobody waited
    assert read(job.reader) == numbered(1, 2)


# --------------------------------------------------------------------------------------------------------- the old ways


@pytest.mark.parametrize(
    "name", [name for name in BUGS if BUGS[name].core.startswith("core/test_receivers_mission.py::")]
)
def test_the_old_way_fails_the_test_of_its_row(name, monkeypatch):
    monkeypatch.setattr(receivers_kit, "PATIENCE", 1.0)
    test = globals()[BUGS[name].core.split("::")[1]]
    job, server = Job(MemoryFileSystem()), Server()
    given = {"job": job, "server": server}
    try:
        with planted(name), pytest.raises((AssertionError, PenstockError, OSError, pytest.fail.Exception)):
            test(**{each: given[each] for each in inspect.signature(test).parameters})
    finally:
        server.close()
        job.close()
