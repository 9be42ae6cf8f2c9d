"""The job's side: takes requests in, hands them to the attempt, answers once."""

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
from penstock.checkpoint.events import AbortReason, AnswerRequest, CheckpointRequested, RequestOutcome, StopRequested
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
    answer_from_log,
    savepoint_for_request,
)
from penstock.errors import CheckpointUnreadable, GenerationFenced, PenstockError, StateDirectoryRefused, StorageFailed
from penstock.handles import CheckpointId, Generation

# ----------------------------------------------------------------------------------------------------
# Names for checkpoints of a running job, given and taken between two manifests. Pure: decides, appends nothing.


def pin_refusal(request: Request, history: History) -> str | None:
    """Why the log, as it is now, does not let this be done; ``None`` if it does (rule L5)."""
    if request.kind is RequestKind.PIN and request.checkpoint not in history.restorable:
        known = ", ".join(map(str, history.restorable)) or "none"
        return f"checkpoint {request.checkpoint} cannot be restored, so it gets no name; restorable are: {known}"
    if request.kind is RequestKind.UNPIN and request.name not in history.pins:
        known = ", ".join(sorted(history.pins)) or "none"
        return f"no checkpoint is called {request.name!r}; there are: {known}"
    return None


def pin_entry(request: Request, at: WallTime) -> Pin | Unpin:
    """What is appended for it."""
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


# ----------------------------------------------------------------------------------------------------
# Who waits for what from a running job: every request is handed to the attempt that runs, and answered exactly once.
#
# Requests come from this process and, through ``control/``, from others. Knows neither how they came nor how an answer
# gets back. What may be in the log when an attempt breaks is answered from the log under the next claim (rule C3).

Asked: TypeAlias = CheckpointRequested | StopRequested


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a request ended; ``UNKNOWN`` if only the log will tell."""

    answer: RequestOutcome
    checkpoint: CheckpointId | None = None
    message: str


AnswerCallback: TypeAlias = Callable[[Reply], None]
"""Gets the reply, from any thread, once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAttempt:
    """What a running attempt lends.

    Attributes:
        put: hands an event to the deciding thread.
        broke: ends the attempt.
        on_log: runs work in order with the manifests, on the thread that appends them.
        clock: the attempt's.
    """

    put: Callable[[Asked], None]
    broke: Callable[[str, BaseException], None]
    on_log: Callable[[Callable[[], None]], None]
    clock: Clock


@dataclass(slots=True, kw_only=True)
class _Open:
    """Somebody waits."""

    request: str
    name: str | None
    tell: AnswerCallback
    event: Asked | None = None
    accepted: Callable[[], None] = lambda: None
    only_for: Generation | None = None
    hands: RunningAttempt | None = None
    cause: str = ""

    @property
    def is_handed_in(self) -> bool:
        """Whether it may have been begun."""
        return self.hands is not None


