"""Files of logs, requests and replays that older code wrote are read, and written again byte for byte.

`tests/golden/bytes.json` has documents of each form, recorded from core tests, simulated stories and golden windows.
It is never written again.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.checkpoint.entry_codec import decode, encode
from penstock.checkpoint.export import decode_claimed, decode_export, encode_claimed, encode_export
from penstock.control.protocol import decode_answer, decode_request, encode_answer, encode_request
from penstock.dead_letters.store import decode_replay, encode_replay, replay_path
from penstock.handles import EntryNumber

RECORDED: dict[str, list[str]] = json.loads(
    (Path(__file__).resolve().parents[1] / "golden" / "bytes.json").read_text(encoding="utf-8")
)


def entry(data: bytes) -> bytes:
    return encode(decode(data, EntryNumber(json.loads(data)["number"])))


def request(data: bytes) -> bytes:
    return encode_request(decode_request(data, json.loads(data)["request"]))


def answer(data: bytes) -> bytes:
    return encode_answer(decode_answer(data, json.loads(data)["request"]))


def replay(data: bytes) -> bytes:
    document = json.loads(data)
    return encode_replay(decode_replay(data, replay_path(document["uid"], document["number"])))


AGAIN: dict[str, Callable[[bytes], bytes]] = {
    "entries": entry,
    "requests": request,
    "answers": answer,
    "replays": replay,
    "exports": lambda data: encode_export(decode_export(data, "export.json")),
    "claimed": lambda data: encode_claimed(decode_claimed(data, "claimed.json")),
}


@pytest.mark.parametrize("kind", sorted(RECORDED))
def test_what_was_recorded_is_read_and_written_byte_for_byte(kind: str) -> None:
    recorded = [text.encode() for text in RECORDED[kind]]

    assert [AGAIN[kind](data) for data in recorded] == recorded
