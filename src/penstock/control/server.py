"""The job's side of requests: takes them in, hands them to the running attempt, answers each exactly once."""

from __future__ import annotations

import itertools
import logging
import os
import platform
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Final, TypeAlias

from penstock.checkpoint.entries import Pin, Unpin
from penstock.checkpoint.events import (
    AbortReason,
    AnswerRequest,
    CheckpointRequested,
    RequestEvent,
    RequestOutcome,
    StopRequested,
)
from penstock.checkpoint.history import History, name_conflict
from penstock.checkpoint.log import OwnedLog
from penstock.clock import Clock, MonotonicTime, WallTime
from penstock.control.protocol import (
    Answer,
    ControlFiles,
    FolderListing,
    OwnerInfo,
    Request,
    RequestKind,
    answer_for_old_request,
    answer_from_log,
)
from penstock.errors import (
    CheckpointUnreadable,
    GenerationFenced,
    PenstockError,
    StateDirectoryRefused,
    StorageFailed,
    sentence,
)
from penstock.handles import CheckpointId, Generation

log = logging.getLogger("penstock")

POLL_INTERVAL: Final = 0.3
"""Seconds from one listing of ``control/`` to the next."""
SWEEP_INTERVAL: Final = 3_600_000_000
"""Microseconds from one clean-up of ``control/`` to the next."""
ANSWER_TTL: Final = 24 * 3_600_000_000
"""Microseconds after which an answer is deleted. A later reader finds the result in the log."""
MAX_REMEMBERED: Final = 10_000
"""Number of requests that are remembered with their answers, so that a repeated one gets the same answer."""

# ---- pins of a running job -------------------------------------------------------------------------------------------


def pin_refusal(request: Request, history: History) -> str | None:
    """Why the log does not allow this pin or unpin; ``None`` if it does (rule L5)."""
    if request.kind is RequestKind.PIN and request.checkpoint not in history.restorable:
        known = ", ".join(map(str, history.restorable)) or "none"
        return (
            f"Checkpoint {request.checkpoint} cannot be restored, so it gets no name. Restorable checkpoints: {known}."
        )
    if request.kind is RequestKind.UNPIN and request.name not in history.pins:
        known = ", ".join(sorted(history.pins)) or "none"
        return f"no checkpoint is called {request.name!r}; there are: {known}"
    return None


def pin_entry(request: Request, at: WallTime) -> Pin | Unpin:
    """The log entry of a pin or unpin."""
    assert request.name is not None  # checked by the codec
    if request.checkpoint is None:
        return Unpin(name=request.name, at=at, request=request.request)
    return Pin(
        name=request.name,
        checkpoint=request.checkpoint,
        at=at,
        owner=request.owner,
        expires=request.expires,
        request=request.request,
    )


# ---- open requests ---------------------------------------------------------------------------------------------------
#
# Requests come from this process and, through ``control/``, from others. If an attempt fails when it may have carried
# a request out, that request is answered from the log under the next claim (rule C3).

