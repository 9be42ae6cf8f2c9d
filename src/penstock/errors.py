"""The exception tree: each error says whose fault it is and whether a retry can help. And pieces of messages."""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from enum import Enum
from typing import ClassVar, Final, NoReturn

# ---- the exception tree ----------------------------------------------------------------------------------------------
#
#     PenstockError                      domain, retry, and the uid of the step if known
#     ├── GraphError                     user: refused before anything runs
#     │   ├── DuplicateUid
#     │   └── SchemaMismatch
#     ├── SettingsError                  user
#     ├── ConnectorError                 external
#     │   ├── SourceUnavailable          retry
#     │   ├── SourceChanged              user: what was read or planned is no longer what is there
#     │   ├── DecodeError                user: a row that cannot be decoded, with its place
#     │   ├── SinkUnavailable            retry
#     │   ├── SinkBackpressure           retry after a time
#     │   ├── LeaseThrottled             retry after a short random wait
#     │   ├── LeaseTableUnavailable      retry
#     │   ├── LeaseTableInvalid          user: no such table, or it is no lease table
#     │   └── LeaseLost                  another worker has the lease: stop reading its shard
#     ├── CheckpointError
#     │   ├── CheckpointAborted          external, retry: carries a reason of a closed list
#     │   ├── CheckpointUnreadable       external: never skipped silently
#     │   ├── LogGap                     external: a number is missing above the floor
#     │   ├── CondemnedWhileRead         external, retry: a reader was overtaken by the clean-up; nothing was returned
#     │   ├── GenerationFenced           another driver owns this job: stop, do not restart
#     │   ├── JobIsRunning               user: a living process owns the job; a start takes it over only if asked to
#     │   ├── RequestRefused             user: a running job refuses a request; the message says why
#     │   ├── RequestFailed              external: a running job failed at a request, or did not answer in time
#     │   ├── StateDirectoryRefused      user: the directory cannot hold this job's log
#     │   ├── PlanOutdated               user: what a saved plan was made from has changed
#     │   ├── StorageFailed              external, retry: full, read-only, input/output error; nothing was lost
#     │   ├── CommitFailed               external, retry
#     │   ├── CommitUnknown              external: ask the sink, then decide; never repeat blindly
#     │   └── SinkIdentityConflict       user: the sink remembers another log
#     ├── StateError
#     │   ├── StateIncompatible          user: schema or uid changed
#     │   │   └── CommitterMissing       user: what publishes an output cannot be found
#     │   ├── LayerMissing               external
#     │   └── KeptOutputLost             external, retry: not counted as a failure, nothing was lost
#     ├── EngineFailed                   external, retry: a Spark job failed for a reason of its own
#     ├── EngineDied                     external: the JVM is gone; the process must end, its parent restarts it
#     ├── UserFunctionError              user: chained, with module and line
#     ├── HarnessError                   user: a test asked penstock.testing for something impossible
#     └── InternalError                  a broken invariant: please report


class Domain(str, Enum):
    """Whose fault a failure is."""

    USER = "user"
    EXTERNAL = "external"
    INTERNAL = "internal"


class PenstockError(Exception):
    """Base of all errors of penstock.

    Attributes:
        domain: whose fault it is.
        retry: whether doing the same again can help; a job is restarted only if so.
        is_counted: whether a restart after it counts against what the job's restart strategy allows.
        uid: the step it happened in, if known.
        where: the user's file and line that made the step, if known, as ``"shop.py:12"``.
    """

    domain: ClassVar[Domain] = Domain.INTERNAL
    retry: ClassVar[bool] = False
    is_counted: ClassVar[bool] = True

    def __init__(self, message: str, *, uid: str | None = None, where: str | None = None) -> None:
        super().__init__(message)
        self.uid = uid
        self.where = where
        self._full_traceback: str | None = None

    def full_traceback(self) -> str:
        """Return the traceback with all frames and causes, those too that a short one leaves out."""
        return self._full_traceback or "".join(traceback.format_exception(self))

    def keep_full_traceback(self) -> None:
        """Keep the traceback as it is, before it is shortened; only the first counts."""
        self._full_traceback = self.full_traceback()

    def __str__(self) -> str:
        message = super().__str__()
        step = f"step '{self.uid}'" if self.uid else None
        place = " at ".join(part for part in (step, self.where) if part)
        return f"{place}: {message}" if place else message


