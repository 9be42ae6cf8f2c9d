"""Which windows are sent, which are closed, and what of it is known after a restore; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.clock import MIN_WATERMARK
from penstock.elements import RefCount
from penstock.operators.windows.assigners import SessionWindow, session, sliding, tumbling
from penstock.operators.windows.emit_strategy import ON_WINDOW_CLOSE, EmitStrategy
from penstock.operators.windows.emitter import WindowEmitter
from penstock.operators.windows.sessions import SessionEmitter
from penstock.state.layers import Layer
from penstock.state.stack import Stack

SECOND = 1_000_000
MINUTE = 60 * SECOND
UPDATES = EmitStrategy(updates=True)
PACED = EmitStrategy(updates=True, every=10 * SECOND)


class Asked:
    """In the place of what makes frames: keeps which windows it was asked for."""

    def __init__(self) -> None:
        self.due: list[Any] = []

    def finished(self, layers, due):
        self.due.append(due)

    def changes(self, told, due):
        self.due.append(due)


class Kit:
    """An emitter, its stack, and the windows it asked for; ``wall`` is what its clock shows."""

    def __init__(
        self, window, emission=ON_WINDOW_CLOSE, *, fired=MIN_WATERMARK, closed=MIN_WATERMARK, horizon=MIN_WATERMARK
    ) -> None:
        self.stack = Stack(horizon=horizon)
        plan: Any = SimpleNamespace(window=window)
        results: Any = Asked()
        self.asked = results.due
        self.wall = 1
        context: Any = SimpleNamespace(count=lambda *_: None, wall=lambda: self.wall)
        self.emitter = WindowEmitter(plan, results, emission, self.stack, context, fired=fired, closed=closed)
        if isinstance(window, SessionWindow):
            bounds: Any = {"fired": fired, "closed": closed, "merge": lambda: None}
            self.emitter = SessionEmitter(plan, results, emission, self.stack, context, **bounds)

    def add(self, end: int) -> None:
        frame: Any = None
        self.stack.add(
            Layer(
                name=self.stack.next_name(),
                level=0,
                epoch=self.stack.epoch,
                rows=1,
                first_end=end,
                last_end=end,
                frame=frame,
                lease=RefCount(lambda: None),
                emission_number=self.emitter.emission_number,
            )
        )

    def advance(self, watermark: int) -> int | None:
        return self.emitter.advance(watermark, _emit)

    def again(self, window) -> Kit:
        details: Any = self.emitter.snapshot_details()
        return Kit(window, UPDATES, fired=details["fired"], closed=details["closed"], horizon=self.stack.horizon)


def _emit(*_: object) -> None: ...


def test_sessions_whose_changes_wait_for_their_time_hold_event_time_until_then_and_no_longer():
    kit = Kit(session("10 seconds"), PACED)
    kit.emitter.batch_added(_emit)
    for watermark in (60 * SECOND, 90 * SECOND):
        kit.add(watermark - 20 * SECOND)
        passed = kit.advance(watermark)
        assert passed is not None
        assert passed < watermark - 20 * SECOND, "changes of a session that ends there are still to come"
        assert kit.emitter.tick(_emit) == 10 * SECOND - kit.wall % (10 * SECOND)
        kit.wall += 10 * SECOND
        assert kit.emitter.tick(_emit) is None
        assert kit.advance(watermark) == kit.emitter._fired
        assert kit.emitter._fired >= watermark - SECOND
        assert kit.stack.height == 0


def test_windows_that_were_closed_stay_closed_when_more_lateness_is_allowed_later():
    kit = Kit(sliding("10 minutes", "1 minute"), UPDATES)
    kit.advance(100 * MINUTE + 42 * SECOND)
    assert kit.stack.horizon == 91 * MINUTE
    again = kit.again(sliding("10 minutes", "1 minute", allowed_lateness="5 minutes"))
    again.add(92 * MINUTE)
    again.emitter.flush(_emit)
    (due,) = again.asked
    assert due.first == 101 * MINUTE, "the panes of those before are gone"


def test_less_lateness_than_before_closes_what_was_open():
    kit = Kit(tumbling("1 minute", allowed_lateness="5 minutes"), UPDATES)
    kit.advance(100 * MINUTE)
    assert kit.emitter.snapshot_details()["closed"] == 95 * MINUTE
    assert kit.again(tumbling("1 minute")).emitter.snapshot_details()["closed"] == 100 * MINUTE


def test_changes_that_were_never_sent_are_not_noted_as_sent():
    kit = Kit(tumbling("1 minute"), UPDATES)
    kit.add(1 * MINUTE)
    assert kit.emitter.snapshot_details()["emit"] == "final"
    kit.emitter.flush(_emit)
    assert kit.emitter.snapshot_details()["emit"] == "updates"


def test_a_bound_moves_over_known_ends_only():
    kit = Kit(tumbling("1 minute"), UPDATES)
    kit.advance(100 * MINUTE)
    kit.advance(100 * MINUTE + 42 * SECOND)
    assert kit.emitter.late_before(102 * MINUTE) == 102 * MINUTE, "rows below are late all the same"
    details = kit.emitter.snapshot_details()
    assert (details["fired"], details["closed"]) == (100 * MINUTE, 100 * MINUTE)
    kit.add(101 * MINUTE)
    kit.advance(101 * MINUTE)
    (due,) = kit.asked
    assert (due.first, kit.emitter.snapshot_details()["closed"]) == (101 * MINUTE, 101 * MINUTE)
