"""Dead letters of a job, from its directory alone: which there are, which were replayed. Needs no Spark, no pipeline.

A letter is a row in a file (:mod:`penstock.sources.dead_letters`); nothing here is stored, all of it follows from which
files are there and what the log says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from penstock.checkpoint.names import near
from penstock.checkpoint.timeline import timeline
from penstock.errors import UnknownName
from penstock.handles import apart
from penstock.ids import CheckpointId, WallTime
from penstock.operate.letters.shelf import PARQUET, Shelf
from penstock.operate.letters.spans import Spans, joined, length, within, without
from penstock.sources.dead_letters import FOLDER, checkpoint_of, log_of, numbers, read_replay

if TYPE_CHECKING:
    from penstock.checkpoint.history import History
    from penstock.operate.directory import JobDirectory
    from penstock.sources.dead_letters import Replay

WHY: Final = ("cause", "step", "source", "no_replay")


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFile:
    """One file of dead letters.

    Attributes:
        name: of the file.
        path: absolute.
        checkpoint: with which it was published.
        rows: letters in it.
        bytes: of the file.
        written: when, by the file's time.
        stands: no rewind has undone it, and it belongs to this log.
        shelf: that opens it.
    """

    name: str
    path: str
    checkpoint: CheckpointId
    rows: int
    bytes: int
    written: WallTime
    stands: bool
    shelf: Shelf = field(default=PARQUET, repr=False, compare=False)

    @property
    def all(self) -> Spans:
        """All places in it."""
        return ((0, self.rows),) if self.rows else ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """The dead letters of one uid.

    Attributes:
        uid: of ``stream.dead_letter(uid)``.
        folder: where the files lie.
        files: by checkpoint.
        replays: by number.
        read: how many of the replays the job has read, by its newest checkpoint.
    """

    uid: str
    folder: str
    files: tuple[LetterFile, ...]
    replays: tuple[Replay, ...]
    read: int

    @cached_property
    def named(self) -> Mapping[str, Spans]:
        """The letters that some replay names."""
        return spans_named(self.replays)

    @cached_property
    def waiting(self) -> int:
        """Letters that a replay names and the job has yet to read."""
        standing = {file.name for file in self.files if file.stands}
        later = [each for replay in self.replays if replay.number > self.read for each in replay.letters]
        return sum(each.rows for each in later if each.file in standing)


def spans_named(replays: Sequence[Replay]) -> Mapping[str, Spans]:
    """Which letters replays name, by file."""
    found: dict[str, list[tuple[int, int]]] = {}
    for replay in replays:
        for each in replay.letters:
            found.setdefault(each.file, []).extend(each.ranges)
    return {file: joined(spans) for file, spans in found.items()}


def places_of(job: JobDirectory, history: History | None = None, *, shelf: Shelf = PARQUET) -> tuple[Place, ...]:
    """All dead letters of a job, by uid.

    Raises:
        CheckpointError: the log cannot be read.
        CheckpointUnreadable: a file of dead letters cannot be read.
    """
    history = history or job.read()
    found = {path.split("/")[1] for path in job.filesystem.list(FOLDER) if _is_letters(path)}
    return tuple(_place(job, history, uid, shelf) for uid in sorted(found))


def place_of(job: JobDirectory, uid: str | None, *, shelf: Shelf = PARQUET) -> Place:
    """The dead letters of this uid; of the only one, if none is given.

    Raises:
        UnknownName: there are none, or more than one and none was named; with the nearest.
        CheckpointError: see :func:`places_of`.
    """
    places = {place.uid: place for place in places_of(job, shelf=shelf)}
    if uid in places:
        return places[uid]
    if not places:
        msg = f"job {job.job!r} has no dead letters; a pipeline keeps them with stream.dead_letter(uid)"
        raise UnknownName(msg)
    if uid is None and len(places) == 1:
        return next(iter(places.values()))
    if uid is None:
        msg = f"job {job.job!r} has dead letters of several steps: name one of {', '.join(places)}"
        raise UnknownName(msg)
    msg = f"job {job.job!r} has no dead letters {uid!r}{near(uid, places)}"
    raise UnknownName(msg)


def _is_letters(path: str) -> bool:
    parts = path.split("/")
    return len(parts) == 3 and checkpoint_of(parts[1], parts[2]) is not None  # noqa: PLR2004 - folder, uid, file


def _place(job: JobDirectory, history: History, uid: str, shelf: Shelf) -> Place:
    point = history.restore_point
    has = timeline(history, point.checkpoint if point else None).has
    files = []
    for path in job.filesystem.list(f"{FOLDER}/{uid}"):
        if not _is_letters(path):
            continue
        name = path.rpartition("/")[2]
        checkpoint = checkpoint_of(uid, name)
        assert checkpoint is not None  # or it would be none of ours
        ours = (history.log_id or "").startswith(log_of(uid, name))
        files.append(_file(job, path, checkpoint, shelf, stands=ours and has(checkpoint)))
    tasks = point.tasks if point else ()
    read = [apart(task.position)[1].get(uid, 0) for task in tasks if task.position is not None]
    return Place(
        uid=uid,
        folder=_absolute(job, f"{FOLDER}/{uid}"),
        files=tuple(sorted(files, key=lambda file: (file.checkpoint, file.name))),
        replays=_replays(job, uid),
        read=max(read, default=0),
    )


def _file(job: JobDirectory, path: str, checkpoint: CheckpointId, shelf: Shelf, *, stands: bool) -> LetterFile:
    absolute = _absolute(job, path)
    seen = shelf.look(absolute)
    return LetterFile(
        name=path.rpartition("/")[2],
        path=absolute,
        checkpoint=checkpoint,
        rows=seen.rows,
        bytes=seen.bytes,
        written=seen.written,
        stands=stands,
        shelf=shelf,
    )


def _replays(job: JobDirectory, uid: str) -> tuple[Replay, ...]:
    found = (read_replay(job.filesystem, uid, number) for number in numbers(job.filesystem, uid))
    return tuple(replay for replay in found if replay is not None)


def _absolute(job: JobDirectory, path: str) -> str:
    return job.filesystem.url(path).removeprefix("file://")


# ----------------------------------------------------------------------------------------------------- what there is


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Letters of one cause and step.

    Attributes:
        cause: ``decode``, ``late``, or what the pipeline says.
        step: which gave them up.
        source: where they come from.
        rows: how many.
        replayed: how many of them a replay names.
        no_replay: why none may be replayed; ``None`` if they may.
    """

    cause: str
    step: str
    source: str
    rows: int
    replayed: int
    no_replay: str | None


