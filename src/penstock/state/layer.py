"""One immutable layer of merged rows in Spark's cache, and what the rows of a step's layers look like.

Knows nothing of the stack a layer lies in, of checkpoints or of windows' shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from penstock.elements import Lease
from penstock.ids import END_OF_TIME
from penstock.state.changing import changing, holds, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from penstock.handles import Json

START, END = "window_start", "window_end"
EXTENT = ("rows", "first", "last")
KIND = "window/1"


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerFormat:
    """The rows of a step's layers: one for each key and stretch of time, with partial aggregates.

    Columns that are the same for every layer are made once: each takes several calls to the JVM.

    Attributes:
        uid: the step, for messages.
        keys: names of the key columns, maybe none.
        schema: the key columns, where the stretch starts and ends (TIMESTAMP), then the partial columns.
        merges: for each partial column, how the values of one key and stretch become one.
        partitions: ``n``: every layer of a process is hashed into as many.
        start: name of the column that says where a stretch starts: a window, or a pane that several windows share.
        end: name of the one that says where it ends.
        scattered: whether, without keys, different stretches may lie apart; not if they are to be put together.
        skips_null: whether partials that are NULL make no difference to any merge.
        kind: name and version of the format, which a restore compares.
        table: what else it takes to read the rows as a table; kept beside the layers, opaque here.
    """

    uid: str
    keys: tuple[str, ...]
    schema: StructType
    merges: Mapping[str, Callable[[Column], Column]]
    partitions: int
    start: str = START
    end: str = END
    scattered: bool = True
    skips_null: bool = False
    kind: str = KIND
    table: Mapping[str, Json] | None = None

    @property
    def together(self) -> tuple[str, ...]:
        """Rows that may have to be merged are alike in these columns; none if any two may have to be.

        By their hash, layers lie in partitions in memory.
        """
        return self.keys or ((self.end,) if self.scattered else ())

    @cached_property
    def sliced(self) -> tuple[str, ...]:
        """By the hash of these columns a row falls into a slice; none if all are in one.

        Of texts with a collation, some are alike that ``hash`` tells apart: their rows would never be merged on disk.
        """
        types = (self.schema[name].dataType.simpleString() for name in self.together)
        return () if any(" collate " in kind for kind in types) else self.together

    def hashed(self, frame: DataFrame) -> DataFrame:
        """``frame`` placed as all layers are: by the user's keys alone; without keys by end, or all in one place."""
        if not self.together:
            return frame.repartition(1)
        return frame.repartition(self.partitions, *(quoted(name) for name in self.together))

    def merged(self, frame: DataFrame, *more: Column, by: tuple[str, ...] = ()) -> DataFrame:
        """One row for each key and stretch, and each value of ``by``. No exchange if ``frame`` is a union of layers.

        ``more`` are aggregates over other columns of ``frame``.
        """
        groups = (quoted(name) for name in (*self.keys, self.start, self.end, *by))
        return frame.groupBy(*groups).agg(*self.merging, *more)

    @cached_property
    def merging(self) -> tuple[Column, ...]:
        """The partials of one group become one: aggregates, one for each partial column."""
        return tuple(column.alias(name) for name, column in self.merging_of(lambda partial: partial).items())

    def merging_of(self, shown: Callable[[Column], Column]) -> dict[str, Column]:
        """The same over what is made of each partial column."""
        from pyspark.sql import functions as F

        types = {field.name: field.dataType for field in self.schema.fields}
        return {name: merge(shown(F.col(quoted(name)))).cast(types[name]) for name, merge in self.merges.items()}

    @cached_property
    def extent(self) -> tuple[Column, ...]:
        """How many rows there are, and where the first and the last of them end: aggregates over a layer's rows."""
        from pyspark.sql import functions as F

        end = F.expr(f"unix_micros({self.end})")
        return (F.count(F.lit(1)).alias("rows"), F.min(end).alias("first"), F.max(end).alias("last"))

    def between(self, frame: DataFrame, after: int, until: int = END_OF_TIME) -> DataFrame:
        """Rows whose stretch ends in ``(after, until]``. Bounds change with every batch and compile nothing."""
        end = f"unix_micros({self.end})"
        lower, upper = (f"{changing(bound, beside=self.end)}" for bound in (after, until))
        return frame.where(holds(f"{end} > {lower} AND {end} <= {upper}"))

    def ddl(self) -> str:
        """The schema as Spark DDL: what a state handle records."""
        return ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in self.schema.fields)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Extent:
    """How much is in a layer, which may still have to be written, or to be read.

    Attributes:
        rows: how many there are, or an upper bound.
        level: how many merges deep it is.
        first_end: least end of the windows or panes of its rows, in microseconds, or less.
        last_end: the greatest, or more.
    """

    rows: int
    level: int
    first_end: int
    last_end: int

    def spans(self, first: int, last: int) -> bool:
        """Whether some of its rows may end in ``[first, last]``."""
        return self.first_end <= last and self.last_end >= first


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer(Extent):
    """One immutable set of merged rows in Spark's cache.

    Attributes:
        name: unique within the process.
        epoch: the number of the snapshot that first covers it.
        frame: the rows.
        lease: who still needs the blocks; the stack is one of them.
        turn: the number of the emission that first tells of it; 0 if nobody asks what has changed.
    """

    name: str
    epoch: int
    frame: DataFrame
    lease: Lease
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """Rows in Spark's cache, and their extent, which says nothing if there are none."""

    frame: DataFrame
    rows: int
    first_end: int
    last_end: int
    lease: Lease


def union(layers: Sequence[Layer]) -> DataFrame:
    """The rows of several layers, not yet merged; their common partitioning is kept."""
    return reduce(lambda left, right: left.union(right), (layer.frame for layer in layers))


def release(held: Sequence[Layer | Kept]) -> None:
    """One holder of each is done with it."""
    for each in held:
        each.lease.release()
