"""What a pipeline's function works with: each method adds exactly one frozen node and returns a new stream.

Knows nothing of how anything is run; what needs Spark (``schema``, ``preview``) asks for it when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, get_args, overload

from penstock.durations import parse_duration
from penstock.errors import GraphError
from penstock.graph import steps
from penstock.graph.looking import Shown
from penstock.graph.nodes import BAD, Node, ParseJson, Ref, RowWise, Union, WithWatermark, Write
from penstock.graph.origin import caller
from penstock.graph.parts import (
    TableRef,
    check_choice,
    check_column_name,
    check_columns,
    check_function,
    check_same,
    check_time_kept,
    check_uid,
    check_united,
    redefined,
    shown,
)
from penstock.handles import Guarantee

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from penstock.graph.grouped import GroupedStream
    from penstock.graph.nodes import Origin
    from penstock.graph.pipeline import Pipeline
    from penstock.operators.windows import Window
    from penstock.sinks.base import Sink

OnError = Literal["fail", "split", "null"]
GuaranteeName = Literal["at-most-once", "at-least-once", "exactly-once"]


class Stream(Shown):
    """Rows without end. Immutable: methods return new streams.

    Columns are given as SQL text or as Spark's ``Column``. A text is an expression everywhere: ``"amount * 2 AS x"``.
    """

    def __init__(self, pipeline: Pipeline, ref: Ref, *, time: str | None = None) -> None:
        super().__init__(pipeline, ref)
        self.time = time
        """The event-time column, once a watermark is known."""

    def __repr__(self) -> str:
        return f"<Stream of {steps.title(self.pipeline.graph().node(self.ref.node))}>"

    def select(self, *columns: str | Column) -> Stream:
        """Only these columns, in this order.

        >>> import penstock as ps
        >>> numbers = ps.Pipeline("demo").read("numbers", ps.rate.Source(rows_per_second=10))
        >>> numbers.select("value", "value * 2 AS twice")
        <Stream of select value, value * 2 AS twice>
        """
        check_columns("select", columns, origin := caller())
        check_time_kept(self.time, redefined(columns), origin)
        return self._row_wise("select", ", ".join(map(shown, columns)), steps.select(columns), origin)

    def where(self, condition: str | Column) -> Stream:
        """Only the rows for which the condition is true."""
        check_columns("where", (condition,), origin := caller())
        return self._row_wise("where", shown(condition), steps.where(condition), origin)

    def with_column(self, name: str, value: str | Column) -> Stream:
        """With one column added or replaced."""
        return self.with_columns({name: value})

    def with_columns(self, columns: Mapping[str, str | Column]) -> Stream:
        """With several columns added or replaced; each sees the columns of before."""
        check_columns("with_columns", tuple(columns.values()), origin := caller())
        check_time_kept(self.time, columns, origin)
        text = ", ".join(f"{shown(value)} AS {name}" for name, value in columns.items())
        return self._row_wise("with_columns", text, steps.with_columns(columns), origin)

    def drop(self, *names: str) -> Stream:
        """Without these columns."""
        check_columns("drop", names, origin := caller())
        check_time_kept(self.time, names, origin)
        return self._row_wise("drop", ", ".join(names), steps.drop(names), origin)

    def transform(self, function: Callable[..., DataFrame], *args: object, **kwargs: object) -> Stream:
        """Any row-wise function from DataFrame to DataFrame, as in PySpark.

        It is called once, when the job is built, on an empty frame; its plan is checked and reused for every batch.
        It may join tables of ``p.table(…)`` that are handed in as arguments. A function that draws random numbers
        is called for each batch. Whether it leaves the event time as it is, nobody checks.

        Args:
            function: gets the frame first, then the arguments. Must not run a job and must see no more than a row.
            *args: handed on; tables arrive as frames.
            **kwargs: handed on; tables arrive as frames.

        >>> import penstock as ps
        >>> numbers = ps.Pipeline("demo").read("numbers", ps.rate.Source(rows_per_second=10))
        >>> def twice(frame, column):
        ...     return frame.withColumn("twice", frame[column] * 2)
        >>> numbers.transform(twice, column="value").schema.names
        ['value', 'at', 'twice']
        """
        origin = caller()
        check_function(function, origin)
        handed = [part for part in (*args, *kwargs.values()) if isinstance(part, TableRef)]
        for part in handed:
            check_same(self.pipeline, part.pipeline, origin)
        return self.add(
            lambda number: RowWise(
                id=number,
                origin=origin,
                inputs=(self.ref,),
                verb="transform",
                text=steps.call_text(function, args, kwargs),
                build=steps.call(function, args, kwargs),
                tables=tuple(dict.fromkeys(part.table for part in handed)),
                checked=True,
            )
        )

    def union(self, *others: Stream) -> Stream:
        """These streams as one. All have the same columns in the same order."""
        origin = caller()
        for other in others:
            check_same(self.pipeline, other.pipeline, origin)
        check_united(refs := (self.ref, *(other.ref for other in others)), origin)
        times = {self.time, *(other.time for other in others)}
        node = self.pipeline.keep(lambda number: Union(id=number, origin=origin, inputs=refs))
        return Stream(self.pipeline, Ref(node.id), time=self.time if len(times) == 1 else None)

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
        """Decode a column of JSON text: the record's fields take its place.

        Args:
            column: text or bytes, one JSON object each.
            schema: the fields wanted, as DDL or as a ``StructType``.
            on_error: ``"fail"`` the job at the first bad record; ``"null"`` in all its fields; or ``"split"``: a pair
                of streams, the good rows, and the bad ones unchanged with the reason in ``_error``.

        >>> import penstock as ps
        >>> lines = ps.Pipeline("demo").read("lines", ps.files.Source("in/", format="text"))
        >>> lines.parse_json("value", "id LONG", on_error="split")
        (<Stream of parse_json value>, <Stream of parse_json value>)
        """
        origin = caller()
        check_choice("on_error", on_error, get_args(OnError), origin)
        text = schema if isinstance(schema, str) else steps.ddl(schema)
        check_column_name("parse_json", column, origin)
        node = self.pipeline.keep(
            lambda number: ParseJson(
                id=number, origin=origin, inputs=(self.ref,), column=column, schema=text, on_error=on_error
            )
        )
        parsed = Stream(self.pipeline, Ref(node.id), time=self.time)
        return (parsed, Stream(self.pipeline, Ref(node.id, BAD))) if on_error == "split" else parsed

    def with_watermark(
        self,
        column: str,
        delay: str,
        *,
        idle_after: str | None = None,
        max_ahead: str | None = "1 day",
        max_drift: str | None = None,
    ) -> Stream:
        """Say which column is event time, and how late rows may come.

        Args:
            column: a TIMESTAMP.
            delay: the watermark is the largest event time seen, less this.
            idle_after: without a batch for so long, this stream no longer holds others back.
            max_ahead: event times further than this ahead of the wall clock do not move the watermark, so that one
                wrong clock cannot make everybody else late; such rows are counted and otherwise treated like any
                other. ``None`` believes every row.
            max_drift: how far ahead of the slowest these rows may be read, in event time. The slowest is that of the
                partitions of their source, and of the streams that they meet in a union or a step with several inputs,
                idle ones aside. Whoever is further ahead is not read on until the others come after, so that what is
                read early does not pile up in state. ``None`` never waits; others may wait for it.

        Raises:
            GraphError: a duration is none, or (when the job is built) ``max_drift`` is set behind a step that keeps
                state: only sources can pause.

        >>> import penstock as ps
        >>> numbers = ps.Pipeline("demo").read("numbers", ps.rate.Source(rows_per_second=10))
        >>> numbers.with_watermark("at", delay="5 seconds", max_drift="1 minute")
        <Stream of with_watermark at, delay 5 seconds>
        """
        origin = caller()
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
        return Stream(self.pipeline, Ref(node.id), time=column)

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
        from penstock.graph.grouped import group

        return group(self, keys, caller())

    def write(self, uid: str, sink: Sink, *, guarantee: GuaranteeName | None = None) -> None:
        """Send the rows to a sink.

        Args:
            uid: names the sink's output in checkpoints; unique in the pipeline, and never changed lightly.
            sink: for example ``ps.files.Sink("out/", format="parquet")``.
            guarantee: what is needed; refused if the sink, or a source of these rows, cannot give it.
        """
        origin = caller()
        check_uid(uid, origin)
        if not hasattr(sink, "writer"):
            msg = f"write() needs a sink such as ps.files.Sink(…), got {sink!r}"
            raise GraphError(msg, uid=uid, where=str(origin))
        if guarantee is not None:
            check_choice("guarantee", guarantee, get_args(GuaranteeName), origin, uid=uid)
        asked = None if guarantee is None else Guarantee(guarantee)
        self.pipeline.keep(
            lambda number: Write(id=number, origin=origin, inputs=(self.ref,), uid=uid, sink=sink, guarantee=asked)
        )

    def dead_letter(self, uid: str, *, cause: str | None = None) -> None:
        """Keep rows that the pipeline gives up on, beside the job's state, with why and where they came from.

        ``penstock deadletter list | show | replay`` reads them, and has rows that could not be decoded read again by
        the pipeline as it is then. They are published exactly-once, as by a files sink.

        Args:
            uid: names them, in checkpoints too; unique in the pipeline, and never changed lightly.
            cause: a short name of why, such as ``"no-such-user"``. Late rows and those that could not be decoded have
                theirs: ``late`` and ``decode``.

        Raises:
            GraphError: the uid or the cause is no name.

        >>> import penstock as ps
        >>> lines = ps.Pipeline("demo").read("lines", ps.files.Source("in/", format="text"))
        >>> parsed, bad = lines.parse_json("value", "id LONG", on_error="split")
        >>> bad.dead_letter("bad-lines")
        """
        from penstock.graph.dead_letters import keep

        keep(self, uid, cause, caller())

    def add(self, make: Callable[[int], Node]) -> Stream:
        """The stream of a node made for the next number; event time goes on."""
        return Stream(self.pipeline, Ref(self.pipeline.keep(make).id), time=self.time)

    def _row_wise(self, verb: str, text: str, build: Callable[[DataFrame], DataFrame], origin: Origin) -> Stream:
        return self.add(
            lambda number: RowWise(id=number, origin=origin, inputs=(self.ref,), verb=verb, text=text, build=build)
        )
