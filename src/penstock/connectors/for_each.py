"""``stream.for_each_batch``: a user's function gets the rows of each checkpoint, or each batch as it comes.

At commit time the rows and the epoch are fixed, so a function that skips an epoch that it has seen takes effect
exactly once (rule S8). A batch has neither: after a crash other batches come.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from penstock.connectors.committers import COMMITTERS, explain_user_errors
from penstock.connectors.staging import NoOutput, StagedWriter, check_staged, staged_frame
from penstock.errors import CommitterMissing, GraphError, UserFunctionError
from penstock.handles import CommitOutcome, Guarantee, output_names
from penstock.spark.blocks import unpersist

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.elements import Batch
    from penstock.handles import CheckpointId, Committable
    from penstock.interfaces.sink import CommitContext, SinkContext, SinkWriter

KIND: Final = "for-each/1"
"""Kind of the committables."""
BatchFunction: TypeAlias = "Callable[[DataFrame, int], object]"
"""Gets rows and the epoch, or the number of the batch; what it returns is ignored."""
When: TypeAlias = Literal["commit", "batch"]
"""When a function is called: once its rows are in a checkpoint, or with each batch as it comes."""
_VOIDED: Final = ".voided"
"""Ending of the name to which the first file of a voided epoch is renamed."""
_CALLED: Final = ".called"
"""Ending of a name that no file has: ``final`` gives it for the first file, which is deleted after the call."""


# ---- the function ----------------------------------------------------------------------------------------------------


def check_batch_function(function: object) -> None:
    """Refuse what cannot be called with rows and an epoch, or of which a call runs nothing.

    Raises:
        GraphError: with the signature and the remedy.
    """
    if not callable(function):
        msg = f"for_each_batch() cannot take {function!r}. Give it a function of the rows and the epoch."
        raise GraphError(msg)
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    for body in (inner, type(inner).__call__):
        if inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body):
            msg = f"{_name(inner)} is async, and for_each_batch() does not await it. Call asyncio.run(…) within it."
            raise GraphError(msg)
        if inspect.isgeneratorfunction(body):
            msg = f"{_name(inner)} has a yield, so that a call of it runs nothing. Write it without one."
            raise GraphError(msg)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(None, 0)
    except TypeError as error:
        msg = (
            f"for_each_batch() calls {_name(function)} with two arguments, the rows and the epoch, but it takes "
            f"{signature} ({error}). Write def {getattr(function, '__name__', 'save')}(frame, epoch)."
        )
        raise GraphError(msg) from error


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _call(function: BatchFunction, frame: DataFrame, number: int, when: When, uid: str) -> None:
    """Call a user's function with the number of the epoch or batch; raises as ``explain_user_errors`` does.

    Raises:
        UserFunctionError: what it returned is a coroutine or generator, which nothing would run.
    """
    what = f"{_name(function)} of for_each_batch, in {'epoch' if when == 'commit' else 'batch'} {number},"
    with explain_user_errors(what, uid=uid):
        result = function(frame, number)
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        name = getattr(result, "__name__", repr(result))
        msg = (
            f"{what} returned a {type(result).__name__}, of which nothing has run: {name}. Write the rows before it "
            "returns: call asyncio.run(…) within it, or use no yield."
        )
        raise UserFunctionError(msg, uid=uid)


# ---- the sink --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForEachSink:
    """Calls a function. Made by ``Stream.for_each_batch``, which says what each argument means."""

    function: BatchFunction
    when: When = "commit"

    @property
    def accepts_changes(self) -> bool:
        """The function gets change rows as they are, with the column ``_change``."""
        return True

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once at commit time, if the function is idempotent; at-least-once for batches."""
        return Guarantee.EXACTLY_ONCE if self.when == "commit" else Guarantee.AT_LEAST_ONCE

    @property
    def committers(self) -> Mapping[str, str]:
        """Calls the function that the running pipeline has."""
        return {KIND: COMMITTERS[KIND]} if self.when == "commit" else {}

    def check(self, schema: StructType) -> None:
        """Refuse columns that cannot be staged.

        Raises:
            GraphError: with the column and the remedy.
        """
        if self.when == "commit":
            check_staged(schema)

    def writer(self, context: SinkContext) -> SinkWriter:
        """A writer that stages rows until their checkpoint, or one that calls the function at once."""
        if self.when == "commit":
            return StagedWriter(context, kind=KIND, target=self.describe())
        return BatchWriter(self.function, context)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:  # noqa: ARG002
        """Nothing is staged outside of the state directory."""
        return ()

    def describe(self) -> str:
        """The name of the function, for people."""
        return f"for_each_batch {_name(self.function)}"


