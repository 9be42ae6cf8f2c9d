"""Entries to bytes and back: round trips, every flipped bit, every strict refusal. Dataclasses by their type hints."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.checkpoint_values import CLAIM, condemn, entries, file, keyed, layer, manifest, output, pin, rewind, unpin
from penstock import codec
from penstock.checkpoint.entries import (
    Claim,
    Condemn,
    Entry,
    Manifest,
    Origin,
    Pin,
    Rewind,
    StepRecord,
    StepRole,
    Stopped,
    Unpin,
)
from penstock.checkpoint.entry_codec import decode, encode
from penstock.codec import Codec, JsonForm, Tagged, dump_sealed
from penstock.elements import CheckpointKind
from penstock.errors import CheckpointUnreadable, InternalError
from penstock.handles import Committable, FileRef, Json, LayerRef, Position, StateHandle, TaskSnapshot

texts = st.text(max_size=8)
numbers = st.integers(min_value=0, max_value=2**63)
times = st.integers(min_value=-(2**63), max_value=2**63 - 1)
details = st.recursive(
    st.none() | st.booleans() | times | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def some(values, most=2):
    return st.lists(values, max_size=most).map(tuple)


files = st.builds(FileRef, path=texts, length=numbers, sha256=texts)
committables = st.builds(
    Committable, uid=texts, kind=texts, checkpoint=numbers, target=texts, files=some(files), detail=details
)
layers = st.builds(LayerRef, name=texts, level=numbers, rows=numbers, files=some(files), detail=details)
states = st.builds(StateHandle, kind=texts, schema=texts, layers=some(layers), detail=details)
snapshots = st.builds(
    TaskSnapshot,
    task=texts,
    position=st.none() | st.builds(Position, kind=texts, detail=details),
    state=st.none() | states,
    watermarks=some(times),
)
pins = st.builds(
    Pin, name=texts, checkpoint=numbers, at=times, owner=texts, expires=st.none() | times, request=st.none() | texts
)
bodies = st.one_of(
    st.builds(Claim, host=texts, pid=numbers, started=times, version=texts),
    pins,
    st.builds(Unpin, name=texts, at=times, request=st.none() | texts),
    st.builds(Condemn, checkpoints=some(numbers), files=some(texts), at=times, reason=texts),
    st.builds(Stopped, checkpoint=st.none() | numbers, at=times, fulfils=some(texts)),
    st.builds(
        Rewind,
        to=st.none() | numbers,
        left=st.none() | numbers,
        at=times,
        discard=some(committables),
        condemned=some(numbers),
        lost=some(numbers),
        request=st.none() | texts,
    ),
    st.builds(
        Manifest,
        checkpoint=numbers,
        kind=st.sampled_from(CheckpointKind),
        parent=st.none() | numbers,
        triggered=times,
        completed=times,
        steps=some(st.builds(StepRecord, uid=texts, role=st.sampled_from(StepRole), kind=texts, schema=texts), most=3),
        tasks=some(snapshots),
        open=some(committables),
        pins=some(pins),
        fulfils=some(texts),
        condemned=some(numbers),
        condemned_files=some(texts),
        deleted=st.integers(min_value=-1, max_value=2**40),
        floor=numbers,
        settings=st.dictionaries(texts, details, max_size=3),
        origin=st.none()
        | st.builds(Origin, log_id=texts, job=texts, checkpoint=numbers, export=texts, claimed=st.booleans()),
        undone=some(st.tuples(numbers, numbers)),
    ),
)
any_entry = st.builds(
    Entry,
    number=numbers,
    log_id=texts,
    job=texts,
    generation=numbers,
    token=texts,
    previous=texts,
    body=bodies,
)

RICH = manifest(
    4,
    3,
    tasks=(
        TaskSnapshot(task="in", position=Position(kind="files/1", detail={"a": [1, 2.5, None, True, "é"]})),
        keyed(layer("layer-1"), detail={"horizon": -1}),
    ),
    kind=CheckpointKind.SAVEPOINT,
    open=(output(4, detail={"marker": "m"}),),
    pins=(pin("before-v2", 4, request="r"),),
    fulfils=("r",),
    condemned=(1,),
    condemned_files=("state/totals/0/a",),
    settings={"retained": 3, "mode": "exactly-once", "stop_timeout": None},
    undone=((0, 2), (3, 4)),
)
BODIES = [
    CLAIM,
    RICH,
    rewind(2, 4, discard=(output(3),), condemned=(3, 4), lost=(7,), request="r"),
    pin("p", 3, owner="me", expires=9),
    unpin("p"),
    condemn(3, files=["staged/out/0/3/a"], reason="orphans"),
    Stopped(checkpoint=None, at=5, fulfils=("s",)),
]


@settings(deadline=None)
@given(any_entry)
def test_what_is_written_is_read_back(entry):
    assert decode(encode(entry), entry.number) == entry


@settings(deadline=None)
@given(any_entry)
def test_bytes_are_canonical(entry):
    assert encode(decode(encode(entry), entry.number)) == encode(entry)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_an_entry_is_one_line_of_plain_json(body):
    [entry] = entries(body)

    document = json.loads(encode(entry))

    assert list(document) == sorted(document)
    assert document["format"] == 1
    assert document["log"] == "log-1"
    assert b"\n" not in encode(entry)


@pytest.mark.mission("D3")
@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_truncation_at_any_offset_is_noticed(body):
    [entry] = entries(body)
    data = encode(entry)

    for length in range(len(data)):
        with pytest.raises(CheckpointUnreadable, match=r"log/0{20}\.json"):
            decode(data[:length], 0)


@pytest.mark.mission("D3")
@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_any_flipped_bit_at_any_offset_is_noticed(body):
    [entry] = entries(body)
    data = bytearray(encode(entry))

    for offset in range(len(data)):
        for bit in range(8):
            data[offset] ^= 1 << bit
            with pytest.raises(CheckpointUnreadable):
                decode(bytes(data), 0)
            data[offset] ^= 1 << bit


def test_a_manifest_of_before_settings_were_recorded_is_read_and_written_as_it_was():
    [entry] = entries(manifest(1))
    data = encode(entry)

    assert b"settings" not in data
    assert b"undone" not in data
    assert decode(data, 0).body.settings == {}
    assert encode(decode(data, 0)) == data


def test_an_entry_under_another_number_is_refused():
    [entry] = entries(CLAIM)

    with pytest.raises(
        CheckpointUnreadable, match=r"00007\.json\.number: The entry has number 0, and the file's name says 7"
    ):
        decode(encode(entry), 7)


def resealed(body, path, value):
    """The entry with one field changed and a right checksum: only strictness can refuse it."""
    [entry] = entries(body)
    document = json.loads(encode(entry))
    del document["sha256"]
    *way, last = path
    place = document
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return dump_sealed(document)


WRONG = [
    (("format",), 2, r"\.format: The format is 2, and this penstock reads 1"),
    (("format",), "1", r"\.format: The value must be a whole number, and is '1' \(str\)"),
    (("kind",), "note", r"\.kind: The kind of entry 'note' is unknown. Known are checkpoint, claim, condemn"),
    (("extra",), [1], r"Field 'extra' with value \[1\] is unknown"),
    (("token",), ..., r"Field 'token' is missing"),
    (("generation",), -1, r"\.generation: The value must be a whole number from 0 on, and is -1"),
    (("generation",), True, r"\.generation: The value must be a whole number, and is True \(bool\)"),
    (("body",), [], r"\.body: The value must be an object, and is \[\] \(list\)"),
    (("body", "checkpoint"), 1.0, r"\.body\.checkpoint: The value must be a whole number, and is 1\.0 \(float\)"),
    (("body", "kind"), "weekly", r"\.body\.kind: The value must be one of 'periodic', .*'written', and is 'weekly'"),
    (("body", "parent"), "3", r"\.body\.parent: The value must be a whole number, and is '3'"),
    (("body", "parent"), ..., r"\.body: Field 'parent' is missing"),
    (("body", "tasks"), {}, r"\.body\.tasks: The value must be an array, and is \{\} \(dict\)"),
    (
        ("body", "tasks", 0, "position", "kind"),
        None,
        r"\.body\.tasks\[0\]\.position\.kind: The value must be a string, and is None",
    ),
    (("body", "tasks", 0, "watermarks"), ["x"], r"\.watermarks\[0\]: The value must be a whole number, and is 'x'"),
    (
        ("body", "tasks", 1, "state", "layers", 0, "files", 0, "length"),
        -3,
        r"\.length: The value must be a whole number from 0",
    ),
    (("body", "open", 0, "uid"), 5, r"\.body\.open\[0\]\.uid: The value must be a string, and is 5 \(int\)"),
    (
        ("body", "undone"),
        [[1]],
        r"\.body\.undone\[0\]: The value must be a pair of whole numbers, and is \[1\] \(list\)",
    ),
    (("body", "settings"), [], r"\.body\.settings: The value must be an object, and is \[\] \(list\)"),
    (("body", "fulfils"), [None], r"\.body\.fulfils\[0\]: The value must be a string"),
    (
        ("body", "pins", 0, "expires"),
        "soon",
        r"\.body\.pins\[0\]\.expires: The value must be a whole number, and is 'soon'",
    ),
    (("body", "steps", 0, "note"), "x" * 90, r"\.body\.steps\[0\]: Field 'note' with value 'x{59}…"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG, ids=[".".join(map(str, path)) for path, *_ in WRONG])
def test_a_field_that_is_unknown_missing_or_mistyped_is_named_with_file_and_value(path, value, message):
    with pytest.raises(CheckpointUnreadable, match=r"log/0{20}\.json.*" + message):
        decode(resealed(RICH, path, value), 0)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"format":1}', b'{"n":' + b"9" * 5000 + b"}"],
    ids=["empty", "array", "null", "cut", "not ascii", "deep", "no checksum", "huge number"],
)
def test_what_is_no_entry_at_all_is_unreadable(data):
    with pytest.raises(CheckpointUnreadable, match=r"log/0{20}\.json"):
        decode(data, 0)


def test_same_content_in_other_bytes_is_refused():
    [entry] = entries(CLAIM)
    document = json.loads(encode(entry))

    with pytest.raises(CheckpointUnreadable, match="does not match its checksum"):
        decode(json.dumps(document, sort_keys=True).encode(), 0)


@pytest.mark.parametrize(
    ("detail", "message"),
    [
        ({1: "a"}, r"detail: Key 1 is a int, and JSON has only strings"),
        ({"a": math.nan}, r"detail\.a: nan \(float\) cannot be written"),
        ([{"b": b"raw"}], r"detail\[0\]\.b: b'raw' \(bytes\) cannot be written"),
        (CheckpointKind.FINAL, r"detail: .* \(CheckpointKind\) cannot be written"),
        ({1, 2}, r"detail: \{1, 2\} \(set\) cannot be written"),
    ],
)
def test_a_detail_that_would_not_come_back_the_same_is_a_bug_of_its_maker(detail, message):
    [entry] = entries(condemn())
    body = manifest(1, open=(output(1, detail=detail),))

    with pytest.raises(InternalError, match=r"committable of 'out': " + message):
        encode(Entry(**{name: getattr(entry, name) for name in entry.__slots__ if name != "body"}, body=body))


def test_tuples_in_details_are_written_as_arrays():
    [entry] = entries(manifest(1, open=(output(1, detail=(1, 2)),)))

    assert decode(encode(entry), 0).body.open[0].detail == [1, 2]


def test_an_entry_that_is_far_too_large_is_neither_written_nor_read(monkeypatch):
    [entry] = entries(condemn(files=[file("x").path] * 100))
    data = encode(entry)
    monkeypatch.setattr(codec, "MAX_DOCUMENT_BYTES", 100)

    with pytest.raises(InternalError, match="keeps rows in a detail"):
        encode(entry)
    with pytest.raises(CheckpointUnreadable, match="and an entry can have"):
        decode(data, 0)


@dataclass(frozen=True)
class Circle:
    radius: float


@dataclass(frozen=True)
class Box:
    sides: tuple[int, int]


@dataclass(frozen=True)
class Drawing:
    name: str
    shape: Circle | Box
    sizes: Mapping[str, int | None]
    visible: bool = True
    notes: Mapping[str, Json] = dataclass_field(default_factory=dict)
    title: str | None = None
    cached: int = 0


FORM = JsonForm(
    version=3,
    names={"name": "id"},
    at_least={"sizes": 1},
    optional={"notes", "title"},
    unwritten={"cached"},
    tags={"shape": Tagged(key="type", types={"circle": Circle, "box": Box})},
    label=lambda drawing: f"drawing {drawing.name}",
)
DRAWINGS = Codec(Drawing, {Drawing: FORM})
PLAIN = {
    "format": 3,
    "id": "a",
    "type": "box",
    "shape": {"sides": [1, -2]},
    "sizes": {"x": 1, "y": None},
    "visible": True,
}


def test_a_dataclass_is_written_by_its_type_hints_and_its_form():
    drawing = Drawing("a", Box((1, -2)), {"x": 1, "y": None}, cached=9)

    assert DRAWINGS.to_json(drawing) == PLAIN
    assert list(DRAWINGS.to_json(drawing)) == list(PLAIN)
    assert DRAWINGS.from_json(PLAIN, "f") == Drawing("a", Box((1, -2)), {"x": 1, "y": None})


def test_optional_fields_are_written_once_they_say_something():
    drawing = Drawing("a", Circle(0.5), {}, notes={"n": [1, {"m": None}]}, title="t")
    document = DRAWINGS.to_json(drawing)

    assert (document["notes"], document["title"], document["shape"]) == ({"n": [1, {"m": None}]}, "t", {"radius": 0.5})
    assert DRAWINGS.from_json(document, "f") == drawing


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"format": 2, "id": 5}, r"f\.format: The format is 2, and this penstock reads 3"),
        ({"type": "line"}, r"f\.type: The type of drawing 'line' is unknown. Known are box, circle"),
        ({"shape": {"sides": [1]}}, r"f\.shape\.sides: The value must be a pair of whole numbers"),
        (
            {"type": "circle", "shape": {"radius": "1"}},
            r"f\.shape\.radius: The value must be a number, and is '1' \(str\)",
        ),
        ({"sizes": {"x": 0}}, r"f\.sizes\.x: The value must be a whole number from 1 on, and is 0"),
        ({"visible": 1}, r"f\.visible: The value must be true or false, and is 1"),
        ({"title": None}, r"f\.title: The value must be a string, and is None"),
        ({"cached": 1}, r"f: Field 'cached' with value"),
    ],
)
def test_a_document_that_is_not_as_it_would_be_written_is_refused(changed, message):
    with pytest.raises(CheckpointUnreadable, match=message):
        DRAWINGS.from_json({**PLAIN, **changed}, "f")


@pytest.mark.parametrize(
    ("drawing", "message"),
    [
        (Drawing("a", Circle(math.inf), {}), r"drawing a: shape\.radius: inf \(float\) cannot be written"),
        (Drawing("a", Circle(1), {}, notes={2: 1}), "drawing a: notes: Key 2 is a int, and JSON has only strings"),
    ],
)
def test_what_json_cannot_say_is_refused_by_the_name_of_its_owner(drawing, message):
    with pytest.raises(InternalError, match=message):
        DRAWINGS.to_json(drawing)


def test_a_form_and_a_type_that_no_codec_can_have_are_refused_when_it_is_made():
    with pytest.raises(InternalError, match="names fields that it does not have: colour"):
        Codec(Circle, {Circle: JsonForm(optional={"colour"})})
    with pytest.raises(InternalError, match="has no form in JSON"):
        Codec(Drawing)
