"""What a source does with a lease table: exports completed checkpoints, owns leases, begins where a KCL stands."""

from __future__ import annotations

import inspect
import random
from dataclasses import dataclass, replace

import pytest

from core.checkpointer_kit import Patience, TickClock
from core.dynamo_fake import DynamoFake, away, client_error, throttled
from penstock.connectors.kinesis.config import LeaseMode, LeaseOptions
from penstock.connectors.kinesis.lease_commits import LeaseCommits
from penstock.connectors.kinesis.lease_import import (
    decode_start,
    encode_start,
    import_start,
    match_listing,
)
from penstock.connectors.kinesis.lease_table import LeaseTable, TableAddress
from penstock.connectors.kinesis.positions import (
    After,
    AtHorizon,
    AtTime,
    Finished,
    LeaseCheckpoint,
    ShardPosition,
    lease_order,
    to_lease,
)
from penstock.errors import CheckpointUnreadable, GenerationFenced, LeaseLost, LeaseTableInvalid, PenstockError
from penstock.interfaces.source import SourceContext
from planted import of_kinesis  # noqa: F401
from planted.bug import BUGS, planted

MINUTE = "60 seconds"
FAILOVER = 10_000_000


@dataclass(frozen=True)
class Shard:
    """What a checkpoint says of a shard."""

    position: ShardPosition
    parents: tuple[str, ...] = ()
    first_hash: int = 0
    last_hash: int = 99


def at(seq, *parents, sub=0, first=0, last=99):
    position = After(seq, sub) if isinstance(seq, int) else seq
    return Shard(position, parents, first, last)


class World:
    """A lease table with a clock, and sources that use it."""

    def __init__(self):
        self.dynamo = DynamoFake("app")
        self.clock = TickClock()
        self.facts = []
        self.pauses = []
        self.open = []
        self.while_pausing = lambda: None

    def pause(self, seconds):
        self.pauses.append(seconds)
        if seconds >= 1:
            self.while_pausing()

    def source(self, mode, *, clock=None, uid="orders", attempt=None, **options):
        context = SourceContext(uid=uid, spark=None, report=self.facts.append)
        commits = LeaseCommits(
            LeaseOptions(mode=mode, address=TableAddress(table="app"), **options),
            replace(context, **attempt) if attempt else context,
            client=self.dynamo,
            clock=clock or self.clock,
            pause=self.pause,
        )
        self.open.append(commits)
        return commits

    def at(self, key):
        row = self.dynamo.row(key)
        return None if row is None else (row["checkpoint"]["S"], int(row["checkpointSubSequenceNumber"]["N"]))

    def rows(self):
        return {key: self.at(key)[0] for key in sorted(self.dynamo.tables["app"])}


@pytest.fixture
def world():
    made = World()
    yield made
    made.dynamo.faults.clear()
    for commits in made.open:
        commits.close()


# ---- export ----------------------------------------------------------------------------------------------------------


def test_the_newest_completed_checkpoint_is_exported_each_minute_if_it_has_advanced(world):
    source = world.source(LeaseMode.EXPORT)
    source.checkpoint_completed({"a": at(5)})
    source.checkpoint_completed({"a": at(6, sub=2)})
    assert world.rows() == {}
    world.clock.tick(MINUTE)
    assert world.at("a") == ("6", 2), "the newest wins"
    writes = len(world.dynamo.history)
    world.clock.tick(MINUTE)
    assert len(world.dynamo.history) == writes
    source.checkpoint_completed({"a": at(7)})
    source.close()
    assert world.at("a") == ("7", 0), "the last one at the end"
    assert "leaseOwner" not in world.dynamo.row("a")
    assert [(fact.shard, fact.checkpoint, fact.error) for fact in world.facts] == [("a", "6", None), ("a", "7", None)]


def test_every_shard_that_is_not_finished_gets_a_row_at_once(world):
    source = world.source(LeaseMode.EXPORT)
    completed = {"a": at(5), "b": at(AtHorizon()), "c": at(AtTime(17)), "d": at(Finished()), "e": at(8, "d")}
    source.checkpoint_completed(completed)
    world.clock.tick(MINUTE)
    assert world.rows() == {"a": "5", "b": "TRIM_HORIZON", "c": "AT_TIMESTAMP", "e": "8"}
    assert world.dynamo.row("c")["penstockTimestampMs"] == {"N": "17"}
    assert LeaseTable(world.dynamo, "app").read()["c"].position == AtTime(17)
    source.checkpoint_completed({**completed, "c": at(9)})
    world.clock.tick(MINUTE)
    assert "penstockTimestampMs" not in world.dynamo.row("c")


