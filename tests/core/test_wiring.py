"""What the wiring puts around a source's batches, without Spark."""

from core.runtime_fakes import Clock
from penstock.clock import MonotonicTime
from penstock.elements import Batch, ObservedMetrics
from penstock.job.wiring import BARRIER_HANDLERS
from penstock.runtime.rate_control import SECOND, BatchSample, PIDRateEstimator, RateControl
from penstock.runtime.source_task import with_rate_control
from penstock.settings import MODES


class Noting(PIDRateEstimator):
    """Keeps what it is fed."""

    def __init__(self) -> None:
        super().__init__(SECOND)
        self.samples: list[BatchSample] = []

    def estimate(self, sample: BatchSample) -> float | None:
        self.samples.append(sample)
        return super().estimate(sample)


def test_every_mode_has_its_way_with_barriers() -> None:
    assert BARRIER_HANDLERS.keys() == {*MODES}


def test_a_batch_is_through_when_a_first_job_over_it_has_succeeded_and_tells_its_rows() -> None:
    clock, noting = Clock(), Noting()
    rewrite = with_rate_control(lambda batch: batch, "in", RateControl(estimator=noting), clock)
    counted = rewrite(Batch(frame=None, sequence=1, metrics={"rows": ObservedMetrics(lambda: {"rows": 70})}))
    clock.at = 10
    known = rewrite(Batch(frame=None, sequence=2, rows=5))
    clock.at = 25
    counted.settle()
    counted.settle()
    clock.at = 40
    known.settle()
    unknown = rewrite(Batch(frame=None, sequence=3, metrics={"rows": ObservedMetrics(lambda: None)}))
    unknown.settle()
    assert noting.samples == [
        BatchSample(at=MonotonicTime(25), rows=70, processing=25, scheduling=0),
        BatchSample(at=MonotonicTime(40), rows=5, processing=15, scheduling=15),
        BatchSample(at=MonotonicTime(40), rows=0, processing=0, scheduling=0),
    ]
    assert counted.metrics["ran:in"].value == {}
