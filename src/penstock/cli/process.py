"""The parent process that watches the job's process, and how both are stopped."""

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

# ---- process trees -------------------------------------------------------------------------------------------------


def process_tree(pid: int) -> list[int]:
    """The process and all its descendants, parents first."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listed.splitlines():
        child, parent = (int(word) for word in line.split())
        children.setdefault(parent, []).append(child)
    found, waiting = [], [pid]
    while waiting:
        each = waiting.pop(0)
        found.append(each)
        waiting.extend(children.get(each, ()))
    return found


def kill_process_tree(pid: int) -> int:
    """Send SIGKILL to the process and all its descendants; returns how many still lived."""
    killed = 0
    for each in process_tree(pid):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
            killed += 1
    return killed


# ---- the parent ----------------------------------------------------------------------------------------------------
# The child has a session of its own, so a signal to the parent's process group reaches it once: through the parent.
# The parent passes it on as a byte on a socket pair, the lifeline: the child can tell it from a signal of its own.
# The end of that stream means that the parent is gone. The child sends one byte when its sources start.

LIFELINE: Final = "PENSTOCK_LIFELINE"
"""Environment variable with the file descriptor of the child's end of the socket pair."""
STOP: Final = b"s"
"""Byte from parent to child: stop."""
ENDED: Final = b"\0"
"""Byte within the parent: the child has ended."""
RUNNING: Final = b"r"
"""Byte from child to parent: the sources have started."""
GRACE_SECONDS: Final = 5.0
"""Seconds between a second stop request and SIGKILL for the child."""
MAX_FAILED_STARTS: Final = 3
"""Number of children in a row that die before their sources start until the parent gives up."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ChildWatcher:
    """Runs a command as a child process, and starts another one as long as a restart can help.

    Args:
        command: makes the child's command line; its argument is whether an earlier child has started its sources.
        notify: gets one line of text for the user.
        clock: for the delays between starts.
        strategy: computes these delays.
    """

    def __init__(
        self,
        command: Callable[[bool], Sequence[str]],
        *,
        notify: Callable[[str], None],
        clock: Clock | None = None,
        strategy: RestartStrategy | None = None,
    ) -> None:
        self._command = command
        self._notify = notify
        self._clock = clock or SystemClock()
        self._strategy = strategy or ExponentialDelay()
        self._requests = 0
        self._wakeup_end, self._listening_end = socket.socketpair()
        self._wakeup_end.setblocking(False)
        self._child: _Child | None = None
        self._has_run = False

    def run(self) -> int:
        """The exit code of the last child; a killed child counts as a dead engine."""
        failed_starts = 0
        with self._signals():
            while True:
                code, has_run = self._run_child()
                failed_starts = 0 if has_run else failed_starts + 1
                if self._requests > 1:
                    return ExitCode.INTERRUPTED
                died = code < 0 or code == ExitCode.ENGINE_DIED
                if not died:
                    return code
                what = _death(code)
                if self._is_asked():
                    self._notify(f"{what} before its last checkpoint; the next start goes on from the previous one")
                    return ExitCode.ENGINE_DIED
                if failed_starts >= MAX_FAILED_STARTS:
                    self._notify(f"{what}; it never got as far as reading in {failed_starts} starts, so this gives up")
                    return ExitCode.ENGINE_DIED
                self._pause(what)
                if self._is_asked():
                    return ExitCode.ENGINE_DIED

    def _is_asked(self) -> bool:
        return self._requests > 0

    def _run_child(self) -> tuple[int, bool]:
        """Exit code of a new child, and whether its sources have started."""
        child = _Child(self._command(self._has_run))
        self._child = child
        self._pass_on(child)  # requests from before there was a child
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
        self._wakeup_end.send(ENDED)

    def _listen(self, seconds: float | None) -> None:
        """Wait for a signal, which the kernel may deliver to any thread, or for the end of the child."""
        if select.select([self._listening_end], [], [], seconds)[0]:
            self._listening_end.recv(16)

    def _pause(self, what: str) -> None:
        self._strategy, delay = self._strategy.after_failure(self._clock.now(), chance=random.random())
        seconds = (delay or 0) / 1_000_000
        self._notify(f"{what}; it starts again in {seconds:.1f} s, from the last complete checkpoint")
        deadline = self._clock.now() + (delay or 0)
        while not self._is_asked() and (left := deadline - self._clock.now()) > 0:
            self._listen(left / 1_000_000)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass signals on within this context. A signal that was ignored before (``nohup``) stays ignored."""
        caught = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._on_signal) for number in caught}
        awake = signal.set_wakeup_fd(self._wakeup_end.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(awake)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # takes no lock: the handler may interrupt code that holds it
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
    """A child process and the parent's end of its lifeline."""

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
        self._sent = 0
        self._listener = threading.Thread(target=self._listen, name="lifeline", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        try:
            while received := self._ours.recv(16):
                self.has_run = self.has_run or RUNNING in received
        except OSError:
            return

    def ask(self, requests: int) -> None:
        """Send stop bytes until the child has got as many as there were requests."""
        while self._sent < requests:
            self._sent += 1
            try:
                self._ours.send(STOP)
            except OSError:
                return

    def kill_later(self, seconds: float) -> None:
        """Kill the child after this time if it has not ended by itself."""
        timer = threading.Timer(seconds, self._process.kill)
        timer.daemon = True
        timer.start()

    @property
    def is_over(self) -> bool:
        """Whether the exit code is known."""
        return self._process.returncode is not None

    def wait(self) -> int:
        """Wait for the end; returns the exit code, negative for the signal that killed the child."""
        code = self._process.wait()
        self._listener.join(1.0)
        return code

    def close(self) -> None:
        """Close the lifeline."""
        self._ours.close()


def _death(code: int) -> str:
    if code >= 0:
        return "the engine died"
    return f"the job's process was killed by {signal.Signals(-code).name}"


# ---- the child -----------------------------------------------------------------------------------------------------
# The first request stops the job in order, the second ends it at once. A signal may reach both parent and child, and is
# one request: own signals and those passed on are counted apart, and the larger count is the number of requests.


class StopListener:
    """Listens for stop requests from its construction on: own signals, the parent, the parent's death.

    It acts on threads of its own, never inside a signal handler.

    Args:
        at_once: called for a second request; must not return.
        notify: gets one line of text for the user.
    """

    def __init__(self, *, at_once: Callable[[], None], notify: Callable[[str], None]) -> None:
        self._at_once = at_once
        self._notify = notify
        self._lock = threading.Lock()
        self._own = 0
        self._passed_on = 0
        self._handled = 0
        self._in_order: Callable[[], None] | None = None
        self._wakeup_end, self._listening_end = socket.socketpair()
        self._wakeup_end.setblocking(False)
        self._lifeline = _inherited_lifeline()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _leave_to_thread)
        signal.set_wakeup_fd(self._wakeup_end.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._hear_signals, name="stop-signals", daemon=True).start()
        if self._lifeline is not None:
            threading.Thread(target=self._hear_parent, name="stop-lifeline", daemon=True).start()

    @property
    def is_asked(self) -> bool:
        """Whether a stop was asked for."""
        return self._handled > 0

    def bind(self, in_order: Callable[[], None]) -> None:
        """Call ``in_order`` for the first request; now, if it came already."""
        with self._lock:
            self._in_order = in_order
            asked = self._handled > 0
        if asked:
            in_order()

    def running(self) -> None:
        """Report to the parent that the sources have started."""
        if self._lifeline is not None:
            try:
                self._lifeline.send(RUNNING)
            except OSError:
                return

    def _hear_signals(self) -> None:
        while received := self._listening_end.recv(16):
            for number in (each for each in received if each in SIGNALS):
                with self._lock:
                    self._own += 1
                self._act(signal.Signals(number).name)

    def _hear_parent(self) -> None:
        assert self._lifeline is not None  # the thread is started only with one
        while True:
            try:
                received = self._lifeline.recv(16)
            except OSError:
                received = b""
            if not received:
                break
            for _ in range(received.count(STOP)):
                with self._lock:
                    self._passed_on += 1
                self._act("asked to stop")
        with self._lock:
            self._passed_on = max(self._passed_on, 1)
        self._act("the parent process is gone")

    def _act(self, why: str) -> None:
        with self._lock:
            asked = max(self._own, self._passed_on)
            if asked <= self._handled:
                return
            self._handled = asked
            in_order = self._in_order
        if asked > 1:
            self._at_once()
            return
        self._notify(f"{why}: taking a last checkpoint, then stopping; again to end at once")
        if in_order is not None:
            in_order()


def _leave_to_thread(number: int, frame: FrameType | None) -> None:
    # Python writes the signal's number into the wakeup socket, whichever thread the kernel delivers it to
    del number, frame


def _inherited_lifeline() -> socket.socket | None:
    number = os.environ.pop(LIFELINE, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return socket.socket(fileno=int(number))
