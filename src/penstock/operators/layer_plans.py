"""The plans that make the layers of a windowed aggregate, each analysed once and hung onto a batch. Runs no job.

Knows nothing of the stack, of watermarks and of when a layer is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import GraphError, InternalError
from penstock.ids import END_OF_TIME
from penstock.operators.gauge import gauge_of
from penstock.operators.graft import Java, plan_of
from penstock.operators.plan_check import PlanCheck
from penstock.operators.schemas import nullable
from penstock.operators.template import Template, Templates
from penstock.operators.window_figures import Wanted, figures_of
from penstock.state.layer import EXTENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from penstock.elements import Measure
    from penstock.operators.gauge import Gauge
    from penstock.operators.window_plan import WindowPlan
    from penstock.state.layer import Layer

_GAUGES: Final = 3
"""What is kept of gauges made before."""


class LayerPlans:
    """Makes the plans of one step.

    Args:
        plan: what the step does to frames.
        templates: of the job's session.
        schema: of the step's input.
    """

    def __init__(self, plan: WindowPlan, templates: Templates, schema: StructType) -> None:
        self._plan = plan
        self._templates = templates
        self._flagged = templates.make(nullable(schema), plan.flagged, numbers=3 if plan.window.is_processing else 2)
        self._over = nullable(self._flagged.schema)
        self._gauges: dict[Wanted, Gauge] = {}
        self._partials: dict[bool, Template] = {}
        self._merging: Template | None = None
        self._is_volatile = self._draws()

    # -------------------------------------------------------------------------------------------------------- a batch

    def flagged(self, frame: DataFrame, *, horizon: int, mark: int, arrival: int | None) -> Java:
        """The plan of a batch's rows with a code for each: see :meth:`WindowPlan.flagged`."""
        below = cast("Any", frame)._jdf.logicalPlan()  # noqa: SLF001 - plans have no public way in
        if not self._templates.fits(self._flagged, below):
            msg = f"a batch has the columns {frame.schema.simpleString()}, not those that the step before it declared"
            raise InternalError(msg)
        return self._templates.hang(self._flagged, below, horizon, mark, *(() if arrival is None else (arrival,)))

    def counted(self, flagged: Java, wanted: Wanted) -> tuple[Java, Measure]:
        """The same, observed: tells what is wanted."""
        if wanted not in self._gauges:
            while len(self._gauges) > _GAUGES:  # partitions come and go seldom
                del self._gauges[next(iter(self._gauges))]
            self._gauges[wanted] = self._templates.gauge(self._flagged, self.figures(wanted))
        return self._templates.watch(flagged, self._gauges[wanted])

    def figures(self, wanted: Wanted) -> dict[str, Column]:
        """What is observed, by name: aggregates over flagged rows."""
        return figures_of(wanted, self._plan.plain_keys, self._flagged.schema)

    def partial(self, flagged: Java, *, fold: bool) -> tuple[DataFrame, Measure]:
        """The rows of a batch's layer, and what tells their extent: see :meth:`WindowPlan.partial`."""
        if self._is_volatile:
            frame = self._plan.partial(self.frame(flagged), fold=fold)
            plan, told = self._templates.watch(plan_of(frame), gauge_of(frame, "layer", self._extent()))
            return self.frame(plan), told
        return self._hung(self._partial(fold=fold), flagged)

    def unwatched(self, flagged: Java) -> DataFrame:
        """The rows of a small batch's layer, whose extent nobody is told."""
        if self._is_volatile:
            return self._plan.partial(self.frame(flagged))
        return self.frame(self._templates.hang(self._partial(fold=False), flagged))

    def _partial(self, *, fold: bool) -> Template:
        if fold not in self._partials:
            self._partials[fold] = self._templates.make(
                self._over, lambda frame: self._plan.partial(frame, fold=fold), figures=self._extent()
            )
        return self._partials[fold]

    def frame(self, plan: Java) -> DataFrame:
        """A lazy frame of a plan."""
        return self._templates.frame(plan)

    # ------------------------------------------------------------------------------------------------------- merging

    def merged(self, layers: Sequence[Layer], horizon: int) -> tuple[DataFrame, Measure]:
        """The rows of one layer in the place of several, and what tells their extent."""
        layers_format = self._plan.layers_format
        if self._merging is None:
            self._merging = self._templates.make(
                layers_format.schema,
                lambda rows, *bounds: layers_format.merged(layers_format.between(rows, *bounds)),
                numbers=2,
                figures=self._extent(),
            )
        rows = self._templates.union([layer.frame for layer in layers])
        return self._hung(self._merging, rows, horizon, END_OF_TIME)

    def _hung(self, template: Template, below: Java, *numbers: int) -> tuple[DataFrame, Measure]:
        assert template.gauge is not None
        plan, told = self._templates.watch(self._templates.hang(template, below, *numbers), template.gauge)
        return self.frame(plan), told

    def _extent(self) -> dict[str, Column]:
        return dict(zip(EXTENT, self._plan.layers_format.extent, strict=True))

    def _draws(self) -> bool:
        """Whether an input of an aggregate draws random numbers, whose seed analysis makes a part of the plan."""
        leaf = self._templates.grafter.leaf(self._over)
        check = PlanCheck(leaf.rdd, set())
        try:
            check.check(plan_of(leaf.frame.select(*self._plan.inputs)))
        except GraphError:  # not a function of the row, either
            return True
        return check.is_volatile
