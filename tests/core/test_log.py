"""The log and its owner, rule by rule (L1 to L9), on a file system that loses answers and lets writes land late."""

from dataclasses import replace

import pytest

from core.checkpoint_values import CLAIM, entries, history, log_on, manifest, pin, rewind
from penstock import failpoints
from penstock.checkpoint import paths
from penstock.checkpoint.entry_codec import decode, encode
from penstock.checkpoint.history import History
from penstock.errors import CheckpointUnreadable, GenerationFenced, LogGap, StateDirectoryRefused, StorageFailed
from penstock.testing.filesystem import MemoryFileSystem, Operation


@pytest.fixture
def filesystem():
    return MemoryFileSystem()


def claim(filesystem, *, ids="a", pid=1, **options):
    log, _ = log_on(filesystem, ids=ids)
    return log.claim(replace(CLAIM, pid=pid), **options)


def stored(filesystem, number):
    return decode(filesystem.files[paths.entry(number)], number)


def put(filesystem, *bodies):
    """A log written by others."""
    for entry in entries(*bodies):
        filesystem.create(paths.entry(entry.number), encode(entry))


# ------------------------------------------------------------------------------------------------------------ reading


def test_an_absent_log_is_empty(filesystem):
    log, _ = log_on(filesystem)

    assert log.read() == History()


def test_a_log_reads_as_its_entries(filesystem):
    put(filesystem, CLAIM, manifest(1), pin("p", 1))
    log, _ = log_on(filesystem)

    assert log.read() == history(CLAIM, manifest(1), pin("p", 1))


def test_other_files_in_the_folder_are_ignored(filesystem):
    put(filesystem, CLAIM)
    filesystem.create("log/notes.txt", b"x")
    filesystem.create("log/7.json", b"x")
    log, _ = log_on(filesystem)

    assert log.read().tail == 0


@pytest.mark.parametrize("missing", [0, 1])
def test_L10_a_gap_above_the_floor_stops_and_never_ends_the_log(filesystem, missing):
    put(filesystem, CLAIM, manifest(1), CLAIM)
    filesystem.remove(paths.entry(missing))
    log, _ = log_on(filesystem)

    with pytest.raises(LogGap, match=rf"log/0+{missing}\.json is missing although the log goes on to 2"):
        log.read()


def test_L4_what_lies_below_the_floor_of_the_newest_manifest_is_not_read(filesystem):
    put(filesystem, CLAIM, manifest(1), manifest(2, 1), manifest(3, 2, floor=2), CLAIM)
    filesystem.remove(paths.entry(0))
    filesystem.corrupt(paths.entry(1), b"garbage")
    log, _ = log_on(filesystem)

    found = log.read()

    assert [entry.number for entry in found.entries] == [2, 3, 4]
    assert found.below_floor == (1,)
    assert found.log_id == "log-1"


class Moving(MemoryFileSystem):
    """Somebody else acts right after a listing, or right before or after a creation."""

    def __init__(self, *acts, before_create=None, after_create=None, disk=None):
        super().__init__()
        self.acts = list(acts)
        self.before_create, self.after_create = before_create, after_create
        if disk is not None:
            self._files, self._durable = disk._files, disk._durable

    def list(self, prefix):
        found = super().list(prefix)
        if self.acts:
            self.acts.pop(0)(self)
        return found

    def create(self, path, data):
        before, self.before_create = self.before_create, None
        if before:
            before(self)
        answer = super().create(path, data)
        after, self.after_create = self.after_create, None
        if after:
            after(self)
        return answer


def test_a_log_that_is_trimmed_while_it_is_read_is_read_again():
    story = entries(CLAIM, manifest(1), manifest(2, 1), manifest(3, 2, floor=2))

    def trim(filesystem):
        filesystem.create(paths.entry(3), encode(story[3]))
        filesystem.delete(paths.entry(0))

    filesystem = Moving(trim)
    for entry in story[:3]:
        filesystem.create(paths.entry(entry.number), encode(entry))
    log, _ = log_on(filesystem)

    assert [entry.number for entry in log.read().entries] == [2, 3]


