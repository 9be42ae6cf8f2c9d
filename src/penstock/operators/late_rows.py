"""Tells observers of which source partition late rows are; decides nothing, and runs no job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from penstock.facts import RowsLate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from penstock.elements import Partitions
    from penstock.operators.window_plan import WindowPlan

FIGURE: Final = "late_by_partition"


class LateRows:
    """Late rows of one batch by partition: of those that its rows say, or of the only one that there is.

    Args:
        plan: of the step.
        schema: of its input.
        partitions: of the batch.
    """

    def __init__(self, plan: WindowPlan, schema: StructType, partitions: Partitions | None) -> None:
        self._plan = plan
        self._schema = schema
        self._partitions = partitions

    def figures(self) -> Mapping[str, Column]:
        """What to observe besides the batch's own figures, by name; nothing where rows do not say."""
        partitions = self._partitions
        column = partitions.by_column() if partitions is not None else None
        if partitions is None or column is None:
            return {}
        return {FIGURE: self._plan.late_by_partition(column, partitions.names, self._schema).alias(FIGURE)}

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
