"""Replay or drop dead letters of a running or stopped job; the only writer of replays.

A replay is a file that is created if absent, under the next number. If two commands run at once, one finds its number
taken and reads the queue again, so no letter is named twice unless ``again`` is given. The job reads replays in order.
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
    replays_read,
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
"""Attempts to create a replay whose outcome is unknown."""


# ---- replaying -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What a command has written.

    Attributes:
        uid: of the dead letters.
        source: the source that reads them; ``None`` if there was nothing to write.
        rows: number of letters.
        replays: numbers of the files.
        left: number of chosen letters that earlier replays already name.
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
    store: LetterStore = PARQUET,
) -> ReplayResult:
    """Have the job read dead letters again, exactly-once: now if it runs, else at its next start.

    Args:
        job: the job's directory.
        uid: of the dead letters; may be ``None`` if the job has only one queue.
        choose: returns the chosen letters by file; all unless given.
        again: include letters that an earlier replay names.
        command: id that its replays have in common; random unless given.
        store: reads the files of letters.

    Raises:
        UnknownName: there are no such dead letters.
        RequestRefused: none of them can be replayed; the message says why.
        CheckpointError: the directory cannot be read or written.
    """
    history = job.read()
    queue = dead_letter_queue(job, uid, store=store)
    chosen = None if choose is None else choose(queue)
    source = _source(history, queue, chosen)
    wanted = _chosen_of(_by_reader(history, queue)[source], chosen)
    command, written, rows = command or new_id(), [], 0
    while True:
        own = [each for each in queue.replays if each.command == command]
        named = replayed_ranges(own if again else queue.replays)
        left = {file: subtract_ranges(ranges, named.get(file, ())) for file, ranges in wanted.items()}
        batch = _next_letters(left, _max_letters(queue, wanted))
        if not batch:
            break
        next_replay = _make_replay(job, history, queue, source, command, batch)
        if _create(job, next_replay):
            written.append(next_replay.number)
            rows += next_replay.rows
        queue = dead_letter_queue(job, queue.uid, store=store)
    return ReplayResult(
        uid=queue.uid,
        source=source,
        rows=rows,
        replays=tuple(written),
        left=sum(map(count_rows, wanted.values())) - rows,
    )


def _source(history: History, queue: DeadLetterQueue, chosen: Mapping[str, RowRanges] | None) -> str:
    """Return the one source that is to read the letters again.

    Raises:
        RequestRefused: there is none.
    """
    found = {source: letters for source, letters in _by_reader(history, queue).items() if _chosen_of(letters, chosen)}
    if not found:
        raise RequestRefused(_why_none(queue, chosen))
    if len(found) > 1:
        first, *_ = names = sorted(found)
        msg = (
            f"The dead letters of {queue.uid!r} come from several sources ({', '.join(names)}). Choose one, as in "
            f"--where \"source = '{first}'\"."
        )
        raise RequestRefused(msg)
    (source,) = found
    point = history.restore_point
    tasks = {task.task: task for task in point.tasks} if point else {}
    if source not in tasks or tasks[source].position is None:
        raise RequestRefused(_why_gone(history, source))
    if point is not None and queue.uid not in {step.uid for step in point.steps}:
        raise RequestRefused(_why_unread(history, point, queue))
    if MAX_WATERMARK in tasks[source].watermarks:
        msg = (
            f"Source {source!r} of job {history.job!r} has ended, for it was bounded or drained, and reads no more "
            f"rows. Go back to a checkpoint before its end (penstock rewind {history.job} CHECKPOINT) and replay "
            "then, or read the letters' files in another pipeline, as docs/dead-letters.md shows."
        )
        raise RequestRefused(msg)
    return source


def _why_gone(history: History, source: str) -> str:
    """A source that is not in the restore point reads all its rows if a pipeline puts it back."""
    point = history.restore_point
    where = f"checkpoint {point.checkpoint}" if point else "empty state"
    reads = sorted(task.task for task in point.tasks if task.position is not None) if point else []
    return (
        f"The dead letters come from source {source!r}, which is not in {where}, where the next start of job "
        f"{history.job!r} goes on (sources there: {', '.join(reads) or 'none'}). A pipeline that reads {source!r} "
        "again reads all of it, these rows included. Or read the letters' files in another pipeline, as "
        "docs/dead-letters.md shows."
    )


def _why_unread(history: History, point: Manifest, queue: DeadLetterQueue) -> str:
    """A source reads replays only in the folders of its pipeline's dead letters."""
    return (
        f"No step writes dead letters {queue.uid!r} any more. Job {history.job!r} had no step {queue.uid!r} at "
        f"checkpoint {point.checkpoint}, where its next start goes on, so no source would read a replay of them. Give "
        f"the step its uid {queue.uid!r} back and run the job, or read the letters' files in another pipeline, as "
        "docs/dead-letters.md shows."
    )