@pytest.mark.mission("D2", "D3")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_unreadable_entry_is_named_with_its_reason_and_never_skipped(filesystem, number):
    put(filesystem, CLAIM, manifest(1), manifest(2, 1))
    path = paths.entry(number)
    filesystem.corrupt(path, filesystem.files[path].replace(b"orders", b"border"))
    log, _ = log_on(filesystem)

    with pytest.raises(CheckpointUnreadable, match=rf"{path}: The content does not match its checksum.*--fresh"):
        log.read()
    with pytest.raises(CheckpointUnreadable):
        claim(filesystem)
    assert [found.number for found in log.read(past_unreadable=True).unreadable] == [number]


@pytest.mark.mission("D3")
def test_R8_a_rewind_goes_past_an_unreadable_entry_and_names_it_as_lost(filesystem):
    put(filesystem, CLAIM, manifest(1), manifest(2, 1))
    filesystem.corrupt(paths.entry(2), b"rotten")

    tool = claim(filesystem, past_unreadable=True)
    tool.append(rewind(1, None, lost=(2,)))

    log, _ = log_on(filesystem)
    found = log.read()
    assert found.restore_point.checkpoint == 1
    assert found.next_checkpoint > 1_000_000
    assert claim(filesystem).history.restore_point.checkpoint == 1


def test_R8_a_claim_alone_does_not_go_past_an_unreadable_entry(filesystem):
    put(filesystem, CLAIM, manifest(1))
    filesystem.corrupt(paths.entry(1), b"rotten")
    claim(filesystem, past_unreadable=True)

    with pytest.raises(CheckpointUnreadable, match=paths.entry(1)):
        claim(filesystem)


def test_R8_a_lost_manifest_may_have_held_the_floor(filesystem):
    put(filesystem, CLAIM, manifest(1), manifest(2, 1), manifest(3, 2, floor=2), CLAIM)
    for number in (0, 1):
        filesystem.remove(paths.entry(number))
    filesystem.corrupt(paths.entry(3), b"rotten")
    log, _ = log_on(filesystem)

    assert [entry.number for entry in log.read(past_unreadable=True).entries] == [2, 4]


def test_a_log_whose_only_entry_is_unreadable_cannot_be_claimed(filesystem):
    filesystem.create(paths.entry(0), b"rotten")

    with pytest.raises(CheckpointUnreadable, match="No entry is left that says which log this was"):
        claim(filesystem, past_unreadable=True)


def test_an_entry_that_was_exchanged_for_another_is_noticed_by_the_next(filesystem):
    put(filesystem, CLAIM, manifest(1), CLAIM)
    [_, other] = entries(CLAIM, manifest(1, fulfils=("other",)))
    filesystem.corrupt(paths.entry(1), encode(other))
    log, _ = log_on(filesystem)

    with pytest.raises(CheckpointUnreadable, match=r"0001\.json is not the file whose checksum entry 2 holds"):
        log.read()


def rewritten(filesystem, number, **changes):
    """Replace the newest entry by one that is sound in itself."""
    entry = replace(stored(filesystem, number), **changes)
    filesystem.corrupt(paths.entry(number), encode(entry))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_id": "log-2"}, "is of log log-2, those before it are of log-1"),
        ({"generation": 0}, "is of generation 0, its newest claim is 1"),
        ({"token": "mine"}, "is of generation 1, its newest claim is 1"),
        ({"body": manifest(3)}, "holds checkpoint 3 after checkpoint 3"),
    ],
)
def test_S3_entries_that_do_not_hold_together_are_refused(filesystem, changes, message):
    put(filesystem, CLAIM, CLAIM, manifest(3, 1), pin("p", 3))
    rewritten(filesystem, 3, **changes)
    log, _ = log_on(filesystem)

    with pytest.raises(CheckpointUnreadable, match=rf"0003\.json {message}"):
        log.read()


def test_another_jobs_log_is_refused(filesystem):
    put(filesystem, CLAIM)
    log, _ = log_on(filesystem, job="shop")

    with pytest.raises(StateDirectoryRefused, match="holds the log of job 'orders', not of 'shop'"):
        log.claim(CLAIM)


# ----------------------------------------------------------------------------------------------------------- claiming


def test_S4_the_first_claim_draws_the_logs_identity(filesystem):
    owner = claim(filesystem)

    assert (owner.generation, owner.log_id, owner.token) == (0, "a-0", "a-1")
    assert claim(filesystem, ids="b").log_id == "a-0"


