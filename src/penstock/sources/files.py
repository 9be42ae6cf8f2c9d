"""A watched directory as a source: each file once, big ones in cuts. Knows nothing of checkpoints or the runtime."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from penstock import formats
from penstock.errors import GraphError, SourceUnavailable
from penstock.handles import Guarantee
from penstock.sources.base import Waiting
from penstock.sources.file_frames import Content, explain, parquet_schema
from penstock.sources.file_listing import KIND, Progress, Signature, decode, left_to_read, ordered
from penstock.sources.file_reader import FilesReader
from penstock.sources.file_scan import scan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.handles import Position
    from penstock.sources.base import SourceContext

__all__ = ["Source", "explain"]

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
    content: Content
    declared: str | StructType | None
    pattern: str
    recursive: bool
    bounded: bool
    max_files_per_batch: int | None
    split_bytes: int
    poll_interval_ms: int
    end: Mapping[str, Signature] | None
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
            "content": Content(format=format, options=formats.check_options(given), header=header, with_file=with_file),
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
            return formats.struct_type(spark, "value STRING, _file STRING" if self.with_file else "value STRING")
        if self.declared is not None:
            return formats.struct_type(spark, self.declared)
        files = ordered(self._there())
        if not files:
            msg = f"{self.describe()} has no file to take the columns from: give schema=, or put a file there first"
            raise SourceUnavailable(msg)
        return formats.struct_type(spark, parquet_schema(spark, os.path.join(self.path, files[0][0])))

    def open(self, context: SourceContext, resume: Position | None) -> FilesReader:
        """A reader that goes on after ``resume``.

        Raises:
            StateIncompatible: the position is not one of a files source.
            SourceUnavailable: the directory is missing.
            SourceChanged: a file that was read, or partly read, is no longer what it was.
        """
        return FilesReader(self, context, Progress() if resume is None else decode(resume))

    def waiting(self, resume: Position | None) -> Waiting:
        """The files that are there and not yet read, and their bytes.

        Raises:
            StateIncompatible: the position is not one of a files source.
            SourceUnavailable: the directory is missing.
            SourceChanged: a file that was read, or partly read, is no longer what it was.
        """
        progress = Progress() if resume is None else decode(resume)
        files, size = left_to_read(self.listing(), progress, bounded=self.bounded)
        return Waiting(files=files, bytes=size)

    def listing(self) -> dict[str, Signature]:
        """The files that are there now; of a source that is read up to where another run has read it, only those."""
        there, end = self._there(), self.end
        return there if end is None else {name: found for name, found in there.items() if name in end}

    def _there(self) -> dict[str, Signature]:
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