class BatchWriter:
    """Calls the function with each batch as it comes. At-least-once: a restart brings rows again, in other batches."""

    def __init__(self, function: BatchFunction, context: SinkContext) -> None:
        self._function = function
        self._uid = context.uid

    def write(self, batch: Batch) -> int:
        """Persist the batch and call the function with it, unless it has no rows."""
        frame = cast("DataFrame", batch.frame).persist()
        try:
            rows = frame.count()  # over all rows, whatever the function reads: the batch's metrics are complete
            batch.settle()
            if rows:
                _call(self._function, frame, batch.sequence, "batch", self._uid)
        finally:
            unpersist(frame)
        return rows

    def prepare(self, checkpoint: CheckpointId) -> NoOutput:  # noqa: ARG002 - as for any writer
        """Return ``NoOutput``: the function was called."""
        return NoOutput()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


# ---- the committer ---------------------------------------------------------------------------------------------------


class ForEachCommitter:
    """Calls the function that the pipeline has under the committable's uid, with what was staged.

    When the function has returned, the first staged file is deleted, which nothing else does before the log says that
    the output is published: so a first file that is gone says that the function was called. A void renames that file.
    After a crash between call and deletion the function is called again, with the same rows and epoch.
    """

    def __init__(self, context: CommitContext) -> None:
        self._context = context
        self._filesystem = context.filesystem

    def check_committable(self, item: Committable) -> None:
        """Refuse output whose function the pipeline does not have, unless it was called.

        Raises:
            CommitterMissing: it has not; with the remedy.
        """
        if self._is_there(item.files[0].path):
            self._function(item)

    def commit(self, item: Committable) -> CommitOutcome:
        """Call the function, unless it was called or the epoch is voided.

        Raises:
            CommitterMissing: the pipeline has no such function any more, or there is no pipeline.
            CommitFailed: the function raised an ``OSError`` that may pass; the call is repeated.
            UserFunctionError: the function raised something else, or returned a coroutine or generator.
        """
        first = item.files[0].path
        if not self._is_there(first):
            return CommitOutcome.ALREADY_DONE
        function = self._function(item)
        context = self._context
        assert context.spark is not None  # there is a pipeline, so there is a session
        with context.jobs(item.uid):
            frame = staged_frame(item, self._filesystem, context.spark)
            _call(function, frame, item.checkpoint, "commit", item.uid)
        context.failpoint("sink.for_each.called")
        self._filesystem.delete(first)
        return CommitOutcome.DONE

    def void(self, item: Committable) -> CommitOutcome:
        """Make sure that no later commit calls the function. ``ALREADY_DONE``: it was called."""
        first = item.files[0].path
        if self._is_there(first + _VOIDED) or self._filesystem.move(first, first + _VOIDED).found:
            # The name is the record of the void; the rows are not needed.
            self._filesystem.replace(first + _VOIDED, b"")
            return CommitOutcome.DONE
        return CommitOutcome.ALREADY_DONE

    def final(self, item: Committable, path: str) -> str | None:
        """A path at which no file is, for the first file: only the function knows where rows go."""
        return path + _CALLED if path == item.files[0].path else None

    def has_evidence(self, item: Committable) -> bool:  # noqa: ARG002 - the same for each
        """A first file that is gone says that the function was called."""
        return True

    def _is_there(self, path: str) -> bool:
        return path in self._filesystem.list(path.rpartition("/")[0])

    def _function(self, item: Committable) -> BatchFunction:
        sink = self._context.sinks.get(item.uid)
        if isinstance(sink, ForEachSink) and sink.when == "commit":
            return sink.function
        if self._context.sinks:
            why = f"The pipeline has no for_each_batch('{item.uid}', …) any more that is called at commit time."
            remedy = "Put it back for one start."
        else:
            why, remedy = "Its function is in the pipeline.", "Start the job, which calls it first."
        msg = (
            f"Output {output_names(item)} waits for {item.target}. {why} {remedy} Or discard the output with "
            f"penstock rewind {self._context.job} --fresh --discard-unpublished (instead of --fresh, any checkpoint "
            f"below {item.checkpoint})."
        )
        raise CommitterMissing(msg, why=why, uid=item.uid)