def test_L1_a_claim_holds_a_random_token_and_its_number_is_the_generation(filesystem):
    claim(filesystem)
    owner = claim(filesystem, ids="b")

    entry = stored(filesystem, 1)
    assert (entry.generation, entry.token, owner.generation, owner.token) == (1, "b-0", 1, "b-0")


def test_L1_two_equal_claims_cannot_both_succeed(filesystem):
    put(filesystem, CLAIM, manifest(1))
    first, _ = log_on(filesystem, ids="a")
    owners = []
    second, _ = log_on(filesystem, lambda: owners.append(first.claim(CLAIM)), ids="b")
    filesystem.delay("create", times=1)

    with pytest.raises(GenerationFenced):
        second.claim(CLAIM)
    assert owners[0].append(pin("p", 1)) == 3


def test_L2_what_was_read_before_the_claim_is_read_again_under_it():
    story = entries(CLAIM, manifest(1), manifest(2, 1))

    def complete(filesystem):
        filesystem.create(paths.entry(2), encode(story[2]))

    filesystem = Moving(complete)
    put(filesystem, *(entry.body for entry in story[:2]))
    owner = claim(filesystem)

    assert owner.generation == 3
    assert owner.history.restore_point.checkpoint == 2


def test_L2_the_read_under_the_claim_is_repeated_until_it_is_answered(filesystem):
    """Otherwise the next attempt of the process takes its own claim for that of another, and ends fenced."""
    first = claim(filesystem, ids="a")
    log, pause = log_on(filesystem, ids="b")
    filesystem.fail("read", StorageFailed("no answer"), path=paths.entry(1), times=2)
    second = log.claim(CLAIM, after=first.generation)

    assert (second.generation, pause.seconds) == (1, [0.1, 0.2])
    assert claim(filesystem, ids="c", after=second.generation).generation == 2


def test_L2_a_claim_that_is_overtaken_while_that_read_is_repeated_refuses(filesystem):
    first = claim(filesystem, ids="a")
    log, _ = log_on(filesystem, lambda: claim(filesystem, ids="c", pid=2), ids="b")
    filesystem.fail("read", StorageFailed("no answer"), path=paths.entry(1))

    with pytest.raises(GenerationFenced, match="process 2"):
        log.claim(CLAIM, after=first.generation, take_over=True)


def test_L2_an_expected_tail_that_moved_refuses(filesystem):
    put(filesystem, CLAIM, manifest(1))

    with pytest.raises(StateDirectoryRefused, match=r"Entry 0 was expected to be the newest, and 1 is. Plan again"):
        claim(filesystem, expect_tail=0)
    assert claim(filesystem, expect_tail=1).generation == 2


def test_L2_an_expected_log_with_other_bytes_at_its_end_refuses(filesystem):
    put(filesystem, CLAIM, manifest(1))
    seen = log_on(filesystem)[0].read().mark

    with pytest.raises(StateDirectoryRefused, match=r"entry 1 \(000000000000\) was expected, .* entry 1 .* Plan again"):
        claim(filesystem, expect=replace(seen, tail_hash="0" * 64))
    assert claim(filesystem, expect=seen).generation == 2


def test_L3_an_unknown_claim_that_landed_is_ours(filesystem):
    filesystem.lose_answer("create")
    log, pause = log_on(filesystem)

    assert log.claim(CLAIM).generation == 0
    assert pause.seconds == [0.1]


def test_L4_a_claim_on_a_trimmed_number_is_a_stray(filesystem):
    """Hole 3: a slow starter reads, the owner trims and goes on, and the slow claim finds its number free."""
    put(filesystem, CLAIM, manifest(1))

    def overtake(_):
        owner = claim(filesystem, ids="b", pid=2)
        owner.append(manifest(2, 1))
        owner.append(manifest(3, 2, floor=4))
        owner.trim()

    slow = Moving(disk=filesystem, before_create=overtake)
    with pytest.raises(GenerationFenced, match=r"A start of the same job was faster. Entry 2 of its log was lost"):
        claim(slow, ids="a")
    assert paths.entry(2) in filesystem.files, "the stray"
    assert log_on(filesystem)[0].read().generation == 2


