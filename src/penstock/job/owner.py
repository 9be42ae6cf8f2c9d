"""Asks, before a start, whether a living process owns the job (rule L9, second half). Reads the log, claims nothing.

A courtesy, not a lock: two that start at once may both hear nothing; then the log's claims decide, as ever.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final, TypeVar

from penstock.checkpoint.control import Answerer, ControlAnswer, ControlRequest, Kind
from penstock.checkpoint.control_files import ControlFiles
from penstock.checkpoint.entries import NOTHING, Claim, Stopped, host_of
from penstock.checkpoint.history import History
from penstock.checkpoint.log import Log
from penstock.checkpoint.messages import Answer
from penstock.errors import CheckpointError, CheckpointUnreadable, JobIsRunning, StorageFailed
from penstock.ids import Generation
from penstock.job.here import is_here
from penstock.runtime.clock import Clock
from penstock.runtime.lifecycle import JobState

T = TypeVar("T")

PATIENCE: Final = 2.0
"""Seconds that an owner gets to answer, and storage to work; it looks for requests several times in this time."""

STOPPING: Final = 15.0
"""Seconds that an owner that is stopping gets to end: its parent may be gone, and a process manager starts the next."""

ASK_AGAIN: Final = 0.25
"""Seconds from one try to the next."""

_over: set[tuple[str, Generation]] = set()
_over_lock = threading.Lock()


def note_over(log_id: str, generation: Generation) -> None:
    """Remember that this process had the log under this claim and does nothing more with it."""
    with _over_lock:
        _over.add((log_id, generation))


class OwnerCheck:
    """Refuses while a living owner answers.

    Args:
        job: its name, for the message.
        log: of the job; read only.
        files: where the owner is asked.
        clock: how long it takes.
        new_id: draws a random id.
        pause: waits; it may raise, to give up.
    """

    def __init__(
        self,
        *,
        job: str,
        log: Log,
        files: ControlFiles,
        clock: Clock,
        new_id: Callable[[], str],
        pause: Callable[[float], None],
    ) -> None:
        self._job = job
        self._log = log
        self._files = files
        self._clock = clock
        self._new_id = new_id
        self._pause = pause
        self._silent: int = NOTHING  # whoever has the log by an entry up to this one was asked and did not answer

    def __call__(self) -> None:
        """Ask the newest claim's owner; one that surely is gone, or was silent before, is not asked.

        One that is stopping is waited for.

        Raises:
            JobIsRunning: it answered.
            CheckpointError: whether there is an owner cannot be found out; nothing was claimed.
        """
        latest = self._clock.now() + int(STOPPING * 1_000_000)
        while (heard := self.hear()) is not None:
            history, answer = heard
            is_ending = answer.me is not None and answer.me.state == JobState.STOPPING.value
            if not is_ending or self._clock.now() >= latest:
                raise JobIsRunning(self._refusal(history, answer))
            self._pause(ASK_AGAIN)

    def hear(self) -> tuple[History, ControlAnswer] | None:
        """Ask once: what the newest claim's owner says, and the log; ``None`` if nobody is there.

        Raises:
            CheckpointError: whether there is an owner cannot be found out.
        """
        history = self._owned_by_another()
        if history is None:
            return None
        answer = self._ask(history)
        if answer is None:
            self._silent = history.tail
            return None
        return history, answer

    def _owned_by_another(self) -> History | None:
        """The log, if somebody may have it who has not been silent yet; entries that cannot be read may be theirs."""
        history = self._patiently(lambda: self._log.read(past_unreadable=True))
        claimed = history.generation if _is_newest_readable(history) else history.tail
        if history.is_empty or (claimed is not None and claimed <= self._silent) or has_ended(history):
            return None
        return history

    def _patiently(self, act: Callable[[], T]) -> T:
        """Storage that fails for a moment says nothing of an owner."""
        deadline = self._clock.now() + int(PATIENCE * 1_000_000)
        while True:
            try:
                return act()
            except StorageFailed:
                if self._clock.now() >= deadline:
                    raise
            self._pause(ASK_AGAIN)

    def _ask(self, history: History) -> ControlAnswer | None:
        generation = history.generation or Generation(0)  # whoever lives answers older ones, too
        hello = ControlRequest(
            request=self._new_id(),
            kind=Kind.HELLO,
            generation=generation,
            asked=self._clock.wall(),
            owner=_me(),
            log_id=history.log_id,
        )
        try:
            self._patiently(lambda: self._files.ask(hello, pause=self._pause))
            return self._files.wait_for_answer(hello.request, seconds=PATIENCE, now=self._clock.now, pause=self._pause)
        except CheckpointUnreadable as error:  # somebody lives and answers, in words of another version
            return ControlAnswer(
                request=hello.request,
                answer=Answer.REFUSED,
                message=str(error),
                generation=generation,
                at=self._clock.wall(),
            )
        finally:
            self._forget(hello.request)

    def _forget(self, request: str) -> None:
        try:
            self._files.forget(request)
        except CheckpointError:
            return

    def _refusal(self, history: History, answer: ControlAnswer) -> str:
        owner: Claim | Answerer | None = answer.me
        if owner is None and history.claim is not None and isinstance(history.claim.body, Claim):
            owner = history.claim.body
        who = "another process"
        if owner is not None:
            since = datetime.fromtimestamp(owner.started / 1_000_000, tz=timezone.utc)
            who = f"process {owner.pid} on {host_of(owner.host)}, since {since:%Y-%m-%d %H:%M:%S} UTC"
        return (
            f"job {self._job!r} is running already: {who} (generation {answer.generation}); stop that one first, or "
            "start with --take-over (in Python take_over=True), which ends it without its last checkpoint"
        )


def has_ended(history: History) -> bool:
    """Whether nobody can answer: an orderly end, a claim of ours that is over, a process that does not exist."""
    if not _is_newest_readable(history):
        return False  # it may be a claim
    if isinstance(history.entries[-1].body, Stopped):
        return True
    assert history.log_id is not None  # there is an entry
    assert history.generation is not None
    with _over_lock:
        if (history.log_id, history.generation) in _over:
            return True
    claim = history.claim.body if history.claim is not None else None
    return isinstance(claim, Claim) and is_here(claim.host) and not _exists(claim.pid)


def _is_newest_readable(history: History) -> bool:
    return bool(history.entries) and history.entries[-1].number == history.tail


def _exists(pid: int) -> bool:
    """Whether there is a process of this number; perhaps another one by now, which then is waited for in vain."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _me() -> str:
    return f"process {os.getpid()} on {platform.node()}"
