"""The parent of a job's process: passes stop requests on, starts it again when it died. Knows nothing of jobs.

The child is in a session of its own, so a signal to the whole group of the parent reaches it once: through the parent.
A request is a byte on a socket pair, not a signal: the child can tell it from a signal of its own, and the end of the
stream tells it that the parent is gone. The child answers with one byte when its sources start.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from penstock.cli.exits import ExitCode
from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.restart import ExponentialDelay, RestartStrategy

LIFELINE: Final = "PENSTOCK_LIFELINE"
"""Environment variable with the number of the child's end of the socket pair."""

STOP: Final = b"s"
ENDED: Final = b"\0"
RUNNING: Final = b"r"
GRACE: Final = 5.0
"""Seconds that a child gets to end at once, after a second request, before it is killed."""

HOPELESS: Final = 3
"""Children in a row that died before their sources started: then the parent gives up."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Parent:
    """Runs a command as a child until it ends for a reason that another start cannot help.

    Args:
        command: makes the child's command line; told whether an earlier child had got as far as reading.
        tell: gets one line for people when something happened.
        clock: for the pauses between starts.
        strategy: how long these are.
    """

    def __init__(
        self,
        command: Callable[[bool], Sequence[str]],
        *,
        tell: Callable[[str], None],
        clock: Clock | None = None,
        strategy: RestartStrategy | None = None,
    ) -> None:
        self._command = command
        self._tell = tell
        self._clock = clock or SystemClock()
        self._strategy = strategy or ExponentialDelay()
        self._requests = 0
        self._poke, self._ear = socket.socketpair()
        self._poke.setblocking(False)
        self._child: _Child | None = None
        self._has_run = False

    def run(self) -> int:
        """The exit code of the last child; one that was killed counts as a dead engine."""
        in_vain = 0
        with self._signals():
            while True:
                code, ran = self._one()
                in_vain = 0 if ran else in_vain + 1
                if self._requests > 1:
                    return ExitCode.INTERRUPTED
                died = code < 0 or code == ExitCode.ENGINE_DIED
                if not died:
                    return code
                what = _death(code)
                if self._is_asked():
                    self._tell(f"{what} before its last checkpoint; the next start goes on from the one before")
                    return ExitCode.ENGINE_DIED
                if in_vain >= HOPELESS:
                    self._tell(f"{what}; it never got as far as reading in {in_vain} starts, so this gives up")
                    return ExitCode.ENGINE_DIED
                self._pause(what)
                if self._is_asked():
                    return ExitCode.ENGINE_DIED

    def _is_asked(self) -> bool:
        return self._requests > 0

    def _one(self) -> tuple[int, bool]:
        child = _Child(self._command(self._has_run))
        self._child = child
        self._pass_on(child)  # what came before there was a child to tell
        ended = threading.Thread(target=self._await, args=(child,), name="child", daemon=True)
        ended.start()
        while not child.is_over:
            self._listen(None)
        self._child = None
        code = child.wait()
        child.close()
        self._has_run = self._has_run or child.has_run
        return code, child.has_run

    def _await(self, child: _Child) -> None:
        child.wait()
        self._poke.send(ENDED)

    def _listen(self, seconds: float | None) -> None:
        """Wait for a signal, which the kernel may give to any thread, or for the end of the child."""
        if select.select([self._ear], [], [], seconds)[0]:
            self._ear.recv(16)

    def _pause(self, what: str) -> None:
        self._strategy, delay = self._strategy.after_failure(self._clock.now(), chance=random.random())
        seconds = (delay or 0) / 1_000_000
        self._tell(f"{what}; it starts again in {seconds:.1f} s, from the last complete checkpoint")
        deadline = self._clock.now() + (delay or 0)
        while not self._is_asked() and (left := deadline - self._clock.now()) > 0:
            self._listen(left / 1_000_000)

    # ------------------------------------------------------------------------------------------------------- signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass signals on while it runs; one that was ignored before (``nohup``) stays ignored."""
        caught = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._on_signal) for number in caught}
        awake = signal.set_wakeup_fd(self._poke.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(awake)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Counts and sends; takes no lock, for it may interrupt whoever holds it."""
        del number, frame
        self._requests += 1
        child = self._child
        if child is not None:
            self._pass_on(child)

    def _pass_on(self, child: _Child) -> None:
        child.ask(self._requests)
        if self._requests > 1:
            child.kill_later(GRACE)


class _Child:
    """One process and our end of its lifeline."""

    def __init__(self, command: Sequence[str]) -> None:
        self._ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            list(command),
            env=os.environ | {LIFELINE: str(theirs.fileno())},
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self.has_run = False
        self._asked = 0
        self._listener = threading.Thread(target=self._listen, name="lifeline", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        try:
            while heard := self._ours.recv(16):
                self.has_run = self.has_run or RUNNING in heard
        except OSError:
            return

    def ask(self, requests: int) -> None:
        """Let it know that a stop was asked for so many times by now."""
        while self._asked < requests:
            self._asked += 1
            try:
                self._ours.send(STOP)
            except OSError:
                return

    def kill_later(self, seconds: float) -> None:
        """Kill it if it does not end by itself."""
        timer = threading.Timer(seconds, self._process.kill)
        timer.daemon = True
        timer.start()

    @property
    def is_over(self) -> bool:
        """Whether its exit code is known."""
        return self._process.returncode is not None

    def wait(self) -> int:
        """Its exit code, negative for the signal that killed it."""
        code = self._process.wait()
        self._listener.join(1.0)
        return code

    def close(self) -> None:
        """Let go of the lifeline."""
        self._ours.close()


def _death(code: int) -> str:
    if code >= 0:
        return "the engine died"
    return f"the job's process was killed by {signal.Signals(-code).name}"
