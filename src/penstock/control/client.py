"""A job from outside: read its log, ask its owner, own the log while the job is stopped."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeVar

from penstock.checkpoint import paths
from penstock.checkpoint.entries import NO_ENTRY, Claim, Stopped, host_of
from penstock.checkpoint.events import RequestOutcome
from penstock.checkpoint.history import History
from penstock.checkpoint.log import Log, OwnedLog
from penstock.clock import Clock, SystemClock, WallTime, format_time, sleep
from penstock.control.protocol import Answer, ControlFiles, OwnerInfo, Request, RequestKind, answer_for_old_request
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

# ---- host identity ---------------------------------------------------------------------------------------------------

PROC: Final = Path("/proc")


def host_identity(proc: Path = PROC) -> str:
    """Host name and a mark, ``web-1#9f86d081884c``: process ids have a meaning where both are equal.

    Containers can share a host name. The mark is made of the machine's boot and the namespace of process ids. Where it
    cannot be read the host name stands alone, and equals no other identity.

    >>> host_identity(Path("/nowhere")) == platform.node()
    True
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = (proc / "self/ns/pid").readlink()
    except (OSError, ValueError):
        return platform.node()
    return f"{platform.node()}#{sha256(f'{boot} {namespace}'.encode()).hexdigest()[:12]}"


def is_this_host(identity: str) -> bool:
    """Whether process ids of that host have the same meaning here."""
    return "#" in identity and identity == host_identity()


def process_name() -> str:
    """This process as a requester, for people."""
    return f"process {os.getpid()} on {platform.node()}"


# ---- whether a living process owns the job (rule L9, second half) ----------------------------------------------------

T = TypeVar("T")
OWNER_TIMEOUT: Final = 2.0
"""Seconds that an owner gets to answer, and storage to work."""  # an owner looks for requests several times in it
STOPPING_TIMEOUT: Final = 15.0
"""Seconds that a stopping owner gets to end."""  # a process manager may start the next before the last has ended
RETRY_INTERVAL: Final = 0.25
"""Seconds from one try to the next."""
_released: set[tuple[str, Generation]] = set()
_released_lock = threading.Lock()


def mark_released(log_id: str, generation: Generation) -> None:
    """Remember that this process had the log under this claim and does nothing more with it."""
    with _released_lock:
        _released.add((log_id, generation))


