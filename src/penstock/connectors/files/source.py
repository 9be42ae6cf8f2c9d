"""The directory source and its reader."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.clock import MonotonicTime
from penstock.connectors.files.listing import (
    COMPRESSED,
    KIND,
    FileLimits,
    FileSignature,
    FileSlice,
    FilesPosition,
    PlannedFiles,
    backlog,
    decode,
    encode,
    file_changed,
    file_unreadable,
    is_finished,
    ordered,
    plan_next,
    reconcile,
    unread_files,
)
from penstock.connectors.files.ranges import FileFormat, frame_of, parquet_schema
from penstock.errors import GraphError, SourceUnavailable
from penstock.formats import text
from penstock.handles import Guarantee
from penstock.interfaces.source import Backlog, CaughtUp, Ended, NoData, PlannedBatch, Until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.clock import WallTime
    from penstock.handles import CheckpointId, Position
    from penstock.interfaces.source import PollResult, ReadLimit, SourceContext


# ----------------------------------------------------------------------------------------------------
# A directory as it is now: one listing, signatures, and a guess at the size of a row; decides nothing.

_SAMPLE = 64 * 1024


def scan(root: str, *, pattern: str, recursive: bool) -> dict[str, FileSignature]:
    """Every finished file below ``root`` whose name matches, by its path relative to ``root``.

    Links to files are followed, links to folders are not. A file that goes away meanwhile is not listed.

    Raises:
        SourceUnavailable: ``root`` is missing, no folder, or cannot be read.
    """
    found: dict[str, FileSignature] = {}
    try:
        _collect(root, "", pattern, recursive, found)
    except OSError as error:
        if isinstance(error, PermissionError):
            raise file_unreadable(str(error.filename or root), error.strerror) from error
        msg = f"directory {root!r} cannot be listed ({error.strerror or error}): create it, or correct the path"
        raise SourceUnavailable(msg) from error
    return found


def _collect(root: str, below: str, pattern: str, recursive: bool, found: dict[str, FileSignature]) -> None:
    for entry, name in _entries(root, below):
        try:
            if entry.is_dir(follow_symlinks=False):
                if recursive:
                    _collect(root, name, pattern, recursive, found)
            elif entry.is_file() and fnmatchcase(entry.name, pattern):
                status = entry.stat()
                found[name] = FileSignature(status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            continue


def _entries(root: str, below: str) -> Iterator[tuple[os.DirEntry[str], str]]:
    with os.scandir(os.path.join(root, below) if below else root) as entries:
        for entry in entries:
            if is_finished(entry.name):
                yield entry, f"{below}/{entry.name}" if below else entry.name


def device(root: str) -> int | None:
    """Which file system ``root`` lies on, so that an unmounted one is not taken for an empty directory."""
    try:
        return os.stat(root).st_dev
    except OSError:
        return None


def signature(path: str) -> FileSignature | None:
    """The file's signature now, or ``None`` if it is gone.

    Raises:
        SourceUnavailable: it cannot be told, as without the right to look into its folder.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise file_unreadable(path, error.strerror) from error
    return FileSignature(status.st_size, status.st_mtime_ns)


def require_unchanged(root: str, slices: Sequence[FileSlice], when: str) -> None:
    """Check that files are what was planned.

    Raises:
        SourceChanged: one is not, or is gone.
        SourceUnavailable: it cannot be told.
    """
    for part in slices:
        now = signature(os.path.join(root, part.name))
        if now != part.signature:
            raise file_changed(part.name, part.signature, now, when)


def bytes_per_row(path: str, content: str) -> float | None:
    """About how many bytes a row has, from the file's footer or its first 64 KiB; ``None`` if that does not tell."""
    try:
        if content == "parquet":
            import pyarrow.parquet as pq

            footer: Any = pq.read_metadata(path)
            return os.path.getsize(path) / footer.num_rows if footer.num_rows else None
        if path.endswith(COMPRESSED):
            return None
        with open(path, "rb") as file:
            sample = file.read(_SAMPLE)
    except Exception:
        return None
    lines = sample.count(b"\n")
    return len(sample) / lines if lines else float(len(sample)) or None


# ----------------------------------------------------------------------------------------------------
# Reads a watched directory from a position on: listings into plans, plans into frames. Knows no checkpoint.

_SPARK_LISTS: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_PER_FILE: Final = 20
"""Microseconds of pause for each file listed: a listing costs a few, and should not be most of what the source does."""


