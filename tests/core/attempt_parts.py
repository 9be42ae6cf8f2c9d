"""Doubles for what an attempt stands on: a reader, a sink's writer, and what steps tasks and does their work."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from penstock.clock import MonotonicTime
from penstock.errors import StorageFailed
from penstock.handles import Committable, Position
from penstock.interfaces.source import Ended, NoData, PlannedBatch
from penstock.runtime.supervisor import Supervisor

SECOND = 1_000_000
TARGET = "/penstock-memory-only"
FAR = MonotonicTime(10**12)


class Numbers:
    """Reads the numbers up to ``total``, one a batch, then ends or waits for more."""

    def __init__(self, total: int, *, ends: bool, resume: Position | None) -> None:
        self.read: Any = resume.detail if resume else 0
        self.total = total
        self._ends = ends
        self.told: list[tuple[int, object]] = []

    def poll(self, **_: object) -> object:
        if self.read < self.total:
            self.read += 1
            return PlannedBatch(plan=[self.read], rows=1)
        return Ended() if self._ends else NoData(wake_at=FAR)

    def frame(self, plan: object) -> object:
        return plan

    def position(self) -> Position:
        return Position(kind="files/1", detail=self.read)

    def committed(self, checkpoint: int, position: Position) -> None:
        self.told.append((checkpoint, position.detail))

    def close(self) -> None:
        """Nothing is held."""


class Files:
    """Stages numbers as files beside the target; what cannot be made durable goes into the next epoch."""

    def __init__(self, filesystem: Any, folder: str) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self.rows: list[int] = []

    def write(self, batch: Any) -> int:
        self.rows += batch.frame
        return len(batch.frame)

    def prepare(self, checkpoint: int) -> Epoch:
        rows, self.rows = self.rows, []
        return Epoch(self, checkpoint, rows)

    def close(self) -> None:
        """Nothing is held."""


class Epoch:
    """What a barrier closed."""

    def __init__(self, writer: Files, checkpoint: int, rows: list[int]) -> None:
        self._writer, self._checkpoint, self._rows = writer, checkpoint, rows

    def materialise(self) -> tuple[Committable, ...]:
        if not self._rows:
            return ()
        path = f"{self._writer._folder}/{self._checkpoint}/part-0"
        try:
            self._writer._filesystem.create(path, json.dumps(self._rows).encode())
            ref = self._writer._filesystem.settle(path)
        except StorageFailed:
            self._writer.rows[:0] = self._rows
            raise
        moves = {path: f"{TARGET}/part-{self._checkpoint}"}
        item = {"uid": "out", "kind": "files/1", "target": TARGET, "files": (ref,), "detail": {"moves": moves}}
        return (Committable(checkpoint=self._checkpoint, **item),)  # type: ignore[arg-type]


class Hand:
    """Stands for a task's thread."""

    def __init__(self, id: str, supervisor: Supervisor, story: list[str]) -> None:
        self.id, self._supervisor, self._story = id, supervisor, story
        self.task: Any = None
        self.is_over = False

    def start(self, task: Any) -> None:
        self._story.append(f"start {self.id}")
        self.task = task

    def wake(self) -> None:
        """Stepped whenever the test says so."""

    def stop(self) -> None:
        self._story.append(f"stop {self.id}")
        self.is_over = True

    def join(self, seconds: float) -> bool:
        self._story.append(f"join {self.id}")
        return True

    def step(self) -> bool:
        if self.task is None or self.is_over:
            return False
        try:
            progress = self.task.step()
        except Exception as error:
            self.is_over = True
            self._supervisor.failed(self.id, error)
            return True
        if progress.done:
            self.is_over = True
            self._supervisor.finished(self.id)
        return bool(progress.worked)


class Bench:
    """Stands for the workers: in order, but for owners that are held."""

    def __init__(self, supervisor: Supervisor, story: list[str]) -> None:
        self._supervisor, self._story = supervisor, story
        self.waiting: deque[tuple[str, Any]] = deque()
        self.held: set[str] = set()

    def submit(self, owner: str, work: Any) -> None:
        self.waiting.append((owner, work))

    def close(self) -> None:
        self._story.append("close workers")
        self.waiting.clear()

    def join(self, seconds: float) -> bool:
        self._story.append("wait for workers")
        return True

    def work(self) -> bool:
        for entry in self.waiting:
            if entry[0] not in self.held:
                self.waiting.remove(entry)
                try:
                    entry[1]()
                except Exception as error:
                    self._supervisor.failed(entry[0], error)
                return True
        return False
