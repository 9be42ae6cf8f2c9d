"""The plans of a windowed aggregate's results, each analysed once and hung onto the layers it is made of. Runs no job.

Decides nothing: which layers, which windows and what kind of result is said by the emitter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType

from penstock.operators.results import NEW, Bounds, Results, bounds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from penstock.operators.graft import Java
    from penstock.operators.template import Template, Templates
    from penstock.operators.window_base import Due
    from penstock.operators.window_plan import WindowPlan
    from penstock.state.cover import Told
    from penstock.state.layer import Layer


class Makes(Protocol):
    """Makes the frames that are sent on, of rows of layers: see :class:`Results`."""

    def finished(self, rows: DataFrame, bounds: Bounds) -> DataFrame:
        """The results of all windows that are due."""
        ...

    def changed(self, rows: DataFrame, bounds: Bounds, *, fired: tuple[int, int], timing: bool) -> DataFrame:
        """The results of due windows that have new rows or end in ``fired``."""
        ...

    def changes(self, rows: DataFrame, bounds: Bounds) -> DataFrame:
        """What became of due windows that have new rows."""
        ...


class ResultPlans:
    """Results of layers.

    Args:
        plan: of the step.
        templates: of the job's session.
        results: makes the frames, if not in the way of windows that are made of panes.
    """

    def __init__(self, plan: WindowPlan, templates: Templates, results: Makes | None = None) -> None:
        self._templates = templates
        self._results = results or Results(plan)
        self._rows = plan.layers_format.schema
        self._marked = StructType([*self._rows.fields, StructField(NEW, BooleanType())])
        self._made: dict[str, Template] = {}

    def finished(self, layers: Sequence[Layer], due: Due) -> DataFrame:
        """The results of all windows that are due."""

        def build(rows: DataFrame, *bounds: int) -> DataFrame:
            return self._results.finished(rows, Bounds(*bounds))

        template = self._template("finished", self._rows, build, numbers=4)
        return self._hung(template, self._union(layers), *bounds_of(due))

    def changed(self, told: Told, due: Due, *, fired: tuple[int, int], timing: bool) -> DataFrame:
        """The whole results of due windows that have new rows, or that end in ``fired``, whether new or not."""

        def build(rows: DataFrame, *numbers: int) -> DataFrame:
            *bounds, after, until = numbers
            return self._results.changed(rows, Bounds(*bounds), fired=(after, until), timing=timing)

        template = self._template(f"changed, {timing}", self._marked, build, numbers=6)
        return self._hung(template, self._news(told), *bounds_of(due), *fired)

    def changes(self, told: Told, due: Due) -> DataFrame:
        """What became of due windows that have new rows."""

        def build(rows: DataFrame, *bounds: int) -> DataFrame:
            return self._results.changes(rows, Bounds(*bounds))

        template = self._template("changes", self._marked, build, numbers=4)
        return self._hung(template, self._news(told), *bounds_of(due))

    def _news(self, told: Told) -> Java:
        """The rows of all layers of an emission, not merged, each with whether it is new."""
        sides = []
        for is_new, layers in ((False, told.old), (True, told.new)):
            if layers:
                template = self._template(f"new: {is_new}", self._rows, _marking(is_new=is_new))
                sides.append(self._templates.hang(template, self._union(layers)))
        return self._templates.grafter.union(sides)

    def _union(self, layers: Sequence[Layer]) -> Java:
        return self._templates.union([layer.frame for layer in layers])

    def _template(
        self, name: str, schema: StructType, build: Callable[..., DataFrame], *, numbers: int = 0
    ) -> Template:
        if name not in self._made:
            self._made[name] = self._templates.make(schema, build, numbers=numbers)
        return self._made[name]

    def _hung(self, template: Template, below: Java, *numbers: int) -> DataFrame:
        return self._templates.frame(self._templates.hang(template, below, *numbers))


def _marking(*, is_new: bool) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: rows.select("*", F.lit(is_new).alias(NEW))
