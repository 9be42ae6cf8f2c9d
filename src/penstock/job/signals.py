"""Ctrl-C and SIGTERM while a job runs in the main thread: once to stop in order, twice to end at once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger("penstock")


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Have the first signal call ``stop``, on a thread of its own, and the second raise ``KeyboardInterrupt``.

    Outside of the main thread, which alone gets signals, nothing is changed. Handlers that were there come back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        del frame
        seen += 1
        if seen > 1:
            raise KeyboardInterrupt
        log.warning("%s: taking a last checkpoint, then stopping; again to end at once", signal.Signals(number).name)
        threading.Thread(target=stop, name="stop-request", daemon=True).start()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
