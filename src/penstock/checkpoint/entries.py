"""What the log says, as frozen values: whatever changes what may be restored, published or deleted.

Knows nothing of bytes, files or who writes; see ``codec`` and ``log``.
"""

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
"""Before the first entry: the tail of an empty log."""
FIRST_ENTRY: Final = EntryNumber(0)
"""The number of the claim that makes a log."""


class StepRole(str, Enum):
    """What a task of the graph does."""

    SOURCE = "source"
    STEP = "step"
    SINK = "sink"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step of the graph as it was when a checkpoint was taken.

    Attributes:
        uid: its only address.
        role: source, keyed step or sink.
        kind: name and version of its format (``"window/1"``); a restore compares it. Empty where nothing is kept.
        schema: what is kept, as Spark DDL; shown when a restore refuses. Empty where nothing is kept.
    """

    uid: str
    role: StepRole
    kind: str = ""
    schema: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A process takes the log: from here on only it appends, until the next claim.

    ``host`` is its name, perhaps with a mark behind ``#`` that tells whose process numbers ``pid`` is one of.
    """

    host: str
    pid: int
    started: WallTime
    version: str


def host_of(place: str) -> str:
    """The part of a claim's host that is for people.

    >>> host_of("web-1#9f86d081884c")
    'web-1'
    """
    return place.partition("#")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A checkpoint has a name and is not condemned while it has; a savepoint is nothing else.

    ``owner`` and ``expires`` are shown to people and not enforced. ``request`` is the request that it fulfils.
    """

    name: str
    checkpoint: CheckpointId
    at: WallTime
    owner: str = ""
    expires: WallTime | None = None
    request: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpin:
    """The name is gone; its checkpoint may be condemned again."""

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
    """Where a checkpoint was brought from: another log, or an older day of this one, by way of an exported folder.

    Attributes:
        log_id: of the log in which it was taken.
        job: that log's job.
        checkpoint: its id there.
        export: sha256 of the bytes of the folder's ``export.json``.
        claimed: whether the folder's files were taken over, so that nobody else can have them.
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
        checkpoint: rises over the whole log; gaps are allowed.
        kind: why it was taken.
        parent: the checkpoint whose state it continues, ``None`` if it began empty.
        triggered: when its barriers left.
        completed: when the last task had acknowledged.
        steps: the graph's steps, with kinds and schemas.
        tasks: what each task contributed, without its committables.
        open: all committables not confirmed to be published, those of earlier checkpoints included; per sink in
            order of their checkpoints.
        pins: names given here.
        fulfils: requests that this entry answers.
        condemned: checkpoints that can never be restored from now on.
        condemned_files: files that may be deleted from now on.
        deleted: every deletion recorded in entries up to this number is done.
        floor: entries below this number are no longer needed, and may be deleted once this entry is in the log.
        settings: of the run, for people: a start takes its own, and ``plan`` shows what differs. Empty where whoever
            wrote it did not say.
        origin: of a checkpoint that was brought here; ``None`` if it was taken here.
        undone: ranges of ids of checkpoints on other timelines, each with its first and the one behind its last: rows
            of their output came again. Empty as long as nobody has gone back.
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
        """Of all files of state."""
        return sum(file.length for file in self.state_files)

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
        at: when.
        discard: committables that will never be published; whoever recovers voids each one before its sources start.
        condemned: the checkpoints of ``discard`` and all that were built on them.
        lost: numbers of entries that cannot be read and that the operator goes past.
        request: the request that it fulfils.
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
    """The job ended in order, and nothing is open: all that the log held is published and confirmed."""

    checkpoint: CheckpointId | None
    at: WallTime
    fulfils: tuple[str, ...] = ()


Body: TypeAlias = Claim | Manifest | Rewind | Pin | Unpin | Condemn | Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the log, as written: what it says and who says it.

    Attributes:
        number: its place in the log.
        log_id: random, drawn for entry 0, the same in all entries: a part of every identity in a sink.
        job: the job whose log this is.
        generation: number of the newest claim at or below; a claim's own number in a claim.
        token: random, drawn for that claim. It makes every entry of two processes differ in bytes.
        previous: sha256 of the bytes of the entry before, empty in entry 0.
        body: what it says.
    """

    number: EntryNumber
    log_id: str
    job: str
    generation: Generation
    token: str
    previous: str
    body: Body