def test_at_a_reshard_children_have_rows_before_their_parent_ends_and_advance_after_it(world):
    source = world.source(LeaseMode.EXPORT)
    source.checkpoint_completed({"a": at(5)})
    world.clock.tick(MINUTE)
    world.dynamo.history.clear()
    source.checkpoint_completed({"a": at(Finished()), "b": at(9, "a", last=49), "c": at(AtHorizon(), "a", first=50)})
    world.clock.tick(MINUTE)
    assert [(key, row["checkpoint"]["S"]) for key, row in world.dynamo.history] == [
        ("b", "TRIM_HORIZON"),
        ("c", "TRIM_HORIZON"),
        ("a", "SHARD_END"),
        ("b", "9"),
    ]
    assert world.dynamo.row("a")["childShardIds"] == {"SS": ["b", "c"]}
    writes = len(world.dynamo.requests)
    world.clock.tick(MINUTE)
    assert len(world.dynamo.requests) == writes, "all is written"


def test_a_parent_does_not_end_while_a_child_is_not_known(world):
    source = world.source(LeaseMode.EXPORT)
    source.checkpoint_completed({"a": at(5)})
    world.clock.tick(MINUTE)
    source.checkpoint_completed({"a": at(Finished()), "b": at(9, "a", last=49)})
    world.clock.tick(MINUTE)
    assert world.rows() == {"a": "5", "b": "9"}
    source.checkpoint_completed({"b": at(9, "a", last=49), "c": at(AtHorizon(), "a", first=50)})
    world.clock.tick(MINUTE)
    assert world.rows()["a"] == "SHARD_END", "also after the source has forgotten it"


def test_a_merge_ends_both_parents(world):
    source = world.source(LeaseMode.EXPORT)
    source.checkpoint_completed({"a": at(5, last=49), "b": at(6, first=50)})
    world.clock.tick(MINUTE)
    source.checkpoint_completed(
        {"a": at(Finished(), last=49), "b": at(6, first=50), "c": at(AtHorizon(), "a", "b")},
    )
    world.clock.tick(MINUTE)
    assert world.rows() == {"a": "SHARD_END", "b": "6", "c": "TRIM_HORIZON"}
    source.checkpoint_completed({"a": at(Finished(), last=49), "b": at(Finished(), first=50), "c": at(8, "a", "b")})
    world.clock.tick(MINUTE)
    assert world.rows() == {"a": "SHARD_END", "b": "SHARD_END", "c": "8"}


@pytest.mark.parametrize(
    "faults",
    [
        [throttled()] * 40,
        [away()] * 40,
        [client_error("ResourceNotFoundException")] * 40,
        ["lost"] * 40,
        [OSError()] * 40,
    ],
    ids=["throttled", "away", "no table", "lost", "broken"],
)
def test_an_export_that_fails_is_a_warning_and_the_next_one_makes_up_for_it(world, faults, caplog):
    source = world.source(LeaseMode.EXPORT)
    source.checkpoint_completed({"a": at(5), "b": at(5)})
    world.clock.tick(MINUTE)
    world.dynamo.faults = list(faults)
    source.checkpoint_completed({"a": at(6), "b": at(6)})
    world.clock.tick(MINUTE)
    if faults[0] != "lost":
        assert world.rows() == {"a": "5", "b": "5"}
        assert {record.levelname for record in caplog.records} == {"WARNING"}
        assert {(fact.shard, bool(fact.error)) for fact in world.facts[2:]} == {("a", True), ("b", True)}
    world.dynamo.faults = []
    source.checkpoint_completed({"a": at(7), "b": at(6)})
    world.clock.tick(MINUTE)
    assert world.rows() == {"a": "7", "b": "6"}
    source.check()


