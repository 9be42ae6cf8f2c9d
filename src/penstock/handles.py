"""Ids, and what points at data at rest: positions, layers, committables, snapshots."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NewType, Protocol, TypeAlias

from penstock.clock import MIN_WATERMARK, EventTime
from penstock.errors import GraphError, SettingsError

# ---- ids and names --------------------------------------------------------------------------------------------------

CheckpointId = NewType("CheckpointId", int)
"""Number of a checkpoint. Rises over the whole log, on any timeline; gaps are allowed."""
Generation = NewType("Generation", int)
"""Number of the claim under which a driver runs: the number of the claim's entry in the log."""
EntryNumber = NewType("EntryNumber", int)
"""Place of an entry in the log: 0, 1, 2 … without gaps."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
_SAVEPOINT = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}")


def new_id() -> str:
    """A random identity: of a log, of a claim, of a request."""
    return uuid.uuid4().hex  # noqa: TID251 - drawn here, passed in everywhere else


def check_name(what: str, value: object) -> str:
    """Return ``value`` if it can name a job or a step, else raise ``GraphError``.

    Names become folders and parts of identities in sinks, so they are 1 to 64 characters of ``a-z 0-9 . _ -``
    and begin and end with a letter or a digit.

    >>> check_name("uid", "orders-by_user.v2")
    'orders-by_user.v2'
    """
    if not isinstance(value, str):
        msg = f"{what} must be a string, not {value!r} ({type(value).__name__})."
        raise GraphError(msg)
    if not _NAME.fullmatch(value):
        msg = (
            f"{what} {value!r} is not a valid name. Use 1 to 64 characters of a-z, 0-9, '.', '_' and '-', beginning "
            "and ending with a letter or a digit."
        )
        raise GraphError(msg)
    return value


def check_savepoint_name(name: object) -> str:
    """Return ``name`` if a savepoint can have it. It begins with a letter: a number would be a checkpoint's id.

    Raises:
        SettingsError: it cannot.

    >>> check_savepoint_name("before-v2")
    'before-v2'
    """
    if not isinstance(name, str) or not _SAVEPOINT.fullmatch(name):
        msg = (
            f"{name!r} cannot name a savepoint. Use 1 to 100 letters, digits, '.', '_' and '-', beginning with a "
            "letter."
        )
        raise SettingsError(msg)
    return name


# ---- data at rest ---------------------------------------------------------------------------------------------------
# What a task hands to a checkpoint. All of it can be written as JSON. Only the connector or operator that made a
# ``detail`` knows what it means.

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRef:
    """One durable file, written once.

    Attributes:
        path: relative to the job's directory (``state/…``) for what penstock owns; absolute where a sink stages
            next to its target.
        length: bytes.
        sha256: hexadecimal digest of the content.
    """

    path: str
    length: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a source was read: everything in front of it is in the snapshot, nothing behind it.

    ``kind`` names the source's format (``"files/1"``), so that another kind of source refuses it.
    """

    kind: str
    detail: Json


RECEIVED: Final = "received/1"
"""Kind of the positions of sources that receive rows and keep them in a write-ahead log."""
UNLOGGED: Final = "received-unlogged/1"
"""Kind of the positions of sources that receive rows and keep no log of them."""


@dataclass(frozen=True, slots=True, order=True)
class BlockId:
    """A block of the write-ahead log of one source. Blocks are read in this order."""

    generation: Generation
    number: int

    def __str__(self) -> str:
        return f"{self.generation}/{self.number}"


