"""Streams as users write them: each method adds frozen nodes to the graph and returns a new stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, get_args, overload

from penstock.api import spark_names
from penstock.api.arguments import (
    check_choice,
    check_column_name,
    check_columns,
    check_function,
    check_same,
    check_time_kept,
    check_united,
    column_text,
    redefined_columns,
    split_alias,
)
from penstock.api.preview import Previewable
from penstock.clock import parse_duration
from penstock.connectors.for_each import ForEachSink, When, check_batch_function
from penstock.dead_letters.letters import VERB, provenance, to_letters
from penstock.dead_letters.store import DeadLetterSink
from penstock.errors import GraphError
from penstock.formats.text import check_options, to_ddl
from penstock.graph import nodes
from penstock.graph.nodes import (
    BAD_PORT,
    CallSite,
    GraphBuilder,
    Keyed,
    Node,
    ParseCsv,
    ParseJson,
    PortRef,
    RowWise,
    TableRef,
    Union,
    WithWatermark,
    Write,
    call_site,
    check_uid,
    is_column,
)
from penstock.graph.validate import window_shift
from penstock.handles import Guarantee, check_name
from penstock.interfaces.operator import LATE_PORT
from penstock.operators.windows.assigners import CountWindow, GlobalWindow
from penstock.operators.windows.emit_strategy import ON_WINDOW_CLOSE, emit_strategy
from penstock.spark.sql import quote_identifier
from penstock.user_code import short_tracebacks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from penstock.connectors.for_each import BatchFunction
    from penstock.interfaces.sink import Sink
    from penstock.operators.aggregates.base import Aggregate
    from penstock.operators.windows.aggregate import WindowAggregate
    from penstock.operators.windows.emit_strategy import EmitStrategy
    from penstock.operators.windows.panes import Window


# -------------------------------------------------------------------------------- row-wise steps as functions of frames

Build: TypeAlias = "Callable[..., DataFrame]"
_QUOTED: Final = re.compile(r"`(?:[^`]|``)+`")


def select(columns: tuple[str | Column, ...]) -> Build:
    """Return a function that selects columns and expressions, in order."""
    return lambda frame: frame.select(*map(_column, columns))


def where(condition: str | Column) -> Build:
    """Return a function that filters rows."""
    return lambda frame: frame.where(condition)


def with_columns(columns: Mapping[str, str | Column]) -> Build:
    """Return a function that adds or replaces columns."""
    kept = dict(columns)
    return lambda frame: frame.withColumns({name: _column(value) for name, value in kept.items()})


def drop(names: tuple[str, ...]) -> Build:
    """Return a function that drops columns; a missing column is an error, which it is not in Spark."""
    # Spark drops what is called exactly so, and nothing without a word: not what is quoted, nor a field.
    plain = [name[1:-1].replace("``", "`") if _QUOTED.fullmatch(name) else name for name in names]

    def build(frame: DataFrame) -> DataFrame:
        frame.select(*map(quote_identifier, plain))
        return frame.drop(*plain)

    return build


def call(function: Callable[..., DataFrame], args: tuple[object, ...], kwargs: Mapping[str, object]) -> Build:
    """Return the user's function with its arguments; tables among them become the frames that follow, in order."""
    kept = dict(kwargs)
    tables = list(dict.fromkeys(part.table for part in (*args, *kept.values()) if isinstance(part, TableRef)))

    def build(frame: DataFrame, *frames: DataFrame) -> DataFrame:
        by_name = {table.name: joined for table, joined in zip(tables, frames, strict=True)}

        def resolved(part: object) -> object:
            return by_name[part.table.name] if isinstance(part, TableRef) else part

        return function(frame, *map(resolved, args), **{name: resolved(part) for name, part in kept.items()})

    return build


def _column(value: str | Column) -> Column:
    from pyspark.sql import functions as F

    return F.expr(value) if isinstance(value, str) else value


# --------------------------------------------------------------------------------------------------------- dead letters


