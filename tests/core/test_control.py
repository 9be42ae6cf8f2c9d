"""Requests and answers as values and as bytes: strict, versioned, with a message that names the file and the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core.checkpoint_values import CLAIM, history, manifest, pin
from penstock.checkpoint import paths
from penstock.checkpoint.entries import Stopped
from penstock.checkpoint.events import AnswerRequest, RequestOutcome
from penstock.clock import WallTime
from penstock.control.protocol import (
    MAX_FILE_BYTES,
    Answer,
    OwnerInfo,
    Request,
    RequestKind,
    answer_from_log,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    savepoint_for_request,
)
from penstock.errors import CheckpointUnreadable, InternalError, SettingsError
from penstock.handles import CheckpointId, Generation, check_savepoint_name

ID = "0b5c9a1e77d04f7f"


def request(kind: RequestKind = RequestKind.HELLO, **rest: Any) -> Request:
    given: dict[str, Any] = {"owner": "me", "log_id": "77d0"} | rest
    return Request(request=ID, kind=kind, generation=Generation(7), asked=WallTime(9), **given)


def answered(**rest: Any) -> Answer:
    given: dict[str, Any] = {"outcome": RequestOutcome.DONE, "message": "done"} | rest
    return Answer(request=ID, generation=Generation(7), at=WallTime(9), **given)


def changed(data: bytes, **fields: object) -> bytes:
    return json.dumps({**json.loads(data), **fields}).encode()


@pytest.mark.parametrize(
    "value",
    [
        request(),
        request(log_id=None),
        request(RequestKind.CHECKPOINT),
        request(RequestKind.SAVEPOINT, name="before-v2"),
        request(RequestKind.STOP),
        request(RequestKind.STOP, name="last", patience=0),
        request(RequestKind.PIN, name="good", checkpoint=CheckpointId(3)),
        request(RequestKind.UNPIN, name="good"),
    ],
)
def test_every_request_comes_back_from_its_bytes(value: Request) -> None:
    assert decode_request(encode_request(value), ID) == value


@pytest.mark.parametrize(
    "value",
    [
        answered(),
        answered(outcome=RequestOutcome.REFUSED, message="é", checkpoint=CheckpointId(4)),
        answered(outcome=RequestOutcome.FAILED),
        answered(outcome=RequestOutcome.UNPUBLISHED),
        answered(me=OwnerInfo(host="h", pid=1, started=WallTime(3), version="1", state="running")),
    ],
)
def test_every_answer_comes_back_from_its_bytes(value: Answer) -> None:
    assert decode_answer(encode_answer(value), ID) == value


def test_the_files_are_what_the_documentation_shows() -> None:
    assert encode_request(request(RequestKind.SAVEPOINT, name="before-v2")) == (
        b'{"asked":9,"checkpoint":null,"format":1,"generation":7,"kind":"savepoint","log":"77d0","name":"before-v2",'
        b'"owner":"me","patience":null,"request":"0b5c9a1e77d04f7f"}\n'
    )
    assert encode_answer(answered(checkpoint=CheckpointId(41))) == (
        b'{"answer":"done","at":9,"checkpoint":41,"format":1,"generation":7,"me":null,"message":"done",'
        b'"request":"0b5c9a1e77d04f7f"}\n'
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": 2}, r"format: is 2, this penstock reads 1"),
        ({"request": "another-one"}, r"request: is 'another-one', the file's name says"),
        ({"kind": "dance"}, r"kind: must be one of 'hello'.*, is 'dance'"),
        ({"generation": -1}, r"generation: must be a whole number from 0 on"),
        ({"generation": "7"}, r"generation: must be a whole number"),
        ({"loud": True}, r"unknown field 'loud'"),
        ({"name": "x"}, r"a hello has no name"),
        ({"kind": "savepoint"}, r"a savepoint needs a name"),
        ({"kind": "savepoint", "name": "41"}, r"'41' cannot name a savepoint"),
        ({"kind": "stop", "name": "../x"}, r"'../x' cannot name a savepoint"),
        ({"kind": "pin", "name": "x"}, r"a pin, and nothing else, names a checkpoint"),
        ({"checkpoint": 3}, r"a pin, and nothing else, names a checkpoint"),
        ({"patience": 3}, r"only a stop has patience"),
        ({"kind": "stop", "patience": -1}, r"it is not negative"),
        ({"kind": "stop", "patience": 2**63 - 1}, r"and at most 31622400000000"),
        ({"log": 7}, r"log: must be a string"),
    ],
)
def test_a_request_that_is_not_exactly_one_is_refused_with_its_file(fields: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointUnreadable, match=rf"control/{ID}\.request\.json.*{message}"):
        decode_request(changed(encode_request(request()), **fields), ID)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b" " * (MAX_FILE_BYTES + 1)])
def test_bytes_that_are_no_request_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointUnreadable, match=r"request\.json"):
        decode_request(data, ID)


def test_an_answer_has_one_of_four_words() -> None:
    with pytest.raises(CheckpointUnreadable, match=r"answer\.json\.answer: must be one of done, refused, .*is 'maybe'"):
        decode_answer(changed(encode_answer(answered()), answer="maybe"), ID)
    with pytest.raises(InternalError, match="the next owner answers it"):
        encode_answer(answered(outcome=RequestOutcome.UNKNOWN))


def test_a_request_that_its_kind_cannot_make_is_never_written() -> None:
    with pytest.raises(InternalError, match="needs a name"):
        encode_request(request(RequestKind.SAVEPOINT))


@pytest.mark.parametrize("name", ["before-v2", "A", "a.b_c-9", "x" * 100])
def test_names_of_savepoints(name: str) -> None:
    assert check_savepoint_name(name) == name


@pytest.mark.parametrize("name", ["", "41", "-a", ".a", "a/b", "a b", "é", "x" * 101, None, 3])
def test_a_name_that_could_be_a_path_or_a_number_is_refused(name: object) -> None:
    with pytest.raises(SettingsError, match=r"cannot name a savepoint. Use 1 to 100 letters"):
        check_savepoint_name(name)


def test_only_files_of_requests_and_answers_are_seen() -> None:
    assert paths.control_id(paths.request(ID)) == (ID, False)
    assert paths.control_id(paths.answer(ID)) == (ID, True)
    for other in ("control/short.request.json", f"control/{ID}.json", f"log/{ID}.request.json", f"control/x/{ID}"):
        assert paths.control_id(other) is None


def test_C3_what_was_done_is_told_by_the_entry_that_holds_the_id() -> None:
    log = history(
        CLAIM,
        manifest(0, fulfils=("a",), pins=(pin("one", 0, request="a"),)),
        pin("two", 0, request="b"),
        manifest(1, pins=(pin("last", 1, request="s"),)),
        Stopped(checkpoint=CheckpointId(1), at=WallTime(1), fulfils=("t",)),
    )
    for id, checkpoint, number in (("a", 0, 1), ("b", 0, 2), ("t", 1, 4)):
        assert answer_from_log(log, id) == AnswerRequest(
            request=id,
            outcome=RequestOutcome.DONE,
            checkpoint=CheckpointId(checkpoint),
            message=f"done: log/{number:020}.json says so",
        )
    assert answer_from_log(log, "s") is None, "its savepoint is there, and it did not stop the job"
    assert savepoint_for_request(log, "s") == pin("last", 1, request="s")
    assert savepoint_for_request(log, "x") is None
