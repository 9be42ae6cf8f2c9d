"""Positions of Kafka topics, where they begin and end, and what happens when a topic is not what it was."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import MonotonicTime
from penstock.connectors.kafka.offsets import (
    AtOffsets,
    AtTimestamp,
    AvailableOffsets,
    KafkaPosition,
    OffsetRange,
    Topic,
    TopicPartition,
    advance,
    decode,
    encode,
    parse_start,
    parse_stop,
    resolve_start,
    resolve_stop,
)
from penstock.connectors.kafka.planning import (
    AbsenceFilter,
    LossReason,
    LostOffsets,
    lost_offsets_error,
    reconcile,
    skip_lost,
)
from penstock.errors import ConnectorError, GraphError, InternalError, SourceChanged, StateIncompatible
from penstock.handles import Position

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def topic(*extents: tuple[int, int], id: str | None = "id-a") -> Topic:
    return Topic(id, {number: AvailableOffsets(*extent) for number, extent in enumerate(extents)})


TWO = {"a": topic((10, 100), (0, 0)), "b": topic((5, 50), id="id-b")}


def everything(name: str) -> bool:
    return True


# ---------------------------------------------------------------------------------------------------------- positions

offsets = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b.c", "ü-1"]), st.integers(0, 1200)), st.integers(0, 2**63 - 1)
)


@pytest.mark.mission("F4")
@given(next=offsets, bounded=st.booleans(), id=st.none() | st.text())
def test_a_position_survives_json_and_is_the_same_text_for_the_same_progress(next, bounded, id):
    ids = {at.topic: id for at in next}
    progress = KafkaPosition(ids=ids, next=next, stop=dict(next) if bounded else None)
    text = json.dumps(encode(progress).detail)
    assert decode(Position(kind="kafka/1", detail=json.loads(text))) == progress
    shuffled = KafkaPosition(ids=dict(reversed(ids.items())), next=dict(reversed(next.items())), stop=progress.stop)
    assert json.dumps(encode(shuffled).detail) == text


def test_a_topic_without_partitions_and_a_bounded_source_without_topics_are_kept():
    for progress in (KafkaPosition(ids={"a": None}), KafkaPosition(stop={})):
        assert decode(encode(progress)) == progress


def test_what_a_newer_version_adds_is_ignored_and_another_kind_is_refused():
    detail = {"bounded": False, "new": 1, "topics": {"a": {"id": "x", "next": {"0": 7}, "epochs": {"0": 2}}}}
    assert decode(Position(kind="kafka/1", detail=detail)) == KafkaPosition(ids={"a": "x"}, next={A0: 7})
    with pytest.raises(StateIncompatible, match=r"kind 'kafka/2', but a Kafka source reads 'kafka/1'.*uid of its own"):
        decode(Position(kind="kafka/2", detail=detail))


@pytest.mark.parametrize(
    "detail",
    [
        None,
        {},
        {"bounded": False, "topics": {"a": {}}},
        {"bounded": False, "topics": {"a": {"id": 7, "next": {}}}},
        {"bounded": False, "topics": {"a": {"id": None, "next": {"0": -1}}}},
        {"bounded": False, "topics": {"a": {"id": None, "next": {"0": True}}}},
        {"bounded": False, "topics": {"a": {"id": None, "next": {"x": 1}}}},
        {"bounded": True, "topics": {"a": {"id": None, "next": {"0": 1}}}},
    ],
)
def test_a_position_that_cannot_be_read_is_refused_whole(detail):
    with pytest.raises(StateIncompatible, match="written by another version"):
        decode(Position(kind="kafka/1", detail=detail))


def test_a_position_that_ends_where_it_does_not_begin_is_damaged():
    detail = {"bounded": True, "topics": {"a": {"id": None, "next": {"0": 1}, "stop": {"0": 2, "1": 2}}}}
    with pytest.raises(StateIncompatible, match="damaged"):
        decode(Position(kind="kafka/1", detail=detail))


def test_progress_goes_on_without_a_gap_and_never_back():
    progress = KafkaPosition(ids={"a": "id-a"}, next={A0: 5, A1: 0})
    after = advance(progress, [OffsetRange("a", 0, 5, 9), OffsetRange("a", 0, 9, 12)])
    assert after.next == {A0: 12, A1: 0}
    for wrong in (
        OffsetRange("a", 0, 6, 9),
        OffsetRange("a", 0, 4, 9),
        OffsetRange("a", 0, 5, 3),
        OffsetRange("b", 0, 0, 1),
    ):
        with pytest.raises(InternalError, match="does not follow"):
            advance(progress, [wrong])


def test_a_bounded_source_is_done_by_its_position_not_by_its_last_record():
    stop = {A0: 9, A1: 0}
    assert not KafkaPosition(next={A0: 8, A1: 0}, stop=stop).is_done
    assert not KafkaPosition(next={A0: 9}, stop=stop).is_done
    assert KafkaPosition(next={A0: 9, A1: 0, B0: 0}, stop=stop).is_done, "the last numbers may be transaction markers"
    assert KafkaPosition(stop={}).is_done
    assert not KafkaPosition(next={A0: 9}).is_done


def test_a_range_knows_its_partition_and_how_many_offsets_it_spans():
    assert (OffsetRange("a", 1, 3, 10).at, OffsetRange("a", 1, 3, 10).offsets) == (A1, 7)


# ------------------------------------------------------------------------------------------------------ start and stop


def test_162_earliest_and_latest_are_numbers_from_the_first_checkpoint_on():
    assert resolve_start("earliest", TWO) == KafkaPosition(ids={"a": "id-a", "b": "id-b"}, next={A0: 10, A1: 0, B0: 5})
    assert resolve_start("latest", TWO).next == {A0: 100, A1: 0, B0: 50}


def test_162_a_time_is_its_first_record_and_a_partition_without_one_begins_at_its_end():
    told = {A0: 42, A1: None}
    assert resolve_start(AtTimestamp(5), TWO, resolved=told).next == {A0: 42, A1: 0, B0: 50}


@pytest.mark.mission("D6")
def test_161_162_committed_offsets_are_a_start_and_where_there_is_none_it_fails_unless_told():
    told = {A0: 42, A1: 0, B0: None}
    with pytest.raises(ConnectorError, match=r"no offset for b-0.*start_otherwise='earliest' or 'latest'"):
        resolve_start("committed", TWO, resolved=told)
    assert resolve_start("committed", TWO, resolved=told, otherwise="earliest").next == {A0: 42, A1: 0, B0: 5}
    assert resolve_start("committed", TWO, resolved=told, otherwise="latest").next == {A0: 42, A1: 0, B0: 50}


def test_162_explicit_offsets_name_each_partition_or_say_what_holds_for_the_others():
    start = AtOffsets({A0: 42, A1: "latest"})
    with pytest.raises(ConnectorError, match=r"start has no offset for b-0. Name each partition.*start_otherwise="):
        resolve_start(start, TWO)
    assert resolve_start(start, TWO, otherwise="earliest").next == {A0: 42, A1: 0, B0: 5}
    nowhere = AtOffsets({TopicPartition("a", n): 0 for n in range(9)})
    with pytest.raises(ConnectorError, match=r"start has offsets for a-2, a-3, a-4, a-5, a-6 and 2 more, which"):
        resolve_start(nowhere, TWO)
    with pytest.raises(ConnectorError, match=r"start has offsets for c-0, which"):
        resolve_start(AtOffsets({TopicPartition("c", 0): 0}), TWO)


def test_stops_are_numbers_too():
    assert resolve_stop("latest", TWO) == {A0: 100, A1: 0, B0: 50}
    assert resolve_stop(AtTimestamp(5), TWO, resolved={A0: 42}) == {A0: 42, A1: 0, B0: 50}
    assert resolve_stop(AtOffsets({A0: 500, A1: "latest", B0: 7}), TWO) == {A0: 500, A1: 0, B0: 7}
    with pytest.raises(ConnectorError, match=r"stop has no offset for b-0. Name each partition, perhaps .* 'latest'.$"):
        resolve_stop(AtOffsets({A0: 500, A1: "latest"}), TWO)


def test_what_users_write_becomes_a_boundary():
    assert [parse_start(word) for word in ("earliest", "latest", "committed")] == ["earliest", "latest", "committed"]
    moment = datetime(2026, 1, 31, 1, 0, 0, 1999, tzinfo=timezone(timedelta(hours=1)))
    assert parse_start(moment) == parse_stop("2026-01-31T00:00:00.001Z") == AtTimestamp(1_769_817_600_001)
    assert parse_start({"a": {0: 3, 1: "earliest"}}) == AtOffsets({A0: 3, A1: "earliest"})
    assert parse_stop("latest") == "latest"


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ("soon", r"start='soon' is not a place.*'earliest', 'latest', 'committed'"),
        ("group", r"The group's offsets are called 'committed'"),
        (12, "start=12 is not a place"),
        (None, "start=None is not a place"),
        ({}, "is not a place"),
        ("2026-01-31T00:00:00", "has no time zone"),
        (datetime(2026, 1, 31), "has no time zone"),  # noqa: DTZ001 - the mistake
        ("1969-12-31T23:59:59Z", "before 1970"),
        ({"a": 3}, "by topic and partition"),
        ({"a": {}}, "by topic and partition"),
        ({0: {0: 3}}, "by topic and partition"),
        ({"a": {"0": 3}}, r"has {'0': 3} for topic 'a'"),
        ({"a": {0: -2}}, r"0: -2"),
        ({"a": {0: True}}, r"0: True"),
        ({"a": {0: "committed"}}, r"0: 'committed'"),
    ],
)
def test_what_means_no_place_is_refused_with_what_would(start, says):
    with pytest.raises(GraphError, match=says):
        parse_start(start)


def test_a_stop_is_neither_earliest_nor_committed():
    for stop in ("earliest", "committed", {"a": {0: "earliest"}}):
        with pytest.raises(GraphError, match="stop"):
            parse_stop(stop)


# ------------------------------------------------------------------------------------------------------------ changes


@pytest.mark.mission("F2", "F5", "D6")
def test_what_was_read_stays_where_it_was_and_what_is_new_begins_at_its_earliest():
    progress = KafkaPosition(ids={"a": "id-a"}, next={A0: 60})
    seen = reconcile(progress, TWO, subscribed=everything)
    assert seen.position == KafkaPosition(ids={"a": "id-a", "b": "id-b"}, next={A0: 60, A1: 0, B0: 5})
    assert (seen.found, seen.lost) == ((A1, B0), ())
    assert reconcile(seen.position, TWO, subscribed=everything).found == ()


def test_160_a_bounded_source_takes_only_the_new_partitions_that_it_has_a_stop_for():
    progress = KafkaPosition(ids={"a": "id-a"}, next={A0: 60}, stop={A0: 100, B0: 20})
    seen = reconcile(progress, TWO, subscribed=everything)
    assert seen.position == KafkaPosition(ids={"a": "id-a", "b": "id-b"}, next={A0: 60, B0: 5}, stop=progress.stop)
    assert seen.found == (B0,)
    alone = reconcile(KafkaPosition(ids={"a": "id-a"}, next={A0: 60}, stop={A0: 100}), TWO, subscribed=everything)
    assert alone.position.ids == {"a": "id-a"}


def test_topics_that_are_no_longer_read_keep_their_place():
    progress = KafkaPosition(ids={"a": "id-a", "b": "id-b"}, next={A0: 60, A1: 0, B0: 7})
    seen = reconcile(progress, {"a": TWO["a"]}, subscribed=lambda name: name == "a")
    assert (seen.position, seen.lost) == (progress, ())


def test_an_id_that_the_broker_did_not_tell_is_learnt_and_not_forgotten():
    for before, now in ((None, "id-a"), ("id-a", None)):
        seen = reconcile(
            KafkaPosition(ids={"a": before}, next={A0: 60}), {"a": topic((10, 100), id=now)}, subscribed=everything
        )
        assert (seen.position.ids, seen.lost) == ({"a": "id-a"}, ())


def lost(next: dict[TopicPartition, int], topics: dict[str, Topic], stop: dict[TopicPartition, int] | None = None):
    progress = KafkaPosition(ids={at.topic: f"id-{at.topic}" for at in next}, next=next, stop=stop)
    seen = reconcile(progress, topics, subscribed=everything)
    return seen.lost, skip_lost(seen.position, seen.lost, topics)


def test_expired_records_are_a_counted_loss_and_reading_goes_on_at_the_earliest():
    losses, after = lost({A0: 4}, {"a": topic((10, 100))})
    assert losses == (LostOffsets(at=A0, reason=LossReason.EXPIRED, start=4, end=10),)
    assert (losses[0].offsets, after.next) == (6, {A0: 10})
    assert lost({A0: 10}, {"a": topic((10, 100))})[0] == lost({A0: 100}, {"a": topic((10, 100))})[0] == ()


def test_of_a_bounded_source_no_more_is_lost_than_it_was_to_read():
    losses, after = lost({A0: 4}, {"a": topic((10, 100))}, stop={A0: 7})
    assert losses[0].offsets == 3
    assert after.is_done
    assert lost({A0: 7}, {}, stop={A0: 7}) == ((), KafkaPosition(ids={"a": "id-a"}, next={A0: 7}, stop={A0: 7}))


def test_a_truncated_partition_goes_on_at_its_end_unless_it_may_be_another_one():
    losses, after = lost({A0: 120}, {"a": topic((10, 100))})
    assert losses == (LostOffsets(at=A0, reason=LossReason.TRUNCATED, start=100, end=120),)
    assert after.next == {A0: 100}, "what is before was read"
    assert lost({A0: 120}, {"a": topic((10, 100), id=None)})[1].next == {A0: 10}


def test_a_topic_made_again_under_its_name_is_not_the_topic_that_was_read():
    again = {"a": topic((0, 500), (0, 3), id="id-new")}
    losses, after = lost({A0: 60, TopicPartition("a", 7): 1}, again)
    assert [(loss.at.partition, loss.reason, loss.offsets) for loss in losses] == [
        (0, LossReason.RECREATED, None),
        (7, LossReason.RECREATED, None),
    ]
    assert after == KafkaPosition(ids={"a": "id-new"}, next={A0: 0, A1: 0})
    assert reconcile(after, again, subscribed=everything).lost == ()
    assert lost({A0: 60}, again, stop={A0: 90})[1].is_done, "its stop was an offset of the other one"


def test_what_is_gone_is_forgotten_and_new_when_it_comes_back():
    losses, after = lost({A0: 60, A1: 2, B0: 7}, {"a": topic((10, 100))})
    assert [(loss.at, loss.reason) for loss in losses] == [(A1, LossReason.PARTITION_GONE), (B0, LossReason.TOPIC_GONE)]
    assert after == KafkaPosition(ids={"a": "id-a"}, next={A0: 60})
    assert reconcile(after, TWO, subscribed=everything).position.next == {A0: 60, A1: 0, B0: 5}


def test_a_loss_is_refused_with_its_ranges_and_the_ways_out():
    losses = lost({A0: 4, B0: 7}, {"a": topic((10, 100))})[0]
    error = lost_offsets_error(losses)
    assert isinstance(error, SourceChanged)
    text = str(error)
    assert "a-0: expired, 6 offsets from 4 on; b-0: topic gone, from offset 7 on" in text
    for remedy in ("retention.ms", "may describe it", "on_lost_offsets='continue'", "--fresh"):
        assert remedy in text
    many = [LostOffsets(at=TopicPartition("a", n), reason=LossReason.EXPIRED, start=0, end=1) for n in range(7)]
    assert "and 2 more" in str(lost_offsets_error(many))


def test_that_something_is_gone_is_believed_only_after_a_while_other_losses_at_once():
    gone = LostOffsets(at=A0, reason=LossReason.TOPIC_GONE, start=1)
    expired = LostOffsets(at=B0, reason=LossReason.EXPIRED, start=1, end=2)
    doubt = AbsenceFilter(gone_after=10)
    assert doubt.certain([gone, expired], MonotonicTime(0)) == (expired,)
    assert doubt.certain([gone], MonotonicTime(9)) == ()
    assert doubt.certain([], MonotonicTime(10)) == ()
    assert doubt.certain([gone], MonotonicTime(11)) == (), "it was there in between"
    assert doubt.certain([gone], MonotonicTime(21)) == (gone,)
