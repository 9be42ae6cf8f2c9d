"""Waits for conditions, never for time: looks at a condition again and again until it holds or a deadline passed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LOOK_AGAIN = 0.02
"""Seconds between two looks at what cannot be waited for in another way (a file, another's process)."""


def clock() -> float:
    """Seconds of a clock that never goes back."""
    return time.monotonic()  # noqa: TID251 - real processes need real deadlines


def holds_within(seconds: float, condition: Callable[[], object]) -> bool:
    """Whether the condition came true before the deadline."""
    deadline, never = clock() + seconds, threading.Event()
    while not condition():
        if clock() > deadline:
            return bool(condition())
        never.wait(LOOK_AGAIN)
    return True


def until(seconds: float, what: str, condition: Callable[[], object], explain: Callable[[], str] = str) -> None:
    """Wait for the condition; a deadline that passes is a failure that says what was waited for."""
    if not holds_within(seconds, condition):
        msg = f"after {seconds:g} s still not: {what}. {explain()}"
        raise AssertionError(msg)
