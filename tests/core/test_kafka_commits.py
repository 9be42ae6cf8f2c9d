"""What is committed to a consumer group, and when: of complete checkpoints, one at a time, for people only."""

from __future__ import annotations

import pytest

from penstock.clock import MonotonicTime
from penstock.connectors.kafka.commits import RENEW_AFTER, OffsetCommitPolicy
from penstock.connectors.kafka.config import CommitChoice, CommitMode, choose_commit_mode
from penstock.connectors.kafka.offsets import AvailableOffsets, KafkaPosition, Topic, TopicPartition, resolve_start
from penstock.connectors.kafka.planning import reconcile

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
SECOND = 1_000_000


def at(first: int, second: int = 0) -> KafkaPosition:
    return KafkaPosition(ids={"a": "x"}, next={A0: first, A1: second})


def commits(mode: CommitMode = CommitMode.ON_CHECKPOINTS) -> OffsetCommitPolicy:
    return OffsetCommitPolicy(mode, interval=5 * SECOND)


@pytest.mark.mission("F1")
def test_the_mode_follows_from_what_is_asked_for_and_whether_there_is_a_group():
    assert choose_commit_mode(None, "shop") == CommitChoice(CommitMode.ON_CHECKPOINTS)
    assert choose_commit_mode(CommitMode.PERIODIC, "shop") == CommitChoice(CommitMode.PERIODIC)
    assert choose_commit_mode(CommitMode.DISABLED, "shop") == CommitChoice(CommitMode.DISABLED)
    assert (
        choose_commit_mode(None, None)
        == choose_commit_mode(CommitMode.DISABLED, None)
        == CommitChoice(CommitMode.DISABLED)
    )
    asked = choose_commit_mode(CommitMode.ON_CHECKPOINTS, None)
    assert asked.mode is CommitMode.DISABLED
    assert "name the group" in (asked.warning or "")


@pytest.mark.mission("F10")
def test_157_the_offsets_of_the_checkpoint_that_completed_last_are_committed_all_partitions_at_once():
    follow = commits()
    assert follow.next_commit(MonotonicTime(0)) is None
    follow.checkpoint_completed(at(3))
    follow.checkpoint_completed(at(7, 2))
    assert follow.next_commit(MonotonicTime(0)) == {A0: 7, A1: 2}
    assert follow.committed == {}
    follow.finished(MonotonicTime(1), ok=True)
    assert (follow.committed, follow.succeeded, follow.failed) == ({A0: 7, A1: 2}, 1, 0)


@pytest.mark.mission("F10")
def test_158_empty_offsets_and_those_that_did_not_change_commit_nothing():
    follow = commits()
    follow.checkpoint_completed(KafkaPosition())
    assert follow.next_commit(MonotonicTime(0)) is None
    follow.checkpoint_completed(at(7))
    follow.next_commit(MonotonicTime(0))
    follow.finished(MonotonicTime(1), ok=True)
    follow.checkpoint_completed(at(7))
    assert follow.next_commit(MonotonicTime(2)) is None


def test_offsets_that_do_not_change_are_renewed_before_the_broker_forgets_them():
    follow = commits()
    follow.checkpoint_completed(at(7))
    follow.next_commit(MonotonicTime(0))
    follow.finished(MonotonicTime(1), ok=True)
    follow.checkpoint_completed(at(7))
    assert follow.next_commit(MonotonicTime(RENEW_AFTER + 1)) == at(7).next


def test_one_commit_is_under_way_at_a_time_and_the_next_has_the_newest_offsets():
    follow = commits()
    follow.checkpoint_completed(at(1))
    follow.next_commit(MonotonicTime(0))
    follow.checkpoint_completed(at(2))
    follow.checkpoint_completed(at(3))
    assert follow.next_commit(MonotonicTime(1)) is None
    follow.finished(MonotonicTime(2), ok=True)
    assert follow.next_commit(MonotonicTime(2)) == at(3).next


@pytest.mark.mission("F11")
def test_159_a_commit_that_fails_is_counted_and_made_good_by_the_next_and_fails_nothing_else():
    follow = commits()
    follow.checkpoint_completed(at(7))
    follow.next_commit(MonotonicTime(0))
    follow.finished(MonotonicTime(1), ok=False)
    assert (follow.committed, follow.succeeded, follow.failed) == ({}, 0, 1)
    assert follow.next_commit(MonotonicTime(1)) is None, "not at once: the next checkpoint has newer ones"
    follow.checkpoint_completed(at(7))
    assert follow.next_commit(MonotonicTime(2)) == at(7).next, "unchanged, but the group does not have them"
    follow.finished(MonotonicTime(3), ok=True)
    follow.finished(MonotonicTime(3), ok=False)
    assert (follow.succeeded, follow.failed) == (1, 1), "a second answer is none"


@pytest.mark.mission("F8")
def test_a_completed_checkpoint_is_ignored_in_other_modes():
    for mode in (CommitMode.PERIODIC, CommitMode.DISABLED):
        follow = commits(mode)
        follow.checkpoint_completed(at(7))
        assert follow.next_commit(MonotonicTime(0)) is None


def test_periodic_commits_what_is_read_at_its_interval():
    follow = commits(CommitMode.PERIODIC)
    follow.read_up_to(at(1), MonotonicTime(0))
    assert follow.next_commit(MonotonicTime(0)) == at(1).next
    follow.finished(MonotonicTime(1), ok=True)
    follow.read_up_to(at(2), MonotonicTime(5 * SECOND - 1))
    assert follow.next_commit(MonotonicTime(5 * SECOND - 1)) is None
    follow.read_up_to(at(3), MonotonicTime(5 * SECOND))
    assert follow.next_commit(MonotonicTime(5 * SECOND)) == at(3).next
    quiet = commits()
    quiet.read_up_to(at(1), MonotonicTime(0))
    assert quiet.next_commit(MonotonicTime(0)) is None


@pytest.mark.mission("F13", "F2")
def test_what_a_group_has_committed_counts_for_nothing_once_there_is_a_position():
    """A group that was deleted, or reset by somebody, changes nothing that is read."""
    topics = {"a": Topic("x", {0: AvailableOffsets(0, 100), 1: AvailableOffsets(0, 100)})}
    fresh = resolve_start("committed", topics, resolved={A0: 7, A1: 8})
    for told in ({}, {A0: 90, A1: 90}):
        assert reconcile(fresh, topics, subscribed=lambda name: True).position.next == {A0: 7, A1: 8}, told