@dataclass(frozen=True, slots=True)
class AdoptedBlocks:
    """The blocks that a reader finds at its start.

    Attributes:
        blocks: those to be read, oldest first.
        row: number of rows of the first one that were read already.
        served: the last tick whose blocks were read; 0 if there is none.
        floor: no block that was read by any checkpoint has a later tick.
    """

    blocks: tuple[BlockId, ...] = ()
    row: int = 0
    served: int = 0
    floor: int = 0


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The idempotency key of a request whose rows are in a block.

    Attributes:
        key: as the client gave it.
        digest: of the request's body.
        rows: number of rows that were stored.
        bad: number of its bad rows.
        at: when it was received, in microseconds since 1970.
    """

    key: str
    digest: str
    rows: int
    bad: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """How long idempotency keys are known, in microseconds, and the most that are known at once."""

    horizon: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRef:
    """One immutable, durable layer of a step's state. Its name is unique and never used again."""

    name: str
    level: int
    rows: int
    files: tuple[FileRef, ...]
    detail: Json = None

    @property
    def bytes(self) -> int:
        """Bytes of its files."""
        return sum(file.length for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateHandle:
    """The state of a step at a barrier: its layers, newest last, and small values in ``detail``.

    ``schema`` is the declared schema of the state (Spark DDL), which a restore compares. Layers written under an older
    schema have it in their own ``detail``. Small values are the horizon below which rows of layers are dead, or
    timers.
    """

    kind: str
    schema: str
    layers: tuple[LayerRef, ...]
    detail: Json = None

    @property
    def files(self) -> tuple[FileRef, ...]:
        """Files of all layers, in the order of the layers; no two layers share a file."""
        return tuple(file for layer in self.layers for file in layer.files)

    @property
    def rows(self) -> int:
        """Rows of all layers. A key that changed in several layers has a row in each."""
        return sum(layer.rows for layer in self.layers)

    @property
    def bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.bytes for layer in self.layers)


@dataclass(frozen=True, slots=True)
class StateColumn:
    """A column of state: its name, and its type as Spark writes it (``bigint``, ``struct<by:timestamp,value:int>``)."""

    name: str
    type: str


class ColumnAction(str, Enum):
    """What a restore does with a column of recorded state."""

    KEEP = "keep"
    WIDEN = "widen"
    ADD = "add"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChange:
    """How a column of recorded state becomes one of the declared state; at least one of the two is there.

    An added column is NULL in all recorded rows. A dropped column is not read any more.
    """

    recorded: StateColumn | None
    declared: StateColumn | None

    @property
    def act(self) -> ColumnAction:
        """Whether the column is added, dropped, kept or widened."""
        if self.recorded is None:
            return ColumnAction.ADD
        if self.declared is None:
            return ColumnAction.DROP
        return ColumnAction.KEEP if self.recorded.type == self.declared.type else ColumnAction.WIDEN

    def __str__(self) -> str:
        """For people.

        >>> str(ColumnChange(recorded=StateColumn("n__count", "int"), declared=StateColumn("n__count", "bigint")))
        'widens n__count from int to bigint'
        """
        if self.declared is None:
            assert self.recorded is not None  # one of the two is there
            return f"drops {self.recorded.name} {self.recorded.type}"
        if self.recorded is None:
            return f"adds {self.declared.name} {self.declared.type}, from now on"
        if self.act is ColumnAction.WIDEN:
            return f"widens {self.declared.name} from {self.recorded.type} to {self.declared.type}"
        return f"keeps {self.declared.name} {self.declared.type}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committable:
    """Output made durable but not yet visible. It can be published or voided without the pipeline.

    Attributes:
        uid: the sink's uid when it was made.
        kind: which committer understands it (``"files/1"``); penstock's own are never removed once released.
        checkpoint: the checkpoint it was prepared for. A sink's committables are published in this order.
        target: where it goes, for people and for identity.
        files: staged files it publishes, condemned only after the commit is confirmed.
        detail: what else the committer needs; no secrets.
        committer: ``module:class`` of a committer that is not penstock's own; empty for penstock's kinds. Any process
            finds it by importing it. Writers leave it empty: it is taken from the sink's ``committers``.
        shard: which part of the sink's output it is. Shards are published side by side, each in the order of its
            checkpoints: each has an identity of its own outside.
    """

    uid: str
    kind: str
    checkpoint: CheckpointId
    target: str
    files: tuple[FileRef, ...]
    detail: Json = None
    committer: str = ""
    shard: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of its staged files."""
        return sum(file.length for file in self.files)


class OutputRef(Protocol):
    """Names one output of a sink; a ``Committable`` does."""

    @property
    def uid(self) -> str:
        """Uid of the sink."""

    @property
    def checkpoint(self) -> CheckpointId:
        """The checkpoint that it was prepared for."""


def output_names(*outputs: OutputRef) -> str:
    """The names of outputs, for people.

    >>> made = {"kind": "files/1", "target": "/out", "files": ()}
    >>> output_names(*(Committable(uid="totals-out", checkpoint=CheckpointId(number), **made) for number in (3, 4)))
    "#3 of 'totals-out', #4 of 'totals-out'"
    """
    return ", ".join(f"#{output.checkpoint} of '{output.uid}'" for output in outputs)


class Guarantee(str, Enum):
    """How often a row takes effect, as far as a connector can promise it."""

    NONE = "none"
    """It may be lost, and may take effect several times."""
    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


class CommitOutcome(Enum):
    """How a commit, or a void, ended."""

    DONE = "done"
    ALREADY_DONE = "already done"
    RETRY = "retry"
    """It surely did not happen: try again later. Later checkpoints of this sink wait."""
    UNKNOWN = "unknown"
    """It may have happened: begin again at the fence. Later checkpoints of this sink wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSnapshot:
    """Everything that one task contributes to a checkpoint; a stateless task contributes only its watermarks.

    ``watermarks`` has one value per input of the task (a source has none).
    """

    task: str
    position: Position | None = None
    state: StateHandle | None = None
    watermarks: tuple[EventTime, ...] = ()
    committables: tuple[Committable, ...] = field(default=())

    @property
    def watermark(self) -> EventTime:
        """The smallest watermark of its inputs."""
        return min(self.watermarks, default=MIN_WATERMARK)


