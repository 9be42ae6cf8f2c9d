"""Figures told apart by the partition that rows come from, as one column of SQL; knows nothing of what they count.

One array column costs little; a column for each partition costs more than the batch (64 maxima: 360 ms for 38).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.state.changing import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.types import StructType


def array_by_partition(figure: str, column: str, names: Iterable[str], schema: StructType) -> str:
    """SQL for a JSON array of the aggregate ``figure`` for each partition.

    Args:
        figure: an aggregate in which ``{mine}`` stands for "the row is of that partition".
        column: has the partition's name.
        names: in the order of the array.
        schema: of the rows; a number is compared as a number.

    >>> from pyspark.sql.types import StructType
    >>> array_by_partition("count_if({mine})", "p", ["0", "1"], StructType.fromDDL("p INT"))
    'to_json(array(count_if(`p` = 0L), count_if(`p` = 1L)))'
    """
    is_number = schema[column].dataType.typeName() in ("byte", "short", "integer", "long")
    mine = (f"{quoted(column)} = {f'{int(name)}L' if is_number else _text(name)}" for name in names)
    return f"to_json(array({', '.join(figure.format(mine=each) for each in mine)}))"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
