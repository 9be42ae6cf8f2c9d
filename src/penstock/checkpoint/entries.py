"""What the log says, as frozen values: everything that changes what may be restored, published or deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Final, TypeAlias

from penstock.clock import WallTime
from penstock.elements import CheckpointKind
from penstock.handles import CheckpointId, Committable, EntryNumber, FileRef, Generation, Json, TaskSnapshot

NO_ENTRY: Final = EntryNumber(-1)
"""The tail of an empty log: the number in front of the first entry."""
FIRST_ENTRY: Final = EntryNumber(0)
"""The number of the claim that makes a log."""


class StepRole(str, Enum):
    """What a step of the graph does."""

    SOURCE = "source"
    STEP = "step"
    SINK = "sink"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step of the graph as it was when a checkpoint was taken.

    Attributes:
        uid: the name that its state is kept under.
        role: source, keyed step or sink.
        kind: name and version of its format (``"window/1"``), which a restore compares. Empty if it keeps nothing.
        schema: its state as Spark DDL, shown when a restore refuses. Empty if it keeps nothing.
    """

    uid: str
    role: StepRole
    kind: str = ""
    schema: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A process takes the log: from here on only it appends, until the next claim.

    ``host`` is the machine's name. A mark behind ``#`` names the process namespace that ``pid`` belongs to.
    """

    host: str
    pid: int
    started: WallTime
    version: str


def host_of(place: str) -> str:
    """The part of a claim's ``host`` that is for people.

    >>> host_of("web-1#9f86d081884c")
    'web-1'
    """
    return place.partition("#")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A checkpoint gets a name, and is not condemned while it has it. A savepoint is a pinned checkpoint.

    ``owner`` and ``expires`` are shown to people and not enforced. ``request`` is the id of the request it fulfils.
    """

    name: str
    checkpoint: CheckpointId
    at: WallTime
    owner: str = ""
    expires: WallTime | None = None
    request: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpin:
    """A name is removed; its checkpoint may be condemned again."""

    name: str
    at: WallTime
    request: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemn:
    """Checkpoints that can never be restored again, and files that may be deleted from now on."""

    checkpoints: tuple[CheckpointId, ...]
    files: tuple[str, ...]
    at: WallTime
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where an imported checkpoint comes from: another log, or an earlier state of this one.

    Attributes:
        log_id: of the log in which it was taken.
        job: that log's job.
        checkpoint: its id in that log.
        export: sha256 of the bytes of the folder's ``export.json``.
        claimed: whether this log took the folder's files over, so that no other log can have them.
    """

    log_id: str
    job: str
    checkpoint: CheckpointId
    export: str
    claimed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One complete checkpoint. Its entry is the commit point.

    Attributes:
        checkpoint: its id. Ids rise over the whole log; gaps are allowed.
        kind: why it was taken.
        parent: the checkpoint whose state it continues, ``None`` if it began empty.
        triggered: when its barriers were sent.
        completed: when the last task had acknowledged.
        steps: the graph's steps, with kinds and schemas.
        tasks: what each task contributed, without its committables.
        open: all committables not confirmed to be published, including those of earlier checkpoints. Those of one
            sink are in the order of their checkpoints.
        pins: names given by this entry.
        fulfils: ids of requests that this entry answers.
        condemned: checkpoints that can never be restored from now on.
        condemned_files: files that may be deleted from now on.
        deleted: every deletion recorded in entries up to this number is done.
        floor: entries below this number are no longer needed, and may be deleted once this entry is in the log.
        settings: of the run, for people. A start uses its own, and ``penstock plan`` shows the differences. Only
            ``timezone`` is compared by a start. Empty if they were not recorded.
        origin: of an imported checkpoint; ``None`` if it was taken in this log.
        undone: half-open ranges of checkpoint ids on other timelines; rows of their output were read again. Empty
            until the first rewind.
    """

    checkpoint: CheckpointId
    kind: CheckpointKind
    parent: CheckpointId | None
    triggered: WallTime
    completed: WallTime
    steps: tuple[StepRecord, ...]
    tasks: tuple[TaskSnapshot, ...]
    open: tuple[Committable, ...] = ()
    pins: tuple[Pin, ...] = ()
    fulfils: tuple[str, ...] = ()
    condemned: tuple[CheckpointId, ...] = ()
    condemned_files: tuple[str, ...] = ()
    deleted: EntryNumber = NO_ENTRY
    floor: EntryNumber = FIRST_ENTRY
    settings: Mapping[str, Json] = field(default_factory=dict)
    origin: Origin | None = None
    undone: tuple[tuple[int, int], ...] = ()

    @property
    def state_files(self) -> tuple[FileRef, ...]:
        """Every file of state that its restore reads, once."""
        return _once(file for task in self.tasks if task.state is not None for file in task.state.files)

    @property
    def state_bytes(self) -> int:
        """Bytes of all files of state."""
        return sum(file.length for file in self.state_files)

    @property
    def state_bytes_by_step(self) -> Mapping[str, int]:
        """Bytes of the files of state of each step that keeps state; together they are ``state_bytes``."""
        return {
            task.task: sum(file.length for file in _once(task.state.files))
            for task in self.tasks
            if task.state is not None
        }

    @property
    def files(self) -> tuple[FileRef, ...]:
        """Every file that its restore and the commits of its outputs read, once."""
        return _once(chain(self.state_files, (file for item in self.open for file in item.files)))


def _once(files: Iterable[FileRef]) -> tuple[FileRef, ...]:
    return tuple({file.path: file for file in files}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """The restore point is set by hand; everything open and not in ``discard`` was published before.

    Attributes:
        to: the checkpoint to restore, ``None`` to begin empty.
        left: the restore point that is abandoned.
        at: when it was written.
        discard: committables that will never be published. A recovery voids each one before its sources start.
        condemned: the checkpoints of ``discard`` and all that were built on them.
        lost: numbers of unreadable entries that the rewind skips.
        request: id of the request it fulfils.
    """

    to: CheckpointId | None
    left: CheckpointId | None
    at: WallTime
    discard: tuple[Committable, ...] = ()
    condemned: tuple[CheckpointId, ...] = ()
    lost: tuple[EntryNumber, ...] = ()
    request: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The job ended in order, and nothing is open: all output in the log is published and confirmed."""

    checkpoint: CheckpointId | None
    at: WallTime
    fulfils: tuple[str, ...] = ()


Body: TypeAlias = Claim | Manifest | Rewind | Pin | Unpin | Condemn | Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the log: what it says and who wrote it.

    Attributes:
        number: its place in the log.
        log_id: random, drawn for entry 0, the same in all entries: a part of every identity in a sink.
        job: the job whose log this is.
        generation: number of the newest claim at or below this entry; a claim's own number in a claim.
        token: random, drawn for that claim. It makes every entry of two processes differ in bytes.
        previous: sha256 of the bytes of the previous entry, empty in entry 0.
        body: what it says.
    """

    number: EntryNumber
    log_id: str
    job: str
    generation: Generation
    token: str
    previous: str
    body: Body