class GraphError(PenstockError):
    """The pipeline is refused before anything runs."""

    domain = Domain.USER


class DuplicateUid(GraphError):
    """Two steps have the same uid, so that state could not be addressed."""


class SchemaMismatch(GraphError):
    """Columns are not those that a step needs."""


class SettingsError(PenstockError):
    """A setting is unknown or has an impossible value."""

    domain = Domain.USER


class UnknownName(PenstockError):
    """There is no job, checkpoint, savepoint or step of that name; the message has the nearest one."""

    domain = Domain.USER


class ConnectorError(PenstockError):
    """A source or sink could not do its work."""

    domain = Domain.EXTERNAL


class SourceUnavailable(ConnectorError):
    """The source cannot be reached now."""

    retry = True


class SourceChanged(ConnectorError):
    """The data that was read, or planned to be read, has changed: reading on would lose or repeat rows."""

    domain = Domain.USER


class DecodeError(ConnectorError):
    """A row cannot be decoded under the declared schema; the message gives its place and the ways out."""

    domain = Domain.USER


class SinkUnavailable(ConnectorError):
    """The sink cannot be reached now, or did not take everything."""

    retry = True


class SinkBackpressure(ConnectorError):
    """The sink asks to be left alone for a while."""

    retry = True


class LeaseThrottled(ConnectorError):
    """The lease table has no capacity for a request now."""

    retry = True


class LeaseTableUnavailable(ConnectorError):
    """The lease table did not answer, or answered that it cannot: whether it was written is not known."""

    retry = True


class LeaseTableInvalid(ConnectorError):
    """There is no such lease table, it may not be used, or its rows are no leases."""

    domain = Domain.USER


class LeaseLost(ConnectorError):
    """Another worker has the lease of a shard."""


class CheckpointError(PenstockError):
    """Something about checkpoints or their log."""

    domain = Domain.EXTERNAL


class CheckpointAborted(CheckpointError):
    """More checkpoints failed in a row than are tolerated."""

    retry = True


class CheckpointUnreadable(CheckpointError):
    """An entry of the log, or a file it names, is complete but not what was written. Only ``rewind`` goes past it."""


class LogGap(CheckpointError):
    """A number is missing in the log above its floor."""


class CondemnedWhileRead(CheckpointError):
    """A checkpoint was condemned while its files were read: what was read may be incomplete, and is not returned."""

    retry = True


class GenerationFenced(CheckpointError):
    """Another driver has claimed this job: this one stops, commits and deletes nothing more."""


class JobIsRunning(CheckpointError):
    """A living process owns the job; a start takes it over only if asked to."""

    domain = Domain.USER


class RequestRefused(CheckpointError):
    """A job refuses a request: it does not run, it is ending, or a name is taken."""

    domain = Domain.USER


class RequestFailed(CheckpointError):
    """A job failed at a request, or did not answer in time; the message says which."""


class StateDirectoryRefused(CheckpointError):
    """The state directory cannot hold this job's log: another job's, not writable, or not a safe file system."""

    domain = Domain.USER


class PlanOutdated(CheckpointError):
    """The log, the code or the settings have changed since a plan was saved; the message says which."""

    domain = Domain.USER


class StorageFailed(CheckpointError):
    """A durable write failed and surely has no effect: full, read-only, input/output error."""

    retry = True


class CommitFailed(CheckpointError):
    """A sink reported that a commit did not happen; it is tried again."""

    retry = True


class CommitUnknown(CheckpointError):
    """A commit may or may not have happened; only the sink can tell."""


class SinkIdentityConflict(CheckpointError):
    """The sink holds a marker of another log, or one above this log's newest checkpoint."""

    domain = Domain.USER


class StateError(PenstockError):
    """State could not be read or used."""

    domain = Domain.EXTERNAL


class StateIncompatible(StateError):
    """The state's schema is not that of the step; both are in the message, with the remedy."""

    domain = Domain.USER


class CommitterMissing(StateIncompatible):
    """Nothing here can publish or void an output that waits in the log: its committer cannot be found.

    Attributes:
        why: the reason alone, without the remedy.
    """

    def __init__(self, message: str, *, why: str = "", uid: str | None = None) -> None:
        super().__init__(message, uid=uid)
        self.why = why


