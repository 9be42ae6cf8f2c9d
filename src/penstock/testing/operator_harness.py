"""``OperatorHarness``: one stateful step alone, without runtime and threads."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from penstock.api.pipeline import PipelineDefinition
from penstock.clock import MIN_WATERMARK, EventTime
from penstock.compiler.analysis import analyze
from penstock.elements import Batch
from penstock.errors import HarnessError, did_you_mean
from penstock.failpoints import failpoint
from penstock.filesystem.local import LocalFileSystem
from penstock.formats import text
from penstock.graph.nodes import Keyed
from penstock.handles import CheckpointId, Generation
from penstock.interfaces.operator import MAIN_PORT, OperatorContext, OperatorSpec, ProcessingTimeOperator
from penstock.testing.clock import ManualClock
from penstock.testing.frames import Row, fit_rows, frame_of, in_order, micros_of, rows_of

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from penstock.filesystem.base import FileSystem
    from penstock.handles import StateHandle


class OperatorHarness:
    """An operator on a real session, with its state in a temporary directory. Use it in a ``with`` block.

    Args:
        spec: of the step; ``of`` takes it out of a pipeline.
        spark: the session it runs on, used as it is.
        inputs: the columns of each input, as DDL or a ``StructType``.
        partitions: number of partitions of the state.
        consumed: the ports that are read; all, unless given.
        filesystem: for the state, if not a temporary directory.

    Attributes:
        counters: what the operator has counted, by name.
        clock: processing time, moved by ``elapse``.
        watermark: event time, in microseconds since the epoch.

    Example::

        with OperatorHarness.of(orders, "totals", spark) as totals:
            totals.send([{"user": "u1", "amount": 3.0, "at": "2026-01-01T00:00:10Z"}])
            state = totals.snapshot()
            totals.restore(state)
            totals.advance("2026-01-01T00:01:00Z")
            assert totals.rows("user", "amount") == [{"user": "u1", "amount": 3.0}]
    """

    def __init__(
        self,
        spec: OperatorSpec,
        spark: SparkSession,
        *inputs: str | StructType,
        partitions: int = 2,
        consumed: Iterable[str] | None = None,
        filesystem: FileSystem | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.clock = ManualClock()
        self.watermark = MIN_WATERMARK
        self._is_held = False
        self._spec = spec
        self._spark = spark
        self._inputs = tuple(text.struct_type(spark, each) if isinstance(each, str) else each for each in inputs)
        self._partitions = partitions
        self._consumed = None if consumed is None else frozenset(consumed)
        self._given = filesystem
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._filesystem: FileSystem
        self._operator: Any = None
        self._generation = 0
        self._numbers = itertools.count(1)
        self._sent: list[tuple[str, Batch]] = []

    @classmethod
    def of(cls, pipeline: PipelineDefinition, uid: str, spark: SparkSession, **options: Any) -> Self:
        """Return the harness of a step of a pipeline, with the columns of its inputs there.

        Raises:
            HarnessError: the pipeline has no such stateful step; with the nearest name.
            GraphError: the pipeline is refused.
        """
        analysis = analyze(pipeline.graph(), spark)
        steps = {node.uid: node for node in analysis.graph.nodes if isinstance(node, Keyed)}
        analysis.close()
        if uid not in steps:
            hint = did_you_mean(uid, steps, otherwise=f"Stateful steps: {', '.join(steps) or 'none'}.")
            msg = f"Pipeline {pipeline.name!r} has no stateful step {uid!r}{hint}"
            raise HarnessError(msg)
        node = steps[uid]
        return cls(node.spec, spark, *(analysis.schema(ref) for ref in node.inputs), **options)

    def __enter__(self) -> Self:
        if self._given is None:
            self._folder = tempfile.TemporaryDirectory(prefix="penstock-test-")
        self._filesystem = self._given or LocalFileSystem(cast("Any", self._folder).name)
        try:
            self._open(None)
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._clean()

    # ---- what goes in ------------------------------------------------------------------------------------------------

    def send(self, rows: Iterable[object] | DataFrame, *, source: int = 0) -> None:
        """Process a batch: rows as in ``PipelineRun.send``, or a DataFrame.

        Raises:
            SchemaMismatch: a row does not fit the input.
            PenstockError: the operator failed.
        """
        if hasattr(rows, "toArrow"):
            frame = cast("DataFrame", rows)
        else:
            schema = self._inputs[source]
            frame = frame_of(self._spark, fit_rows(rows, schema, "send()"), schema)
        batch = Batch(frame=frame, sequence=next(self._numbers))
        deferred = self._running.process(batch, source=source, watermark=self.watermark, emit=self._emit)
        if deferred is not None:
            deferred.finish()
        batch.settle()

    def advance(self, watermark: str | datetime | int) -> None:
        """Raise the watermark to a time, ISO text, or microseconds since the epoch.

        Raises:
            HarnessError: it is not a time, or earlier than the watermark.
        """
        at = EventTime(micros_of(watermark))
        if at < self.watermark:
            late = (self.watermark - at) / 1_000_000
            msg = f"A watermark never goes back, and {watermark!r} is {late:g} s before it. Give a later time."
            raise HarnessError(msg)
        self.watermark = at
        self._offer()

    def elapse(self, duration: str) -> None:
        """Let processing time pass; a step with processing-time timers does what is due.

        Args:
            duration: for example ``"10 seconds"``.

        Raises:
            GraphError: it is not a length of time.
        """
        self.clock.advance(duration)
        operator = self._running
        if isinstance(operator, ProcessingTimeOperator) and operator.tick(emit=self._emit) is None and self._is_held:
            self._offer()

    # ---- state -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> StateHandle:
        """Take the state as a checkpoint does, and make it durable.

        Raises:
            PenstockError: storage or the engine failed.
        """
        checkpoint = CheckpointId(next(self._numbers))
        state: StateHandle = self._running.snapshot(checkpoint).materialise()
        self._running.completed(checkpoint)
        return state

    def restore(self, state: StateHandle | None, *, partitions: int | None = None) -> None:
        """Begin again from this state (``None``: empty), as after a restart; output that was not read is lost.

        Args:
            state: of ``snapshot``.
            partitions: the number of partitions from now on.

        Raises:
            StateIncompatible: it is another step's state.
            LayerMissing: a file of it does not exist.
        """
        self._close()
        self._partitions = partitions or self._partitions
        self._open(state)

    def maintain(self) -> int:
        """Do all background work that is due (compaction); returns the number of pieces of work."""
        pieces = 0
        while (work := self._running.maintain()) is not None:
            work()
            pieces += 1
        return pieces

    # ---- what came out -----------------------------------------------------------------------------------------------

    def rows(self, *columns: str, port: str = MAIN_PORT) -> list[Row]:
        """Return and release what a port has sent since the last call, as sorted dictionaries.

        Args:
            columns: only these, in this order.
            port: ``"late"`` for late rows.

        Raises:
            KeyError: there is no such column.
        """
        mine = [batch for to, batch in self._sent if to == port]
        self._sent = [(to, batch) for to, batch in self._sent if to != port]
        found: list[Row] = []
        for batch in mine:
            found += rows_of(cast("DataFrame", batch.frame))
            batch.release()
        return in_order([{name: row[name] for name in columns} if columns else row for row in found])

    # ---- the rest ----------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> Any:
        if self._operator is None:
            msg = "The harness is not open. Use it in a with block."
            raise HarnessError(msg)
        return self._operator

    def _open(self, state: StateHandle | None) -> None:
        self._generation += 1
        ports = frozenset(self._spec.ports(self._inputs))
        context = OperatorContext(
            uid="step",
            spark=self._spark,
            filesystem=self._filesystem,
            folder=f"state/step/{self._generation}",
            generation=Generation(self._generation),
            inputs=self._inputs,
            consumed=ports if self._consumed is None else self._consumed,
            partitions=self._partitions,
            cores=2,
            background=nullcontext,
            count=self._count,
            failpoint=failpoint,
            wall=self.clock.wall,
        )
        self._operator = self._spec.open(context, state)

    def _close(self) -> None:
        sent, self._sent = self._sent, []
        for _, batch in sent:
            batch.release()
        if self._operator is not None:
            self._operator.close()
            self._operator = None

    def _clean(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _offer(self) -> None:
        held = self._running.advance(self.watermark, emit=self._emit)
        self._is_held = held is not None and held < self.watermark

    def _emit(self, batch: Batch, port: str = MAIN_PORT) -> None:
        self._sent.append((port, batch))

    def _count(self, name: str, amount: int) -> None:
        self.counters[name] += amount
