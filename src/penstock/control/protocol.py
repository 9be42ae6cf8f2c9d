"""Requests to a running job and its answers: values, bytes, files below ``control/``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, NoReturn

from penstock.checkpoint import paths
from penstock.checkpoint.entries import Claim, Entry, Manifest, Pin, Stopped
from penstock.checkpoint.entry_codec import decode, encode
from penstock.checkpoint.events import AnswerRequest, RequestOutcome
from penstock.checkpoint.history import History
from penstock.checkpoint.log import backoff
from penstock.clock import MonotonicTime, WallTime
from penstock.codec import StrictFields
from penstock.errors import (
    CheckpointError,
    CheckpointUnreadable,
    InternalError,
    SettingsError,
    StateDirectoryRefused,
    StorageFailed,
    sentence,
)
from penstock.filesystem.base import Created, FileSystem, UnknownOutcome
from penstock.handles import CheckpointId, EntryNumber, Generation, check_savepoint_name

# ---- values ----------------------------------------------------------------------------------------------------------
#
# A request names the log and the generation that it is addressed to, and no other carries it out. What was done is
# recorded in an entry of the log that holds the request's id, so that a later owner can answer (rule C3).

LONGEST_PATIENCE: Final = 366 * 86_400_000_000
"""Longest wait of a stop that does not wait for ever, in microseconds."""  # more than a year is a mistake in the unit


class RequestKind(str, Enum):
    """The kinds of requests to a running job."""

    HELLO = "hello"
    """Ask for the ``OwnerInfo``. Changes nothing."""
    STOP = "stop"
    """Take a final checkpoint, publish, end. With a name that checkpoint is a savepoint."""
    DRAIN = "drain"
    """Stop, but have the sources end first, for good: all windows close and are published."""
    CHECKPOINT = "checkpoint"
    """Take a checkpoint now."""
    SAVEPOINT = "savepoint"
    """Take a checkpoint and give it a name."""
    PIN = "pin"
    """Give a checkpoint of the log a name."""
    UNPIN = "unpin"
    """Remove a name; its checkpoint may be condemned then."""


_NAMED: Final = frozenset({RequestKind.SAVEPOINT, RequestKind.PIN, RequestKind.UNPIN})
_STOPS: Final = frozenset({RequestKind.STOP, RequestKind.DRAIN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request.

    Attributes:
        request: a random id; the same in every repetition.
        kind: what is requested.
        generation: the newest claim that the requester saw. No other generation carries the request out.
        asked: when, for people.
        owner: the requester, for people; it is recorded with a name that is given.
        name: of the savepoint or pin.
        checkpoint: which one to pin.
        patience: microseconds that a stop waits for its final checkpoint and its output; ``None`` is for ever.
        log_id: the log that the requester saw; the directory may hold another by now. ``None`` if it was unreadable.
        expires: until when a pin is meant to be needed; shown to people, and not enforced.
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
    """The process that runs the job, since when it has had the job, and the state of the job."""

    host: str
    pid: int
    started: WallTime
    version: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one request; the first that is written counts.

    Attributes:
        request: its id.
        outcome: how it ended; never ``UNKNOWN``.
        message: the outcome for people, with the reason.
        generation: which one answers; not always the one that was addressed.
        at: when, for people, and for the clean-up.
        checkpoint: the one that was taken, pinned, or is in the way.
        me: the answer to a ``HELLO``.
    """

    request: str
    outcome: RequestOutcome
    message: str
    generation: Generation
    at: WallTime
    checkpoint: CheckpointId | None = None
    me: OwnerInfo | None = None


def answer_from_log(history: History, request: str) -> AnswerRequest | None:
    """The answer of the entry that fulfils the request; ``None`` if there is no such entry.

    A stop that was cut short after its savepoint is not fulfilled: see ``savepoint_for_request``.
    """
    entry = history.entry_that_fulfils(request)
    if entry is None:
        return None
    checkpoint = entry.body.checkpoint if isinstance(entry.body, Manifest | Stopped | Pin) else None
    message = f"done: {paths.entry(entry.number)} says so"
    return AnswerRequest(request=request, outcome=RequestOutcome.DONE, checkpoint=checkpoint, message=message)


def savepoint_for_request(history: History, request: str) -> Pin | None:
    """The name that was given for this request, if it was."""
    return next((pin for pin in history.pins.values() if pin.request == request), None)