AnswerCallback: TypeAlias = Callable[[AnswerRequest], None]
"""Gets the answer, once, from any thread. The outcome is ``UNKNOWN`` if only the log can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAttempt:
    """What requests use of a running attempt.

    Attributes:
        put: hands an event to the deciding thread.
        failed: ends the attempt.
        on_log: runs work in order with the manifests, on the thread that appends them.
        clock: of the attempt.
    """

    put: Callable[[RequestEvent], None]
    failed: Callable[[str, BaseException], None]
    on_log: Callable[[Callable[[], None]], None]
    clock: Clock


@dataclass(slots=True, kw_only=True)
class _OpenRequest:
    """A request that waits for its answer.

    Attributes:
        request: an event for the coordinator, or a pin or unpin.
        callback: gets the answer.
        accepted: called before the event is handed to an attempt.
        only_for: the one generation that may carry it out, if there is one.
        attempt: the attempt it was handed to, which may have begun it.
        cause: why the attempt did not answer it.
    """

    request: RequestEvent | Request
    callback: AnswerCallback
    accepted: Callable[[], None] = lambda: None
    only_for: Generation | None = None
    attempt: RunningAttempt | None = None
    cause: str = ""

    @property
    def id(self) -> str:
        return self.request.request

    @property
    def name(self) -> str | None:
        """The name that it gives to a checkpoint, if any."""
        is_unpin = isinstance(self.request, Request) and self.request.kind is RequestKind.UNPIN
        return None if is_unpin else self.request.name

    def answer(self, outcome: RequestOutcome, message: str, checkpoint: CheckpointId | None = None) -> AnswerRequest:
        return AnswerRequest(request=self.id, outcome=outcome, checkpoint=checkpoint, message=message)


class RequestRegistry:
    """The open requests of one job. Any thread may call it; no callback is called while its lock is held.

    Attributes:
        owned: the log under our newest claim; ``None`` before the first, and once another driver has it.
    """

    def __init__(self) -> None:
        self.owned: OwnedLog | None = None
        self._lock = threading.Lock()
        self._open: dict[str, _OpenRequest] = {}
        self._attempt: RunningAttempt | None = None
        self._end: tuple[RequestOutcome, str] | None = None  # how a request is answered once the job is over

    @property
    def takes_requests(self) -> bool:
        """Whether requests are dealt with now: by a running attempt, or by the end of the job, which answers them."""
        return self._attempt is not None or self.is_closed

    @property
    def is_closed(self) -> bool:
        """Whether the job is over."""
        return self._end is not None

    # ---- asking ------------------------------------------------------------------------------------------------------

    def submit(
        self,
        event: RequestEvent,
        callback: AnswerCallback,
        *,
        accepted: Callable[[], None] = lambda: None,
        only_for: Generation | None = None,
    ) -> None:
        """Have the running attempt, or the next one, carry a request out.

        A request that is open already is ignored. One with a name that is already given is refused.

        Args:
            event: the request.
            callback: gets the answer.
            accepted: called before the event is handed to an attempt.
            only_for: the one generation that may carry it out.
        """
        opened = _OpenRequest(request=event, callback=callback, accepted=accepted, only_for=only_for)
        if self._register(opened) and (attempt := self._attempt) is not None:
            self._hand_in(opened, event, attempt)

    def append(self, request: Request, callback: AnswerCallback) -> None:
        """Pin or unpin between two manifests, where no manifest can condemn the checkpoint meanwhile (rule L5)."""
        opened = _OpenRequest(request=request, callback=callback)
        if not self._register(opened):
            return
        attempt, owned = self._attempt, self.owned
        if attempt is None or owned is None:
            self._answer(opened.answer(RequestOutcome.REFUSED, "the job is not running"))
        else:
            attempt.on_log(lambda: self._append(opened, request, owned, attempt))

    def _register(self, opened: _OpenRequest) -> bool:
        """Note a request as open; ``False`` if it was open already, or if the job is over: then it is answered."""
        with self._lock:
            end = self._end
            if end is None:
                return self._open.setdefault(opened.id, opened) is opened
        opened.callback(opened.answer(*end))
        return False

    def _hand_in(self, opened: _OpenRequest, event: RequestEvent, attempt: RunningAttempt) -> None:
        """Hand a request to an attempt, unless one has it, or it can be answered at once."""
        with self._lock:
            if opened.attempt is not None or self._open.get(opened.id) is not opened:
                return
            answer = self._answer_at_once(opened)
            opened.attempt = attempt if answer is None else None
        if answer is not None:
            self._answer(answer)
            return
        opened.accepted()
        attempt.put(replace(event, at=attempt.clock.now(), wall=attempt.clock.wall()))

    def _answer_at_once(self, opened: _OpenRequest) -> AnswerRequest | None:
        """The answer that the log or an earlier open request determines, if any."""
        assert self.owned is not None  # an attempt that runs has claimed
        history = self.owned.history
        done = answer_from_log(history, opened.id)
        if done is not None or opened.name is None:
            return done
        conflict = name_conflict(history, opened.name)
        if conflict is not None:
            return opened.answer(RequestOutcome.REFUSED, conflict, history.pins[opened.name].checkpoint)
        earlier = itertools.takewhile(lambda other: other is not opened, self._open.values())
        if any(other.name == opened.name for other in earlier):
            message = f"{opened.name!r} is being given to another checkpoint just now."
            return opened.answer(RequestOutcome.REFUSED, message)
        return None

    def _append(self, opened: _OpenRequest, request: Request, owned: OwnedLog, attempt: RunningAttempt) -> None:
        """Append the entry of a pin or unpin, and answer; on the thread that appends to the log."""
        with self._lock:
            if self._open.get(opened.id) is not opened:
                return  # the attempt is over, and the request is answered
            answer = self._answer_at_once(opened)
            refusal = pin_refusal(request, owned.history)
            if answer is None and refusal is not None:
                answer = opened.answer(RequestOutcome.REFUSED, refusal)
            opened.attempt = attempt if answer is None else None
        if answer is None:
            try:
                number = owned.append(pin_entry(request, attempt.clock.wall()))
                answer = opened.answer(RequestOutcome.DONE, f"done: entry {number}", request.checkpoint)
            except (StorageFailed, StateDirectoryRefused) as error:
                answer = opened.answer(RequestOutcome.FAILED, str(error))
        self._answer(answer)

    # ---- answering ---------------------------------------------------------------------------------------------------

    def answered(self, answer: AnswerRequest) -> None:
        """Take an answer of the coordinator."""
        if answer.outcome is RequestOutcome.UNKNOWN:  # left to the log under the next claim
            with self._lock:
                if answer.request in self._open:
                    self._open[answer.request].cause = answer.message
        elif answer.outcome is RequestOutcome.REFUSED and answer.message == AbortReason.STOPPING.value:
            self._pass_on(answer.request)
        else:
            self._answer(answer)

    def _pass_on(self, request: str) -> None:
        """Take a request back from an ending attempt, for the next one; if the job ends, ``close`` answers it."""
        with self._lock:
            opened, attempt = self._open.get(request), self._attempt
            if opened is None:
                return
            is_next = attempt is not opened.attempt
            opened.attempt = None
        if attempt is not None and is_next and not isinstance(opened.request, Request):
            self._hand_in(opened, opened.request, attempt)

    def _answer(self, answer: AnswerRequest) -> None:
        with self._lock:
            opened = self._open.pop(answer.request, None)
        if opened is not None:
            opened.callback(answer)

    # ---- the life of a job -------------------------------------------------------------------------------------------

    def claimed(self, owned: OwnedLog) -> None:
        """Take a new claim of this job, and answer from its log the requests that were an earlier generation's."""
        with self._lock:
            self.owned = owned
            left = [each for each in self._open.values() if each.attempt is not None or each.only_for is not None]
        for opened in left:  # what an earlier attempt may have done is in the log by now, or never will be
            cause = opened.cause or "the driver began again"
            self._answer(answer_for_old_request(owned.history, opened.id, cause))

    def attempt_started(self, attempt: RunningAttempt) -> None:
        """Hand requests to this attempt from now on, and those that waited for one."""
        with self._lock:
            self._attempt = attempt
            waiting = [opened for opened in self._open.values() if opened.attempt is None]
        for opened in waiting:
            if not isinstance(opened.request, Request):
                self._hand_in(opened, opened.request, attempt)

    def attempt_ended(self, error: BaseException) -> None:
        """Note that the attempt failed. Its coordinator has answered all requests but those that the log may hold."""
        with self._lock:
            self._attempt = None
            for opened in self._open.values():
                opened.cause = opened.cause or str(error)
            dropped = [  # pins and unpins that the attempt has not begun
                opened
                for opened in self._open.values()
                if isinstance(opened.request, Request) and opened.attempt is None
            ]
        for opened in dropped:
            self._answer(opened.answer(RequestOutcome.FAILED, str(error)))

    def is_owner(self) -> bool:
        """Whether the log is still ours, as read now. If another driver has claimed it, end the attempt at once.

        ``False`` if the log cannot be read: then another owner may have to answer.
        """
        owned, attempt = self.owned, self._attempt
        if owned is None:
            return False
        try:
            fence = owned.look()
        except PenstockError:
            return False
        if fence is not None and attempt is not None:
            attempt.failed("control", fence)
        return fence is None

    def close(self, error: BaseException | None = None) -> None:
        """Answer all open requests, since the job is over. Only the first call counts.

        What may be in the log is left to its next owner: the answer is ``UNKNOWN``.
        """
        with self._lock:
            if self._end is not None:
                return
            message = f"The job has ended: {sentence(error)}" if error else "The job has ended."
            outcome = RequestOutcome.FAILED if error else RequestOutcome.REFUSED
            self._end = outcome, message
            self._attempt = None
            if isinstance(error, GenerationFenced):
                self.owned = None
            left = list(self._open.values())
        for opened in left:
            if opened.attempt is not None or isinstance(error, GenerationFenced):
                self._answer(opened.answer(RequestOutcome.UNKNOWN, opened.cause or message))
            else:
                self._answer(opened.answer(outcome, message))


