"""Positions of Kinesis shards: in order, as JSON, and as the two columns of a lease."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.kinesis.positions import (
    After,
    AtHorizon,
    AtTime,
    Finished,
    LeaseCheckpoint,
    from_lease,
    lease_order,
    order,
    position_from_json,
    position_to_json,
    to_lease,
)
from penstock.errors import StateIncompatible

counts = st.integers(0, 2**40)
positions = st.one_of(
    st.just(AtHorizon()),
    st.just(Finished()),
    st.builds(AtTime, counts),
    st.builds(After, st.integers(0, 10**56), counts),
)


@given(positions)
def test_a_position_is_read_back_from_json_and_from_a_lease(position):
    assert position_from_json(json.loads(json.dumps(position_to_json(position))), "s") == position
    assert from_lease(to_lease(position), ms=getattr(position, "ms", None)) == position


@given(st.builds(After, st.integers(0, 10**56), counts), positions)
def test_the_order_is_that_of_integers_and_the_same_in_a_lease(after, other):
    if isinstance(other, After):
        assert (order(after) < order(other)) == ((after.seq, after.sub) < (other.seq, other.sub))
    else:
        assert (order(after) < order(other)) == isinstance(other, Finished)
    assert (lease_order(to_lease(after)) < lease_order(to_lease(other))) == (order(after) < order(other))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"at": "latest"},
        {"at": "horizon", "ms": 1},
        {"at": "time"},
        {"at": "time", "ms": True},
        {"at": "time", "ms": -1},
        {"at": "after", "seq": 5, "sub": 0},
        {"at": "after", "seq": "05", "sub": 0},
        {"at": "after", "seq": "-5", "sub": 0},
        {"at": "after", "seq": "\u0665", "sub": 0},
        {"at": "after", "seq": "9" * 129, "sub": 0},
        {"at": "after", "seq": "5", "sub": -1},
        {"at": "after", "seq": "5", "sub": 0, "more": 1},
    ],
    ids=str,
)
def test_what_is_no_position_is_refused(value):
    with pytest.raises(StateIncompatible, match="of shard shard-7 cannot be read"):
        position_from_json(value, "shard-7")


@pytest.mark.parametrize(("text", "sub"), [("", 0), ("latest", 0), ("1e5", 0), ("5", -1), ("-5", 0)])
def test_what_is_no_checkpoint_of_a_lease_is_refused(text, sub):
    with pytest.raises(ValueError, match="is not the checkpoint of a lease"):
        from_lease(LeaseCheckpoint(text, sub))


def test_a_lease_that_does_not_say_where_it_is_has_no_position():
    assert from_lease(LeaseCheckpoint("LATEST", 0), ms=5) is None
    assert from_lease(LeaseCheckpoint("AT_TIMESTAMP", 0)) is None