class RequestRegistry:
    """All open requests of one job. Safe to use from any thread; calls nobody while it holds its lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}
        self._hands: RunningAttempt | None = None
        self._closed: Reply | None = None
        self.owned: OwnedLog | None = None
        """The log under our newest claim; ``None`` before the first, and once somebody else has it."""

    @property
    def are_taken_in(self) -> bool:
        """Whether an attempt carries requests out now, or none ever will, which is an answer as well."""
        return self._hands is not None or self._closed is not None

    @property
    def is_closed(self) -> bool:
        """Whether the job is over."""
        return self._closed is not None

    # --------------------------------------------------------------------------------------------------- who asks

    def submit(
        self,
        event: Asked,
        tell: AnswerCallback,
        *,
        accepted: Callable[[], None] = lambda: None,
        only_for: Generation | None = None,
    ) -> None:
        """Have it carried out by the attempt that runs, or by the next; ``accepted`` is called before it is handed in.

        A name that is taken refuses. The same request again changes nothing. One that is ``only_for`` a generation is
        carried out by no other.
        """
        opened = _Open(
            request=event.request, name=event.name, tell=tell, event=event, accepted=accepted, only_for=only_for
        )
        if self._register(opened) and (hands := self._hands) is not None:
            self._hand_in(opened, hands)

    def append(self, request: Request, tell: AnswerCallback) -> None:
        """Pin or unpin between two manifests, where nothing can condemn the checkpoint meanwhile (rule L5)."""
        opened = _Open(
            request=request.request, name=request.name if request.kind is RequestKind.PIN else None, tell=tell
        )
        if not self._register(opened):
            return
        hands, owned = self._hands, self.owned
        if hands is None or owned is None:
            self._reply(request.request, Reply(answer=RequestOutcome.REFUSED, message="the job is not running"))
        else:
            hands.on_log(lambda: self._append(request, opened, owned, hands))

    def _register(self, opened: _Open) -> bool:
        """Whether it is new and there is still somebody who may carry it out; if there is not, that is the reply."""
        with self._lock:
            closed = self._closed
            if closed is None:
                return self._open.setdefault(opened.request, opened) is opened
        opened.tell(closed)
        return False

    def _hand_in(self, opened: _Open, hands: RunningAttempt) -> None:
        event = opened.event
        with self._lock:
            if event is None or opened.is_handed_in or self._open.get(opened.request) is not opened:
                return
            refusal = self._judge(opened)
            opened.hands = hands if refusal is None else None
        if refusal is not None:
            self._reply(opened.request, refusal)
            return
        opened.accepted()
        hands.put(replace(event, at=hands.clock.now(), wall=hands.clock.wall()))

    def _judge(self, opened: _Open) -> Reply | None:
        """What is to be said without doing anything, if something is."""
        assert self.owned is not None  # an attempt that runs has claimed
        history = self.owned.history
        told = answer_from_log(history, opened.request)
        if told is not None:
            return Reply(answer=RequestOutcome.DONE, checkpoint=told[0], message=told[1])
        if opened.name is None:
            return None
        msg = name_conflict(history, opened.name)
        if msg is not None:
            return Reply(answer=RequestOutcome.REFUSED, checkpoint=history.pins[opened.name].checkpoint, message=msg)
        earlier = itertools.takewhile(lambda other: other is not opened, self._open.values())
        if any(other.name == opened.name for other in earlier):
            return Reply(
                answer=RequestOutcome.REFUSED, message=f"{opened.name!r} is being given to another checkpoint just now"
            )
        return None

    def _append(self, request: Request, opened: _Open, owned: OwnedLog, hands: RunningAttempt) -> None:
        with self._lock:
            if self._open.get(request.request) is not opened:
                return  # the attempt is over, and that was said
            refusal = self._judge(opened)
            unfit = pin_refusal(request, owned.history)
            if refusal is None and unfit is not None:
                refusal = Reply(answer=RequestOutcome.REFUSED, message=unfit)
            opened.hands = hands if refusal is None else None
        reply = refusal
        if reply is None:
            try:
                number = owned.append(pin_entry(request, hands.clock.wall()))
                reply = Reply(
                    answer=RequestOutcome.DONE, checkpoint=request.checkpoint, message=f"done: entry {number}"
                )
            except (StorageFailed, StateDirectoryRefused) as error:
                reply = Reply(answer=RequestOutcome.FAILED, message=str(error))
        self._reply(request.request, reply)

    # ------------------------------------------------------------------------------------------------ who answers

    def answered(self, effect: AnswerRequest) -> None:
        """The coordinator has decided."""
        if effect.answer is RequestOutcome.UNKNOWN:
            with self._lock:
                if effect.request in self._open:
                    self._open[effect.request].cause = effect.message
            return
        if effect.answer is RequestOutcome.REFUSED and effect.message == AbortReason.STOPPING.value:
            self._pass_on(effect.request)
            return
        self._reply(effect.request, Reply(answer=effect.answer, checkpoint=effect.checkpoint, message=effect.message))

    def _pass_on(self, request: str) -> None:
        """The attempt is ending and has begun nothing: the next takes the request, or the job's end answers it."""
        with self._lock:
            opened, hands = self._open.get(request), self._hands
            if opened is None:
                return
            is_new = hands is not opened.hands
            opened.hands = None
        if hands is not None and is_new:
            self._hand_in(opened, hands)

    def _reply(self, request: str, reply: Reply) -> None:
        with self._lock:
            opened = self._open.pop(request, None)
        if opened is not None:
            opened.tell(reply)

    # ---------------------------------------------------------------------------------------------- what attempts do

    def claimed(self, owned: OwnedLog) -> None:
        """A new generation of ours: what the one before may have done stands in the log, or never will."""
        with self._lock:
            self.owned = owned
            left = [opened for opened in self._open.values() if opened.is_handed_in or opened.only_for is not None]
        for opened in left:
            cause = opened.cause or "the driver began again"
            self._reply(opened.request, answer_for_old_request(owned.history, opened.request, cause))

    def running(self, hands: RunningAttempt) -> None:
        """An attempt takes requests in; those that waited go first."""
        with self._lock:
            self._hands = hands
            waiting = [opened for opened in self._open.values() if not opened.is_handed_in]
        for opened in waiting:
            self._hand_in(opened, hands)

    def broke(self, error: BaseException) -> None:
        """The attempt is over; its coordinator has answered all but what may be in the log."""
        with self._lock:
            self._hands = None
            for opened in self._open.values():
                opened.cause = opened.cause or str(error)
            dropped = [id for id, opened in self._open.items() if opened.event is None and not opened.is_handed_in]
        for id in dropped:
            self._reply(id, Reply(answer=RequestOutcome.FAILED, message=str(error)))

    def is_owner(self) -> bool:
        """Look whether the log is ours. If somebody else has claimed, end the attempt: it would learn it later only.

        Where the log cannot be read it is nobody's: what is said then might be another owner's to say.
        """
        owned, hands = self.owned, self._hands
        if owned is None:
            return False
        try:
            fence = owned.look()
        except PenstockError:
            return False
        if fence is not None and hands is not None:
            hands.broke("control", fence)
        return fence is None

    def close(self, error: BaseException | None = None) -> None:
        """The job is over; what may be in the log is left to its next owner. Only the first call counts."""
        with self._lock:
            if self._closed is not None:
                return
            message = f"the job has ended: {error}" if error else "the job has ended"
            self._closed = Reply(answer=RequestOutcome.FAILED if error else RequestOutcome.REFUSED, message=message)
            self._hands = None
            if isinstance(error, GenerationFenced):
                self.owned = None
            left = list(self._open.values())
        for opened in left:
            unknown = opened.is_handed_in or isinstance(error, GenerationFenced)
            reply = Reply(answer=RequestOutcome.UNKNOWN, message=opened.cause or message) if unknown else self._closed
            self._reply(opened.request, reply)


