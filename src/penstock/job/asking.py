"""What a program asks of its own running job: makes the requests, waits for replies, and turns them into errors."""

from __future__ import annotations

import logging
import platform
import threading
import uuid
from collections.abc import Callable

from penstock.checkpoint.control import check_savepoint_name
from penstock.checkpoint.messages import Answer, CheckpointRequested, StopRequested
from penstock.errors import InternalError, RequestFailed, RequestRefused
from penstock.ids import CheckpointId
from penstock.job.requests import Reply, Requests, Tell
from penstock.runtime.clock import Clock
from penstock.runtime.lifecycle import OVER, JobState

log = logging.getLogger("penstock")


class Waiter:
    """Waits for one reply.

    Attributes:
        is_used: whether somebody has asked for it.
    """

    def __init__(self) -> None:
        self.is_used = False
        self._came = threading.Event()
        self._reply: Reply | None = None

    def tell(self, reply: Reply) -> None:
        """It came."""
        self._reply = reply
        self._came.set()

    def wait(self, seconds: float | None) -> Reply | None:
        """The reply; ``None`` if it did not come in time."""
        self._came.wait(seconds)
        return self._reply


def new_id() -> str:
    """A random identity: of a log, of a claim, of a request."""
    return uuid.uuid4().hex  # noqa: TID251 - drawn here, handed in everywhere else


def refuse_own_threads(call: str, instead: str) -> None:
    """Refuse to wait on a thread that has to go on for the wait to end.

    Raises:
        InternalError: it is one.
    """
    if threading.current_thread().name.startswith("penstock-"):
        msg = f"{call} was called on one of the job's own threads, which it would wait for; {instead}"
        raise InternalError(msg)


def warn_if_unpublished(reply: Reply) -> None:
    """A stop whose output nobody has published yet has ended the job all the same; the next start publishes it."""
    if reply.answer is Answer.UNPUBLISHED:
        log.warning("%s", reply.message)


class Asking:
    """The requests of this process to one job."""

    def __init__(self, job: str, requests: Requests, clock: Clock, state: Callable[[], JobState]) -> None:
        self._job = job
        self._requests = requests
        self._clock = clock
        self._state = state
        self._stops: dict[str, tuple[StopRequested, Waiter]] = {}
        self._lock = threading.Lock()

    def checkpoint(self, name: str | None, timeout: float | None) -> CheckpointId:
        """Take one; with a name it is a savepoint.

        Raises:
            SettingsError: the name is none.
            RequestRefused: the job does not run, or the name is taken.
            RequestFailed: it came to nothing, or not in time.
        """
        what = "checkpoint()" if name is None else "savepoint()"
        refuse_own_threads(what, "call it on a thread of your own")
        if name is not None:
            check_savepoint_name(name)
        self._refuse_unless_alive(what)
        waiter = Waiter()
        asked = CheckpointRequested(
            at=self._clock.now(), wall=self._clock.wall(), request=new_id(), name=name, owner=platform.node()
        )
        self._requests.submit(asked, waiter.tell)
        reply = waiter.wait(timeout)
        if reply is None:
            msg = f"{what} of job {self._job!r} has not ended after {timeout:g} s; it may still be taken"
            raise RequestFailed(msg)
        self._check(what, reply)
        if reply.checkpoint is None:
            msg = f"{what} of job {self._job!r} is done, but nobody says which checkpoint it is"
            raise InternalError(msg)
        return reply.checkpoint

    def stop(self, name: str | None, patience: int | None, *, drain: bool = False) -> StopRequested:
        """The request of a stop; of the same name it is the same one, until it is answered that it came to nothing.

        Raises:
            SettingsError: the name is none.
            RequestRefused: a savepoint is wanted of a job that does not run.
        """
        if name is None:
            return self._new_stop(None, patience, drain=drain)
        check_savepoint_name(name)
        with self._lock:
            if name not in self._stops:
                self._refuse_unless_alive("stop(savepoint=…)")
                self._stops[name] = self._new_stop(name, patience, drain=drain), Waiter()
            return self._stops[name][0]

    def _new_stop(self, name: str | None, patience: int | None, *, drain: bool) -> StopRequested:
        return StopRequested(
            at=self._clock.now(),
            wall=self._clock.wall(),
            request=new_id(),
            name=name,
            owner=platform.node(),
            patience=patience,
            drain=drain,
        )

    def wait_for_stop(
        self, stop: StopRequested, ask: Callable[[StopRequested, Tell], None], seconds: float | None
    ) -> bool:
        """Ask, once, and wait for the reply at most so long; whether it came.

        Raises:
            RequestRefused: the name is taken, and the job goes on.
        """
        assert stop.name is not None  # whoever wants no name waits for the job
        with self._lock:
            waiter = self._stops[stop.name][1]
            is_new, waiter.is_used = not waiter.is_used, True
        if is_new:
            ask(stop, waiter.tell)
        reply = waiter.wait(seconds)
        if reply is None:
            return False
        if reply.answer is Answer.UNPUBLISHED:
            warn_if_unpublished(reply)
        elif reply.answer is not Answer.DONE:
            with self._lock:
                if self._stops.get(stop.name, (None, None))[1] is waiter:
                    del self._stops[stop.name]
            self._check("stop(savepoint=…)", reply)
        return True

    def _check(self, what: str, reply: Reply) -> None:
        if reply.answer is Answer.DONE:
            return
        msg = f"{what} of job {self._job!r}: {reply.message}"
        raise (RequestRefused if reply.answer is Answer.REFUSED else RequestFailed)(msg)

    def _refuse_unless_alive(self, what: str) -> None:
        state = self._state()
        if state is JobState.CREATED or state in OVER:
            msg = f"{what} of job {self._job!r}: it is not running, its state is {state.value!r}"
            raise RequestRefused(msg)
