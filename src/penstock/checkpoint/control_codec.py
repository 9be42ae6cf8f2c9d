"""Requests and answers to the bytes of their files and back: strict, versioned. Knows nothing of storage.

One line of JSON without a checksum of its own, so that any tool can ask; it has to appear whole at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NoReturn

from penstock.checkpoint import paths
from penstock.checkpoint.control import Answerer, ControlAnswer, ControlRequest, Kind, misfit
from penstock.checkpoint.effects import Answer
from penstock.checkpoint.fields import Fields
from penstock.errors import CheckpointUnreadable, InternalError
from penstock.ids import CheckpointId, Generation, WallTime

FORMAT: Final = 1
LARGEST: Final = 64 * 1024
"""Bytes of a file below ``control/``; nobody needs more to ask."""

WRITTEN: Final[Mapping[Answer, str]] = {
    Answer.DONE: "done",
    Answer.REFUSED: "refused",
    Answer.FAILED: "failed",
    Answer.UNPUBLISHED: "unpublished",
}
"""How an answer is spelled in its file. ``UNKNOWN`` is never written: the next owner looks into the log."""


def encode_request(request: ControlRequest) -> bytes:
    """The bytes of a request's file.

    Raises:
        InternalError: it asks for something that its kind does not have.
    """
    wrong = misfit(request)
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


def decode_request(data: bytes, request: str) -> ControlRequest:
    """The request of these bytes, read from where request ``request`` lies.

    Raises:
        CheckpointUnreadable: it is not a request that this version understands; names the file and the field.
    """
    where = paths.request(request)
    with _fields(data, where, request) as fields:
        checkpoint = fields.whole_or_none("checkpoint")
        read = ControlRequest(
            request=request,
            kind=fields.choice("kind", Kind),
            generation=Generation(fields.whole("generation", least=0)),
            asked=WallTime(fields.whole("asked")),
            owner=fields.text("owner"),
            name=fields.text_or_none("name"),
            checkpoint=None if checkpoint is None else CheckpointId(checkpoint),
            patience=fields.whole_or_none("patience"),
            log_id=fields.text_or_none("log"),
            expires=WallTime(fields.whole("expires")) if fields.has("expires") else None,
        )
    wrong = misfit(read)
    if wrong is not None:
        _unreadable(where, wrong)
    return read


def encode_answer(answer: ControlAnswer) -> bytes:
    """The bytes of an answer's file."""
    me = answer.me
    if answer.answer not in WRITTEN:
        msg = f"request {answer.request} cannot be answered with {answer.answer.name}: the next owner answers it"
        raise InternalError(msg)
    return _line(
        {
            "format": FORMAT,
            "request": answer.request,
            "answer": WRITTEN[answer.answer],
            "message": answer.message,
            "generation": answer.generation,
            "at": answer.at,
            "checkpoint": answer.checkpoint,
            "me": None
            if me is None
            else {"host": me.host, "pid": me.pid, "started": me.started, "version": me.version, "state": me.state},
        }
    )


def decode_answer(data: bytes, request: str) -> ControlAnswer:
    """The answer of these bytes, read from where the answer to ``request`` lies.

    Raises:
        CheckpointUnreadable: it is not an answer that this version understands; names the file and the field.
    """
    where = paths.answer(request)
    with _fields(data, where, request) as fields:
        word = fields.text("answer")
        known = {spelled: answer for answer, spelled in WRITTEN.items()}
        if word not in known:
            _unreadable(f"{where}.answer", f"must be one of {', '.join(known)}, is {word!r}")
        checkpoint = fields.whole_or_none("checkpoint")
        return ControlAnswer(
            request=request,
            answer=known[word],
            message=fields.text("message"),
            generation=Generation(fields.whole("generation", least=0)),
            at=WallTime(fields.whole("at")),
            checkpoint=None if checkpoint is None else CheckpointId(checkpoint),
            me=fields.one_or_none("me", _read_me),
        )


def _read_me(value: object, where: str) -> Answerer:
    with Fields(value, where) as fields:
        return Answerer(
            host=fields.text("host"),
            pid=fields.whole("pid"),
            started=WallTime(fields.whole("started")),
            version=fields.text("version"),
            state=fields.text("state"),
        )


def _line(document: Mapping[str, object]) -> bytes:
    return (json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True) + "\n").encode("ascii")


def _fields(data: bytes, where: str, request: str) -> Fields:
    """The fields that are left when format and id are as they must be."""
    if len(data) > LARGEST:
        _unreadable(where, f"{len(data)} bytes are more than {LARGEST}")
    try:
        document: object = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        _unreadable(where, f"is not JSON: {error}")
    fields = Fields(document, where)
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