def add_dead_letters(stream: Stream, uid: str, cause: str | None, origin: CallSite) -> None:
    """Add a step that makes dead letters of rows, and their sink.

    Raises:
        GraphError: the uid or the cause is no name, or late and undecoded rows were given another cause.
    """
    check_uid(uid, origin)
    pipeline, ref = stream.pipeline, stream.ref
    if cause is not None:
        _check_cause(cause, ref, uid, origin)

    def build(frame: DataFrame) -> DataFrame:
        # The graph is whole only now. Rows may be read again only if no other step reads them.
        return to_letters(frame, provenance(pipeline.graph(), ref, cause=cause, time=stream.time))

    letters = pipeline.keep(
        lambda number: RowWise(id=number, origin=origin, inputs=(ref,), verb=VERB, text=uid, build=build)
    )
    pipeline.keep(
        lambda number: Write(id=number, origin=origin, inputs=(PortRef(letters.id),), uid=uid, sink=DeadLetterSink())
    )


def _check_cause(cause: str, ref: PortRef, uid: str, origin: CallSite) -> None:
    if ref.port in (BAD_PORT, LATE_PORT):
        known = "late" if ref.port == LATE_PORT else "not decoded"
        msg = f"cause={cause!r} cannot be given, because these rows are {known}, which is their cause. Leave cause out."
        raise GraphError(msg, uid=uid, where=str(origin))
    try:
        check_name("cause", cause)
    except GraphError as error:
        error.uid, error.where = uid, str(origin)
        raise


# -------------------------------------------------------------------------------------------------------------- streams

OnError = Literal["fail", "split", "null"]
GuaranteeName = Literal["at-most-once", "at-least-once", "exactly-once"]