class OwnerCheck:
    """Refuses a start while a living owner answers.

    It is a courtesy, not a lock: of two processes that start at once neither may get an answer; then the claims in the
    log decide. It reads the log and claims nothing.

    Args:
        job: its name, for the message.
        log: of the job.
        files: where the owner is asked.
        clock: for timeouts.
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
        self._silent_up_to: int = NO_ENTRY  # owners by entries up to this one were asked and did not answer

    def __call__(self) -> None:
        """Ask the owner by the newest claim, unless it certainly is gone or did not answer before.

        An owner that is stopping is waited for.

        Raises:
            JobIsRunning: it answered.
            CheckpointError: whether there is an owner cannot be found out; nothing was claimed.
        """
        latest = self._clock.now() + int(STOPPING_TIMEOUT * 1_000_000)
        while (found := self.find_owner()) is not None:
            history, answer = found
            is_stopping = answer.me is not None and answer.me.state == JobState.STOPPING.value
            if not is_stopping or self._clock.now() >= latest:
                raise JobIsRunning(self._refusal(history, answer))
            self._pause(RETRY_INTERVAL)

    def find_owner(self) -> tuple[History, Answer] | None:
        """Ask once: the log and the answer of the newest claim's owner; ``None`` if there is no answer.

        Raises:
            CheckpointError: whether there is an owner cannot be found out.
        """
        history = self._read_if_owned()
        if history is None:
            return None
        answer = self._ask(history)
        if answer is None:
            self._silent_up_to = history.tail
            return None
        return history, answer

    def _read_if_owned(self) -> History | None:
        """The log, if an owner may live that has not been asked yet; an unreadable entry may be its claim."""
        history = self._retried(lambda: self._log.read(past_unreadable=True))
        claimed = history.generation if _is_newest_readable(history) else history.tail
        if history.is_empty or (claimed is not None and claimed <= self._silent_up_to):
            return None
        if owner_is_gone(history, self._files):
            return None
        return history

    def _retried(self, act: Callable[[], T]) -> T:
        """The result, tried again for ``OWNER_TIMEOUT`` while storage fails: that says nothing of an owner."""
        deadline = self._clock.now() + int(OWNER_TIMEOUT * 1_000_000)
        while True:
            try:
                return act()
            except StorageFailed:
                if self._clock.now() >= deadline:
                    raise
            self._pause(RETRY_INTERVAL)

    def _ask(self, history: History) -> Answer | None:
        generation = history.generation or Generation(0)  # a living owner answers older ones, too
        hello = Request(
            request=self._new_id(),
            kind=RequestKind.HELLO,
            generation=generation,
            asked=self._clock.wall(),
            owner=process_name(),
            log_id=history.log_id,
        )
        try:
            self._retried(lambda: self._files.ask(hello, pause=self._pause))
            return self._files.wait_for_answer(
                hello.request, seconds=OWNER_TIMEOUT, now=self._clock.now, pause=self._pause
            )
        except CheckpointUnreadable as error:  # an owner lives and answers, in the format of another version
            return Answer(
                request=hello.request,
                outcome=RequestOutcome.REFUSED,
                message=str(error),
                generation=generation,
                at=self._clock.wall(),
            )
        finally:
            with suppress(CheckpointError):
                self._files.forget(hello.request)

    def _refusal(self, history: History, answer: Answer) -> str:
        owner: Claim | OwnerInfo | None = answer.me or self._files.claim_of(history)
        who = "another process"
        if owner is not None:
            who = f"process {owner.pid} on {host_of(owner.host)}, since {format_time(owner.started)}"
        return (
            f"Job {self._job!r} is running already: {who} (generation {answer.generation}). Stop that one first, or "
            "start with penstock run … --take-over (in Python take_over=True), which ends it without its last "
            "checkpoint."
        )


def owner_is_gone(history: History, files: ControlFiles) -> bool:
    """Whether no owner can answer: an orderly end, a released claim of this process, a process that does not exist."""
    if not _is_newest_readable(history):
        return False  # it may be a claim
    if isinstance(history.entries[-1].body, Stopped):
        return True
    assert history.log_id is not None  # there is an entry
    assert history.generation is not None
    with _released_lock:
        if (history.log_id, history.generation) in _released:
            return True
    claim = files.claim_of(history)
    return claim is not None and is_this_host(claim.host) and not _exists(claim.pid)


def _is_newest_readable(history: History) -> bool:
    return bool(history.entries) and history.entries[-1].number == history.tail


def _exists(pid: int) -> bool:
    """Whether there is a process of this id; by now it may be another one, which then is waited for in vain."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


# ---- a job's directory -----------------------------------------------------------------------------------------------

OWNER_CHECK_INTERVAL: Final = 5.0
"""Seconds without an answer after which the client checks that the owner still lives."""
MAX_SILENT_CHECKS: Final = 3
"""Number of checks in a row without an answer after which the owner counts as gone: its disk may be busy for long."""


