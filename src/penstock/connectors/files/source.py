"""``ps.files.Source``: a watched directory, each file read once; its reader."""

from __future__ import annotations

import errno
import logging
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
    all_gone,
    backlog,
    decode,
    encode,
    file_changed,
    file_unreadable,
    folder_replaced,
    has_lost_all,
    is_finished,
    ordered,
    plan_next,
    reconcile,
    unread_files,
)
from penstock.connectors.files.ranges import FileFormat, check_parquet_schema, frame_of, parquet_schema
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


log = logging.getLogger("penstock")


# ---- the directory ---------------------------------------------------------------------------------------------------

_SAMPLE_BYTES: Final = 64 * 1024


def scan(root: str, *, pattern: str, recursive: bool) -> dict[str, FileSignature]:
    """Every finished file below ``root`` whose name matches, by its path relative to ``root``.

    Links to files are followed, links to folders are not. A file that disappears meanwhile is not listed.

    Raises:
        SourceUnavailable: ``root`` is missing, is no folder, or cannot be read.
    """
    found: dict[str, FileSignature] = {}
    try:
        _collect(root, "", pattern, recursive, found)
    except OSError as error:
        raise _unlisted(root, error) from error
    return found


def _unlisted(root: str, error: OSError) -> SourceUnavailable:
    if isinstance(error, PermissionError):
        return file_unreadable(str(error.filename or root), error.strerror)
    msg = f"directory {root!r} cannot be listed ({error.strerror or error}): mount it, create it or correct the path"
    return SourceUnavailable(msg)


def require_directory(root: str, uid: str | None = None) -> None:
    """Refuse a fresh start without the directory: a restart would not bring it, and its path may be wrong.

    Raises:
        GraphError: ``root`` is missing, or is no directory.
    """
    if os.path.isdir(root):
        return
    what = "is a file, not a directory" if os.path.exists(root) else "does not exist"
    remedy = f"create it, mount it or correct the path (a relative one begins in {os.getcwd()})"
    msg = f"directory {root!r} {what}: {remedy}"
    raise GraphError(msg, uid=uid)


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


def _inode(root: str) -> int:
    """The inode of ``root``: a hint whether it is the directory of before. Numbers of devices change with mounts.

    Raises:
        SourceUnavailable: ``root`` is gone.
    """
    try:
        return os.stat(root).st_ino
    except OSError as error:
        raise _unlisted(root, error) from error


def signature(path: str) -> FileSignature | None:
    """The file's signature now, or ``None`` if it is gone.

    Raises:
        SourceUnavailable: the file exists, but its folder may not be read.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise file_unreadable(path, error.strerror) from error
    return FileSignature(status.st_size, status.st_mtime_ns)


def require_unchanged(root: str, slices: Sequence[FileSlice], when: str) -> None:
    """Check that files still have the signatures of their slices.

    Raises:
        SourceChanged: a file has changed or is gone.
        SourceUnavailable: a file cannot be looked at.
    """
    for part in slices:
        now = signature(os.path.join(root, part.name))
        if now != part.signature:
            raise file_changed(part.name, part.signature, now, when)


def require_readable(root: str, slices: Sequence[FileSlice]) -> None:
    """Check that files may be read: Spark says of those that may not that they do not exist.

    Raises:
        SourceUnavailable: this user may not read a file.
    """
    for part in slices:
        path = os.path.join(root, part.name)
        if not os.access(path, os.R_OK) and signature(path) is not None:
            raise file_unreadable(path, os.strerror(errno.EACCES))


def bytes_per_row(path: str, format: str) -> float | None:
    """Estimated bytes per row, by the file's footer or its first 64 KiB; ``None`` if unknown."""
    try:
        if format == "parquet":
            import pyarrow.parquet as pq

            footer: Any = pq.read_metadata(path)
            return os.path.getsize(path) / footer.num_rows if footer.num_rows else None
        if path.endswith(COMPRESSED):
            return None
        with open(path, "rb") as file:
            sample = file.read(_SAMPLE_BYTES)
    except Exception:
        return None
    lines = sample.count(b"\n")
    return len(sample) / lines if lines else float(len(sample)) or None