@short_tracebacks
class Stream(spark_names.AnswersSparkNames, Previewable):
    """An unbounded stream of rows. Immutable: methods return new streams.

    Columns are given as SQL text or as Spark's ``Column``. A text is an expression everywhere: ``"amount * 2 AS x"``.
    """

    _spark_names = spark_names.STREAM

    def __init__(self, pipeline: GraphBuilder, ref: PortRef, *, time: str | None = None) -> None:
        super().__init__(pipeline, ref)
        self.time = time
        """The event-time column after ``with_watermark``, else ``None``."""

    def __repr__(self) -> str:
        return f"<Stream of {nodes.describe_step(self.pipeline.graph().node(self.ref.node))}>"

    def select(self, *columns: str | Column) -> Stream:
        """Keep only these columns, in this order.

        >>> import penstock as ps
        >>> numbers = ps.Pipeline("demo").read("numbers", ps.rate.Source(rows_per_second=10))
        >>> numbers.select("value", "value * 2 AS twice")
        <Stream of select value, value * 2 AS twice>
        """
        check_columns("select", columns, origin := call_site())
        check_time_kept(self.time, redefined_columns(columns), origin)
        return self._row_wise("select", ", ".join(map(column_text, columns)), select(columns), origin)

    def where(self, condition: str | Column) -> Stream:
        """Keep only the rows for which the condition is true."""
        check_columns("where", (condition,), origin := call_site())
        return self._row_wise("where", column_text(condition), where(condition), origin)

    def with_column(self, name: str, value: str | Column) -> Stream:
        """Add or replace one column."""
        return self.with_columns({name: value})

    def with_columns(self, columns: Mapping[str, str | Column]) -> Stream:
        """Add or replace several columns; each expression sees the columns as they were."""
        check_columns("with_columns", tuple(columns.values()), origin := call_site())
        check_time_kept(self.time, columns, origin)
        text = ", ".join(f"{column_text(value)} AS {name}" for name, value in columns.items())
        return self._row_wise("with_columns", text, with_columns(columns), origin)

    def drop(self, *names: str) -> Stream:
        """Remove these columns."""
        check_columns("drop", names, origin := call_site())
        check_time_kept(self.time, names, origin)
        return self._row_wise("drop", ", ".join(names), drop(names), origin)

    def transform(self, function: Callable[..., DataFrame], *args: object, **kwargs: object) -> Stream:
        """Apply a row-wise function from DataFrame to DataFrame, as ``DataFrame.transform`` in PySpark.

        The function is called once, when the job is built, on an empty frame. Its plan is checked and reused for every
        batch. It may join tables of ``p.table(…)`` that are arguments. A function that draws random numbers is called
        for each batch. It must not change the event-time column; that is not checked.

        Args:
            function: takes the frame, then the arguments. It must not run a job, and each row must depend on one row.
            *args: further arguments; tables arrive as frames.
            **kwargs: further arguments; tables arrive as frames.

        >>> import penstock as ps
        >>> numbers = ps.Pipeline("demo").read("numbers", ps.rate.Source(rows_per_second=10))
        >>> def twice(frame, column):
        ...     return frame.withColumn("twice", frame[column] * 2)
        >>> numbers.transform(twice, column="value").schema.names
        ['value', 'at', 'twice']
        """
        origin = call_site()
        check_function(function, origin)
        tables = [part for part in (*args, *kwargs.values()) if isinstance(part, TableRef)]
        for part in tables:
            check_same(self.pipeline, part.pipeline, origin)
        return self.add(
            lambda number: RowWise(
                id=number,
                origin=origin,
                inputs=(self.ref,),
                verb="transform",
                text=nodes.call_text(function, args, kwargs),
                build=call(function, args, kwargs),
                tables=tuple(dict.fromkeys(part.table for part in tables)),
                checked=True,
            )
        )

    def union(self, *others: Stream) -> Stream:
        """Return these streams as one. All must have the same columns in the same order."""
        origin = call_site()
        for other in others:
            check_same(self.pipeline, other.pipeline, origin)
        check_united(refs := (self.ref, *(other.ref for other in others)), origin)
        times = {self.time, *(other.time for other in others)}
        node = self.pipeline.keep(lambda number: Union(id=number, origin=origin, inputs=refs))
        return Stream(self.pipeline, PortRef(node.id), time=self.time if len(times) == 1 else None)

    @overload
    def parse_json(
        self, column: str, schema: str | StructType, on_error: Literal["split"]
    ) -> tuple[Stream, Stream]: ...

    @overload
    def parse_json(
        self, column: str, schema: str | StructType, on_error: Literal["fail", "null"] = "fail"
    ) -> Stream: ...

    def parse_json(
        self, column: str, schema: str | StructType, on_error: OnError = "fail"
    ) -> Stream | tuple[Stream, Stream]:
        """Decode a column of JSON text: the fields of the record replace the column.

        Args:
            column: text or bytes, one JSON object each.
            schema: the fields to decode, as DDL or as a ``StructType``.
            on_error: ``"fail"``: the first bad record fails the job. ``"null"``: its fields are ``NULL``. ``"split"``:
                the result is a pair of streams, good rows, and bad rows as they came with the reason in ``_error``.

        >>> import penstock as ps
        >>> lines = ps.Pipeline("demo").read("lines", ps.files.Source("in/", format="text"))
        >>> lines.parse_json("value", "id LONG", on_error="split")
        (<Stream of parse_json value>, <Stream of parse_json value>)
        """
        origin = call_site()
        check_choice("on_error", on_error, get_args(OnError), origin)
        text = schema if isinstance(schema, str) else to_ddl(schema)
        check_column_name("parse_json", column, origin)
        node = self.pipeline.keep(
            lambda number: ParseJson(
                id=number, origin=origin, inputs=(self.ref,), column=column, schema=text, on_error=on_error
            )
        )
        parsed = Stream(self.pipeline, PortRef(node.id), time=self.time)
        return (parsed, Stream(self.pipeline, PortRef(node.id, BAD_PORT))) if on_error == "split" else parsed

    @overload
    def parse_csv(
        self,
        column: str,
        schema: str | StructType,
        on_error: Literal["split"],
        options: Mapping[str, object] | None = None,
    ) -> tuple[Stream, Stream]: ...

    @overload
    def parse_csv(
        self,
        column: str,
        schema: str | StructType,
        on_error: Literal["fail", "null"] = "fail",
        options: Mapping[str, object] | None = None,
    ) -> Stream: ...

    def parse_csv(
        self,
        column: str,
        schema: str | StructType,
        on_error: OnError = "fail",
        options: Mapping[str, object] | None = None,
    ) -> Stream | tuple[Stream, Stream]:
        """Decode a column of CSV text, one record each: the fields of the record replace the column.

        A record with too few or too many fields is bad, and so is a field that is not of its declared type. Quoted
        fields may have line breaks.

        Args:
            column: text or bytes.
            schema: the fields in the order of the line, as DDL or as a ``StructType``.
            on_error: what becomes of bad lines, as for ``parse_json``.
            options: of Spark's decoder: ``sep``, ``quote``, ``nullValue``, ``timestampFormat``, …

        Raises:
            GraphError: an option has no effect here; a line has no header.

        >>> import penstock as ps
        >>> lines = ps.Pipeline("demo").read("lines", ps.files.Source("in/", format="text"))
        >>> lines.parse_csv("value", "id LONG, user STRING", on_error="split", options={"sep": ";"})
        (<Stream of parse_csv value>, <Stream of parse_csv value>)
        """
        origin = call_site()
        check_choice("on_error", on_error, get_args(OnError), origin)
        text = schema if isinstance(schema, str) else to_ddl(schema)
        check_column_name("parse_csv", column, origin)
        if any(name.lower() == "header" for name in options or ()):
            msg = "Option 'header' has no effect in parse_csv: each value is one line. Leave it out."
            raise GraphError(msg, where=str(origin))
        chosen = tuple(sorted(check_options(options or {}, "csv").items()))
        node = self.pipeline.keep(
            lambda number: ParseCsv(
                id=number,
                origin=origin,
                inputs=(self.ref,),
                column=column,
                schema=text,
                on_error=on_error,
                options=chosen,
            )
        )
        parsed = Stream(self.pipeline, PortRef(node.id), time=self.time)
        return (parsed, Stream(self.pipeline, PortRef(node.id, BAD_PORT))) if on_error == "split" else parsed

    def with_watermark(
        self,
        column: str,
        delay: str,
        *,
        idle_after: str | None = None,
        max_ahead: str | None = "1 day",
        max_drift: str | None = None,
    ) -> Stream:
        """Declare which column is event time, and how late rows may come.

        Args:
            column: a TIMESTAMP.
            delay: the watermark is the largest event time seen, less ``delay``.
            idle_after: after this time without a batch, the stream is idle and holds back no watermark.
            max_ahead: event times further ahead of the wall clock do not move the watermark, so that one wrong clock
                cannot make all other rows late. Such rows are counted and otherwise treated like any other. ``None``
                trusts every row.
            max_drift: how far event time may be ahead of the slowest partition of the same source and of the streams
                that meet this one in a union or a step with several inputs; idle ones do not count. A partition that
                is further ahead pauses, so that its rows do not pile up in state. ``None`` never pauses, though
                others may wait for this stream. Flink calls this watermark alignment.

        Raises:
            GraphError: a text is not a duration, or (when the job is built) ``max_drift`` is set after a keyed step:
                only sources can pause.

        >>> import penstock as ps
        >>> numbers = ps.Pipeline("demo").read("numbers", ps.rate.Source(rows_per_second=10))
        >>> numbers.with_watermark("at", delay="5 seconds", max_drift="1 minute")
        <Stream of with_watermark at, delay 5 seconds>
        """
        origin = call_site()
        check_column_name("with_watermark", column, origin)
        node = self.pipeline.keep(
            lambda number: WithWatermark(
                id=number,
                origin=origin,
                inputs=(self.ref,),
                column=column,
                delay=parse_duration("delay", delay),
                idle_after=None if idle_after is None else parse_duration("idle_after", idle_after, least=1),
                max_ahead=None if max_ahead is None else parse_duration("max_ahead", max_ahead),
                max_drift=None if max_drift is None else parse_duration("max_drift", max_drift),
            )
        )
        return Stream(self.pipeline, PortRef(node.id), time=column)

    def group_by(self, *keys: str | Column | Window) -> GroupedStream:
        """Group rows by columns and a window over event time; ``agg`` follows.

        Args:
            *keys: names of columns, and last a window such as ``ps.tumbling("1 minute")``.

        >>> import penstock as ps
        >>> numbers = ps.Pipeline("demo").read("numbers", ps.rate.Source(rows_per_second=10))
        >>> timed = numbers.with_watermark("at", delay="5 seconds")
        >>> timed.group_by("value", ps.tumbling("1 minute")).agg("counts", ps.agg.count())
        <WindowedResult of 'counts'>
        """
        return group_stream(self, keys, call_site())

    def write(self, uid: str, sink: Sink, *, guarantee: GuaranteeName | None = None) -> None:
        """Send the rows to a sink.

        Args:
            uid: names the sink's output in checkpoints; unique in the pipeline, and never changed lightly.
            sink: for example ``ps.files.Sink("out/", format="parquet")``.
            guarantee: the guarantee that is needed; refused if the sink or a source of these rows is weaker.
        """
        origin = call_site()
        check_uid(uid, origin)
        if not hasattr(sink, "writer"):
            msg = f"write() cannot take {sink!r}. Give it a sink such as ps.files.Sink(…)."
            raise GraphError(msg, uid=uid, where=str(origin))
        if guarantee is not None:
            check_choice("guarantee", guarantee, get_args(GuaranteeName), origin, uid=uid)
        asked = None if guarantee is None else Guarantee(guarantee)
        self.pipeline.keep(
            lambda number: Write(id=number, origin=origin, inputs=(self.ref,), uid=uid, sink=sink, guarantee=asked)
        )

    def for_each_batch(self, uid: str, function: BatchFunction, *, when: When = "commit") -> None:
        """Call a function with the rows of each checkpoint, exactly-once if it is idempotent.

        The function gets a DataFrame and the epoch, an ``int`` that rises. The frame is read from files that were made
        durable before the checkpoint, so it may be run any number of times. After a crash in or right after a call,
        the function is called again with the same rows and the same epoch, before anything else: it must skip an epoch
        that it has written already. That call may overlap one of an attempt that failed, so the function must be
        atomic. With another state directory epochs begin near 0 again. A checkpoint without rows calls nothing.

        If the function raises an ``OSError``, as a broken connection does, it is called again after a while, and later
        epochs wait. Any other error ends the job, whose next start calls it again. Only the pipeline has the function:
        ``penstock settle`` cannot publish what waits for it.

        Args:
            uid: names the rows in checkpoints; unique in the pipeline, and never changed lightly.
            function: takes the frame and the epoch. It runs in the driver, in one thread.
            when: ``"commit"``, or ``"batch"``: the function is called with each batch as it comes and the number of
                the batch in this run. That is at-least-once: a restart brings rows again, in other batches.

        Raises:
            GraphError: the function does not take two arguments, or the uid is not a valid name.

        >>> import penstock as ps
        >>> numbers = ps.Pipeline("demo").read("numbers", ps.rate.Source(rows_per_second=10))
        >>> def save(frame, epoch):
        ...     frame.write.mode("overwrite").parquet(f"out/epoch={epoch}")
        >>> numbers.for_each_batch("numbers-out", save)
        """
        origin = call_site()
        check_uid(uid, origin)
        check_choice("when", when, get_args(When), origin, uid=uid)
        try:
            check_batch_function(function)
        except GraphError as error:
            error.uid, error.where = uid, str(origin)
            raise
        sink = ForEachSink(function, when)
        self.pipeline.keep(lambda number: Write(id=number, origin=origin, inputs=(self.ref,), uid=uid, sink=sink))

    def dead_letter(self, uid: str, *, cause: str | None = None) -> None:
        """Keep rows that the pipeline gives up on in the job's directory, with their cause and where they came from.

        ``penstock deadletter list | show | replay`` reads them. A replay sends rows that could not be decoded through
        the pipeline again, with its code as it is then. They are published exactly-once, as by a files sink.

        Args:
            uid: names the rows, in checkpoints too; unique in the pipeline, and never changed lightly.
            cause: a short name of the cause, such as ``"no-such-user"``. Late rows and rows that could not be decoded
                have the causes ``late`` and ``decode``.

        Raises:
            GraphError: the uid or the cause is not a valid name.

        >>> import penstock as ps
        >>> lines = ps.Pipeline("demo").read("lines", ps.files.Source("in/", format="text"))
        >>> parsed, bad = lines.parse_json("value", "id LONG", on_error="split")
        >>> bad.dead_letter("bad-lines")
        """
        add_dead_letters(self, uid, cause, call_site())

    def add(self, make: Callable[[int], Node]) -> Stream:
        """Add the node made for the next number; return its stream, with the same event time."""
        return Stream(self.pipeline, PortRef(self.pipeline.keep(make).id), time=self.time)

    def _row_wise(self, verb: str, text: str, build: Callable[[DataFrame], DataFrame], origin: CallSite) -> Stream:
        return self.add(
            lambda number: RowWise(id=number, origin=origin, inputs=(self.ref,), verb=verb, text=text, build=build)
        )


