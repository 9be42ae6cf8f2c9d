"""Finds the committer of each committable: penstock's own by its kind, a user's by the ``module:class`` in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from penstock.errors import (
    CommitFailed,
    CommitterMissing,
    GraphError,
    PenstockError,
    UserFunctionError,
    did_you_mean,
    sentence,
)
from penstock.handles import CommitOutcome, Guarantee, output_names
from penstock.interfaces.sink import CheckpointListener, ChecksCommittable, CommitContext
from penstock.spark import jvm
from penstock.user_code import line_of

if TYPE_CHECKING:
    from penstock.elements import Batch
    from penstock.handles import CheckpointId, Committable
    from penstock.interfaces.sink import Committer, PreparedOutput, Sink, SinkContext, SinkWriter

log = logging.getLogger("penstock")

COMMITTERS: Final[Mapping[str, str]] = {
    "files/1": "penstock.connectors.files.committer:files_committer",
    "for-each/1": "penstock.connectors.for_each:ForEachCommitter",
    "kafka/1": "penstock.connectors.kafka.transactions:KafkaCommitter",
    "memory/1": "penstock.connectors.memory:MemoryCommitter",
}
"""Penstock's own kinds of committables, each with what makes its committer. No kind is ever removed.

So output of a sink that a pipeline no longer has can be published too.
"""
_LASTING: Final = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Kinds of ``OSError`` that no retry mends."""
_Make: TypeAlias = Callable[[CommitContext], "Committer"]


# ---- of a committable ------------------------------------------------------------------------------------------------


def committer(item: Committable, context: CommitContext) -> Committer:
    """The committer of a committable that the log holds.

    Raises:
        CommitterMissing: this process knows no such kind, or cannot import the class.
    """
    place = item.committer or COMMITTERS.get(item.kind)
    if place is None:
        known = ", ".join(sorted(COMMITTERS))
        reason = f"The log names no committer for it, and this penstock knows {known}."
        why = f"{reason} Start the version that wrote it."
    else:
        try:
            make = _load(place)
        except LookupError as error:
            reason = str(error.args[0])
            why = f"{reason} Put that back, or install what it needs."
        else:
            with explain_user_errors(f"committer {place!r}", uid=item.uid):
                return make(context)
    msg = (
        f"Output {output_names(item)} of kind {item.kind!r} waits to be published to {item.target}. {why} Or "
        f"discard it with penstock rewind {context.job} --fresh --discard-unpublished (instead of --fresh, any "
        f"checkpoint below {item.checkpoint})."
    )
    raise CommitterMissing(msg, why=reason, uid=item.uid)


def check_open(items: Iterable[Committable], context: CommitContext) -> None:
    """Refuse open output that could not be published here.

    Raises:
        CommitterMissing: for the first such one.
    """
    for item in items:
        found = committer(item, context)
        if isinstance(found, ChecksCommittable):
            found.check_committable(item)


def publish(item: Committable, context: CommitContext) -> CommitOutcome:
    """Commit a committable.

    Raises:
        CommitterMissing: its committer cannot be found.
        CommitFailed: it may help to try again.
        UserFunctionError: a committer of the user's raised.
    """
    found = committer(item, context)
    with _explained(item):
        return found.commit(item)


def void(item: Committable, context: CommitContext) -> CommitOutcome:
    """Void a committable. One whose committer cannot be found is given up with a warning: nothing here can publish it.

    So a discard always gets rid of output, even if the code that published it is gone.
    """
    try:
        found = committer(item, context)
    except CommitterMissing as error:
        log.warning("%s", unvoided(item, error))
        return CommitOutcome.DONE
    with _explained(item):
        return found.void(item)


def _explained(item: Committable) -> AbstractContextManager[None]:
    if not item.committer:
        return nullcontext()  # penstock's own committers explain what they raise
    return explain_user_errors(f"committer {item.committer!r} of {output_names(item)}", uid=item.uid)


def unvoided(item: Committable, error: CommitterMissing) -> str:
    """The warning that an output is discarded without a void."""
    return (
        f"Output {output_names(item)} is discarded but cannot be voided in {item.target}. {error.why} What was begun "
        "there is left as it is, and a process that still runs might publish it."
    )


def _load(place: str) -> _Make:
    """What ``module:class`` names.

    Raises:
        LookupError: there is no such thing, with the reason in words.
    """
    module, _, name = place.partition(":")
    if not module or not name:
        msg = f"{place!r} is not module:class."
        raise LookupError(msg)
    if module == "__main__":
        msg = f"{place!r} is in the script that was started, which no other process can import."
        raise LookupError(msg)
    try:
        there = import_module(module)
    except Exception as error:  # whatever the user's module raises
        msg = f"Committer {place!r} cannot be imported here ({type(error).__name__}: {error})."
        raise LookupError(msg) from error
    made = getattr(there, name, None)
    if made is None:
        msg = f"Module {module!r} has no committer {name!r}{did_you_mean(name, vars(there), otherwise='') or '.'}"
        raise LookupError(msg)
    missing = [verb for verb in ("commit", "void") if isinstance(made, type) and not hasattr(made, verb)]
    if missing or not callable(made):
        msg = f"{place!r} is no committer: it has no method {' and no method '.join(missing) or 'to make one with'}."
        raise LookupError(msg)
    return cast("_Make", made)