# ---- requests of other processes -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _AcceptedRequest:
    """A request of another process that was taken in, and its answer once there is one."""

    answer: Answer | None = None
    written_at: MonotonicTime | None = None  # when the answer was written


class ControlServer:
    """Takes requests in from ``control/``, writes their answers, and cleans up.

    It has a thread of its own, since a listing may be slow. The thread lives as long as the job, so that a job can
    answer a ``HELLO`` while it restores or waits for its next attempt.

    Args:
        files: the files below ``control/``.
        requests: where requests are submitted.
        stop: submits a stop, and marks the job as stopping.
        state: returns the state of the job, in a word.
        clock: for times in answers, and for the clean-up.
        after_look: called after each look, on the same thread; must not raise.
    """

    def __init__(
        self,
        files: ControlFiles,
        requests: RequestRegistry,
        *,
        stop: Callable[[StopRequested, AnswerCallback], None],
        state: Callable[[], str],
        clock: Clock,
        after_look: Callable[[], None] = lambda: None,
    ) -> None:
        self._files = files
        self._requests = requests
        self._stop = stop
        self._state = state
        self._clock = clock
        self._after_look = after_look
        self._started = clock.wall()
        self._accepted: dict[str, _AcceptedRequest] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_closed = False
        self._swept_at: MonotonicTime | None = None
        self._copied: Generation | None = None  # whose claim was copied
        self._warned: set[str] = set()  # requests that a warning was logged for
        self._unreadable: frozenset[str] = frozenset()  # answers that the last clean-up could not read
        self._thread = threading.Thread(target=self._run, name="penstock-control", daemon=True)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, seconds: float = 5.0) -> None:
        """End the thread after a last look, which writes the answers; wait at most ``seconds`` for it."""
        self._is_closed = True
        self._wake.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        last_error = ""
        while True:
            is_last = self._is_closed
            try:
                self.look()
                last_error = ""
            except PenstockError as error:
                if str(error) != last_error:
                    log.warning("requests to the job are not seen just now: %s", error)
                last_error = str(error)
            except Exception:
                log.exception("looking for requests to the job failed; it is tried again")
            self._after_look()
            if is_last:
                return
            self._wake.wait(POLL_INTERVAL)
            self._wake.clear()

    # ---- a look ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take in new requests, then write the answers that are known. Without requests it is only one listing."""
        owned = self._requests.owned
        if owned is None:
            return
        listing = self._files.scan()
        self._warned &= {*listing.open, *listing.answered}
        self._for_each(listing.open, lambda request: self._take(request, owned))
        self._for_each(listing.open, self._write_answer)
        self._sweep(listing)
        if self._copied != owned.generation:
            self._files.copy_claim(owned.claim)
            self._copied = owned.generation

    def _for_each(self, ids: Iterable[str], act: Callable[[str], None]) -> None:
        """Call ``act`` for each id. If it fails for one, log that once for this id, and go on with the others."""
        for id in ids:
            try:
                act(id)
            except PenstockError as error:
                if id not in self._warned:
                    log.warning("request %s cannot be worked on just now: %s", id, error)
                self._warned.add(id)

    def _write_answer(self, id: str) -> None:
        accepted = self._accepted.get(id)
        if accepted is not None and accepted.answer is not None and self._files.answer(accepted.answer):
            accepted.written_at = accepted.written_at or self._clock.now()

    def _take(self, id: str, owned: OwnedLog) -> None:
        if id in self._accepted:
            return
        try:
            request = self._files.request(id)
        except CheckpointUnreadable as error:
            if self._requests.is_owner():  # else it may be for a newer version of penstock that has taken over
                self._refuse(id, owned, str(error))
            return
        if request is None or (request.kind is RequestKind.HELLO and self._requests.is_closed):
            return  # a job that is over is no owner to wait for
        refusal = _wrong_address(request, owned)
        if refusal is not None:
            if self._requests.is_owner():  # else the requester has seen a newer claim than ours
                self._refuse(id, owned, refusal)
        elif request.generation < owned.generation:
            cause = f"the driver changed, it is generation {owned.generation} now"
            self._note(answer_for_old_request(owned.history, id, cause), owned)
        elif request.kind is RequestKind.HELLO:
            hello = AnswerRequest(request=id, outcome=RequestOutcome.DONE, message="here I am")
            self._note(hello, owned, me=self._owner_info())
        elif self._requests.takes_requests or (
            request.kind in {RequestKind.STOP, RequestKind.DRAIN} and request.name is None
        ):
            self._accepted[id] = _AcceptedRequest()
            self._submit(request, lambda answer: self._note(answer, owned))
        # else the request stays in the folder until an attempt runs

    def _submit(self, request: Request, callback: AnswerCallback) -> None:
        now, wall = self._clock.now(), self._clock.wall()
        match request.kind:
            case RequestKind.STOP | RequestKind.DRAIN:
                stop = StopRequested(
                    at=now,
                    wall=wall,
                    request=request.request,
                    name=request.name,
                    owner=request.owner,
                    patience=request.patience,
                    drain=request.kind is RequestKind.DRAIN,
                )
                self._stop(stop, callback)
            case RequestKind.PIN | RequestKind.UNPIN:
                self._requests.append(request, callback)
            case _:
                event = CheckpointRequested(
                    at=now, wall=wall, request=request.request, name=request.name, owner=request.owner
                )
                self._requests.submit(event, callback, only_for=request.generation)

    def _refuse(self, id: str, owned: OwnedLog, message: str) -> None:
        self._note(AnswerRequest(request=id, outcome=RequestOutcome.REFUSED, message=message), owned)

    def _note(self, answer: AnswerRequest, owned: OwnedLog, *, me: OwnerInfo | None = None) -> None:
        """Keep the answer for the next look to write. An ``UNKNOWN`` one is left to the log's next owner."""
        if answer.outcome is RequestOutcome.UNKNOWN:
            return
        noted = Answer(
            request=answer.request,
            outcome=answer.outcome,
            message=answer.message,
            generation=owned.generation,
            at=self._clock.wall(),
            checkpoint=answer.checkpoint,
            me=me,
        )
        with self._lock:
            self._accepted[answer.request] = _AcceptedRequest(noted)
            while len(self._accepted) > MAX_REMEMBERED:
                del self._accepted[next(iter(self._accepted))]
        self._wake.set()

    def _owner_info(self) -> OwnerInfo:
        return OwnerInfo(
            host=platform.node(),
            pid=os.getpid(),
            started=self._started,
            version=version("penstock"),
            state=self._state(),
        )

    # ---- clean-up ----------------------------------------------------------------------------------------------------

    def _sweep(self, listing: FolderListing) -> None:
        """Once an hour, remove answers that are a day old, and those that the last clean-up could not read either."""
        now = self._clock.now()
        if self._swept_at is not None and now < self._swept_at + SWEEP_INTERVAL:
            return
        self._swept_at = now
        unreadable: set[str] = set()

        def clean(id: str) -> None:
            accepted = self._accepted.get(id)
            if accepted is not None and accepted.written_at is not None:
                is_old = now >= accepted.written_at + ANSWER_TTL
            else:
                is_old = self._is_old(id, unreadable)
            if is_old:
                self._files.forget(id)

        self._for_each(listing.answered, clean)
        self._unreadable = frozenset(unreadable)

    def _is_old(self, id: str, unreadable: set[str]) -> bool:
        """Whether an answer that is not in memory is old, by the wall clock.

        An unreadable one is added to ``unreadable``; it is old if the last clean-up could not read it either.
        """
        try:
            answer = self._files.answer_to(id)
        except CheckpointUnreadable:
            unreadable.add(id)
            return id in self._unreadable
        return answer is not None and self._clock.wall() >= answer.at + ANSWER_TTL


def _wrong_address(request: Request, owned: OwnedLog) -> str | None:
    """Why the request is not for this owner or an earlier generation of it; ``None`` if it is."""
    if request.log_id not in {None, owned.log_id}:
        return f"log {request.log_id} was asked, another log is here now: {owned.log_id}"
    if request.generation > owned.generation:
        return f"generation {request.generation} was asked, {owned.generation} is the newest"
    return None
