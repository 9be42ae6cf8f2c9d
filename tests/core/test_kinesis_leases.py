"""A source with a lease table: exports what is completed, owns its leases, begins where a KCL application stands."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from itertools import chain
from types import SimpleNamespace

import pytest

import penstock as ps
from core.dynamo_fake import DynamoFake
from core.kinesis_kit import Bench
from core.test_kinesis_any_order import Story
from penstock.api.preview import _first_rows
from penstock.connectors.kinesis import lease_commits, reader
from penstock.connectors.kinesis.config import LeaseMode, LeaseOptions
from penstock.connectors.kinesis.lease_import import ImportedStart, encode_start
from penstock.connectors.kinesis.lease_rows import parse_row
from penstock.connectors.kinesis.positions import (
    After,
    AtHorizon,
    AtTime,
    Finished,
    LeaseCheckpoint,
    lease_order,
    order,
)
from penstock.connectors.kinesis.shards import decode
from penstock.connectors.kinesis.source import Source
from penstock.errors import GraphError, LeaseLost, LeaseTableInvalid
from penstock.facts import LeaseExported
from penstock.interfaces.source import SourceContext
from planted import of_kinesis  # noqa: F401
from planted.bug import BUGS, planted

ZERO, ONE, TWO = (f"shardId-{number:012d}" for number in range(3))
MINUTE = "60 seconds"


def bench_of(mode, shards=1, **more):
    bench = Bench(shards, opens=False, leases=ps.kinesis.leases("app", mode=mode), **more)
    for number in range(10):
        bench.stream.put(f"key-{number}", b"%d" % number)
    return bench


def at(bench, shard):
    """The position in the table."""
    row = bench.dynamo.row(shard)
    return None if row is None else parse_row(row, "app").position


def owner(bench, shard):
    return (bench.dynamo.row(shard) or {}).get("leaseOwner", {}).get("S")


def number(bench, index, shard=ZERO):
    return bench.stream.shards[shard].records[index].number


@pytest.fixture
def benches():
    made = []

    def make(*arguments, **more):
        made.append(bench_of(*arguments, **more))
        return made[-1]

    yield make
    for bench in made:
        if hasattr(bench, "reader"):
            bench.kill()


# ---- export ----------------------------------------------------------------------------------------------------------


def test_a_completed_checkpoint_is_exported_and_what_was_read_since_is_not(benches):
    bench = benches("export", max_rows_per_batch=4)
    bench.open()
    bench.poll()
    while not bench.read:
        bench.poll()
    completed = bench.reader.position()
    bench.until_quiet()
    assert len(bench.read) == 10
    assert bench.dynamo.requests == [], "nothing is exported before a checkpoint completes"
    bench.complete(completed)
    bench.lease_clock.tick(MINUTE)
    assert at(bench, ZERO) == decode(completed).shards[ZERO].position == After(number(bench, 3))
    bench.complete()
    bench.reader.close()
    assert at(bench, ZERO) == After(number(bench, 9)), "the last one at the end"
    assert owner(bench, ZERO) is None


def test_a_reader_that_is_closed_before_its_first_checkpoint_exports_nothing(benches):
    bench = benches("export")
    bench.open()
    bench.until_quiet()
    bench.reader.close()
    assert bench.dynamo.requests == []


def test_a_table_that_never_answers_neither_delays_nor_fails_the_job(benches, caplog):
    bench = benches("export")
    bench.open()
    bench.line.is_cut = True
    bench.complete()
    bench.lease_clock.tick(MINUTE)
    assert len(bench.until_quiet()) == 10
    bench.complete()
    bench.lease_clock.tick(MINUTE)
    bench.reader.poll(now=bench.clock.now(), wall=bench.clock.wall(), limits=bench.limits)
    bench.reader.close()
    assert "does not answer" in caplog.text
    assert bench.dynamo.history == []


def test_a_write_that_fails_is_a_fact(benches):
    bench = benches("export")
    bench.open()
    bench.until_quiet()
    bench.complete()
    bench.lease_clock.tick(MINUTE)
    bench.dynamo.put(ZERO, "1", leaseOwner="w1")
    bench.stream.put("key", b"more")
    bench.until_quiet()
    bench.complete()
    bench.lease_clock.tick(MINUTE)
    facts = [fact for fact in bench.facts if isinstance(fact, LeaseExported)]
    assert [fact.error is None for fact in facts] == [True, False], "a lease with an owner is left alone"
    assert at(bench, ZERO) == After(1)


class LeasedStory(Story):
    """A story whose checkpoints complete some time later, or never, and a watcher of the lease table."""

    def __init__(self, seed):
        super().__init__(seed)
        self.bench.source = Source("orders", discover_every="5 seconds", leases=ps.kinesis.leases("app"))
        self.bench.open(self.saved[0])
        self.watched = {}
        self.exports = 0

    def checkpoint(self):
        super().checkpoint()
        if self.random.random() < 0.8:  # or the process is killed before it hears of it
            self.bench.complete(self.saved[0])
            if self.random.random() < 0.5:
                self.bench.lease_clock.tick(MINUTE)
                self.exports += 1
        self.watch()

    def crash(self):
        if self.random.random() < 0.5:
            self.bench.kill()
        else:
            self.bench.reader.close()
        self.watch()
        super().crash()

    def watch(self):
        shards = decode(self.saved[0]).shards
        for key, row in self.bench.dynamo.history:
            lease = parse_row(row, "app")
            before = self.watched.get(key, LeaseCheckpoint("AT_TIMESTAMP", 0))
            assert lease_order(before) <= lease_order(lease.checkpoint), f"{key} goes back"
            self.watched[key] = lease.checkpoint
            # A shard that was forgotten was finished.
            completed = shards[key].position if key in shards else Finished()
            assert order(lease.position) <= order(completed), f"{key} is ahead of the data"
        self.bench.dynamo.history.clear()


@pytest.mark.parametrize("seed", range(12))
def test_the_table_is_never_ahead_of_the_data_and_never_goes_back(seed):
    story = LeasedStory(seed)
    story.run(150)
    story.checkpoint()
    story.bench.complete(story.saved[0])
    story.bench.reader.close()
    story.watch()
    assert sorted(data for _, _, data in story.bench.read) == sorted(chain(*story.put.values()))
    assert story.crashes > 0
    assert story.exports > 0
    for shard, state in decode(story.saved[0]).shards.items():
        if not isinstance(state.position, Finished):
            assert at(story.bench, shard) == state.position, "the last export has all"


# ---- own -------------------------------------------------------------------------------------------------------------


def test_leases_are_owned_before_anything_is_read_and_given_up_at_the_end(benches):
    bench = benches("own", 2)
    bench.open()
    assert bench.stream.calls["GetRecords"] == 0
    assert [owner(bench, shard) for shard in (ZERO, ONE)] == ["penstock-in"] * 2
    bench.until_quiet()
    assert [at(bench, shard) for shard in (ZERO, ONE)] == [AtHorizon()] * 2
    bench.complete()
    bench.reader.close()
    assert [at(bench, shard) for shard in (ZERO, ONE)] == [bench.position(shard) for shard in (ZERO, ONE)]
    assert [owner(bench, shard) for shard in (ZERO, ONE)] == [None] * 2


def test_a_table_that_is_missing_is_made_and_new_rows_are_like_those_that_are_there(benches):
    bench = benches("own", dynamo=DynamoFake())
    bench.open()
    assert owner(bench, ZERO) == "penstock-in"
    assert "entityType" not in bench.dynamo.row(ZERO)
    bench = benches("own", 2)
    bench.dynamo.put(ZERO, "3", entityType="LEASE")
    bench.open()
    assert bench.dynamo.row(ONE)["entityType"] == {"S": "LEASE"}


def test_a_bumped_lease_fails_the_job(benches):
    bench = benches("own")
    bench.open()
    bench.until_quiet()
    bench.dynamo.row(ZERO)["leaseCounter"] = {"N": "99"}
    bench.lease_clock.tick("4 seconds")
    with pytest.raises(LeaseLost, match=f"lease of shard {ZERO}"):
        bench.poll()
    bench.complete()
    bench.reader.close()
    assert at(bench, ZERO) == AtHorizon(), "nothing is written to a lease that is lost"


def test_children_are_owned_once_they_are_found_and_a_finished_parent_is_wanted_no_more(benches):
    bench = benches("own", max_rows_per_batch=1)
    bench.open()
    bench.stream.split(ZERO)
    bench.clock.advance("11 seconds")
    while ONE not in decode(bench.reader.position()).shards:
        bench.poll()
    assert bench.position(ZERO) != Finished()
    bench.lease_clock.tick("4 seconds")
    assert [owner(bench, shard) for shard in (ONE, TWO)] == ["penstock-in"] * 2
    bench.until_quiet(40)
    bench.complete()
    bench.lease_clock.tick(MINUTE, threads=2)
    assert at(bench, ZERO) == Finished()
    bench.lease_clock.settle(threads=2)
    bench.dynamo.requests.clear()
    bench.lease_clock.tick("4 seconds", threads=2)
    assert bench.dynamo.requests == ["update", "update"], "children are renewed, and of the parent nothing is wanted"


def test_an_open_that_fails_gives_up_the_leases_that_it_took(benches):
    bench = benches("own", 2)
    bench.dynamo.put(ZERO, "3")
    bench.dynamo.put(ONE, "3", leaseOwner="w1")
    bench.while_pausing = lambda: bench.dynamo.row(ONE).update(leaseCounter={"N": "8"})
    with pytest.raises(LeaseLost, match="Worker 'w1' renews the lease"):
        bench.open()
    assert (bench.pauses, owner(bench, ZERO), owner(bench, ONE)) == ([20.0], None, "w1")
    assert bench.stream.calls["GetRecords"] == 0
    assert not bench.lease_clock.next_ticks(), "nobody renews any more"


def test_a_source_that_is_opened_makes_its_client_of_the_table_and_owns_as_its_uid(benches, monkeypatch):
    bench = benches("own")
    addresses = []
    monkeypatch.setattr(lease_commits, "new_dynamo_client", lambda address: addresses.append(address) or bench.dynamo)
    monkeypatch.setattr(reader, "new_client", lambda _address: bench.stream)
    context = SourceContext(uid="orders-7", spark=None, wall=bench.clock.wall)  # type: ignore[arg-type]
    opened = bench.source.open(context, None)
    assert owner(bench, ZERO) == "penstock-orders-7"
    opened.close()
    assert owner(bench, ZERO) is None
    assert [address.table for address in addresses] == ["app"]


def test_a_killed_job_takes_its_leases_at_once(benches):
    bench = benches("own")
    bench.open()
    bench.kill()
    assert owner(bench, ZERO) == "penstock-in"
    bench.crash()
    assert bench.pauses == [pause for pause in bench.pauses if pause < 1]
    assert len(bench.until_quiet()) == 10


# ---- import ----------------------------------------------------------------------------------------------------------


def test_a_job_without_a_checkpoint_begins_where_the_kcl_stands_and_later_asks_no_table(benches):
    bench = benches("import")
    bench.dynamo.put(ZERO, str(number(bench, 5)), leaseOwner="w1")
    bench.open()
    assert bench.pauses == [20.0]
    assert bench.until_quiet() == [b"6", b"7", b"8", b"9"]
    bench.complete()
    position = bench.reader.position()
    bench.reader.close()
    assert bench.dynamo.history == [], "the table is not written"
    bench.dynamo.requests.clear()
    bench.open(position)
    bench.stream.put("key", b"more")
    assert bench.until_quiet()[4:] == [b"more"]
    assert bench.dynamo.requests == []


def test_a_kcl_application_that_runs_is_refused(benches):
    bench = benches("import")
    bench.dynamo.put(ZERO, "3", leaseOwner="w1")
    bench.while_pausing = lambda: bench.dynamo.row(ZERO).update(leaseCounter={"N": "8"})
    with pytest.raises(LeaseLost, match=r"Worker 'w1' .* the application runs\. Stop it"):
        bench.open()
    assert bench.stream.calls["GetRecords"] == 0
    bench.open(source=Source("orders", leases=ps.kinesis.leases("app", mode="import", force=True)))
    assert bench.position(ZERO) == After(3)


def test_a_shard_that_the_table_does_not_tell_begins_where_the_user_says(benches):
    bench = benches("import")
    bench.dynamo.put(ZERO, "LATEST")
    with pytest.raises(LeaseTableInvalid, match=r"takes it as otherwise=\."):
        bench.open()
    bench.open(source=Source("orders", leases=ps.kinesis.leases("app", mode="import", otherwise="earliest")))
    assert bench.position(ZERO) == AtHorizon()


def test_a_job_begins_at_an_imported_file(benches, tmp_path, caplog):
    """The KCL deletes the lease of a parent once its children are being read; a child it never saw begins anew."""
    bench = benches("none")
    left, right = bench.stream.split(ZERO)
    for index in range(10):
        bench.stream.put(f"key-{index}", b"child %d" % index)
    first = bench.stream.shards[left].records[0].number
    file = tmp_path / "start.json"
    file.write_bytes(encode_start(ImportedStart(table="app", positions={left: After(first), right: Finished()})))
    source = Source("orders", start=ps.kinesis.imported(file))
    bench.open(source=source)
    expected = [record.data for record in bench.stream.shards[left].records[1:]]
    assert expected
    assert bench.until_quiet(40) == expected
    assert bench.dynamo.requests == []
    with caplog.at_level(logging.INFO, "penstock"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.connectors.kinesis.reader.KinesisReader", lambda *_: None)
        source.open(type("Context", (), {"uid": "in"}), None)  # type: ignore[arg-type]
    assert caplog.messages[-1].endswith("it starts at the positions of the KCL application app")


@pytest.mark.parametrize(("hours", "position"), [(1, "time"), (25, "horizon")])
def test_an_imported_time_is_a_time_unless_it_is_before_all_records(benches, hours, position):
    bench = benches("none")
    ms = bench.clock.wall() // 1_000 - hours * 3_600_000
    bench.open(source=Source("orders", start=ImportedStart(table="app", positions={ZERO: AtTime(ms)})))
    assert bench.position(ZERO) == {"time": AtTime(ms), "horizon": AtHorizon()}[position]
    assert len(bench.until_quiet()) == 10


def test_a_shard_that_the_stream_does_not_list_is_not_left_out_in_silence(benches):
    bench = benches("none")
    positions = {ZERO: After(5), "shardId-9": After(5), "shardId-8": Finished()}
    with pytest.raises(LeaseTableInvalid, match=r"was not done with shardId-9, and the stream does not list"):
        bench.open(source=Source("orders", start=ImportedStart(table="app", positions=positions)))


# ---- the arguments ---------------------------------------------------------------------------------------------------

REFUSED = {
    "table": ({"table": "a b"}, "table='a b' is no lease table"),
    "mode": ({"mode": "share"}, "mode='share' is not possible. It must be one of 'none', 'export', 'own', 'import'"),
    "region": ({"region": ""}, "region='' is no region"),
    "url": ({"endpoint_url": "http://me:secret@host"}, "endpoint_url is no address"),
    "option": ({"options": {"aws_secret_access_key": "abc123"}}, "ps.kinesis.env"),
    "stream": ({"stream": "orders"}, "stream='orders' is no stream of a lease table"),
    "interval": ({"interval": "0 seconds"}, "interval '0 seconds' is too short"),
    "failover": ({"failover": "soon"}, "failover 'soon' is not a length of time"),
    "otherwise": (
        {"otherwise": "latest"},
        "otherwise='latest' is not a place in a stream. Write 'earliest', or a time",
    ),
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED)
def test_an_impossible_argument_is_refused_with_the_remedy(arguments, said):
    with pytest.raises(GraphError, match=said) as raised:
        ps.kinesis.leases(**{"table": "app", **arguments})
    assert "secret@" not in str(raised.value)
    assert "abc123" not in str(raised.value)


def test_what_a_source_cannot_do_with_leases_is_refused():
    with pytest.raises(GraphError, match=r"leases='app' does not say what to do\. Write leases=ps\.kinesis\.leases"):
        ps.kinesis.Source("orders", leases="app")  # type: ignore[arg-type]
    start = ImportedStart(table="app", positions={})
    with pytest.raises(GraphError, match="both say where a KCL application stands"):
        ps.kinesis.Source("orders", start=start, leases=ps.kinesis.leases("app", mode="import"))


def test_the_table_is_reached_as_the_stream_is_where_nothing_else_is_said():
    options = {"aws_secret_access_key": ps.kinesis.env("KINESIS_SECRET")}
    source = ps.kinesis.Source(
        "orders", region="eu-central-1", endpoint_url="http://localhost:4567", options=options,
        leases=ps.kinesis.leases("app", otherwise="1970-01-01T00:00:01Z"),
    )  # fmt: skip
    address = source.leases.address
    assert (address.region, address.endpoint_url, address.options) == ("eu-central-1", None, options)
    assert (source.leases.mode, source.leases.interval, source.leases.failover) == ("export", 60_000_000, 10_000_000)
    assert source.leases.otherwise == AtTime(1_000)
    other = ps.kinesis.leases(
        "app", region="us-east-1", options={"verify": False}, endpoint_url="http://localhost:8000"
    )
    address = ps.kinesis.Source("orders", region="eu-central-1", options=options, leases=other).leases.address
    assert (address.region, address.endpoint_url, address.options) == (
        "us-east-1",
        "http://localhost:8000",
        {"verify": False},
    )


def test_a_replay_takes_no_lease_and_exports_nothing_but_begins_where_the_job_began():
    for mode in ("export", "own"):
        source = ps.kinesis.Source("orders", leases=ps.kinesis.leases("app", mode=mode))
        assert source.replayed(None).leases == LeaseOptions()
    source = ps.kinesis.Source("orders", leases=ps.kinesis.leases("app", mode="import"))
    assert source.replayed(None).leases.mode is LeaseMode.IMPORT


def test_a_preview_takes_no_lease_from_the_job_that_has_it(monkeypatch):
    opened = []

    def open(self, context, resume):
        opened.append(self.leases.mode)
        raise InterruptedError

    monkeypatch.setattr(Source, "open", open)
    node = SimpleNamespace(uid="in", source=Source("orders", leases=ps.kinesis.leases("app", mode="own")))
    with ExitStack() as readers, pytest.raises(InterruptedError):
        _first_rows(node, None, 1, 1.0, readers)  # type: ignore[arg-type]
    assert opened == [LeaseMode.NONE]


# ---- planted ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in BUGS if name.startswith("wired-")])
def test_a_planted_deviation_is_found(name, benches):
    _, function = BUGS[name].core.split("::")
    with planted(name), pytest.raises((AssertionError, pytest.fail.Exception)):
        globals()[function](benches)
