"""Tells observers of which source partition late rows are; decides nothing, and runs no job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.facts import RowsLate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.elements import Partitions


class LateRows:
    """Late rows of one batch by partition: of those that its rows say, or of the only one that there is.

    Args:
        partitions: of the batch.
    """

    def __init__(self, partitions: Partitions | None) -> None:
        self._partitions = partitions

    @property
    def apart(self) -> tuple[str, tuple[str, ...]] | None:
        """The column that says of which partition a row is, and their names; ``None`` where rows do not say."""
        partitions = self._partitions
        column = partitions.by_column() if partitions is not None else None
        return None if partitions is None or column is None else (column, partitions.names)

    def facts(self, task: str, late: int, told: object) -> Iterator[RowsLate]:
        """One for each partition that has late rows.

        Args:
            task: the step.
            late: how many rows are late in all.
            told: the figure, if there was one.
        """
        partitions = self._partitions
        if partitions is None or not late:
            return
        counts = json.loads(told) if isinstance(told, str) else [late] if len(partitions.names) == 1 else []
        for name, rows in zip(partitions.names, counts, strict=False):
            if rows:
                yield RowsLate(task=task, partition=partitions.qualified(name), rows=rows)
