"""One batch on its way into the state: its rows flagged and watched, and what a job over them tells.

Runs no job itself, unless what was observed is lost. Knows nothing of layers, or of whose job it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.operators.late_rows import LateRows
from penstock.operators.window_figures import BY_PARTITION, FIRST, HEAVIEST, LAST, Wanted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.elements import Batch
    from penstock.operators.base import OperatorContext
    from penstock.operators.folding import Folding
    from penstock.operators.graft import Java
    from penstock.operators.layer_plans import LayerPlans


class Arrival:
    """Counts the rows of a batch.

    Args:
        batch: that comes.
        flagged: its rows with a code for each, see :meth:`WindowPlan.flagged`.
        plans: of the step.
        folding: is told how many rows fall into how many groups.
        reach: whether its rows say how far the layer reaches: then :meth:`extent` is known.

    Attributes:
        watched: the plan to make a layer of: a job over it tells what is asked for here.
        late: how many rows are late or without an event time, once it is told.
        missing: how many of them have no event time.
    """

    def __init__(
        self, batch: Batch, flagged: Java, plans: LayerPlans, folding: Folding, *, reach: bool = False
    ) -> None:
        self._batch = batch
        self._flagged = flagged
        self._plans = plans
        self._folding = folding
        self._by_partition = LateRows(batch.partitions)
        self._wanted = Wanted(apart=self._by_partition.apart, places=folding.asks, reach=reach)
        self._where: object = None
        self.watched, self._counts = plans.counted(flagged, self._wanted)
        self.late = self.missing = 0

    def told(self, groups: int) -> None:
        """A job has run over all that is watched; its rows on time were of so many groups.

        Raises:
            ConnectorError: it has not read what was planned.
        """
        told = self._told()
        self._folding.told(rows=told["on_time"] or 0, groups=groups, heaviest=told.get(HEAVIEST))
        self.missing = told["missing"] or 0
        self.late = (told["late"] or 0) + self.missing
        self._where = told.get(BY_PARTITION)
        self._batch.settle()

    def report(self, context: OperatorContext) -> None:
        """Count what is late, and say of which partitions."""
        for fact in self._by_partition.facts(context.uid, self.late, self._where):
            context.report(fact)
        for name, rows in (("missing_time", self.missing), ("late", self.late)):
            if rows:
                context.count(name, rows)

    def extent(self) -> Mapping[str, Any] | None:
        """How far the layer of all that is watched reaches, and how many rows it has at most: see :data:`EXTENT`.

        ``None`` if the observation is lost: then the layer must be asked, for it is there, and not the batch.
        """
        told: Mapping[str, Any] | None = self._counts.read()
        return None if told is None else {"rows": told["on_time"], "first": told[FIRST], "last": told[LAST]}

    def _told(self) -> Mapping[str, Any]:
        """The figures; by a job of their own if the observation is lost."""
        told = self._counts.read()
        if told is None:
            figures = (figure.alias(name) for name, figure in self._plans.figures(self._wanted).items())
            told = self._plans.frame(self._flagged).agg(*figures).collect()[0].asDict()
        return told
