"""What became of a step's state from one checkpoint to another, as a change stream tells it. Reads; decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import StateIncompatible
from penstock.operate.state.find import chosen

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.checkpoint.history import History
    from penstock.operate.state.read import StateReader

_BEFORE, _AFTER, _SIDE, _ROW = (f"__penstock_{name}" for name in ("before", "after", "side", "row"))
CHANGES: Final = ("delete", "insert", "update_before", "update_after")


def diff_state(reader: StateReader, history: History, uid: str, before: int | str, after: int | str) -> DataFrame:
    """Rows that came, went or changed, each with what happened to it in ``_change``.

    A row is the same row if key and window are (of a counted window that is not full: the key). One that changed is
    there twice, as ``update_before`` and ``update_after``; one that did not is not there.

    Args:
        reader: of the job.
        history: what its log says.
        uid: the step.
        before: a checkpoint's number or a savepoint's name.
        after: likewise; it may be the older one.

    Raises:
        UnknownName: no such checkpoint or step.
        StateIncompatible: the two have other columns.
        CondemnedWhileRead: one was cleaned up meanwhile.
    """
    manifests = [chosen(history, at) for at in (before, after)]
    old, new = (reader.rows(manifest, uid) for manifest in manifests)
    if [(field.name, field.dataType) for field in old.schema] != [(field.name, field.dataType) for field in new.schema]:
        msg = (
            f"at {before} the table has {old.schema.simpleString()}, at {after} {new.schema.simpleString()}; look at "
            "each with --at"
        )
        raise StateIncompatible(msg, uid=uid)
    return _changes(old, new, reader.identity(manifests[1], uid))


def _changes(old: DataFrame, new: DataFrame, identity: tuple[str, ...]) -> DataFrame:
    from pyspark.sql import functions as F

    from penstock.operators.window_checks import CHANGE
    from penstock.state.changing import quoted

    keys = [F.col(quoted(name)) for name in identity]
    values = F.struct(*(F.col(quoted(name)) for name in old.columns if name not in identity))
    sides = [frame.select(*keys, values.alias(_ROW), F.lit(side).alias(_SIDE)) for side, frame in enumerate((old, new))]
    row_of = [F.first(F.when(F.col(_SIDE) == side, F.col(_ROW)), ignorenulls=True) for side in (0, 1)]
    both = sides[0].union(sides[1]).groupBy(*keys).agg(row_of[0].alias(_BEFORE), row_of[1].alias(_AFTER))
    was, is_now = F.col(_BEFORE), F.col(_AFTER)
    changed = both.where(~_comparable(both, _BEFORE).eqNullSafe(_comparable(both, _AFTER)))
    kinds = (
        F.when(was.isNull(), F.array(_told("insert", is_now)))
        .when(is_now.isNull(), F.array(_told("delete", was)))
        .otherwise(F.array(_told("update_before", was), _told("update_after", is_now)))
    )
    found = changed.select(*keys, F.explode(kinds).alias(_ROW)).select(*keys, f"{_ROW}.row.*", f"{_ROW}.change")
    return found.withColumnRenamed("change", CHANGE).select(*map(quoted, old.columns), CHANGE)


def _told(change: str, row: Column) -> Column:
    from pyspark.sql import functions as F

    return F.struct(row.alias("row"), F.lit(change).alias("change"))


def _comparable(frame: DataFrame, name: str) -> Column:
    """The row, or as text what Spark cannot compare."""
    from pyspark.sql import functions as F

    from penstock.operators.aggregates.base import is_ordered

    return F.col(name) if is_ordered(frame.schema[name].dataType) else F.to_json(F.col(name))
