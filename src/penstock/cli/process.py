"""The parent process that watches the job's process and restarts it, and how both are stopped."""

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

# ---- process trees ---------------------------------------------------------------------------------------------------


def process_tree(pid: int) -> list[int]:
    """The ids of the process and all its descendants, parents first."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listing.splitlines():
        child, parent = (int(word) for word in line.split())
        children.setdefault(parent, []).append(child)
    found, waiting = [], [pid]
    while waiting:
        each = waiting.pop(0)
        found.append(each)
        waiting.extend(children.get(each, ()))
    return found


def kill_process_tree(pid: int) -> int:
    """Send SIGKILL to the process and all its descendants; returns how many of them were alive."""
    killed = 0
    for each in process_tree(pid):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
            killed += 1
    return killed


# ---- the parent ------------------------------------------------------------------------------------------------------
# The child has a session of its own, so a signal to the parent's process group reaches it once: through the parent.
# The parent forwards it as a byte on a socket pair, the lifeline, so the child can tell it from a signal of its own.
# When the stream ends, the parent is gone. The child sends one byte when its sources have started.

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
"""Signals that request a stop."""


class ChildWatcher:
    """Runs a command as a child process, and starts it again when its engine dies.

    Args:
        command: returns the child's command line; its argument is whether an earlier child has started its sources.
        notify: shows a line of text to the user.
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
        """Run children until one ends for good, a stop is requested, or too many fail to start; returns the exit code.

        A child that was killed by a signal counts as a dead engine.
        """
        failed_starts = 0
        with self._forwarding_signals():
            while True:
                code, has_run = self._run_child()
                failed_starts = 0 if has_run else failed_starts + 1
                if self._requests > 1:
                    return ExitCode.INTERRUPTED
                has_died = code < 0 or code == ExitCode.ENGINE_DIED
                if not has_died:
                    return code
                death = _describe_death(code)
                if self._is_stop_requested():
                    self._notify(f"{death} before its last checkpoint; the next start goes on from the previous one")
                    return ExitCode.ENGINE_DIED
                if failed_starts >= MAX_FAILED_STARTS:
                    self._notify(f"{death}; it never got as far as reading in {failed_starts} starts, so this gives up")
                    return ExitCode.ENGINE_DIED
                self._wait_for_restart(death)
                if self._is_stop_requested():
                    return ExitCode.ENGINE_DIED

    def _is_stop_requested(self) -> bool:
        return self._requests > 0

    def _run_child(self) -> tuple[int, bool]:
        """Run a new child to its end; returns its exit code, and whether its sources had started."""
        child = _Child(self._command(self._has_run))
        self._child = child
        self._forward_requests(child)  # those from before there was a child
        threading.Thread(target=self._report_end, args=(child,), name="child", daemon=True).start()
        while not child.is_over:
            self._wait_for_wakeup(None)
        self._child = None
        code = child.wait()
        child.close()
        self._has_run = self._has_run or child.has_run
        return code, child.has_run

    def _report_end(self, child: _Child) -> None:
        child.wait()
        self._wakeup_end.send(ENDED)

    def _wait_for_wakeup(self, seconds: float | None) -> None:
        """Wait for a signal, which the kernel may deliver to any thread, or for the end of the child."""
        if select.select([self._listening_end], [], [], seconds)[0]:
            self._listening_end.recv(16)

    def _wait_for_restart(self, death: str) -> None:
        """Wait for the delay before the next start, or until a stop is requested."""
        self._strategy, delay = self._strategy.after_failure(self._clock.now(), chance=random.random())
        seconds = (delay or 0) / 1_000_000
        self._notify(f"{death}; it starts again in {seconds:.1f} s, from the last complete checkpoint")
        deadline = self._clock.now() + (delay or 0)
        while not self._is_stop_requested() and (left := deadline - self._clock.now()) > 0:
            self._wait_for_wakeup(left / 1_000_000)

    @contextmanager
    def _forwarding_signals(self) -> Iterator[None]:
        """Forward signals to the child within this context. One that was ignored before (``nohup``) stays ignored."""
        handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        previous_handlers = {number: signal.signal(number, self._on_signal) for number in handled}
        previous_fd = signal.set_wakeup_fd(self._wakeup_end.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous_fd)
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # takes no lock: it may have interrupted code that holds it
        del number, frame
        self._requests += 1
        child = self._child
        if child is not None:
            self._forward_requests(child)

    def _forward_requests(self, child: _Child) -> None:
        child.request_stop(self._requests)
        if self._requests > 1:
            child.kill_later(GRACE_SECONDS)


class _Child:
    """A child process and the parent's end of its lifeline.

    Attributes:
        has_run: whether its sources have started.
    """

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
        self._listener = threading.Thread(target=self._hear_child, name="lifeline", daemon=True)
        self._listener.start()

    def _hear_child(self) -> None:
        try:
            while received := self._ours.recv(16):
                self.has_run = self.has_run or RUNNING in received
        except OSError:
            return

    def request_stop(self, requests: int) -> None:
        """Send stop bytes until the child has been sent as many as ``requests``."""
        while self._sent < requests:
            self._sent += 1
            try:
                self._ours.send(STOP)
            except OSError:
                return

    def kill_later(self, seconds: float) -> None:
        """Send SIGKILL to the child after this many seconds if it has not ended by itself."""
        timer = threading.Timer(seconds, self._process.kill)
        timer.daemon = True
        timer.start()

    @property
    def is_over(self) -> bool:
        """Whether the exit code is known."""
        return self._process.returncode is not None

    def wait(self) -> int:
        """Wait for the end of the child; returns its exit code, or minus the number of the signal that killed it."""
        code = self._process.wait()
        self._listener.join(1.0)
        return code

    def close(self) -> None:
        """Close the lifeline."""
        self._ours.close()


def _describe_death(code: int) -> str:
    if code >= 0:
        return "the engine died"
    return f"the job's process was killed by {signal.Signals(-code).name}"


# ---- the child -------------------------------------------------------------------------------------------------------
# The first request stops the job in order, the second ends it at once. A signal that reaches both parent and child is
# one request: own and forwarded signals are counted separately, and the larger count is the number of requests.


class StopListener:
    """Listens for stop requests: signals, bytes from the parent, and the parent's death. It listens once constructed.

    It acts on threads of its own, never inside a signal handler.

    Args:
        at_once: called for a second request; must not return.
        notify: shows a line of text to the user.
    """

    def __init__(self, *, at_once: Callable[[], None], notify: Callable[[str], None]) -> None:
        self._at_once = at_once
        self._notify = notify
        self._lock = threading.Lock()
        self._own = 0  # signals to this process
        self._forwarded = 0  # by the parent
        self._handled = 0  # requests that were acted on
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
        """Whether a stop was requested."""
        return self._handled > 0

    def bind(self, in_order: Callable[[], None]) -> None:
        """Call ``in_order`` at the first request; at once, if that has come already."""
        with self._lock:
            self._in_order = in_order
            is_requested = self._handled > 0
        if is_requested:
            in_order()

    def report_running(self) -> None:
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
                    self._forwarded += 1
                self._act("asked to stop")
        with self._lock:
            self._forwarded = max(self._forwarded, 1)
        self._act("the parent process is gone")

    def _act(self, why: str) -> None:
        with self._lock:
            requests = max(self._own, self._forwarded)
            if requests <= self._handled:
                return
            self._handled = requests
            in_order = self._in_order
        if requests > 1:
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
