"""Whether replays that a start has yet to read can be read, with the letters they name. Changes nothing; no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.checkpoint.timeline import timeline
from penstock.errors import CheckpointUnreadable, StateIncompatible
from penstock.handles import apart
from penstock.operate.files.checking import Fault, Problem
from penstock.operate.letters.shelf import parquet
from penstock.sources.dead_letters import FOLDER, REPLAYS, Letters, checkpoint_of, numbers, read_replay, replay_path

if TYPE_CHECKING:
    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.history import History
    from penstock.checkpoint.timeline import Timeline
    from penstock.filesystem.base import FileSystem


def replay_problems(filesystem: FileSystem, history: History, *, quick: bool) -> Iterator[Problem]:
    """What is wrong with the replays above those that the next start's checkpoint has read, and with their letters.

    A start that begins empty reads none of them. With ``quick`` no file of letters is opened.
    """
    try:
        point = history.restore_point
    except CheckpointUnreadable:
        return  # told elsewhere
    if point is None:
        return
    line = timeline(history, point.checkpoint)
    listed = frozenset(filesystem.list(FOLDER))
    for uid in sorted({path.split("/")[1] for path in listed if path.split("/")[2:3] == [REPLAYS]}):
        yield from _of(filesystem, uid, _read_by(point, uid), listed, line, quick=quick)


def _read_by(point: Manifest, uid: str) -> int:
    read = (apart(task.position)[1].get(uid, 0) for task in point.tasks if task.position is not None)
    return max(read, default=0)


def _of(
    filesystem: FileSystem, uid: str, read: int, listed: frozenset[str], line: Timeline, *, quick: bool
) -> Iterator[Problem]:
    following = read + 1
    for number in (each for each in numbers(filesystem, uid) if each > read):
        if number != following:
            message = f"is not there, so replay {number} behind it is never read"
            yield Problem(path=replay_path(uid, following), fault=Fault.MISSING, message=message)
        following = number + 1
        try:
            replay = read_replay(filesystem, uid, number)
        except StateIncompatible as error:
            yield Problem(path=replay_path(uid, number), fault=Fault.UNREADABLE, message=str(error))
            continue
        for each in replay.letters if replay is not None else ():
            checkpoint = checkpoint_of(uid, each.file)
            if checkpoint is None or line.has(checkpoint):  # else it is passed over
                yield from _letters(filesystem, f"{FOLDER}/{uid}/{each.file}", each, number, listed, quick=quick)


def _letters(
    filesystem: FileSystem, path: str, letters: Letters, number: int, listed: frozenset[str], *, quick: bool
) -> Iterator[Problem]:
    if path not in listed:
        message = f"is not there; replay {number} names {letters.rows} dead letters in it, which are left out"
        yield Problem(path=path, fault=Fault.MISSING, message=message)
        return
    if quick:
        return
    try:
        rows = parquet(filesystem.url(path).removeprefix("file://")).metadata.num_rows
    except CheckpointUnreadable as error:
        yield Problem(path=path, fault=Fault.UNREADABLE, message=str(error))
        return
    if any(end > rows for _, end in letters.ranges):
        message = f"holds {rows} dead letters; replay {number} names one behind its end"
        yield Problem(path=path, fault=Fault.REFERENCE, message=message)
