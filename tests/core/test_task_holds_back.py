"""A step that has not sent all that lies below its watermark passes on a lower one."""

from __future__ import annotations

from core.runtime_fakes import Clock, KeepingWork, NotingShell, drained, output_to
from penstock.clock import MAX_WATERMARK, EventTime
from penstock.elements import Watermark
from penstock.facts import WatermarkAdvanced
from penstock.runtime.channels import Channel, TaskOutput
from penstock.runtime.inputs import Inputs
from penstock.runtime.task import StepTask


class InSteps(KeepingWork):
    """Gets as far as the last multiple of ten."""

    def advance(self, watermark: EventTime, *, output: TaskOutput) -> EventTime | None:
        super().advance(watermark, output=output)
        return None if watermark == MAX_WATERMARK else EventTime(watermark // 10 * 10)


def test_a_watermark_is_passed_on_as_far_as_the_step_got_and_once_only() -> None:
    source, sink, shell, work = Channel(), Channel(), NotingShell(), InSteps("step")
    inputs = Inputs([source], [None], wake=lambda: None)
    task = StepTask("step", inputs, output_to(sink), work, shell=shell, clock=Clock())
    passed = []
    for at in (12, 19, 25, MAX_WATERMARK):
        source.put(Watermark(at=EventTime(at)))
        while task.step().worked:
            pass
        passed.append(drained(sink))
    ten, twenty, end = (Watermark(at=EventTime(at)) for at in (10, 20, MAX_WATERMARK))
    assert passed == [[ten], [], [twenty], [end]]
    # Offered again once each, after a tick, which may have sent what held it back.
    assert work.calls == [("advance", at) for at in (12, 12, 19, 19, 25, 25, MAX_WATERMARK)]
    assert [fact.at for fact in shell.facts if isinstance(fact, WatermarkAdvanced)] == [12, 19, 25, MAX_WATERMARK]
