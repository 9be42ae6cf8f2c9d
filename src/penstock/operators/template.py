"""Plans that are analysed once though some of their numbers change: made over a leaf, hung onto a batch. Runs no job.

A function from frame to frame is called with numbers that stand for others; what analysis makes of it is kept. For a
batch, its numbers are put in their places and its plan in the leaf's (:mod:`penstock.operators.graft`): three calls to
the JVM, where calling the function again takes several for each operation, and an analysis of all that is below. The
function has to write such numbers by :func:`penstock.state.changing.changing`, or each would be compiled anew.

Knows nothing of windows, layers and keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.operators.gauge import Gauge, Observer, gauge_of
from penstock.operators.graft import MOST, Grafter, Java, Leaf, plan_of
from penstock.state.arranging import Arranger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.elements import Measure

_STANDS_FOR: Final = 2**62 + 20_261_200
"""The first of the numbers that stand for others: no time, and no count, comes near."""

_MOST_NUMBERS: Final = 6
_INT: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A plan over a leaf.

    Attributes:
        leaf: where it is cut off.
        plan: analysed, with numbers that stand for others.
        schema: of its result.
        gauge: what to observe above it.
    """

    leaf: Leaf
    plan: Java
    schema: StructType
    gauge: Gauge | None = None


class Templates:
    """Makes templates for one session, and frames of them.

    >>> templates = Templates(spark)  # doctest: +SKIP
    >>> above = templates.make(schema, lambda rows, bound: rows.where(f"n > {changing(bound)}"), numbers=1)
    ...     # doctest: +SKIP
    >>> frame = templates.frame(templates.hang(above, plan_of(batch), 17))  # doctest: +SKIP
    """

    def __init__(self, spark: SparkSession) -> None:
        self.grafter = Grafter(spark)
        self._observer = Observer(self.grafter)
        self._arranger = Arranger(spark)
        self._parser: Java = cast("Any", spark)._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
        self._places = [self._number(_STANDS_FOR + place) for place in range(_MOST_NUMBERS)]

    def make(
        self,
        schema: StructType,
        build: Callable[..., DataFrame],
        *,
        numbers: int = 0,
        figures: Mapping[str, Column] | None = None,
    ) -> Template:
        """The template of a function.

        Args:
            schema: of the frame that it is given.
            build: called once, with the frame and so many numbers.
            numbers: how many, at most six.
            figures: aggregates to observe over its result, by name.
        """
        leaf = self.grafter.leaf(schema)
        frame = build(leaf.frame, *(_STANDS_FOR + place for place in range(numbers)))
        gauge = gauge_of(frame, "template", figures) if figures else None
        return Template(leaf=leaf, plan=self.grafter.flatten(plan_of(frame)), schema=frame.schema, gauge=gauge)

    def hang(self, template: Template, below: Java, *numbers: int) -> Java:
        """The plan of a batch: ``below`` is that of a frame with the template's columns, the numbers are in order."""
        plan = template.plan
        pairs = list(zip(self._places, map(self._number, numbers), strict=False))
        for some in range(0, len(pairs), MOST):
            flat = (each for pair in pairs[some : some + MOST] for each in pair)
            plan = plan.transformAllExpressions(self.grafter.replaced(*flat))
        return self.grafter.hang(plan, template.leaf, below)

    def _number(self, value: int) -> Java:
        """A BIGINT literal. A whole number of Python's would be an INT in the JVM if it is small."""
        if abs(value) > _INT:
            return self.grafter.literal(value)
        return self._parser.parseExpression(f"{value}L")

    def fits(self, template: Template, below: Java) -> bool:
        """Whether a plan has columns of the template's types: one is hung by position, whatever the names."""
        return bool(below.schema().sameType(template.leaf.plan.schema()))

    def gauge(self, template: Template, figures: Mapping[str, Column]) -> Gauge:
        """What observes figures over a template's result."""
        return gauge_of(self.frame(template.plan), "template", figures)

    def watch(self, plan: Java, gauge: Gauge) -> tuple[Java, Measure]:
        """A plan with a gauge above that was made over its template, and what will tell the figures."""
        return self._observer.observe(plan, gauge)

    def frame(self, plan: Java) -> DataFrame:
        """A lazy frame of a plan."""
        return self.grafter.frame(plan)

    def union(self, frames: Sequence[DataFrame]) -> Java:
        """The rows of cached frames with the same columns, which share no column's number."""
        plan = self._arranger.above(frames)
        if plan is not None:
            return plan
        plans = [cast("Any", frame)._jdf.logicalPlan() for frame in frames]  # noqa: SLF001 - plans have no public way in
        return self.grafter.union(plans)