class JobDirectory:
    """One job's directory.

    Only the owner appends to the log (rule L5): a running job is asked through ``control/``, a stopped one is claimed.

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
        self._check = self._new_check()  # it does not ask a silent owner again

    def _new_check(self) -> OwnerCheck:
        return OwnerCheck(job=self.job, log=self.log, files=self.files, clock=self.clock, new_id=new_id, pause=sleep)

    def read(self, *, past_unreadable: bool = False) -> History:
        """The log as it is now.

        Raises:
            UnknownName: the log is empty: there is no such job.
            CheckpointError: it cannot be read.
        """
        history = self.log.read(past_unreadable=past_unreadable)
        if history.is_empty:
            raise _unknown(self.job, self.state)
        return history

    def owner(self) -> Answer | None:
        """The ``HELLO`` answer of the process that runs the job; ``None``, perhaps after 2 s, if there is no process.

        Raises:
            CheckpointError: whether there is one cannot be found out.
        """
        found = self._check.find_owner()
        return None if found is None else found[1]

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
        """Send a request to the process that runs the job; returns its answer, a refusal included.

        If that process ends without an answer, the answer is taken from the log.

        Args:
            kind: what is requested.
            name: of the savepoint or pin.
            checkpoint: which one to pin.
            patience: microseconds that a stop waits for its final checkpoint and its output.
            expires: until when a pin is meant to be needed; for people.
            seconds: how long to wait for the answer; for ever unless given.

        Raises:
            RequestFailed: there was no answer in time.
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
        silent = 0
        while True:
            left = None if deadline is None else (deadline - self.clock.now()) / 1_000_000
            turn = OWNER_CHECK_INTERVAL if left is None else max(0.0, min(OWNER_CHECK_INTERVAL, left))
            answer = self.files.wait_for_answer(request.request, seconds=turn, now=self.clock.now, pause=sleep)
            if answer is not None:
                return answer
            if left is not None and left <= turn:
                msg = (
                    f"Job {self.job!r} has not answered within {seconds:g} s. It may still do what was asked: "
                    f"penstock checkpoints {self.job} shows whether it did."
                )
                raise RequestFailed(msg)
            silent = 0 if self._new_check().find_owner() is not None else silent + 1
            if silent == MAX_SILENT_CHECKS or (silent and owner_is_gone(self.read(), self.files)):
                return self._answer_without_owner(request)

    def _answer_without_owner(self, request: Request) -> Answer:
        """An answer written at the last moment, or else the one that the log gives."""
        answer = self.files.answer_to(request.request)
        if answer is not None:
            return answer
        history = self.read()
        found = answer_for_old_request(history, request.request, "the process that ran the job is gone")
        return Answer(
            request=request.request,
            outcome=found.outcome,
            message=found.message,
            generation=history.generation or request.generation,
            at=self.clock.wall(),
            checkpoint=found.checkpoint,
        )

    @contextmanager
    def own(self, *, past_unreadable: bool = False, expect_tail: EntryNumber | None = None) -> Iterator[OwnedLog]:
        """Own the log of a job that does not run; a job that was at rest is at rest again afterwards.

        The caller reads again from this log what it has read before (rule L2).

        Args:
            past_unreadable: for a rewind: unreadable entries are no reason to refuse.
            expect_tail: refuse if this is not the newest entry any more.

        Raises:
            JobIsRunning: the job runs.
            GenerationFenced: another process was faster, or claims the job meanwhile.
            CheckpointError: the log cannot be read or written.
        """
        self._check()
        claim = Claim(host=host_identity(), pid=os.getpid(), started=self.clock.wall(), version=version("penstock"))
        owned = self.log.claim(claim, past_unreadable=past_unreadable, expect_tail=expect_tail)
        was_at_rest = _was_at_rest(owned.history)  # under the claim: what was read before may have moved (rule L2)
        try:
            yield owned
            if was_at_rest and not is_at_rest(owned.history):
                self.write_stopped(owned)
        finally:
            mark_released(owned.log_id, owned.generation)

    def write_stopped(self, owned: OwnedLog) -> None:
        """Record that the job is at rest: the caller has published all open output and voided what was discarded."""
        point = owned.history.restore_point
        owned.append(Stopped(checkpoint=point.checkpoint if point else None, at=self.clock.wall()))

    def now(self) -> WallTime:
        """The wall clock, in microseconds since the epoch."""
        return self.clock.wall()


def is_at_rest(history: History) -> bool:
    """Whether the newest entry says that the job ended in order and everything is published."""
    newest = history.entries[-1] if history.entries else None
    return newest is not None and newest.number == history.tail and isinstance(newest.body, Stopped)


def _was_at_rest(history: History) -> bool:
    """Whether the entry before our claim, which is the newest, says that the job was at rest."""
    previous = history.entries[-2] if len(history.entries) > 1 else None
    return previous is not None and previous.number == history.tail - 1 and isinstance(previous.body, Stopped)


def jobs_in(state: str | Path) -> list[str]:
    """The names of all jobs that have state in this folder, sorted."""
    root = root_of(state)
    if root is None or not root.is_dir():
        return []
    return sorted(found.parent.name for found in root.glob(f"*/{paths.LOG}"))


def root_of(state: str | Path) -> Path | None:
    """The folder that ``--state`` names; ``None`` if it is not a local one."""
    text = str(state).removeprefix("file://")
    return None if "://" in text else Path(text)


def _unknown(job: str, state: str | Path) -> UnknownName:
    place = root_of(state) or state
    return UnknownName(
        f"There is no job {job!r} in {place}" + (did_you_mean(job, jobs_in(state)) or ". No job has any state there.")
    )
