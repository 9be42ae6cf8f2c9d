"""``Pipeline``, which a user's function makes streams with, and ``@ps.pipeline``."""

from __future__ import annotations

import re
from collections.abc import Callable
from string import Formatter
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from penstock.api.arguments import check_choice, check_pace, check_pipeline_name, check_same
from penstock.api.stream import Stream
from penstock.clock import parse_duration
from penstock.errors import GraphError, PenstockError, UserFunctionError, sentence
from penstock.graph.nodes import (
    CallSite,
    Graph,
    Node,
    NodeT,
    Pace,
    PortRef,
    Read,
    RowWise,
    Table,
    TableRef,
    call_site,
    check_uid,
    when_ready,
)
from penstock.graph.validate import validate
from penstock.handles import check_name
from penstock.spark.session import borrow_session, lacks_session
from penstock.user_code import raised_at, short_tracebacks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.interfaces.source import Source

OnTableError = Literal["fail", "keep"]
_PART: Final = re.compile(r"([^\W\d]\w*)([.\[].*)?")
"""A name in braces, and perhaps a column of it, as in ``{n}``, ``{n.user}`` and ``{n[user]}``."""


@short_tracebacks
class Pipeline:
    """The argument of a pipeline's function: makes streams and collects their nodes.

    Methods only add frozen data; nothing is read or run.
    """

    def __init__(self, name: str, origin: CallSite | None = None) -> None:
        self.name = check_name("name of a pipeline", name)
        self._origin = origin or call_site()
        self._nodes: list[Node] = []
        self._tables: dict[str, Table] = {}

    def read(self, uid: str, source: Source, *, pace: Pace = when_ready) -> Stream:
        """Return the rows of a source as a stream.

        Args:
            uid: names the source's position in checkpoints; unique in the pipeline. Under another uid the source
                begins again.
            source: for example ``ps.files.Source("in/", schema="id LONG")``.
            pace: ``ps.every("1 second")`` for one batch a second; by default a batch begins when there is data.

        >>> import penstock as ps
        >>> p = ps.Pipeline("demo")
        >>> p.read("numbers", ps.rate.Source(rows_per_second=10))
        <Stream of read 'numbers'>
        """
        origin = call_site()
        check_uid(uid, origin)
        if isinstance(source, type) or not hasattr(source, "open"):
            msg = f"read() cannot take {source!r}. Give it a source such as ps.files.Source(…)."
            raise GraphError(msg, uid=uid, where=str(origin))
        check_pace(pace, source, uid, origin)
        return self.add(lambda number: Read(id=number, origin=origin, uid=uid, source=source, pace=pace))

    def table(self, name: str, query: str, *, refresh: str | None = None, on_error: OnTableError = "fail") -> TableRef:
        """Declare a static table that row-wise steps may join.

        Args:
            name: of the table, as messages show it.
            query: SQL that reads it, for example ``"SELECT * FROM lake.countries"``.
            refresh: the age at which the table is read again, for example ``"10 minutes"``. Without it, the table is
                read when the job starts, and again only when it restarts after a failure.
            on_error: what happens if the table cannot be read again, as while another job rewrites it. ``"fail"``: the
                job restarts by its restart strategy, as after any failure from outside. ``"keep"``: a warning is
                logged, its rows stay those that were read last, and it is read again after ``refresh``.

        >>> import penstock as ps
        >>> ps.Pipeline("demo").table("countries", "SELECT 'DE' AS country", refresh="10 minutes")
        TableRef('countries')
        """
        origin = call_site()
        if name in self._tables:
            msg = f"Table {name!r} is declared already, at {self._tables[name].origin}. Give this one another name."
            raise GraphError(msg, where=str(origin))
        _check_query("table", query, "SELECT * FROM countries", origin)
        micros = None if refresh is None else parse_duration("refresh", refresh, least=1)
        check_choice("on_error", on_error, get_args(OnTableError), origin)
        self._tables[name] = Table(
            name=check_name("table", name), query=query, refresh=micros, origin=origin, on_error=on_error
        )
        return TableRef(self, self._tables[name])

    def sql(self, query: str, **parts: Stream | TableRef) -> Stream:
        """Return the rows of a row-wise SQL query over exactly one stream and any declared tables.

        Args:
            query: with the parts in braces: ``"SELECT o.*, c.country FROM {o} o LEFT JOIN {c} c USING (user)"``. Braces
                that are part of the SQL are written twice: ``RLIKE '^[0-9]{{3}}$'``.
            **parts: the stream and the tables, by their names in braces.

        >>> import penstock as ps
        >>> p = ps.Pipeline("demo")
        >>> numbers = p.read("numbers", ps.rate.Source(rows_per_second=10))
        >>> p.sql("SELECT value * 2 AS twice FROM {n}", n=numbers)
        <Stream of sql>
        """
        origin = call_site()
        _check_query("sql", query, "SELECT * FROM {stream}", origin)
        streams = {name: part for name, part in parts.items() if isinstance(part, Stream)}
        tables = {name: part for name, part in parts.items() if isinstance(part, TableRef)}
        self._check_parts(query, parts, streams, tables, origin)
        ((stream_name, stream),) = streams.items()

        def build(frame: DataFrame, *frames: DataFrame) -> DataFrame:
            by_name: dict[str, Any] = {**dict(zip(tables, frames, strict=True)), stream_name: frame}
            return frame.sparkSession.sql(query, **by_name)

        return stream.add(
            lambda number: RowWise(
                id=number,
                origin=origin,
                inputs=(stream.ref,),
                verb="sql",
                text=" ".join(query.split()),
                build=build,
                tables=tuple(part.table for part in tables.values()),
                checked=True,
            )
        )

    def _check_parts(
        self,
        query: str,
        parts: dict[str, Stream | TableRef],
        streams: dict[str, Stream],
        tables: dict[str, TableRef],
        origin: CallSite,
    ) -> None:
        where = str(origin)
        for name, part in parts.items():
            if name not in streams and name not in tables:
                msg = f"sql() cannot take {name}={part!r}. Hand in streams, and tables of p.table(…)."
                raise GraphError(msg, where=where)
            check_same(self, part.pipeline, origin)
        if len(streams) != 1:
            msg = f"sql() needs exactly one stream, got {len(streams)}. Tables come from p.table(…)."
            raise GraphError(msg, where=where)
        named = _part_names(query, origin)
        for name in sorted({*named, *parts}):
            if name not in parts:
                msg = f"The query of sql() has {{{name}}}, but {name} is not given. Add {name}=, a stream or a table."
                raise GraphError(msg, where=where)
            if name not in named:
                msg = f"The query of sql() does not have {{{name}}}. Write it in the query, or leave {name}= out."
                raise GraphError(msg, where=where)

    def add(self, make: Callable[[int], Node]) -> Stream:
        """Add the node made for the next number; return the stream of its main output."""
        return Stream(self, PortRef(self.keep(make).id))

    def keep(self, make: Callable[[int], NodeT]) -> NodeT:
        """Add the node made for the next number, and return it."""
        node = make(len(self._nodes))
        self._nodes.append(node)
        return node

    def graph(self) -> Graph:
        """Return the graph as it is so far, unchecked."""
        return Graph(name=self.name, origin=self._origin, nodes=tuple(self._nodes), tables=tuple(self._tables.values()))