class LayerMissing(StateError):
    """A layer, or a cached block of one, is gone: the job restarts from its durable layers."""

    retry = True


class KeptOutputLost(StateError):
    """Output that a sink kept in cached blocks is gone, before it was in files: the job reads it again."""

    retry = True
    is_counted = False


class EngineFailed(PenstockError):
    """A Spark job failed for a reason of its own (lost executor, memory); the job restarts from its checkpoint."""

    domain = Domain.EXTERNAL
    retry = True


class EngineDied(PenstockError):
    """Spark's JVM is gone. The process must end; its supervisor starts another one."""

    domain = Domain.EXTERNAL


class UserFunctionError(PenstockError):
    """A function of the user raised; the original is chained."""

    domain = Domain.USER


class HarnessError(PenstockError):
    """A test asked a harness for something impossible: a uid that does not exist, a step of a job that is dead."""

    domain = Domain.USER


class InternalError(PenstockError):
    """An invariant of penstock is broken. Please report it with the story in the message."""


_WRITE_REFUSED: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE})
_WRITE_REFUSED_TEXT: Final = re.compile(r"No space left on device|Disk quota exceeded|Read-only file system")


def is_refused_write(error: BaseException) -> bool:
    """Whether storage refused a write, as penstock, Python or Spark says it: full, read-only, input/output error.

    >>> is_refused_write(OSError(28, "No space left on device")), is_refused_write(FileNotFoundError("part-0"))
    (True, False)
    """
    if isinstance(error, StorageFailed | StateDirectoryRefused):
        return True
    if isinstance(error, OSError) and error.errno in _WRITE_REFUSED:
        return True
    return _WRITE_REFUSED_TEXT.search(str(error)) is not None


def assert_never(value: NoReturn) -> NoReturn:
    """Close a ``match``: the type checker proves that no case is left (``typing`` has it only since Python 3.11)."""
    msg = f"The case {value!r} was not expected."
    raise InternalError(msg)


# ---- pieces of messages ----------------------------------------------------------------------------------------------
#
# A message is one or more sentences. Each begins with a capital, a quoted name or code, and ends with a full stop or
# a question mark. Another message takes it in after "prefix: ", unchanged.

_COLUMNS_SHOWN: Final = 20


def did_you_mean(name: str, there: Iterable[str], *, most: int = 1, otherwise: str | None = None) -> str:
    """The end of a sentence about an unknown name, and a sentence with the nearest names that exist.

    Args:
        name: the unknown name.
        there: the names that exist.
        most: how many names are offered.
        otherwise: the next sentence if no name is near; by default it lists all, and all is empty without any.

    >>> did_you_mean("ordrs", ["orders", "late"])
    ". Did you mean 'orders'?"
    >>> did_you_mean("x", ["orders", "late"]), did_you_mean("x", ["orders"], otherwise="It has none.")
    ('. Known names: late, orders.', '. It has none.')
    """
    known = sorted(there)
    near = get_close_matches(name, known, n=most)
    if near:
        return f". Did you mean {' or '.join(map(repr, near))}?"
    if otherwise is None:
        otherwise = f"Known names: {', '.join(known)}." if known else ""
    return f". {otherwise}" if otherwise else ""


def no_column(name: str, columns: Sequence[str]) -> str:
    """The message about a column that rows do not have.

    Args:
        name: the unknown name, perhaps with that of a table before it.
        columns: those that the rows have; empty if they are not known.

    >>> no_column("amout", ["user", "amount", "at"])
    "Column 'amout' does not exist. Did you mean 'amount'? Columns: user, amount, at."
    """
    missing = f"Column {name!r} does not exist"
    if not columns:
        return f"{missing}."
    meant = did_you_mean(name.rpartition(".")[2], columns, most=3, otherwise="") or "."
    shown = ", ".join(columns[:_COLUMNS_SHOWN])
    return f"{missing}{meant} Columns: {shown}{', …' if len(columns) > _COLUMNS_SHOWN else '.'}"


def sentence(text: object) -> str:
    """A text of others, such as an exception of Python's, with a full stop if it does not end as a sentence does.

    >>> sentence(ValueError("no such id")), sentence("What is it?")
    ('no such id.', 'What is it?')
    """
    shown = str(text).strip()
    return shown if shown.endswith((".", "?", "!", "…")) else f"{shown}."
