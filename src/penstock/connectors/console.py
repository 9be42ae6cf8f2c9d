"""``ps.console``: the first rows of each batch, printed."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from penstock.connectors.staging import NoOutput
from penstock.errors import GraphError
from penstock.handles import Guarantee
from penstock.spark.plans import FrameObservation, shown_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.elements import Batch
    from penstock.handles import CheckpointId
    from penstock.interfaces.sink import SinkContext

__all__ = ["Sink"]

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class Sink:
    """Prints the first rows of each batch, when the batch is written. At-least-once: a restart prints rows again.

    Once standard output is closed (``… | head``), rows are counted and no longer printed.

    Args:
        rows: the most rows of a batch that are printed.
        truncate: characters of a value that are shown; 0 shows all.

    Raises:
        GraphError: ``rows`` is not above 0.

    >>> Sink(5).describe()
    'console (5 rows a batch)'
    """

    rows: int = 20
    truncate: int = field(default=80, kw_only=True)

    def __post_init__(self) -> None:
        if self.rows < 1 or self.truncate < 0:
            msg = f"A console sink needs rows=1 or more and truncate=0 or more, got {self.rows} and {self.truncate}."
            raise GraphError(msg)

    @property
    def accepts_changes(self) -> bool:
        """Change rows are printed as they are, with the column ``_change``."""
        return True

    @property
    def guarantee(self) -> Guarantee:
        """What was printed cannot be taken back."""
        return Guarantee.AT_LEAST_ONCE

    def check(self, schema: StructType) -> None:
        """Accept any column."""

    def writer(self, context: SinkContext) -> ConsoleWriter:
        """A writer that prints to standard output."""
        return ConsoleWriter(self, context.uid)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:  # noqa: ARG002
        """Nothing is staged."""
        return ()

    def describe(self) -> str:
        """The number of rows, for people."""
        return f"console ({self.rows} rows a batch)"


class ConsoleWriter:
    """Prints batches. Made by ``Sink.writer``."""

    def __init__(self, sink: Sink, uid: str) -> None:
        self._sink = sink
        self._uid = uid
        self._is_open = True

    def write(self, batch: Batch) -> int | None:
        """Print the first rows. The job reads every row, so that the batch's metrics are complete."""
        from pyspark.sql import functions as F

        counted = FrameObservation(("rows",))
        observed = counted.observe(cast("DataFrame", batch.frame), [F.count(F.lit(1))])
        text = _first_rows(observed, self._sink.rows, self._sink.truncate)
        batch.settle()
        figures = counted.read(seconds=2)  # none come if the optimiser finds that there are no rows
        rows = figures["rows"] if figures is not None else None
        total = "" if rows is None else f", {rows} rows"
        self._print(f"-- {self._uid}, batch {batch.sequence}{total}\n{text}\n")
        return rows

    def _print(self, text: str) -> None:
        if not self._is_open:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except ConnectionError as error:  # a broken pipe; further up it would look like a lost connection to the JVM
            self._is_open = False
            log.warning("sink %s: standard output is closed (%s); rows are counted, not printed", self._uid, error)

    def prepare(self, checkpoint: CheckpointId) -> NoOutput:  # noqa: ARG002 - as for any writer
        """Return ``NoOutput``: printed rows have no commit."""
        return NoOutput()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _first_rows(frame: DataFrame, rows: int, truncate: int) -> str:
    """Spark's table of the first rows, made in one job that reads every row; a plain limit would stop early."""
    from pyspark.sql import functions as F

    order = "_penstock_place"
    first = frame.withColumn(order, F.monotonically_increasing_id()).orderBy(order).limit(rows + 1).drop(order)
    return shown_table(first, rows, truncate)
