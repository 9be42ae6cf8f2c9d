"""Requests and answers: values, bytes, files below control/."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NoReturn

from penstock.checkpoint import paths
from penstock.checkpoint.entries import Manifest, Pin, Stopped
from penstock.checkpoint.events import RequestOutcome
from penstock.checkpoint.history import History
from penstock.checkpoint.log import backoff
from penstock.clock import MonotonicTime, WallTime
from penstock.codec import StrictFields
from penstock.errors import CheckpointUnreadable, InternalError, SettingsError, StateDirectoryRefused, StorageFailed
from penstock.filesystem.base import Created, FileSystem, UnknownOutcome
from penstock.handles import CheckpointId, Generation, check_savepoint_name

# ----------------------------------------------------------------------------------------------------
# What is asked of a running job through ``control/``, and how it is answered: frozen values. Pure.
#
# A request names the log and the generation that it is addressed to, and no other carries it out; what was done stands
# in an entry of the log that holds the request's id, so that whoever owns the log later can tell (rule C3).

LONGEST_PATIENCE: Final = 366 * 86_400_000_000
"""Microseconds that a stop can wait at most, unless it waits for ever: more than a year is a mistake in the unit."""


class RequestKind(str, Enum):
    """What can be asked of a running job."""

    HELLO = "hello"
    """Who are you? Changes nothing."""
    STOP = "stop"
    """Take a last checkpoint, publish, end. With a name that checkpoint is a savepoint."""
    DRAIN = "drain"
    """Stop, but have the sources end first, for good: all windows close and are published."""
    CHECKPOINT = "checkpoint"
    """Take a checkpoint now."""
    SAVEPOINT = "savepoint"
    """Take a checkpoint and give it a name."""
    PIN = "pin"
    """Give a checkpoint of the log a name."""
    UNPIN = "unpin"
    """Take a name away; its checkpoint may be condemned then."""


_NAMED: Final = frozenset({RequestKind.SAVEPOINT, RequestKind.PIN, RequestKind.UNPIN})
_STOPS: Final = frozenset({RequestKind.STOP, RequestKind.DRAIN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request.

    Attributes:
        request: random; the same in every repetition.
        kind: what is asked.
        generation: whom: the newest claim that the asker saw. Nobody else carries it out.
        log_id: of which log: in the directory may lie another one by now. ``None`` if the asker could not read it.
        asked: when, for people.
        owner: who asks, for people; it is written beside a name that is given.
        name: of the savepoint or pin.
        checkpoint: which one to pin.
        patience: microseconds that a stop waits for its last checkpoint and its output; ``None`` is for ever.
        expires: of a pin, until when it is meant to be needed; shown to people, and not enforced.
    """

    request: str
    kind: RequestKind
    generation: Generation
    asked: WallTime
    owner: str = ""
    name: str | None = None
    checkpoint: CheckpointId | None = None
    patience: int | None = None
    log_id: str | None = None
    expires: WallTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerInfo:
    """Who answers: the process, since when it has had the job, and what the job is doing."""

    host: str
    pid: int
    started: WallTime
    version: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one request; the first that is written counts.

    Attributes:
        request: the id.
        answer: how it ended; never ``UNKNOWN``.
        message: the same for people, with the reason.
        generation: who answers; not always who was asked.
        at: when, for people, and for the clean-up.
        checkpoint: the one that was taken, pinned, or is in the way.
        me: to a ``hello``.
    """

    request: str
    answer: RequestOutcome
    message: str
    generation: Generation
    at: WallTime
    checkpoint: CheckpointId | None = None
    me: OwnerInfo | None = None


def answer_from_log(history: History, request: str) -> tuple[CheckpointId | None, str] | None:
    """What an entry says that fulfils the request: its checkpoint and a sentence; ``None`` if there is no such entry.

    A stop that was cut short after its savepoint is not fulfilled: :func:`savepoint_for_request` tells that much.
    """
    entry = history.entry_that_fulfils(request)
    if entry is None:
        return None
    checkpoint = entry.body.checkpoint if isinstance(entry.body, Manifest | Stopped | Pin) else None
    return checkpoint, f"done: {paths.entry(entry.number)} says so"


def savepoint_for_request(history: History, request: str) -> Pin | None:
    """The name that was given for this request, if it was."""
    return next((pin for pin in history.pins.values() if pin.request == request), None)


def invalid_reason(request: Request) -> str | None:
    """Why what is asked is not what this kind of request can ask."""
    kind = request.kind
    if kind in _NAMED and request.name is None:
        return f"a {kind.value} needs a name"
    if request.name is not None:
        if kind not in _NAMED and kind not in _STOPS:
            return f"a {kind.value} has no name"
        try:
            check_savepoint_name(request.name)
        except SettingsError as error:
            return str(error)
    is_pin = kind is RequestKind.PIN
    if (request.checkpoint is not None) != is_pin or (request.expires is not None and not is_pin):
        return "a pin, and nothing else, names a checkpoint and may expire"
    if request.patience is not None and (kind not in _STOPS or not 0 <= request.patience <= LONGEST_PATIENCE):
        return f"only a stop has patience, and it is not negative and at most {LONGEST_PATIENCE}"
    return None


# ----------------------------------------------------------------------------------------------------
# Requests and answers to the bytes of their files and back: strict, versioned. Knows nothing of storage.
#
# One line of JSON without a checksum of its own, so that any tool can ask; it has to appear whole at once.

FORMAT: Final = 1
MAX_FILE_BYTES: Final = 64 * 1024
"""Bytes of a file below ``control/``; nobody needs more to ask."""
OUTCOME_TEXTS: Final[Mapping[RequestOutcome, str]] = {
    RequestOutcome.DONE: "done",
    RequestOutcome.REFUSED: "refused",
    RequestOutcome.FAILED: "failed",
    RequestOutcome.UNPUBLISHED: "unpublished",
}
"""How an answer is spelled in its file. ``UNKNOWN`` is never written: the next owner looks into the log."""


def encode_request(request: Request) -> bytes:
    """The bytes of a request's file.

    Raises:
        InternalError: it asks for something that its kind does not have.
    """
    wrong = invalid_reason(request)
    if wrong is not None:
        raise InternalError(wrong)
    expires = {} if request.expires is None else {"expires": request.expires}
    return _line(
        {
            **expires,
            "format": FORMAT,
            "request": request.request,
            "kind": request.kind.value,
            "generation": request.generation,
            "log": request.log_id,
            "asked": request.asked,
            "owner": request.owner,
            "name": request.name,
            "checkpoint": request.checkpoint,
            "patience": request.patience,
        }
    )


def decode_request(data: bytes, request: str) -> Request:
    """The request of these bytes, read from where request ``request`` lies.

    Raises:
        CheckpointUnreadable: it is not a request that this version understands; names the file and the field.
    """
    where = paths.request(request)
    with _fields(data, where, request) as fields:
        checkpoint = fields.whole_or_none("checkpoint")
        read = Request(
            request=request,
            kind=fields.choice("kind", RequestKind),
            generation=Generation(fields.whole("generation", least=0)),
            asked=WallTime(fields.whole("asked")),
            owner=fields.text("owner"),
            name=fields.text_or_none("name"),
            checkpoint=None if checkpoint is None else CheckpointId(checkpoint),
            patience=fields.whole_or_none("patience"),
            log_id=fields.text_or_none("log"),
            expires=WallTime(fields.whole("expires")) if fields.has("expires") else None,
        )
    wrong = invalid_reason(read)
    if wrong is not None:
        _unreadable(where, wrong)
    return read


def encode_answer(answer: Answer) -> bytes:
    """The bytes of an answer's file."""
    me = answer.me
    if answer.answer not in OUTCOME_TEXTS:
        msg = f"request {answer.request} cannot be answered with {answer.answer.name}: the next owner answers it"
        raise InternalError(msg)
    return _line(
        {
            "format": FORMAT,
            "request": answer.request,
            "answer": OUTCOME_TEXTS[answer.answer],
            "message": answer.message,
            "generation": answer.generation,
            "at": answer.at,
            "checkpoint": answer.checkpoint,
            "me": None
            if me is None
            else {"host": me.host, "pid": me.pid, "started": me.started, "version": me.version, "state": me.state},
        }
    )


