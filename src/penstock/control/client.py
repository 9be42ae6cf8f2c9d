"""JobDirectory: read a job's log, ask its owner, own it while it is stopped."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeVar

from penstock.checkpoint import paths
from penstock.checkpoint.entries import NO_ENTRY, Claim, Stopped, host_of
from penstock.checkpoint.events import RequestOutcome
from penstock.checkpoint.history import History
from penstock.checkpoint.log import Log, OwnedLog
from penstock.clock import Clock, SystemClock, WallTime, sleep
from penstock.control.protocol import Answer, ControlFiles, OwnerInfo, Request, RequestKind, answer_from_log
from penstock.control.server import answer_for_old_request
from penstock.errors import (
    CheckpointError,
    CheckpointUnreadable,
    JobIsRunning,
    RequestFailed,
    StorageFailed,
    UnknownName,
    did_you_mean,
)
from penstock.filesystem.base import FileSystem
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CheckpointId, EntryNumber, Generation, new_id
from penstock.runtime.lifecycle import JobState

# ----------------------------------------------------------------------------------------------------
# Where this process runs, so that another can tell whether the number of this one means anything to it.
#
# Host names do not say that: containers share them. The machine's boot and the space that gives processes their numbers
# do; both are in a mark behind the name. Knows nothing of jobs.

PROC: Final = Path("/proc")


def host_identity(proc: Path = PROC) -> str:
    """Host and mark, ``web-1#9f86d081884c``; the host alone where no mark can be had, which then compares with nobody.

    >>> host_identity(Path("/nowhere")) == platform.node()
    True
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = (proc / "self/ns/pid").readlink()
    except (OSError, ValueError):
        return platform.node()
    return f"{platform.node()}#{sha256(f'{boot} {space}'.encode()).hexdigest()[:12]}"


def is_this_host(place: str) -> bool:
    """Whether a process of that place would have a number of its own here, too."""
    return "#" in place and place == host_identity()


# ----------------------------------------------------------------------------------------------------
# Asks, before a start, whether a living process owns the job (rule L9, second half). Reads the log, claims nothing.
#
# A courtesy, not a lock: two that start at once may both hear nothing; then the log's claims decide, as ever.

T = TypeVar("T")
OWNER_TIMEOUT: Final = 2.0
"""Seconds that an owner gets to answer, and storage to work; it looks for requests several times in this time."""
STOPPING_TIMEOUT: Final = 15.0
"""Seconds that an owner that is stopping gets to end: its parent may be gone, and a process manager starts the next."""
RETRY_INTERVAL: Final = 0.25
"""Seconds from one try to the next."""
_over: set[tuple[str, Generation]] = set()
_over_lock = threading.Lock()