class FilesReader:
    """Reads one directory from one progress on. Made by :meth:`Source.open`."""

    def __init__(self, source: Source, context: SourceContext, progress: FilesPosition) -> None:
        self._source = source
        self._spark = context.spark
        self._schema = source.schema(context.spark)
        self._device = device(source.path)
        self._fixed = source.bounded or context.until is Until.CAUGHT_UP
        self._interval = self._pause = source.poll_interval_ms * 1000
        self._rescan_at: MonotonicTime | None = None
        self._wake: MonotonicTime | None = None
        self._to_verify: dict[str, FileSlice] = {}
        self._resume(progress)

    def _resume(self, progress: FilesPosition) -> None:
        listing = self._source.listing()
        if not self._source.bounded:  # what a bounded run before this one had still to read is not all there is now
            progress = replace(progress, remaining=None)
        self._progress = reconcile(listing, progress)
        if self._source.bounded and self._progress.remaining is None:
            self._progress = replace(self._progress, remaining=dict(unread_files(listing, self._progress)))
        left = listing if self._progress.remaining is None else self._progress.remaining
        self._backlog = unread_files(left, self._progress)

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:  # noqa: ARG002 - files have times of their own
        """The next files, or the next cut of a big one."""
        if not self._fixed:
            if self._wake is not None and now < self._wake:
                return NoData(wake_at=self._wake)
            if not self._backlog or self._rescan_at is None or now >= self._rescan_at:
                self._rescan(now)
        decision = self._decide(limits)
        if not self._source.bounded and self._gone(decision):
            self._rescan(now)  # a file that was listed, but never planned, may go away
            decision = self._decide(limits)
        if not decision.slices:
            return self._end() if self._fixed else self._nothing(now)
        return self._planned(decision)

    def _rescan(self, now: MonotonicTime) -> None:
        if device(self._source.path) != self._device:
            msg = f"directory {self._source.path!r} is gone or lies on another file system than before: mount it again"
            raise SourceUnavailable(msg)
        listing = self._source.listing()
        self._progress = reconcile(listing, self._progress)
        if self._fixed:  # the end stays where it was; what changed before it was planned is read as it is now
            listing = {name: listing[name] for name, _ in self._backlog if name in listing}
        self._backlog = unread_files(listing, self._progress)
        self._pause = max(self._interval, _PER_FILE * len(listing))
        self._rescan_at = MonotonicTime(now + self._pause)
        self._wake = None

    def _decide(self, limits: ReadLimit) -> PlannedFiles:
        source, most = self._source, limits.bytes
        if limits.rows is not None and (first := self._first()) is not None:
            each = bytes_per_row(os.path.join(source.path, first), source.content.format)
            if each is not None:
                most = min(int(limits.rows * each), most) if most is not None else int(limits.rows * each)
        listed_at_once = int(self._spark.conf.get(_SPARK_LISTS, "32") or 32)
        files = min(source.max_files_per_batch or listed_at_once, listed_at_once)
        caps = FileLimits(files=files, bytes=most, split_bytes=source.split_bytes, cuttable=self._cuttable)
        return plan_next(self._progress, self._backlog, caps)

    def _first(self) -> str | None:
        if self._progress.partial is not None:
            return self._progress.partial.name
        return self._backlog[0][0] if self._backlog else None

    def _cuttable(self, name: str) -> bool:
        return self._source.content.format == "parquet" or not name.endswith(COMPRESSED)

    def _gone(self, decision: PlannedFiles) -> bool:
        if self._progress.partial is not None:
            return False
        return any(signature(os.path.join(self._source.path, p.name)) != p.signature for p in decision.slices)

    def _nothing(self, now: MonotonicTime) -> NoData:
        self._wake = MonotonicTime(now + self._pause)
        return NoData(wake_at=self._wake)

    def _end(self) -> Ended | CaughtUp:
        return Ended() if self._source.bounded else CaughtUp()

    def _planned(self, decision: PlannedFiles) -> PlannedBatch:
        self._progress = decision.progress
        taken = {part.name for part in decision.slices}
        self._backlog = [item for item in self._backlog if item[0] not in taken]
        self._to_verify.update({part.name: part for part in decision.slices})
        slices = decision.slices
        verify = partial(require_unchanged, self._source.path, slices, "was planned")
        size = sum(part.end - part.start for part in slices)
        return PlannedBatch(plan=slices, bytes=size, verify=verify, takes_all=self._first() is None)

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of the plan's rows.

        Raises:
            SourceChanged: a file is no longer what was planned.
        """
        slices = cast("Sequence[FileSlice]", plan)
        require_unchanged(self._source.path, slices, "was planned")
        try:
            frame = frame_of(self._spark, self._source.path, slices, self._source.content, self._schema)
        finally:
            # Spark has looked at the files in between: only now it is sure that it saw what was planned.
            require_unchanged(self._source.path, slices, "was planned")
        return frame

    def position(self) -> Position:
        """After the last plan.

        Raises:
            SourceChanged: a file planned since the last call is there, but changed.
        """
        there = [p for p in self._to_verify.values() if signature(os.path.join(self._source.path, p.name)) is not None]
        require_unchanged(self._source.path, there, "was planned")
        self._to_verify.clear()
        return encode(self._progress)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Nothing is shown elsewhere."""

    def close(self) -> None:
        """Nothing is held."""