# ---- the reader ------------------------------------------------------------------------------------------------------

_SPARK_LISTS: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
"""Spark's setting: the most paths that it lists without running a job."""
_PAUSE_PER_FILE: Final = 20
"""Microseconds of pause for each listed file: listing it takes a few, and should not be most of the reader's work."""


class FilesReader:
    """Reads a directory from a position on. Made by ``Source.open``."""

    def __init__(self, source: Source, context: SourceContext, position: FilesPosition) -> None:
        self._source = source
        self._spark = context.spark
        self._schema = source.schema(context.spark)
        self._has_end = source.bounded or context.until is Until.CAUGHT_UP
        self._interval = self._pause = source.poll_interval_ms * 1000
        self._rescan_at: MonotonicTime | None = None
        self._wake_at: MonotonicTime | None = None
        self._to_verify: dict[str, FileSlice] = {}
        self._resume(position, context.uid)

    def _resume(self, position: FilesPosition, uid: str) -> None:
        if not self._source.bounded:  # the position may be that of an earlier, bounded run
            position = replace(position, remaining=None)
        look = self._source.look(position)
        for warning in look.warnings:  # while it runs none is logged: a feed may empty its folder
            log.warning("source %s: %s", uid, warning)
        self._position = look.position
        if self._source.bounded and self._position.remaining is None:
            self._position = replace(self._position, remaining=dict(unread_files(look.files, self._position)))
        remaining = look.files if self._position.remaining is None else self._position.remaining
        self._unread = unread_files(remaining, self._position)

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:  # noqa: ARG002 - files have times of their own
        """The next files, or the next cut of a big one."""
        if not self._has_end:
            if self._wake_at is not None and now < self._wake_at:
                return NoData(wake_at=self._wake_at)
            if not self._unread or self._rescan_at is None or now >= self._rescan_at:
                self._rescan(now)
        planned = self._plan(limits)
        if not self._source.bounded and self._has_changed(planned):
            self._rescan(now)  # a file that was listed but not yet planned may change or disappear
            planned = self._plan(limits)
        if planned.slices:
            return self._take(planned)
        if self._has_end:
            return Ended() if self._source.bounded else CaughtUp()
        self._wake_at = MonotonicTime(now + self._pause)
        return NoData(wake_at=self._wake_at)

    def _rescan(self, now: MonotonicTime) -> None:
        look = self._source.look(self._position)
        listing, self._position = look.files, look.position
        if self._has_end:  # no new files; one that changed before it was planned is read as it is now
            listing = {name: listing[name] for name, _ in self._unread if name in listing}
        self._unread = unread_files(listing, self._position)
        self._pause = max(self._interval, _PAUSE_PER_FILE * len(listing))
        self._rescan_at = MonotonicTime(now + self._pause)
        self._wake_at = None

    def _plan(self, limits: ReadLimit) -> PlannedFiles:
        source, most = self._source, limits.bytes
        if limits.rows is not None and (next_file := self._next_file()) is not None:
            row_bytes = bytes_per_row(os.path.join(source.path, next_file), source.content.format)
            if row_bytes is not None:
                estimate = int(limits.rows * row_bytes)
                most = estimate if most is None else min(estimate, most)
        spark_lists = int(self._spark.conf.get(_SPARK_LISTS, "32") or 32)
        files = min(source.max_files_per_batch or spark_lists, spark_lists)
        file_limits = FileLimits(files=files, bytes=most, split_bytes=source.split_bytes, can_cut=self._can_cut)
        return plan_next(self._position, self._unread, file_limits)

    def _next_file(self) -> str | None:
        if self._position.partial is not None:
            return self._position.partial.name
        return self._unread[0][0] if self._unread else None

    def _can_cut(self, name: str) -> bool:
        return self._source.content.format == "parquet" or not name.endswith(COMPRESSED)

    def _has_changed(self, planned: PlannedFiles) -> bool:
        """Whether a planned file is not as it was listed. The partly read one is checked later, as an error."""
        if self._position.partial is not None:
            return False
        return any(signature(os.path.join(self._source.path, part.name)) != part.signature for part in planned.slices)

    def _take(self, planned: PlannedFiles) -> PlannedBatch:
        slices = planned.slices
        self._position = planned.position
        taken = {part.name for part in slices}
        self._unread = [item for item in self._unread if item[0] not in taken]
        self._to_verify.update({part.name: part for part in slices})
        return PlannedBatch(
            plan=slices,
            bytes=sum(part.end - part.start for part in slices),
            verify=partial(self._require_unchanged, slices),
            takes_all=self._next_file() is None,
        )

    def _require_unchanged(self, slices: Sequence[FileSlice]) -> None:
        when = "was listed at the first start" if self._source.bounded else "was planned"
        require_unchanged(self._source.path, slices, when)

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of the plan's rows.

        Raises:
            SourceChanged: a file has changed since it was planned.
            SourceUnavailable: a file may not be read.
        """
        slices = cast("Sequence[FileSlice]", plan)
        self._require_unchanged(slices)
        require_readable(self._source.path, slices)
        try:
            frame = frame_of(self._spark, self._source.path, slices, self._source.content, self._schema)
        finally:
            # Spark has looked at the files in between: this check proves that it saw what was planned.
            self._require_unchanged(slices)
        return frame

    def position(self) -> Position:
        """The position after the last plan.

        Raises:
            SourceChanged: a file planned since the last call exists, but has changed.
        """
        root, slices = self._source.path, self._to_verify.values()
        self._require_unchanged([part for part in slices if signature(os.path.join(root, part.name)) is not None])
        self._to_verify.clear()
        return encode(self._position)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Do nothing: positions are in checkpoints only."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


# ---- the source ------------------------------------------------------------------------------------------------------

FORMATS: Final = ("csv", "json", "parquet", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A directory at one moment.

    Attributes:
        files: those that there are.
        position: the position, moved on to them.
        warnings: what may be wrong with the directory.
    """

    files: Mapping[str, FileSignature]
    position: FilesPosition
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, init=False)
class Source:
    """Files of a directory, and those that arrive while the job runs. Exactly-once.

    Each file is read once, in order of modification time, then path; a file that arrives with an older time is read
    next. Files must arrive whole: names that begin with ``_`` or ``.``, or end with ``.tmp`` or ``._COPYING_``, are
    ignored until they are renamed, and a file that changes after it was planned stops the job (``SourceChanged``).
    It is checked again after each job that read it, so only what was planned gets into a checkpoint.
    A file that goes away before it was planned is left out, but stops a ``bounded`` source.

    A fully read file may be moved away or deleted **once a checkpoint that has read it is complete**; earlier, a
    restart could not read it again and its rows would be missing silently. Its entry in the position is then
    forgotten: a file that comes back under that name is a new file and is read. A directory from which nothing is
    removed makes every checkpoint name all of its files.

    Never are all files of a folder forgotten at once, since a folder that is not mounted looks like an empty one. If
    a folder has none of its files any more, the position keeps their names, sizes and times until files that came
    later go away too: a file that comes back unchanged is not read again, a changed one is. A folder below is
    forgotten with all of its files if it was removed, and folders near it still have theirs.

    A fresh start without the directory is refused. Later, a directory that is missing fails the job, which restarts
    until it is there again. So does another directory than before (by its inode) that has none of the files that were
    read: it waits until one of them is back, unless ``may_be_emptied`` is set. A start on the same directory without
    any of them logs a warning and reads on. ``penstock plan`` says both.

    Text, JSON and CSV are lines of UTF-8, ended by LF or CR LF. Blank lines of JSON and CSV are skipped;
    records of several lines are not supported. A malformed line, or one with a field of the wrong type, fails the job
    with ``DecodeError``; to keep such lines, read ``format="text"`` and use
    ``stream.parse_json("value", schema, on_error="split")``.

    Args:
        path: the directory, on a local disk or one that all executors have mounted.
        format: ``"json"`` (one object a line), ``"csv"``, ``"parquet"`` or ``"text"`` (one column ``value STRING``).
        schema: columns, as DDL or a ``StructType``; required for JSON and CSV. For Parquet, if it is not given, the
            columns are those of the first file at the first start. Checkpoints keep them: a restart uses the same
            columns, until you give ``schema``. All columns can be ``NULL``.
        pattern: shell pattern for the file's name.
        recursive: whether folders below are read too (links to folders are not).
        bounded: end after the files that are there at the first start; the watermark then goes to the end of time.
        max_files_per_batch: most files of a batch; never more than Spark lists without a job of its own
            (``spark.sql.sources.parallelPartitionDiscovery.threshold``, 32 unless set).
        split_bytes: larger files are read in cuts of that size, except compressed ones.
        poll_interval_ms: how long to wait between listings, in milliseconds; longer in a directory of more than
            10,000 files for each 200 ms.
        may_be_emptied: whether all files that were read may be gone, and the directory be another one (such as a
            link to a new one each day). The job then reads on, instead of waiting until the directory is mounted.
        options: of Spark's decoder (``timestampFormat``, ``sep``, …), those that have an effect here. For CSV
            ``header`` too: true if the first line of each file is a header, which is skipped.
        with_file: of text, add the column ``_file STRING``: the path of the file that the line is in.

    Raises:
        GraphError: an argument is impossible.

    >>> Source("/in", format="json", schema="id LONG, user STRING").describe()
    'files /in/* (json)'
    """

    path: str
    content: FileFormat
    declared: str | StructType | None
    taken: StructType | None
    pattern: str
    recursive: bool
    bounded: bool
    max_files_per_batch: int | None
    split_bytes: int
    poll_interval_ms: int
    end: FilesPosition | None
    with_file: bool
    may_be_emptied: bool

    def __init__(  # noqa: PLR0913 - the arguments of a files source
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
        may_be_emptied: bool = False,
    ) -> None:
        path = os.fspath(path)
        decoder_options = dict(options or {})
        header = str(decoder_options.pop("header", False)).lower() == "true"
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
            "content": FileFormat(
                format=format, options=text.check_options(decoder_options, format), header=header, with_file=with_file
            ),
            "declared": schema,
            "taken": None,
            "pattern": pattern,
            "recursive": recursive,
            "bounded": bounded,
            "max_files_per_batch": max_files_per_batch,
            "split_bytes": split_bytes,
            "poll_interval_ms": poll_interval_ms,
            "end": None,
            "with_file": with_file,
            "may_be_emptied": may_be_emptied,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def guarantee(self) -> Guarantee:
        """Replaying a position reads the same files again."""
        return Guarantee.EXACTLY_ONCE

    @property
    def position_kind(self) -> str:
        """The kind of this source's positions."""
        return KIND

    def schema(self, spark: SparkSession) -> StructType:
        """The declared columns; of Parquet without a schema, those of the first file.

        Raises:
            GraphError: a declared column cannot be in Parquet files.
            SourceUnavailable: there is no first file yet.
        """
        if self.content.format == "text":
            return text.struct_type(spark, "value STRING, _file STRING" if self.with_file else "value STRING")
        if self.declared is not None:
            declared = text.struct_type(spark, self.declared)
            if self.content.format == "parquet":
                check_parquet_schema(spark, declared)
            return declared
        if self.taken is not None:
            return self.taken
        files = ordered(self._scan())
        if not files:
            remedy = "give schema=, put a file there first, or mount the directory"
            msg = f"{self.describe()} has no file to take the columns from: {remedy}"
            raise SourceUnavailable(msg)
        return text.struct_type(spark, parquet_schema(spark, os.path.join(self.path, files[0][0])))

    @property
    def takes_columns(self) -> bool:
        """Whether the columns are taken from the first file."""
        return self.content.format == "parquet" and self.declared is None

    def with_fixed_columns(self, spark: SparkSession, resume: Position | None) -> Source:
        """The same source; if no columns are declared, with those that the position records, or else the first file's.

        Raises:
            StateIncompatible: the position cannot be read.
            SourceUnavailable: there is no first file yet.
        """
        from pyspark.sql.types import StructType

        if not self.takes_columns or self.taken is not None:
            return self
        recorded: Any = decode(resume).columns if resume is not None and resume.kind == KIND else None
        return self._with("taken", self.schema(spark) if recorded is None else StructType.fromJson(recorded))

    def open(self, context: SourceContext, resume: Position | None) -> FilesReader:
        """A reader that goes on after ``resume``.

        Raises:
            GraphError: the directory is missing, and ``resume`` is ``None``.
            StateIncompatible: the position is not one of a files source.
            SourceUnavailable: the directory is missing, or is another one without the files that were read.
            SourceChanged: a file that was read, or partly read, has changed.
        """
        if resume is None:
            require_directory(self.path, context.uid)
        position = FilesPosition() if resume is None else decode(resume)
        source = self.with_fixed_columns(context.spark, resume)
        columns: Any = None if source.taken is None else source.taken.jsonValue()
        return FilesReader(source, context, replace(position, columns=columns))

    def backlog(self, resume: Position | None) -> Backlog:
        """The unread files, and their bytes.

        Raises:
            GraphError: the directory is missing, and ``resume`` is ``None``.
            StateIncompatible: the position is not one of a files source.
            SourceUnavailable: the directory is missing, or is another one without the files that were read.
            SourceChanged: a file that was read, or partly read, has changed.
        """
        if resume is None:
            require_directory(self.path)
        position = FilesPosition() if resume is None else decode(resume)
        look = self.look(position if self.bounded else replace(position, remaining=None))
        files, size = backlog(look.files, look.position, bounded=self.bounded)
        return Backlog(files=files, bytes=size, warnings=look.warnings)

    def look(self, position: FilesPosition) -> Look:
        """The directory as it is now, and the position after it was listed.

        Raises:
            SourceUnavailable: the directory is missing, or is another one without the files that were read.
            SourceChanged: a file that was read, or partly read, has changed.
        """
        files = self.listing()
        folder = _inode(self.path)
        warnings = []
        if not self.may_be_emptied and has_lost_all(files, position):
            if position.folder not in (None, folder):
                raise folder_replaced(self.path, position)
            warnings.append(f"{all_gone(self.path, position)}; those that come back unchanged are not read again")
        after = reconcile(files, position, lambda name: signature(os.path.join(self.path, name)) is not None)
        return Look(files=files, position=replace(after, folder=folder), warnings=tuple(warnings))

    def listing(self) -> dict[str, FileSignature]:
        """The files that exist now; of a replayed source only those that are to be replayed."""
        files, end = self._scan(), self.end
        return files if end is None else {name: found for name, found in files.items() if end.has_read(name, found)}

    def _scan(self) -> dict[str, FileSignature]:
        return scan(self.path, pattern=self.pattern, recursive=self.recursive)

    def replayed(self, end: Position | None) -> Source:
        """The same files; if ``end`` is given, only those that were read at that position.

        Raises:
            StateIncompatible: the position is not one of a files source.
        """
        return self._with("end", None if end is None else decode(end))

    def _with(self, name: str, value: object) -> Source:
        other = object.__new__(Source)
        for field in fields(self):
            object.__setattr__(other, field.name, getattr(self, field.name))
        object.__setattr__(other, name, value)
        return other

    def describe(self) -> str:
        """The resolved path, pattern and format, for people."""
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
