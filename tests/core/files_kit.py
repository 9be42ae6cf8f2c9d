"""A folder that files are put into, and a reader of it that is started again. No Spark."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from penstock.clock import MonotonicTime, WallTime
from penstock.connectors.files import removal, remover
from penstock.connectors.files.source import Source
from penstock.failpoints import failpoint
from penstock.handles import CheckpointId, Position
from penstock.interfaces.source import PlannedBatch, ReadLimit, SourceContext, Until

SCHEMA = StructType([StructField("n", LongType())])
SPARK = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: "32"))


@pytest.fixture(autouse=True, scope="module")
def _without_a_disk():
    """Files of tests need not outlive a power failure: waiting for the disk would be most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@contextmanager
def stopped_at(point, meanwhile):
    """A process that is stopped when it first comes to a failpoint, and goes on after ``meanwhile``."""
    calls = [meanwhile]

    def stop(name):
        if name == point and calls:
            calls.pop()()
        failpoint(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(removal, "failpoint", stop)
        patch.setattr(remover, "failpoint", stop)
        yield


class Feed:
    """A folder, and a reader of it that can be started again from its last position."""

    def __init__(self, root, **options):
        self.root = root
        self.options = {"schema": SCHEMA, "poll_interval_ms": 1} | options
        self.position = None
        self.now = 0
        self.times = 0
        self.generation = 0
        self.reported = []
        root.mkdir()

    @property
    def source(self):
        return Source(self.root, **self.options)

    def put(self, *names):
        for name in names:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('{"n": 1}\n')
            self.times += 1
            os.utime(path, (self.times, self.times))

    def start(self, until=Until.STOPPED):
        self.generation += 1
        self.reader = self.open(self.generation, self.position, until)
        return self

    def open(self, generation, position, until=Until.STOPPED):
        """A reader of the job's process with that generation."""
        context = SourceContext(
            uid="in", spark=SPARK, until=until, report=self.reported.append, log_id="the log", generation=generation
        )
        return self.source.open(context, position)

    def read(self):
        """The files that are read until none is left; then a checkpoint."""
        names = []
        while True:
            self.now += 10**9
            answer = self.reader.poll(now=MonotonicTime(self.now), wall=WallTime(0), limits=ReadLimit())
            if not isinstance(answer, PlannedBatch):
                break
            names += [part.name for part in answer.plan]
        self.position = self.checkpoint()
        return names

    def checkpoint(self):
        """The position as the log gives it back."""
        saved = self.reader.position()
        return Position(kind=saved.kind, detail=json.loads(json.dumps(saved.detail)))

    def complete(self, position=None):
        """A checkpoint is complete: the newest, or one with that position."""
        self.reader.committed(CheckpointId(1), self.position if position is None else position)

    def present(self):
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.glob("[!._]*"))

    def remembered(self):
        return set(self.position.detail["done"])

    def swap(self, name):
        """The folder is moved away, and an empty one is in its place: what an unmounted one looks like."""
        (self.root.parent / name).parent.mkdir(exist_ok=True)
        self.root.rename(self.root.parent / name)
        self.root.mkdir()

    def swap_back(self, name):
        shutil.rmtree(self.root)
        (self.root.parent / name).rename(self.root)