def decode_answer(data: bytes, request: str) -> Answer:
    """The answer of these bytes, read from where the answer to ``request`` lies.

    Raises:
        CheckpointUnreadable: it is not an answer that this version understands; names the file and the field.
    """
    where = paths.answer(request)
    with _fields(data, where, request) as fields:
        word = fields.text("answer")
        known = {spelled: answer for answer, spelled in OUTCOME_TEXTS.items()}
        if word not in known:
            _unreadable(f"{where}.answer", f"must be one of {', '.join(known)}, is {word!r}")
        checkpoint = fields.whole_or_none("checkpoint")
        return Answer(
            request=request,
            answer=known[word],
            message=fields.text("message"),
            generation=Generation(fields.whole("generation", least=0)),
            at=WallTime(fields.whole("at")),
            checkpoint=None if checkpoint is None else CheckpointId(checkpoint),
            me=fields.one_or_none("me", _read_me),
        )


def _read_me(value: object, where: str) -> OwnerInfo:
    with StrictFields(value, where) as fields:
        return OwnerInfo(
            host=fields.text("host"),
            pid=fields.whole("pid"),
            started=WallTime(fields.whole("started")),
            version=fields.text("version"),
            state=fields.text("state"),
        )


def _line(document: Mapping[str, object]) -> bytes:
    return (json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True) + "\n").encode("ascii")


