"""The description of a windowed aggregate, which opens the operator that runs it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.clock import format_duration
from penstock.errors import GraphError
from penstock.interfaces.operator import LATE_PORT, MAIN_PORT, Operator, OperatorContext
from penstock.interfaces.sink import CHANGE_COLUMN
from penstock.operators.windows.assigners import CountWindow, SessionWindow
from penstock.operators.windows.emit_strategy import ON_WINDOW_CLOSE, EmitStrategy
from penstock.operators.windows.frames import TIMING_COLUMN
from penstock.spark.session import active_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

    from penstock.handles import StateHandle
    from penstock.interfaces.operator import StateSchema
    from penstock.operators.aggregates.base import Aggregate
    from penstock.operators.windows.frames import WindowFrames
    from penstock.operators.windows.panes import Window


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowAggregate:
    """Aggregates for each key and window, sent when the watermark passes the window's end unless ``emission`` differs.

    Attributes:
        keys: name and expression (a column's name, SQL, or a Column) of each group column; none for one result a
            window.
        time: the event-time column, a TIMESTAMP; not looked at in processing time.
        window: made by ``ps.tumbling``, ``ps.sliding`` and so on.
        aggregates: made by ``ps.agg``.
        shift: microseconds added to event times.
        emission: what is sent, and when.

    Example::

        WindowAggregate(
            keys=(("user", "user"),),
            time="at",
            window=tumbling("1 minute"),
            aggregates=(agg.sum("amount").alias("amount"), agg.count().alias("n")),
        )
    """

    keys: tuple[tuple[str, str | Column], ...]
    time: str
    window: Window
    aggregates: tuple[Aggregate, ...]
    shift: int = 0
    emission: EmitStrategy = ON_WINDOW_CLOSE

    @property
    def is_change_stream(self) -> bool:
        """Whether its rows are changes, of which later ones undo earlier ones."""
        return self.emission.updates

    @property
    def may_repeat(self) -> bool:
        """Whether a window may be sent more than once."""
        window = self.window
        return self.emission.early or window.lateness > 0 or (isinstance(window, CountWindow) and window.is_running)

    @property
    def kind(self) -> str:
        """The format of its state: see ``penstock.state.layers.LayerFormat``."""
        from penstock.operators.windows import counts, sessions
        from penstock.state import layers

        kinds = {SessionWindow: sessions.KIND, CountWindow: counts.KIND}
        return kinds.get(type(self.window), layers.KIND)

    def ports(self, inputs: tuple[StructType, ...]) -> Mapping[str, StructType]:
        """``out``: group columns, ``window_start``, ``window_end``, aggregates, and ``_change`` or ``_timing``.

        ``late``: the input's columns.

        Raises:
            GraphError: a column is missing or has an impossible type; two columns have one name.
        """
        frames = self.frames(uid="", schema=inputs[0], session=_session(), partitions=1)
        return {MAIN_PORT: self._output(frames.output), LATE_PORT: inputs[0]}

    def keeps(self, inputs: tuple[StructType, ...], session: SparkSession) -> StateSchema:
        """The schema of its state. Spark analyses the step; no job runs."""
        return self.frames(uid="", schema=inputs[0], session=session, partitions=1).keeps

    def open(self, context: OperatorContext, restored: StateHandle | None) -> Operator:
        """Open the operator, with restored state or none.

        Raises:
            StateIncompatible: the state is of another kind, or its columns cannot become the step's.
            LayerMissing: a file of a layer is not there.
            CheckpointUnreadable: a file is not the one that was written.
        """
        from penstock.operators.windows.counts import CountOperator
        from penstock.operators.windows.operator import WindowOperator

        frames = self.frames(
            uid=context.uid, schema=context.inputs[0], session=context.spark, partitions=context.partitions
        )
        operator = CountOperator if isinstance(self.window, CountWindow) else WindowOperator
        return operator(frames, self.emission, context, restored)

    def describe(self) -> str:
        """In a few words, for people."""
        keys = ", ".join(name for name, _ in self.keys) or "all rows"
        results = ", ".join(aggregate.label for aggregate in self.aggregates)
        late = f", lateness {format_duration(self.window.lateness)}" if self.window.lateness else ""
        return f"{results} by {keys}, {self.window.describe()}{late}{self.emission.describe()}"

    def frames(self, *, uid: str, schema: StructType, session: SparkSession, partitions: int) -> WindowFrames:
        """What it does to frames, and the format of its layers. Spark analyses the step; no job runs.

        Raises:
            GraphError: as ``ports``.
        """
        from penstock.operators.windows.counts import ROWS_OF_WINDOW, make_count_frames
        from penstock.operators.windows.frames import make_frames
        from penstock.operators.windows.sessions import to_session_frames

        if isinstance(self.window, CountWindow):
            step = replace(self, aggregates=(*self.aggregates, ROWS_OF_WINDOW))
            return make_count_frames(step, self.window, uid=uid, schema=schema, session=session, partitions=partitions)
        frames = make_frames(self, uid=uid, schema=schema, session=session, partitions=partitions)
        return to_session_frames(frames) if isinstance(self.window, SessionWindow) else frames

    def _output(self, results: StructType) -> StructType:
        from pyspark.sql.types import StringType, StructField, StructType

        more = [CHANGE_COLUMN] if self.emission.updates else [TIMING_COLUMN] if self.emission.early else []
        return StructType([*results.fields, *(StructField(name, StringType()) for name in more)])


def _session() -> SparkSession:
    session = active_session()
    if session is None:
        msg = "Spark's analyser checks a windowed aggregate, and no session runs. Create the SparkSession first."
        raise GraphError(msg)
    return session