def answer_for_old_request(history: History, request: str, cause: str) -> Reply:
    """What an owner says of a request that was addressed to a generation before its own."""
    told = answer_from_log(history, request)
    if told is not None:
        return Reply(answer=RequestOutcome.DONE, checkpoint=told[0], message=told[1])
    pin = savepoint_for_request(history, request)
    if pin is not None:
        message = f"not done: {cause}; but the savepoint {pin.name!r} was taken, it is checkpoint {pin.checkpoint}"
        return Reply(answer=RequestOutcome.FAILED, checkpoint=pin.checkpoint, message=message)
    return Reply(answer=RequestOutcome.FAILED, message=f"not done: {cause}")


# ----------------------------------------------------------------------------------------------------
# Looks into ``control/`` while a job lives: takes requests in, writes answers, cleans up. Decides nothing about them.
#
# On a thread of its own, for a listing may take its time; it lives as long as the job, so that a job that restores or
# waits for its next attempt can say that it is there.

log = logging.getLogger("penstock")


def _nothing() -> None:
    """Where nobody has anything to do between two looks."""


POLL_INTERVAL: Final = 0.3
"""Seconds from one listing to the next."""
SWEEP_INTERVAL: Final = 3_600_000_000
ANSWER_TTL: Final = 24 * 3_600_000_000
"""Microseconds that an answer stays. By clocks, for nothing decides by what lies there: whoever comes later than that
for an answer finds the log."""
MAX_REMEMBERED: Final = 10_000
"""Requests whose answers are known by heart, so that a repetition gets the same one."""


