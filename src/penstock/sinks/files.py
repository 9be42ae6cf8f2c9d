"""Files as a sink: staged beside the target, published by rename. Knows nothing of the log or of other sinks."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import GraphError
from penstock.handles import Guarantee
from penstock.sinks.files_writer import HIDDEN, FilesWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import StructType

    from penstock.sinks.base import SinkContext

FORMATS: Final = ("csv", "json", "parquet", "text")


@dataclass(frozen=True, slots=True)
class Sink:
    """Files below a directory, a few for each checkpoint, however many batches. Exactly-once.

    A batch is staged below ``<path>/.penstock`` in one job. At a checkpoint one background job turns the staged
    batches into files of the format; once the checkpoint is in the log they are renamed into place, under names that
    are never used again: ``part-<log>-<uid>-<checkpoint>-<generation>-<number>.<ending>``. A reader may take a file
    away as soon as it sees it. The files of one checkpoint appear one after another, not at once. No rows, no file.

    Do not delete ``.penstock``: while a folder of it is missing, as on a target that is not mounted, the job cannot
    tell what was published, and waits for it.

    Args:
        path: the directory, on a local disk or one that all executors have mounted. Made if absent.
        format: ``"parquet"``, ``"json"``, ``"csv"`` or ``"text"`` (one ``STRING`` column).
        partition_by: columns whose values become folders ``column=value/``. A name may begin with ``_``: Spark's
            readers (not all others) look into such folders. Not with ``.``.
        files_per_checkpoint: at least so many files a checkpoint (for each folder, if partitioned, at most).
        target_file_bytes: more files if the staged rows are larger than this, in bytes of staged Parquet.
        options: of Spark's writer (``compression``, ``header``, ``sep``, …).

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
            msg = f"path {self.path!r}: output is published by rename, which needs a local or mounted file system"
            raise GraphError(msg)
        object.__setattr__(self, "path", os.path.abspath(local))
        if isinstance(self.partition_by, str):
            object.__setattr__(self, "partition_by", (self.partition_by,))
        object.__setattr__(self, "partition_by", tuple(self.partition_by))
        if self.format not in FORMATS:
            msg = f"format {self.format!r} is not one of {', '.join(FORMATS)}"
            raise GraphError(msg)
        if self.files_per_checkpoint < 1 or self.target_file_bytes < 1:
            msg = "files_per_checkpoint and target_file_bytes must be at least 1"
            raise GraphError(msg)

    @property
    def target(self) -> str:
        """The directory, as an absolute path."""
        return os.fspath(self.path)

    @property
    def accepts_changes(self) -> bool:
        """Rows are kept as they come, ``_change`` among their columns."""
        return True

    @property
    def guarantee(self) -> Guarantee:
        """The rename is the commit, and what was renamed is gone from where it was."""
        return Guarantee.EXACTLY_ONCE

    def check(self, schema: StructType) -> None:
        """Refuse columns that the format cannot hold.

        Raises:
            GraphError: with the column and the remedy.
        """
        names = [name.lower() for name in schema.fieldNames()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            msg = f"columns {', '.join(twice)} stand twice (case does not count): rename one of each"
            raise GraphError(msg)
        missing = [name for name in self.partition_by if name not in schema.fieldNames()]
        if missing:
            msg = f"partition_by names {', '.join(missing)}; the columns are {', '.join(schema.fieldNames())}"
            raise GraphError(msg)
        content = [f for f in schema.fields if f.name not in self.partition_by]
        if not content:
            msg = "every column is in partition_by: nothing is left to write into files"
            raise GraphError(msg)
        for column in schema.fields:
            _check_column(column, self.format, partition=column.name in self.partition_by)
        if self.format == "text" and [f.dataType.typeName() for f in content] != ["string"]:
            msg = (
                f"format 'text' writes one STRING column, there are {schema.simpleString()}: select one, or use 'json'"
            )
            raise GraphError(msg)

    def writer(self, context: SinkContext) -> FilesWriter:
        """A writer that stages in a folder of this generation.

        Raises:
            SinkIdentityConflict: a sink of this uid has published here under another log.
        """
        return FilesWriter(self, context)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:  # noqa: ARG002 - it may have had another
        """Beside the target, so that publishing is a rename; whatever the sink was called when it did."""
        return (f"{self.target}/{HIDDEN}/{log_id}",)

    def describe(self) -> str:
        """For people, with the path as it was resolved."""
        return f"files {self.path} ({self.format})"


def _check_column(column: Any, form: str, *, partition: bool) -> None:
    kind = column.dataType.typeName()
    flat = kind not in ("array", "map", "struct", "variant", "binary")
    if kind in ("void", "null", "interval"):
        msg = f"column {column.name!r} is {kind}, which no file can hold: cast or drop it"
        raise GraphError(msg)
    if partition and column.name.startswith("."):
        msg = f"column {column.name!r} would name hidden folders, which readers skip: rename it"
        raise GraphError(msg)
    if partition and not flat:
        msg = f"column {column.name!r} is {kind}, which cannot name a folder: partition by a simple value"
        raise GraphError(msg)
    if form == "csv" and not flat:
        msg = f"column {column.name!r} is {kind}, which csv cannot hold: use to_json(...) on it, or format='json'"
        raise GraphError(msg)
