"""A receiver in a process of its own: its rows, its failures, its death, and a stop that frees a blocked read."""

import os
import signal
import socket
import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from core.receivers_kit import PATIENCE, Job, ask, attempts, rows
from penstock.connectors.receivers import Receiver, Source, process
from penstock.errors import SourceUnavailable
from penstock.interfaces.source import Ended, PlannedBatch
from penstock.testing.filesystem import MemoryFileSystem

SCHEMA = StructType().add("id", LongType())


class Child(Receiver):
    """What the tests run: by name, in the child."""

    def __init__(self, what, port=0):
        self.what = what
        self.port = port

    def on_start(self, store):
        getattr(self, self.what)(store)

    def on_stop(self):
        if self.what == "read":
            self.connection.shutdown(socket.SHUT_RDWR)

    def some(self, store):
        store.store([(os.getpid(),)])
        store.store_reliably(pa.table({"id": [2, 3]}))
        callers = [threading.Thread(target=store.store_reliably, args=([(id,)],)) for id in range(4, 20)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()

    def fail(self, store):
        store.store_reliably([(1,)])
        msg = "the line is dead"
        raise ConnectionError(msg)

    def die(self, store):
        store.store_reliably([(1,)])
        os.kill(os.getpid(), signal.SIGKILL)

    def wrong(self, store):
        store.store_reliably([("one", 2)])

    def read(self, store):
        self.connection = socket.create_connection(("127.0.0.1", self.port))
        store.store_reliably([(1,)])
        assert self.connection.recv(1) == b""

    def deaf(self, store):
        store.store_reliably([(1,)])
        threading.Event().wait()


@pytest.fixture
def job():
    job = Job(MemoryFileSystem())
    yield job
    job.close()


def start(job, what, *, block_interval_ms=1, **more):
    source = Source(Child(what, **more), schema=SCHEMA, block_interval_ms=block_interval_ms, process=True)
    return job.open(source=source)


def collect(reader, *, until=None):
    """The ids that come, until there are so many or the source ends."""
    found = []
    for _ in attempts():
        poll = ask(reader)
        found += [id for (id,) in rows(poll)] if isinstance(poll, PlannedBatch) else []
        if isinstance(poll, Ended) or (until is not None and len(found) >= until):
            break
    return found


def test_rows_come_from_another_process_and_its_end_is_the_end_of_the_data(job):
    pid, *found = collect(start(job, "some", block_interval_ms=50))  # the moment in which its callers come

    assert pid != os.getpid()
    assert sorted(found) == list(range(2, 20))
    assert len(job.blocks) < 10, "callers that wait at the same moment share a block"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("fail", "The receiver failed: ConnectionError: the line is dead."),
        ("die", "The process of the receiver ended with exit code -9."),
        ("wrong", "there are 1 columns"),
    ],
)
def test_a_child_that_fails_or_is_killed_fails_the_source_and_what_it_stored_is_kept(job, what, message):
    reader = start(job, what)
    with pytest.raises(SourceUnavailable, match=message) as raised:
        collect(reader)
    assert raised.value.retry
    reader.close()

    if what != "wrong":
        assert collect(start(job, "some"), until=1) == [1]


def test_a_stop_frees_a_read_that_waits(job):
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader = start(job, "read", port=server.getsockname()[1])
        assert collect(reader, until=1) == [1]
        child = reader._runner._receiver._child
        reader.close()
        assert child.wait(PATIENCE) == 0, "it has ended by itself"


def test_a_child_that_does_not_stop_is_killed(job, monkeypatch):
    from penstock.connectors.receivers import process

    monkeypatch.setattr(process, "_STOP_SECONDS", 0.1)
    reader = start(job, "deaf")
    assert collect(reader, until=1) == [1]
    child = reader._runner._receiver._child
    reader.close()

    assert child.wait(PATIENCE) == -signal.SIGKILL


def test_a_caller_is_told_whatever_keeps_its_rows_from_being_stored():
    answers = []
    channel = SimpleNamespace(send=lambda *answer: answers.append(answer))

    process._store_reliably(store=None, channel=channel, number=3, data=b"no rows in Arrow")

    [(kind, number, reason)] = answers
    assert (kind, number) == (process._REFUSED, 3)
    assert b"could not be stored" in reason
