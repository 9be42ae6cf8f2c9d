"""A source with a lease table, over both emulators of Kinesis and moto's DynamoDB ("kinesis E6" to "kinesis E11").

Each emulator has its own way to end a closed shard, and numbers of the length that the service's have. DynamoDB is
moto's: it does all that a lease table needs, and never throttles.
"""

from __future__ import annotations

from itertools import count

import pytest

import penstock as ps
from core.checkpointer_kit import TickClock
from core.lease_table_contract import Rows
from integration.dynamo_server import dynamo_server
from integration.kinesis_streams import Stream
from penstock.connectors.kinesis.lease_commits import LeaseCommits
from penstock.connectors.kinesis.lease_import import import_start, match_listing
from penstock.connectors.kinesis.lease_table import LeaseTable, LeaseWrite
from penstock.connectors.kinesis.positions import Finished, LeaseCheckpoint, lease_order, order, to_lease
from penstock.connectors.kinesis.shards import decode
from penstock.connectors.kinesis.source import Source
from penstock.errors import LeaseLost, LeaseTableInvalid
from penstock.handles import CheckpointId
from penstock.interfaces.source import SourceContext

NUMBERS = count()
MINUTE = "60 seconds"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory):
    with dynamo_server(tmp_path_factory.mktemp("dynamo")) as started:
        yield started


class Leased(Stream):
    """A stream whose reader has a lease table, and a timer that a test moves."""

    def __init__(self, server, dynamo, mode, shards=2, **more):
        self.dynamo = dynamo.client()
        self.table = f"app-{next(NUMBERS)}"
        LeaseTable(self.dynamo, self.table).create()
        self.rows = Rows(self.dynamo, self.table)
        self.facts, self.pauses, self.completed = [], [], 0
        self.while_pausing = lambda: None
        leases = ps.kinesis.leases(self.table, mode=mode, **more)
        super().__init__(server, shards, commits=self.new_commits, opens=False, leases=leases)

    def new_commits(self):
        self.lease_clock = TickClock()
        context = SourceContext(uid="in", spark=None, report=self.facts.append)
        return LeaseCommits(self.source.leases, context, client=self.dynamo, clock=self.lease_clock, pause=self.pause)

    def importer(self, **more):
        """Another source of the same stream, which begins where the table says."""
        heir = object.__new__(Leased)
        heir.__dict__ |= self.__dict__ | {"read": [], "pauses": [], "while_pausing": lambda: None}
        heir.__dict__.pop("reader", None)
        heir.commits = heir.new_commits
        leases = ps.kinesis.leases(self.table, mode="import", **more)
        heir.source = Source(self.name, poll_every="20 milliseconds", discover_every="1 second", leases=leases)
        return heir

    def pause(self, seconds):
        self.pauses.append(seconds)
        if seconds >= 1:
            self.while_pausing()

    def complete(self):
        self.completed += 1
        self.reader.committed(CheckpointId(self.completed), self.reader.position())

    def export_rows(self, count):
        """Read so many new records, complete a checkpoint behind them, and let the time of an export come."""
        self.add(count)
        self.read_all()
        self.complete()
        self.lease_clock.tick(MINUTE)

    def read_rest(self, polls=300):
        """Read what there is, and end the reader."""
        self.open()
        for _ in range(polls):
            self.poll()
        self.reader.close()

    def act_as_worker(self, shard, *, owner="kcl-1", renewals=0):
        """Write into a row what a worker of an application does."""
        self.dynamo.update_item(
            TableName=self.table,
            Key={"leaseKey": {"S": shard}},
            UpdateExpression="SET leaseOwner = :o ADD leaseCounter :n",
            ExpressionAttributeValues={":o": {"S": owner}, ":n": {"N": str(renewals)}},
        )

    def state(self):
        return decode(self.reader.position()).shards

    def parents(self):
        shards = self.client.list_shards(StreamName=self.name)["Shards"]
        both = ("ParentShardId", "AdjacentParentShardId")
        return {each["ShardId"]: tuple(each[key] for key in both if each.get(key)) for each in shards}

    def exported(self):
        """The positions as a KCL application would go on from them, by the reader of an import."""
        start = import_start(LeaseTable(self.dynamo, self.table), pause=self.pause)
        return match_listing(start.positions, self.parents())


def test_what_is_exported_is_where_a_kcl_application_goes_on(server, dynamo):
    """kinesis E6: over a split and a merge, with aggregates. Both emulators can do it."""
    stream = Leased(server, dynamo, "export")
    stream.open()
    stream.add(30)
    stream.add(4, aggregate=True)
    stream.read_all()
    stream.complete()
    stream.lease_clock.tick(MINUTE)
    assert stream.exported() == {shard: state.position for shard, state in stream.state().items()}
    stream.split()
    stream.add(30)
    stream.read_all()
    stream.merge(1)
    stream.add(30)
    stream.read_all()
    completed = stream.state()
    stream.complete()
    stream.add(20)
    stream.read_all()
    stream.reader.close()
    found = stream.exported()
    assert {shard: found[shard] for shard in completed} == {shard: state.position for shard, state in completed.items()}
    for shard, state in completed.items():
        row = stream.rows.get(shard)
        assert "leaseOwner" not in row, "an application may take it at once"
        assert LeaseCheckpoint(*stream.rows.at(shard)[:2]) == to_lease(state.position)
        assert set(row.get("parentShardId", {}).get("SS", ())) == set(state.parents)
        children = {child for child, other in completed.items() if shard in other.parents}
        if isinstance(state.position, Finished):
            assert set(row["childShardIds"]["SS"]) == children
    # Who goes on there reads what came after the checkpoint, and nothing of what came before it.
    before = len(stream.read) - 20
    heir = stream.importer()
    heir.read_rest()
    assert sorted(heir.read) == sorted(stream.read[before:])
    stream.check_read()