# ---- replays within positions ---------------------------------------------------------------------------------------

_REPLAYED: Final = "replayed"
_DETAIL: Final = ""  # the source's own detail, where it is no mapping


def with_replays(position: Position, read: Mapping[str, int]) -> Position:
    """A source's position, with how many replays of which dead letters were read.

    Everything that the source itself wrote stays where readers of the position, older versions too, look for it.

    >>> with_replays(Position(kind="kafka/1", detail={"topics": {}}), {"bad-orders": 2}).detail
    {'topics': {}, 'replayed': {'bad-orders': 2}}
    """
    if not read:
        return position
    numbers: Json = dict(sorted(read.items()))
    own = position.detail
    detail: dict[str, Json] = {**own} if isinstance(own, Mapping) else {_DETAIL: own}
    return Position(kind=position.kind, detail={**detail, _REPLAYED: numbers})


def split_replays(position: Position) -> tuple[Position, dict[str, int]]:
    """The position as the source wrote it, and how many replays of which dead letters were read.

    >>> split_replays(with_replays(Position(kind="n/1", detail=7), {"bad": 2}))
    (Position(kind='n/1', detail=7), {'bad': 2})
    """
    detail = position.detail
    if not isinstance(detail, Mapping) or not isinstance(numbers := detail.get(_REPLAYED), Mapping):
        return position, {}
    rest = {name: value for name, value in detail.items() if name != _REPLAYED}
    own: Json = rest.get(_DETAIL, rest)
    read = {uid: number for uid, number in numbers.items() if isinstance(number, int)}
    return Position(kind=position.kind, detail=own), read


# ---- names of unions ------------------------------------------------------------------------------------------------
# A union has no uid: it is known by the tasks that it unites.

_UNION: Final = "union@"
_PARTS: Final = re.compile(r"(union@|\+|#\d+$)")
_TWIN: Final = re.compile(r"#\d+$")
_PORTS: Final = re.compile(r"(?:\.(?:late|bad))*")


def union_id(origins: Sequence[str]) -> str:
    """The name of a union of these tasks, in order; it is never a valid uid.

    >>> union_id(["orders", "returns.late"])
    'union@orders+returns.late'
    """
    return _UNION + "+".join(origins)


def union_parts(id: str) -> tuple[str, ...]:
    """The tasks that a union unites; empty for other names, and for unions of unions, whose names are ambiguous.

    >>> union_parts("union@orders+returns.late#2"), union_parts("orders"), union_parts("union@union@a+b+c")
    (('orders', 'returns.late'), (), ())
    """
    parts = _TWIN.sub("", id).removeprefix(_UNION) if id.startswith(_UNION) else ""
    return tuple(parts.split("+")) if parts and _UNION not in parts else ()


def renamed_union(id: str, names: Mapping[str, str]) -> str:
    """The name of a union after its tasks were renamed; any other name as it is.

    >>> renamed_union("union@union@orders.late+returns+b#2", {"orders": "sales"})
    'union@union@sales.late+returns+b#2'
    """
    if not id.startswith(_UNION):
        return id
    return "".join(_renamed(part, names) for part in _PARTS.split(id))


def _renamed(origin: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        if origin.startswith(old) and _PORTS.fullmatch(origin, len(old)):
            return new + origin[len(old) :]
    return origin
