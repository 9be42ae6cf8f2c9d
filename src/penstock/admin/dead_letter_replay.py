"""Have dead letters read again, or drop them: the only writer of replays. Works on a running job and on a dead one.

A replay is a file that is created if absent, under the next number: of two commands at once one finds its number taken
and looks again, so no letter is named twice unless that is asked for. The job reads replays in the order of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.admin.dead_letters import (
    PARQUET,
    DeadLetterQueue,
    LetterStore,
    causes_of,
    dead_letter_queue,
    replayable,
    replayed_ranges,
)
from penstock.checkpoint.history import timeline
from penstock.clock import MAX_WATERMARK
from penstock.control.client import process_name
from penstock.dead_letters.store import (
    FOLDER,
    MOST_BYTES,
    MOST_LETTERS,
    LetterRange,
    Replay,
    RowRanges,
    count_rows,
    encode_replay,
    intersect_ranges,
    merge_ranges,
    replay_path,
    subtract_ranges,
    take_first,
)
from penstock.errors import RequestRefused
from penstock.filesystem.base import Created, UnknownOutcome
from penstock.handles import CheckpointId, new_id, split_replays

if TYPE_CHECKING:
    from penstock.admin.dead_letters import LetterFile
    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.history import History
    from penstock.clock import WallTime
    from penstock.control.client import JobDirectory

_TRIES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What a command has written.

    Attributes:
        uid: of the dead letters.
        source: which reads them; ``None`` if there was nothing to write.
        rows: letters.
        replays: numbers of the files.
        left: letters that were chosen, and that earlier replays name already.
    """

    uid: str
    source: str | None
    rows: int
    replays: tuple[int, ...]
    left: int


def replay(
    job: JobDirectory,
    uid: str | None,
    *,
    choose: Callable[[DeadLetterQueue], Mapping[str, RowRanges]] | None = None,
    again: bool = False,
    command: str | None = None,
    shelf: LetterStore = PARQUET,
) -> ReplayResult:
    """Have the job read dead letters again: at once if it runs, else at its next start. Each once, exactly-once.

    Args:
        job: whose.
        uid: which; may be left out if there is one only.
        choose: by file, the letters that are meant; all unless given.
        again: also those that an earlier replay names.
        command: what its replays have in common; random unless given.
        shelf: that opens the files of letters.

    Raises:
        UnknownName: there are no such dead letters.
        RequestRefused: none of them can be read again; the message says why.
        CheckpointError: the directory cannot be read or written.
    """
    history = job.read()
    place = dead_letter_queue(job, uid, shelf=shelf)
    chosen = None if choose is None else choose(place)
    source = _source(history, place, chosen)
    wanted = _among(_by_reader(history, place)[source], chosen)
    command, written, rows = command or new_id(), [], 0
    while True:
        ours = [each for each in place.replays if each.command == command]
        done = replayed_ranges(ours if again else place.replays)
        left = {file: subtract_ranges(spans, done.get(file, ())) for file, spans in wanted.items()}
        part = _batch(left, _most(place, wanted))
        if not part:
            break
        made = _replay(job, history, place, source, command, part)
        if _create(job, made):
            written.append(made.number)
            rows += made.rows
        place = dead_letter_queue(job, place.uid, shelf=shelf)
    return ReplayResult(
        uid=place.uid,
        source=source,
        rows=rows,
        replays=tuple(written),
        left=sum(map(count_rows, wanted.values())) - rows,
    )


def _source(history: History, place: DeadLetterQueue, chosen: Mapping[str, RowRanges] | None) -> str:
    """The one source that is to read letters again.

    Raises:
        RequestRefused: there is none.
    """
    found = {source: letters for source, letters in _by_reader(history, place).items() if _among(letters, chosen)}
    if not found:
        raise RequestRefused(_why_none(place, chosen))
    if len(found) > 1:
        msg = f"they come from several sources ({', '.join(sorted(found))}): choose with --where \"source = '…'\""
        raise RequestRefused(msg)
    (source,) = found
    point = history.restore_point
    tasks = {task.task: task for task in point.tasks} if point else {}
    if source not in tasks or tasks[source].position is None:
        raise RequestRefused(_why_gone(history, source))
    if point is not None and place.uid not in {step.uid for step in point.steps}:
        raise RequestRefused(_why_unread(history, point, place))
    if MAX_WATERMARK in tasks[source].watermarks:
        msg = (
            f"source {source!r} of job {history.job!r} has ended, for it was bounded or drained, and reads no more "
            f"rows: go back to a checkpoint before its end (penstock rewind {history.job} CHECKPOINT) and replay then, "
            "or read the letters' files in another pipeline, as docs/dead-letters.md shows"
        )
        raise RequestRefused(msg)
    return source


def _why_gone(history: History, source: str) -> str:
    """Who wants rows of a source that is not there any more, and has them read anew by putting it back."""
    point = history.restore_point
    where = f"checkpoint {point.checkpoint}" if point else "empty state"
    reads = sorted(task.task for task in point.tasks if task.position is not None) if point else []
    return (
        f"they come from source {source!r}, which is not in {where}, where the next start of job {history.job!r} goes "
        f"on (sources there: {', '.join(reads) or 'none'}): a pipeline that reads {source!r} again begins it anew, "
        "these rows included; or read the letters' files in another pipeline, as docs/dead-letters.md shows"
    )


def _why_unread(history: History, point: Manifest, place: DeadLetterQueue) -> str:
    """A source looks for replays where its pipeline's dead letters go, and nowhere else."""
    return (
        f"nothing puts dead letters there any more: job {history.job!r} had no step {place.uid!r} at checkpoint "
        f"{point.checkpoint}, where its next start goes on, so no source would read a replay of them. Give the step "
        f"its uid {place.uid!r} back and run the job, or read the letters' files in another pipeline, as "
        "docs/dead-letters.md shows"
    )