def reasons(place: Place) -> tuple[Why, ...]:
    """The letters that stand, by cause and step, most first."""
    counts: dict[tuple[str, str, str, str | None], list[int]] = {}
    for file in place.files:
        named = place.named.get(file.name, ())
        for key, spans in why_spans(file).items():
            found = counts.setdefault(key, [0, 0])
            found[0] += length(spans)
            found[1] += length(within(spans, named))
    told = [
        Why(cause=key[0], step=key[1], source=key[2], no_replay=key[3], rows=rows, replayed=replayed)
        for key, (rows, replayed) in counts.items()
    ]
    return tuple(sorted(told, key=lambda why: (-why.rows, why.cause, why.step)))


def why_spans(file: LetterFile) -> Mapping[tuple[str, str, str, str | None], Spans]:
    """Places of a file by cause, step, source and why they cannot be replayed; of one that stands."""
    if not file.stands:
        return {}
    columns = file.shelf.columns(file.path, WHY)
    found: dict[tuple[str, str, str, str | None], list[tuple[int, int]]] = {}
    for place, key in enumerate(zip(*columns, strict=True)):
        found.setdefault(key, []).append((place, place + 1))
    return {key: joined(spans) for key, spans in found.items()}


def replayable(place: Place, *, again: bool = False) -> Mapping[str, Mapping[str, Spans]]:
    """By source and file, the letters that it may read again; without ``again`` none that a replay names."""
    found: dict[str, dict[str, Spans]] = {}
    for file in place.files:
        gone = () if again else place.named.get(file.name, ())
        for (_, _, source, no_replay), spans in why_spans(file).items():
            left = without(spans, gone)
            if no_replay is None and left:
                by_file = found.setdefault(source, {})
                by_file[file.name] = joined((*by_file.get(file.name, ()), *left))
    return found