def _check_query(verb: str, query: object, example: str, origin: CallSite) -> None:
    """Refuse a query that is no text."""
    if not isinstance(query, str):
        msg = f'{verb}() cannot take {query!r}. Give it SQL, as in "{example}".'
        raise GraphError(msg, where=str(origin))


def _part_names(query: str, origin: CallSite) -> set[str]:
    """Return the names in the braces of a query, found as PySpark finds them.

    Raises:
        GraphError: a brace is not around a name.
    """
    names: set[str] = set()
    try:
        fields = [field[1:] for field in Formatter().parse(query) if field[1] is not None]
    except ValueError as error:
        raise _not_a_part(str(error), origin) from error
    for name, spec, conversion in fields:
        found = _PART.fullmatch(name or "")
        if found is None or spec or conversion:
            wrong = f"{{{name}{f':{spec}' if spec else ''}}}"
            raise _not_a_part(wrong, origin)
        names.add(found[1])
    return names


def _not_a_part(found: str, origin: CallSite) -> GraphError:
    msg = (
        f"The query of sql() has a brace that is not around the name of a part ({found}). Write {{{{ and }}}} for "
        "braces that are part of the SQL."
    )
    return GraphError(msg, where=str(origin))


@short_tracebacks
class PipelineDefinition:
    """A pipeline's name and the function that describes it. Calling it calls the function."""

    def __init__(self, name: str, function: Callable[[Pipeline], None], origin: CallSite) -> None:
        self.name = check_name("name of a pipeline", name)
        self.function = function
        self.origin = origin
        self.__doc__ = function.__doc__

    def __call__(self, p: Pipeline) -> None:
        """Add this pipeline's nodes to ``p``."""
        self.function(p)

    def __repr__(self) -> str:
        return f"<pipeline {self.name!r} at {self.origin}>"

    def graph(self) -> Graph:
        """Return the pipeline as frozen data, checked.

        Raises:
            GraphError: the graph cannot run; names the line and the step.
            UserFunctionError: the function raised; the original is chained.
        """
        try:
            p = self._called()
        except PenstockError as error:
            error.where = error.where or raised_at(error)
            raise
        except Exception as error:
            if isinstance(error, TypeError) and "required positional argument" in str(error):
                msg = f"{sentence(error)} Give every source, stateful step and sink its uid first, then what it is."
                raise GraphError(msg, where=raised_at(error) or str(self.origin)) from error
            msg = f"The function of pipeline {self.name!r} raised {type(error).__name__}: {sentence(error)}"
            raise UserFunctionError(msg, where=raised_at(error) or str(self.origin)) from error
        graph = p.graph()
        validate(graph)
        return graph

    def _called(self) -> Pipeline:
        """Call the function, and return the ``Pipeline`` that it was given.

        Columns and UDFs need Spark. If the function makes one and no Spark runs, it is called once more with a session.
        Its Columns stay usable: the JVM that holds them outlives the session.
        """
        try:
            return self._call()
        except Exception as error:
            if not lacks_session(error):
                raise
        with borrow_session(self.name):
            return self._call()

    def _call(self) -> Pipeline:
        p = Pipeline(self.name, self.origin)
        self.function(p)
        return p


def pipeline(name: str) -> Callable[[Callable[[Pipeline], None]], PipelineDefinition]:
    """Make a pipeline of a function that takes a ``Pipeline``.

    Args:
        name: the job's name. It addresses the job's state, so renaming the file or the function orphans nothing.

    >>> import penstock as ps
    >>> @ps.pipeline("demo")
    ... def demo(p: ps.Pipeline) -> None:
    ...     numbers = p.read("numbers", ps.rate.Source(rows_per_second=10))
    ...     numbers.where("value % 2 = 0").write("even", ps.console.Sink())
    >>> [type(node).__name__ for node in demo.graph().nodes]
    ['Read', 'RowWise', 'Write']
    """
    origin = call_site()
    check_pipeline_name(name, origin)
    return lambda function: PipelineDefinition(name, function, origin)
