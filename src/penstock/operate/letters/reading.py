"""Single dead letters: read with pyarrow, told for people, counted by how often they failed. Needs no Spark.

Whether a row failed before is told by where it came from: by topic, partition and offset where it has them, else by its
content, so that equal rows of a file count as one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import SettingsError
from penstock.ids import CheckpointId, WallTime
from penstock.operate.letters.shelf import parquet
from penstock.operate.letters.spans import Spans, length, spans_of, within
from penstock.sources.dead_letters import AS_IT_WAS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.operate.letters.listing import LetterFile, Place

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


def letters_of(place: Place, chosen: Mapping[str, Spans] | None = None, *, limit: int) -> tuple[list[Letter], int]:
    """The first letters that stand, oldest first, and how many there are in all.

    Args:
        place: where.
        chosen: by file, those that are wanted; all unless given.
        limit: how many.
    """
    failed = Failures(place)
    wanted = {file.name: chosen.get(file.name, ()) if chosen is not None else file.all for file in standing(place)}
    found: list[Letter] = []
    for file in standing(place):
        if len(found) < limit and wanted[file.name]:
            rows = _rows(file, wanted[file.name])
            found += [_letter(place, file, at, row, failed) for at, row in _first(rows, limit - len(found))]
    return found, sum(map(length, wanted.values()))


def standing(place: Place) -> list[LetterFile]:
    """Its files that no rewind has undone."""
    return [file for file in place.files if file.stands]


def _first(rows: Iterator[tuple[int, dict[str, Any]]], count: int) -> Iterator[tuple[int, dict[str, Any]]]:
    for _, row in zip(range(count), rows, strict=False):
        yield row


def _rows(file: LetterFile, spans: Spans, columns: list[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file at some places, a thousand at a time."""
    at = 0
    for batch in parquet(file.path).iter_batches(batch_size=_ROWS, columns=columns):
        for start, end in within(spans, ((at, at + batch.num_rows),)):
            part = batch.slice(start - at, end - start).to_pylist()
            yield from enumerate(part, start=start)
        at += batch.num_rows


def _letter(place: Place, file: LetterFile, at: int, row: dict[str, Any], failed: Failures) -> Letter:
    named = [each for replay in place.replays for each in replay.letters if each.file == file.name]
    record = row[AS_IT_WAS]
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
        replayed=sum(bool(within(each.ranges, ((at, at + 1),))) for each in named),
        raw=_raw(record, row["undecoded"]),
        record=_told(record),
    )


class Failures:
    """How often a row was replayed before it failed again.

    Args:
        place: whose replays are looked at; the letters that they name are read.
    """

    def __init__(self, place: Place) -> None:
        self._commands: dict[object, dict[str, CheckpointId]] = {}
        files = {file.name: file for file in place.files}
        for replay in place.replays:
            for each in replay.letters:
                if each.file in files:
                    for _, row in _rows(files[each.file], each.ranges, ["place", AS_IT_WAS]):
                        self._commands.setdefault(_key(row), {}).setdefault(replay.command, replay.after)

    def before(self, row: Mapping[str, Any], checkpoint: CheckpointId) -> int:
        """By how many commands a row was replayed before a checkpoint."""
        if not self._commands:
            return 0
        return sum(after < checkpoint for after in self._commands.get(_key(row), {}).values())


def failed_again(place: Place) -> int:
    """How many letters are of rows that were replayed before."""
    if not place.replays:
        return 0
    failed = Failures(place)
    rows = ((file, row) for file in standing(place) for _, row in _rows(file, file.all, ["place", AS_IT_WAS]))
    return sum(failed.before(row, file.checkpoint) > 0 for file, row in rows)


def _key(row: Mapping[str, Any]) -> object:
    place = row["place"]
    if place["offset"] is not None:
        return place["topic"], place["partition"], place["offset"]
    return place["file"], json.dumps(_told(row[AS_IT_WAS]), sort_keys=True)


def chosen_by(spark: SparkSession, place: Place, where: str) -> Mapping[str, Spans]:
    """By file, the letters for which SQL holds; its columns are those of a letter, ``checkpoint`` and ``written``.

    Raises:
        SettingsError: it is no condition on these columns.
    """
    from pyspark.errors import PySparkException

    files = [file.path for file in standing(place)]
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
    return {file: spans_of(places) for file, places in found.items()}


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