def test_a_stale_exporter_beside_a_newer_one_moves_no_row_back(server, dynamo):
    """kinesis E7: a process that was taken for dead exports an old checkpoint. Both emulators can do it."""
    stream = Leased(server, dynamo, "export")
    stream.open()
    stream.add(30)
    stream.read_all()
    old = stream.state()
    stream.complete()
    stale = LeaseTable(stream.dynamo, stream.table)
    seen = []

    def watch():
        for shard in sorted(old):
            if stream.rows.get(shard) is not None:
                checkpoint, sub, _counter = stream.rows.at(shard)
                seen.append((shard, lease_order(LeaseCheckpoint(checkpoint, sub))))

    for _ in range(3):
        stream.export_rows(20)
        watch()
        for shard, state in old.items():
            assert stale.advance(shard, state.position) is not LeaseWrite.NOW
        watch()
    for shard in old:
        orders = [each for name, each in seen if name == shard]
        assert orders == sorted(orders)
    assert stream.exported() == {shard: state.position for shard, state in stream.state().items()}
    assert all(order(stream.state()[shard].position) > order(old[shard].position) for shard in old)
    stream.check()


def test_a_lease_that_another_worker_has_bumped_fences_the_job(server, dynamo):
    """kinesis E8: no batch and no export follow. Both emulators can do it."""
    stream = Leased(server, dynamo, "own")
    stream.open()
    stream.export_rows(20)
    shard = min(stream.state())
    exported, _sub, counter = stream.rows.at(shard)
    assert stream.rows.get(shard)["leaseOwner"]["S"] == "penstock-in"
    stream.act_as_worker(shard, renewals=5)
    stream.add(20)
    stream.lease_clock.tick("4 seconds")  # a third of the failover time has passed: the leases are renewed
    with pytest.raises(LeaseLost, match=shard):
        stream.poll()
    stream.complete()
    stream.reader.close()
    assert stream.rows.at(shard) == (exported, 0, counter + 5), "what is not ours stays as it is"
    assert stream.rows.get(shard)["leaseOwner"]["S"] == "kcl-1"


def test_a_table_that_dies_under_an_export_does_not_touch_the_reader(server, dynamo, caplog):
    """kinesis E9: the export catches up when DynamoDB is back. Both emulators can do it; moto forgets its tables."""
    stream = Leased(server, dynamo, "export")
    stream.open()
    stream.export_rows(20)
    kept = [stream.rows.get(shard) for shard in stream.state()]
    dynamo.kill()
    try:
        stream.split()
        stream.export_rows(20)
        assert "does not answer" in caplog.text
    finally:
        dynamo.start()
    LeaseTable(stream.dynamo, stream.table).create()
    for row in kept:
        stream.rows.put_row(row)
    stream.lease_clock.tick(MINUTE)
    assert stream.exported() == {shard: state.position for shard, state in stream.state().items()}
    stream.check()


def test_an_import_begins_after_what_an_application_processed_and_refuses_one_that_runs(server, dynamo):
    """kinesis E11: number, aggregate, horizon, parents at their end. Both emulators can do it."""
    first = Leased(server, dynamo, "export")
    first.open()
    first.add(20)
    first.add(4, aggregate=True)
    first.read_all()
    first.split()
    first.add(20)
    first.read_all()
    half = first.read[:]
    first.complete()
    first.lease_clock.tick(MINUTE)
    leased = [shard for shard in sorted(first.state()) if first.rows.get(shard) is not None]
    for shard in leased:  # as the KCL leaves them: with the name of a worker that has stopped
        first.act_as_worker(shard)
    first.add(30)

    alive = first.importer()
    alive.while_pausing = lambda: first.act_as_worker(max(leased), renewals=1)
    with pytest.raises(LeaseLost, match="the application runs"):
        alive.open()
    heir = first.importer()
    heir.read_rest()
    assert max(heir.pauses) == 20, "two failover times"
    first.read_all()
    assert sorted(heir.read) == sorted(first.read[len(half) :])
    first.check_read()
    first.reader.close()


def test_an_import_of_rows_that_say_no_place_is_refused(lineage_server, dynamo):
    """kinesis E11: LATEST and AT_TIMESTAMP mean what no row holds. Kinesis itself is not asked."""
    stream = Leased(lineage_server, dynamo, "import")
    for shard, word in zip(sorted(stream.parents()), ("LATEST", "AT_TIMESTAMP"), strict=True):
        stream.rows.put(shard, word)
    with pytest.raises(LeaseTableInvalid, match="does not say where to begin"):
        stream.open()
    told = stream.importer(otherwise="earliest")
    stream.add(5)
    told.read_rest()
    assert len(told.read) == 5
