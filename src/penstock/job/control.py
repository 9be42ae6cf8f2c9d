"""Looks into ``control/`` while a job lives: takes requests in, writes answers, cleans up. Decides nothing about them.

On a thread of its own, for a listing may take its time; it lives as long as the job, so that a job that restores or
waits for its next attempt can say that it is there.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from penstock.checkpoint.control import Answerer, ControlAnswer, ControlRequest, Kind
from penstock.checkpoint.control_files import ControlFiles, Scan
from penstock.checkpoint.log import OwnedLog
from penstock.checkpoint.messages import Answer, CheckpointRequested, StopRequested
from penstock.errors import CheckpointUnreadable, PenstockError
from penstock.ids import Instant
from penstock.job.requests import Reply, Requests, Tell, reply_of_log
from penstock.runtime.clock import Clock

log = logging.getLogger("penstock")


def _nothing() -> None:
    """Where nobody has anything to do between two looks."""


LOOK_EVERY: Final = 0.3
"""Seconds from one listing to the next."""

SWEEP_EVERY: Final = 3_600_000_000
KEPT: Final = 24 * 3_600_000_000
"""Microseconds that an answer stays. By clocks, for nothing decides by what lies there: whoever comes later than that
for an answer finds the log."""

REMEMBERED: Final = 10_000
"""Requests whose answers are known by heart, so that a repetition gets the same one."""


@dataclass(slots=True)
class _Known:
    """A request that was taken in."""

    answer: ControlAnswer | None = None
    at: Instant | None = None


class ControlWatch:
    """The job's side of ``control/``.

    Args:
        files: what lies there.
        requests: where requests go.
        stop: how the job is asked to stop; it marks the job as stopping, too.
        state: what the job is doing, in a word.
        clock: for times in answers, and for the clean-up.
        beside: is called after each look, on the same thread; it must not raise.
    """

    def __init__(
        self,
        files: ControlFiles,
        requests: Requests,
        *,
        stop: Callable[[StopRequested, Tell], None],
        state: Callable[[], str],
        clock: Clock,
        beside: Callable[[], None] = _nothing,
    ) -> None:
        self._files = files
        self._requests = requests
        self._stop = stop
        self._state = state
        self._clock = clock
        self._beside = beside
        self._began = clock.wall()
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()
        self._poke = threading.Event()
        self._is_closed = False
        self._swept: Instant | None = None
        self._told: set[str] = set()
        self._strange: frozenset[str] = frozenset()
        self._thread = threading.Thread(target=self._run, name="penstock-control", daemon=True)

    # ---------------------------------------------------------------------------------------------------- the thread

    def start(self) -> None:
        """Look now and then from here on."""
        self._thread.start()

    def close(self, seconds: float = 5.0) -> None:
        """Write what is to be said, answer what came at the last moment, and end; wait at most so long for that."""
        self._is_closed = True
        self._poke.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        said = ""
        while True:
            is_last = self._is_closed
            try:
                self.look()
                said = ""
            except PenstockError as error:
                if str(error) != said:
                    log.warning("requests to the job are not seen just now: %s", error)
                said = str(error)
            except Exception:
                log.exception("looking for requests to the job failed; it is tried again")
            self._beside()
            if is_last:
                return
            self._poke.wait(LOOK_EVERY)
            self._poke.clear()

    # -------------------------------------------------------------------------------------------------------- a look

    def look(self) -> None:
        """Take in what is new, then write what can be answered; one listing if there is nothing to do."""
        owned = self._requests.owned
        if owned is None:
            return
        scan = self._files.scan()
        self._told &= {*scan.open, *scan.answered}
        self._each(scan.open, lambda each: self._take(each, owned))
        self._each(scan.open, self._write)
        self._sweep(scan)

    def _each(self, ids: Iterable[str], act: Callable[[str], None]) -> None:
        """Storage that refuses one file holds no other request back; people are told once."""
        for id in ids:
            try:
                act(id)
            except PenstockError as error:
                if id not in self._told:
                    log.warning("request %s cannot be worked on just now: %s", id, error)
                self._told.add(id)

    def _write(self, id: str) -> None:
        known = self._known.get(id)
        if known is not None and known.answer is not None and self._files.answer(known.answer):
            known.at = known.at or self._clock.now()

    def _take(self, id: str, owned: OwnedLog) -> None:
        if id in self._known:
            return
        try:
            request = self._files.request(id)
        except CheckpointUnreadable as error:
            if self._requests.is_owner():  # else it may be for a newer version of penstock that has taken over
                self._refuse(id, owned, str(error))
            return
        if request is None or (request.kind is Kind.HELLO and self._requests.is_closed):
            return  # who is over is nobody to wait for
        stranger = _stranger(request, owned)
        if stranger is not None:
            if self._requests.is_owner():  # else whoever asks has seen a claim that we had not
                self._refuse(id, owned, stranger)
        elif request.generation < owned.generation:
            cause = f"the driver changed, it is generation {owned.generation} now"
            self._note(id, owned, reply_of_log(owned.history, id, cause))
        elif request.kind is Kind.HELLO:
            self._note(id, owned, Reply(answer=Answer.DONE, message="here I am"), me=self._me())
        elif self._requests.are_taken_in or (request.kind in {Kind.STOP, Kind.DRAIN} and request.name is None):
            self._known[id] = _Known()
            self._submit(request, lambda reply: self._note(id, owned, reply))

    def _submit(self, request: ControlRequest, tell: Tell) -> None:
        now, wall = self._clock.now(), self._clock.wall()
        match request.kind:
            case Kind.STOP | Kind.DRAIN:
                stop = StopRequested(
                    at=now,
                    wall=wall,
                    request=request.request,
                    name=request.name,
                    owner=request.owner,
                    patience=request.patience,
                    drain=request.kind is Kind.DRAIN,
                )
                self._stop(stop, tell)
            case Kind.PIN | Kind.UNPIN:
                self._requests.append(request, tell)
            case _:
                asked = CheckpointRequested(
                    at=now, wall=wall, request=request.request, name=request.name, owner=request.owner
                )
                self._requests.submit(asked, tell, only_for=request.generation)

    def _refuse(self, id: str, owned: OwnedLog, message: str) -> None:
        self._note(id, owned, Reply(answer=Answer.REFUSED, message=message))

    def _note(self, id: str, owned: OwnedLog, reply: Reply, *, me: Answerer | None = None) -> None:
        """Keep the answer; the next look writes it. What only the log can tell is left to its next owner."""
        if reply.answer is Answer.UNKNOWN:
            return
        answer = ControlAnswer(
            request=id,
            answer=reply.answer,
            message=reply.message,
            generation=owned.generation,
            at=self._clock.wall(),
            checkpoint=reply.checkpoint,
            me=me,
        )
        with self._lock:
            self._known[id] = _Known(answer)
            while len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
        self._poke.set()

    def _me(self) -> Answerer:
        return Answerer(
            host=platform.node(),
            pid=os.getpid(),
            started=self._began,
            version=version("penstock"),
            state=self._state(),
        )

    # ------------------------------------------------------------------------------------------------------ clean-up

    def _sweep(self, scan: Scan) -> None:
        """Once an hour, remove what was answered a day ago, and answers that nobody could read an hour ago either."""
        now = self._clock.now()
        if self._swept is not None and now < self._swept + SWEEP_EVERY:
            return
        self._swept = now
        strange: set[str] = set()

        def clean(id: str) -> None:
            known = self._known.get(id)
            is_old = now >= known.at + KEPT if known and known.at is not None else self._is_old(id, strange)
            if is_old:
                self._files.forget(id)

        self._each(scan.answered, clean)
        self._strange = frozenset(strange)

    def _is_old(self, id: str, strange: set[str]) -> bool:
        """Answered by another generation, or so long ago that we forgot: then clocks of people decide."""
        try:
            answer = self._files.answer_to(id)
        except CheckpointUnreadable:
            strange.add(id)
            return id in self._strange
        return answer is not None and self._clock.wall() >= answer.at + KEPT


def _stranger(request: ControlRequest, owned: OwnedLog) -> str | None:
    """Why it can be for nobody but an owner that we know nothing of, if so."""
    if request.log_id not in {None, owned.log_id}:
        return f"log {request.log_id} was asked, another log is here now: {owned.log_id}"
    if request.generation > owned.generation:
        return f"generation {request.generation} was asked, {owned.generation} is the newest"
    return None