def test_an_end_that_fails_is_repeated(world):
    source = world.source(LeaseMode.EXPORT)
    source.checkpoint_completed({"a": at(5)})
    world.clock.tick(MINUTE)
    children = {"b": at(AtHorizon(), "a", last=49), "c": at(AtHorizon(), "a", first=50)}
    source.checkpoint_completed({"a": at(Finished()), **children})
    world.dynamo.faults = [None, None, *[away()] * 4]
    world.clock.tick(MINUTE)
    assert world.rows()["a"] == "5"
    world.clock.tick(MINUTE)
    assert world.rows() == {"a": "SHARD_END", "b": "TRIM_HORIZON", "c": "TRIM_HORIZON"}


def test_a_job_that_ends_does_not_wait_for_a_table_that_is_away(world):
    source = world.source(LeaseMode.EXPORT)
    source.checkpoint_completed({shard: at(5) for shard in "abc"})
    world.clock.tick(MINUTE)
    source.checkpoint_completed({shard: at(6) for shard in "abc"})
    world.dynamo.requests.clear()
    world.dynamo.faults = [away()] * 40
    source.close()
    assert world.dynamo.requests == ["update"], "one request was not answered, and no other was made"


def test_a_missing_table_is_created_and_a_deleted_row_comes_back(world, caplog):
    world.dynamo.tables.clear()
    source = world.source(LeaseMode.EXPORT)
    source.checkpoint_completed({"a": at(5)})
    world.clock.tick(MINUTE)
    assert world.rows() == {"a": "5"}
    assert "creates lease table app" in caplog.text
    del world.dynamo.tables["app"]["a"]
    source.checkpoint_completed({"a": at(6)})
    world.clock.tick(MINUTE)
    assert world.rows() == {"a": "6"}


def test_the_lease_of_a_worker_that_runs_is_left_alone_and_that_of_a_dead_one_is_freed(world, caplog):
    world.dynamo.put("a", "3", leaseOwner="w1")
    world.dynamo.put("b", "3")
    source = world.source(LeaseMode.EXPORT)
    source.checkpoint_completed({"a": at(5), "b": at(5)})
    for counter in (1, 2, 3):
        world.dynamo.tables["app"]["a"]["leaseCounter"] = {"N": str(counter)}
        world.clock.tick(MINUTE)
    assert world.rows() == {"a": "3", "b": "5"}
    assert "belongs to worker 'w1'" in caplog.text
    world.clock.tick(MINUTE)  # nothing has changed for a minute, which is more than two failover times
    assert world.rows() == {"a": "5", "b": "5"}
    assert "leaseOwner" not in world.dynamo.row("a")
    assert "frees shard a of worker w1" in caplog.text


def test_the_mode_none_uses_no_table(world):
    source = world.source(LeaseMode.NONE)
    source.opened({"a": at(5)})
    source.shards_found({"a": at(5)})
    source.checkpoint_completed({"a": at(5)})
    source.check()
    assert source.start({"a": ()}) is None
    source.close()
    assert world.dynamo.requests == []


@pytest.mark.mission("K15")
def test_K15(world):
    source = world.source(LeaseMode.EXPORT)
    source.opened({"a": at(5)})
    source.shards_found({"a": at(9)})
    source.close()
    assert world.dynamo.requests == [], "nothing is exported before a checkpoint completes"
    source = world.source(LeaseMode.EXPORT)
    source.shards_found({"a": at(9)})
    source.checkpoint_completed({"a": at(7)})
    world.clock.tick(MINUTE)
    assert world.at("a") == ("7", 0), "exactly what is completed"

    # The table says something else: somebody changed it, or an export was lost.
    for wrong in ("3", "99", "SHARD_END", "LATEST"):
        world.dynamo.put("a", wrong)
        restarted = world.source(LeaseMode.EXPORT, clock=TickClock())
        world.dynamo.requests.clear()
        assert restarted.start({"a": ()}) is None, "the start is that of the checkpoint"
        restarted.opened({"a": at(7)})
        assert world.dynamo.requests == [], "the table is not even asked"


# ---- races -----------------------------------------------------------------------------------------------------------