# --------------------------------------------------------------------------------- grouped streams and windowed results

WINDOW_END: Final = "window_end"
"""The event-time column of a windowed result, so that it can be windowed again."""
_NAME: Final = re.compile(r"[A-Za-z_]\w*|`[^`]+`")


@short_tracebacks
class GroupedStream(spark_names.AnswersSparkNames):
    """A stream, the columns and the window that its rows are grouped by."""

    _spark_names = spark_names.GROUPED

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
        """Aggregate each group: one row for each key and window, sent when the watermark passes the window's end.

        Args:
            uid: names the step's state in checkpoints; unique in the pipeline, and never changed lightly.
            *aggregates: of ``ps.agg``, for example ``ps.agg.sum("amount").alias("amount")``.
            emit: ``"final"``: each window at its end, and again when rows within the allowed lateness have changed it.
                ``"updates"``: a change stream whose column ``_change`` is ``insert``, ``update_before`` (a result that
                is replaced), ``update_after``, or ``delete`` (a session that was merged into another).
            emit_every: with ``"updates"``, the processing time between emissions, which are at its multiples. Without
                it each batch sends what it changed. Before each checkpoint, changes that wait are sent in any case.
            early: with ``"final"``, the processing time between preliminary results of windows that have changed. The
                column ``_timing`` of results is then ``early``, ``on_time`` or ``late``.

        >>> import penstock as ps
        >>> numbers = ps.Pipeline("demo").read("numbers", ps.rate.Source(rows_per_second=10))
        >>> by_value = numbers.with_watermark("at", delay="5 seconds").group_by("value", ps.tumbling("1 hour"))
        >>> by_value.agg("counts", ps.agg.count().alias("n"))
        <WindowedResult of 'counts'>
        """
        origin = call_site()
        check_uid(uid, origin)
        try:
            spec = self._spec(aggregates, emit_strategy(emit, emit_every, early))
        except GraphError as error:
            error.uid, error.where = uid, str(origin)
            raise
        pipeline, inputs = self._stream.pipeline, (self._stream.ref,)
        node = pipeline.keep(lambda number: Keyed(id=number, origin=origin, inputs=inputs, uid=uid, spec=spec))
        return WindowedResult(pipeline, PortRef(node.id), time=WINDOW_END if _keeps_time(self._window) else None)

    def _spec(self, aggregates: tuple[Aggregate, ...], strategy: EmitStrategy) -> WindowAggregate:
        from penstock.operators.aggregates.base import check_aggregate
        from penstock.operators.windows.aggregate import WindowAggregate

        if not aggregates:
            msg = "agg() needs at least one aggregate, such as ps.agg.count()."
            raise GraphError(msg)
        if isinstance(self._window, CountWindow) and strategy != ON_WINDOW_CLOSE:
            what = (
                f"global_window(every_rows={self._window.size}) sends a result after each {self._window.size} rows"
                if self._window.is_running
                else "count_window() sends each window when it is full"
            )
            msg = f"{what}. Leave emit and early out, or take global_window()."
            raise GraphError(msg)
        checked = tuple(map(check_aggregate, aggregates))
        for aggregate in checked:
            aggregate.label  # noqa: B018 - refuses one without a name
        if strategy.updates and any(aggregate.function == "approx_percentile" for aggregate in checked):
            msg = (
                'ps.agg.approx_percentile takes a random sample, so emit="updates" could not take back what it sent. '
                'Take ps.agg.percentile, or emit="final".'
            )
            raise GraphError(msg)
        stream = self._stream
        shift = 0 if self._window.is_processing else window_shift(stream.pipeline.graph(), stream.ref)
        return WindowAggregate(
            keys=self._keys, time=self._time, window=self._window, aggregates=checked, shift=shift, emission=strategy
        )


