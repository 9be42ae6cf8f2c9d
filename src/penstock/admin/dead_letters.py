"""Dead letters listed, read, chosen."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timezone
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.checkpoint.history import timeline
from penstock.clock import WallTime
from penstock.dead_letters.store import (
    FOLDER,
    RAW_ROW,
    RowRanges,
    checkpoint_of,
    count_rows,
    intersect_ranges,
    log_of,
    merge_ranges,
    ranges_of,
    read_replay,
    replay_numbers,
    subtract_ranges,
)
from penstock.errors import CheckpointUnreadable, SettingsError, UnknownName, did_you_mean
from penstock.handles import CheckpointId, split_replays

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.checkpoint.history import History
    from penstock.control.client import JobDirectory
    from penstock.dead_letters.store import Replay


# ----------------------------------------------------------------------------------------------------
# How the files of dead letters are opened: Parquet, by pyarrow. Knows neither logs nor replays, and needs no Spark.


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFileInfo:
    """A file of letters from outside.

    Attributes:
        rows: letters in it.
        bytes: of the file.
        written: when, by the file's time.
    """

    rows: int
    bytes: int
    written: WallTime


class LetterStore(Protocol):
    """Where files of letters are looked at, by absolute paths."""

    def look(self, path: str) -> LetterFileInfo:
        """What is known of a file without its rows.

        Raises:
            CheckpointUnreadable: it is no file of letters, or is gone.
        """
        ...

    def columns(self, path: str, names: Sequence[str]) -> list[list[Any]]:
        """Columns of all its rows, each as a list.

        Raises:
            CheckpointUnreadable: it is no file of letters, or is gone.
        """
        ...


class ParquetLetterStore:
    """Of files on this machine."""

    def look(self, path: str) -> LetterFileInfo:
        """By the file's footer, and its entry in the folder."""
        rows, status = open_parquet(path).metadata.num_rows, os.stat(path)
        return LetterFileInfo(rows=rows, bytes=status.st_size, written=WallTime(status.st_mtime_ns // 1_000))

    def columns(self, path: str, names: Sequence[str]) -> list[list[Any]]:
        """No other column is read."""
        table = open_parquet(path).read(columns=list(names))
        return [table.column(name).to_pylist() for name in names]


PARQUET: Final = ParquetLetterStore()


def open_parquet(path: str) -> Any:
    """A Parquet file, open.

    Raises:
        CheckpointUnreadable: it is none, or is gone.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
    except (pa.ArrowException, OSError) as error:
        msg = f"{path} cannot be read as dead letters ({error}): put it back, or move it away"
        raise CheckpointUnreadable(msg) from error


# ----------------------------------------------------------------------------------------------------
# Dead letters of a job, from its directory alone: which there are, which were replayed. Needs no Spark, no pipeline.
#
# A letter is a row in a file (:mod:`penstock.sources.dead_letters`); nothing here is stored, all of it follows from
# which files are there and what the log says.

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
    shelf: LetterStore = field(default=PARQUET, repr=False, compare=False)

    @property
    def all(self) -> RowRanges:
        """All places in it."""
        return ((0, self.rows),) if self.rows else ()


@dataclass(frozen=True, kw_only=True)
class DeadLetterQueue:
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
    def named(self) -> Mapping[str, RowRanges]:
        """The letters that some replay names."""
        return replayed_ranges(self.replays)

    @cached_property
    def waiting(self) -> int:
        """Letters that a replay names and the job has yet to read."""
        standing = {file.name for file in self.files if file.stands}
        later = [each for replay in self.replays if replay.number > self.read for each in replay.letters]
        return sum(each.rows for each in later if each.file in standing)


def replayed_ranges(replays: Sequence[Replay]) -> Mapping[str, RowRanges]:
    """Which letters replays name, by file."""
    found: dict[str, list[tuple[int, int]]] = {}
    for replay in replays:
        for each in replay.letters:
            found.setdefault(each.file, []).extend(each.ranges)
    return {file: merge_ranges(spans) for file, spans in found.items()}


def dead_letter_queues(
    job: JobDirectory, history: History | None = None, *, shelf: LetterStore = PARQUET
) -> tuple[DeadLetterQueue, ...]:
    """All dead letters of a job, by uid.

    Raises:
        CheckpointError: the log cannot be read.
        CheckpointUnreadable: a file of dead letters cannot be read.
    """
    history = history or job.read()
    found = {path.split("/")[1] for path in job.filesystem.list(FOLDER) if _is_letters(path)}
    return tuple(_place(job, history, uid, shelf) for uid in sorted(found))


def dead_letter_queue(job: JobDirectory, uid: str | None, *, shelf: LetterStore = PARQUET) -> DeadLetterQueue:
    """The dead letters of this uid; of the only one, if none is given.

    Raises:
        UnknownName: there are none, or more than one and none was named; with the nearest.
        CheckpointError: see :func:`dead_letter_queues`.
    """
    places = {place.uid: place for place in dead_letter_queues(job, shelf=shelf)}
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
    msg = f"job {job.job!r} has no dead letters {uid!r}{did_you_mean(uid, places)}"
    raise UnknownName(msg)


def _is_letters(path: str) -> bool:
    parts = path.split("/")
    return len(parts) == 3 and checkpoint_of(parts[1], parts[2]) is not None  # noqa: PLR2004 - folder, uid, file


def _place(job: JobDirectory, history: History, uid: str, shelf: LetterStore) -> DeadLetterQueue:
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
    read = [split_replays(task.position)[1].get(uid, 0) for task in tasks if task.position is not None]
    return DeadLetterQueue(
        uid=uid,
        folder=_absolute(job, f"{FOLDER}/{uid}"),
        files=tuple(sorted(files, key=lambda file: (file.checkpoint, file.name))),
        replays=_replays(job, uid),
        read=max(read, default=0),
    )


def _file(job: JobDirectory, path: str, checkpoint: CheckpointId, shelf: LetterStore, *, stands: bool) -> LetterFile:
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
    found = (read_replay(job.filesystem, uid, number) for number in replay_numbers(job.filesystem, uid))
    return tuple(replay for replay in found if replay is not None)


def _absolute(job: JobDirectory, path: str) -> str:
    return job.filesystem.url(path).removeprefix("file://")


# ----------------------------------------------------------------------------------------------------- what there is


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterCause:
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


def causes_of(place: DeadLetterQueue) -> tuple[LetterCause, ...]:
    """The letters that stand, by cause and step, most first."""
    counts: dict[tuple[str, str, str, str | None], list[int]] = {}
    for file in place.files:
        named = place.named.get(file.name, ())
        for key, spans in cause_ranges(file).items():
            found = counts.setdefault(key, [0, 0])
            found[0] += count_rows(spans)
            found[1] += count_rows(intersect_ranges(spans, named))
    told = [
        LetterCause(cause=key[0], step=key[1], source=key[2], no_replay=key[3], rows=rows, replayed=replayed)
        for key, (rows, replayed) in counts.items()
    ]
    return tuple(sorted(told, key=lambda why: (-why.rows, why.cause, why.step)))


def cause_ranges(file: LetterFile) -> Mapping[tuple[str, str, str, str | None], RowRanges]:
    """Places of a file by cause, step, source and why they cannot be replayed; of one that stands."""
    if not file.stands:
        return {}
    columns = file.shelf.columns(file.path, WHY)
    found: dict[tuple[str, str, str, str | None], list[tuple[int, int]]] = {}
    for place, key in enumerate(zip(*columns, strict=True)):
        found.setdefault(key, []).append((place, place + 1))
    return {key: merge_ranges(spans) for key, spans in found.items()}


def replayable(place: DeadLetterQueue, *, again: bool = False) -> Mapping[str, Mapping[str, RowRanges]]:
    """By source and file, the letters that it may read again; without ``again`` none that a replay names."""
    found: dict[str, dict[str, RowRanges]] = {}
    for file in place.files:
        gone = () if again else place.named.get(file.name, ())
        for (_, _, source, no_replay), spans in cause_ranges(file).items():
            left = subtract_ranges(spans, gone)
            if no_replay is None and left:
                by_file = found.setdefault(source, {})
                by_file[file.name] = merge_ranges((*by_file.get(file.name, ()), *left))
    return found


# ----------------------------------------------------------------------------------------------------
# Single dead letters: read with pyarrow, told for people, counted by how often they failed. Needs no Spark.
#
# Whether a row failed before is told by where it came from: by topic, partition and offset where it has them, else by
# its content, so that equal rows of a file count as one.

_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One dead letter.

    Attributes:
        id: its file and its place there, ``part-….parquet#3``.
        cause: ``decode``, ``late``, or what the pipeline says.
        error: why, in words.
        step: which gave it up.
        source: where it comes from.
        place: topic, partition, offset and file, as far as they are known.
        event_time: microseconds since 1970, if it is known.
        checkpoint: with which it was published.
        written: when, by the file's time.
        attempts: how often the row has failed.
        replayed: how many replays name this letter.
        raw: the text that could not be decoded, or the row as JSON.
        record: the row as it was.
    """

    id: str
    cause: str
    error: str | None
    step: str
    source: str
    place: Mapping[str, object]
    event_time: int | None
    checkpoint: CheckpointId
    written: WallTime
    attempts: int
    replayed: int
    raw: str
    record: Mapping[str, object]


def letters_of(
    place: DeadLetterQueue, chosen: Mapping[str, RowRanges] | None = None, *, limit: int
) -> tuple[list[Letter], int]:
    """The first letters that stand, oldest first, and how many there are in all.

    Args:
        place: where.
        chosen: by file, those that are wanted; all unless given.
        limit: how many.
    """
    failed = ReplayFailures(place)
    wanted = {file.name: chosen.get(file.name, ()) if chosen is not None else file.all for file in live_files(place)}
    found: list[Letter] = []
    for file in live_files(place):
        if len(found) < limit and wanted[file.name]:
            rows = _rows(file, wanted[file.name])
            found += [_letter(place, file, at, row, failed) for at, row in _first(rows, limit - len(found))]
    return found, sum(map(count_rows, wanted.values()))


def live_files(place: DeadLetterQueue) -> list[LetterFile]:
    """Its files that no rewind has undone."""
    return [file for file in place.files if file.stands]


def _first(rows: Iterator[tuple[int, dict[str, Any]]], count: int) -> Iterator[tuple[int, dict[str, Any]]]:
    for _, row in zip(range(count), rows, strict=False):
        yield row


def _rows(file: LetterFile, spans: RowRanges, columns: list[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file at some places, a thousand at a time."""
    at = 0
    for batch in open_parquet(file.path).iter_batches(batch_size=_ROWS, columns=columns):
        for start, end in intersect_ranges(spans, ((at, at + batch.num_rows),)):
            part = batch.slice(start - at, end - start).to_pylist()
            yield from enumerate(part, start=start)
        at += batch.num_rows


def _letter(place: DeadLetterQueue, file: LetterFile, at: int, row: dict[str, Any], failed: ReplayFailures) -> Letter:
    named = [each for replay in place.replays for each in replay.letters if each.file == file.name]
    record = row[RAW_ROW]
    return Letter(
        id=f"{file.name}#{at}",
        cause=row["cause"],
        error=row["error"],
        step=row["step"],
        source=row["source"],
        place={name: value for name, value in row["place"].items() if value is not None},
        event_time=_micros(row["event_time"]),
        checkpoint=file.checkpoint,
        written=file.written,
        attempts=1 + failed.before(row, file.checkpoint),
        replayed=sum(bool(intersect_ranges(each.ranges, ((at, at + 1),))) for each in named),
        raw=_raw(record, row["undecoded"]),
        record=_told(record),
    )


class ReplayFailures:
    """How often a row was replayed before it failed again.

    Args:
        place: whose replays are looked at; the letters that they name are read.
    """

    def __init__(self, place: DeadLetterQueue) -> None:
        self._commands: dict[object, dict[str, CheckpointId]] = {}
        files = {file.name: file for file in place.files}
        for replay in place.replays:
            for each in replay.letters:
                if each.file in files:
                    for _, row in _rows(files[each.file], each.ranges, ["place", RAW_ROW]):
                        self._commands.setdefault(_key(row), {}).setdefault(replay.command, replay.after)

    def before(self, row: Mapping[str, Any], checkpoint: CheckpointId) -> int:
        """By how many commands a row was replayed before a checkpoint."""
        if not self._commands:
            return 0
        return sum(after < checkpoint for after in self._commands.get(_key(row), {}).values())


def failed_again(place: DeadLetterQueue) -> int:
    """How many letters are of rows that were replayed before."""
    if not place.replays:
        return 0
    failed = ReplayFailures(place)
    rows = ((file, row) for file in live_files(place) for _, row in _rows(file, file.all, ["place", RAW_ROW]))
    return sum(failed.before(row, file.checkpoint) > 0 for file, row in rows)


def _key(row: Mapping[str, Any]) -> object:
    place = row["place"]
    if place["offset"] is not None:
        return place["topic"], place["partition"], place["offset"]
    return place["file"], json.dumps(_told(row[RAW_ROW]), sort_keys=True)


def select_by_sql(spark: SparkSession, place: DeadLetterQueue, where: str) -> Mapping[str, RowRanges]:
    """By file, the letters for which SQL holds; its columns are those of a letter, ``checkpoint`` and ``written``.

    Raises:
        SettingsError: it is no condition on these columns.
    """
    from pyspark.errors import PySparkException

    files = [file.path for file in live_files(place)]
    if not files:
        return {}
    frame = spark.read.option("mergeSchema", "true").option("__globPaths__", "false").parquet(*files)
    frame = frame.selectExpr(
        "*",
        r"CAST(regexp_extract(_metadata.file_name, '-([0-9]+)-[0-9]+-[0-9]+[.][^/]*$', 1) AS BIGINT) AS checkpoint",
        "_metadata.file_modification_time AS written",
        "_metadata.file_name AS _letters",
        "_metadata.row_index AS _at",
    )
    try:
        rows = frame.where(where).select("_letters", "_at").collect()
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        msg = f"--where {where!r}: {first}; the columns are {', '.join(frame.columns[:-2])}"
        raise SettingsError(msg) from error
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["_letters"], []).append(row["_at"])
    return {file: ranges_of(places) for file, places in found.items()}


# -------------------------------------------------------------------------------------------------------- for people


def _raw(record: Mapping[str, Any], undecoded: str | None) -> str:
    if undecoded is None:
        return json.dumps(_told(record), ensure_ascii=False)
    value = record.get(undecoded)
    return "NULL" if value is None else str(_told(value))


def _told(value: Any) -> Any:
    """A value as JSON has it; bytes as text, with what is none of UTF-8 as escapes."""
    match value:
        case bytes():
            return value.decode("utf-8", errors="backslashreplace")
        case dict():
            return {str(name): _told(each) for name, each in value.items()}
        case list() | tuple():
            return [_told(each) for each in value]
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return str(value)
        case _:
            return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _micros(at: datetime | None) -> int | None:
    if at is None:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
    since = at - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