class History:
    """A stream that grows and is resharded, and the completed checkpoints of a job that reads it."""

    def __init__(self, random):
        self.random = random
        self.number = 0
        self.shards = {}
        self.completed = [{}]
        for first in (0, 50):
            self._new((), first, first + 49)
        self.complete()

    def _new(self, parents, first, last):
        self.shards[f"s{self.number:03}"] = Shard(AtHorizon(), parents, first, last)
        self.number += 1

    def complete(self):
        self.completed.append(dict(self.shards))

    def unfinished(self):
        return [id for id, shard in self.shards.items() if not isinstance(shard.position, Finished)]

    def step(self):
        for id in self.unfinished():
            shard = self.shards[id]
            if self.random.random() < 0.6:
                seq = getattr(shard.position, "seq", 7) + self.random.choice((0, 1, 5, 40))
                sub = getattr(shard.position, "sub", 0) + 1
                self.shards[id] = replace(shard, position=After(seq, sub))
        action = self.random.random()
        open_shards = [id for id in self.unfinished() if self._is_readable(id)]
        if action < 0.25 and open_shards:
            id = self.random.choice(open_shards)
            shard = self.shards[id]
            if shard.last_hash > shard.first_hash:
                middle = (shard.first_hash + shard.last_hash) // 2
                self.shards[id] = replace(shard, position=Finished())
                self._new((id,), shard.first_hash, middle)
                self._new((id,), middle + 1, shard.last_hash)
        elif action < 0.45:
            by_first = {self.shards[id].first_hash: id for id in open_shards}
            for id in open_shards:
                neighbour = by_first.get(self.shards[id].last_hash + 1)
                if neighbour is not None:
                    first, last = self.shards[id].first_hash, self.shards[neighbour].last_hash
                    for each in (id, neighbour):
                        self.shards[each] = replace(self.shards[each], position=Finished())
                    self._new((id, neighbour), first, last)
                    break
        self.complete()

    def _is_readable(self, id):
        return all(isinstance(self.shards[parent].position, Finished) for parent in self.shards[id].parents)


def check_row(world, key, row, history):
    """What a watcher sees at every moment: no row is ahead, and no parent has ended before its children have rows."""
    newest = history.completed[-1]
    found = LeaseCheckpoint(row["checkpoint"]["S"], int(row["checkpointSubSequenceNumber"]["N"]))
    assert lease_order(found) <= lease_order(to_lease(newest[key].position)), f"{key} is ahead of the data"
    if found.checkpoint == "SHARD_END":
        children = {id for id, shard in newest.items() if key in shard.parents}
        assert children == set(row["childShardIds"]["SS"])
        assert children <= set(world.dynamo.tables["app"])


@pytest.mark.parametrize("seed", range(25))
def test_two_exporters_race_and_a_watcher_sees_rows_that_only_advance(world, seed):
    dice = random.Random(seed)
    history = History(dice)
    clocks = [TickClock(), TickClock()]
    fresh, stale = (world.source(LeaseMode.EXPORT, clock=clock, uid=str(clock)) for clock in clocks)
    seen = {}
    stale_at = 1
    fresh.checkpoint_completed(history.completed[-1])
    stale.checkpoint_completed(history.completed[stale_at])
    for _ in range(15):
        history.step()
        if dice.random() < 0.7:
            fresh.checkpoint_completed(history.completed[-1])
        if dice.random() < 0.4:
            stale_at = dice.randint(stale_at, len(history.completed) - 1)
            stale.checkpoint_completed(history.completed[stale_at])
        chosen = [None, None, None, throttled(), away(), "lost"]
        world.dynamo.faults = [dice.choice(chosen) for _ in range(dice.randint(0, 30))]
        written = len(world.dynamo.history)
        for clock in dice.sample(clocks, 2):
            clock.tick(MINUTE)
        for key, row in world.dynamo.history[written:]:
            order = lease_order(LeaseCheckpoint(row["checkpoint"]["S"], int(row["checkpointSubSequenceNumber"]["N"])))
            assert seen.get(key, (-1,)) <= order, f"{key} went back"
            seen[key] = order
            check_row(world, key, row, history)
    world.dynamo.faults = []
    fresh.checkpoint_completed(history.completed[-1])
    fresh.close()
    for key, shard in history.shards.items():
        if not isinstance(shard.position, Finished):
            assert world.at(key) == tuple(to_lease(shard.position))
        elif key in world.dynamo.tables["app"]:
            assert world.at(key) == ("SHARD_END", 0)