def answer_for_old_request(history: History, request: str, cause: str) -> AnswerRequest:
    """The answer to a request that was addressed to an earlier generation; ``cause`` says why it was not done."""
    done = answer_from_log(history, request)
    if done is not None:
        return done
    pin = savepoint_for_request(history, request)
    if pin is None:
        return AnswerRequest(request=request, outcome=RequestOutcome.FAILED, message=f"Not done: {sentence(cause)}")
    message = f"Not done: {sentence(cause)} But the savepoint {pin.name!r} was taken as checkpoint {pin.checkpoint}."
    return AnswerRequest(request=request, outcome=RequestOutcome.FAILED, checkpoint=pin.checkpoint, message=message)


def invalid_reason(request: Request) -> str | None:
    """Why the fields do not fit the kind of the request; ``None`` if they do."""
    kind = request.kind
    if kind in _NAMED and request.name is None:
        return f"A {kind.value} needs a name."
    if request.name is not None:
        if kind not in _NAMED and kind not in _STOPS:
            return f"A {kind.value} has no name."
        try:
            check_savepoint_name(request.name)
        except SettingsError as error:
            return str(error)
    is_pin = kind is RequestKind.PIN
    if (request.checkpoint is not None) != is_pin or (request.expires is not None and not is_pin):
        return "Only a pin names a checkpoint and may expire."
    if request.patience is not None and (kind not in _STOPS or not 0 <= request.patience <= LONGEST_PATIENCE):
        return f"Only a stop has patience, from 0 to {LONGEST_PATIENCE}."
    return None


# ---- bytes -----------------------------------------------------------------------------------------------------------
#
# One line of JSON without a checksum of its own, so that any tool can write a request; it has to appear whole at once.

FORMAT: Final = 1
MAX_FILE_BYTES: Final = 64 * 1024
"""Largest size of a file below ``control/``, in bytes; no request needs more."""
OUTCOME_TEXTS: Final[Mapping[RequestOutcome, str]] = {
    RequestOutcome.DONE: "done",
    RequestOutcome.REFUSED: "refused",
    RequestOutcome.FAILED: "failed",
    RequestOutcome.UNPUBLISHED: "unpublished",
}
"""The outcomes as spelled in files. ``UNKNOWN`` is never written: the next owner reads the log and answers."""


