"""A job's directory and the readers on it, one after another, without Spark: for sources that are given rows."""

import socket
import struct
import threading

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from core.checkpoint_values import CLAIM, log_on, manifest
from penstock.checkpoint.gc import collect
from penstock.checkpoint.received import ReceivedBlocks
from penstock.clock import MonotonicTime, SystemClock, WallTime
from penstock.connectors.receivers import Receiver, Source
from penstock.facts import Counted
from penstock.handles import TaskSnapshot
from penstock.interfaces.source import PlannedBatch, ReadLimit, SourceContext, Until

PATIENCE = 30.0
"""Seconds after which a test that waits has failed."""
SCHEMA = StructType().add("id", LongType()).add("name", StringType())


class Given(Receiver):
    """Gives the test its store; ends when it is told to."""

    def __init__(self):
        self.stores = []
        self.started = threading.Event()
        self.over = threading.Event()
        self.errors = []  # shared by the copies that run

    def on_start(self, store):
        self.stores.append(store)
        self.started.set()
        assert self.over.wait(PATIENCE)
        for error in self.errors:
            raise error

    def on_stop(self):
        self.over.set()


class Server:
    """Listens on the loopback; a test accepts each connection and says what becomes of it."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self.port = self._listener.getsockname()[1]

    def send(self, *parts, reset=False):
        connection, _ = self._listener.accept()
        for part in parts:
            connection.sendall(part)
        if reset:  # with this a close sends a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def accept(self):
        return self._listener.accept()[0]

    def close(self):
        self._listener.close()


class Job:
    """A job's directory, and one reader after another on it."""

    def __init__(self, filesystem, uid="in"):
        self.filesystem = filesystem
        self.uid = uid
        self.readers = []
        self.facts = []
        self.claims = 0
        self.wall = 0

    def open(self, resume=None, *, until=Until.STOPPED, schema=SCHEMA, source=None, ticks=None, **options):
        self.claims += 1
        log, _ = log_on(self.filesystem, ids=f"claim-{self.claims}")
        self.owned = log.claim(CLAIM, take_over=True)
        blocks = ReceivedBlocks(self.uid, self.owned, self.filesystem, pause=lambda _: None)
        self.receiver = Given()
        source = source or Source(self.receiver, schema=schema, **{"block_interval_ms": 0, **options})
        context = SourceContext(
            uid=self.uid,
            spark=None,
            until=until,
            report=self.facts.append,
            received=blocks,
            ticks=ticks,
            wall=lambda: WallTime(self.wall),
        )
        self.reader = source.open(context, resume)
        self.readers.append(self.reader)
        return self.reader

    def store(self):
        """The store, once the receiver runs."""
        poll = self.ask()
        self.early = rows(poll) if isinstance(poll, PlannedBatch) else []
        assert self.receiver.started.wait(PATIENCE)
        return self.receiver.stores[-1]

    def ask(self, wall=None, **limits):
        """One poll, at a time of the wall clock."""
        self.wall = self.wall if wall is None else wall
        return ask(self.reader, wall=self.wall, **limits)

    def read(self, wall=None, **limits):
        """The rows of one poll."""
        poll = self.ask(wall, **limits)
        return rows(poll) if isinstance(poll, PlannedBatch) else []

    def counted(self, name):
        return sum(fact.amount for fact in self.facts if isinstance(fact, Counted) and fact.name == name)

    def checkpoint(self, number, **rest):
        task = TaskSnapshot(task=self.uid, position=self.reader.position())
        self.owned.append(collect(manifest(number, tasks=(task,)), self.owned.history, **rest))
        self.reader.committed(number, task.position)

    @property
    def blocks(self):
        return self.filesystem.list("wal")

    def close(self):
        for reader in self.readers:
            reader.close()


def ask(reader, now=0, wall=0, **limits):
    return reader.poll(now=MonotonicTime(now), wall=WallTime(wall), limits=ReadLimit(**limits))


def attempts():
    """Yields until a test that waits has failed."""
    clock = SystemClock()
    end = clock.now() + PATIENCE * 1_000_000
    while clock.now() < end:
        yield
    pytest.fail("waited in vain")


def rows(poll):
    return [tuple(row.values()) for row in poll.plan.table.to_pylist()]


def read(reader, **limits):
    """All that is there now."""
    found = []
    while isinstance(poll := ask(reader, **limits), PlannedBatch):
        assert poll.rows == len(rows(poll))
        found += rows(poll)
    return found


def ask_until_it_fails(reader):
    for _ in range(1_000_000):
        ask(reader)


def numbered(*ids):
    return [(id, f"row {id}") for id in ids]
