"""A job's directory from outside: its log to read, its living owner to ask, or its log to own while nobody runs it.

Only the owner appends (rule L5): a running job is asked through ``control/``, a stopped one is claimed. Knows nothing
of what is asked, and no pipeline.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from penstock.checkpoint import paths
from penstock.checkpoint.control import ControlAnswer, ControlRequest, Kind, told_by_log
from penstock.checkpoint.control_files import ControlFiles
from penstock.checkpoint.effects import Answer
from penstock.checkpoint.entries import Claim, Stopped
from penstock.checkpoint.history import History
from penstock.checkpoint.log import Log, OwnedLog
from penstock.checkpoint.names import near
from penstock.errors import CheckpointError, RequestFailed, UnknownName
from penstock.filesystem.base import FileSystem
from penstock.filesystem.local import LocalFileSystem
from penstock.ids import CheckpointId, EntryNumber, Generation, WallTime
from penstock.job.asking import new_id
from penstock.job.here import here
from penstock.job.owner import OwnerCheck, note_over
from penstock.job.requests import reply_of_log
from penstock.runtime.clock import Clock, SystemClock, pause

LOOK_FOR_OWNER: Final = 5.0
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
        self.log = Log(self.filesystem, job=job, new_id=new_id, pause=pause)
        self._check = OwnerCheck(job=job, log=self.log, files=self.files, clock=self.clock, new_id=new_id, pause=pause)

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

    def owner(self) -> ControlAnswer | None:
        """What the process that runs the job says of itself; ``None`` if nobody does, which takes 2 s to be sure of.

        Raises:
            CheckpointError: whether anybody does cannot be found out.
        """
        heard = self._check.hear()
        return None if heard is None else heard[1]

    def ask(
        self,
        kind: Kind,
        *,
        name: str | None = None,
        checkpoint: CheckpointId | None = None,
        patience: int | None = None,
        expires: WallTime | None = None,
        seconds: float | None = None,
    ) -> ControlAnswer:
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
        request = ControlRequest(
            request=new_id(),
            kind=kind,
            generation=history.generation or Generation(0),
            asked=self.clock.wall(),
            owner=me(),
            name=name,
            checkpoint=checkpoint,
            patience=patience,
            log_id=history.log_id,
            expires=expires,
        )
        self.files.ask(request, pause=pause)
        answer = self._wait(request, seconds)
        with suppress(CheckpointError):  # what stays there is swept by the job
            self.files.forget(request.request)
        return answer

    def _wait(self, request: ControlRequest, seconds: float | None) -> ControlAnswer:
        deadline = None if seconds is None else self.clock.now() + int(seconds * 1_000_000)
        while True:
            left = None if deadline is None else (deadline - self.clock.now()) / 1_000_000
            turn = LOOK_FOR_OWNER if left is None else max(0.0, min(LOOK_FOR_OWNER, left))
            answer = self.files.wait_for_answer(request.request, seconds=turn, now=self.clock.now, pause=pause)
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

    def _told_by_log(self, request: ControlRequest) -> ControlAnswer:
        """Nobody is there to answer; the last moment's answer, or what stands in the log."""
        answer = self.files.answer_to(request.request)
        if answer is not None:
            return answer
        history = self.read()
        reply = reply_of_log(history, request.request, "the process that ran the job is gone")
        is_done = told_by_log(history, request.request) is not None
        return ControlAnswer(
            request=request.request,
            answer=Answer.DONE if is_done else Answer.FAILED,
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
        claim = Claim(host=here(), pid=os.getpid(), started=self.clock.wall(), version=version("penstock"))
        owned = self.log.claim(claim, past_unreadable=past_unreadable, expect_tail=expect_tail)
        was_at_rest = _was_at_rest(owned.history)  # under the claim: what was read before may have moved (rule L2)
        try:
            yield owned
            if was_at_rest and not is_at_rest(owned.history):
                self.rest(owned)
        finally:
            note_over(owned.log_id, owned.generation)

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


def me() -> str:
    """Who asks, for people."""
    return f"process {os.getpid()} on {platform.node()}"


def _unknown(job: str, state: str | Path) -> UnknownName:
    place = root_of(state) or state
    return UnknownName(
        f"there is no job {job!r} in {place}" + (near(job, jobs_in(state)) or "; no job has any state there")
    )