def test_L9_a_start_that_loses_its_number_to_another_claim_refuses(filesystem):
    slow = Moving(lambda fs: claim(fs, ids="b", pid=2))

    with pytest.raises(GenerationFenced, match="process 2 on here, started 2023-11-14 22:13:20 UTC"):
        claim(slow)


def test_L9_taking_over_claims_again_after_the_loser(filesystem):
    slow = Moving(lambda fs: claim(fs, ids="b", pid=2))

    assert claim(slow, take_over=True).generation == 1


def test_L9_a_claim_that_is_overtaken_at_once_refuses(filesystem):
    slow = Moving()
    put(slow, CLAIM)
    slow.acts = [lambda _: None, lambda fs: claim(fs, ids="b", pid=2)]

    with pytest.raises(GenerationFenced, match="Entry 1 of its log was lost to process 2"):
        claim(slow)


def test_L9_losing_a_number_to_the_owners_checkpoint_is_no_contest():
    story = entries(CLAIM, manifest(1))
    filesystem = Moving(lambda fs: fs.create(paths.entry(1), encode(story[1])))
    put(filesystem, CLAIM)

    assert claim(filesystem).generation == 2


@pytest.mark.parametrize("path", ["state/totals/0/a", "staged/out/0/a", "wal/socket/0/0"])
def test_L7_a_directory_with_state_but_without_log_is_refused(filesystem, path):
    filesystem.create(path, b"x")

    with pytest.raises(StateDirectoryRefused, match=rf"holds {path} but no log"):
        claim(filesystem)
    assert paths.entry(0) not in filesystem.files


def test_a_claim_that_surely_failed_leaves_nothing(filesystem):
    filesystem.fail("create", StorageFailed("disk full"))

    with pytest.raises(StorageFailed, match="disk full"):
        claim(filesystem)
    assert claim(filesystem).generation == 0


def test_a_read_only_directory_is_refused(filesystem):
    filesystem.fail("create", StateDirectoryRefused("read-only"))

    with pytest.raises(StateDirectoryRefused, match="read-only"):
        claim(filesystem)


# ---------------------------------------------------------------------------------------------------------- appending


def test_entries_follow_each_other_and_chain_by_hash(filesystem):
    owner = claim(filesystem)

    assert [owner.append(manifest(1)), owner.append(pin("p", 1))] == [1, 2]
    log, _ = log_on(filesystem)
    assert log.read() == owner.history
    assert [entry.token for entry in owner.history.entries] == ["a-1"] * 3


def test_L3_an_unknown_write_is_repeated_with_the_same_bytes_until_the_number_is_taken(filesystem):
    log, pause = log_on(filesystem)
    owner = log.claim(CLAIM)
    filesystem.delay("create", times=3)
    filesystem.operations.clear()

    assert owner.append(manifest(1)) == 1
    assert [op for op in filesystem.operations if op.name == "create"] == [Operation("create", paths.entry(1))] * 4
    assert pause.seconds == [0.1, 0.2, 0.4]
    before = filesystem.files
    filesystem.land()
    assert filesystem.files == before


def test_L3_a_write_that_lands_late_is_ours_when_repeated(filesystem):
    log, _ = log_on(filesystem, filesystem.land)
    owner = log.claim(CLAIM)
    filesystem.delay("create")

    assert owner.append(manifest(1)) == 1
    assert list(owner.history.manifests) == [1]


def test_L3_not_found_proves_nothing_a_failure_after_an_unknown_answer_is_repeated(filesystem):
    """The first try may still land, so a later sure failure of the same bytes does not free the number."""
    log, pause = log_on(filesystem)
    owner = log.claim(CLAIM)
    filesystem.delay("create")
    filesystem.fail("create", StorageFailed("full"), times=2)
    filesystem.fail("create", StateDirectoryRefused("read-only"))

    assert owner.append(manifest(1)) == 1
    assert len(pause.seconds) == 4