# ---- own -------------------------------------------------------------------------------------------------------------


def test_leases_are_taken_before_anything_is_read_renewed_written_and_given_up(world):
    world.dynamo.put("a", "3")
    source = world.source(LeaseMode.OWN)
    source.opened({"a": at(5), "b": at(AtHorizon()), "c": at(Finished())})
    assert world.pauses == []
    for key in "ab":
        assert world.dynamo.row(key)["leaseOwner"] == {"S": "penstock-orders"}
    assert world.rows() == {"a": "3", "b": "TRIM_HORIZON"}
    before = int(world.dynamo.row("a")["leaseCounter"]["N"])
    for _ in range(3):
        world.clock.tick("3333333 microseconds")
    assert int(world.dynamo.row("a")["leaseCounter"]["N"]) == before + 3, "thrice in a failover time"
    source.checkpoint_completed({"a": at(7), "b": at(AtHorizon())})
    world.clock.tick(MINUTE, threads=2)
    world.clock.tick("10 seconds", threads=2)
    assert world.at("a") == ("7", 0)
    source.check()
    source.close()
    assert [key for key in "ab" if "leaseOwner" in world.dynamo.row(key)] == []


@pytest.mark.parametrize("change", ["taken", "bumped", "deleted", "handed over", "evicted"])
def test_a_lost_lease_fails_the_job(world, change):
    source = world.source(LeaseMode.OWN)
    source.opened({"a": at(5), "b": at(5)})
    row = world.dynamo.tables["app"]["a"]
    if change == "taken":
        row.update(leaseOwner={"S": "w1"}, leaseCounter={"N": "9"})
    elif change == "bumped":
        row["leaseCounter"] = {"N": "99"}
    elif change == "deleted":
        del world.dynamo.tables["app"]["a"]
    elif change == "handed over":
        row.update(leaseOwner={"S": "w1"}, checkpointOwner=row["leaseOwner"])
    else:
        del row["leaseOwner"]
    source.check()
    world.clock.tick("4 seconds")
    with pytest.raises(LeaseLost, match="lease of shard a"):
        source.check()
    source.checkpoint_completed({"a": at(8), "b": at(8)})
    source.close()
    assert world.rows().get("a") in ("5", None), "nothing is written to a lease that is lost"


def test_an_outage_of_the_table_loses_no_lease(world, caplog):
    source = world.source(LeaseMode.OWN)
    source.opened({"a": at(5)})
    world.dynamo.faults = [away()] * 9
    world.clock.tick("30 seconds")
    world.dynamo.faults = ["lost", "lost"]
    world.clock.tick("10 seconds")
    world.clock.tick("10 seconds")
    source.check()
    assert "could not renew the lease of shard a" in caplog.text


def test_the_same_job_takes_its_leases_at_once_and_the_older_process_is_fenced(world):
    clock = TickClock()
    older = world.source(LeaseMode.OWN, clock=clock)
    older.opened({"a": at(5)})
    newer = world.source(LeaseMode.OWN)
    newer.opened({"a": at(5)})
    assert world.pauses == []
    clock.tick("4 seconds")
    with pytest.raises(LeaseLost):
        older.check()
    world.clock.tick("4 seconds")
    newer.check()


def attempt(generation, log_id="the log", newest=None):
    """An attempt of a job; ``newest`` is the one that owns its log by now, if that is another."""

    def check_owner():
        if newest is not None and newest > generation:
            msg = "This process no longer owns the job."
            raise GenerationFenced(msg)

    return {"generation": generation, "log_id": log_id, "check_owner": check_owner}


def test_an_older_process_that_was_stopped_before_it_opens_its_reader_takes_no_lease_from_the_newer_one(world):
    clock = TickClock()
    older = world.source(LeaseMode.OWN, clock=clock, attempt=attempt(7, newest=12))
    newer = world.source(LeaseMode.OWN, attempt=attempt(12))
    newer.opened({"b": at(5)})
    with pytest.raises(GenerationFenced, match="no longer owns the job"):
        older.opened({"a": at(5), "b": at(5)})
    newer.shards_found({"a": at(5), "b": at(5)})
    world.clock.tick("4 seconds")
    newer.check()
    older.close()
    assert {world.dynamo.row(key)["leaseOwner"]["S"] for key in "ab"} == {"penstock-orders"}
    world.clock.tick("4 seconds")
    newer.check()
    assert world.pauses == []


