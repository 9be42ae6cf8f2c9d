"""Notices whether Spark jobs ran while a user's function built a plan; knows nothing of plans."""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Self

_GROUP: Final = "spark.jobGroup.id"
_serials = itertools.count(1)


class JobWatch:
    """``with JobWatch(spark) as watch: …``; then ``watch.jobs`` counts the jobs this thread began inside.

    Jobs of other threads do not count: they are told apart by a job group of our own, asked for only if any job began
    at all.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._scala = cast("Any", self._context)._jsc.sc()  # noqa: SLF001 - there is no public count of jobs
        self._group = f"penstock-build-{next(_serials)}"
        self._before: str | None = None
        self._started = 0
        self.jobs = 0

    def __enter__(self) -> Self:
        self._before = self._context.getLocalProperty(_GROUP)
        self._context.setLocalProperty(_GROUP, self._group)
        self._started = self._scala.dagScheduler().numTotalJobs()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.setLocalProperty(_GROUP, cast("str", self._before))  # None removes it
        if self._scala.dagScheduler().numTotalJobs() == self._started:
            return
        self._scala.listenerBus().waitUntilEmpty(10_000)
        self.jobs = len(self._context.statusTracker().getJobIdsForGroup(self._group))
