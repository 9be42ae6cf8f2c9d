"""``penstock state query``: SQL over the state of a step, run by a Spark of its own. Claims and changes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cli.exits import ExitCode, UsageError
from penstock.cli.session import session_for
from penstock.cli.state_rows import write_result
from penstock.operate.directory import JobDirectory
from penstock.operate.state.find import chosen, state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.checkpoint.history import History
    from penstock.cli.output import Output
    from penstock.operate.state.read import StateReader

TABLE_ROWS = 20
"""Rows of a table for people, unless they say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked, as on the command line."""

    job: str
    uid: str
    sql: str | None
    at: str | None
    diff: tuple[str, str] | None
    format: str
    limit: int | None
    to: str | None
    state: str

    @property
    def most(self) -> int | None:
        """Rows to give at most; ``None`` for all."""
        if self.limit is None:
            return TABLE_ROWS if self.format == "table" else None
        return self.limit or None


def query_state(output: Output, question: Question) -> int:
    """Answer it.

    Raises:
        UsageError: options that exclude one another, or what is no SELECT over this table.
        UnknownName: no such job, checkpoint or step; with the nearest.
        PenstockError: the state cannot be read.
    """
    _check(question)
    directory = JobDirectory(question.state, question.job)
    history = directory.read()
    manifests = [chosen(history, at) for at in question.diff or (question.at,)]
    for manifest in manifests:
        state_of(manifest, question.uid)  # what is not there is said at once, not after Spark has started
    ids = [int(manifest.checkpoint) for manifest in manifests]
    with session_for(output, "state query") as session:
        from penstock.operate.state.read import StateReader

        output.note(_progress(ids, question), style="dim")
        frame = _table(StateReader(session, directory), history, question)
        _answer(output, _select(session, frame, question), question, ids)
    return ExitCode.ENDED


def _answer(output: Output, answer: DataFrame, question: Question, ids: list[int]) -> None:
    from pyspark.errors import PySparkException

    from penstock.job.explain import explain

    try:
        write_result(output, answer, question, ids)
    except PySparkException as error:  # such as a division by zero in the query
        raise explain(error) from error


def _check(question: Question) -> None:
    if question.diff is not None and question.at is not None:
        msg = "--at and --diff exclude one another: --diff names both checkpoints itself"
        raise UsageError(msg)
    if question.format == "parquet" and question.to is None:
        msg = "--format parquet needs a file: add --to totals.parquet"
        raise UsageError(msg)
    if question.limit is not None and question.limit < 0:
        msg = f"--limit is {question.limit}, but must be a number of rows, or 0 for all"
        raise UsageError(msg)


def _progress(ids: list[int], question: Question) -> str:
    which = f"checkpoints {ids[0]} and {ids[1]}" if question.diff else f"checkpoint {ids[0]}"
    return f"reading the state of {question.uid} at {which} of {question.job} …"


def _table(reader: StateReader, history: History, question: Question) -> DataFrame:
    from penstock.operate.state.diff import diff_state

    if question.diff is not None:
        return diff_state(reader, history, question.uid, *question.diff)
    return reader.rows(chosen(history, question.at), question.uid)


def _select(session: SparkSession, frame: DataFrame, question: Question) -> DataFrame:
    """The user's query over the table, or all of it in order."""
    from pyspark.errors import PySparkException

    if question.sql is None:
        return _sorted(frame)
    for name in {f"`{question.uid}`", plain_name(question.uid)}:
        frame.createOrReplaceTempView(name)
    try:
        session.sql(f"SELECT * FROM (\n{question.sql}\n)")  # only a query can stand there; nothing runs
        return session.sql(question.sql)
    except PySparkException as error:
        msg = f"this is no SELECT over {plain_name(question.uid)} ({', '.join(frame.columns)}): {_first_line(error)}"
        raise UsageError(msg) from error


def plain_name(uid: str) -> str:
    """The step's name as a table can be called without quotes.

    >>> plain_name("totals-out"), plain_name("2nd.totals")
    ('totals_out', '_2nd_totals')
    """
    name = re.sub(r"\W", "_", uid)
    return f"_{name}" if name[:1].isdigit() else name


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]


def _sorted(frame: DataFrame) -> DataFrame:
    from penstock.operators.aggregates.base import is_ordered
    from penstock.state.changing import quoted

    names = [quoted(field.name) for field in frame.schema if is_ordered(field.dataType)]
    return frame.orderBy(*names) if names else frame
