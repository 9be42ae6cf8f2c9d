"""Rows that a pipeline gives up on, kept beside the job's state: a files sink whose place the job says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.handles import Guarantee
from penstock.sinks.files import Sink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

    from penstock.sinks.base import SinkContext
    from penstock.sinks.files_writer import FilesWriter


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Parquet files, a few for each checkpoint that has such rows. Exactly-once.

    Args:
        folder: where, once a job says it.
    """

    folder: str | None = None

    def placed(self, folder: str) -> DeadLetters:
        """The same at a place.

        Raises:
            GraphError: no files can be published there.
        """
        _files(folder)
        return replace(self, folder=folder)

    @property
    def guarantee(self) -> Guarantee:
        """As of any files sink."""
        return Guarantee.EXACTLY_ONCE

    @property
    def accepts_changes(self) -> bool:
        """Rows are kept as they come."""
        return True

    def check(self, schema: StructType) -> None:
        """Refuse columns that no file can hold.

        Raises:
            GraphError: with the column and the remedy.
        """
        _files(self.folder or "/").check(schema)

    def writer(self, context: SinkContext) -> FilesWriter:
        """A writer that stages beside the place, in a folder of this generation."""
        return self._placed().writer(context)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:
        """Below the place."""
        return self._placed().stages_in(log_id, uid)

    def describe(self) -> str:
        """For people."""
        return f"dead letters {self.folder}" if self.folder else "dead letters"

    def _placed(self) -> Sink:
        assert self.folder is not None  # a job says where before it opens anything
        return _files(self.folder)


def _files(folder: str) -> Sink:
    return Sink(folder, format="parquet")
