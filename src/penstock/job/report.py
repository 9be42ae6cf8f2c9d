"""What a run did, folded from its facts: the numbers that `run` prints last and that tests compare. Decides nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.facts import (
    BatchDone,
    BatchRead,
    CheckpointCompleted,
    CheckpointFailed,
    Counted,
    Fact,
    JobEnded,
    JobStarted,
    Published,
    Restarting,
    RowsRead,
    SourceLag,
)
from penstock.ids import CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The sums of one run, restarts included. Rows of batches that were redone after a restart count again.

    Attributes:
        state: how it ended (``stopped``, ``failed`` …), or what it is now.
        restored: the checkpoint that the first attempt continued, ``None`` for an empty start.
        batches: by source.
        rows_read: by source, as far as known.
        rows_written: by sink.
        counters: by step and name, for example ``("totals", "late")``.
        checkpoints: completed ones.
        failed_checkpoints: aborted ones.
        last_checkpoint: the newest completed one.
        published: by sink, checkpoints whose output was made visible.
        restarts: by how many failures the run was interrupted.
        lag: how far each source that knows it is behind, by partition too, and when nothing will be waiting; as it was
            told last, about a second ago while the job runs.
    """

    state: str
    restored: CheckpointId | None = None
    batches: Mapping[str, int] = field(default_factory=dict)
    rows_read: Mapping[str, int] = field(default_factory=dict)
    rows_written: Mapping[str, int] = field(default_factory=dict)
    counters: Mapping[tuple[str, str], int] = field(default_factory=dict)
    checkpoints: int = 0
    failed_checkpoints: int = 0
    last_checkpoint: CheckpointId | None = None
    published: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    lag: Mapping[str, SourceLag] = field(default_factory=dict)


class Tally:
    """A listener that adds up; any thread may report to it."""

    def __init__(self, *, sources: frozenset[str], sinks: frozenset[str]) -> None:
        self._sources = sources
        self._sinks = sinks
        self._lock = threading.Lock()
        self._batches: Counter[str] = Counter()
        self._read: Counter[str] = Counter()
        self._written: Counter[str] = Counter()
        self._counters: Counter[tuple[str, str]] = Counter()
        self._published: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._lag: dict[str, SourceLag] = {}
        self._state = "created"
        self._restored: CheckpointId | None = None
        self._last: CheckpointId | None = None

    def __call__(self, fact: Fact) -> None:
        """Add a fact."""
        with self._lock:
            self._add(fact)

    def _add(self, fact: Fact) -> None:
        match fact:
            case BatchRead():
                self._batches[fact.task] += 1
            case RowsRead():
                self._read[fact.task] += fact.rows
            case BatchDone():
                if fact.task in self._sinks:
                    self._written[fact.task] += fact.rows or 0
            case Counted():
                self._counters[fact.task, fact.name] += fact.amount
            case Published():
                self._published[fact.task] += fact.outcome in {"done", "already done"}
            case SourceLag():
                self._lag[fact.task] = fact
            case _:
                self._add_of_job(fact)

    def _add_of_job(self, fact: Fact) -> None:
        match fact:
            case JobStarted():
                self._state = "running"
                if fact.attempt == 1:
                    self._restored = fact.restored
            case CheckpointCompleted():
                self._events["completed"] += 1
                self._last = fact.checkpoint
            case CheckpointFailed():
                self._events["failed"] += 1
            case Restarting():
                self._events["restarts"] += 1
            case JobEnded():
                self._state = fact.state
            case _:
                pass

    def report(self) -> Report:
        """The sums so far."""
        with self._lock:
            return Report(
                state=self._state,
                restored=self._restored,
                batches=dict(self._batches),
                rows_read=dict(self._read),
                rows_written=dict(self._written),
                counters=dict(self._counters),
                checkpoints=self._events["completed"],
                failed_checkpoints=self._events["failed"],
                last_checkpoint=self._last,
                published=dict(self._published),
                restarts=self._events["restarts"],
                lag=dict(self._lag),
            )
