"""The parent that watches the job's process, and how it is stopped."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from penstock.cli.output import ExitCode
from penstock.clock import Clock, SystemClock
from penstock.runtime.lifecycle import ExponentialDelay, RestartStrategy

# ----------------------------------------------------------------------------------------------------
# Finds and kills a process with all that it started, the JVM and its workers too. Knows nothing of jobs.


def process_tree(pid: int) -> list[int]:
    """The process and everything below it, parents first."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    below: dict[int, list[int]] = {}
    for line in listed.splitlines():
        child, parent = (int(word) for word in line.split())
        below.setdefault(parent, []).append(child)
    found, ahead = [], [pid]
    while ahead:
        each = ahead.pop(0)
        found.append(each)
        ahead.extend(below.get(each, ()))
    return found


def kill_process_tree(pid: int) -> int:
    """SIGKILL for all of them at once, as far as they still live; how many there were."""
    killed = 0
    for each in process_tree(pid):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
            killed += 1
    return killed


# ----------------------------------------------------------------------------------------------------
# The parent of a job's process: passes stop requests on, starts it again when it died. Knows nothing of jobs.
#
# The child is in a session of its own, so a signal to the whole group of the parent reaches it once: through the
# parent. A request is a byte on a socket pair, not a signal: the child can tell it from a signal of its own, and the
# end of the stream tells it that the parent is gone. The child answers with one byte when its sources start.

LIFELINE: Final = "PENSTOCK_LIFELINE"
"""Environment variable with the number of the child's end of the socket pair."""
STOP: Final = b"s"
ENDED: Final = b"\0"
RUNNING: Final = b"r"
GRACE_SECONDS: Final = 5.0
"""Seconds that a child gets to end at once, after a second request, before it is killed."""
MAX_FAILED_STARTS: Final = 3
"""Children in a row that died before their sources started: then the parent gives up."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ChildWatcher:
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
                if in_vain >= MAX_FAILED_STARTS:
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
            child.kill_later(GRACE_SECONDS)


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


# ----------------------------------------------------------------------------------------------------
# How a job's process is asked to stop: by signals of its own, by its parent, by its parent's death. Starts nothing.
#
# A first request means *in order*, a second one *at once*. A signal sent to parent and child alike is one request: what
# the parent passes on and what arrives here are counted apart, and the larger count is the number of requests.


class StopListener:
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
