"""``ps.files.Source``: a watched directory, each file read once."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from penstock.clock import parse_duration
from penstock.connectors.files.arguments import archive_of, check_content, check_encoding, check_multi_line, taken
from penstock.connectors.files.directory import require_directory
from penstock.connectors.files.listing import (
    KIND,
    FilesPosition,
    backlog,
    decode,
    ordered,
)
from penstock.connectors.files.partitions import with_columns
from penstock.connectors.files.ranges import FileFormat, check_parquet_schema, parquet_schema
from penstock.connectors.files.reader import FileReading, FilesReader
from penstock.connectors.files.removal import Removal, found_at_start
from penstock.connectors.files.watched import WatchedDirectory
from penstock.connectors.limits import check_limit
from penstock.errors import GraphError
from penstock.formats import text
from penstock.handles import Guarantee
from penstock.interfaces.source import Backlog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.handles import Position
    from penstock.interfaces.source import SourceContext


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
    removed makes every checkpoint name all of its files; ``after_read`` removes them at the right time.

    Never are all files of a folder forgotten at once, since a folder that is not mounted looks like an empty one. If
    a folder has none of its files any more, the position keeps their names, sizes and times until files that came
    later go away too: a file that comes back unchanged is not read again, a changed one is. A folder below is
    forgotten with all of its files if it was removed, and folders near it still have theirs.

    A fresh start without the directory is refused. Later, a directory that is missing fails the job, which restarts
    until it is there again. So does another directory than before (by its inode) that has none of the files that were
    read: it waits until one of them is back, unless ``may_be_emptied`` is set. A start on the same directory without
    any of them logs a warning and reads on. ``penstock plan`` says both.

    Text, JSON and CSV are lines of UTF-8, or of the ``encoding`` in ``options``, ended by LF or CR LF. Blank lines of
    JSON and CSV are skipped. With ``multiLine`` in ``options``, quoted values of CSV may have line breaks; a record of
    JSON is always one line. A malformed record, or one with a field of the wrong type, fails the job with
    ``DecodeError``; to keep such lines, read ``format="text"`` and use
    ``stream.parse_json("value", schema, on_error="split")``, or ``stream.parse_csv``.

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
        split_bytes: larger files are read in cuts of that size, except those that can only be read whole.
        poll_interval_ms: how long to wait between listings, in milliseconds; longer in a directory of more than
            10,000 files for each 200 ms.
        may_be_emptied: whether all files that were read may be gone, and the directory be another one (such as a
            link to a new one each day). The job then reads on, instead of waiting until the directory is mounted.
        options: of Spark's decoder (``timestampFormat``, ``sep``, …), those that have an effect here. For CSV
            ``header`` too: true if the first line of each file is a header, which is skipped; ``"names"`` if it says
            which column is where: a declared column that a file lacks is ``NULL``, others are left out. And
            ``encoding`` (as ``"cp1252"``), and for CSV ``multiLine``: such files are read whole, never in cuts.
        with_file: of text, add the column ``_file STRING``: the path of the file that the line is in.
        min_age: how long a file must not have been modified before it is read, as in ``"10 seconds"``: for writers that
            do not rename. A younger file is not there yet, for a ``bounded`` source too.
        after_read: ``"archive"`` or ``"delete"``: what becomes of a file once a complete checkpoint holds it. See
            ``docs/sources-files.md`` for rewinds. Without it files stay.
        archive: where archived files go, on the same file system; ``<path>/_archive`` by default.
        partition_columns: columns that folders ``key=value`` below the directory name, as DDL or a ``StructType``. They
            come after those of the files. A file without such a folder fails the job. Needs ``recursive``.

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
    min_age: int
    after_read: str | None
    archive: str
    partition_columns: str | StructType | None

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
        min_age: str | None = None,
        after_read: str | None = None,
        archive: str | os.PathLike[str] | None = None,
        partition_columns: str | StructType | None = None,
    ) -> None:
        path = os.fspath(path)
        decoder_options = dict(options or {})
        header = taken(decoder_options, "header", "false").lower()
        multi_line, encoding = (taken(decoder_options, name, "") for name in ("multiLine", "encoding"))
        check_content(path, format, schema, header=header)
        has_lines = check_multi_line(multi_line or "false", format)
        if with_file and format != "text":
            msg = f"with_file has no effect for format {format!r}, only for 'text'. Leave it out, or read text."
            raise GraphError(msg)
        if partition_columns is not None and not recursive:
            msg = "partition_columns are in the names of folders below, which are not read. Add recursive=True."
            raise GraphError(msg)
        for name, number in (("max_files_per_batch", max_files_per_batch), ("split_bytes", split_bytes)):
            check_limit(name, number)
        root = os.path.abspath(path.removeprefix("file://"))
        values: dict[str, object] = {
            "path": root,
            "content": FileFormat(
                format=format,
                options=text.check_options(decoder_options, format),
                header=header != "false",
                by_name=header == "names",
                multi_line=has_lines,
                encoding=check_encoding(encoding, format, multi_line=has_lines) if encoding else None,
                with_file=with_file,
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
            "min_age": 0 if min_age is None else parse_duration("min_age", min_age),
            "after_read": after_read,
            "archive": archive_of(root, after_read, archive),
            "partition_columns": partition_columns,
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
        """The columns of the files, and then those of their folders.

        Raises:
            GraphError: a declared column cannot be in Parquet files, a name appears twice, or there is no first file.
        """
        return with_columns(self.data_schema(spark), self.partition_schema(spark))

    def partition_schema(self, spark: SparkSession) -> StructType | None:
        """The columns that folders name, if there are any.

        Raises:
            GraphError: they are no list of columns.
        """
        columns = self.partition_columns
        return None if columns is None else text.struct_type(spark, columns)

    def data_schema(self, spark: SparkSession) -> StructType:
        """The declared columns; of Parquet without a schema, those of the first file.

        Raises:
            GraphError: a declared column cannot be in Parquet files; or the directory, or a file in it, is missing.
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
        require_directory(self.path)
        files = ordered(self.directory.scan())
        if not files:
            msg = f"{self.describe()} has no file to take the columns from. Give schema=, or put a file there first."
            raise GraphError(msg)
        return text.struct_type(spark, parquet_schema(spark, os.path.join(self.path, files[0][0])))

    @property
    def takes_columns(self) -> bool:
        """Whether the columns are taken from the first file."""
        return self.content.format == "parquet" and self.declared is None

    def with_fixed_columns(self, spark: SparkSession, resume: Position | None) -> Source:
        """The same source; if no columns are declared, with those that the position records, or else the first file's.

        Raises:
            GraphError: no columns are recorded, and there is no first file.
            StateIncompatible: the position cannot be read.
        """
        from pyspark.sql.types import StructType

        if not self.takes_columns or self.taken is not None:
            return self
        recorded: Any = decode(resume).columns if resume is not None and resume.kind == KIND else None
        return self._with(taken=self.data_schema(spark) if recorded is None else StructType.fromJson(recorded))

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
        if self.after_read is None:
            position = found_at_start(self.removal, None if resume is None else position).position
        reading = FileReading(
            content=source.content,
            schema=source.data_schema(context.spark),
            partitions=source.partition_schema(context.spark),
            bounded=source.bounded,
            max_files_per_batch=source.max_files_per_batch,
            split_bytes=source.split_bytes,
            poll_interval_ms=source.poll_interval_ms,
        )
        position = replace(position, columns=columns)
        return FilesReader(source.directory, reading, context, position, is_fresh=resume is None)

    def check_rows(self, position: Position) -> None:
        """Check, before a start changes anything, that no file was removed or changed too early.

        Raises:
            GraphError: the archive cannot be used.
            SourceChanged: such files were removed, and cannot be put back; or a file that was read has changed.
            SourceUnavailable: the directory is missing, or is another one without the files that were read.
        """
        if position.kind == KIND:
            self.directory.look(found_at_start(self.removal, decode(position)).position)

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
        removed = found_at_start(self.removal, None if resume is None else decode(resume))
        position = removed.position
        directory = self.directory
        look = directory.look(position if self.bounded else replace(position, remaining=None))
        files, size = backlog(look.files, look.position, bounded=self.bounded, newest_ns=directory.newest_ns)
        again = [*removed.back.values()]
        return Backlog(
            files=files + len(again),
            bytes=size + sum(each.size for each in again),
            warnings=(*removed.warnings, *look.warnings),
        )

    @property
    def removal(self) -> Removal:
        """What becomes of files that were read."""
        key = json.dumps([self.pattern, self.recursive])
        return Removal(root=self.path, way=self.after_read, archive=self.archive, key=key)

    @property
    def directory(self) -> WatchedDirectory:
        """Where the files are, and which of them count."""
        return WatchedDirectory(
            path=self.path,
            pattern=self.pattern,
            recursive=self.recursive,
            min_age=self.min_age,
            may_be_emptied=self.may_be_emptied,
            end=self.end,
            removal=self.removal,
            can_cut=self.content.can_cut,
        )

    def replayed(self, end: Position | None) -> Source:
        """The same files; if ``end`` is given, only those that were read at that position.

        Raises:
            StateIncompatible: the position is not one of a files source.
        """
        return self._with(end=None if end is None else decode(end), after_read=None)

    def _with(self, **values: object) -> Source:
        other = object.__new__(Source)
        for field in fields(self):
            object.__setattr__(other, field.name, values.get(field.name, getattr(self, field.name)))
        return other

    def describe(self) -> str:
        """The resolved path, pattern and format, for people."""
        return f"files {os.path.join(self.path, self.pattern)} ({self.content.format})"
