"""How the files of dead letters are opened: Parquet, by pyarrow. Knows neither logs nor replays, and needs no Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.errors import CheckpointUnreadable
from penstock.ids import WallTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A file of letters from outside.

    Attributes:
        rows: letters in it.
        bytes: of the file.
        written: when, by the file's time.
    """

    rows: int
    bytes: int
    written: WallTime


class Shelf(Protocol):
    """Where files of letters are looked at, by absolute paths."""

    def look(self, path: str) -> Look:
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


class ParquetShelf:
    """Of files on this machine."""

    def look(self, path: str) -> Look:
        """By the file's footer, and its entry in the folder."""
        rows, status = parquet(path).metadata.num_rows, os.stat(path)
        return Look(rows=rows, bytes=status.st_size, written=WallTime(status.st_mtime_ns // 1_000))

    def columns(self, path: str, names: Sequence[str]) -> list[list[Any]]:
        """No other column is read."""
        table = parquet(path).read(columns=list(names))
        return [table.column(name).to_pylist() for name in names]


PARQUET: Final = ParquetShelf()


def parquet(path: str) -> Any:
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
