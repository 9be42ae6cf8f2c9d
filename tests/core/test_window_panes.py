"""Whole-number arithmetic of windows, against a list of all windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import GraphError
from penstock.operators.windows.assigners import cumulative, sliding, tumbling
from penstock.operators.windows.panes import CumulativeWindow, SlidingWindow, TumblingWindow, Window

SMALL = st.integers(1, 9)
MOMENT = st.integers(-60, 60)


@st.composite
def windows(draw: st.DrawFn) -> tuple[Window, int, list[tuple[int, int]]]:
    """A window, the length of its panes, and all windows (start, end) far around zero."""
    kind, size, offset = draw(st.sampled_from("tsc")), draw(SMALL), draw(st.integers(0, 20))
    if kind == "t":
        offset %= size
        return (
            TumblingWindow(size, offset),
            size,
            [(n * size + offset, (n + 1) * size + offset) for n in range(-200, 200)],
        )
    if kind == "s":
        slide = draw(st.integers(1, size))
        window = SlidingWindow(size, slide, offset % slide)
        starts = [n * slide + window.offset for n in range(-200, 200)]
        return window, window.step, [(start, start + size) for start in starts]
    step, times = size, draw(st.integers(1, 4))
    grown = CumulativeWindow(step, step * times, offset % (step * times))
    starts = [n * step * times + grown.offset for n in range(-200, 200)]
    return grown, step, [(start, start + step * n) for start in starts for n in range(1, times + 1)]


@given(windows(), MOMENT, st.integers(0, 30))
def test_due_are_the_windows_that_end_in_between_and_their_panes(made, after, length):
    window, step, every = made
    found = window.due(after, after + length)
    ending = [(start, end) for start, end in every if after < end <= after + length]
    if not ending:
        assert found is None
        return
    ends = [end for _, end in ending]
    assert (found.first, found.last) == (min(ends), max(ends))
    assert found.panes == (min(start for start, _ in ending) + step, max(ends))


@given(windows(), MOMENT, MOMENT)
def test_a_pane_is_dead_once_the_last_window_that_holds_it_is_closed(made, closed, moment):
    window, step, every = made
    pane = moment - (moment - every[0][0]) % step + step
    last = max(end for start, end in every if start <= moment < end)
    assert (pane <= window.dead(closed)) == (last <= closed)


@pytest.mark.parametrize("window", [TumblingWindow(7), SlidingWindow(7, 3), CumulativeWindow(2, 6)])
def test_the_ends_of_time_are_no_special_case(window):
    assert window.dead(MIN_WATERMARK) == MIN_WATERMARK
    assert MAX_WATERMARK - 20 < window.dead(MAX_WATERMARK) <= MAX_WATERMARK
    whole = window.due(MIN_WATERMARK, MAX_WATERMARK)
    assert MIN_WATERMARK <= whole.panes[0] < MIN_WATERMARK + 20
    assert window.due(MAX_WATERMARK, MAX_WATERMARK) is None


def test_refuses_lengths_that_do_not_fit():
    with pytest.raises(GraphError, match="leave gaps, whose rows are in no window"):
        sliding("1 minute", "2 minutes")
    with pytest.raises(GraphError, match="size that is a multiple of it"):
        cumulative("7 minutes", "1 hour")
    with pytest.raises(GraphError, match=r"need lengths of whole hours, not 30 minutes\. Leave the time zone out"):
        tumbling("30 minutes", timezone="Europe/Berlin")
    with pytest.raises(GraphError, match=r"'Europe/Berln' is not known. Did you mean 'Europe/Berlin'"):
        tumbling("1 day", timezone="Europe/Berln")


def test_descriptions_tell_apart_what_needs_other_state():
    made = [
        tumbling("1 minute"),
        tumbling("1 minute", offset="1 second"),
        sliding("1 minute", "1 minute"),
        sliding("1 hour", "1 minute"),
        cumulative("1 minute", "1 hour"),
        tumbling("1 day"),
        tumbling("1 day", timezone="Europe/Berlin"),
        tumbling("1 day", timezone="Europe/Paris"),
    ]
    assert len({window.describe() for window in made}) == len(made)
    assert tumbling("1 minute", allowed_lateness="1 hour").describe() == made[0].describe()
