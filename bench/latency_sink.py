"""The sink of the latency bench, the same for every engine: runs the batch, and notes when its rows were through."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from penstock.connectors.staging import NoOutput
from penstock.handles import Guarantee

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.elements import Batch
    from penstock.handles import CheckpointId
    from penstock.interfaces.sink import SinkContext


@dataclass(frozen=True)
class Arrival:
    """A batch that is through: when (seconds), how long its job took, and when its newest row had been appended."""

    at: float
    took_ms: float
    newest: float
    before: float
    """The newest of the batch before: this one's rows were appended since."""


class Arrivals:
    """All batches that came to the sink."""

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []
        self._newest: float | None = None
        self.plan_ms: list[float] = []
        self._lock = threading.Lock()

    def add(self, at: float, took_ms: float, newest: float) -> None:
        with self._lock:
            if self._newest is not None and newest > self._newest:
                self._arrivals.append(Arrival(at, took_ms, newest, self._newest))
            self._newest = max(newest, self._newest or 0)

    def planned(self, ms: float) -> None:
        self.plan_ms.append(ms)

    def between(self, began: float, ended: float) -> Sequence[Arrival]:
        with self._lock:
            return [arrival for arrival in self._arrivals if began <= arrival.at < ended]

    @staticmethod
    def latencies(arrivals: Sequence[Arrival]) -> Iterator[tuple[float, int]]:
        """Milliseconds, and for how many rows (in thousandths of a second of the feed) they hold."""
        for arrival in arrivals:
            span = arrival.newest - arrival.before
            pieces = max(1, round(span * 1e3))
            for piece in range(pieces):
                appended = arrival.before + span * (piece + 0.5) / pieces
                yield (arrival.at - appended) * 1e3, 1


def write_noop(frame: DataFrame, arrivals: Arrivals) -> None:
    """Run the batch in one job; ``created`` tells when a row was appended, in microseconds."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    told = Observation()
    began = time.time()
    frame.observe(told, F.max("created").alias("newest")).write.format("noop").mode("overwrite").save()
    ended = time.time()
    newest = told.get["newest"]
    if newest is not None:
        arrivals.add(ended, (ended - began) * 1e3, newest / 1e6)


@dataclass(frozen=True)
class NoopSink:
    """At-least-once, since a batch that was run cannot be taken back."""

    arrivals: Arrivals

    @property
    def accepts_changes(self) -> bool:
        return True

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    def check(self, schema: StructType) -> None:
        pass

    def writer(self, context: SinkContext) -> NoopWriter:  # noqa: ARG002
        return NoopWriter(self.arrivals)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:  # noqa: ARG002
        return ()

    def describe(self) -> str:
        return "noop"


class NoopWriter:
    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    def write(self, batch: Batch) -> int | None:
        write_noop(cast("DataFrame", batch.frame), self._arrivals)
        batch.settle()
        return None

    def prepare(self, checkpoint: CheckpointId) -> NoOutput:  # noqa: ARG002
        return NoOutput()

    def close(self) -> None:
        pass
