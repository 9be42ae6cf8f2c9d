"""``ps.files.Sink``: batches staged below the target, turned into files at a checkpoint."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors import staging
from penstock.connectors.committers import COMMITTERS
from penstock.connectors.epochs import KeptBatch, StagedBatch
from penstock.connectors.files.committer import HIDDEN, REMEDIES
from penstock.connectors.limits import check_limit
from penstock.connectors.staging import MAX_KEPT_BYTES, StagingWriter
from penstock.errors import (
    GraphError,
    InternalError,
    SinkIdentityConflict,
    StateDirectoryRefused,
    StorageFailed,
    no_column,
)
from penstock.filesystem.base import settle_all
from penstock.formats import text
from penstock.handles import Committable, FileRef, Guarantee

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructField, StructType

    from penstock.connectors.epochs import EpochPart
    from penstock.handles import CheckpointId, Json
    from penstock.interfaces.sink import SinkContext


# ---- the writer ------------------------------------------------------------------------------------------------------

KIND: Final = "files/1"
"""Kind of the committables."""


_LARGE_FILE: Final = 1024 * 1024
"""Bytes of a file from which on fewer and larger ones are not worth to write all rows again."""


class FilesWriter(StagingWriter):
    """Keeps or stages batches, and turns an epoch of them into files. Made by ``Sink.writer``."""

    def __init__(self, sink: Sink, context: SinkContext) -> None:
        refuse_another_log(sink.target, context.log_id, context.uid)
        root = "/".join([sink.target, HIDDEN, context.log_id, context.uid, str(context.generation)])
        super().__init__(context, root, most_kept=min(MAX_KEPT_BYTES, sink.target_file_bytes))
        require_writable(self.root, context.uid)
        self._sink = sink

    def committables(self, checkpoint: CheckpointId, epoch: Sequence[EpochPart]) -> Sequence[Committable]:
        """One committable that names each staged file and the name under which it is published."""
        filesystem = self.context.filesystem
        kept = [part for part in epoch if isinstance(part, KeptBatch)]
        staged = [part for part in epoch if isinstance(part, StagedBatch)]
        paths = [path for part in staged for path in self.content(part.folder)]
        as_they_are = bool(paths) and self._can_publish_staged(paths, besides=len(kept) > 0)
        with self.removed_on_failure() as made:
            if kept or not as_they_are:
                folder = f"{self.root}/files-{checkpoint}-{self.new_folder().rpartition('/')[2]}"
                made.append(StagedBatch(folder, 0))
                self._write_files(kept, [] if as_they_are else staged, folder)
                written = self.content(folder)
                if not written:
                    raise self.no_file(checkpoint, epoch)
                paths = [*(paths if as_they_are else ()), *written]
            refs = settle_all(filesystem, paths)
            staging.sync_folders(paths, self._sink.target)
        if not as_they_are:
            with suppress(Exception):  # the files are durable, and what stays is condemned by the next generation
                self.remove(staged)
        return (self._committable(checkpoint, refs, made[0].folder if made else ""),)

    def _can_publish_staged(self, paths: Sequence[str], *, besides: bool) -> bool:
        """Whether staged files can be published as they are: they have the format, and are few or large.

        ``besides``: what is kept in blocks becomes another file.
        """
        sink = self._sink
        if sink.format != "parquet" or sink.partition_by or sink.options:
            return False
        few = max(sink.files_per_checkpoint, sum(map(os.path.getsize, paths)) // _LARGE_FILE)
        return len(paths) + besides <= few

    def _write_files(self, kept: Sequence[KeptBatch], staged: Sequence[StagedBatch], folder: str) -> None:
        """Write files of the sink's format, in one job, from blocks and from staged files."""
        context, sink = self.context, self._sink
        size = sum(part.bytes for part in kept)
        size += sum(os.path.getsize(path) for part in staged for path in self.content(part.folder))
        parts = max(sink.files_per_checkpoint, -(-size // sink.target_file_bytes))
        options = {name: str(value) for name, value in sink.options.items()}
        with self.explain_failure(), context.background():
            frames = [self.kept_frame(kept)] if kept else []
            if staged:
                urls = [self.url(part.folder) for part in staged]
                frames.append(staging.read_staged(context.spark, urls, context.schema))
            frame = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
            if sink.partition_by and parts > 1:
                frame = frame.repartition(parts, *sink.partition_by)
            else:
                frame = frame.coalesce(parts)
            staging.write(frame, self.url(folder), sink.format, sink.partition_by, options)

    def _committable(self, checkpoint: CheckpointId, refs: Sequence[FileRef], folder: str) -> Committable:
        """The committable of these files; those below ``folder`` may be in folders of partitions."""
        context = self.context
        name = f"part-{context.log_id[:8]}-{context.uid}-{checkpoint}-{context.generation}"
        moves: dict[str, Json] = {}
        for number, ref in enumerate(refs):
            parent, _, file = ref.path.rpartition("/")
            partition = parent[len(folder) :].strip("/") if folder and parent.startswith(folder) else ""
            ending = file.partition(".")[2]
            final = f"{name}-{number:02d}.{ending}"
            moves[ref.path] = "/".join(part for part in (self._sink.target, partition, final) if part)
        if len(set(moves.values())) != len(refs):
            msg = f"Two files of checkpoint {checkpoint} would have one name: {moves}"
            raise InternalError(msg, uid=context.uid)
        return Committable(
            uid=context.uid,
            kind=KIND,
            checkpoint=checkpoint,
            target=self._sink.target,
            files=tuple(refs),
            detail={"moves": moves, "format": self._sink.format},
        )

    @contextmanager
    def explain_failure(self) -> Iterator[None]:
        """Turn a failed Spark job into an error that names the folder, if the folder cannot be written any more."""
        try:
            yield
        except Exception:
            require_writable(self.root, self.context.uid)
            raise


def refuse_another_log(target: str, log_id: str | None, uid: str) -> None:
    """Refuse a target where a sink of this uid has staged under the ids of other logs only (rule S4).

    Otherwise a job whose state directory was lost would publish its whole input again. A log that has staged here
    before is accepted: other jobs may publish into the same target. ``log_id`` is ``None`` for a log that is yet to
    begin.

    Raises:
        SinkIdentityConflict: only other logs have staged here.
        StorageFailed: the target cannot be looked at.
    """
    top = os.path.join(target, HIDDEN)
    try:
        logs = sorted(os.listdir(top)) if os.path.isdir(top) else []
    except OSError as error:
        msg = f"Folder {top} cannot be listed ({error.strerror}). Give this user the right to read it, or mount it."
        raise StorageFailed(msg, uid=uid) from error
    staged = [log for log in logs if os.path.isdir(os.path.join(top, log, uid))]
    if staged and log_id not in staged:
        folder = os.path.join(top, staged[0], uid)
        own = "a new one begins here" if log_id is None else f"this one is {log_id}"
        msg = (
            f"{target} holds output of a sink '{uid}' of another log ({staged[0]}; {own}). The state directory was "
            "lost or changed, or another job writes here too. What is published there would be published again. Give "
            "the job its old state directory, or the sink another path or uid. To publish beside what is there, and "
            f"only if no other job writes here, delete {folder}"
        )
        raise SinkIdentityConflict(msg, uid=uid)


def require_writable(folder: str, uid: str) -> None:
    """Refuse a folder that cannot be made or written. A restart would fail in the same way.

    Raises:
        StateDirectoryRefused: this user may not write there, it is read-only, or a file is in its place.
    """
    top = folder
    while not os.path.exists(top):
        top = os.path.dirname(top)
    if not os.path.isdir(top):
        number = errno.ENOTDIR
    elif not os.access(top, os.W_OK | os.X_OK):
        number = errno.EROFS if os.statvfs(top).f_flag & os.ST_RDONLY else errno.EACCES
    else:
        return
    reason = f"{top}: {os.strerror(number)}"
    msg = f"Output cannot be staged in {folder} ({reason}). {REMEDIES[number]}, then start the job again."
    raise StateDirectoryRefused(msg, uid=uid)


# ---- the sink --------------------------------------------------------------------------------------------------------

_TIMES: Final = ("dateFormat", "timestampFormat", "timestampNTZFormat", "timeFormat", "timeZone", "locale")
_EFFECTIVE: Final[Mapping[str, tuple[str, ...]]] = {
    "csv": (
        *("compression", "codec", "encoding", "charset", "extension", "lineSep", "maxRecordsPerFile", *_TIMES),
        *("header", "sep", "delimiter", "quote", "quoteAll", "escape", "escapeQuotes", "charToEscapeQuoteEscaping"),
        *("comment", "nullValue", "emptyValue", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace"),
    ),
    "json": (
        *("compression", "encoding", "charset", "lineSep", "maxRecordsPerFile", *_TIMES),
        *("ignoreNullFields", "pretty", "sortKeys", "writeNonAsciiCharacterAsCodePoint"),
    ),
    "parquet": ("compression", "maxRecordsPerFile"),
    "text": ("compression", "encoding", "lineSep", "maxRecordsPerFile"),
}
"""By format, the options that change what is written. A name with a dot is a setting of Hadoop or Parquet."""
FORMATS: Final = tuple(_EFFECTIVE)


@dataclass(frozen=True, slots=True)
class Sink:
    """Files below a directory, a few for each checkpoint, however many batches. Exactly-once.

    A batch is kept in memory or staged below ``<path>/.penstock``, in one job. At a checkpoint one background job
    makes files of the format of them, unless they are staged, Parquet, and few or of 1 MB each on average. Once the
    checkpoint is in the log they are renamed into place, under names that are never used again:
    ``part-<log>-<uid>-<checkpoint>-<generation>-<number>.<ending>``. A reader may take a file away as soon as it sees
    it. The files of one checkpoint appear one after another, not at once. No rows, no file.

    Do not delete ``.penstock``: while a folder of it is missing, as on a target that is not mounted, the job cannot
    tell what was published, and waits for it.

    Args:
        path: the directory, on a local disk or one that all executors have mounted. Made if absent.
        format: ``"parquet"``, ``"json"``, ``"csv"`` or ``"text"`` (one ``STRING`` column).
        partition_by: columns whose values become folders ``column=value/``. A name may begin with ``_``: Spark's
            readers (not all others) look into such folders. Not with ``.``.
        files_per_checkpoint: fewest files of a checkpoint; if partitioned, most files for each folder.
        target_file_bytes: more files if the staged rows are larger than this, in bytes of staged Parquet.
        options: of Spark's writer (``compression``, ``header``, ``sep``, …), those that have an effect. Names with a
            dot are settings of Hadoop or Parquet and are not checked.

    Raises:
        GraphError: an argument is impossible.

    >>> Sink("out", format="json").describe().endswith("out (json)")
    True
    """

    path: str | os.PathLike[str]
    format: str = field(default="parquet", kw_only=True)
    partition_by: Sequence[str] = field(default=(), kw_only=True)
    files_per_checkpoint: int = field(default=1, kw_only=True)
    target_file_bytes: int = field(default=256 * 1024 * 1024, kw_only=True)
    options: Mapping[str, object] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        local = os.fspath(self.path).removeprefix("file://")
        if "://" in local:
            msg = (
                f"Path {self.path!r} is not on a local or mounted file system. Output is published by rename: mount it."
            )
            raise GraphError(msg)
        object.__setattr__(self, "path", os.path.abspath(local))
        if isinstance(self.partition_by, str):
            object.__setattr__(self, "partition_by", (self.partition_by,))
        object.__setattr__(self, "partition_by", tuple(self.partition_by))
        if self.format not in FORMATS:
            msg = f"Format {self.format!r} is not one of {', '.join(FORMATS)}. Give one of these."
            raise GraphError(msg)
        for name, number in (
            ("files_per_checkpoint", self.files_per_checkpoint),
            ("target_file_bytes", self.target_file_bytes),
        ):
            check_limit(name, number)
        for name in self.options:
            if "." not in name:
                text.check_effect(name, _EFFECTIVE[self.format], f"{self.format} is written")

    @property
    def target(self) -> str:
        """The directory, as an absolute path."""
        return os.fspath(self.path)

    @property
    def accepts_changes(self) -> bool:
        """Change rows are written as they are, with the column ``_change``."""
        return True

    @property
    def guarantee(self) -> Guarantee:
        """The rename is the commit, and a renamed file is gone from its staging folder."""
        return Guarantee.EXACTLY_ONCE

    @property
    def committers(self) -> Mapping[str, str]:
        """Renames staged files into place."""
        return {KIND: COMMITTERS[KIND]}

    def check(self, schema: StructType) -> None:
        """Check that the format can hold the columns.

        Raises:
            GraphError: it cannot; names the column and the remedy.
        """
        staging.check_names(schema)
        missing = [name for name in self.partition_by if name not in schema.fieldNames()]
        if missing:
            msg = f"partition_by: {no_column(missing[0], schema.fieldNames())}"
            raise GraphError(msg)
        content = [f for f in schema.fields if f.name not in self.partition_by]
        if not content:
            msg = "Every column is in partition_by, so nothing is left to write into files. Leave one out."
            raise GraphError(msg)
        for column in schema.fields:
            _check_column(column, self.format, partition=column.name in self.partition_by)
        if self.format == "text" and [f.dataType.typeName() for f in content] != ["string"]:
            msg = (
                f"Format 'text' writes one STRING column, but the columns are {_columns(content)}. Select one, or "
                "write format='json'."
            )
            raise GraphError(msg)

    def check_log(self, log_id: str | None, uid: str) -> None:
        """Check that no job of another log alone has published here under this uid.

        Raises:
            SinkIdentityConflict: one has.
            StorageFailed: the target cannot be looked at.
        """
        refuse_another_log(self.target, log_id, uid)

    def writer(self, context: SinkContext) -> FilesWriter:
        """A writer that stages in a folder of this generation.

        Raises:
            SinkIdentityConflict: a sink of this uid has published here under another log.
            StateDirectoryRefused: the path cannot be written.
        """
        return FilesWriter(self, context)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:  # noqa: ARG002 - the sink may have had another one
        """The staging folder of a log, below the target, so that publishing is a rename; for any uid."""
        return (f"{self.target}/{HIDDEN}/{log_id}",)

    def describe(self) -> str:
        """The resolved path and the format, for people."""
        return f"files {self.path} ({self.format})"


def _columns(fields: Sequence[StructField]) -> str:
    """Columns with their types, for people: ``id LONG, user STRING``."""
    return ", ".join(f"{field.name} {field.dataType.simpleString().upper()}" for field in fields)


def _check_column(column: Any, form: str, *, partition: bool) -> None:
    kind = column.dataType.typeName()
    flat = kind not in ("array", "map", "struct", "variant", "binary")
    staging.check_column(column)
    if partition and column.name.startswith("."):
        msg = f"Column {column.name!r} would name hidden folders, which readers skip. Rename it."
        raise GraphError(msg)
    if partition and not flat:
        msg = f"Column {column.name!r} is {kind}, which cannot name a folder. Partition by a simple value."
        raise GraphError(msg)
    if form == "csv" and not flat:
        msg = f"Column {column.name!r} is {kind}, which csv cannot hold. Use to_json(...) on it, or format='json'."
        raise GraphError(msg)
