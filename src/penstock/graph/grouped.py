"""Grouped streams and windowed results: where a keyed step is added to the graph; knows nothing of how it is run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, cast

from penstock.errors import GraphError
from penstock.graph.changes import window_shift
from penstock.graph.nodes import Keyed, Origin, Ref
from penstock.graph.origin import caller
from penstock.graph.parts import aliased, check_uid, is_column, shown
from penstock.graph.stream import Stream
from penstock.operators.base import LATE
from penstock.operators.count_window import Counted
from penstock.operators.emission import FINAL, emission
from penstock.operators.global_window import Global

if TYPE_CHECKING:
    from pyspark.sql import Column

    from penstock.operators.aggregates import Aggregate
    from penstock.operators.emission import Emission
    from penstock.operators.window_aggregate import WindowAggregate
    from penstock.operators.windows import Window

WINDOW_END: Final = "window_end"
"""The event time of a windowed result: so it can be windowed again."""

_NAME: Final = re.compile(r"[A-Za-z_]\w*|`[^`]+`")


class GroupedStream:
    """A stream, the columns and the window that its rows are grouped by."""

    def __init__(self, stream: Stream, keys: tuple[tuple[str, str | Column], ...], window: Window, time: str) -> None:
        self._stream = stream
        self._keys = keys
        self._window = window
        self._time = time

    def agg(
        self,
        uid: str,
        *aggregates: Aggregate,
        emit: Literal["final", "updates"] = "final",
        emit_every: str | None = None,
        early: str | None = None,
    ) -> WindowedResult:
        """Aggregate each group; one row for each key and window, when the watermark passes the window's end.

        Args:
            uid: names the step's state in checkpoints; unique in the pipeline, and never changed lightly.
            *aggregates: of ``ps.agg``, for example ``ps.agg.sum("amount").alias("amount")``.
            emit: ``"final"``: each window at its end, and again when rows within the allowed lateness have changed it.
                ``"updates"``: a change stream, whose rows say in ``_change`` what they are: ``insert``,
                ``update_before`` (the result that no longer holds), ``update_after``, or ``delete`` (of a session that
                is part of another now).
            emit_every: with ``"updates"``, at most one emission in so much processing time, at its multiples; without
                it each batch sends what it changed. What waits is sent before each checkpoint in any case.
            early: with ``"final"``, send preliminary results of windows that have changed, at most so often. Results
                then say in ``_timing`` whether they are ``early``, ``on_time`` or ``late``.

        >>> import penstock as ps
        >>> numbers = ps.Pipeline("demo").read("numbers", ps.rate.Source(rows_per_second=10))
        >>> by_value = numbers.with_watermark("at", delay="5 seconds").group_by("value", ps.tumbling("1 hour"))
        >>> by_value.agg("counts", ps.agg.count().alias("n"))
        <WindowedResult of 'counts'>
        """
        origin = caller()
        check_uid(uid, origin)
        try:
            spec = self._spec(aggregates, emission(emit, emit_every, early))
        except GraphError as error:
            error.uid, error.where = uid, str(origin)
            raise
        pipeline, inputs = self._stream.pipeline, (self._stream.ref,)
        node = pipeline.keep(lambda number: Keyed(id=number, origin=origin, inputs=inputs, uid=uid, spec=spec))
        return WindowedResult(pipeline, Ref(node.id), time=WINDOW_END if _keeps_time(self._window) else None)

    def _spec(self, aggregates: tuple[Aggregate, ...], sends: Emission) -> WindowAggregate:
        from penstock.operators.aggregates import check_aggregate
        from penstock.operators.window_aggregate import WindowAggregate

        if not aggregates:
            msg = "agg() needs at least one aggregate, for example ps.agg.count()"
            raise GraphError(msg)
        if isinstance(self._window, Counted) and sends != FINAL:
            what = (
                "global_window(every_rows=…) sends each key with so many rows"
                if self._window.is_running
                else "count_window() sends each window when it is full"
            )
            msg = f"{what}: leave emit and early out, or take global_window()"
            raise GraphError(msg)
        checked = tuple(map(check_aggregate, aggregates))
        for aggregate in checked:
            aggregate.label  # noqa: B018 - refuses one without a name
        if sends.updates and any(aggregate.function == "approx_percentile" for aggregate in checked):
            msg = (
                'ps.agg.approx_percentile draws lots, and emit="updates" could not say again what it sent before: '
                'take ps.agg.percentile, or emit="final"'
            )
            raise GraphError(msg)
        stream = self._stream
        shift = 0 if self._window.is_processing else window_shift(stream.pipeline.graph(), stream.ref)
        return WindowAggregate(
            keys=self._keys, time=self._time, window=self._window, aggregates=checked, shift=shift, emission=sends
        )


class WindowedResult(Stream):
    """Group columns, ``window_start``, ``window_end``, aggregates. It can be windowed again as it is.

    Its event time is the last moment within a window, ``window_end`` less a microsecond: so the minute that ends at
    13:00 belongs to the hour that ends at 13:00.
    """

    def __repr__(self) -> str:
        return super().__repr__().replace("<Stream", "<WindowedResult")

    @property
    def late(self) -> Stream:
        """The rows that came after their window was closed, with the columns they came with."""
        return Stream(self.pipeline, Ref(self.ref.node, LATE))


def group(stream: Stream, keys: tuple[str | Column | Window, ...], origin: Origin) -> GroupedStream:
    """Take keys apart into group columns and the one window.

    Raises:
        GraphError: there is no watermark, not one window, or a key without a name.
    """
    where = str(origin)
    windows = [key for key in keys if _is_window(key)]
    if len(windows) != 1:
        msg = f'group_by() needs exactly one window such as ps.tumbling("1 minute"), got {len(windows)}'
        raise GraphError(msg, where=where)
    window = cast("Window", windows[0])
    if stream.time is None and isinstance(window, (Counted, Global)):
        window = replace(window, is_processing=True)
    if stream.time is None and not getattr(window, "is_processing", False):
        msg = (
            "group_by() needs a watermark, which says when a window is complete: put "
            '.with_watermark("<time column>", delay="5 seconds") before it'
        )
        raise GraphError(msg, where=where)
    columns = tuple(_key(key, where) for key in keys if not _is_window(key))
    return GroupedStream(stream, columns, window, stream.time or "")


def _keeps_time(window: Window) -> bool:
    """Whether the watermark of the input says which results are still to come, too."""
    return not window.is_processing and not isinstance(window, (Counted, Global))


def _is_window(key: object) -> bool:
    """Asks the type: a Column takes any name for that of a field."""
    return hasattr(type(key), "due")


def _key(key: object, where: str) -> tuple[str, str | Column]:
    if not isinstance(key, str) and not is_column(key):
        msg = f"group_by() takes columns and a window, got {key!r} ({type(key).__name__})"
        raise GraphError(msg, where=where)
    text = shown(key)
    expression, name = aliased(text)
    if name is not None:
        return name, cast("str | Column", key) if is_column(key) else expression
    if _NAME.fullmatch(text):
        return text.strip("`"), cast("str | Column", key)
    msg = f"the key {text!r} has no name: write \"{text} AS name\", or .alias('name') on a Column"
    raise GraphError(msg, where=where)
