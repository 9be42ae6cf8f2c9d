"""Output between its barrier and its reader: what is staged, logged, published, once. Numbers are Flink's scenarios."""

import itertools

import pytest

from core.attempt_kit import Attempt
from core.attempt_parts import TARGET
from core.checkpoint_values import SOURCE, output
from core.coordinator_kit import RETRY, Job, answer, commit
from penstock import failpoints
from penstock.checkpoint.events import NotifyCompleted, RequestOutcome
from penstock.checkpoint.gc import needed_files
from penstock.checkpoint.recovery import decide_recovery
from penstock.errors import ConnectorError, StorageFailed
from penstock.facts import CheckpointFailed, Published
from penstock.handles import CommitOutcome
from penstock.testing.filesystem import MemoryFileSystem


def down():
    return StorageFailed("target is away")


def checkpoints(filesystem):
    return sorted(path for path in filesystem.files if path.startswith(f"{TARGET}/part-"))


def with_open_output(filesystem):
    """An attempt that dies after its checkpoint is in the log and before its output is published."""
    attempt = Attempt(filesystem, total=2).settle()
    attempt.workers.held.add("out-commit")
    attempt.ask("r")
    assert (attempt.answers, attempt.published) == ([("r", RequestOutcome.DONE, 1)], [])
    return attempt


# ------------------------------------------------------------------------------------------------------------ 105, 164


def test_105_a_file_that_a_failed_checkpoint_shared_with_the_one_before_is_still_read_after_recovery():
    """Flink's second checkpoint fails after its upload; here the staged file of the first is open when it does."""
    filesystem = MemoryFileSystem()
    first = with_open_output(filesystem)
    [shared] = first.staged
    first.reader.total = 3
    first.clock.at = 10**13
    first.settle()
    filesystem.fail("create", down(), path="log/*")
    first.ask("r2")
    assert first.seen(CheckpointFailed)[0].checkpoint == 2
    [_, orphan] = first.staged
    second = Attempt(filesystem, total=3).settle()
    assert second.recovery.restored == 1
    assert second.published == [1, 2], "of the first, from the very file"
    assert second.ask("r3").published == [1, 2, 3]
    assert shared not in filesystem.files
    assert orphan not in filesystem.files, "condemned by name, in an entry of the next owner"


def test_105_what_an_open_output_needs_is_needed_though_a_later_checkpoint_failed():
    filesystem = MemoryFileSystem()
    first = with_open_output(filesystem)
    assert set(first.staged) <= needed_files(first.owned.history)
    filesystem.fail("create", down(), path="log/*")
    first.ask("r2")
    assert set(first.staged) <= needed_files(first.owned.history)


def test_164_publishing_an_older_epoch_after_a_newer_is_no_error_and_publishes_nothing_twice():
    filesystem = MemoryFileSystem()
    first = with_open_output(filesystem)
    first.reader.total = 3
    first.clock.at = 10**13
    first.settle().ask("r2")
    older, newer = first.owned.history.open_committables
    assert first.committer.commit(newer) is CommitOutcome.DONE
    assert first.committer.commit(older) is CommitOutcome.DONE
    before = dict(filesystem.files)
    for item in (older, newer, older):
        assert first.committer.commit(item) is CommitOutcome.ALREADY_DONE
    assert filesystem.files == before
    assert first.published == [1, 2, 3]


# ----------------------------------------------------------------------------------------------------------------- 165


def test_165_a_crash_before_publishing_the_logged_is_published_and_the_rest_redone_and_nothing_is_left():
    filesystem = MemoryFileSystem()
    first = with_open_output(filesystem)
    first.reader.total = 4
    first.clock.at = 10**13
    first.settle()
    first.workers.held.add("log")
    first.ask("r2")
    assert len(first.staged) == 2, "one in the log, one not"
    filesystem.crash()

    second = Attempt(filesystem, total=4)
    assert second.published == [1, 2], "before any source ran"
    assert second.seen(Published)[0].checkpoint == 1
    second.settle().ask("r")
    assert second.published == [1, 2, 3, 4]
    assert second.staged == []


@pytest.mark.parametrize("place", ["sink.commit.before", "sink.published", "recovery.committed"])
def test_165_a_recovery_that_dies_is_done_again_and_nobody_sees_a_row_twice(place):
    filesystem = MemoryFileSystem()
    with_open_output(filesystem)
    with failpoints.armed(place, "raise"), pytest.raises(failpoints.FailpointCrash):
        Attempt(filesystem)
    third = Attempt(filesystem)
    assert third.published == [1, 2]
    assert checkpoints(filesystem) == [f"{TARGET}/part-1"]


# ----------------------------------------------------------------------------------------------------------------- 166