def mark_released(log_id: str, generation: Generation) -> None:
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
        self._silent: int = NO_ENTRY  # whoever has the log by an entry up to this one was asked and did not answer

    def __call__(self) -> None:
        """Ask the newest claim's owner; one that surely is gone, or was silent before, is not asked.

        One that is stopping is waited for.

        Raises:
            JobIsRunning: it answered.
            CheckpointError: whether there is an owner cannot be found out; nothing was claimed.
        """
        latest = self._clock.now() + int(STOPPING_TIMEOUT * 1_000_000)
        while (heard := self.hear()) is not None:
            history, answer = heard
            is_ending = answer.me is not None and answer.me.state == JobState.STOPPING.value
            if not is_ending or self._clock.now() >= latest:
                raise JobIsRunning(self._refusal(history, answer))
            self._pause(RETRY_INTERVAL)

    def hear(self) -> tuple[History, Answer] | None:
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
        if history.is_empty or (claimed is not None and claimed <= self._silent) or owner_is_gone(history):
            return None
        return history

    def _patiently(self, act: Callable[[], T]) -> T:
        """Storage that fails for a moment says nothing of an owner."""
        deadline = self._clock.now() + int(OWNER_TIMEOUT * 1_000_000)
        while True:
            try:
                return act()
            except StorageFailed:
                if self._clock.now() >= deadline:
                    raise
            self._pause(RETRY_INTERVAL)

    def _ask(self, history: History) -> Answer | None:
        generation = history.generation or Generation(0)  # whoever lives answers older ones, too
        hello = Request(
            request=self._new_id(),
            kind=RequestKind.HELLO,
            generation=generation,
            asked=self._clock.wall(),
            owner=_me(),
            log_id=history.log_id,
        )
        try:
            self._patiently(lambda: self._files.ask(hello, pause=self._pause))
            return self._files.wait_for_answer(
                hello.request, seconds=OWNER_TIMEOUT, now=self._clock.now, pause=self._pause
            )
        except CheckpointUnreadable as error:  # somebody lives and answers, in words of another version
            return Answer(
                request=hello.request,
                answer=RequestOutcome.REFUSED,
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

    def _refusal(self, history: History, answer: Answer) -> str:
        owner: Claim | OwnerInfo | None = answer.me
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


def owner_is_gone(history: History) -> bool:
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
    return isinstance(claim, Claim) and is_this_host(claim.host) and not _exists(claim.pid)


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


# ----------------------------------------------------------------------------------------------------
# A job's directory from outside: its log to read, its living owner to ask, or its log to own while nobody runs it.
#
# Only the owner appends (rule L5): a running job is asked through ``control/``, a stopped one is claimed. Knows nothing
# of what is asked, and no pipeline.

OWNER_CHECK_INTERVAL: Final = 5.0
"""Seconds without an answer after which it is looked whether anybody is there to give one."""


class JobDirectory:
    """One job's directory.

    Args:
        state: the folder that holds the state of jobs.
        job: its name.
        clock: for durations, and for times that people read.
        begin: whether the job may be a new one, which has no log yet.

    Raises:
        UnknownName: there is no such job; with the nearest name.
    """

    def __init__(self, state: str | Path, job: str, *, clock: Clock | None = None, begin: bool = False) -> None:
        root = root_of(state)
        if root is None or not (begin or (root / job / paths.LOG).is_dir()):
            raise _unknown(job, state)
        self.state = str(state)
        self.job = job
        self.clock = clock or SystemClock()
        self.filesystem: FileSystem = LocalFileSystem(root / job)
        self.files = ControlFiles(self.filesystem)
        self.log = Log(self.filesystem, job=job, new_id=new_id, pause=sleep)
        self._check = OwnerCheck(job=job, log=self.log, files=self.files, clock=self.clock, new_id=new_id, pause=sleep)

    def read(self, *, past_unreadable: bool = False) -> History:
        """What the log says now.

        Raises:
            UnknownName: nobody has ever claimed it.
            CheckpointError: it cannot be read.
        """
        history = self.log.read(past_unreadable=past_unreadable)
        if history.is_empty:
            raise _unknown(self.job, self.state)
        return history

    def owner(self) -> Answer | None:
        """What the process that runs the job says of itself; ``None`` if nobody does, which takes 2 s to be sure of.

        Raises:
            CheckpointError: whether anybody does cannot be found out.
        """
        heard = self._check.hear()
        return None if heard is None else heard[1]

    def ask(
        self,
        kind: RequestKind,
        *,
        name: str | None = None,
        checkpoint: CheckpointId | None = None,
        patience: int | None = None,
        expires: WallTime | None = None,
        seconds: float | None = None,
    ) -> Answer:
        """Ask the process that runs the job, and wait for its answer; what it says, be it no.

        Where it ends without an answer, the log tells what was done.

        Args:
            kind: what is asked.
            name: of the savepoint or pin.
            checkpoint: which one to pin.
            patience: microseconds that a stop waits for its last checkpoint and its output.
            expires: until when a pin is meant to be needed; for people.
            seconds: how long to wait for the answer; for ever unless given.

        Raises:
            RequestFailed: no answer in time, or nobody lives who could give one.
        """
        history = self.read()
        request = Request(
            request=new_id(),
            kind=kind,
            generation=history.generation or Generation(0),
            asked=self.clock.wall(),
            owner=process_name(),
            name=name,
            checkpoint=checkpoint,
            patience=patience,
            log_id=history.log_id,
            expires=expires,
        )
        self.files.ask(request, pause=sleep)
        answer = self._wait(request, seconds)
        with suppress(CheckpointError):  # what stays there is swept by the job
            self.files.forget(request.request)
        return answer

    def _wait(self, request: Request, seconds: float | None) -> Answer:
        deadline = None if seconds is None else self.clock.now() + int(seconds * 1_000_000)
        while True:
            left = None if deadline is None else (deadline - self.clock.now()) / 1_000_000
            turn = OWNER_CHECK_INTERVAL if left is None else max(0.0, min(OWNER_CHECK_INTERVAL, left))
            answer = self.files.wait_for_answer(request.request, seconds=turn, now=self.clock.now, pause=sleep)
            if answer is not None:
                return answer
            if left is not None and left <= turn:
                msg = (
                    f"job {self.job!r} has not answered within {seconds:g} s; it may still do what was asked: "
                    f"penstock checkpoints {self.job} tells"
                )
                raise RequestFailed(msg)
            if self.owner() is None:
                return self._told_by_log(request)

    def _told_by_log(self, request: Request) -> Answer:
        """Nobody is there to answer; the last moment's answer, or what stands in the log."""
        answer = self.files.answer_to(request.request)
        if answer is not None:
            return answer
        history = self.read()
        reply = answer_for_old_request(history, request.request, "the process that ran the job is gone")
        is_done = answer_from_log(history, request.request) is not None
        return Answer(
            request=request.request,
            answer=RequestOutcome.DONE if is_done else RequestOutcome.FAILED,
            message=reply.message,
            generation=history.generation or request.generation,
            at=self.clock.wall(),
            checkpoint=reply.checkpoint,
        )

    @contextmanager
    def own(self, *, past_unreadable: bool = False, expect_tail: EntryNumber | None = None) -> Iterator[OwnedLog]:
        """Own the log of a job that nobody runs; a job that was at rest is at rest again afterwards.

        What was read before is to be read again from the log that this gives (rule L2).

        Args:
            past_unreadable: for a rewind: entries that cannot be read do not refuse.
            expect_tail: refuse if the log has moved since somebody looked at it.

        Raises:
            JobIsRunning: somebody does.
            GenerationFenced: somebody was faster, or takes the job meanwhile.
            CheckpointError: the log cannot be read or written.
        """
        self._check()
        claim = Claim(host=host_identity(), pid=os.getpid(), started=self.clock.wall(), version=version("penstock"))
        owned = self.log.claim(claim, past_unreadable=past_unreadable, expect_tail=expect_tail)
        was_at_rest = _was_at_rest(owned.history)  # under the claim: what was read before may have moved (rule L2)
        try:
            yield owned
            if was_at_rest and not is_at_rest(owned.history):
                self.rest(owned)
        finally:
            mark_released(owned.log_id, owned.generation)

    def rest(self, owned: OwnedLog) -> None:
        """Say that the job is at rest: whoever calls has published all that was open and voided what was discarded."""
        point = owned.history.restore_point
        owned.append(Stopped(checkpoint=point.checkpoint if point else None, at=self.clock.wall()))

    def now(self) -> WallTime:
        """Microseconds since the epoch."""
        return self.clock.wall()


def is_at_rest(history: History) -> bool:
    """Whether the newest entry says that the job ended in order and everything is published."""
    newest = history.entries[-1] if history.entries else None
    return newest is not None and newest.number == history.tail and isinstance(newest.body, Stopped)


def _was_at_rest(history: History) -> bool:
    """Whether the entry before our claim, which is the newest, says so."""
    before = history.entries[-2] if len(history.entries) > 1 else None
    return before is not None and before.number == history.tail - 1 and isinstance(before.body, Stopped)


def jobs_in(state: str | Path) -> list[str]:
    """The names of all jobs that have state in this folder, sorted."""
    root = root_of(state)
    if root is None or not root.is_dir():
        return []
    return sorted(found.parent.name for found in root.glob(f"*/{paths.LOG}"))


def root_of(state: str | Path) -> Path | None:
    """The folder that ``--state`` names; ``None`` where it is none of this machine's."""
    text = str(state).removeprefix("file://")
    return None if "://" in text else Path(text)


def process_name() -> str:
    """Who asks, for people."""
    return f"process {os.getpid()} on {platform.node()}"


def _unknown(job: str, state: str | Path) -> UnknownName:
    place = root_of(state) or state
    return UnknownName(
        f"there is no job {job!r} in {place}" + (did_you_mean(job, jobs_in(state)) or "; no job has any state there")
    )