def test_an_older_process_ends_fenced_when_it_finds_a_new_shard_that_the_newer_one_holds(world):
    clock = TickClock()
    older = world.source(LeaseMode.OWN, clock=clock, attempt=attempt(7, newest=12))
    older.opened({"a": at(Finished())})
    newer = world.source(LeaseMode.OWN, attempt=attempt(12))
    newer.opened({"b": at(5)})
    older.shards_found({"b": at(5)})
    clock.tick("4 seconds")
    with pytest.raises(GenerationFenced):
        older.check()
    world.clock.tick("4 seconds")
    newer.check()


@pytest.mark.parametrize(
    "before", [attempt(7), attempt(12), attempt(900, "another log"), None], ids=["older", "same", "other log", "no log"]
)
def test_a_process_takes_the_leases_of_others_of_its_job_at_once(world, before):
    world.source(LeaseMode.OWN, clock=TickClock(), attempt=before).opened({"a": at(5)})
    newer = world.source(LeaseMode.OWN, attempt=attempt(12))
    newer.opened({"a": at(5)})
    world.clock.tick("4 seconds")
    newer.check()
    assert world.pauses == []


def test_leases_that_an_earlier_release_has_taken_are_taken_at_once(world):
    world.dynamo.put("a", "3", leaseOwner="penstock-orders", penstockClaim="0123456789abcdef0123456789abcdef")
    world.source(LeaseMode.OWN, attempt=attempt(12)).opened({"a": at(5)})
    assert world.pauses == []


def test_an_older_process_that_renews_at_the_same_time_keeps_no_lease(world):
    older = world.source(LeaseMode.OWN, clock=(clock := TickClock()), attempt=attempt(7, newest=12))
    older.opened({"a": at(5)})
    newer = world.source(LeaseMode.OWN, attempt=attempt(12))
    find = world.dynamo.get_item
    renewals = iter([lambda: clock.tick("4 seconds")])

    def find_and_renew(**arguments):
        found = find(**arguments)
        next(renewals, lambda: None)()
        return found

    world.dynamo.get_item = find_and_renew
    newer.opened({"a": at(5)})
    world.clock.tick("4 seconds")
    newer.check()
    assert world.pauses == []


def test_an_older_process_that_waits_for_the_same_worker_of_a_kcl_does_not_end_the_newer_one(world):
    world.dynamo.put("a", "3", leaseOwner="w1", counter=7)
    older = world.source(LeaseMode.OWN, clock=TickClock(), attempt=attempt(7, newest=12))
    newer = world.source(LeaseMode.OWN, attempt=attempt(12))

    def overtake():
        world.while_pausing = lambda: None
        older.opened({"a": at(5)})

    world.while_pausing = overtake
    newer.opened({"a": at(5)})
    world.clock.tick("4 seconds")
    newer.check()


@pytest.mark.parametrize("runs", [True, False])
def test_a_job_with_an_older_copy_of_its_directory_takes_its_leases_once_they_are_abandoned(world, runs):
    clock = TickClock()
    world.source(LeaseMode.OWN, clock=clock, attempt=attempt(900)).opened({"a": at(5)})
    if runs:
        world.while_pausing = lambda: clock.tick("20 seconds")
    restored = world.source(LeaseMode.OWN, attempt=attempt(12))
    if runs:
        with pytest.raises(LeaseLost, match="another copy of its state directory"):
            restored.opened({"a": at(5)})
    else:
        restored.opened({"a": at(5)})
        world.clock.tick("4 seconds")
        restored.check()
    assert world.pauses == [20.0], "two failover times"


@pytest.mark.parametrize("runs", [True, False])
def test_leases_of_a_kcl_are_taken_only_if_it_does_not_run(world, runs):
    world.dynamo.put("a", "3", leaseOwner="w1", counter=7)
    source = world.source(LeaseMode.OWN)
    if runs:
        world.while_pausing = lambda: world.dynamo.tables["app"]["a"].update(leaseCounter={"N": "8"})
        with pytest.raises(LeaseLost, match="Worker 'w1' renews the lease of shard a"):
            source.opened({"a": at(5)})
    else:
        source.opened({"a": at(5)})
        assert world.dynamo.row("a")["leaseOwner"] == {"S": "penstock-orders"}
    assert world.pauses == [20.0], "two failover times"


