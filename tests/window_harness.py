"""A windowed aggregate alone on a real session: no runtime, a real folder, and Spark counted from outside."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.elements import Batch
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import StateHandle
from penstock.interfaces.operator import LATE_PORT, MAIN_PORT, OperatorContext
from penstock.operators.windows.aggregate import WindowAggregate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession


_GROUPS = itertools.count()


@dataclass
class Counted:
    """What a piece of work cost, as Spark's own counters tell."""

    jobs: int = 0
    compilations: int = 0


@contextlib.contextmanager
def counted(spark: SparkSession) -> Iterator[Counted]:
    """Count the jobs of this thread and all compilations."""
    context = spark.sparkContext
    group = f"window-test-{next(_GROUPS)}"
    result = Counted()
    before = compilations(spark)
    context.setJobGroup(group, group)
    try:
        yield result
    finally:
        result.jobs = jobs_of(spark, group)
        result.compilations = compilations(spark) - before
        context._jsc.sc().clearJobGroup()


def jobs_of(spark: SparkSession, *groups: str, since: int = 0) -> int:
    """How many jobs ran in these groups from a job number on: other tests of the session use the same names."""
    context = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()  # the tracker hears of jobs a little later
    ran = (number for group in groups for number in context.statusTracker().getJobIdsForGroup(group))
    return sum(number >= since for number in ran)


def next_job(spark: SparkSession) -> int:
    """The number that the session's next job will have."""
    return spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()


def compilations(spark: SparkSession) -> int:
    """How often generated code was compiled in this JVM."""
    metrics: Any = spark.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics
    return metrics.METRIC_COMPILATION_TIME().getCount()


def exchanges(frame: DataFrame) -> int:
    """The exchanges in a frame's plan, and in the kept plans that made its rows, down to rows that are kept."""
    plan = frame._jdf.queryExecution().executedPlan()
    leaves = plan.collectLeaves()
    scans = [leaf for leaf in map(leaves.apply, range(leaves.size())) if leaf.nodeName().startswith("Scan ExistingRDD")]
    return plan.toString().count("Exchange") + sum(_shuffles(scan.rdd()) for scan in scans)


def _shuffles(rdd: Any) -> int:
    if rdd.getStorageLevel().useMemory():
        return 0
    found, on = 0, rdd.dependencies()
    for dependency in map(on.apply, range(on.size())):
        found += dependency.getClass().getSimpleName() == "ShuffleDependency"
        found += _shuffles(dependency.rdd())
    return found


def persistent(spark: SparkSession) -> frozenset[int]:
    """The RDDs that Spark keeps blocks of. Compare as sets: garbage of an earlier test may go at any time."""
    return frozenset(spark.sparkContext._jsc.getPersistentRDDs().keySet())


@dataclass
class Rig:
    """One windowed aggregate, its input's schema, and what came out of it."""

    spark: SparkSession
    spec: WindowAggregate
    schema: pa.Schema
    root: Path
    partitions: int = 2
    generation: int = 1
    late_read: bool = True
    restored: StateHandle | None = None
    failpoint: Any = lambda _name: None
    report: Any = lambda _fact: None
    counts: dict[str, int] = field(default_factory=dict)
    watermark: int = -(2**63)
    wall: int = 0

    def __post_init__(self) -> None:
        self.sent: list[tuple[str, Batch]] = []
        self.input = self.frame([]).schema
        self.filesystem = LocalFileSystem(self.root)
        context = OperatorContext(
            uid="totals",
            spark=self.spark,
            filesystem=self.filesystem,
            folder=f"state/totals/{self.generation}",
            generation=self.generation,
            inputs=(self.input,),
            consumed=frozenset({MAIN_PORT, LATE_PORT} if self.late_read else {MAIN_PORT}),
            partitions=self.partitions,
            cores=2,
            background=contextlib.nullcontext,
            count=self._count,
            failpoint=self.failpoint,
            wall=lambda: self.wall,
            report=self._report,
        )
        self.operator: Any = self.spec.open(context, self.restored)
        self._checkpoints = itertools.count(1)
        self._batches = itertools.count()

    def frame(self, rows: list[dict[str, object]]) -> DataFrame:
        return self.spark.createDataFrame(pa.Table.from_pylist(rows, schema=self.schema))

    def process(self, rows: list[dict[str, object]]) -> None:
        self.process_frame(self.frame(rows))

    def process_frame(self, frame: DataFrame) -> None:
        batch = Batch(frame=frame, sequence=next(self._batches))
        deferred = self.operator.process(batch, source=0, watermark=self.watermark, emit=self._emit)
        if deferred is not None:
            deferred.finish()

    def advance(self, watermark: int) -> None:
        self.watermark = watermark
        self.operator.advance(watermark, emit=self._emit)

    def take(self, port: str = MAIN_PORT) -> list[tuple[object, ...]]:
        """Run and release what was sent on by a port, sorted as text."""
        rows: list[tuple[object, ...]] = []
        mine = [batch for to, batch in self.sent if to == port]
        self.sent = [(to, batch) for to, batch in self.sent if to != port]
        for batch in mine:
            rows += [tuple(row) for row in batch.frame.collect()]
            batch.release()
        return sorted(rows, key=repr)

    def maintain(self) -> int:
        """All background work that is due; how many pieces it was."""
        pieces = 0
        while (work := self.operator.maintain()) is not None:
            work()
            pieces += 1
        return pieces

    def checkpoint(self) -> StateHandle:
        return self.operator.snapshot(next(self._checkpoints)).materialise()

    def again(self, handle: StateHandle, **changes: Any) -> Rig:
        """The same step in a new process, so to say: restored, with the next generation."""
        self.operator.close()
        settings = {"partitions": self.partitions, "generation": self.generation + 1, "late_read": self.late_read}
        settings |= changes
        return Rig(self.spark, self.spec, self.schema, self.root, restored=handle, watermark=self.watermark, **settings)

    def bytes_written(self) -> int:
        return sum((self.root / path).stat().st_size for path in self.filesystem.list("state"))

    def _emit(self, batch: Batch, port: str = MAIN_PORT) -> None:
        self.sent.append((port, batch))

    def _report(self, fact: object) -> None:
        self.report(fact)

    def _count(self, name: str, value: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + value


def deliver(spark: SparkSession, rig: Rig) -> None:
    """Run everything that was sent as its consumer would: in one job, and results without an exchange."""
    for port, batch in rig.sent:
        assert port == LATE_PORT or exchanges(batch.frame) == 0
        with counted(spark) as consumer:
            batch.frame.write.format("noop").mode("overwrite").save()
        assert consumer.jobs == 1
        batch.release()
    rig.sent.clear()


def taken(rig: Rig, port: str = MAIN_PORT) -> list[tuple[object, ...]]:
    """What was sent by a port, in order, with times in microseconds."""
    rows: list[tuple[object, ...]] = []
    mine = [batch for to, batch in rig.sent if to == port]
    rig.sent = [(to, batch) for to, batch in rig.sent if to != port]
    for batch in mine:
        fields = batch.frame.schema.fields
        names = [f"unix_micros({f.name})" if f.dataType.typeName() == "timestamp" else f.name for f in fields]
        rows += [tuple(row) for row in batch.frame.selectExpr(*names).collect()]
        batch.release()
    return rows