@contextmanager
def explain_user_errors(what: str, *, uid: str) -> Iterator[None]:
    """Turn what the user's code raises in this context into errors that say so; those of penstock and Spark stay.

    Raises:
        CommitFailed: it raised an ``OSError`` that may pass, such as a connection that broke, or an error of penstock
            that says that a retry can help.
        UserFunctionError: it raised anything else of its own.
    """
    try:
        yield
    except Exception as error:
        if jvm.is_spark_error(error) or isinstance(error, CommitFailed):
            raise  # the job says whose fault it is
        if isinstance(error, PenstockError) and not error.retry:
            error.uid = error.uid or uid
            raise
        msg = f"{what} raised {type(error).__name__}: {sentence(error)}"
        if isinstance(error, (OSError, PenstockError)) and not isinstance(error, _LASTING):
            again = f"{msg} It is called again."
            raise CommitFailed(again, uid=uid) from error
        raise UserFunctionError(msg, uid=uid, where=line_of(error)) from error


# ---- of a sink -------------------------------------------------------------------------------------------------------


def check_committers(sink: Sink) -> None:
    """Refuse a sink whose output could never be published, before its first row.

    Raises:
        GraphError: names the sink, the kind and the remedy.
    """
    declared = _committers_of(sink)
    if not declared and sink.guarantee is Guarantee.EXACTLY_ONCE:
        msg = (
            f"{sink.describe()} promises exactly-once, but has no attribute 'committers', so nothing could publish "
            "what its writers hand over. Name the committer of each kind, as in "
            "committers = {'sqlite/1': 'mylib:SqliteCommitter'}, or promise Guarantee.AT_LEAST_ONCE and write at once."
        )
        raise GraphError(msg)
    for kind, place in declared.items():
        own = COMMITTERS.get(kind)
        if own is not None and place != own:
            msg = (
                f"{sink.describe()} names {place!r} as the committer of kind {kind!r}, which is penstock's own. "
                "Give the kind a name of its own, such as 'mylib/1'."
            )
            raise GraphError(msg)
        try:
            _load(place)
        except LookupError as error:
            msg = (
                f"Output of {sink.describe()}, of kind {kind!r}, could never be published. {error.args[0]} Name a "
                "class with the methods commit and void in a module that any process can import, as "
                f"committers = {{{kind!r}: 'module:class'}}."
            )
            raise GraphError(msg) from error


def open_writer(sink: Sink, context: SinkContext) -> SinkWriter:
    """A writer of the sink whose committables say who publishes them.

    Its prepared output raises ``GraphError`` for a committable of a kind that the sink does not declare: before the
    checkpoint is in the log, so that nothing waits there that cannot be published.
    """
    return _Writer(sink.writer(context), {**COMMITTERS, **_committers_of(sink)}, sink)


def _committers_of(sink: Sink) -> Mapping[str, str]:
    declared: Mapping[str, str] = getattr(sink, "committers", {})
    return declared


class _Writer:
    def __init__(self, writer: SinkWriter, committers: Mapping[str, str], sink: Sink) -> None:
        self._writer = writer
        self._committers = committers
        self._sink = sink
        self._refused: GraphError | None = None  # rows of an epoch are in no committable: no later one may be complete

    def write(self, batch: Batch) -> int | None:
        self._raise_refused()
        return self._writer.write(batch)

    def prepare(self, checkpoint: CheckpointId) -> PreparedOutput:
        self._raise_refused()
        return _Prepared(self, self._writer.prepare(checkpoint))

    def _raise_refused(self) -> None:
        if self._refused is not None:
            raise self._refused

    def completed(self, checkpoint: CheckpointId) -> None:
        if isinstance(self._writer, CheckpointListener):
            self._writer.completed(checkpoint)

    def close(self) -> None:
        self._writer.close()

    def recorded(self, item: Committable) -> Committable:
        """The committable with its committer, as the log holds it."""
        place = self._committers.get(item.kind)
        if place is None:
            msg = (
                f"{self._sink.describe()} hands over output of kind {item.kind!r}, for which it names no committer, so "
                f"that it would never be published. Name it, as committers = {{{item.kind!r}: 'module:class'}}."
            )
            self._refused = GraphError(msg, uid=item.uid)
            raise self._refused
        return replace(item, committer="" if item.kind in COMMITTERS else place)


class _Prepared:
    def __init__(self, writer: _Writer, prepared: PreparedOutput) -> None:
        self._writer = writer
        self._prepared = prepared

    def materialise(self) -> Sequence[Committable]:
        return tuple(self._writer.recorded(item) for item in self._prepared.materialise())