# ----------------------------------------------------------------------------------------------------
# A watched directory as a source: each file once, big ones in cuts. Knows nothing of checkpoints or the runtime.

FORMATS: Final = ("csv", "json", "parquet", "text")


@dataclass(frozen=True, init=False)
class Source:
    """Files of a directory, and those that arrive while the job runs. Exactly-once.

    Each file is read once, in order of modification time, then path; a file that arrives with an older time is read
    next. Files must arrive whole: names that begin with ``_`` or ``.``, or end with ``.tmp`` or ``._COPYING_``, are
    ignored until they are renamed, and a file that changes after it was planned stops the job (``SourceChanged``).
    It is looked at again after each job that read it, so nothing else than what was planned gets into a checkpoint.
    A file that goes away before it was planned is left out, but stops a ``bounded`` source.

    A fully read file may be moved away or deleted **once a checkpoint that has read it is complete**; earlier, a
    restart could not read it again and its rows would be missing without a word. Its entry in the position is then
    forgotten: a file that comes back under that name is a new file and is read. A directory from which nothing is
    removed makes every checkpoint name all of its files.

    Text, JSON and CSV are lines of UTF-8, ended by LF or CR LF. Blank lines of JSON and CSV are skipped;
    records of several lines are not supported. A malformed line, or one with a field of the wrong type, fails the job
    with ``DecodeError``; to keep such lines, read ``format="text"`` and use
    ``stream.parse_json("value", schema, on_error="split")``.

    Args:
        path: the directory, on a local disk or one that all executors have mounted.
        format: ``"json"`` (one object a line), ``"csv"``, ``"parquet"`` or ``"text"`` (one column ``value STRING``).
        schema: columns, as DDL or a ``StructType``; required for JSON and CSV, for Parquet taken from the first file
            if not given. All columns can be ``NULL``.
        pattern: shell pattern for the file's name.
        recursive: whether folders below are read too (links to folders are not).
        bounded: end after the files that are there at the first start; the watermark then goes to the end of time.
        max_files_per_batch: at most so many files; never more than Spark lists without a job of its own
            (``spark.sql.sources.parallelPartitionDiscovery.threshold``, 32 unless set).
        split_bytes: larger files are read in cuts of that size, except compressed ones.
        poll_interval_ms: how long to wait between listings, in milliseconds; longer in a directory of more than
            10,000 files for each 200 ms.
        options: of Spark's decoder (``timestampFormat``, ``sep``, …), and ``header`` for CSV: true if the first line
            of each file is a header, which is skipped.
        with_file: of text, add the column ``_file STRING``: the path of the file that the line is in.

    Raises:
        GraphError: an argument is impossible.

    >>> Source("/in", format="json", schema="id LONG, user STRING").describe()
    'files /in/* (json)'
    """

    path: str
    content: FileFormat
    declared: str | StructType | None
    pattern: str
    recursive: bool
    bounded: bool
    max_files_per_batch: int | None
    split_bytes: int
    poll_interval_ms: int
    end: Mapping[str, FileSignature] | None
    with_file: bool

    def __init__(  # noqa: PLR0913 - what can be said about a directory
        self,
        path: str | os.PathLike[str],
        *,
        format: str = "json",
        schema: str | StructType | None = None,
        pattern: str = "*",
        recursive: bool = False,
        bounded: bool = False,
        max_files_per_batch: int | None = None,
        split_bytes: int = 128 * 1024 * 1024,
        poll_interval_ms: int = 200,
        options: Mapping[str, object] | None = None,
        with_file: bool = False,
    ) -> None:
        path = os.fspath(path)
        given = dict(options or {})
        header = str(given.pop("header", False)).lower() == "true"
        _check(path, format, schema, header=header)
        if with_file and format != "text":
            msg = f"with_file is for text, not for {format!r}: only lines that are yet to be decoded have a file"
            raise GraphError(msg)
        for name, number in (("max_files_per_batch", max_files_per_batch), ("split_bytes", split_bytes)):
            if number is not None and number < 1:
                msg = f"{name} must be at least 1, got {number}"
                raise GraphError(msg)
        values: dict[str, object] = {
            "path": os.path.abspath(path.removeprefix("file://")),
            "content": FileFormat(format=format, options=text.check_options(given), header=header, with_file=with_file),
            "declared": schema,
            "pattern": pattern,
            "recursive": recursive,
            "bounded": bounded,
            "max_files_per_batch": max_files_per_batch,
            "split_bytes": split_bytes,
            "poll_interval_ms": poll_interval_ms,
            "end": None,
            "with_file": with_file,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def guarantee(self) -> Guarantee:
        """Replaying a position reads the same files again."""
        return Guarantee.EXACTLY_ONCE

    @property
    def position_kind(self) -> str:
        """The kind of its positions."""
        return KIND

    def schema(self, spark: SparkSession) -> StructType:
        """The declared columns; of Parquet without a schema, those of the first file.

        Raises:
            SourceUnavailable: there is no first file yet.
        """
        if self.content.format == "text":
            return text.struct_type(spark, "value STRING, _file STRING" if self.with_file else "value STRING")
        if self.declared is not None:
            return text.struct_type(spark, self.declared)
        files = ordered(self._there())
        if not files:
            msg = f"{self.describe()} has no file to take the columns from: give schema=, or put a file there first"
            raise SourceUnavailable(msg)
        return text.struct_type(spark, parquet_schema(spark, os.path.join(self.path, files[0][0])))

    def open(self, context: SourceContext, resume: Position | None) -> FilesReader:
        """A reader that goes on after ``resume``.

        Raises:
            StateIncompatible: the position is not one of a files source.
            SourceUnavailable: the directory is missing.
            SourceChanged: a file that was read, or partly read, is no longer what it was.
        """
        return FilesReader(self, context, FilesPosition() if resume is None else decode(resume))

    def backlog(self, resume: Position | None) -> Backlog:
        """The files that are there and not yet read, and their bytes.

        Raises:
            StateIncompatible: the position is not one of a files source.
            SourceUnavailable: the directory is missing.
            SourceChanged: a file that was read, or partly read, is no longer what it was.
        """
        progress = FilesPosition() if resume is None else decode(resume)
        files, size = backlog(self.listing(), progress, bounded=self.bounded)
        return Backlog(files=files, bytes=size)

    def listing(self) -> dict[str, FileSignature]:
        """The files that are there now; of a source that is read up to where another run has read it, only those."""
        there, end = self._there(), self.end
        return there if end is None else {name: found for name, found in there.items() if name in end}

    def _there(self) -> dict[str, FileSignature]:
        return scan(self.path, pattern=self.pattern, recursive=self.recursive)

    def replayed(self, end: Position | None) -> Source:
        """The same files; those that were read at ``end``, if that is given, and no others.

        Raises:
            StateIncompatible: the position is not one of a files source.
        """
        other = object.__new__(Source)
        for name in fields(self):
            object.__setattr__(other, name.name, getattr(self, name.name))
        object.__setattr__(other, "end", None if end is None else decode(end).done)
        return other

    def describe(self) -> str:
        """For people, with the path as it was resolved."""
        return f"files {os.path.join(self.path, self.pattern)} ({self.content.format})"


def _check(path: str, format: str, schema: str | StructType | None, *, header: bool) -> None:
    if "://" in path.removeprefix("file://"):
        msg = (
            f"path {path!r}: only directories of a local or mounted file system can be watched; mount it, or copy files"
        )
        raise GraphError(msg)
    if format not in FORMATS:
        msg = f"format {format!r} is not one of {', '.join(FORMATS)}"
        raise GraphError(msg)
    if format in ("csv", "json") and schema is None:
        msg = f"format {format!r} needs schema=, such as schema='id LONG, user STRING'"
        raise GraphError(msg)
    if format == "text" and schema is not None:
        msg = "format 'text' has one column, value STRING: leave schema= out, and parse the value in the pipeline"
        raise GraphError(msg)
    if header and format != "csv":
        msg = f"option 'header' is for csv, not for {format!r}"
        raise GraphError(msg)
