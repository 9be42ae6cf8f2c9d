"""How a job's process is asked to stop: by signals of its own, by its parent, by its parent's death. Starts nothing.

A first request means *in order*, a second one *at once*. A signal sent to parent and child alike is one request: what
the parent passes on and what arrives here are counted apart, and the larger count is the number of requests.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

from penstock.cli.process import LIFELINE, RUNNING, SIGNALS, STOP


class StopRequests:
    """Listens from its making on; acts on threads of its own, never inside a signal handler.

    Args:
        at_once: what a second request does; must not return.
        tell: gets a line for people.
    """

    def __init__(self, *, at_once: Callable[[], None], tell: Callable[[str], None]) -> None:
        self._at_once = at_once
        self._tell = tell
        self._lock = threading.Lock()
        self._own = 0
        self._passed_on = 0
        self._acted = 0
        self._in_order: Callable[[], None] | None = None
        self._poke, self._ear = socket.socketpair()
        self._poke.setblocking(False)
        self._lifeline = _inherited()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _leave_to_thread)
        signal.set_wakeup_fd(self._poke.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._hear_signals, name="stop-signals", daemon=True).start()
        if self._lifeline is not None:
            threading.Thread(target=self._hear_parent, name="stop-lifeline", daemon=True).start()

    @property
    def is_asked(self) -> bool:
        """Whether a stop was asked for."""
        return self._acted > 0

    def bind(self, in_order: Callable[[], None]) -> None:
        """What a first request does; done at once if it came already."""
        with self._lock:
            self._in_order = in_order
            asked = self._acted > 0
        if asked:
            in_order()

    def running(self) -> None:
        """Tell the parent that sources are read now."""
        if self._lifeline is not None:
            try:
                self._lifeline.send(RUNNING)
            except OSError:
                return

    def _hear_signals(self) -> None:
        while heard := self._ear.recv(16):
            for number in (each for each in heard if each in SIGNALS):
                with self._lock:
                    self._own += 1
                self._act(signal.Signals(number).name)

    def _hear_parent(self) -> None:
        assert self._lifeline is not None  # the thread is started only with one
        while True:
            try:
                heard = self._lifeline.recv(16)
            except OSError:
                heard = b""
            if not heard:
                break
            for _ in range(heard.count(STOP)):
                with self._lock:
                    self._passed_on += 1
                self._act("asked to stop")
        with self._lock:
            self._passed_on = max(self._passed_on, 1)
        self._act("the parent process is gone")

    def _act(self, why: str) -> None:
        with self._lock:
            asked = max(self._own, self._passed_on)
            if asked <= self._acted:
                return
            self._acted = asked
            in_order = self._in_order
        if asked > 1:
            self._at_once()
            return
        self._tell(f"{why}: taking a last checkpoint, then stopping; again to end at once")
        if in_order is not None:
            in_order()


def _leave_to_thread(number: int, frame: FrameType | None) -> None:
    """Nothing: Python writes the signal's number into the socket, whichever thread the kernel gave it to."""
    del number, frame


def _inherited() -> socket.socket | None:
    number = os.environ.pop(LIFELINE, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return socket.socket(fileno=int(number))