def test_166_output_that_cannot_be_published_is_tried_for_ever_and_never_given_up_by_itself():
    filesystem = MemoryFileSystem()
    first = with_open_output(filesystem)
    filesystem.fail("move", down(), times=30)
    first.workers.held.clear()
    first.settle()
    tried = []
    while not first.published and len(tried) < 50:
        assert first.error is None
        tried.append(first.clock.at)
        first.clock.at = first.supervisor.next_turn
        first.settle()
    waits = [(later - earlier) // 1_000_000 for earlier, later in itertools.pairwise(tried)]
    assert waits[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert len(tried) >= 30
    assert first.published == [1, 2]


def test_166_whoever_wants_to_lose_it_rewinds_and_discards_it_by_name_and_a_late_commit_finds_it_done():
    """Flink may ignore a failing commit after a time; here an operator says so, in the log, and it is made sure of."""
    filesystem = MemoryFileSystem()
    first = with_open_output(filesystem)
    [lost] = first.owned.history.open_committables
    second = Attempt(filesystem, total=2, rewind={"rewind_to": 0, "discard_unpublished": True})
    assert second.recovery.void == (lost,)
    assert first.committer.commit(lost) is CommitOutcome.ALREADY_DONE, "a zombie comes too late"
    assert second.published == []
    assert second.settle().ask("r").published == [1, 2], "redone under another identity"
    assert checkpoints(filesystem) == [f"{TARGET}/part-2"]


# ----------------------------------------------------------------------------------------------------------------- 167


def test_167_after_the_final_barrier_nothing_is_staged_and_after_the_end_a_start_finds_nothing_to_publish():
    filesystem = MemoryFileSystem()
    first = Attempt(filesystem, total=2).settle()
    first.stop("s")
    first.reader.total = 9
    assert first.reader.read == 2
    assert (first.published, first.staged) == ([1, 2], [])
    before = checkpoints(filesystem)
    again = Attempt(filesystem, total=2)
    assert (again.recovery.commit, again.recovery.restored) == ((), 1)
    again.settle().ask("r")
    assert checkpoints(filesystem) == before, "no rows, no file"
    assert again.seen(Published) == []


def test_167_a_source_that_ended_is_restored_as_ended_and_the_job_ends_again_without_output():
    filesystem = MemoryFileSystem()
    first = Attempt(filesystem, total=2, ends=True).settle()
    assert first.supervisor.ended.published
    again = Attempt(filesystem, total=2, ends=True).settle()
    assert again.supervisor.ended.published
    assert (again.published, again.writer.rows, again.staged) == ([1, 2], [], [])


# ----------------------------------------------------------------------------------------------------------------- 168


def test_168_all_outputs_of_a_checkpoint_are_published_and_one_that_waits_holds_back_only_its_own_sink():
    job = Job()
    job.request()
    items = (output(0, name="a"), output(0, name="b"), output(0, "two"))
    assert job.complete(0, *items)[2:] == [commit(items[0]), commit(items[2])]
    assert job.returned(0, uid="two") == []
    [wake] = job.returned(0, RETRY)
    job.at = 1
    assert job.fire(wake.timer) == [commit(items[0], 2)]
    assert job.returned(0) == [commit(items[1])]
    assert job.returned(0) == []
    job.request()
    assert job.ack(1) == [job.manifest(1, parent=0, fulfils=("r",))], "all are confirmed"


def test_168_output_that_is_handed_over_late_is_published_with_the_next_checkpoint_at_once():
    job = Job(tolerable_failures=1)
    job.request()
    job.expire(0)
    job.ack_sink(0, output(0))
    job.request("r1")
    job.ack(1)
    assert job.written(1) == [
        NotifyCompleted(checkpoint=1),
        answer("r1", RequestOutcome.DONE, 1, "in the log"),
        commit(output(0)),
    ]


def test_168_a_start_with_another_graph_publishes_what_is_open_of_a_sink_that_it_no_longer_has():
    """Flink restores with another parallelism; a committable of ours needs nothing of the sink that made it."""
    filesystem = MemoryFileSystem()
    first = with_open_output(filesystem)
    decided = decide_recovery(first.owned.history, (SOURCE,), at=1)
    assert decided.commit == first.owned.history.open_committables
    assert Attempt(filesystem).published == [1, 2]


def test_168_a_sink_that_failed_to_write_leaves_nothing_and_the_next_attempt_writes_it_all():
    filesystem = MemoryFileSystem()
    first = Attempt(filesystem, total=3)

    def refuse(batch):
        msg = "no space at the other end"
        raise ConnectorError(msg)

    first.writer.write = refuse
    first.settle()
    assert str(first.error) == "step 'out': no space at the other end"
    assert (first.published, first.staged) == ([], [])
    assert Attempt(filesystem, total=3).settle().ask("r").published == [1, 2, 3]
