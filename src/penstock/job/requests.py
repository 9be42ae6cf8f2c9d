"""Who waits for what from a running job: every request is handed to the attempt that runs, and answered exactly once.

Requests come from this process and, through ``control/``, from others. Knows neither how they came nor how an answer
gets back. What may be in the log when an attempt breaks is answered from the log under the next claim (rule C3).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from penstock.checkpoint.control import ControlRequest, Kind, savepoint_of, told_by_log
from penstock.checkpoint.history import History
from penstock.checkpoint.log import OwnedLog
from penstock.checkpoint.messages import AbortReason, Answer, AnswerRequest, CheckpointRequested, StopRequested
from penstock.checkpoint.names import taken
from penstock.errors import GenerationFenced, PenstockError, StateDirectoryRefused, StorageFailed
from penstock.ids import CheckpointId, Generation
from penstock.job.pins import entry_of, why_unfit
from penstock.runtime.clock import Clock

Asked: TypeAlias = CheckpointRequested | StopRequested


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a request ended; ``UNKNOWN`` if only the log will tell."""

    answer: Answer
    checkpoint: CheckpointId | None = None
    message: str


Tell: TypeAlias = Callable[[Reply], None]
"""Gets the reply, from any thread, once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
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
    tell: Tell
    event: Asked | None = None
    accepted: Callable[[], None] = lambda: None
    only_for: Generation | None = None
    hands: Hands | None = None
    cause: str = ""

    @property
    def is_handed_in(self) -> bool:
        """Whether it may have been begun."""
        return self.hands is not None


class Requests:
    """All open requests of one job. Safe to use from any thread; calls nobody while it holds its lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}
        self._hands: Hands | None = None
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
        tell: Tell,
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

    def append(self, request: ControlRequest, tell: Tell) -> None:
        """Pin or unpin between two manifests, where nothing can condemn the checkpoint meanwhile (rule L5)."""
        opened = _Open(request=request.request, name=request.name if request.kind is Kind.PIN else None, tell=tell)
        if not self._register(opened):
            return
        hands, owned = self._hands, self.owned
        if hands is None or owned is None:
            self._reply(request.request, Reply(answer=Answer.REFUSED, message="the job is not running"))
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

    def _hand_in(self, opened: _Open, hands: Hands) -> None:
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
        told = told_by_log(history, opened.request)
        if told is not None:
            return Reply(answer=Answer.DONE, checkpoint=told[0], message=told[1])
        if opened.name is None:
            return None
        msg = taken(history, opened.name)
        if msg is not None:
            return Reply(answer=Answer.REFUSED, checkpoint=history.pins[opened.name].checkpoint, message=msg)
        earlier = itertools.takewhile(lambda other: other is not opened, self._open.values())
        if any(other.name == opened.name for other in earlier):
            return Reply(
                answer=Answer.REFUSED, message=f"{opened.name!r} is being given to another checkpoint just now"
            )
        return None

    def _append(self, request: ControlRequest, opened: _Open, owned: OwnedLog, hands: Hands) -> None:
        with self._lock:
            if self._open.get(request.request) is not opened:
                return  # the attempt is over, and that was said
            refusal = self._judge(opened)
            unfit = why_unfit(request, owned.history)
            if refusal is None and unfit is not None:
                refusal = Reply(answer=Answer.REFUSED, message=unfit)
            opened.hands = hands if refusal is None else None
        reply = refusal
        if reply is None:
            try:
                number = owned.append(entry_of(request, hands.clock.wall()))
                reply = Reply(answer=Answer.DONE, checkpoint=request.checkpoint, message=f"done: entry {number}")
            except (StorageFailed, StateDirectoryRefused) as error:
                reply = Reply(answer=Answer.FAILED, message=str(error))
        self._reply(request.request, reply)

    # ------------------------------------------------------------------------------------------------ who answers

    def answered(self, effect: AnswerRequest) -> None:
        """The coordinator has decided."""
        if effect.answer is Answer.UNKNOWN:
            with self._lock:
                if effect.request in self._open:
                    self._open[effect.request].cause = effect.message
            return
        if effect.answer is Answer.REFUSED and effect.message == AbortReason.STOPPING.value:
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
            self._reply(opened.request, reply_of_log(owned.history, opened.request, cause))

    def running(self, hands: Hands) -> None:
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
            self._reply(id, Reply(answer=Answer.FAILED, message=str(error)))

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
            self._closed = Reply(answer=Answer.FAILED if error else Answer.REFUSED, message=message)
            self._hands = None
            if isinstance(error, GenerationFenced):
                self.owned = None
            left = list(self._open.values())
        for opened in left:
            unknown = opened.is_handed_in or isinstance(error, GenerationFenced)
            reply = Reply(answer=Answer.UNKNOWN, message=opened.cause or message) if unknown else self._closed
            self._reply(opened.request, reply)


def reply_of_log(history: History, request: str, cause: str) -> Reply:
    """What an owner says of a request that was addressed to a generation before its own."""
    told = told_by_log(history, request)
    if told is not None:
        return Reply(answer=Answer.DONE, checkpoint=told[0], message=told[1])
    pin = savepoint_of(history, request)
    if pin is not None:
        message = f"not done: {cause}; but the savepoint {pin.name!r} was taken, it is checkpoint {pin.checkpoint}"
        return Reply(answer=Answer.FAILED, checkpoint=pin.checkpoint, message=message)
    return Reply(answer=Answer.FAILED, message=f"not done: {cause}")
