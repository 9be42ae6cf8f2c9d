"""Figures that the first job over a plan tells by the way (Spark's observations), read without hanging or lying.

Knows nothing of which figures are wanted, nor of batches beyond their measures.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.elements import Measure
from penstock.operators.graft import Grafter, Java, plan_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BOUND: Final = 2**62 + 20_261_121
"""Stands for the bound of a gauge in its SQL, until a batch brings the value."""

PARTITIONS: Final = "partitions"
"""The figure that is one number for each partition: a JSON array, for reading a value of the JVM costs as much as a
column does.
"""

_PATIENCE_MS: Final = 5_000
_serials = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """What to observe above a plan, resolved once.

    Attributes:
        measure: the name under which the figures are told.
        figures: their names, in order.
        metrics: the expressions, bound to the columns of the plan they were made over.
        max_ahead: microseconds after the wall clock that :data:`BOUND` stands for, if it stands anywhere.
        names: of the places of the figure :data:`PARTITIONS`, where there is one.
        among: makes the same gauge with that figure, given the column that tells partitions apart and their names.
    """

    measure: str
    figures: tuple[str, ...]
    metrics: Java
    max_ahead: int | None = None
    names: tuple[str, ...] = ()
    among: Callable[[str, tuple[str, ...]], Gauge] | None = None


def make_gauge(
    frame: DataFrame,
    measure: str,
    figures: Mapping[str, str],
    *,
    max_ahead: int | None = None,
    names: tuple[str, ...] = (),
    among: Callable[[str, tuple[str, ...]], Gauge] | None = None,
) -> Gauge:
    """A gauge over a frame's plan; ``figures`` are aggregates as SQL."""
    from pyspark.sql import functions as F

    gauge = gauge_of(frame, measure, {name: F.expr(sql) for name, sql in figures.items()})
    return replace(gauge, max_ahead=max_ahead, names=names, among=among)


def gauge_of(frame: DataFrame, measure: str, figures: Mapping[str, Column]) -> Gauge:
    """A gauge over a frame's plan; ``figures`` are aggregates."""
    first, *more = (figure.alias(name) for name, figure in figures.items())
    metrics = plan_of(frame.observe("penstock", first, *more)).metrics()
    return Gauge(measure=measure, figures=tuple(figures), metrics=metrics)


class Observer:
    """Puts gauges on plans of one session."""

    def __init__(self, grafter: Grafter) -> None:
        self._grafter = grafter
        jvm = grafter.jvm
        self._collect = jvm.org.apache.spark.sql.catalyst.plans.logical.CollectMetrics
        self._observation = jvm.org.apache.spark.sql.Observation
        self._manager = cast("Any", grafter.spark)._jsparkSession.observationManager()  # noqa: SLF001
        self._bound = grafter.literal(BOUND)
        self._await = getattr(jvm, "scala.concurrent.Await").result
        self._patience = getattr(jvm, "scala.concurrent.duration.Duration").apply(_PATIENCE_MS, "millis")

    def observe(self, plan: Java, gauge: Gauge, *, bound: int | None = None) -> tuple[Java, Measure]:
        """``plan`` with the gauge on top, and what will tell its figures. The label is used once in a process."""
        serial = next(_serials)
        label = f"{gauge.measure}#{serial}"
        node = self._collect(label, gauge.metrics, plan, -serial)
        if bound is not None:
            node = node.transformExpressions(self._grafter.replaced(self._bound, self._grafter.literal(bound)))
        observation = self._observation(label)
        self._manager.register(observation, -serial)
        return node, Measure(lambda: self._read(observation, gauge))

    def _read(self, observation: Java, gauge: Gauge) -> Mapping[str, object] | None:
        """The figures; ``None`` if the job did not bring them: the optimiser had no use for the plan below."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        try:
            values = json.loads(self._await(observation.future(), self._patience).json()).values()
        except (Py4JJavaError, PySparkException):  # a row of nothing has no schema, and cannot be told
            return None
        if len(values) != len(gauge.figures):
            return None
        told: dict[str, object] = dict(zip(gauge.figures, values, strict=True))
        if gauge.names:
            told[PARTITIONS] = dict(zip(gauge.names, json.loads(cast("str", told[PARTITIONS])), strict=True))
        return told