def _by_reader(history: History, queue: DeadLetterQueue) -> Mapping[str, Mapping[str, RowRanges]]:
    """The letters by file and by the source that can read them, whose uid may have changed since."""
    point = history.restore_point
    tasks = {task.task: task.position for task in point.tasks if task.position is not None} if point else {}
    reads = [uid for uid, position in tasks.items() if queue.uid in split_replays(position)[1]]
    found: dict[str, dict[str, RowRanges]] = {}
    for source, letters in replayable(queue, again=True).items():
        reader = reads[0] if source not in tasks and len(reads) == 1 else source
        for file, ranges in letters.items():
            by_file = found.setdefault(reader, {})
            by_file[file] = merge_ranges((*by_file.get(file, ()), *ranges))
    return {reader: dict(sorted(by_file.items(), key=_oldest(queue))) for reader, by_file in found.items()}


def _oldest(queue: DeadLetterQueue) -> Callable[[tuple[str, RowRanges]], int]:
    order = {file.name: at for at, file in enumerate(queue.files)}
    return lambda item: order[item[0]]


def _why_none(queue: DeadLetterQueue, chosen: Mapping[str, RowRanges] | None) -> str:
    if chosen is not None and not any(chosen.values()):
        return f"No dead letter of {queue.uid!r} is among those that were asked for."
    reasons = sorted({f"{each.cause}: {each.no_replay}" for each in causes_of(queue) if each.no_replay is not None})
    if not reasons:
        return f"All dead letters of {queue.uid!r} are of a time that a rewind has undone. Their rows are read again."
    return f"The dead letters of {queue.uid!r} cannot be replayed ({'; '.join(reasons)}). See docs/dead-letters.md."


def _chosen_of(letters: Mapping[str, RowRanges], chosen: Mapping[str, RowRanges] | None) -> dict[str, RowRanges]:
    if chosen is None:
        return dict(letters)
    found = {file: intersect_ranges(ranges, chosen.get(file, ())) for file, ranges in letters.items()}
    return {file: ranges for file, ranges in found.items() if ranges}


def _max_letters(queue: DeadLetterQueue, letters: Mapping[str, RowRanges]) -> int:
    """How many letters one replay may name, so that they fit into a batch."""
    sizes = [file.bytes / file.rows for file in queue.files if file.rows and file.name in letters]
    return max(1, min(MOST_LETTERS, int(MOST_BYTES / max(sizes, default=1.0))))


def _next_letters(letters: Mapping[str, RowRanges], most: int) -> tuple[LetterRange, ...]:
    """The first ``most`` letters, oldest file first."""
    batch: list[LetterRange] = []
    room = most
    for file, ranges in letters.items():
        if ranges and room > 0:
            first, _ = next(take_first(ranges, room))
            batch.append(LetterRange(file=file, ranges=first))
            room -= count_rows(first)
    return tuple(batch)


def _make_replay(
    job: JobDirectory,
    history: History,
    queue: DeadLetterQueue,
    source: str,
    command: str,
    letters: tuple[LetterRange, ...],
) -> Replay:
    point = history.restore_point
    return Replay(
        number=max(queue.read, *(each.number for each in queue.replays), 0) + 1,
        command=command,
        uid=queue.uid,
        source=source,
        after=point.checkpoint if point else CheckpointId(-1),
        at=job.now(),
        by=process_name(),
        letters=letters,
    )


def _create(job: JobDirectory, replay: Replay) -> bool:
    """Create the file of a replay; ``False`` if its number is taken. An unknown outcome is tried again."""
    path, data = replay_path(replay.uid, replay.number), encode_replay(replay)
    for _ in range(_TRIES):
        try:
            if job.filesystem.create(path, data) is Created.CREATED:
                return True
            return job.filesystem.read(path) == data
        except UnknownOutcome:
            continue
    return job.filesystem.read(path) == data


# ---- dropping --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPlan:
    """The files that a drop deletes, and those that it must keep.

    Attributes:
        uid: of the dead letters.
        files: those that are deleted.
        kept: old enough, but a restore of a checkpoint would have the job read them again.
    """

    uid: str
    files: tuple[LetterFile, ...]
    kept: tuple[LetterFile, ...]


def plan_drop(history: History, queue: DeadLetterQueue, before: WallTime) -> DropPlan:
    """Return the files that were written before a time, without those that a replay may still need.

    A job that starts at a checkpoint reads the replays that it had not read by then, of letters that existed.
    """
    starts = [
        (replays_read(manifest, queue.uid), checkpoint, timeline(history, checkpoint))
        for checkpoint, manifest in history.restorable.items()
    ]
    last = {each.file: replay.number for replay in queue.replays for each in replay.letters}

    def is_needed(file: LetterFile) -> bool:
        number, at = last.get(file.name, 0), file.checkpoint
        return any(number > read and at <= checkpoint and line.has(at) for read, checkpoint, line in starts)

    old = [file for file in queue.files if file.written < before]
    return DropPlan(
        uid=queue.uid,
        files=tuple(file for file in old if not is_needed(file)),
        kept=tuple(file for file in old if is_needed(file)),
    )


def drop(job: JobDirectory, plan: DropPlan) -> None:
    """Delete the files of a plan, oldest first."""
    for file in plan.files:
        job.filesystem.delete(f"{FOLDER}/{plan.uid}/{file.name}")