@dataclass(slots=True)
class _Known:
    """A request that was taken in."""

    answer: Answer | None = None
    at: MonotonicTime | None = None


class ControlServer:
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
        requests: RequestRegistry,
        *,
        stop: Callable[[StopRequested, AnswerCallback], None],
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
        self._swept: MonotonicTime | None = None
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
            self._poke.wait(POLL_INTERVAL)
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
        if request is None or (request.kind is RequestKind.HELLO and self._requests.is_closed):
            return  # who is over is nobody to wait for
        stranger = _stranger(request, owned)
        if stranger is not None:
            if self._requests.is_owner():  # else whoever asks has seen a claim that we had not
                self._refuse(id, owned, stranger)
        elif request.generation < owned.generation:
            cause = f"the driver changed, it is generation {owned.generation} now"
            self._note(id, owned, answer_for_old_request(owned.history, id, cause))
        elif request.kind is RequestKind.HELLO:
            self._note(id, owned, Reply(answer=RequestOutcome.DONE, message="here I am"), me=self._me())
        elif self._requests.are_taken_in or (
            request.kind in {RequestKind.STOP, RequestKind.DRAIN} and request.name is None
        ):
            self._known[id] = _Known()
            self._submit(request, lambda reply: self._note(id, owned, reply))

    def _submit(self, request: Request, tell: AnswerCallback) -> None:
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
                self._stop(stop, tell)
            case RequestKind.PIN | RequestKind.UNPIN:
                self._requests.append(request, tell)
            case _:
                asked = CheckpointRequested(
                    at=now, wall=wall, request=request.request, name=request.name, owner=request.owner
                )
                self._requests.submit(asked, tell, only_for=request.generation)

    def _refuse(self, id: str, owned: OwnedLog, message: str) -> None:
        self._note(id, owned, Reply(answer=RequestOutcome.REFUSED, message=message))

    def _note(self, id: str, owned: OwnedLog, reply: Reply, *, me: OwnerInfo | None = None) -> None:
        """Keep the answer; the next look writes it. What only the log can tell is left to its next owner."""
        if reply.answer is RequestOutcome.UNKNOWN:
            return
        answer = Answer(
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
            while len(self._known) > MAX_REMEMBERED:
                del self._known[next(iter(self._known))]
        self._poke.set()

    def _me(self) -> OwnerInfo:
        return OwnerInfo(
            host=platform.node(),
            pid=os.getpid(),
            started=self._began,
            version=version("penstock"),
            state=self._state(),
        )

    # ------------------------------------------------------------------------------------------------------ clean-up

    def _sweep(self, scan: FolderListing) -> None:
        """Once an hour, remove what was answered a day ago, and answers that nobody could read an hour ago either."""
        now = self._clock.now()
        if self._swept is not None and now < self._swept + SWEEP_INTERVAL:
            return
        self._swept = now
        strange: set[str] = set()

        def clean(id: str) -> None:
            known = self._known.get(id)
            is_old = now >= known.at + ANSWER_TTL if known and known.at is not None else self._is_old(id, strange)
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
        return answer is not None and self._clock.wall() >= answer.at + ANSWER_TTL


def _stranger(request: Request, owned: OwnedLog) -> str | None:
    """Why it can be for nobody but an owner that we know nothing of, if so."""
    if request.log_id not in {None, owned.log_id}:
        return f"log {request.log_id} was asked, another log is here now: {owned.log_id}"
    if request.generation > owned.generation:
        return f"generation {request.generation} was asked, {owned.generation} is the newest"
    return None
