"""Dead letters of a job, from its directory alone: listed, read one by one, selected by SQL."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timezone
from decimal import Decimal
from functools import cached_property
from itertools import islice
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
from penstock.errors import CheckpointUnreadable, SettingsError, UnknownName, did_you_mean, sentence
from penstock.handles import CheckpointId, split_replays
from penstock.spark.sql import STRICT_READ

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.history import History
    from penstock.control.client import JobDirectory
    from penstock.dead_letters.store import Replay


# ---- files of letters ------------------------------------------------------------------------------------------------
# Parquet files, read with pyarrow.


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFileInfo:
    """A file of letters without its content.

    Attributes:
        rows: number of letters.
        bytes: size of the file.
        written: modification time of the file.
    """

    rows: int
    bytes: int
    written: WallTime


class LetterStore(Protocol):
    """Reads files of letters by their absolute paths."""

    def file_info(self, path: str) -> LetterFileInfo:
        """Return what is known of a file without reading its rows.

        Raises:
            CheckpointUnreadable: it is not a file of letters, or does not exist.
        """
        ...

    def columns(self, path: str, names: Sequence[str]) -> list[list[Any]]:
        """Return these columns of all rows, each as a list.

        Raises:
            CheckpointUnreadable: it is not a file of letters, or does not exist.
        """
        ...


class ParquetLetterStore:
    """Parquet files on this machine."""

    def file_info(self, path: str) -> LetterFileInfo:
        """Read the file's footer and its entry in the folder."""
        rows, status = open_parquet(path).metadata.num_rows, os.stat(path)
        return LetterFileInfo(rows=rows, bytes=status.st_size, written=WallTime(status.st_mtime_ns // 1_000))

    def columns(self, path: str, names: Sequence[str]) -> list[list[Any]]:
        """Read only these columns."""
        table = open_parquet(path).read(columns=list(names))
        return [table.column(name).to_pylist() for name in names]


PARQUET: Final = ParquetLetterStore()


def open_parquet(path: str) -> Any:
    """Open a Parquet file.

    Raises:
        CheckpointUnreadable: it is not one, or does not exist.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
    except (pa.ArrowException, OSError) as error:
        msg = f"{path} cannot be read as dead letters: {sentence(error)} Put it back, or move it away."
        raise CheckpointUnreadable(msg) from error


# ---- queues of dead letters ------------------------------------------------------------------------------------------
# A letter is a row in a file. All figures follow from the files and the log; nothing is stored.

CAUSE_COLUMNS: Final = ("cause", "step", "source", "no_replay")
"""The columns by which letters are grouped; see ``cause_ranges``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFile:
    """One file of dead letters.

    Attributes:
        name: of the file.
        path: absolute.
        checkpoint: the one that published it.
        rows: number of letters.
        bytes: size of the file.
        written: modification time of the file.
        is_live: it belongs to this log, and no rewind has undone it.
        store: reads it.
    """

    name: str
    path: str
    checkpoint: CheckpointId
    rows: int
    bytes: int
    written: WallTime
    is_live: bool
    store: LetterStore = field(default=PARQUET, repr=False, compare=False)

    @property
    def all(self) -> RowRanges:
        """All rows of the file, as a range."""
        return ((0, self.rows),) if self.rows else ()


@dataclass(frozen=True, kw_only=True)
class DeadLetterQueue:
    """The dead letters of one uid.

    Attributes:
        uid: of ``stream.dead_letter(uid)``.
        folder: of the files.
        files: by checkpoint.
        replays: by number.
        read: number of the last replay that the job has read, by its newest checkpoint.
    """

    uid: str
    folder: str
    files: tuple[LetterFile, ...]
    replays: tuple[Replay, ...]
    read: int

    @cached_property
    def replayed(self) -> Mapping[str, RowRanges]:
        """The letters that a replay names."""
        return replayed_ranges(self.replays)

    @cached_property
    def waiting(self) -> int:
        """The number of letters that a replay names and the job has yet to read."""
        live = {file.name for file in self.files if file.is_live}
        later = [each for replay in self.replays if replay.number > self.read for each in replay.letters]
        return sum(each.rows for each in later if each.file in live)


def replays_read(manifest: Manifest, uid: str) -> int:
    """Return the number of the last replay that was read at a checkpoint, 0 if none was."""
    read = (split_replays(task.position)[1].get(uid, 0) for task in manifest.tasks if task.position is not None)
    return max(read, default=0)


def replayed_ranges(replays: Sequence[Replay]) -> Mapping[str, RowRanges]:
    """Return the letters that replays name, by file."""
    found: dict[str, list[tuple[int, int]]] = {}
    for replay in replays:
        for each in replay.letters:
            found.setdefault(each.file, []).extend(each.ranges)
    return {file: merge_ranges(ranges) for file, ranges in found.items()}


def dead_letter_queues(
    job: JobDirectory, history: History | None = None, *, store: LetterStore = PARQUET
) -> tuple[DeadLetterQueue, ...]:
    """Return all dead letters of a job, by uid.

    Raises:
        CheckpointError: the log cannot be read.
        CheckpointUnreadable: a file of dead letters cannot be read.
    """
    history = history or job.read()
    found = {path.split("/")[1] for path in job.filesystem.list(FOLDER) if _is_letters(path)}
    return tuple(_read_queue(job, history, uid, store) for uid in sorted(found))


def dead_letter_queue(job: JobDirectory, uid: str | None, *, store: LetterStore = PARQUET) -> DeadLetterQueue:
    """Return the dead letters of this uid, or the only ones if ``uid`` is ``None``.

    Raises:
        UnknownName: there are none, or several and ``uid`` is ``None``; the message names the nearest.
        CheckpointError: see ``dead_letter_queues``.
    """
    queues = {queue.uid: queue for queue in dead_letter_queues(job, store=store)}
    if uid in queues:
        return queues[uid]
    if not queues:
        msg = f"Job {job.job!r} has no dead letters. A pipeline keeps them with stream.dead_letter(uid)."
        raise UnknownName(msg)
    if uid is None and len(queues) == 1:
        return next(iter(queues.values()))
    if uid is None:
        msg = f"Job {job.job!r} has dead letters of several steps. Name one of {', '.join(queues)}."
        raise UnknownName(msg)
    msg = f"Job {job.job!r} has no dead letters {uid!r}{did_you_mean(uid, queues)}"
    raise UnknownName(msg)


def _is_letters(path: str) -> bool:
    parts = path.split("/")
    return len(parts) == 3 and checkpoint_of(parts[1], parts[2]) is not None  # noqa: PLR2004 - folder, uid, file


def _read_queue(job: JobDirectory, history: History, uid: str, store: LetterStore) -> DeadLetterQueue:
    point = history.restore_point
    on_timeline = timeline(history, point.checkpoint if point else None).has
    files = []
    for path in job.filesystem.list(f"{FOLDER}/{uid}"):
        if not _is_letters(path):
            continue
        name = path.rpartition("/")[2]
        checkpoint = checkpoint_of(uid, name)
        assert checkpoint is not None  # _is_letters says so
        is_of_log = (history.log_id or "").startswith(log_of(uid, name))
        files.append(_letter_file(job, path, checkpoint, store, is_live=is_of_log and on_timeline(checkpoint)))
    return DeadLetterQueue(
        uid=uid,
        folder=_absolute(job, f"{FOLDER}/{uid}"),
        files=tuple(sorted(files, key=lambda file: (file.checkpoint, file.name))),
        replays=_replays(job, uid),
        read=replays_read(point, uid) if point else 0,
    )


def _letter_file(
    job: JobDirectory, path: str, checkpoint: CheckpointId, store: LetterStore, *, is_live: bool
) -> LetterFile:
    absolute = _absolute(job, path)
    info = store.file_info(absolute)
    return LetterFile(
        name=path.rpartition("/")[2],
        path=absolute,
        checkpoint=checkpoint,
        rows=info.rows,
        bytes=info.bytes,
        written=info.written,
        is_live=is_live,
        store=store,
    )


def _replays(job: JobDirectory, uid: str) -> tuple[Replay, ...]:
    found = (read_replay(job.filesystem, uid, number) for number in replay_numbers(job.filesystem, uid))
    return tuple(replay for replay in found if replay is not None)


def _absolute(job: JobDirectory, path: str) -> str:
    return job.filesystem.url(path).removeprefix("file://")


# ---- what there is ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterCause:
    """The letters of one cause and step.

    Attributes:
        cause: ``decode``, ``late``, or as the pipeline calls it.
        step: the one that gave the rows up.
        source: the one that read them.
        rows: number of letters.
        replayed: how many of them a replay names.
        no_replay: why they cannot be replayed; ``None`` if they can.
    """

    cause: str
    step: str
    source: str
    rows: int
    replayed: int
    no_replay: str | None


def causes_of(queue: DeadLetterQueue) -> tuple[LetterCause, ...]:
    """Return the live letters by cause and step, the most frequent first."""
    counts: dict[tuple[str, str, str, str | None], list[int]] = {}
    for file in queue.files:
        named = queue.replayed.get(file.name, ())
        for key, ranges in cause_ranges(file).items():
            found = counts.setdefault(key, [0, 0])
            found[0] += count_rows(ranges)
            found[1] += count_rows(intersect_ranges(ranges, named))
    causes = [
        LetterCause(cause=key[0], step=key[1], source=key[2], no_replay=key[3], rows=rows, replayed=replayed)
        for key, (rows, replayed) in counts.items()
    ]
    return tuple(sorted(causes, key=lambda each: (-each.rows, each.cause, each.step)))


def cause_ranges(file: LetterFile) -> Mapping[tuple[str, str, str, str | None], RowRanges]:
    """Return the rows of a live file by cause, step, source and the reason why they cannot be replayed."""
    if not file.is_live:
        return {}
    columns = file.store.columns(file.path, CAUSE_COLUMNS)
    found: dict[tuple[str, str, str, str | None], list[tuple[int, int]]] = {}
    for row, key in enumerate(zip(*columns, strict=True)):
        found.setdefault(key, []).append((row, row + 1))
    return {key: merge_ranges(ranges) for key, ranges in found.items()}


def replayable(queue: DeadLetterQueue, *, again: bool = False) -> Mapping[str, Mapping[str, RowRanges]]:
    """Return the letters that can be replayed, by source and file.

    Those that an earlier replay names are left out unless ``again`` is given.
    """
    found: dict[str, dict[str, RowRanges]] = {}
    for file in queue.files:
        excluded = () if again else queue.replayed.get(file.name, ())
        for (_, _, source, no_replay), ranges in cause_ranges(file).items():
            left = subtract_ranges(ranges, excluded)
            if no_replay is None and left:
                by_file = found.setdefault(source, {})
                by_file[file.name] = merge_ranges((*by_file.get(file.name, ()), *left))
    return found


# ---- single letters --------------------------------------------------------------------------------------------------
# A row is known by topic, partition and offset where it has them, else by its content: equal rows of a file count
# as one.

_ROWS: Final = 1_000
"""Rows that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One dead letter.

    Attributes:
        id: its file and its row there, ``part-….parquet#3``.
        cause: ``decode``, ``late``, or as the pipeline calls it.
        error: the error as text.
        step: the one that gave the row up.
        source: the one that read it.
        place: topic, partition, offset and file, where they are known.
        event_time: microseconds since 1970, if it is known.
        checkpoint: the one that published it.
        written: modification time of its file.
        attempts: how often the row has failed.
        replayed: number of replays that name this letter.
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
    queue: DeadLetterQueue, chosen: Mapping[str, RowRanges] | None = None, *, limit: int
) -> tuple[list[Letter], int]:
    """Return the first live letters, oldest first, and the number of all.

    Args:
        queue: their queue.
        chosen: the wanted letters by file; all unless given.
        limit: the most that are returned.
    """
    failures = ReplayFailures(queue)
    wanted = {file.name: chosen.get(file.name, ()) if chosen is not None else file.all for file in live_files(queue)}
    found: list[Letter] = []
    for file in live_files(queue):
        if len(found) < limit and wanted[file.name]:
            rows = _rows(file, wanted[file.name])
            found += [_letter(queue, file, at, row, failures) for at, row in islice(rows, limit - len(found))]
    return found, sum(map(count_rows, wanted.values()))


def live_files(queue: DeadLetterQueue) -> list[LetterFile]:
    """Return the files that no rewind has undone."""
    return [file for file in queue.files if file.is_live]


def _rows(
    file: LetterFile, ranges: RowRanges, columns: list[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read some rows of a file, a thousand at a time."""
    at = 0
    for batch in open_parquet(file.path).iter_batches(batch_size=_ROWS, columns=columns):
        for start, end in intersect_ranges(ranges, ((at, at + batch.num_rows),)):
            part = batch.slice(start - at, end - start).to_pylist()
            yield from enumerate(part, start=start)
        at += batch.num_rows


def _letter(queue: DeadLetterQueue, file: LetterFile, at: int, row: dict[str, Any], failures: ReplayFailures) -> Letter:
    named = [each for replay in queue.replays for each in replay.letters if each.file == file.name]
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
        attempts=1 + failures.before(row, file.checkpoint),
        replayed=sum(bool(intersect_ranges(each.ranges, ((at, at + 1),))) for each in named),
        raw=_raw(record, row["undecoded"]),
        record=_as_json(record),
    )


class ReplayFailures:
    """Counts how often a row was replayed and failed again.

    Args:
        queue: its replays are counted; the letters that they name are read.
    """

    def __init__(self, queue: DeadLetterQueue) -> None:
        self._commands: dict[object, dict[str, CheckpointId]] = {}
        files = {file.name: file for file in queue.files}
        for replay in queue.replays:
            for each in replay.letters:
                if each.file in files:
                    for _, row in _rows(files[each.file], each.ranges, ["place", RAW_ROW]):
                        self._commands.setdefault(_key(row), {}).setdefault(replay.command, replay.after)

    def before(self, row: Mapping[str, Any], checkpoint: CheckpointId) -> int:
        """Return the number of commands that replayed a row before a checkpoint."""
        if not self._commands:
            return 0
        return sum(after < checkpoint for after in self._commands.get(_key(row), {}).values())


def failed_again(queue: DeadLetterQueue) -> int:
    """Return the number of letters of rows that were replayed before."""
    if not queue.replays:
        return 0
    failures = ReplayFailures(queue)
    rows = ((file, row) for file in live_files(queue) for _, row in _rows(file, file.all, ["place", RAW_ROW]))
    return sum(failures.before(row, file.checkpoint) > 0 for file, row in rows)


def _key(row: Mapping[str, Any]) -> object:
    place = row["place"]
    if place["offset"] is not None:
        return place["topic"], place["partition"], place["offset"]
    return place["file"], json.dumps(_as_json(row[RAW_ROW]), sort_keys=True)


def select_by_sql(spark: SparkSession, queue: DeadLetterQueue, where: str) -> Mapping[str, RowRanges]:
    """Return the letters for which an SQL condition holds, by file.

    Its columns are those of a letter, ``checkpoint`` and ``written``.

    Raises:
        SettingsError: it is not a condition on these columns.
    """
    from pyspark.errors import PySparkException

    files = [file.path for file in live_files(queue)]
    if not files:
        return {}
    frame = spark.read.options(**STRICT_READ, mergeSchema="true").parquet(*files)
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
        msg = f"--where {where!r}: {sentence(first)} Columns: {', '.join(frame.columns[:-2])}."
        raise SettingsError(msg) from error
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["_letters"], []).append(row["_at"])
    return {file: ranges_of(rows) for file, rows in found.items()}


# ---- for people ------------------------------------------------------------------------------------------------------


def _raw(record: Mapping[str, Any], undecoded: str | None) -> str:
    if undecoded is None:
        return json.dumps(_as_json(record), ensure_ascii=False)
    value = record.get(undecoded)
    return "NULL" if value is None else str(_as_json(value))


def _as_json(value: Any) -> Any:
    """The value as JSON has it; bytes as text, with escapes where they are not UTF-8."""
    match value:
        case bytes():
            return value.decode("utf-8", errors="backslashreplace")
        case dict():
            return {str(name): _as_json(each) for name, each in value.items()}
        case list() | tuple():
            return [_as_json(each) for each in value]
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
