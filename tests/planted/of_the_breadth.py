"""Planted bugs: idle inputs, at-least-once, markers, side outputs, timers, paces, requests, changed pipelines."""

from __future__ import annotations

from dataclasses import replace

from penstock import elements
from penstock.checkpoint import recovery
from penstock.checkpoint.coordinator import StopProgress
from penstock.checkpoint.log import Log
from penstock.checkpoint.pending import AckTracker
from penstock.checkpoint.policy import PeriodicTrigger
from penstock.clock import MonotonicTime
from penstock.control.server import RequestRegistry
from penstock.elements import RefCount
from penstock.operators.timers import TimerQueue
from penstock.runtime import task_logic
from penstock.runtime.barriers import BarrierTracker
from penstock.runtime.inputs import Input
from penstock.runtime.poll_schedule import FixedInterval
from penstock.runtime.rate_control import SECOND, RateControl
from penstock.runtime.task import StepTask
from penstock.runtime.task_logic import OperatorLogic
from penstock.runtime.watermarks import WatermarkValve
from planted.bug import bug
from simulation import process


@bug("idle-holds", "an idle input holds event time back")
def _(put):
    put(WatermarkValve, "set_idle", lambda self, source, idle: None)


@bug("idle-at-once", "an input is idle as soon as nothing comes")
def _(put):
    def idle_at(self):
        step = self.with_watermark
        due = step is not None and step.idle_after is not None and self.last_batch is not None
        return MonotonicTime(self.last_batch) if due else None

    put(Input, "idle_at", idle_at)


@bug("at-least-once-loses", "at-least-once: a task snapshots at the first barrier")
def _(put):
    real = BarrierTracker._barrier

    def barrier(self, source, arrived):
        live, self._live = self._live, {source} & self._live
        try:
            return real(self, source, arrived)
        finally:
            self._live = live

    put(BarrierTracker, "_barrier", barrier)


@bug("deferred-goes-on", "a step goes on although the job that makes its layer has still to run")
def _(put):
    real = StepTask._settle
    put(StepTask, "_settle", lambda self: real(self) or True)


@bug("marker-ends", "a latency marker ends at the step that keeps state")
def _(put):
    real = StepTask._marked
    put(StepTask, "_marked", lambda self, m: None if isinstance(self._logic, OperatorLogic) else real(self, m))


@bug("side-dropped", "a side output is taken for empty before anybody knows")
def _(put):
    def is_empty(batch):
        return batch.only_if is not None

    put(elements, "is_empty", is_empty)
    put(task_logic, "is_empty", is_empty)


@bug("leases", "a batch that was kept for two branches is never freed")
def _(put):
    put(RefCount, "release", lambda self: None)


@bug("timers-lost", "timers are not restored")
def _(put):
    put(TimerQueue, "restored", classmethod(lambda cls, snapshot: cls()))


@bug("timers-late", "a timer of exactly the watermark is not due")
def _(put):
    real = TimerQueue.due
    put(TimerQueue, "due", lambda self, kind, until: real(self, kind, until - 1))


@bug("pace", "a source with a pace is asked whenever it is free")
def _(put):
    put(FixedInterval, "wait", lambda self, wall: 0)


@bug("limit", "rate control forgets the limit that was set")
def _(put):
    def cap(self, rows):
        return rows if self._rate is None else max(1, int(self._rate * self._interval / SECOND))

    put(RateControl, "cap", cap)


@bug("late-timers", "a timer that is no longer waited for begins a checkpoint")
def _(put):
    def fired(self, due):
        self.due, self.is_wanted = None, True
        return True

    put(PeriodicTrigger, "fired", fired)


@bug("acks-of-the-dead", "an acknowledgement of an attempt that is gone counts")
def _(put):
    put(AckTracker, "knows", lambda self, attempt: True)
    put(AckTracker, "_check_name", lambda self, attempt, task: None)


@bug("C3-twice", "a request that was answered stays open, and is answered again")
def _(put):
    def answer(self, answer):
        opened = self._open.get(answer.request)
        if opened is not None:
            opened.callback(answer)

    put(RequestRegistry, "_answer", answer)


@bug("C3-silent", "who waits for an answer when the job ends gets none")
def _(put):
    put(RequestRegistry, "close", lambda self, error=None: None)


@bug(
    "C3-late-stop",
    "a stop is said to be done though the 'stopped' entry was sent without it",
    core="properties/test_found_by_simulation.py",  # the simulation needs some 800 stories
)
def _(put):
    put(StopProgress, "_is_sealed", property(lambda self: False))


@bug("C4-new-source", "a source that is new in the pipeline is read before a checkpoint holds where it began")
def _(put):
    real = recovery.decide_recovery

    def decide(history, steps, **rest):
        found = real(history, steps, **rest)
        return replace(found, initial=found.restored is None)

    put(process, "decide_recovery", decide)


@bug("L2-expected", "a start that expects a tail does not look again when another was faster")
def _(put):
    real = Log._refuse_strange
    put(Log, "_refuse_strange", lambda self, history, expect_tail: real(self, history, None))
