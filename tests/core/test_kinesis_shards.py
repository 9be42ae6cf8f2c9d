"""The pure parts: shards and positions, the division of a batch, aggregates."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.kinesis.aggregation import MAGIC, UserRecord, pack, unpack
from penstock.connectors.kinesis.positions import After, AtHorizon, AtTime, Finished
from penstock.connectors.kinesis.shards import (
    MAX_HASH,
    KinesisPosition,
    ListedShard,
    ShardRange,
    ShardState,
    advance,
    check_identity,
    decode,
    discover,
    encode,
    end_of_replay,
    finish,
    readable,
    share,
    start,
    uncovered,
)
from penstock.errors import InternalError, SourceChanged, StateIncompatible
from penstock.handles import Position


def listed(id: str, *parents: str, closed: bool = False, first: int = 0, last: int = MAX_HASH) -> ListedShard:
    return ListedShard(id, parents, first, last, closed)


def position(**shards: tuple[object, tuple[str, ...]]) -> KinesisPosition:
    states = {id: ShardState(at, parents, 0, MAX_HASH, 9) for id, (at, parents) in shards.items()}  # type: ignore[arg-type]
    return KinesisPosition(arn="arn:s", created=5, shards=states)


# ---- positions -------------------------------------------------------------------------------------------------------

POSITIONS = st.one_of(
    st.just(AtHorizon()),
    st.just(Finished()),
    st.integers(0, 2**50).map(AtTime),
    st.builds(After, st.integers(0, 10**56), st.integers(0, 500)),
)
STATES = st.builds(
    ShardState,
    POSITIONS,
    st.lists(st.sampled_from("abc"), max_size=2).map(tuple),
    st.integers(0, MAX_HASH),
    st.integers(0, MAX_HASH),
    st.none() | st.integers(0, 2**50),
)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from("abcd"), STATES, max_size=3))
def test_a_position_comes_back_from_json_as_it_was(shards):
    there = KinesisPosition(arn="arn:s", created=5, shards=shards)
    written = encode(there)
    assert decode(Position(kind=written.kind, detail=json.loads(json.dumps(written.detail)))) == there


@pytest.mark.parametrize(
    "harm",
    [
        lambda detail: detail | {"extra": 1},
        lambda detail: {"arn": "arn:s"},
        lambda detail: detail | {"shards": {"a": detail["shards"]["a"] | {"position": {"at": "somewhere"}}}},
        lambda detail: detail | {"shards": {"a": detail["shards"]["a"] | {"hashes": ["0", "1", "2"]}}},
        lambda detail: detail | {"shards": {"a": detail["shards"]["a"] | {"hashes": ["zero", "1"]}}},
        lambda detail: [],
    ],
)
def test_a_damaged_position_is_refused(harm):
    detail = encode(position(a=(After(4, 1), ()))).detail
    with pytest.raises(StateIncompatible):
        decode(Position(kind="kinesis/1", detail=harm(detail)))


def test_a_position_of_another_kind_is_refused():
    with pytest.raises(StateIncompatible, match="kind 'kafka/1'"):
        decode(Position(kind="kafka/1", detail={}))


def test_a_stream_is_known_by_its_arn_and_the_time_it_was_created():
    check_identity(position(), "arn:s", 5)
    with pytest.raises(SourceChanged, match="made again"):
        check_identity(position(), "arn:s", 6)
    with pytest.raises(SourceChanged, match="reads arn:t"):
        check_identity(position(), "arn:t", 5)


def test_a_range_that_does_not_follow_is_refused():
    there = position(a=(After(4, 1), ()))
    after = advance(there, [ShardRange("a", After(4, 1), After(9), 3, 20)])
    assert after.shards["a"] == ShardState(After(9), (), 0, MAX_HASH, 20)
    for wrong in (ShardRange("a", After(4, 0), After(9), 3), ShardRange("a", After(4, 1), After(9), 0)):
        with pytest.raises(InternalError):
            advance(there, [wrong])


# ---- shards ----------------------------------------------------------------------------------------------------------


def test_children_are_readable_once_all_parents_are_finished():
    there = position(a=(After(4), ()), b=(After(5), ()), c=(AtHorizon(), ("a", "b")))
    assert readable(there) == ["a", "b"]
    assert readable(finish(there, "a")) == ["b"]
    both = finish(finish(there, "a"), "b")
    assert readable(both) == ["c"]
    assert both.shards["c"].read_until == 9, "its first record cannot be older than the end of its parents"


def test_closed_is_not_finished():
    """kinesis P4."""
    there = start("arn:s", 5, {"a": listed("a", closed=True), "b": listed("b", "a")}, AtHorizon())
    assert readable(there) == ["a"]


def test_a_new_shard_begins_at_its_first_record_and_waits_if_its_parent_is_unknown():
    there = start("arn:s", 5, {"a": listed("a")}, AtTime(7))
    now = {"a": listed("a", closed=True), "b": listed("b", "a"), "c": listed("c", "z")}
    changes = discover(there, now, {"a": listed("a")})
    assert (changes.found, changes.orphans) == (("b", "c"), {"c"})
    assert changes.position.shards["b"].position == AtHorizon()
    again = discover(changes.position, now, now)
    assert (again.found, again.orphans) == ((), frozenset())
    assert readable(again.position, again.orphans) == ["a", "c"]


def test_a_finished_shard_is_forgotten_after_two_listings_and_is_never_new_again():
    there = position(a=(Finished(), ()), b=(After(9), ("a",)))
    with_a, without = {"a": listed("a"), "b": listed("b", "a")}, {"b": listed("b", "a")}
    assert "a" in discover(there, without, with_a).position.shards
    forgotten = discover(there, without, without).position
    assert set(forgotten.shards) == {"b"}
    assert discover(forgotten, with_a, without).found == ()


def test_an_unfinished_shard_that_is_not_listed_is_kept():
    there = position(a=(After(9), ()))
    assert "a" in discover(there, {}, {}).position.shards


def test_hash_keys_without_an_open_shard_are_found():
    half = MAX_HASH // 2
    left, right = listed("a", last=half), listed("b", first=half + 1)
    assert uncovered({"a": left, "b": right}) is None
    assert uncovered({"b": right}) == (0, half)
    assert uncovered({"a": left, "b": replace(right, is_closed=True)}) == (half + 1, MAX_HASH)
    assert uncovered({"a": left, "b": right, "p": listed("p")}) is None, "a parent and its children may both be open"


# ---- planning --------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 50), min_size=1), st.integers(1, 200))
def test_rows_are_divided_fairly(waiting, most):
    shares, turn = share(waiting, most, None)
    assert sum(shares.values()) == min(most, sum(waiting.values()))
    assert all(shares[shard] <= waiting[shard] for shard in waiting)
    unfilled = [shares[shard] for shard in waiting if shares[shard] < waiting[shard]]
    assert not unfilled or max(shares.values()) - min(unfilled) <= 1
    seen = set()
    for _ in range(6):
        shares, turn = share(waiting, 1, turn)
        seen |= {shard for shard in shares if shares[shard]}
    assert seen == set(waiting), "with fewer rows than shards each has its turn"


def test_the_end_of_a_replay_is_that_of_the_other_run():
    end = position(b=(After(9, 1), ("a",)), c=(AtHorizon(), ("a",)), d=(Finished(), ()))
    assert end_of_replay(end, "b", {}) == After(9, 1)
    assert end_of_replay(end, "c", {}) is None
    assert end_of_replay(end, "d", {}) == Finished()
    assert end_of_replay(end, "a", {"a": ("z",)}) == Finished(), "it was read and forgotten"
    assert end_of_replay(end, "z", {"a": ("z",)}) == Finished()
    assert end_of_replay(end, "e", {"e": ("b",)}) is None, "it was found later"


# ---- aggregates ------------------------------------------------------------------------------------------------------

RECORDS = st.lists(
    st.builds(
        UserRecord,
        st.text(max_size=5),
        st.none() | st.integers(0, MAX_HASH).map(str),
        st.binary(max_size=300),
    ),
    min_size=1,
    max_size=20,
)


@given(RECORDS)
def test_what_is_packed_comes_out_again(records):
    assert unpack(pack(records)) == records


@given(RECORDS, st.data())
def test_harmed_aggregates_are_plain_records(records, data):
    whole = pack(records)
    at = data.draw(st.integers(0, len(whole) - 1))
    assert unpack(whole[:at]) is None
    harmed = bytearray(whole)
    harmed[at] ^= data.draw(st.integers(1, 255))
    assert unpack(bytes(harmed)) is None


def sealed(message: bytes) -> bytes:
    from hashlib import md5

    return MAGIC + message + md5(message).digest()


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a\x01a\x1a\x04\x08\x05\x1a\x00",  # a key that is not in the table
        b"\x0a\x01a\x1a\x02\x08\x00",  # a record without data
        b"\x0a\x01a\x1a\x63",  # a length beyond the end
        b"\x0a\x01a",  # no records
        b"\x08\x01",  # a key that is a number
        b"\x0b\x01",  # a group, which no aggregate has
        b"\xff" * 11,  # a number without end
        b"\x0a\x01\xff\x1a\x04\x08\x00\x1a\x00",  # a key that is no text
    ],
)
def test_what_is_sealed_and_makes_no_sense_is_a_plain_record(message):
    assert unpack(sealed(message)) is None


def test_unknown_fields_are_passed_over():
    tags = b"\x22\x03abc" + b"\x29" + b"x" * 8 + b"\x35" + b"x" * 4 + b"\x38\x96\x01"
    assert unpack(sealed(b"\x0a\x01a" + tags + b"\x1a\x05\x08\x00\x1a\x01d" + tags)) == [UserRecord("a", None, b"d")]