def test_leases_are_renewed_while_those_of_an_abandoned_worker_are_looked_at(world):
    world.dynamo.put("b", "3", leaseOwner="w1", counter=7)
    source = world.source(LeaseMode.OWN)
    world.while_pausing = lambda: world.clock.tick("4 seconds")
    source.opened({"a": at(5), "b": at(5)})
    assert {world.dynamo.row(key)["leaseOwner"]["S"] for key in "ab"} == {"penstock-orders"}
    world.clock.tick("4 seconds")
    source.check()


def test_children_are_held_when_they_are_found_and_a_finished_parent_is_let_go(world):
    source = world.source(LeaseMode.OWN)
    source.opened({"a": at(5)})
    children = {"b": at(AtHorizon(), "a", last=49), "c": at(AtHorizon(), "a", first=50)}
    source.shards_found({"a": at(5), **children})
    world.clock.tick("4 seconds")
    assert {world.dynamo.row(key)["leaseOwner"]["S"] for key in "abc"} == {"penstock-orders"}
    source.shards_found({"a": at(Finished()), **children})
    source.checkpoint_completed({"a": at(Finished()), **children})
    world.clock.tick(MINUTE, threads=2)
    world.clock.tick("4 seconds", threads=2)
    assert world.rows() == {"a": "SHARD_END", "b": "TRIM_HORIZON", "c": "TRIM_HORIZON"}
    assert "leaseOwner" not in world.dynamo.row("a")
    source.check()


def test_a_child_that_another_worker_holds_fails_the_job(world):
    source = world.source(LeaseMode.OWN)
    source.opened({"a": at(5)})
    world.dynamo.put("b", "TRIM_HORIZON", leaseOwner="w1")
    source.shards_found({"a": at(5), "b": at(AtHorizon(), "a")})
    world.clock.tick("4 seconds")
    with pytest.raises(LeaseLost, match="new shard b in table app belongs to worker 'w1'"):
        source.check()


# ---- import ----------------------------------------------------------------------------------------------------------


def test_a_source_without_a_checkpoint_begins_where_the_kcl_stands(world):
    world.dynamo.put("a", "SHARD_END", leaseOwner="w1")
    world.dynamo.put("b", "12", sub=3, leaseOwner="w1", pendingCheckpoint="13")
    world.dynamo.put("c", "TRIM_HORIZON")
    world.dynamo.tables["app"]["Leader"] = {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}}
    source = world.source(LeaseMode.IMPORT)
    parents = {"a": (), "b": ("a",), "c": ("a",), "d": ("b",)}
    assert source.start(parents) == {"a": Finished(), "b": After(12, 3), "c": AtHorizon(), "d": AtHorizon()}
    assert world.pauses == [20.0], "an owner alone proves nothing, so it was looked at twice"
    source.checkpoint_completed({"b": at(20)})
    world.clock.advance("120 seconds")
    source.close()
    assert world.at("b") == ("12", 3), "and the table is not used any more"


@pytest.mark.parametrize("change", ["renewed", "deleted", "new"])
def test_an_application_that_runs_is_refused_unless_forced(world, change):
    world.dynamo.put("a", "5", leaseOwner="w1", counter=7)
    world.dynamo.put("b", "5")

    def work():
        if change == "renewed":
            world.dynamo.tables["app"]["a"]["leaseCounter"] = {"N": "8"}
        elif change == "deleted":
            del world.dynamo.tables["app"]["a"]
        else:
            world.dynamo.put("c", "TRIM_HORIZON")

    world.while_pausing = work
    with pytest.raises(LeaseLost, match=r"the application runs\. Stop it"):
        world.source(LeaseMode.IMPORT).start({"a": (), "b": ()})
    parents = dict.fromkeys(world.rows(), ())
    found = world.source(LeaseMode.IMPORT, force=True).start(parents)
    assert found["b"] == After(5)


def test_without_an_owner_there_is_nothing_to_wait_for(world):
    world.dynamo.put("a", "5")
    assert import_start(LeaseTable(world.dynamo, "app"), pause=world.pause).positions == {"a": After(5)}
    assert world.pauses == []