def _by_reader(history: History, place: DeadLetterQueue) -> Mapping[str, Mapping[str, RowRanges]]:
    """Letters by the source that can read them again and by file: it may have another uid now than they say."""
    point = history.restore_point
    tasks = {task.task: task.position for task in point.tasks if task.position is not None} if point else {}
    reads = [uid for uid, position in tasks.items() if place.uid in split_replays(position)[1]]
    found: dict[str, dict[str, RowRanges]] = {}
    for source, letters in replayable(place, again=True).items():
        reader = reads[0] if source not in tasks and len(reads) == 1 else source
        for file, spans in letters.items():
            by_file = found.setdefault(reader, {})
            by_file[file] = merge_ranges((*by_file.get(file, ()), *spans))
    return {reader: dict(sorted(by_file.items(), key=_oldest(place))) for reader, by_file in found.items()}


def _oldest(place: DeadLetterQueue) -> Callable[[tuple[str, RowRanges]], int]:
    order = {file.name: at for at, file in enumerate(place.files)}
    return lambda item: order[item[0]]


def _why_none(place: DeadLetterQueue, chosen: Mapping[str, RowRanges] | None) -> str:
    if chosen is not None and not any(chosen.values()):
        return f"no dead letter of {place.uid!r} is among those that were asked for"
    told = sorted({f"{why.cause}: {why.no_replay}" for why in causes_of(place) if why.no_replay is not None})
    if not told:
        return f"all dead letters of {place.uid!r} are of a time that a rewind has undone: their rows are read again"
    return f"the dead letters of {place.uid!r} cannot be replayed ({'; '.join(told)}); docs/dead-letters.md has ways"


def _among(letters: Mapping[str, RowRanges], chosen: Mapping[str, RowRanges] | None) -> dict[str, RowRanges]:
    if chosen is None:
        return dict(letters)
    found = {file: intersect_ranges(spans, chosen.get(file, ())) for file, spans in letters.items()}
    return {file: spans for file, spans in found.items() if spans}


def _most(place: DeadLetterQueue, letters: Mapping[str, RowRanges]) -> int:
    """How many letters one replay may name, so that their files' share of it is not too large for a batch."""
    sizes = [file.bytes / file.rows for file in place.files if file.rows and file.name in letters]
    return max(1, min(MOST_LETTERS, int(MOST_BYTES / max(sizes, default=1.0))))


def _batch(letters: Mapping[str, RowRanges], most: int) -> tuple[LetterRange, ...]:
    """The first so many letters, oldest file first."""
    batch: list[LetterRange] = []
    room = most
    for file, spans in letters.items():
        if spans and room > 0:
            first, _ = next(take_first(spans, room))
            batch.append(LetterRange(file=file, ranges=first))
            room -= count_rows(first)
    return tuple(batch)


def _replay(
    job: JobDirectory,
    history: History,
    place: DeadLetterQueue,
    source: str,
    command: str,
    letters: tuple[LetterRange, ...],
) -> Replay:
    point = history.restore_point
    return Replay(
        number=max(place.read, *(each.number for each in place.replays), 0) + 1,
        command=command,
        uid=place.uid,
        source=source,
        after=point.checkpoint if point else CheckpointId(-1),
        at=job.now(),
        by=process_name(),
        letters=letters,
    )


def _create(job: JobDirectory, made: Replay) -> bool:
    """Whether it has its number now; an answer that was lost is asked for again, with the same bytes."""
    path, data = replay_path(made.uid, made.number), encode_replay(made)
    for _ in range(_TRIES):
        try:
            if job.filesystem.create(path, data) is Created.CREATED:
                return True
            return job.filesystem.read(path) == data
        except UnknownOutcome:
            continue
    return job.filesystem.read(path) == data


# ----------------------------------------------------------------------------------------------------------- dropping


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPlan:
    """What a drop deletes, and what it must not.

    Attributes:
        uid: of the dead letters.
        files: that go.
        kept: old enough, but a checkpoint could be restored that would have the job read them again.
    """

    uid: str
    files: tuple[LetterFile, ...]
    kept: tuple[LetterFile, ...]


def plan_drop(history: History, place: DeadLetterQueue, before: WallTime) -> DropPlan:
    """The files that were written before a time, less those that a replay may still need; pure.

    A job that begins again at a checkpoint reads the replays that were not read by then, of letters that were there.
    """
    begins = [
        (_read_at(manifest, place.uid), checkpoint, timeline(history, checkpoint))
        for checkpoint, manifest in history.restorable.items()
    ]
    last = {each.file: replay.number for replay in place.replays for each in replay.letters}

    def is_needed(file: LetterFile) -> bool:
        number, at = last.get(file.name, 0), file.checkpoint
        return any(number > read and at <= checkpoint and line.has(at) for read, checkpoint, line in begins)

    old = [file for file in place.files if file.written < before]
    return DropPlan(
        uid=place.uid,
        files=tuple(file for file in old if not is_needed(file)),
        kept=tuple(file for file in old if is_needed(file)),
    )


def _read_at(manifest: Manifest, uid: str) -> int:
    """How many replays were read by a checkpoint."""
    found = [split_replays(task.position)[1].get(uid, 0) for task in manifest.tasks if task.position is not None]
    return max(found, default=0)


def drop(job: JobDirectory, dropping: DropPlan) -> None:
    """Delete the files, oldest first."""
    for file in dropping.files:
        job.filesystem.delete(f"{FOLDER}/{dropping.uid}/{file.name}")