def encode_request(request: Request) -> bytes:
    """The bytes of a request's file.

    Raises:
        InternalError: its fields do not fit its kind.
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
    """The request of these bytes, read from the file of request ``request``.

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
    """The bytes of an answer's file.

    Raises:
        InternalError: the outcome is not known.
    """
    me = answer.me
    if answer.outcome not in OUTCOME_TEXTS:
        msg = (
            f"Request {answer.request} cannot be answered with {answer.outcome.name}. The next owner of the job "
            "answers it."
        )
        raise InternalError(msg)
    return _line(
        {
            "format": FORMAT,
            "request": answer.request,
            "answer": OUTCOME_TEXTS[answer.outcome],
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
    """The answer of these bytes, read from the file of the answer to ``request``.

    Raises:
        CheckpointUnreadable: it is not an answer that this version understands; names the file and the field.
    """
    where = paths.answer(request)
    with _fields(data, where, request) as fields:
        word = fields.text("answer")
        known = {spelled: outcome for outcome, spelled in OUTCOME_TEXTS.items()}
        if word not in known:
            _unreadable(f"{where}.answer", f"The value must be one of {', '.join(known)}, and is {word!r}.")
        checkpoint = fields.whole_or_none("checkpoint")
        return Answer(
            request=request,
            outcome=known[word],
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
    """The other fields, after format and id were checked."""
    if len(data) > MAX_FILE_BYTES:
        _unreadable(where, f"The file has {len(data)} bytes, more than {MAX_FILE_BYTES}.")
    try:
        document: object = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        _unreadable(where, f"The file is not JSON: {sentence(error)}")
    fields = StrictFields(document, where)
    version = fields.whole("format")
    if version != FORMAT:
        _unreadable(f"{where}.format", f"The format is {version}, and this penstock reads {FORMAT}.")
    written = fields.text("request")
    if written != request:
        _unreadable(f"{where}.request", f"The request is {written!r}, and the file's name says {request!r}.")
    return fields


def _unreadable(where: str, why: str) -> NoReturn:
    msg = f"{where}: {why}"
    raise CheckpointUnreadable(msg)


# ---- files -----------------------------------------------------------------------------------------------------------
#
# Written once, listed, cleaned up. No decision depends on them: what was done is recorded in the log. An answer that is
# lost is not written again.

POLL_INTERVAL: Final = 0.05
"""Seconds from one look for an answer to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderListing:
    """The ids of one listing, sorted.

    Attributes:
        open: requests without an answer.
        answered: answers, whether their request is still there or not.
    """

    open: tuple[str, ...]
    answered: tuple[str, ...]


class ControlFiles:
    """The requests to one job and their answers.

    Args:
        filesystem: rooted at the job's directory.
    """

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem

    def scan(self) -> FolderListing:
        """List the folder once."""
        found = [paths.control_id(path) for path in self._filesystem.list(paths.CONTROL)]
        ids = [each for each in found if each is not None]
        answered = {id for id, is_answer in ids if is_answer}
        asked = {id for id, is_answer in ids if not is_answer}
        return FolderListing(open=tuple(sorted(asked - answered)), answered=tuple(sorted(answered)))

    def claim_of(self, history: History) -> Claim | None:
        """The owner's claim: the log's, or its copy once the log has trimmed it; ``None`` if neither can be read."""
        entry = history.claim or self._copied_claim(history)
        return entry.body if entry is not None and isinstance(entry.body, Claim) else None

    def _copied_claim(self, history: History) -> Entry | None:
        """The copy, unless it is that of another owner."""
        if history.generation is None:
            return None
        with suppress(CheckpointError):
            data = self._filesystem.read(paths.CLAIM)
            # a generation is the number of its claim
            entry = None if data is None else decode(data, EntryNumber(history.generation))
            return entry if entry is not None and entry.log_id == history.log_id else None
        return None

    # ---- for requesters ----------------------------------------------------------------------------------------------

    def ask(self, request: Request, *, pause: Callable[[float], object]) -> None:
        """Write a request; the same one again is no new request.

        Raises:
            StateDirectoryRefused: another request has this id.
            StorageFailed: certainly no request was written.
        """
        path, data = paths.request(request.request), encode_request(request)
        for seconds in backoff():
            try:
                if self._filesystem.create(path, data) is Created.EXISTS and self._filesystem.read(path) != data:
                    msg = f"{path} holds another request. The ids of requests are random and never used twice."
                    raise StateDirectoryRefused(msg)
                return
            except UnknownOutcome:
                pause(seconds)

    def answer_to(self, request: str) -> Answer | None:
        """The answer, if it is there.

        Raises:
            CheckpointUnreadable: the file holds none.
        """
        data = self._filesystem.read(paths.answer(request))
        return None if data is None else decode_answer(data, request)

    def wait_for_answer(
        self, request: str, *, seconds: float, now: Callable[[], MonotonicTime], pause: Callable[[float], object]
    ) -> Answer | None:
        """The answer; ``None`` if there is none after ``seconds``. ``pause`` may raise, to give up.

        Raises:
            CheckpointUnreadable: there is one, which this version does not understand.
            StorageFailed: whether there is one could not be read, up to the end.
        """
        deadline = now() + int(seconds * 1_000_000)
        while True:
            answer, failed = self._poll_answer(request)
            if answer is not None:
                return answer
            left = (deadline - now()) / 1_000_000
            if left <= 0 and failed is not None:
                raise failed
            if left <= 0:
                return None
            pause(min(POLL_INTERVAL, left))

    def _poll_answer(self, request: str) -> tuple[Answer | None, StorageFailed | None]:
        try:
            return self.answer_to(request), None
        except StorageFailed as error:
            return None, error

    # ---- for the job -------------------------------------------------------------------------------------------------

    def copy_claim(self, claim: Entry) -> None:
        """Keep a copy of the owner's claim, in place of that of the owner before.

        Raises:
            StorageFailed: it could not be written, or nobody knows.
        """
        self._filesystem.replace(paths.CLAIM, encode(claim))

    def request(self, id: str) -> Request | None:
        """The request, if it is still there.

        Raises:
            CheckpointUnreadable: it is not one that this version understands.
        """
        data = self._filesystem.read(paths.request(id))
        return None if data is None else decode_request(data, id)

    def answer(self, answer: Answer) -> bool:
        """Write an answer unless there is one; ``False`` if the outcome is not known and it should be tried again.

        Raises:
            StorageFailed: certainly nothing was written.
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