def test_L3_whoever_cannot_wait_gives_up_and_the_successor_takes_the_number(filesystem):
    class GaveUp(Exception):
        pass

    def give_up():
        raise GaveUp

    log, _ = log_on(filesystem, give_up)
    owner = log.claim(CLAIM)
    filesystem.delay("create")
    with pytest.raises(GaveUp):
        owner.append(manifest(1))

    successor = claim(filesystem, ids="b")
    filesystem.land()

    assert successor.generation == 1
    assert log_on(filesystem)[0].read().manifests == {}


def test_a_write_that_surely_failed_leaves_its_number_to_the_next(filesystem):
    owner = claim(filesystem)
    filesystem.fail("create", StorageFailed("full"))
    with pytest.raises(StorageFailed, match="full"):
        owner.append(manifest(1))

    assert owner.append(manifest(2)) == 1
    assert list(owner.history.manifests) == [2]


@pytest.mark.mission("S3")
def test_L5_anything_but_ones_own_bytes_is_a_fence_of_whatever_kind(filesystem):
    owner = claim(filesystem)
    [_, foreign] = entries(CLAIM, pin("p", 1))
    filesystem.create(paths.entry(1), encode(foreign))

    with pytest.raises(GenerationFenced):
        owner.append(manifest(1))


@pytest.mark.mission("S3")
def test_L5_a_fence_says_who_and_holds_for_ever(filesystem):
    owner = claim(filesystem)
    claim(filesystem, ids="b", pid=42)

    with pytest.raises(
        GenerationFenced, match=r"Entry 1 .* process 42 on here, started 2023-11-14 22:13:20 UTC as generation 1"
    ):
        owner.append(manifest(1))
    operations = len(filesystem.operations)
    for act in (lambda: owner.append(manifest(2)), owner.check, owner.trim):
        with pytest.raises(GenerationFenced, match="no longer owns the job"):
            act()
    assert len(filesystem.operations) == operations, "whoever is fenced touches nothing"


def test_L4_an_entry_with_a_higher_number_above_it_does_not_count_for_its_writer(filesystem):
    owner = claim(filesystem)
    owner._writer._filesystem = Moving(disk=filesystem, after_create=lambda fs: claim(fs, ids="b"))

    with pytest.raises(GenerationFenced):
        owner.append(manifest(1))
    assert list(log_on(filesystem)[0].read().manifests) == [1], "for everybody else it counts"


def test_L4_the_look_above_is_repeated_until_it_is_answered(filesystem):
    log, pause = log_on(filesystem)
    owner = log.claim(CLAIM)
    filesystem.fail("list", StorageFailed("no answer"), times=2)

    assert owner.append(manifest(1)) == 1
    assert pause.seconds == [0.1, 0.2]


def test_a_fence_that_cannot_be_explained_is_a_fence(filesystem):
    owner = claim(filesystem)
    filesystem.create(paths.entry(1), b"x")
    filesystem.fail("list", StorageFailed("no answer"))

    with pytest.raises(GenerationFenced, match=r"Entry 1 is not its own: no answer"):
        owner.append(manifest(1))


def test_an_owner_whose_directory_was_wiped_stops(filesystem):
    owner = claim(filesystem)
    filesystem.remove(paths.entry(0))

    with pytest.raises(StateDirectoryRefused, match="is gone"):
        owner.check()


def test_L6_every_restart_claims_again_and_the_older_run_is_fenced(filesystem):
    log, _ = log_on(filesystem)
    before, after = log.claim(CLAIM), log.claim(CLAIM)

    assert before.token != after.token
    with pytest.raises(GenerationFenced):
        before.check()
    after.check()


# ----------------------------------------------------------------------------------------------------------- trimming


def test_L4_trimming_follows_the_manifest_that_records_the_floor_and_goes_oldest_first(filesystem):
    owner = claim(filesystem)
    owner.append(manifest(1))
    assert owner.trim() == 0
    owner.append(manifest(2, 1, floor=1, condemned=(1,)))
    owner.append(manifest(3, 2, floor=2))
    assert owner.history.below_floor == (0, 1)
    filesystem.operations.clear()

    owner.append(manifest(4, 3, floor=3))
    assert owner.trim() == 2
    assert [op for op in filesystem.operations if op.name == "delete"] == [
        Operation("delete", paths.entry(0)),
        Operation("delete", paths.entry(1)),
    ]
    assert owner.history.below_floor == (2,), "the guard stays"
    assert log_on(filesystem)[0].read() == owner.history


