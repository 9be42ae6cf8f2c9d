"""A webhook on the loopback without Spark: a job's directory in memory, one attempt after another, and clients."""

import http.client
import json
import socket
import threading
from contextlib import closing

from pyspark.sql.types import LongType, StringType, StructType

from core.checkpoint_values import CLAIM, log_on, manifest
from penstock.checkpoint.gc import collect
from penstock.checkpoint.received import ReceivedBlocks
from penstock.clock import MonotonicTime, WallTime
from penstock.connectors.receivers import http as webhook
from penstock.facts import Counted
from penstock.handles import TaskSnapshot
from penstock.interfaces.source import JobResources, PlannedBatch, ReadLimit, SourceContext, Until
from penstock.testing.filesystem import MemoryFileSystem

PATIENCE = 30.0
SCHEMA = StructType().add("id", LongType()).add("name", StringType())
JSON = "application/json"
LINES = "application/x-ndjson"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Hook:
    """A job with one webhook; each ``open`` is an attempt in the same driver."""

    def __init__(self, filesystem=None, **options):
        self.filesystem = MemoryFileSystem() if filesystem is None else filesystem
        self.port = free_port()
        self.options = {"schema": SCHEMA, "block_interval_ms": 0, **options}
        self.resources = JobResources()
        self.readers = []
        self.facts = []
        self.claims = 0

    def open(self, resume=None, *, until=Until.STOPPED, **options):
        self.claims += 1
        log, _ = log_on(self.filesystem, ids=f"claim-{self.claims}")
        self.owned = log.claim(CLAIM, take_over=True)
        blocks = ReceivedBlocks("hook", self.owned, self.filesystem, pause=lambda _: None)
        context = SourceContext(
            uid="hook", spark=None, until=until, report=self._note, received=blocks, resources=self.resources
        )
        source = webhook.Source(self.port, **{**self.options, **options})
        self.reader = source.open(context, resume)
        self.readers.append(self.reader)
        return self.reader

    def _note(self, fact):
        self.facts.append(fact)

    def start(self, resume=None, **options):
        """An attempt that receives; returns the rows that were there before."""
        before = self.handler
        self.open(resume, **options)
        early = self.read()
        self.wait_until(lambda: self.handler is not None and self.handler is not before)
        return early

    @property
    def handler(self):
        server = self.resources._open.get("hook")
        return None if server is None else server._handler

    def wait_until(self, holds):
        gone = threading.Event()
        for _ in range(int(PATIENCE * 200)):
            if holds():
                return
            gone.wait(0.005)
        raise AssertionError

    def read(self, **limits):
        """All rows that are there now, as tuples."""
        found = []
        while isinstance(poll := self.poll(**limits), PlannedBatch):
            found += [tuple(row.values()) for row in poll.plan.table.to_pylist()]
        return found

    def poll(self, **limits):
        return self.reader.poll(now=MonotonicTime(0), wall=WallTime(0), limits=ReadLimit(**limits))

    def checkpoint(self, number, **rest):
        task = TaskSnapshot(task="hook", position=self.reader.position())
        self.owned.append(collect(manifest(number, tasks=(task,)), self.owned.history, **rest))
        self.reader.committed(number, task.position)

    def counted(self, name):
        return sum(fact.amount for fact in self.facts if isinstance(fact, Counted) and fact.name == name)

    def close(self):
        for reader in self.readers:
            reader.close()
        self.resources.close()

    # ---- clients -----------------------------------------------------------------------------------------------------

    def post(self, body, kind=JSON, *, path="/", method="POST", tls=None, **headers):
        """Status, document and headers of the answer."""
        with closing(self.connection(tls)) as connection:
            return self.send(connection, body, kind, path=path, method=method, **headers)

    def connection(self, tls=None):
        if tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        return http.client.HTTPSConnection("localhost", self.port, timeout=PATIENCE, context=tls)

    @staticmethod
    def send(connection, body, kind=JSON, *, path="/", method="POST", **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request(method, path, data, {name: value for name, value in given.items() if value is not None})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), dict(answer.getheaders())

    def raw(self, *parts):
        """What comes back for these bytes, to the end of the connection."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            try:
                for part in parts:
                    connection.sendall(part)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it was refused before all was sent
            found = b""
            try:
                while data := connection.recv(65536):
                    found += data
            except ConnectionError:
                pass
        return found


def status_of(answer):
    return int(answer.split(b" ", 2)[1]) if answer else None