@short_tracebacks
class WindowedResult(Stream):
    """Rows with the group columns, ``window_start``, ``window_end`` and aggregates; can be windowed again.

    Event time is the last moment within a window, ``window_end`` less a microsecond: the minute that ends at 13:00
    belongs to the hour that ends at 13:00.
    """

    def __repr__(self) -> str:
        return super().__repr__().replace("<Stream", "<WindowedResult")

    @property
    def late(self) -> Stream:
        """The rows that came after their window was closed, with the columns of the input."""
        return Stream(self.pipeline, PortRef(self.ref.node, LATE_PORT))


def group_stream(stream: Stream, keys: tuple[str | Column | Window, ...], origin: CallSite) -> GroupedStream:
    """Split the arguments of ``group_by`` into group columns and the one window.

    Raises:
        GraphError: there is no watermark, there is not exactly one window, or a key has no name.
    """
    where = str(origin)
    windows = [key for key in keys if _is_window(key)]
    if len(windows) > 1:
        msg = f'group_by() takes exactly one window such as ps.tumbling("1 minute"), got {len(windows)}.'
        raise GraphError(msg, where=where)
    if not windows:
        columns_text = "".join(f"{column_text(key)!r}, " for key in keys)
        msg = (
            f"group_by({columns_text[:-2]}) has no window, which says when a result is complete. For one result over "
            f"all rows write .group_by({columns_text}ps.global_window()), for one a minute "
            f'.group_by({columns_text}ps.tumbling("1 minute")).'
        )
        raise GraphError(msg, where=where)
    window = cast("Window", windows[0])
    if stream.time is None and isinstance(window, (CountWindow, GlobalWindow)):
        window = replace(window, is_processing=True)
    if stream.time is None and not getattr(window, "is_processing", False):
        msg = (
            "group_by() needs a watermark, which says when a window is complete. Put "
            '.with_watermark("<time column>", delay="5 seconds") before it.'
        )
        raise GraphError(msg, where=where)
    columns = tuple(_key(key, where) for key in keys if not _is_window(key))
    return GroupedStream(stream, columns, window, stream.time or "")


def _keeps_time(window: Window) -> bool:
    """Return whether the watermark of the input holds for the results, too."""
    return not window.is_processing and not isinstance(window, (CountWindow, GlobalWindow))


def _is_window(key: object) -> bool:
    # Of the type, for a Column takes any attribute for the name of a field.
    return hasattr(type(key), "due")


def _key(key: object, where: str) -> tuple[str, str | Column]:
    if not isinstance(key, str) and not is_column(key):
        msg = f"group_by() cannot take {key!r} ({type(key).__name__}). Give it columns and a window."
        raise GraphError(msg, where=where)
    text = column_text(key)
    expression, name = split_alias(text)
    if name is not None:
        return name, cast("str | Column", key) if is_column(key) else expression
    if _NAME.fullmatch(text):
        return text.strip("`"), cast("str | Column", key)
    msg = f"The key {text!r} has no name. Write \"{text} AS name\", or .alias('name') on a Column."
    raise GraphError(msg, where=where)