def test_L4_a_stray_is_no_truth_when_the_manifest_with_the_floor_is_damaged(filesystem):
    """A paused process comes back after its successor trimmed the number at which it lost the log."""
    paused = claim(filesystem)
    paused.append(manifest(1))
    owner = claim(filesystem, ids="b", pid=2)
    assert owner.generation == 2
    owner.append(manifest(2, 1, floor=3))
    owner.trim()

    with pytest.raises(GenerationFenced):
        paused.append(manifest(5, 1))
    filesystem.remove(paths.entry(3))
    filesystem.create(paths.entry(3), b"damaged")

    found = log_on(filesystem)[0].read(past_unreadable=True)
    assert list(found.manifests) == [], "what the paused process wrote is nothing that happened"


def test_L4_a_stray_below_the_guard_does_not_fit_to_it(filesystem):
    paused = claim(filesystem)
    paused.append(manifest(1))
    owner = claim(filesystem, ids="b", pid=2)
    owner.append(manifest(2, 1))
    owner.append(manifest(3, 2, floor=4))
    owner.trim()

    with pytest.raises(GenerationFenced):
        paused.append(manifest(5, 1))
    assert paths.entry(2) in filesystem.files, "the stray"
    filesystem.remove(paths.entry(4))
    filesystem.create(paths.entry(4), b"damaged")

    found = log_on(filesystem)[0].read(past_unreadable=True)
    assert list(found.manifests) == [2]
    assert [each.number for each in found.unreadable] == [2, 4]


def test_L4_a_stray_below_the_floor_is_trimmed_with_the_rest(filesystem):
    owner = claim(filesystem)
    owner.append(manifest(1))
    owner.append(manifest(2, 1, floor=2))
    owner.trim()
    filesystem.create(paths.entry(0), b"stray")

    assert owner.trim() == 1


def test_an_interrupted_trim_leaves_a_log_that_reads(filesystem):
    owner = claim(filesystem)
    owner.append(manifest(1))
    owner.append(manifest(2, 1))
    owner.append(manifest(3, 2, floor=3))
    with failpoints.armed("log.trim.before", "raise", hit=2), pytest.raises(failpoints.FailpointCrash):
        owner.trim()

    found = log_on(filesystem)[0].read()
    assert found.below_floor == (1, 2)
    assert list(found.manifests) == [3]


@pytest.mark.parametrize(
    ("body", "before", "after"),
    [
        (manifest(1), "checkpoint.manifest.before", "checkpoint.manifest.written"),
        (pin("p", 1), "log.append.before", "log.append.written"),
    ],
    ids=["manifest", "pin"],
)
def test_a_crash_before_an_entry_leaves_nothing_and_after_it_everything(filesystem, body, before, after):
    owner = claim(filesystem)
    with failpoints.armed(before, "raise"), pytest.raises(failpoints.FailpointCrash):
        owner.append(body)
    assert log_on(filesystem)[0].read().tail == 0
    with failpoints.armed(after, "raise"), pytest.raises(failpoints.FailpointCrash):
        owner.append(body)
    assert log_on(filesystem)[0].read().tail == 1


def test_L8_a_crash_of_the_machine_keeps_every_entry_whole(filesystem):
    owner = claim(filesystem)
    owner.append(manifest(1))
    filesystem.crash()

    assert log_on(filesystem)[0].read() == owner.history


def test_L9_a_restart_within_a_process_goes_on_only_after_its_own_claim(filesystem):
    first = claim(filesystem, ids="a", pid=1)
    second = claim(filesystem, ids="b", pid=1, after=first.generation)
    assert second.generation == 1
    claim(filesystem, ids="c", pid=2)

    with pytest.raises(GenerationFenced, match=r"taken over while this process paused.*process 2"):
        claim(filesystem, ids="d", pid=1, after=second.generation, take_over=True)


def test_who_asks_whether_the_job_was_claimed_learns_that_the_log_is_gone(filesystem):
    owned = claim(filesystem)
    owned.refuse_if_claimed()
    filesystem.remove(paths.entry(0))

    with pytest.raises(StateDirectoryRefused, match="log of this job is gone"):
        owned.refuse_if_claimed()