def test_leases_that_do_not_say_where_they_are_have_to_be_told(world):
    world.dynamo.put("a", "LATEST")
    world.dynamo.put("b", "AT_TIMESTAMP")
    world.dynamo.put("c", "AT_TIMESTAMP", penstockTimestampMs={"N": "17"}, pendingCheckpoint="13")
    table = LeaseTable(world.dynamo, "app")
    with pytest.raises(
        LeaseTableInvalid, match=r"where to begin in a \(LATEST\), b \(AT_TIMESTAMP\)\. .* kcl TABLE --at"
    ):
        import_start(table)
    start = import_start(table, otherwise=AtTime(5))
    assert start.positions == {"a": AtTime(5), "b": AtTime(5), "c": AtTime(17)}
    assert start.notes == (
        "a has LATEST, and begins where you said.",
        "b has AT_TIMESTAMP, and begins where you said.",
        "c has a prepared checkpoint, which was never made and is left out.",
    )


def test_a_table_without_leases_of_the_stream_is_refused(world):
    with pytest.raises(LeaseTableInvalid, match=r"has no leases\. Name the table of a KCL application"):
        import_start(LeaseTable(world.dynamo, "app"))
    world.dynamo.put("123456789012:orders:17:shardId-0", "5")
    with pytest.raises(LeaseTableInvalid, match=r"several streams: 123456789012:orders:17\. Name one"):
        import_start(LeaseTable(world.dynamo, "app"))


@pytest.mark.parametrize(
    ("start", "parents", "found"),
    [
        ({"a": 5}, {"a": ()}, {"a": 5}),
        ({"a": 5}, {"a": (), "b": ("a",)}, {"a": 5, "b": "horizon"}),
        # The KCL deletes the lease of a parent once its children are being read.
        ({"b": 5, "c": 6}, {"a": (), "b": ("a",), "c": ("a",)}, {"a": "end", "b": 5, "c": 6}),
        ({"b": 5, "c": "horizon"}, {"a": ("z",), "b": ("a",), "c": ("a",)}, {"a": "horizon", "b": 5, "c": "horizon"}),
        # A shard that is listed no more is left out.
        ({"a": 5, "gone": "end"}, {"a": ()}, {"a": 5}),
        ({"d": 5}, {"a": (), "b": (), "c": ("a", "b"), "d": ("c",)}, {"a": "end", "b": "end", "c": "end", "d": 5}),
    ],
)
def test_leases_are_matched_with_the_shards_of_the_stream(start, parents, found):
    words = {"end": Finished(), "horizon": AtHorizon()}

    def positions(given):
        return {shard: words[it] if isinstance(it, str) else After(it) for shard, it in given.items()}

    assert match_listing(positions(start), parents) == positions(found)


def test_a_shard_that_the_application_never_saw_is_no_silent_choice():
    with pytest.raises(LeaseTableInvalid, match="has no lease of b, so it never saw"):
        match_listing({"a": After(5)}, {"a": (), "b": ()})
    assert match_listing({"a": After(5)}, {"a": (), "b": ()}, otherwise=AtTime(5))["b"] == AtTime(5)


def test_a_start_is_read_back_from_its_file(world):
    world.dynamo.put("a", "12", sub=3)
    world.dynamo.put("b", "SHARD_END")
    start = import_start(LeaseTable(world.dynamo, "app"))
    data = encode_start(start)
    assert decode_start(data, "start.json") == start
    with pytest.raises(CheckpointUnreadable):
        decode_start(data.replace(b'"12"', b'"13"'), "start.json")


# ---- planted ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in BUGS if name.startswith(("row-K15", "lease-"))])
def test_a_planted_deviation_is_found(name, caplog, monkeypatch):
    monkeypatch.setattr(Patience, "seconds", 1.0)
    _, function = BUGS[name].core.split("::")
    test = globals()[function]
    seeds = range(25) if "seed" in inspect.signature(test).parameters else [None]

    def look():
        for seed in seeds:
            given = {"world": World(), "caplog": caplog, "seed": seed}
            test(*(given[each] for each in inspect.signature(test).parameters))

    with planted(name), pytest.raises((AssertionError, PenstockError, pytest.fail.Exception)):
        look()