def _fields(data: bytes, where: str, request: str) -> StrictFields:
    """The fields that are left when format and id are as they must be."""
    if len(data) > MAX_FILE_BYTES:
        _unreadable(where, f"{len(data)} bytes are more than {MAX_FILE_BYTES}")
    try:
        document: object = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        _unreadable(where, f"is not JSON: {error}")
    fields = StrictFields(document, where)
    version = fields.whole("format")
    if version != FORMAT:
        _unreadable(f"{where}.format", f"is {version}, this penstock reads {FORMAT}")
    held = fields.text("request")
    if held != request:
        _unreadable(f"{where}.request", f"is {held!r}, the file's name says {request!r}")
    return fields


def _unreadable(where: str, why: str) -> NoReturn:
    msg = f"{where}: {why}"
    raise CheckpointUnreadable(msg)


# ----------------------------------------------------------------------------------------------------
# The files below ``control/``: written once, listed, cleaned. Used by running jobs and by whoever asks them.
#
# Nothing that decides is read from here: what was done stands in the log. A lost answer is a lost answer.

POLL_INTERVAL: Final = 0.05
"""Seconds from one look for an answer to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderListing:
    """What one listing found: ids, sorted."""

    open: tuple[str, ...]
    """Requests without an answer."""
    answered: tuple[str, ...]
    """Answers, whether their request is still there or not."""


class ControlFiles:
    """The requests to one job and their answers.

    Args:
        filesystem: rooted at the job's directory.
    """

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem

    def scan(self) -> FolderListing:
        """List once."""
        found = [paths.control_id(path) for path in self._filesystem.list(paths.CONTROL)]
        ids = [each for each in found if each is not None]
        answered = {id for id, is_answer in ids if is_answer}
        asked = {id for id, is_answer in ids if not is_answer}
        return FolderListing(open=tuple(sorted(asked - answered)), answered=tuple(sorted(answered)))

    # --------------------------------------------------------------------------------------------------------- asking

    def ask(self, request: Request, *, pause: Callable[[float], object]) -> None:
        """Put a request there; the same one again is no new request.

        Raises:
            StateDirectoryRefused: another request has this id.
            StorageFailed: surely nothing was asked.
        """
        path, data = paths.request(request.request), encode_request(request)
        for seconds in backoff():
            try:
                if self._filesystem.create(path, data) is Created.EXISTS and self._filesystem.read(path) != data:
                    msg = f"{path} holds another request; ids are random and never used twice"
                    raise StateDirectoryRefused(msg)
                return
            except UnknownOutcome:
                pause(seconds)

    def answer_to(self, request: str) -> Answer | None:
        """The answer, if it is there.

        Raises:
            CheckpointUnreadable: it is not one.
        """
        data = self._filesystem.read(paths.answer(request))
        return None if data is None else decode_answer(data, request)

    def wait_for_answer(
        self, request: str, *, seconds: float, now: Callable[[], MonotonicTime], pause: Callable[[float], object]
    ) -> Answer | None:
        """The answer, waited for at most so long; ``None`` if nobody gave one. ``pause`` may raise, to give up.

        Raises:
            CheckpointUnreadable: there is one, which this version does not understand.
            StorageFailed: whether there is one cannot be seen, to the end.
        """
        deadline = now() + int(seconds * 1_000_000)
        while True:
            answer, failed = self._look_for(request)
            if answer is not None:
                return answer
            left = (deadline - now()) / 1_000_000
            if left <= 0 and failed is not None:
                raise failed
            if left <= 0:
                return None
            pause(min(POLL_INTERVAL, left))

    def _look_for(self, request: str) -> tuple[Answer | None, StorageFailed | None]:
        """Storage that fails just now has not said that there is no answer."""
        try:
            return self.answer_to(request), None
        except StorageFailed as error:
            return None, error

    # ------------------------------------------------------------------------------------------------------ answering

    def request(self, id: str) -> Request | None:
        """The request, if it is still there.

        Raises:
            CheckpointUnreadable: it is not one that this version understands.
        """
        data = self._filesystem.read(paths.request(id))
        return None if data is None else decode_request(data, id)

    def answer(self, answer: Answer) -> bool:
        """Put an answer there unless there is one; ``False`` if that is not known and should be tried again.

        Raises:
            StorageFailed: surely nothing was written.
        """
        try:
            self._filesystem.create(paths.answer(answer.request), encode_answer(answer))
        except UnknownOutcome:
            return False
        return True

    def forget(self, id: str) -> None:
        """Remove request and answer, in this order: a request whose answer is gone would look open again."""
        self._filesystem.delete(paths.request(id))
        self._filesystem.delete(paths.answer(id))
